"""Who gets a lane of a run, and who waits or is refused: a bounded queue in which clients take turns.

Turns go round the peers that ask (the driver's own clients count as one), and within a peer round its clients, so that
whoever sends a hundred requests waits behind itself. A peer names its clients as it likes: that divides its own share
only. A full queue refuses the newest request of whoever has most waiting, if that is more than who comes would have.
Deadlines of requests that have a lane, and what a lane is, stay elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.retry_after import queue_retry_after_s


@dataclass(frozen=True, slots=True)
class LaneQueuePolicy:
    """How many requests have a lane at once, how many wait, and for how long."""

    lanes: int
    max_waiting: int = 256
    wait_us: int = 120 * MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Claimant:
    """Whose request it is: the peer that sent it, "" for this one, and what that peer calls its client."""

    peer: str = ""
    client: bytes = b""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request wants a lane; ``ticket`` was never used before."""

    ticket: int
    claimant: Claimant


@dataclass(frozen=True, slots=True)
class Left:
    """A request is over, or waits no longer: its lane or its place is free."""

    ticket: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time went on."""


class Shed(StrEnum):
    """Why a request gets no lane."""

    FULL = "full"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Grant:
    """The request has a lane until it leaves."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request waits no longer."""

    ticket: int
    reason: Shed


Event = Arrived | Left | DeadlinePassed
Effect = Grant | Refuse


@dataclass(frozen=True, slots=True)
class _Place:
    claimant: Claimant
    due: Micros


_WEIGHT = 8
"""Each request that ends counts one part in eight of what requests are said to take."""

_Line = dict[int, None]
"""Tickets of one client, oldest first."""


class LaneQueue:
    """The machine; events of tickets that it does not know are passed over."""

    def __init__(self, policy: LaneQueuePolicy) -> None:
        self._policy = policy
        self._running: dict[int, Micros] = {}
        """Since when each has its lane, the longest first."""
        self._held_us = 0
        """How long requests had their lanes, smoothed; 0 before one has ended."""
        self._waiting: dict[int, _Place] = {}
        self._rings: dict[str, dict[bytes, _Line]] = {}
        """Peers, and clients of each, in the order of their turns."""

    @property
    def waiting_count(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Lanes that are taken."""
        return len(self._running)

    def retry_after_s(self, now: Micros) -> int:
        """When a request that finds no place now is worth sending again; those that wait have their turns before it."""
        oldest = next(iter(self._running.values()), now)
        held_us = self._held_us or now - oldest
        return queue_retry_after_s(len(self._waiting) + 1, self._policy.lanes, held_us)

    def deadline(self) -> Micros | None:
        """When the request that has waited longest is refused."""
        return next((place.due for place in self._waiting.values()), None)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """What becomes of requests by this event."""
        match event:
            case Arrived(ticket, claimant):
                return self._admit(ticket, claimant, now)
            case Left(ticket):
                self._note_held(self._running.pop(ticket, None), now)
                self._remove(ticket)
                return tuple(self._grants(now))
            case DeadlinePassed():
                late = [ticket for ticket, place in self._waiting.items() if place.due <= now]
                for ticket in late:
                    self._remove(ticket)
                return tuple(Refuse(ticket, Shed.LATE) for ticket in late)

    def _admit(self, ticket: int, claimant: Claimant, now: Micros) -> tuple[Effect, ...]:
        shed: tuple[Effect, ...] = ()
        if len(self._running) >= self._policy.lanes and len(self._waiting) >= self._policy.max_waiting:
            victim = self._find_victim(claimant)
            if victim is None:
                return (Refuse(ticket, Shed.FULL),)
            self._remove(victim)
            shed = (Refuse(victim, Shed.FULL),)
        self._waiting[ticket] = _Place(claimant, Micros(now + self._policy.wait_us))
        self._rings.setdefault(claimant.peer, {}).setdefault(claimant.client, {})[ticket] = None
        return (*shed, *self._grants(now))

    def _note_held(self, since: Micros | None, now: Micros) -> None:
        if since is not None:
            held_us = max(1, now - since)
            self._held_us += (held_us - self._held_us) // _WEIGHT if self._held_us else held_us

    def _grants(self, now: Micros) -> Iterator[Grant]:
        while self._waiting and len(self._running) < self._policy.lanes:
            ticket = self._take_turn()
            self._running[ticket] = now
            yield Grant(ticket)

    def _take_turn(self) -> int:
        """The oldest request of the client whose turn it is; client and peer go to the ends of their rings."""
        peer = next(iter(self._rings))
        clients = self._rings[peer]
        client = next(iter(clients))
        ticket = next(iter(clients[client]))
        self._remove(ticket)
        if client in clients:
            clients[client] = clients.pop(client)
        if clients:
            self._rings[peer] = self._rings.pop(peer)
        return ticket

    def _find_victim(self, claimant: Claimant) -> int | None:
        """The newest request of the client with most waiting, of the peer with most; None if that is who comes."""
        own = self._rings.get(claimant.peer, {})
        heaviest = max(self._rings.values(), key=_size, default=own)  # of equals the one whose turn comes first
        clients = heaviest if _size(heaviest) > _size(own) + 1 else own
        if not clients:
            return None
        line = max(clients.values(), key=len)
        if clients is own and len(line) <= len(own.get(claimant.client, ())) + 1:
            return None
        return next(reversed(line))

    def _remove(self, ticket: int) -> None:
        place = self._waiting.pop(ticket, None)
        if place is None:
            return
        peer, client = place.claimant.peer, place.claimant.client
        clients = self._rings[peer]
        del clients[client][ticket]
        if not clients[client]:
            del clients[client]
        if not clients:
            del self._rings[peer]


def _size(clients: dict[bytes, _Line]) -> int:
    return sum(map(len, clients.values()))
