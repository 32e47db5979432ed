"""Peers that a coordinator may place stages on: those that are connected, and known ones that it goes and meets.

Gossip tells of peers that joined through others. A plan is made over admitted peers only, so that it does not rest on
one that cannot be reached; who is known and offers memory is dialled when the admitted ones do not suffice.
"""

from contextlib import suppress

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.planning.request import PlanningPeer
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.announcement import Announcement

MAX_MET_AT_ONCE = 16
OTHERS_MEET_S = 0.5
MEET_AGAIN_S = 30.0
"""A peer that could not be reached is not tried again before this long."""


def is_behind_nat(peer: Announcement) -> bool:
    """Whether a peer names addresses at relays, as those do that cannot be dialled from everywhere."""
    return any("/p2p-circuit" in address for address in peer.addresses)


def is_spared(peer: Announcement) -> bool:
    """Whether others come first, since its owner needs the machine, or its battery."""
    return peer.is_on_battery or peer.is_busy


class Candidates:
    """The peers at hand of one coordinator."""

    def __init__(self, overlay: Overlay, clock: Clock) -> None:
        self._overlay = overlay
        self._clock = clock
        self._tried: dict[PeerId, Micros] = {}
        self._taken: dict[PeerId, Micros] = {}
        self._leased: frozenset[PeerId] = frozenset()
        """Those of the taken that have promised the model to another's run."""
        self._failed: dict[PeerId, Micros] = {}
        self._leaving: dict[PeerId, tuple[Micros, int]] = {}
        """Until when, unless it has started again: its incarnation was this."""
        self._accusers: dict[PeerId, tuple[PeerId, Micros]] = {}
        """Whom each has accused last, and until when that counts."""

    def admitted(self, digest: str, *, with_failed: bool = True) -> tuple[PlanningPeer, ...]:
        """What the connected peers offer, of those that the trust policy admits (a claim may have run out).

        ``digest`` names the model to place: who has it on disk need not fetch it.
        """
        trust = self._overlay.trust
        trusted = trust.admitted(self._overlay.admitted_announcements())
        now = self._clock.now()
        out = {peer for peer, until in self._taken.items() if until > now}
        if not with_failed:
            out |= {peer for peer, until in self._failed.items() if until > now}
        return tuple(
            PlanningPeer(
                PeerId(a.peer_id),
                a.free_bytes,
                trust.rank(a),
                has_model=any(held.digest == digest for held in a.on_disk),
                is_behind_nat=is_behind_nat(a),
                decode_bytes_per_s=a.decode_bytes_per_s,
                most_bytes=a.memory_bytes,
                most_layers=a.max_layers or None,
                is_excluded=self._is_leaving(a),
                is_spared=is_spared(a),
            )
            for a in trusted
            if PeerId(a.peer_id) not in out
        )

    def note_taken(self, peer: PeerId, for_s: float, *, is_leased: bool) -> None:
        """The peer has promised the model to another's run (``is_leased``), or does not answer: no plan rests on it
        for so long."""
        self._taken[peer] = self._later(for_s)
        self._leased = self._leased | {peer} if is_leased else self._leased - {peer}
        self._forget_old()

    @property
    def leased_count(self) -> int:
        """How many peers that are here are taken because they have promised the model to another's run."""
        now = self._clock.now()
        return sum(self._taken.get(peer, now) > now and self._overlay.is_admitted(peer) for peer in self._leased)

    def note_failed(self, peer: PeerId, for_s: float) -> None:
        """A stage failed there: others are preferred for so long."""
        self._failed[peer] = self._later(for_s)
        self._forget_old()

    def note_leaving(self, peer: PeerId, for_s: float) -> None:
        """The peer is about to go: what it holds must go elsewhere.

        It is taken again when it comes back, and after so long if it stays.
        """
        known = self._overlay.board.find(peer)
        self._leaving[peer] = (self._later(for_s), 0 if known is None else known.incarnation)
        self._forget_old()

    def _is_leaving(self, peer: Announcement) -> bool:
        until, incarnation = self._leaving.get(PeerId(peer.peer_id), (Micros(0), 0))
        return peer.incarnation <= incarnation and self._clock.now() < until

    def choose_blamed(self, accuser: PeerId, accused: PeerId, for_s: float) -> PeerId:
        """Who of two is believed to be at fault: the accused, unless the same peer accused another one just before."""
        before = self._accusers.get(accuser)
        self._accusers[accuser] = (accused, self._later(for_s))
        self._forget_old()
        is_repeated = before is not None and before[0] != accused and before[1] > self._clock.now()
        return accuser if is_repeated else accused

    @property
    def has_failed(self) -> bool:
        """Whether any peer is one that failed lately."""
        now = self._clock.now()
        return any(until > now for until in self._failed.values())

    def next_free_s(self) -> float:
        """Until a peer that was taken may be asked again; infinity if none was."""
        now = self._clock.now()
        left = [until - now for until in self._taken.values() if until > now]
        return min(left) / MICROS_PER_SECOND if left else float("inf")

    def _later(self, for_s: float) -> Micros:
        return Micros(self._clock.now() + int(for_s * MICROS_PER_SECOND))

    def _forget_old(self) -> None:
        now = self._clock.now()
        self._taken = {peer: until for peer, until in self._taken.items() if until > now}
        self._leased = self._leased & self._taken.keys()
        self._failed = {peer: until for peer, until in self._failed.items() if until > now}
        self._leaving = {peer: told for peer, told in self._leaving.items() if told[0] > now}
        self._accusers = {peer: told for peer, told in self._accusers.items() if told[1] > now}

    async def meet(self) -> bool:
        """Says hello to known peers that offer memory, preferred and larger ones first; whether any was admitted.

        Once one was, the others have a moment left: a peer that is gone answers nothing for ten seconds.
        """
        met = len(self._overlay.admitted_announcements())
        async with trio.open_nursery() as nursery:

            async def meet_one(peer: PeerId) -> None:
                await self._meet(peer)
                if self._overlay.is_admitted(peer):
                    scope = nursery.cancel_scope
                    scope.deadline = min(scope.deadline, trio.current_time() + OTHERS_MEET_S)

            for peer in self._strangers()[:MAX_MET_AT_ONCE]:
                self._tried[peer] = self._clock.now()
                nursery.start_soon(meet_one, peer)
        return len(self._overlay.admitted_announcements()) > met

    def _strangers(self) -> list[PeerId]:
        again = self._clock.now() - int(MEET_AGAIN_S * MICROS_PER_SECOND)
        self._tried = {peer: when for peer, when in self._tried.items() if when > again}
        trust = self._overlay.trust
        offering = [a for a in trust.admitted(self._overlay.board.others()) if a.free_bytes > 0]
        by_offer = sorted(offering, key=lambda a: (trust.rank(a), -a.free_bytes, a.peer_id))
        peers = (PeerId(a.peer_id) for a in by_offer)
        return [peer for peer in peers if peer not in self._tried and not self._overlay.is_admitted(peer)]

    async def _meet(self, peer: PeerId) -> None:
        with suppress(P2PMeshError):  # one that cannot be reached is no candidate
            await self._overlay.ensure_admitted(peer)
