"""Lanes of one run as its requests wait for them; whose turn it is decides ``core.lane_queue``."""

from dataclasses import dataclass, field

import trio

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.lane_queue import (
    Arrived,
    Claimant,
    DeadlinePassed,
    Effect,
    Event,
    Grant,
    LaneQueue,
    LaneQueuePolicy,
    Left,
    Shed,
)
from p2pmesh.ports.clock import Clock


@dataclass(slots=True)
class _Waiter:
    settled: trio.Event = field(default_factory=trio.Event)
    shed: Shed | None = None


class LaneTurns:
    """Runs the queue of one driver."""

    def __init__(self, policy: LaneQueuePolicy, clock: Clock) -> None:
        self._policy = policy
        self._queue = LaneQueue(policy)
        self._clock = clock
        self._waiters: dict[int, _Waiter] = {}
        self._last_ticket = 0

    @property
    def taken(self) -> int:
        """Lanes that requests have."""
        return self._queue.running_count

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return self._queue.waiting_count

    @property
    def retry_after_s(self) -> int:
        """When a request that gets no lane now is worth sending again."""
        return self._queue.retry_after_s(self._clock.now())

    async def take(self, claimant: Claimant) -> int:
        """Waits for a lane, which is the caller's until it gives the ticket back; ``Refused(OVERLOADED)`` if none
        comes free in time, or too many wait."""
        self._last_ticket += 1
        ticket = self._last_ticket
        waiter = self._waiters[ticket] = _Waiter()
        try:
            self._handle(Arrived(ticket, claimant))
            while not waiter.settled.is_set():
                await self._wait(waiter)
        except BaseException:
            self._handle(Left(ticket))
            raise
        finally:
            del self._waiters[ticket]
        if waiter.shed is not None:
            raise self._refusal(waiter.shed)
        return ticket

    def give_back(self, ticket: int) -> None:
        """The lane is free."""
        self._handle(Left(ticket))

    async def _wait(self, waiter: _Waiter) -> None:
        due = self._queue.deadline()
        assert due is not None  # this waiter waits
        with trio.move_on_after(max(0, due - self._clock.now()) / MICROS_PER_SECOND):
            await waiter.settled.wait()
        self._handle(DeadlinePassed())

    def _handle(self, event: Event) -> None:
        for effect in self._queue.handle(event, self._clock.now()):
            self._settle(effect)

    def _settle(self, effect: Effect) -> None:
        waiter = self._waiters[effect.ticket]
        waiter.shed = None if isinstance(effect, Grant) else effect.reason
        waiter.settled.set()

    def _refusal(self, shed: Shed) -> Refused:
        if shed is Shed.FULL:
            text = f"{self._queue.waiting_count} requests wait for this model; try again later"
        else:
            text = f"no lane came free in {self._policy.wait_us // MICROS_PER_SECOND} s; try again later"
        return Refused(ErrorCode.OVERLOADED, text, self.retry_after_s)
