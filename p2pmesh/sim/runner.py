"""The heap's runner of a machine: posts events, keeps its deadline, carries its effects out.

The trio runner in ``node`` keeps the same promises; a contract test feeds both the same events.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from p2pmesh.base.quantities import Micros
from p2pmesh.sim.calendar import RunawayError
from p2pmesh.sim.scheduler import Scheduler

E = TypeVar("E")
F = TypeVar("F")
EventIn = TypeVar("EventIn", contravariant=True)
EffectOut = TypeVar("EffectOut", covariant=True)


class Machine(Protocol[EventIn, EffectOut]):
    """What every machine of ``core`` is."""

    def handle(self, event: EventIn, now: Micros) -> tuple[EffectOut, ...]:
        """The effects of one event."""

    def deadline(self) -> Micros | None:
        """When the deadline event is due."""


def check_deadline_moved(machine: Machine[Any, Any], now_us: int) -> None:
    """A machine that keeps a deadline of which it was told would be woken for ever at the same time."""
    due = machine.deadline()
    if due is not None and due <= now_us:
        raise RunawayError(f"{type(machine).__name__} keeps a deadline that passed at {due} us")


Note = Callable[[Micros, object, tuple[object, ...]], None]
"""Told of every event that was handled, with its time and its effects, before they are carried out."""


class MachineRunner(Generic[E, F]):
    """Events are handled one after the other: what is posted while effects are carried out waits for its turn."""

    def __init__(
        self,
        scheduler: Scheduler,
        machine: Machine[E, F],
        deadline_event: E,
        perform: Callable[[F], None],
        note: Note,
    ) -> None:
        self._scheduler = scheduler
        self._machine = machine
        self._deadline_event = deadline_event
        self._perform = perform
        self._note = note
        self._queue: deque[E] = deque()
        self._is_busy = False
        self._is_stopped = False
        self._wake_at: Micros | None = None

    def post(self, event: E) -> None:
        """Handles ``event`` now, after those that were posted before it."""
        if self._is_stopped:
            return
        self._queue.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._is_busy = False

    def stop(self) -> None:
        """Nothing is handled or carried out any more; the peer has crashed or the machine is over."""
        self._is_stopped = True
        self._queue.clear()

    def _handle(self, event: E) -> None:
        now = self._scheduler.now
        effects = self._machine.handle(event, now)
        self._note(now, event, effects)
        self._arm()
        for effect in effects:
            if self._is_stopped:
                return
            self._perform(effect)

    def _arm(self) -> None:
        due = self._machine.deadline()
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            self._scheduler.at(due, self._wake)

    def _wake(self) -> None:
        if self._is_stopped or self._wake_at is None or self._wake_at > self._scheduler.now:
            return  # an earlier wake-up took this one's place
        self._wake_at = None
        due = self._machine.deadline()
        if due is not None and due <= self._scheduler.now:
            self.post(self._deadline_event)
            if not self._is_stopped:
                check_deadline_moved(self._machine, self._scheduler.now)
        else:
            self._arm()
