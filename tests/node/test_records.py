"""Models outside the view: provided, searched and met, over the fake network and over eight real hosts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.adapters.p2p.host import open_network
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.core.shards import Effect, Event, ShardMachine
from p2pmesh.node import topics
from p2pmesh.node.announcements import AnnouncementBoard
from p2pmesh.wire.announcement import ServedModel
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.liveness import Parting
from p2pmesh.wire.records import artifact_key, model_key
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import PATIENCE_S, Mesh, MeshNode, expected, open_mesh
from tests.fakes.models import fake_model

MODEL = ServedModel("far", "ab" * 32, bytes(16), 1, 4096)


class Lonely(ShardMachine):
    """A shard of one peer: what gossip says of others is not heard."""

    def __init__(self, own_peer: PeerId) -> None:
        super().__init__(own_peer)
        self._depth = 16

    def handle(self, event: Event, now: Any) -> tuple[Effect, ...]:
        return ()


@pytest.fixture
def _without_gossip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anybody hand on what third peers announced: a view is who said hello."""
    monkeypatch.setattr(topics.shards, "ShardMachine", Lonely)
    monkeypatch.setattr(AnnouncementBoard, "sealed_others", lambda board, besides, knows: ())


async def chain(mesh: Mesh, count: int) -> list[MeshNode]:
    """Each node has said hello to the one before it only."""
    nodes = [await mesh.found()]
    for n in range(1, count):
        node = await mesh.start(f"member {n}", nodes[0].node.overlay.make_invite())
        before = nodes[-1]
        await node.node.overlay.ensure_admitted(before.peer, before.network.addresses())
        nodes.append(node)
    return nodes


async def wait_until(node: MeshNode, is_so: Callable[[], bool]) -> None:
    board = node.node.overlay.board
    with trio.fail_after(PATIENCE_S):
        while not is_so():
            with trio.move_on_after(1):
                await board.changes.wait_beyond(board.changes.count)


@pytest.mark.usefixtures("_without_gossip")
async def test_a_model_outside_the_view_is_found_and_answers(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 4)
        driver, asker = nodes[0], nodes[3]
        mesh.serve(driver, fake_model())
        await driver.wait_told("pipeline_ready")
        await wait_until(driver, lambda: bool(mesh.overlay.records_of(model_key(driver.node.overlay.mesh_id, "fake"))))
        assert "fake" not in asker.node.routable_models()
        request = mesh.request()
        assert await asker.ask(request) == expected(request)
        assert "fake" in asker.node.routable_models()


async def test_what_is_served_and_held_is_provided_and_no_longer_when_it_ends(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        await mesh.join("member", founder)
        mesh.serve(founder, fake_model())
        mesh_id = founder.node.overlay.mesh_id
        (run,) = await runs_of(founder)
        keys = [model_key(mesh_id, "fake"), artifact_key(mesh_id, run.load.artifact_digest)]
        for key in keys:
            await wait_until(founder, lambda key=key: founder.peer in mesh.overlay.records_of(key))
        founder.engine.kill()
        await wait_until(founder, lambda: founder.peer not in mesh.overlay.records_of(keys[0]))


async def runs_of(node: MeshNode) -> tuple[Any, ...]:
    await node.wait_told("pipeline_ready")
    return node.node.table.runs()


async def test_a_model_that_nobody_has_is_refused_and_not_searched_at_once_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        founder.node.overlay.board.change_own(models=(MODEL,))
        await wait_until(member, lambda: "far" in member.node.routable_models())
        searches = count_searches(member)
        for _ in range(3):
            with pytest.raises(Refused) as refused:
                await member.ask(mesh.request(model="nobody's"))
            assert refused.value.code is ErrorCode.MODEL_UNKNOWN
        assert len(searches) == 1
        await trio.sleep(11)
        with pytest.raises(Refused):
            await member.ask(mesh.request(model="nobody's"))
        assert len(searches) == 2


def count_searches(node: MeshNode) -> list[bytes]:
    searches: list[bytes] = []
    find = node.network.find_providers

    async def counted(key: bytes, limit: int, timeout_s: float) -> Any:
        searches.append(key)
        return await find(key, limit, timeout_s)

    node.network.find_providers = counted  # type: ignore[method-assign]
    return searches


@pytest.mark.usefixtures("_without_gossip")
async def test_many_requests_for_one_model_make_one_search(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        mesh.serve(nodes[0], fake_model())
        key = model_key(nodes[0].node.overlay.mesh_id, "fake")
        await wait_until(nodes[0], lambda: bool(mesh.overlay.records_of(key)))
        searches = count_searches(nodes[2])
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(nodes[2].ask, mesh.request())
        assert searches == [key]


@pytest.mark.usefixtures("_without_gossip")
async def test_a_provider_that_cannot_be_met_or_lies_is_no_driver(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        key = model_key(nodes[0].node.overlay.mesh_id, "far")
        await wait_until(nodes[0], lambda: nodes[0].network.is_record_server)
        await wait_until(nodes[2], lambda: bool(nodes[2].node.records.record_servers()))
        await nodes[0].network.provide(key, 1)  # it does not announce the model
        gone = fake_identity("gone").peer_id
        mesh.overlay._records[key][gone] = (("/ip4/127.0.0.1/tcp/9",), 1e9)
        assert not await nodes[2].node.records.search_model("far")
        assert nodes[2].node.overlay.is_admitted(nodes[0].peer)


async def test_who_was_dialled_serves_records_and_says_so(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        assert not founder.network.is_record_server
        member = await mesh.join("member", founder)
        await wait_until(founder, lambda: founder.network.is_record_server)
        assert not member.network.is_record_server
        await wait_until(member, lambda: [p.peer for p in member.node.records.record_servers()] == [founder.peer])


async def test_a_server_is_remembered_when_its_idle_connection_has_ended_until_it_cannot_be_met(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        servers = member.node.records.record_servers
        await wait_until(member, lambda: [server.peer for server in servers()] == [founder.peer])
        stream = await founder.node.overlay.open_exchange(member.peer, Parting())
        await stream.expect(Done, 5)
        mesh.overlay.cut(founder.peer, member.peer)
        await trio.sleep(0.1)
        assert not member.node.overlay.is_admitted(founder.peer)
        assert [(server.peer, bool(server.addresses)) for server in servers()] == [(founder.peer, True)]
        await mesh.kill(founder)
        with pytest.raises(P2PMeshError):
            await member.node.records.ensure_admitted(founder.peer, ())
        assert servers() == ()


async def test_the_announcement_tells_lanes_speed_files_and_wishes(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(memory_bytes=0)
        member = await mesh.join("member", founder, memory_bytes=0)
        model = fake_model()
        mesh.serve(founder, model)
        await founder.wait_told("waiting_for_peers")
        board = member.node.overlay.board

        def heard() -> Any:
            return board.find(founder.peer)

        await wait_until(member, lambda: heard() is not None and heard().wanted == ("fake",))
        assert [(file.name, file.digest) for file in heard().on_disk] == [("fake", model.digest)]
        helper = await mesh.join("helper", founder)
        await founder.wait_told("pipeline_ready")
        driver = next(node for node in (founder, member, helper) if node.node.drivers.all())
        await founder.ask(mesh.request(max_tokens=30))
        said = [a for a in (*board.others(), board.own()) if a.peer_id == driver.peer]
        await trio.sleep(30)
        (said,) = [a for a in (*board.others(), board.own()) if a.peer_id == driver.peer]
        assert (said.lanes, said.lanes_free) == (4, 4)
        assert said.decode_tokens_per_s_milli > 0
        await wait_until(member, lambda: heard().wanted == ())


# --- real hosts ------------------------------------------------------------------
class RealOverlay:
    """``FakeOverlay``'s place in a mesh, taken by libp2p on loopback."""

    @asynccontextmanager
    async def open_network(self, peer_id: PeerId) -> AsyncIterator[Any]:
        names = ["founder", *(f"member {n}" for n in range(1, 8))]
        identity = next(one for one in map(fake_identity, names) if one.peer_id == peer_id)
        async with open_network(identity, ("/ip4/127.0.0.1/tcp/0",)) as network, trio.open_nursery() as nursery:
            network.nursery = nursery  # type: ignore[attr-defined]
            yield network
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("_without_gossip")
async def test_of_eight_real_hosts_in_a_chain_the_last_finds_the_model_of_the_first() -> None:
    async with open_mesh() as mesh:
        mesh.overlay = RealOverlay()  # type: ignore[assignment]
        with trio.fail_after(60):
            nodes = await chain(mesh, 8)
            driver, asker = nodes[0], nodes[7]
            mesh.serve(driver, fake_model())
            await driver.wait_told("pipeline_ready")
            assert "fake" not in asker.node.routable_models()
            key = model_key(driver.node.overlay.mesh_id, "fake")
            while not await asker.network.find_providers(key, 4, 10):
                await trio.lowlevel.checkpoint()
            request = mesh.request()
            assert await asker.ask(request) == expected(request)
            assert asker.node.overlay.is_admitted(driver.peer)
