"""Whom of the peers that were sighted on the local network this node meets, and when it tries again.

A machine; what a sighting is and whether it is of our mesh is decided before (``node.lan``), and what meeting means
(proof, then hello) after it. Sightings cost their sender nothing, so they are bounded, and whoever does not answer is
tried ever more rarely.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros


@dataclass(frozen=True, slots=True)
class LanPolicy:
    """Bounds. ``first_pause_us`` doubles with each failure, up to ``longest_pause_us``."""

    capacity: int = 64
    at_once: int = 4
    first_pause_us: int = 10 * MICROS_PER_SECOND
    longest_pause_us: int = 300 * MICROS_PER_SECOND
    look_again_us: int = 30 * MICROS_PER_SECOND
    """After a peer was met: whether it still is in view."""


@dataclass(frozen=True, slots=True)
class Sighted:
    """A peer of our mesh is there, or says something new of itself."""

    peer: PeerId
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """A peer said goodbye, or its record ran out."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Met:
    """A peer is admitted, or known to the overlay: it need not be met."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Missed:
    """Meeting a peer failed."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time of ``deadline`` has come."""


Event = Sighted | Gone | Met | Missed | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Meet:
    """Ask a peer for its proof, then say hello to it; ``Met`` or ``Missed`` follows."""

    peer: PeerId
    addresses: tuple[str, ...]


Effect = Meet


@dataclass(slots=True)
class _Acquaintance:
    addresses: tuple[str, ...]
    due: Micros
    pause_us: int
    is_being_met: bool = False


class LanMachine:
    """Sightings in, meetings out. Whoever was met is looked at again now and then: members lose each other."""

    def __init__(self, policy: LanPolicy | None = None) -> None:
        self._policy = policy or LanPolicy()
        self._known: dict[PeerId, _Acquaintance] = {}

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """Whom to meet now."""
        match event:
            case Sighted(peer, addresses):
                self._sight(peer, addresses, now)
            case Gone(peer):
                self._known.pop(peer, None)
            case Met(peer):
                self._end_meeting(peer, now, is_met=True)
            case Missed(peer):
                self._end_meeting(peer, now, is_met=False)
            case DeadlinePassed():
                pass
        return self._meet_due(now)

    def deadline(self) -> Micros | None:
        """When somebody is due; none while as many are being met as may be."""
        if self._busy() >= self._policy.at_once:
            return None
        return min((one.due for one in self._known.values() if not one.is_being_met), default=None)

    @property
    def size(self) -> int:
        """How many peers are remembered."""
        return len(self._known)

    def _sight(self, peer: PeerId, addresses: tuple[str, ...], now: Micros) -> None:
        known = self._known.get(peer)
        if known is not None:
            known.addresses = addresses  # for when it is due: who changes them each second is not dialled as often
        elif len(self._known) < self._policy.capacity:
            self._known[peer] = _Acquaintance(addresses, now, self._policy.first_pause_us)

    def _end_meeting(self, peer: PeerId, now: Micros, *, is_met: bool) -> None:
        known = self._known.get(peer)
        if known is None:
            return
        known.is_being_met = False
        known.due = Micros(now + (self._policy.look_again_us if is_met else known.pause_us))
        longer = min(2 * known.pause_us, self._policy.longest_pause_us)
        known.pause_us = self._policy.first_pause_us if is_met else longer

    def _meet_due(self, now: Micros) -> tuple[Effect, ...]:
        waiting = sorted((one.due, peer) for peer, one in self._known.items() if not one.is_being_met)
        chosen = [peer for due, peer in waiting if due <= now][: max(0, self._policy.at_once - self._busy())]
        for peer in chosen:
            self._known[peer].is_being_met = True
        return tuple(Meet(peer, self._known[peer].addresses) for peer in chosen)

    def _busy(self) -> int:
        return sum(one.is_being_met for one in self._known.values())
