"""Runs one pure machine under trio: events in, effects out, a wake-up at the machine's own deadline."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import trio

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.ports.clock import Clock

E = TypeVar("E")
F = TypeVar("F")


class Machine(Protocol[E, F]):  # type: ignore[misc]  # effects only leave, but a tuple of a TypeVar reads as invariant
    """The one signature of every machine in ``core``."""

    def handle(self, event: E, now: Micros) -> tuple[F, ...]:
        """Effects of an event."""

    def deadline(self) -> Micros | None:
        """When the machine wants to be woken."""


class MachineRunner(Generic[E, F]):
    """One machine and its bounded queue of events.

    Effects of one event are performed in order before the next event is taken, so a machine never sees the answer to
    an effect before the effects beside it are out.
    """

    def __init__(
        self,
        machine: Machine[E, F],
        clock: Clock,
        perform: Callable[[F], Awaitable[None]],
        deadline_event: E,
        capacity: int = 256,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._perform = perform
        self._deadline_event = deadline_event
        self._send, self._receive = trio.open_memory_channel[E](capacity)
        self._queued = 0
        """Events that were posted and not yet taken up."""
        self._is_handling = False
        self._turns = trio.lowlevel.ParkingLot()
        self._waits_until: Micros | None = None

    def post(self, event: E) -> None:
        """Queues an event; raises ``trio.WouldBlock`` when the queue is full."""
        self._send.send_nowait(event)
        self._queued += 1

    async def put(self, event: E) -> None:
        """Queues an event, waiting for room."""
        self._queued += 1
        try:
            await self._send.send(event)
        except BaseException:
            self._queued -= 1
            raise

    async def handle_here(self, event: E) -> None:
        """Handles an event in the task of the caller if nothing is before it, which saves a wake-up; else queues it.

        Raises ``trio.WouldBlock`` when the queue is full, and whatever performing an effect raises.
        """
        if self._is_handling or self._queued:
            self.post(event)
            return
        await self._handle(event)
        deadline = self._machine.deadline()
        if deadline is not None and (self._waits_until is None or deadline < self._waits_until):
            self.post(self._deadline_event)  # whoever waits for events looks at the deadline anew

    async def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Runs until ``is_over`` after an event taken from the queue, or until cancelled."""
        while not is_over():
            event = await self._next_event()
            while self._is_handling:
                await self._turns.park()
            await self._handle(event)

    async def _handle(self, event: E) -> None:
        self._is_handling = True
        try:
            for effect in self._machine.handle(event, self._clock.now()):
                await self._perform(effect)
        finally:
            self._is_handling = False
            self._turns.unpark_all()

    async def _next_event(self) -> E:
        deadline = self._waits_until = self._machine.deadline()
        if deadline is None:
            return await self._take()
        event: E = self._deadline_event
        with trio.move_on_after(max(0, deadline - self._clock.now()) / MICROS_PER_SECOND):
            event = await self._take()
        return event  # noqa: RET504 - a return inside the scope reads as the only way out

    async def _take(self) -> E:
        event = await self._receive.receive()
        self._queued -= 1
        return event
