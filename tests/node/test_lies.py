"""A stage that answers garbage: its request goes on without it, and nobody else pays for it."""

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.app.chaos_lies import Liar, Lie, LyingNetwork
from p2pmesh.base.ids import PeerId
from p2pmesh.node.candidates import Candidates
from tests.fakes.mesh import Mesh, MeshNode, MockedClock, expected, open_mesh
from tests.fakes.models import FakeModelStore
from tests.node.test_ingress import events_of, tokens_of
from tests.node.test_pipelines import MODEL

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


@dataclass
class Peers:
    """A coordinator that holds nothing, and peers that each may lie."""

    coordinator: MeshNode
    nodes: dict[str, MeshNode]
    liars: dict[str, Liar]

    def holder(self, index: int) -> str:
        return str(self.coordinator.told("pipeline_ready")[-1]["stages"][index]["peer_id"])

    def holders(self) -> set[str]:
        return {stage["peer_id"] for stage in self.coordinator.told("pipeline_ready")[-1]["stages"]}


async def open_peers(mesh: Mesh, stages: int, spares: int) -> Peers:
    coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
    peers = Peers(coordinator, {}, {})
    for number in range(stages + spares):
        liar = Liar()
        node = await mesh.join(
            f"peer-{number}", coordinator, alter=lambda network, liar=liar: LyingNetwork(network, liar)
        )
        peers.nodes[node.peer], peers.liars[node.peer] = node, liar
    mesh.serve(coordinator, MODEL, stage_count=stages)
    await coordinator.wait_told("pipeline_ready")
    await coordinator.wait_routable()
    await trio.sleep(5)  # the spare engines are ready
    return peers


def offenders(peers: Peers) -> set[str]:
    """Who was throttled or banned by anybody."""
    told = [node.told(name) for node in peers.nodes.values() for name in ("peer_throttled", "peer_banned")]
    return {event["peer_id"] for events in told for event in events}


@pytest.mark.parametrize("lie", list(Lie))
@pytest.mark.parametrize(("stages", "index"), [(3, 0), (3, 1), (3, 2), (2, 0), (2, 1)])
async def test_a_liar_is_replaced_and_nobody_else(autojump_clock: MockClock, stages: int, index: int, lie: Lie) -> None:
    async with open_mesh() as mesh:
        peers = await open_peers(mesh, stages, 1)
        culprit, before = peers.holder(index), peers.holders()
        request = mesh.request("a prompt " * 50, max_tokens=120)

        def strike() -> None:
            peers.liars[culprit].lie = lie

        events = await events_of(peers.coordinator, request, {20: strike})
        assert tokens_of(events) == expected(request)
        assert before - peers.holders() == {culprit}
        assert len(peers.coordinator.told("pipeline_ready")) == 2
        assert offenders(peers) <= {culprit}


async def test_a_liar_that_nobody_can_replace_serves_again_when_it_stops(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        peers = await open_peers(mesh, 3, 0)
        culprit = peers.holder(1)
        request = mesh.request(max_tokens=60)

        def strike() -> None:
            peers.liars[culprit].lie = Lie.NAN

        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await trio.sleep(8)
                peers.liars[culprit].lie = None

            nursery.start_soon(stop)
            events = await events_of(peers.coordinator, request, {10: strike})
        assert tokens_of(events) == expected(request)


async def test_who_accuses_one_after_another_is_blamed_itself(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found()
        candidates = Candidates(node.node.overlay, MockedClock())
        assert candidates.choose_blamed(A, B, 30) == B
        assert candidates.choose_blamed(A, B, 30) == B  # it came back, and lies again
        assert candidates.choose_blamed(C, B, 30) == B
        assert candidates.choose_blamed(A, C, 30) == A
        await trio.sleep(31)
        assert candidates.choose_blamed(A, B, 30) == B
