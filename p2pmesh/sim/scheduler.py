"""Simulated time for the world ``runs``: actions on a ``sim.calendar``, in one total order."""

from collections.abc import Callable

from p2pmesh.base.quantities import Micros
from p2pmesh.sim.calendar import CALL, Calendar

Action = Callable[[], None]


class Scheduler:
    """Two actions that are due at once run in the order in which they were scheduled."""

    def __init__(self, max_steps: int = 50_000_000, max_waiting: int = 5_000_000) -> None:
        self._calendar = Calendar(max_taken=max_steps, max_waiting=max_waiting)

    @property
    def now(self) -> Micros:
        """Simulated microseconds since the start."""
        return Micros(self._calendar.now_us)

    @property
    def steps(self) -> int:
        """Actions that have run."""
        return self._calendar.taken

    @property
    def waiting_count(self) -> int:
        """Actions that have not run yet."""
        return len(self._calendar)

    def at(self, when: Micros, action: Action) -> None:
        """Runs ``action`` at ``when``; a time that has passed means now."""
        self._calendar.put(when, CALL, 0, action)

    def after(self, delay_us: int, action: Action) -> None:
        """Runs ``action`` in ``delay_us``."""
        self._calendar.put(self._calendar.now_us + delay_us, CALL, 0, action)

    def run_until(self, end: Micros) -> None:
        """Runs all that is due up to and with ``end``; the time is ``end`` afterwards."""
        while (entry := self._calendar.take(end)) is not None:
            entry[4]()
        self._calendar.now_us = max(self._calendar.now_us, end)
