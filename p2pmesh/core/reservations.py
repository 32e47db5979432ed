"""Which relays keep a place for this node: chosen, reserved, renewed, given up, tried again.

``ReservationsMachine`` owns that; who may be a candidate and what a reservation is on the wire is ``node.reach``' and
``adapters.p2p.relay``'s. Several are kept, of different networks where there are such, so that the end of one takes
nobody out of reach. A relay that is lost stays a candidate for a while although nobody sees it: the only one of an
overlay may be restarting.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.draws import Draws


@dataclass(frozen=True, slots=True)
class ReservationPolicy:
    """How many, and when."""

    kept: int = 2
    at_once: int = 2
    retry_first_us: int = MICROS_PER_SECOND
    retry_longest_us: int = 300 * MICROS_PER_SECOND
    retry_lost_longest_us: int = 8 * MICROS_PER_SECOND
    """While no reservation is held at all: nobody can reach us then."""
    remembered_us: int = 900 * MICROS_PER_SECOND
    """So long a relay that was ours and is out of sight is tried again."""
    capacity: int = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may relay for us."""

    peer: PeerId
    network: str
    is_told: bool = False
    """Our operator named it."""
    is_announced: bool = False
    """It says that it relays. One that does not may do so all the same."""
    order: int = 0
    """Which of equals comes first; another at each node, or all would choose the same relay."""


@dataclass(frozen=True, slots=True)
class CandidatesChanged:
    """Who may be asked now."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class NeedChanged:
    """Whether relays are needed."""

    is_needed: bool


@dataclass(frozen=True, slots=True)
class Reserved:
    """A relay keeps a place for us from now on for so long."""

    peer: PeerId
    life_us: int


@dataclass(frozen=True, slots=True)
class ReserveFailed:
    """It does not, or cannot be reached."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class RelayLost:
    """The connection to a peer is gone, and with it what it kept."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = CandidatesChanged | NeedChanged | Reserved | ReserveFailed | RelayLost | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Reserve:
    """Ask a relay for a place, anew or again; answered by ``Reserved`` or ``ReserveFailed``."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class RelaysChanged:
    """``held`` is another than before; who is in it no more."""

    lost: tuple[PeerId, ...] = ()


Effect = Reserve | RelaysChanged


@dataclass(slots=True)
class _Relay:
    candidate: Candidate
    expires_at: Micros | None = None
    """None where nothing is reserved."""
    renew_at: Micros = Micros(0)
    is_asked: bool = False
    failures: int = 0
    try_at: Micros = Micros(0)
    seen_at: Micros = Micros(0)
    """When it was a candidate last, if it was ever ours."""
    was_ours: bool = False


class ReservationsMachine:
    """The relays of one node; ``seed`` spreads the tries of many that lost the same relay."""

    def __init__(self, seed: int, policy: ReservationPolicy | None = None) -> None:
        self._policy = policy or ReservationPolicy()
        self._draws = Draws(seed)
        self._is_needed = False
        self._relays: dict[PeerId, _Relay] = {}
        self._present: frozenset[PeerId] = frozenset()
        self._told: tuple[PeerId, ...] = ()

    @property
    def held(self) -> tuple[PeerId, ...]:
        """Relays that keep a place for us, by peer id."""
        return tuple(sorted(peer for peer, relay in self._relays.items() if relay.expires_at is not None))

    def left_us(self, peer: PeerId, now: Micros) -> int:
        """How long a relay keeps the place; 0 if it does not."""
        relay = self._relays.get(peer)
        return 0 if relay is None or relay.expires_at is None else max(0, relay.expires_at - now)

    def is_relay(self, peer: PeerId) -> bool:
        """Whether a peer is, or lately was, or is to become, a relay of ours."""
        relay = self._relays.get(peer)
        return relay is not None and (relay.was_ours or relay.is_asked)

    # --- the machine

    def deadline(self) -> Micros | None:
        """When one is to be tried, renewed or given up."""
        ends: list[Micros] = []
        for relay in self._relays.values():
            if relay.expires_at is not None:
                is_renewed = self._is_needed and not relay.is_asked
                ends.append(min(relay.renew_at, relay.expires_at) if is_renewed else relay.expires_at)
            elif not relay.is_asked and self._is_needed and self._has_room():
                ends.append(relay.try_at)
        return min(ends, default=None)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case CandidatesChanged(candidates):
                self._on_candidates(candidates, now)
            case NeedChanged(is_needed):
                self._is_needed = is_needed
            case Reserved(peer, life_us):
                self._on_reserved(peer, life_us, now)
            case ReserveFailed(peer):
                self._on_failed(peer, now)
            case RelayLost(peer):
                self._on_lost(peer, now)
            case DeadlinePassed():
                pass
        self._expire(now)
        wanted = tuple(self._choose(now))
        held = self.held
        before, self._told = self._told, held
        lost = tuple(peer for peer in before if peer not in held)
        return (*wanted, RelaysChanged(lost)) if held != before else wanted

    def _on_candidates(self, candidates: tuple[Candidate, ...], now: Micros) -> None:
        ordered = sorted(candidates, key=lambda one: (not one.is_told, not one.is_announced, one.order, one.peer))
        kept = {one.peer: one for one in ordered[: self._policy.capacity]}
        self._present = frozenset(kept)
        for peer, candidate in kept.items():
            known = self._relays.setdefault(peer, _Relay(candidate))
            known.candidate, known.seen_at = candidate, now
        oldest = now - self._policy.remembered_us
        for peer in list(self._relays):
            relay = self._relays[peer]
            is_alive = relay.expires_at is not None or relay.is_asked or (relay.was_ours and relay.seen_at > oldest)
            if peer not in kept and not is_alive:
                del self._relays[peer]
        self._bound()

    def _bound(self) -> None:
        """Who was seen longest ago goes first, but nobody who keeps a place for us."""
        spare = sorted(
            (relay.seen_at, peer)
            for peer, relay in self._relays.items()
            if relay.expires_at is None and not relay.is_asked
        )
        for _, peer in spare[: max(0, len(self._relays) - 2 * self._policy.capacity)]:
            del self._relays[peer]

    def _on_reserved(self, peer: PeerId, life_us: int, now: Micros) -> None:
        relay = self._relays.get(peer)
        if relay is None or not relay.is_asked or life_us <= 0:
            self._on_failed(peer, now)
            return
        relay.is_asked, relay.was_ours, relay.failures, relay.seen_at = False, True, 0, now
        relay.expires_at = Micros(now + life_us)
        # At half of its life, so that a relay that answers badly once is asked again in time.
        relay.renew_at = Micros(now + life_us // 2 - self._draws.below(max(1, life_us // 8 // 1000)) * 1000)

    def _on_failed(self, peer: PeerId, now: Micros) -> None:
        relay = self._relays.get(peer)
        if relay is None or not relay.is_asked:
            return
        relay.is_asked = False
        self._set_back(relay, now)

    def _on_lost(self, peer: PeerId, now: Micros) -> None:
        relay = self._relays.get(peer)
        if relay is None or relay.expires_at is None:
            return
        relay.expires_at, relay.failures = None, 0
        self._set_back(relay, now)

    def _set_back(self, relay: _Relay, now: Micros) -> None:
        policy = self._policy
        longest_us = policy.retry_longest_us if self.held else policy.retry_lost_longest_us
        wait_us = min(longest_us, policy.retry_first_us << min(relay.failures, 20))
        relay.failures += 1
        later = Micros(now + wait_us // 2 + self._draws.below(max(1, wait_us // 2)))
        relay.try_at = relay.renew_at = later

    def _expire(self, now: Micros) -> None:
        for relay in self._relays.values():
            if relay.expires_at is not None and relay.expires_at <= now:
                relay.expires_at, relay.try_at = None, now

    # --- whom to ask

    def _choose(self, now: Micros) -> Iterable[Effect]:
        for peer in sorted(self._relays):
            relay = self._relays[peer]
            is_due = relay.expires_at is not None and relay.renew_at <= now and not relay.is_asked
            if is_due and self._is_needed:
                relay.is_asked = True
                yield Reserve(peer)
        while self._is_needed and self._has_room():
            best = self._best(now)
            if best is None:
                return
            self._relays[best].is_asked = True
            yield Reserve(best)

    def _has_room(self) -> bool:
        asked = sum(relay.is_asked and relay.expires_at is None for relay in self._relays.values())
        return asked < self._policy.at_once and asked + len(self.held) < self._policy.kept

    def _best(self, now: Micros) -> PeerId | None:
        """Named by the operator first, then of a network that none of ours is on, then those that say they relay."""
        used = {
            relay.candidate.network for relay in self._relays.values() if relay.expires_at is not None or relay.is_asked
        }
        ready = [
            (
                not relay.candidate.is_told,
                relay.failures,
                relay.candidate.network in used,
                not relay.candidate.is_announced,
                relay.candidate.order,
                peer,
            )
            for peer, relay in self._relays.items()
            if relay.expires_at is None and not relay.is_asked and relay.try_at <= now
        ]
        return min(ready)[-1] if ready else None
