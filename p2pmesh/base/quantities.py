"""Quantities with their units: time and sizes."""

import re
from typing import NewType

Micros = NewType("Micros", int)
"""Monotonic microseconds since the node (or the simulation) started."""

UnixMillis = NewType("UnixMillis", int)
"""Wall-clock milliseconds since 1970; only inside signed records, never mixed with ``Micros``."""

MICROS_PER_SECOND = 1_000_000
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(I?B)?\Z", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,9})\s*([smhd])\Z", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST_DURATION_S = 365 * 86_400
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def micros(seconds: float) -> Micros:
    """Whole microseconds of ``seconds``, rounded."""
    return Micros(round(seconds * MICROS_PER_SECOND))


def parse_size_bytes(text: str) -> int:
    """Bytes of a size such as ``0``, ``512MiB``, ``8G`` or ``1.5 GB``; K, M, G and T are powers of 1024.

    Raises ``ValueError`` with a sentence for the person who typed it.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example 0, 512MiB or 8GiB")
    number, prefix, _ = match.groups()
    return int(float(number) * 1024 ** _POWERS[prefix.upper()])


def parse_duration_s(text: str) -> int:
    """Seconds of a duration such as ``90s``, ``30m``, ``24h`` or ``7d``; one second to 365 days.

    Raises ``ValueError`` with a sentence for the person who typed it.
    """
    match = _DURATION.match(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a duration; write for example 30m, 24h or 7d, from 1s to 365d")
    seconds = int(match[1]) * _SECONDS[match[2].lower()]
    if seconds > LONGEST_DURATION_S:
        raise ValueError(f"{text!r} is too long; write for example 30m, 24h or 7d, from 1s to 365d")
    return seconds


def format_age(milliseconds: int) -> str:
    """A time that has passed, for a person: in the largest whole unit, from seconds to days, that it has two of."""
    seconds = max(0, milliseconds) // 1000
    for unit, length_s in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s} {unit}"
    return "1 second" if seconds == 1 else f"{seconds} seconds"


def format_size(size_bytes: int) -> str:
    """``size_bytes`` for a person: one decimal, binary units."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
