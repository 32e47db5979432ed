"""Ends connections that nothing needs, so that a node of a large overlay keeps a handful.

``core.connections`` chooses. The other end is asked first (``parting``): it may have an exchange open or gossip over
the connection, and whoever agreed does not take its end for a death. What connections are opened for is
``node.overlay``'s, ``node.liveness``' and the lookups'.
"""

from contextlib import suppress

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import connections
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.network import ConnectionUse
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.liveness import Parting

LOOK_EVERY_S = 10.0
ANSWER_TIMEOUT_S = 5.0
PARTED_US = 15 * MICROS_PER_SECOND
"""So long after an agreement the end of the connection is no loss."""


class Connections:
    """The standing connections of one node."""

    def __init__(self, overlay: Overlay, ports: Neighbours) -> None:
        self._overlay = overlay
        self._ports = ports
        self._used_at: dict[PeerId, Micros] = {}
        """Of each admitted peer: when its connection was seen in use last, or was seen first."""
        self._parted: dict[PeerId, Micros] = {}
        overlay.has_parted = self._has_parted
        overlay.serve_exchange(Parting, self._answer)

    async def run(self) -> None:
        """Looks for idle connections until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            standing = self._look()
            if self._overlay.board.is_large:
                for peer in connections.choose_idle(standing):
                    await self._part(peer)

    def _look(self) -> list[connections.Standing]:
        now = self._ports.clock.now()
        self._parted = {peer: due for peer, due in self._parted.items() if due > now}
        before, self._used_at = self._used_at, {}
        standing = []
        uses = self._ports.network.uses()
        for peer in self._overlay.admitted_peers():
            is_used = _is_used(uses.get(peer), exchanges=0)
            self._used_at[peer] = now if is_used else before.get(peer, now)
            is_near = self._overlay.board.is_near(peer)
            standing.append(connections.Standing(peer, is_near, is_used, now - self._used_at[peer]))
        return standing

    def _use_of(self, peer: PeerId) -> ConnectionUse | None:
        return self._ports.network.uses().get(peer)

    async def _part(self, peer: PeerId) -> None:
        """Asks; where the answer is no, or none, the connection counts as just used."""
        if not self._overlay.is_admitted(peer):  # gone while others were asked: asking now would dial it
            return
        now = self._ports.clock.now()
        self._used_at[peer] = now
        with trio.move_on_after(ANSWER_TIMEOUT_S), suppress(P2PMeshError):
            stream = await self._overlay.open_exchange(peer, Parting())
            try:
                await stream.expect(Done, ANSWER_TIMEOUT_S)
            finally:
                await stream.reset()
            if not _is_used(self._use_of(peer), exchanges=0):
                self._parted[peer] = Micros(now + PARTED_US)
                await self._ports.network.disconnect(peer)

    async def _answer(self, stream: MessageStream, asked: Parting) -> None:
        """Agrees unless the connection is of use here; this stream itself is one exchange."""
        peer = stream.remote_peer
        if not _is_used(self._use_of(peer), exchanges=1) and not self._is_scarce(peer):
            self._parted[peer] = Micros(self._ports.clock.now() + PARTED_US)
            await stream.send(Done())
        await stream.finish()

    def _is_scarce(self, peer: PeerId) -> bool:
        """Whether gossip of our shards would come over too few connections without this one."""
        board = self._overlay.board
        near = [one for one in self._used_at if self._overlay.is_admitted(one) and board.is_near(one)]
        return board.is_large and peer in near and len(near) <= connections.DEFAULT_POLICY.near_kept

    def _has_parted(self, peer: PeerId) -> bool:
        return self._parted.pop(peer, Micros(-1)) > self._ports.clock.now()


def _is_used(use: ConnectionUse | None, exchanges: int) -> bool:
    """Whether gossip goes over a connection, or more than so many exchanges are open on it."""
    return use is not None and (use.is_in_gossip_mesh or use.exchanges > exchanges)
