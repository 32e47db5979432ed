"""When something of a simulated peer is due next: of its entries in the calendar only the last one counts.

For what is seldom. Membership's deadline, which is set millions of times, has its entry in ``sim.overlay``.
"""

from collections.abc import Callable
from functools import partial

from p2pmesh.sim.calendar import CALL, Calendar

NEVER = 2**62


class Alarm:
    """Rings once for each time that it was set, unless it was set anew before."""

    __slots__ = ("due_us",)

    def __init__(self) -> None:
        self.due_us = NEVER

    def set_by(self, calendar: Calendar, due_us: int | None, action: Callable[[], None]) -> None:
        """Rings at ``due_us`` at the latest; None asks for nothing."""
        if due_us is not None and due_us < self.due_us:
            self.set_at(calendar, due_us, action)

    def set_at(self, calendar: Calendar, when_us: int, action: Callable[[], None]) -> None:
        """Rings at ``when_us``, or now if that has passed, and not at the time of before."""
        self.due_us = when_us = max(when_us, calendar.now_us)
        calendar.put(when_us, CALL, 0, partial(self._ring, when_us, action))

    def _ring(self, when_us: int, action: Callable[[], None]) -> None:
        if when_us == self.due_us:
            self.due_us = NEVER
            action()
