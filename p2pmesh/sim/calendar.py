"""Time for a million small things: a calendar of short days, each a list that becomes a heap when it comes.

An entry is ``(when, order, kind, peer, detail)``: two that are due at once run in the order of their entry. One heap of
closures would be as exact and costs three times as much per entry. ``sim.scheduler`` is a face of it for actions.
"""

from heapq import heapify, heappop, heappush
from typing import Any

WAKE, ANSWER, WAVE, CALL = range(1, 5)
"""Kinds: membership's deadline, an event for it, a wave of gossip, anything else."""

Entry = tuple[int, int, int, int, Any]


class RunawayError(RuntimeError):
    """A scenario took more steps, or held more waiting entries, than its bound, or would stand still for ever."""


class Calendar:
    """Entries by time in microseconds. ``day_us`` only changes what it costs, never the order.

    The bounds are some hundred times what ten thousand peers take in 70 minutes.
    """

    def __init__(self, day_us: int = 50_000, max_taken: int = 2_000_000_000, max_waiting: int = 20_000_000) -> None:
        self.now_us = 0
        self.taken = 0
        self._day_us = day_us
        self._max_taken = max_taken
        self._max_waiting = max_waiting
        self._days: dict[int, list[Entry]] = {}
        self._coming: list[int] = []
        self._today = 0
        self._heap: list[Entry] = []
        self._order = 0

    def put(self, when_us: int, kind: int, peer: int, detail: Any = None) -> None:
        """Enters something; a time that has passed means now."""
        if when_us < self.now_us:
            when_us = self.now_us
        if self._order - self.taken >= self._max_waiting:
            raise RunawayError(f"{len(self)} actions wait at {self.now_us} us")
        self._order = order = self._order + 1
        number = when_us // self._day_us
        if number <= self._today:
            heappush(self._heap, (when_us, order, kind, peer, detail))
            return
        day = self._days.get(number)
        if day is None:
            self._days[number] = [(when_us, order, kind, peer, detail)]
            heappush(self._coming, number)
        else:
            day.append((when_us, order, kind, peer, detail))

    def take(self, end_us: int) -> Entry | None:
        """The next entry that is due up to and with ``end_us``, with the time moved to it; None if there is none."""
        heap = self._heap
        while not heap:
            if not self._coming or self._coming[0] * self._day_us > end_us:
                return None
            self._today = heappop(self._coming)
            self._heap = heap = self._days.pop(self._today)
            heapify(heap)
        if heap[0][0] > end_us:
            return None
        if self.taken >= self._max_taken:
            raise RunawayError(f"more than {self._max_taken} steps by {self.now_us} us")
        entry = heappop(heap)
        self.now_us = entry[0]
        self.taken += 1
        return entry

    def __len__(self) -> int:
        return self._order - self.taken
