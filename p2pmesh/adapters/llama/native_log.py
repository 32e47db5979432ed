"""What llama.cpp logs, kept for error messages; nothing of it reaches stdout or stderr."""

import ctypes
from collections import deque

from llama_cpp import llama_cpp as native

_KEPT_LINES = 50
_KEPT_CHARACTERS = 300
_LEVEL_DEBUG = 1
_LEVEL_CONTINUED = 5

_lines: deque[str] = deque(maxlen=_KEPT_LINES)


def _keep(level: int, text: bytes, _user_data: object) -> None:
    if level <= _LEVEL_DEBUG:
        return
    line = text.decode("utf-8", "replace").rstrip("\n")[:_KEPT_CHARACTERS]
    if level == _LEVEL_CONTINUED and _lines:
        _lines[-1] = (_lines[-1] + line)[:_KEPT_CHARACTERS]
    elif line.strip(". "):
        _lines.append(line)


_callback = native.llama_log_callback(_keep)  # native code calls it as long as the process lives


def capture() -> None:
    """Takes the log over; call once before the library loads anything."""
    native.llama_log_set(_callback, ctypes.c_void_p(0))


def forget() -> None:
    """Drops what was kept; what follows is of the next load alone."""
    _lines.clear()


def lines() -> tuple[str, ...]:
    """The last lines, oldest first."""
    return tuple(_lines)


def last_complaint() -> str:
    """The last line that reads like a cause, else the last line."""
    for line in reversed(_lines):
        if any(word in line.lower() for word in ("error", "fail", "invalid", "unable", "unknown", "missing")):
            return line
    return _lines[-1] if _lines else "llama.cpp said nothing"
