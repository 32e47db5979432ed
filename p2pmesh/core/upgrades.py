"""Which relayed peers are tried directly, when, and how long the way to a direct path took.

``UpgradeMachine`` owns the tries of each peer; the exchange and the simultaneous connects (DCUtR) are
``adapters.p2p.punch``'s. One end starts: the one that was dialled through the relay. A NAT that lets no hole be punched
today may be another one tomorrow, so tries never end, but they become rare.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros


@dataclass(frozen=True, slots=True)
class UpgradePolicy:
    """When a peer is tried after it came, and after each failure; the last one repeats."""

    waits_us: tuple[int, ...] = (50_000, 1_500_000, 8 * MICROS_PER_SECOND, 60 * MICROS_PER_SECOND)
    rare_us: int = 900 * MICROS_PER_SECOND
    at_once: int = 4
    capacity: int = 512


@dataclass(frozen=True, slots=True)
class RelayedFound:
    """A peer is connected through a relay alone; ``is_ours`` if this end starts."""

    peer: PeerId
    is_ours: bool


@dataclass(frozen=True, slots=True)
class DirectFound:
    """A direct connection to a peer stands."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerGone:
    """No connection to a peer is left."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PunchFailed:
    """A try is over without a direct connection."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = RelayedFound | DirectFound | PeerGone | PunchFailed | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Punch:
    """Try for a direct connection; answered by ``DirectFound`` or ``PunchFailed``."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PathUpgraded:
    """A peer that was relayed is reached directly, so long after it was first met."""

    peer: PeerId
    after_us: int
    tries: int


Effect = Punch | PathUpgraded


@dataclass(slots=True)
class _Way:
    since: Micros
    is_ours: bool
    due: Micros
    tries: int = 0
    is_tried: bool = False


class UpgradeMachine:
    """The relayed peers of one node."""

    def __init__(self, policy: UpgradePolicy | None = None) -> None:
        self._policy = policy or UpgradePolicy()
        self._ways: dict[PeerId, _Way] = {}

    @property
    def relayed(self) -> tuple[PeerId, ...]:
        """Peers that are reached through relays alone, by peer id."""
        return tuple(sorted(self._ways))

    def deadline(self) -> Micros | None:
        """When a peer is tried next."""
        if sum(way.is_tried for way in self._ways.values()) >= self._policy.at_once:
            return None
        return min((way.due for way in self._ways.values() if way.is_ours and not way.is_tried), default=None)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        upgraded: tuple[Effect, ...] = ()
        match event:
            case RelayedFound(peer, is_ours):
                self._on_relayed(peer, now, is_ours=is_ours)
            case DirectFound(peer):
                way = self._ways.pop(peer, None)
                if way is not None:
                    upgraded = (PathUpgraded(peer, now - way.since, way.tries),)
            case PeerGone(peer):
                self._ways.pop(peer, None)
            case PunchFailed(peer):
                self._on_failed(peer, now)
            case DeadlinePassed():
                pass
        return (*upgraded, *self._choose(now))

    def _on_relayed(self, peer: PeerId, now: Micros, *, is_ours: bool) -> None:
        way = self._ways.get(peer)
        if way is not None:
            way.is_ours = is_ours
        elif len(self._ways) < self._policy.capacity:
            self._ways[peer] = _Way(now, is_ours, Micros(now + self._wait_us(0)))

    def _on_failed(self, peer: PeerId, now: Micros) -> None:
        way = self._ways.get(peer)
        if way is not None and way.is_tried:
            way.is_tried = False
            way.due = Micros(now + self._wait_us(way.tries))

    def _wait_us(self, tries: int) -> int:
        waits = self._policy.waits_us
        return waits[tries] if tries < len(waits) else self._policy.rare_us

    def _choose(self, now: Micros) -> Iterable[Effect]:
        """Who waits longest first, ties by peer id."""
        while (due := self.deadline()) is not None and due <= now:
            ready = [(way.due, peer) for peer, way in self._ways.items() if way.is_ours and not way.is_tried]
            peer = min(ready)[1]
            self._ways[peer].is_tried = True
            self._ways[peer].tries += 1
            yield Punch(peer)
