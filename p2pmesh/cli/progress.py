"""A fetch as a person watches it: a bar that is drawn over itself on a terminal, a line now and then elsewhere."""

from collections.abc import Mapping
from typing import Any, TextIO

from p2pmesh.base.quantities import format_size

BAR_CHARACTERS = 24
STEP_PERCENT = 10
"""Where no terminal can be drawn over, a line is written at each such step."""


def describe_fetch(facts: Mapping[str, Any]) -> str:
    """One line: bar, share, bytes, rate and time left."""
    done, total = facts["done_bytes"], facts["total_bytes"]
    filled = BAR_CHARACTERS * done // total if total else BAR_CHARACTERS
    bar = "#" * filled + "." * (BAR_CHARACTERS - filled)
    rate, left = facts["rate_bytes_per_s"], facts["left_s"]
    speed = f", {format_size(rate)}/s" if rate else ""
    ending = "" if left is None else f", {_duration(left)} left"
    sizes = f"{format_size(done)} of {format_size(total)}"
    return f"{facts['model']} [{bar}] {percent(facts)} %  {sizes}{speed}{ending}"


def percent(facts: Mapping[str, Any]) -> int:
    """Whole percent of the bytes that are here."""
    return 100 * int(facts["done_bytes"]) // int(facts["total_bytes"]) if facts["total_bytes"] else 100


class FetchLine:
    """Shows progress on ``out`` until ``end``. Not for several fetches at a time on one terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._is_drawn = False
        self._steps: dict[str, int] = {}

    def show(self, facts: Mapping[str, Any], text: str) -> None:
        """The newest progress as ``text``."""
        if self._is_terminal:
            self._write(f"\r\x1b[K{text}")
            self._is_drawn = True
            return
        step = percent(facts) // STEP_PERCENT
        if self._steps.get(facts["model"]) != step:
            self._steps = {facts["model"]: step}
            self._write(text + "\n")

    def end(self) -> None:
        """Another line may follow."""
        if self._is_drawn:
            self._write("\n")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # nobody looks any more, or the disk is full
            self._is_drawn = False


def _duration(seconds: int) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
