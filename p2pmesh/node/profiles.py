"""What machines of peers are like and what their owners do not want, asked of them before a plan, and told of our own.

Owns what was answered and for how long it counts. Figures are claims like those of announcements: whoever lies gets
stages that do not load, and is passed over. What a plan makes of them is ``core.planning``'s.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, UnixMillis
from p2pmesh.core.owner_wishes import excludes
from p2pmesh.core.planning.request import PlanningPeer
from p2pmesh.core.speeds import Speed, decode_speed_for, decode_speed_of_memory
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.servable import Servable
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.profile import Profile, ProfileQuery

ASK_AGAIN_S = 120.0
ANSWER_S = 2.0
"""Whoever answers later is planned with what it announces."""
MAX_ASKED_AT_ONCE = 32
MAX_KEPT = 256


class Profiles:
    """Those of admitted peers; the newest answers are kept."""

    def __init__(self, overlay: Overlay, clock: Clock, own: Callable[[], Profile]) -> None:
        self._overlay = overlay
        self._clock = clock
        self._own = own
        self._asked: dict[PeerId, Micros] = {}
        self._known: dict[PeerId, Profile] = {}
        overlay.serve_exchange(ProfileQuery, self._answer)

    def find(self, peer: PeerId) -> Profile | None:
        """What a peer told last; None where it told nothing. Our own is what we would tell now."""
        return self._own() if peer == self._overlay.own_peer else self._known.get(peer)

    async def refresh(self) -> None:
        """Asks admitted peers that were not asked of late; bounded in time, whoever does not answer."""
        now = self._clock.now()
        again = now - int(ASK_AGAIN_S * MICROS_PER_SECOND)
        admitted = self._overlay.admitted_peers()
        due = [peer for peer in admitted if self._asked.get(peer, again) <= again][:MAX_ASKED_AT_ONCE]
        self._forget(frozenset(admitted))
        with trio.move_on_after(ANSWER_S):
            async with trio.open_nursery() as nursery:
                for peer in due:
                    self._asked[peer] = now
                    nursery.start_soon(self._ask, peer)

    def refined(self, peers: Iterable[PlanningPeer], model: Servable, read_bytes: int) -> tuple[PlanningPeer, ...]:
        """Peers of a plan for a model, with what their profiles add: its kind's speed, and whether they exclude it.

        A token reads ``read_bytes`` of the model.
        """
        architecture = model.architecture

        def refine(peer: PlanningPeer) -> PlanningPeer:
            profile = self.find(peer.peer_id)
            if profile is None:
                return peer
            speed = decode_speed_for(speeds_of(profile), architecture, read_bytes) or peer.decode_bytes_per_s
            return replace(
                peer,
                decode_bytes_per_s=speed or decode_speed_of_memory(profile.memory_bytes_per_s),
                up_bytes_per_s=profile.up_bytes_per_s,
                down_bytes_per_s=profile.down_bytes_per_s,
                is_excluded=peer.is_excluded or excludes(profile.excluded_models, model.name, model.digest),
            )

        return tuple(refine(peer) for peer in peers)

    def _forget(self, admitted: frozenset[PeerId]) -> None:
        """Who is not connected any more; and of too many, those asked longest ago."""
        kept = sorted((peer for peer in self._known if peer in admitted), key=lambda peer: -self._asked.get(peer, 0))
        self._known = {peer: self._known[peer] for peer in kept[: MAX_KEPT - MAX_ASKED_AT_ONCE]}
        self._asked = {peer: when for peer, when in self._asked.items() if peer in admitted}

    async def _ask(self, peer: PeerId) -> None:
        try:
            stream = await self._overlay.open_exchange(peer, ProfileQuery())
            try:
                self._known[peer] = await stream.expect(Profile, ANSWER_S)
            finally:
                await stream.reset()
        except P2PMeshError:
            return  # what it announces must do

    async def _answer(self, stream: MessageStream, _asked: ProfileQuery) -> None:
        await stream.send(self._own())
        await stream.finish()


def speeds_of(profile: Profile) -> tuple[Speed, ...]:
    """As ``core.speeds`` compares them; when they were measured is the peer's affair."""
    return tuple(
        Speed(one.architecture, one.size_class, one.decode_bytes_per_s, one.prefill_bytes_per_s, UnixMillis(0))
        for one in profile.speeds
        if one.decode_bytes_per_s
    )
