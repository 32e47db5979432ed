"""Where the command ``p2pmesh`` and ``python -m p2pmesh`` begin: Ctrl-C counts from here on.

Imports nothing of the package by itself: loading the commands takes a good part of a second, in which Ctrl-C would
else end in a traceback.
"""

import sys

INTERRUPTED = 130
"""As ``cli.exit_codes`` has it."""


def main() -> int:
    """Loads the command line and runs it; the exit code."""
    try:
        from p2pmesh.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
