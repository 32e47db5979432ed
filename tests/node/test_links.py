"""Links of whole nodes over the fake network: measured, probed within bounds, shared, put together."""

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_LINK_CHUNK_BYTES
from p2pmesh.core.links import PROBE_BYTES, PairLink
from p2pmesh.node.links import SAMPLE_EVERY_S
from p2pmesh.ports.network import PathKind
from p2pmesh.wire.messages.links import LinkBytes, LinkProbe
from tests.fakes.mesh import Mesh, MeshNode, open_mesh


async def three(mesh: Mesh) -> tuple[MeshNode, MeshNode, MeshNode]:
    """A founder and two that are connected with each other too."""
    founder = await mesh.found()
    a, b = await mesh.join("a", founder), await mesh.join("b", founder)
    await a.node.overlay.ensure_admitted(b.peer, b.network.addresses())
    return founder, a, b


def rtt_us(node: MeshNode, peer: PeerId) -> int | None:
    return next(
        (estimate.rtt_us for other, estimate in node.node.control_plane.links.estimates() if other == peer), None
    )


async def test_round_trips_are_measured_and_shown(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await three(mesh)
        mesh.overlay.set_link(a.peer, founder.peer, 0.040)
        mesh.overlay.set_link(a.peer, b.peer, 0.003)
        await trio.sleep(20 * SAMPLE_EVERY_S)
        assert rtt_us(a, founder.peer) == rtt_us(founder, a.peer) == 40_000
        assert [peer for peer, _ in a.node.control_plane.links.estimates()] == [b.peer, founder.peer]
        shown = a.node.status()["links"][0]
        assert (shown["peer_id"], shown["rtt_us"], shown["path"]) == (b.peer, 3_000, "direct")


async def test_everybody_learns_the_links_between_others(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await three(mesh)
        mesh.overlay.set_link(a.peer, b.peer, 0.007)
        await trio.sleep(100)
        matrix = founder.node.control_plane.links.matrix()
        between = matrix.between(a.peer, b.peer)
        assert between is not None
        assert (between.rtt_us, between.is_relayed) == (7_000, False)
        assert matrix.between(b.peer, founder.peer) is not None
        assert matrix.between(a.peer, PeerId("nobody")) is None


async def test_a_path_that_becomes_direct_is_measured_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        a = await mesh.join("a", founder)
        mesh.overlay.set_link(a.peer, founder.peer, 0.200, PathKind.RELAYED)
        await trio.sleep(100)
        assert a.node.status()["links"][0]["path"] == "relayed"
        mesh.overlay.set_link(a.peer, founder.peer, 0.010)
        await trio.sleep(SAMPLE_EVERY_S + 1)
        (shown,) = a.node.status()["links"]
        assert (shown["path"], shown["rtt_us"], shown["jitter_us"]) == ("direct", 10_000, 0)


async def test_probes_measure_a_throughput_and_a_lost_peer_has_no_link(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        a = await mesh.join("a", founder)
        await trio.sleep(60)
        (shown,) = a.node.status()["links"]
        assert shown["throughput_bytes_per_s"] > 0
        await mesh.kill(founder)
        await trio.sleep(SAMPLE_EVERY_S + 1)
        assert a.node.status()["links"] == []


async def probe(node: MeshNode, peer: MeshNode, size_bytes: int) -> int:
    """Bytes that a probe brings."""
    stream = await node.node.overlay.open_exchange(peer.peer, LinkProbe(size_bytes))
    received = 0
    while received < size_bytes:
        received += len((await stream.expect(LinkBytes, 5)).data)
    return received


async def test_a_probe_gets_what_it_asked_for_and_a_second_one_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        a = await mesh.join("a", founder)
        assert await probe(a, founder, MAX_LINK_CHUNK_BYTES + 1) == MAX_LINK_CHUNK_BYTES + 1
        with pytest.raises(RemoteProtocolError, match="in some minutes") as refused:
            await probe(a, founder, PROBE_BYTES)
        assert refused.value.code is ErrorCode.OVERLOADED


async def test_a_peer_cannot_make_a_link_of_others_look_better(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await three(mesh)
        mesh.overlay.set_link(a.peer, b.peer, 0.300)
        await trio.sleep(100)
        links = dict(a.node.control_plane.links.estimates())
        assert links[b.peer].rtt_us == 300_000
        found = founder.node.control_plane.links.matrix().between(b.peer, a.peer)
        assert isinstance(found, PairLink)
        assert found.rtt_us == 300_000
