"""Two peers that do not reach each other any more while everybody else reaches both."""

from typing import Any

import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import STAGE_PROTOCOL
from p2pmesh.ports.network import ByteStream, Network, StreamServer
from tests.fakes.mesh import Mesh, MeshNode, expected, open_mesh
from tests.fakes.models import FakeModelStore
from tests.node.test_ingress import events_of, tokens_of
from tests.node.test_pipelines import MODEL


class PatchyNetwork:
    """Implements ``ports.network.Network`` by another one; to and from ``silent`` peers nothing comes through."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.silent: set[str] = set()
        self.way_s = 0.0
        """Of each frame between stages."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def open_stream(self, peer: PeerId, protocol_id: str, timeout_s: float) -> Any:
        if peer in self.silent:
            await trio.sleep(timeout_s)
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"no stream to {peer}")
        stream = await self._network.open_stream(peer, protocol_id, timeout_s)
        return _PatchyStream(stream, self, self.way_s * (protocol_id == STAGE_PROTOCOL))

    def serve(self, protocol_id: str, server: StreamServer) -> None:
        async def serve(stream: ByteStream) -> None:
            way_s = self.way_s * (protocol_id == STAGE_PROTOCOL)
            await server(_PatchyStream(stream, self, way_s))  # type: ignore[arg-type]

        self._network.serve(protocol_id, serve)


class _PatchyStream:
    def __init__(self, stream: ByteStream, network: PatchyNetwork, way_s: float) -> None:
        self._stream = stream
        self._way_s = way_s
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def _is_silent(self) -> bool:
        return self._stream.remote_peer in self._network.silent

    async def send(self, data: bytes) -> None:
        if self._way_s:
            await trio.sleep(self._way_s)
        if not self._is_silent:
            await self._stream.send(data)

    def send_nowait(self, data: bytes) -> bool:
        if self._way_s:
            return False
        return True if self._is_silent else self._stream.send_nowait(data)

    async def receive_exactly(self, count: int) -> bytes:
        data = await self._stream.receive_exactly(count)
        if self._is_silent:
            await trio.sleep_forever()
        return data


async def open_peers(mesh: Mesh, count: int) -> tuple[MeshNode, dict[str, PatchyNetwork]]:
    coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
    networks: dict[str, PatchyNetwork] = {}

    def alter(network: Any) -> PatchyNetwork:
        return networks.setdefault(network.peer_id, PatchyNetwork(network))

    for number in range(count):
        await mesh.join(f"peer-{number}", coordinator, alter=alter)
    mesh.serve(coordinator, MODEL, stage_count=3)
    await coordinator.wait_told("pipeline_ready")
    await coordinator.wait_routable()
    await trio.sleep(5)  # the spare engine is ready
    return coordinator, networks


async def test_the_stage_before_notices_at_once_and_another_peer_takes_its_place(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        coordinator, networks = await open_peers(mesh, 4)
        _, before, after = (stage["peer_id"] for stage in coordinator.told("pipeline_ready")[0]["stages"])
        request = mesh.request(max_tokens=200)
        struck_at: list[float] = []

        def fall_silent() -> None:
            networks[before].silent.add(after)
            networks[after].silent.add(before)
            struck_at.append(trio.current_time())
            mesh_nursery.start_soon(note_withdrawn)

        async def note_withdrawn() -> None:
            await coordinator.wait_told("model_withdrawn")
            struck_at.append(trio.current_time())

        async with trio.open_nursery() as mesh_nursery:
            events = await events_of(coordinator, request, {50: fall_silent})
        assert tokens_of(events) == expected(request)
        began, withdrawn = struck_at
        assert withdrawn - began < 3
        assert [told["code"] for told in coordinator.told("model_withdrawn")] == ["peer_unreachable"]
        assert coordinator.told("request_recovered")[0]["stall_ms"] < 5000
        holders = {stage["peer_id"] for stage in coordinator.told("pipeline_ready")[-1]["stages"]}
        assert not {before, after} <= holders
