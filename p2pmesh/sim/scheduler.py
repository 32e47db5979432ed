"""Simulated time: actions in one total order of (time, order of their scheduling)."""

import heapq
from collections.abc import Callable

from p2pmesh.base.quantities import Micros

Action = Callable[[], None]


class RunawayError(RuntimeError):
    """A scenario took more steps, or held more waiting actions, than its bound."""


class Scheduler:
    """A heap of actions. Two that are due at once run in the order in which they were scheduled."""

    def __init__(self, max_steps: int = 50_000_000, max_waiting: int = 5_000_000) -> None:
        self._now = Micros(0)
        self._order = 0
        self._heap: list[tuple[Micros, int, Action]] = []
        self._max_steps = max_steps
        self._max_waiting = max_waiting
        self._steps = 0

    @property
    def now(self) -> Micros:
        """Simulated microseconds since the start."""
        return self._now

    @property
    def steps(self) -> int:
        """Actions that have run."""
        return self._steps

    @property
    def waiting_count(self) -> int:
        """Actions that have not run yet."""
        return len(self._heap)

    def at(self, when: Micros, action: Action) -> None:
        """Runs ``action`` at ``when``; a time that has passed means now."""
        if len(self._heap) >= self._max_waiting:
            raise RunawayError(f"{len(self._heap)} actions wait at {self._now} us")
        heapq.heappush(self._heap, (max(when, self._now), self._order, action))
        self._order += 1

    def after(self, delay_us: int, action: Action) -> None:
        """Runs ``action`` in ``delay_us``."""
        self.at(Micros(self._now + delay_us), action)

    def run_until(self, end: Micros) -> None:
        """Runs all that is due up to and with ``end``; the time is ``end`` afterwards."""
        while self._heap and self._heap[0][0] <= end:
            self._steps += 1
            if self._steps > self._max_steps:
                raise RunawayError(f"more than {self._max_steps} steps by {self._now} us")
            self._now, _, action = heapq.heappop(self._heap)
            action()
        self._now = max(self._now, end)
