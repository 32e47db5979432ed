"""Losses of every kind, one after another by a seed, under requests that must not notice; in virtual time."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.app.chaos_lies import Liar, Lie, LyingNetwork
from p2pmesh.wire.generation import GenerationRequest, SamplingParameters
from tests.fakes.mesh import GREEDY, Mesh, MeshNode, expected, open_mesh
from tests.fakes.models import FakeModelStore
from tests.node.test_ingress import events_of, tokens_of
from tests.node.test_pipelines import MODEL
from tests.node.test_silent_links import PatchyNetwork

STAGES = 3
REQUESTS = 10
WORKERS = 2
EVERY_S = 10.0
LASTS_S = 8.0
WAY_S = 0.03
SAMPLED = SamplingParameters(temperature=0.8, seed=7)


@dataclass
class Chaos:
    """An ingress that holds nothing, peers that fail, and what was done to them."""

    mesh: Mesh
    nursery: trio.Nursery
    dice: random.Random
    coordinator: MeshNode
    nodes: dict[str, MeshNode] = field(default_factory=dict)
    networks: dict[str, PatchyNetwork] = field(default_factory=dict)
    liars: dict[str, Liar] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    joined: int = 0

    async def join(self) -> None:
        self.joined += 1
        liar, patchy = Liar(), []

        def alter(network: Any) -> LyingNetwork:
            patchy.append(PatchyNetwork(network))
            patchy[0].way_s = WAY_S
            return LyingNetwork(patchy[0], liar)  # type: ignore[arg-type]

        node = await self.mesh.join(f"peer-{self.joined}", self.coordinator, alter=alter)
        self.nodes[node.peer], self.networks[node.peer], self.liars[node.peer] = node, patchy[0], liar

    def holders(self) -> list[str]:
        return [str(stage["peer_id"]) for stage in self.coordinator.told("pipeline_ready")[-1]["stages"]]

    async def strike(self) -> None:
        """One fault on the holder of a stage, if it is there; what can be undone is undone."""
        holders = self.holders()
        stage = self.dice.randrange(STAGES)
        peer, beside = holders[stage], holders[(stage + 1) % STAGES]
        kind = self.dice.choice(("engine", "peer", "cut", "silence", "partition", "lie", "slow"))
        lie = self.dice.choice(list(Lie))
        if peer not in self.nodes or beside not in self.nodes or not self.nodes[peer].launcher.engines:
            return
        self.done[kind] += 1
        await getattr(self, f"_{kind}")(peer, beside, lie)

    async def _engine(self, peer: str, beside: str, lie: Lie) -> None:
        self.nodes[peer].engine.kill()

    async def _peer(self, peer: str, beside: str, lie: Lie) -> None:
        await self.mesh.kill(self.nodes.pop(peer))
        await self.join()

    async def _cut(self, peer: str, beside: str, lie: Lie) -> None:
        one, other = self.nodes[peer].peer, self.nodes[beside].peer
        self.mesh.overlay.cut(one, other)
        await trio.sleep(LASTS_S)
        self.mesh.overlay.mend(one, other)

    async def _silence(self, peer: str, beside: str, lie: Lie) -> None:
        for one, other in ((peer, beside), (beside, peer)):
            self.networks[one].silent.add(other)
        await trio.sleep(LASTS_S)
        for one, other in ((peer, beside), (beside, peer)):
            self.networks[one].silent.discard(other)

    async def _partition(self, peer: str, beside: str, lie: Lie) -> None:
        everybody = {*self.nodes, self.coordinator.peer} - {peer}
        self.networks[peer].silent |= everybody
        await trio.sleep(LASTS_S)
        self.networks[peer].silent -= everybody

    async def _lie(self, peer: str, beside: str, lie: Lie) -> None:
        self.liars[peer].lie = lie
        await trio.sleep(LASTS_S)
        self.liars[peer].lie = None

    async def _slow(self, peer: str, beside: str, lie: Lie) -> None:
        engine = self.nodes[peer].engine
        engine.hold()
        await trio.sleep(LASTS_S / 2)
        engine.go_on()

    async def strike_for_ever(self) -> None:
        while True:
            await trio.sleep(EVERY_S * self.dice.uniform(0.8, 1.2))
            self.nursery.start_soon(self.strike)


async def work(chaos: Chaos, requests: list[GenerationRequest], lost: list[str]) -> None:
    while requests:
        request = requests.pop()
        events = await events_of(chaos.coordinator, request, {})
        if tokens_of(events) != expected(request):
            lost.append(request.request_id.hex())


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_notices(autojump_clock: MockClock, seed: int) -> None:
    lost: list[str] = []
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
        chaos = Chaos(mesh, nursery, random.Random(seed), coordinator)
        for _ in range(STAGES + 1):
            await chaos.join()
        mesh.serve(coordinator, MODEL, stage_count=STAGES)
        await coordinator.wait_told("pipeline_ready")
        await coordinator.wait_routable()
        requests = [
            mesh.request("a prompt " * (1 + 40 * (n % 2)), max_tokens=200, sampling=(GREEDY, SAMPLED)[n % 2])
            for n in range(REQUESTS)
        ]
        nursery.start_soon(chaos.strike_for_ever)
        async with trio.open_nursery() as working:
            for _ in range(WORKERS):
                working.start_soon(work, chaos, requests, lost)
        nursery.cancel_scope.cancel()
    assert sum(chaos.done.values()) > 5
    assert lost == []
