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
MEET_AGAIN_S = 30.0
"""A peer that could not be reached is not tried again before this long."""


def is_behind_nat(peer: Announcement) -> bool:
    """Whether a peer names only addresses at relays."""
    return bool(peer.addresses) and all("/p2p-circuit" in address for address in peer.addresses)


class Candidates:
    """The peers at hand of one coordinator."""

    def __init__(self, overlay: Overlay, clock: Clock) -> None:
        self._overlay = overlay
        self._clock = clock
        self._tried: dict[PeerId, Micros] = {}

    def admitted(self, digest: str) -> tuple[PlanningPeer, ...]:
        """What the connected peers offer, of those that the trust policy admits (a claim may have run out).

        ``digest`` names the model to place: who has it on disk need not fetch it.
        """
        trust = self._overlay.trust
        trusted = trust.admitted(self._overlay.admitted_announcements())
        return tuple(
            PlanningPeer(
                PeerId(a.peer_id),
                a.free_bytes,
                trust.rank(a),
                has_model=any(held.digest == digest for held in a.on_disk),
                is_behind_nat=is_behind_nat(a),
            )
            for a in trusted
        )

    async def meet(self) -> bool:
        """Says hello to known peers that offer memory, preferred and larger ones first; whether any was admitted."""
        met = len(self._overlay.admitted_announcements())
        async with trio.open_nursery() as nursery:
            for peer in self._strangers()[:MAX_MET_AT_ONCE]:
                self._tried[peer] = self._clock.now()
                nursery.start_soon(self._meet, peer)
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
