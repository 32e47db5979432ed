"""Which models can be reached through a peer: asked of and answered to anybody, admitted or not. It never admits.

A public pool tells how many nodes it has, too: whoever looks for one has to check what its listing claims.
"""

from collections.abc import Callable, Mapping

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import (
    CONTROL_PROTOCOL,
    MAX_PEERS,
    MAX_ROUTE_ENTRIES,
    MAX_UNADMITTED_MESSAGE_BYTES,
    PROTOCOL_GENERATION,
)
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import DIAL_TIMEOUT_S, HELLO_TIMEOUT_S, Overlay
from p2pmesh.ports.network import Network
from p2pmesh.wire.announcement import ServedModel
from p2pmesh.wire.messages.admission import RouteEntry, RouteQuery, RouteTable


class RouteQueries:
    """Answers route queries of one node."""

    def __init__(self, overlay: Overlay, models: Callable[[], Mapping[str, ServedModel]]) -> None:
        self._overlay = overlay
        self._models = models
        overlay.serve_anyone(RouteQuery, self._answer)

    async def _answer(self, stream: MessageStream, asked: RouteQuery) -> None:
        known = sorted(self._models().values(), key=lambda model: model.name)
        routes = tuple(RouteEntry(model.name, model.context_tokens) for model in known[:MAX_ROUTE_ENTRIES])
        await stream.send(RouteTable(PROTOCOL_GENERATION, self._overlay.mesh_id, routes, self._count_nodes()))
        await stream.finish()

    def _count_nodes(self) -> int:
        """Of a public pool; no other mesh tells strangers how large it is."""
        if not self._overlay.credentials.requirements.is_public:
            return 0
        return min(MAX_PEERS, 1 + sum(one.memory_bytes > 0 for one in self._overlay.board.others()))


async def query_routes(network: Network, peer: PeerId, addresses: tuple[str, ...]) -> RouteTable:
    """What a peer of any mesh answers; raises ``P2PMeshError`` when it cannot be reached or refuses."""
    await network.dial(peer, addresses, DIAL_TIMEOUT_S)
    raw = await network.open_stream(peer, CONTROL_PROTOCOL, DIAL_TIMEOUT_S)
    stream = MessageStream(raw, MAX_UNADMITTED_MESSAGE_BYTES)
    try:
        await stream.send(RouteQuery())
        return await stream.expect(RouteTable, HELLO_TIMEOUT_S)
    finally:
        await stream.reset()
