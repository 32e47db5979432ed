"""Where an invite is read from: the command line, a file, standard input, or ``P2PMESH_JOIN``.

What it says is ``app.joining``'s and ``app.invites``'.
"""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TextIO

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_INVITE_BYTES

JOIN_VARIABLE = "P2PMESH_JOIN"
STDIN = "-"


def read_invite_text(
    given: str | None, file: str | None, environment: MutableMapping[str, str], stdin: TextIO
) -> str | None:
    """The invite that was given: as it is, ``-`` for standard input, in a file, or in ``P2PMESH_JOIN``; in this order.

    The variable is taken away, so that no process that the node starts inherits it.
    """
    variable = environment.pop(JOIN_VARIABLE, "").strip()
    if given == STDIN:
        return _first_line(stdin.read(MAX_INVITE_BYTES + 2), "standard input")
    if given is not None:
        return given
    if file is not None:
        return _first_line(_read_file(Path(file)), file)
    return variable or None


def invite_origin(given: str | None, file: str | None, environment: Mapping[str, str]) -> str:
    """Whence ``read_invite_text`` would read it, for messages; "--join" where nothing is given."""
    if given == STDIN:
        return "standard input"
    if given is not None or (file is None and not environment.get(JOIN_VARIABLE, "").strip()):
        return "--join"
    return f"${JOIN_VARIABLE}" if file is None else file


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_INVITE_BYTES + 2).decode("ascii", "replace")
    except OSError as error:
        text = f"the invite in {path} cannot be read: {error.strerror or error}; check its path and its owner"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text) from None


def _first_line(text: str, where: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), None)
    if line is None:
        raise ConfigError(ErrorCode.INVITE_MALFORMED, f"{where} holds no invite; put the whole line there")
    return line
