"""Which of many equal happenings are told one by one, and which are only counted.

A peer that comes and goes several times a second must not fill its neighbours' logs. Time and subjects come from the
caller; what an event looks like is the caller's too (``app.event_folding``).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FoldingPolicy:
    """Of each subject ``shown`` happenings are told in a window; of at most ``capacity`` subjects at a time."""

    window_us: int = 60 * MICROS_PER_SECOND
    shown: int = 3
    capacity: int = 1024


@dataclass(slots=True)
class _Window:
    """Of one subject."""

    ends_at: int
    seen: int = 0


class FoldingMachine(Generic[Key]):
    """Counts per subject; windows start with the first happening and are kept in the order of their ends."""

    def __init__(self, policy: FoldingPolicy | None = None) -> None:
        self._policy = policy or FoldingPolicy()
        self._windows: dict[Key, _Window] = {}

    def is_shown(self, key: Key, now: Micros) -> bool:
        """Counts one happening; whether it is to be told by itself. Take what is due before (``take_due``)."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now + self._policy.window_us)
        window.seen += 1
        return window.seen <= self._policy.shown

    def has_room_for(self, key: Key) -> bool:
        """Whether the subject is counted already or can be; otherwise count it under a wider one."""
        return key in self._windows or len(self._windows) < self._policy.capacity

    def deadline(self) -> Micros | None:
        """When the first window ends."""
        return Micros(next(iter(self._windows.values())).ends_at) if self._windows else None

    def take_due(self, now: Micros) -> list[tuple[Key, int]]:
        """Subjects whose window is over and of which some happenings were not told, with how many."""
        due: list[tuple[Key, int]] = []
        for key, window in list(self._windows.items()):
            if window.ends_at > now:
                break
            del self._windows[key]
            if window.seen > self._policy.shown:
                due.append((key, window.seen - self._policy.shown))
        return due
