"""Hours in which an owner shares a machine, by the wall clock of where it stands.

Owns windows of a week and their notation. A window is local time as a clock shows it, so that a day of 23 or 25 hours
has its windows where people expect them: an hour that is shown twice is open twice, one that is left out is not waited
for. What time it is there is ``ports.owner``'s.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

MINUTES_PER_DAY = 24 * 60
MINUTES_PER_WEEK = 7 * MINUTES_PER_DAY
MAX_WINDOWS = 32
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"([0-2]?\d):([0-5]\d)-([0-2]?\d):([0-5]\d)\Z", re.ASCII)
_EXAMPLE = "write for example 22:00-07:00, or Mon-Fri 22:00-07:00, or Sat,Sun 00:00-24:00"


@dataclass(frozen=True, slots=True, order=True)
class LocalTime:
    """What a clock and a calendar show: ``weekday`` from Monday 0, ``minute`` of the day."""

    weekday: int
    minute: int

    @property
    def minute_of_week(self) -> int:
        """From Monday, 00:00."""
        return self.weekday * MINUTES_PER_DAY + self.minute

    def __str__(self) -> str:
        return f"{DAYS[self.weekday].title()} {self.minute // 60:02}:{self.minute % 60:02}"


@dataclass(frozen=True, slots=True)
class ShareHours:
    """Open spans ``[start, end)`` in minutes of a week: ascending, apart, within it. None at all: always open."""

    spans: tuple[tuple[int, int], ...] = ()

    def is_open(self, local: LocalTime) -> bool:
        """Whether the machine is shared at this time."""
        now = local.minute_of_week
        return not self.spans or any(start <= now < end for start, end in self.spans)

    def next_change(self, local: LocalTime) -> LocalTime | None:
        """When the answer is another one; None if that never comes."""
        now, is_open = local.minute_of_week, self.is_open(local)
        edges = sorted({edge % MINUTES_PER_WEEK for span in self.spans for edge in span})
        for edge in (*(one for one in edges if one > now), *(one for one in edges if one <= now)):
            then = LocalTime(*divmod(edge, MINUTES_PER_DAY))
            if self.is_open(then) != is_open:
                return then
        return None


def parse_share_hours(texts: Iterable[str]) -> ShareHours:
    """Windows such as ``22:00-07:00``, ``22:00-06:00,12:00-13:00`` or ``Mon-Fri 18:00-24:00``.

    A window that ends before it begins goes over midnight and belongs to the day on which it begins.

    Raises ``ValueError`` with a sentence for whoever typed it.
    """
    found: list[tuple[int, int]] = []
    for text in texts:
        for day in _days_of(text):
            for start, end in _ranges_of(text):
                found += _on_day(day, start, end)
    if len(found) > 7 * 2 * MAX_WINDOWS:
        raise ValueError(f"more than {MAX_WINDOWS} windows")
    return ShareHours(_joined(found))


def _ranges_of(text: str) -> list[tuple[int, int]]:
    ranges = text.split()[-1].split(",") if text.split() else [""]
    return [_range(text, one) for one in ranges]


def _range(text: str, one: str) -> tuple[int, int]:
    match = _RANGE.match(one)
    if match is None:
        raise ValueError(f"{text[:60]!r} are no hours; {_EXAMPLE}")
    from_hour, from_minute, to_hour, to_minute = map(int, match.groups())
    start, end = 60 * from_hour + from_minute, 60 * to_hour + to_minute
    if start >= MINUTES_PER_DAY or end > MINUTES_PER_DAY:
        raise ValueError(f"{one!r} is no time of a day; it goes from 00:00 to 24:00")
    if start == end:
        raise ValueError(f"{one!r} begins and ends at the same time; write 00:00-24:00 for the whole day")
    return start, end


def _days_of(text: str) -> tuple[int, ...]:
    words = text.split()
    if len(words) < 2:
        return tuple(range(7))
    found: list[int] = []
    for part in "".join(words[:-1]).split(","):
        first, dash, last = part.partition("-")
        ends = [_day(text, first), _day(text, last if dash else first)]
        found += [(ends[0] + at) % 7 for at in range((ends[1] - ends[0]) % 7 + 1)]
    return tuple(dict.fromkeys(found))


def _day(text: str, name: str) -> int:
    short = name[:3].lower()
    if short not in DAYS or not name.isalpha():
        raise ValueError(f"{name[:20]!r} in {text[:60]!r} is no day; {_EXAMPLE}")
    return DAYS.index(short)


def _on_day(day: int, start: int, end: int) -> list[tuple[int, int]]:
    """As spans of the week; one that goes over its end is two."""
    begins = day * MINUTES_PER_DAY + start
    ends = begins + (end - start if end > start else end - start + MINUTES_PER_DAY)
    if ends <= MINUTES_PER_WEEK:
        return [(begins, ends)]
    return [(begins, MINUTES_PER_WEEK), (0, ends - MINUTES_PER_WEEK)]


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    assert all(before[1] < after[0] for before, after in pairwise(joined))
    return tuple(joined)
