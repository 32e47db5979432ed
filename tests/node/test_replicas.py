"""Models that a node has no file of: fetched from those who serve them and are asked too much, then served."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.base.quantities import GIB, MIB
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.node.on_demand import OnDemandOptions
from p2pmesh.node.replicas import ASK_AGAIN_S, NO_ROOM_S
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.wire.messages.artifacts import DescribeModel, ModelDescription
from p2pmesh.wire.stage import WireDtype
from tests.fakes.mesh import Mesh, MeshNode, expected, open_mesh
from tests.fakes.models import FakeModelStore, FakeShelf, fake_model, file_of, pieces_of

MODEL = fake_model()
DATA = file_of(MODEL)
SERVING = ServingOptions(None, 4096, 4, WireDtype.F32)
BUSY = 10
HEARD_S = 40.0
"""Demand goes along with the next announcement; descriptions and files come within moments."""


def holding() -> FakeModelStore:
    """A store that has the model's file."""
    store = FakeModelStore(MODEL)
    store.files[MODEL.digest] = DATA
    return store


async def serving(mesh: Mesh, **given: Any) -> MeshNode:
    """The one that serves the model."""
    server = await mesh.found("server", store=holding(), **given)
    await mesh.join("spare", server, memory_bytes=8 * GIB)  # has the engine that waits, and with it the file
    mesh.serve(server, MODEL)
    await server.wait_routable()
    await trio.sleep(20)
    return server


async def volunteer(mesh: Mesh, founder: MeshNode, name: str = "volunteer", **given: Any) -> MeshNode:
    """One that has no model at all, and was told of none."""
    store = given.pop("store", FakeModelStore())
    return await mesh.join(name, founder, store=store, on_demand=OnDemandOptions(SERVING), **given)


async def ask(mesh: Mesh, node: MeshNode, times: int = BUSY) -> None:
    for _ in range(times):
        request = mesh.request(max_tokens=1)
        assert await node.ask(request) == expected(request)


async def test_a_busy_model_is_fetched_and_served_by_a_peer_that_had_nothing(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        idle = await volunteer(mesh, server)
        ingress = await mesh.join("ingress", server, memory_bytes=0)
        await ingress.wait_routable()
        await trio.sleep(HEARD_S)
        await ask(mesh, ingress, BUSY - 1)
        await trio.sleep(20)
        assert idle.told("replica_fetching") == []
        await ask(mesh, ingress)
        fetching = await idle.wait_told("replica_fetching")
        assert (fetching["model"], fetching["bytes"], fetching["reason"]) == ("fake", len(DATA), "busy")
        fetched = await idle.wait_told("replica_fetched")
        assert fetched["sources"] == [{"peer_id": server.peer, "bytes": len(DATA)}]
        assert (await idle.wait_told("load_on_demand"))["reason"] == "busy"
        await idle.wait_told("pipeline_ready")
        await trio.sleep(HEARD_S)
        assert idle.store.holds[MODEL.digest] > 0
        assert idle.node.overlay.board.own().wanted == ()
        await mesh.kill(server)
        await trio.sleep(HEARD_S)
        await ask(mesh, ingress, 1)  # the model outlives whoever had it first


async def test_of_many_that_could_fetch_it_one_does(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        idle = [await volunteer(mesh, server, f"peer-{number}") for number in range(5)]
        ingress = await mesh.join("ingress", server, memory_bytes=0)
        await ingress.wait_routable()
        await trio.sleep(HEARD_S)
        server.store.portion_s = 10.0  # longer than all ranks take
        await ask(mesh, ingress, BUSY + 5)
        await trio.sleep(HEARD_S)
        assert sum(len(node.told("replica_fetching")) for node in idle) == 1
        assert sum(len(node.told("replica_fetched")) for node in idle) == 0


async def test_who_has_the_file_comes_first(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        idle = [await volunteer(mesh, server, f"peer-{number}") for number in range(3)]
        other = await mesh.join(
            "other", server, store=holding(), on_demand=OnDemandOptions(SERVING), shelf=FakeShelf(MODEL)
        )
        ingress = await mesh.join("ingress", server, memory_bytes=0)
        await ingress.wait_routable()
        await trio.sleep(HEARD_S)
        await ask(mesh, ingress, BUSY + 5)
        await other.wait_told("load_on_demand")
        await trio.sleep(HEARD_S)
        assert [node.told("replica_fetching") for node in idle] == [[], [], []]


OFF = {"artifact_transfer": ArtifactTransfer.OFF}


@pytest.mark.parametrize(
    ("at_server", "at_volunteer"),
    [
        ({"settings": OFF}, {}),
        ({}, {"settings": OFF}),
        ({}, {"settings": {"wishes": OwnerWishes(excluded_models=("fake",))}}),
        ({}, {"settings": {"wishes": OwnerWishes(excluded_models=(MODEL.digest,))}}),
        ({}, {"memory_bytes": 70 * MIB}),  # it needs 75 MB and head room
        ({}, {"memory_left": lambda: 300 * MIB}),
    ],
)
async def test_nothing_is_fetched_against_an_owners_wish_or_without_room(
    autojump_clock: MockClock, at_server: dict[str, Any], at_volunteer: dict[str, Any]
) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh, **at_server)
        idle = await volunteer(mesh, server, **at_volunteer)
        await idle.wait_routable()
        await ask(mesh, idle, 2 * BUSY)
        await trio.sleep(HEARD_S)
        assert idle.told("replica_fetching") == []
        assert MODEL.digest not in idle.store.files


async def test_a_disk_without_room_is_not_tried_again_soon(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        store = FakeModelStore()
        store.full_after = 0
        idle = await volunteer(mesh, server, store=store)
        await idle.wait_routable()
        await ask(mesh, idle, 2 * BUSY)
        assert "the disk is full" in (await idle.wait_told("error"))["message"]
        store.full_after = None
        for _ in range(5):
            await ask(mesh, idle, 2 * BUSY)
            await trio.sleep(ASK_AGAIN_S)
        assert len(idle.told("replica_fetching")) == 1
        await trio.sleep(NO_ROOM_S)
        await ask(mesh, idle, 2 * BUSY)
        await idle.wait_told("pipeline_ready")


async def test_a_file_that_is_no_model_is_told_and_left(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        store = FakeModelStore()
        store.adopting = ConfigError(ErrorCode.GGUF_INVALID, "it is damaged")
        idle = await volunteer(mesh, server, store=store)
        await idle.wait_routable()
        await ask(mesh, idle, 2 * BUSY)
        assert "fake: it is damaged" in (await idle.wait_told("error"))["message"]
        assert store.holds.total() == 0
        await ask(mesh, idle, 1)
        assert idle.told("load_on_demand") == []


async def test_a_file_that_made_way_for_others_is_fetched_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        idle = await mesh.join(
            "volunteer", server, store=FakeModelStore(), on_demand=OnDemandOptions(SERVING, idle_unload_s=10.0)
        )
        await idle.wait_routable()
        await ask(mesh, idle, 2 * BUSY)
        await idle.wait_told("model_unloaded")
        await trio.sleep(5)
        assert idle.store.holds.total() == 0
        assert idle.node.overlay.board.own().loadable != ()
        del idle.store.files[MODEL.digest]
        await trio.sleep(600)
        assert idle.node.overlay.board.own().loadable == ()
        await ask(mesh, idle, 2 * BUSY)
        await idle.wait_told("pipeline_ready", 2)
        assert len(idle.told("replica_fetched")) == 2


async def test_what_a_model_takes_is_told_to_those_who_may_have_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await serving(mesh)
        peer = await mesh.join("peer", server, memory_bytes=0)
        described = await describe(peer, server, MODEL.digest)
        assert (described.size_bytes, described.layer_count) == (len(DATA), 6)
        assert described.pieces_digest == pieces_of(DATA).digest
        assert len(DATA) < described.needed_bytes < GIB
        with pytest.raises(P2PMeshError, match="no model") as raised:
            await describe(peer, server, "ab" * 32)
        assert raised.value.code is ErrorCode.ARTIFACT_UNKNOWN
        with pytest.raises(P2PMeshError, match="no model"):
            await describe(server, peer, MODEL.digest)


async def describe(asker: MeshNode, holder: MeshNode, digest: str) -> ModelDescription:
    stream = await asker.node.overlay.open_exchange(holder.peer, DescribeModel(digest, 4096, 4))
    try:
        return await stream.expect(ModelDescription, 10)
    finally:
        await stream.reset()
