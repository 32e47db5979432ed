"""Where the command ``p2pmesh`` and ``python -m p2pmesh`` begin: Ctrl-C counts from here on.

Imports nothing of the package by itself: loading the commands takes a good part of a second, in which Ctrl-C would
else end in a traceback.
"""

import io
import os
import sys

INTERRUPTED = 130
"""As ``cli.exit_codes`` has it."""


def main() -> int:
    """Loads the command line and runs it; the exit code."""
    try:
        _open_missing_streams()
        _escape_what_cannot_be_encoded()
        from p2pmesh.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_missing_streams() -> None:
    """A parent may have closed stdin, stdout or stderr: the next file that is opened, such as a key, would get its
    number, and be written to by every print of an engine."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for as long as the process lives


def _escape_what_cannot_be_encoded() -> None:
    """A terminal that is not set to UTF-8 gets an escape for a character that it lacks, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
