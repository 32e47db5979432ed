"""An invite as a QR code in a terminal: half blocks, so that it is square and takes half the lines."""

from io import StringIO
from typing import TextIO

import segno
from segno.encoder import DataOverflowError


def qr_lines(text: str) -> list[str]:
    """The code's lines at the lowest correction, which makes it smallest; none where no code holds ``text``."""
    try:
        code = segno.make_qr(text, error="l", boost_error=False)
    except DataOverflowError:
        return []
    out = StringIO()
    code.terminal(out, border=2, compact=True)
    return out.getvalue().rstrip("\n").split("\n")


def fits(lines: list[str], columns: int) -> bool:
    """Whether the code fits a terminal of so many columns without being broken."""
    return bool(lines) and max(map(_width, lines)) <= columns


def print_qr(text: str, out: TextIO) -> None:
    """Prints the code; a line that says so where there is none."""
    lines = qr_lines(text) or ["(the invite is too long for a QR code: give it fewer addresses)"]
    out.write("\n".join(lines) + "\n")


def _width(line: str) -> int:
    """Characters without the sequences that set colours."""
    width = 0
    is_escape = False
    for character in line:
        if character == "\x1b":
            is_escape = True
        elif is_escape:
            is_escape = character != "m"
        else:
            width += 1
    return width
