"""Models that nodes load for requests and unload again, and requests that wait for them."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.limits import MAX_ANNOUNCED_LOADABLE
from p2pmesh.base.quantities import GIB, MIB
from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.node.on_demand import LOOK_EVERY_S, SURVEY_EVERY_S, OnDemandOptions
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.wire.announcement import model_hash_of
from p2pmesh.wire.stage import WireDtype
from tests.fakes.mesh import Mesh, MeshNode, expected, open_mesh, read_tokens
from tests.fakes.models import FakeModelStore, FakeShelf, fake_model

MODEL, OTHER = fake_model(), fake_model("other")
SERVING = ServingOptions(None, 4096, 4, WireDtype.F32)
ON_DEMAND = OnDemandOptions(SERVING)
IDLE_S = 10.0


async def with_shelf(
    mesh: Mesh, name: str, founder: MeshNode, *models: object, idle_s: float | None = None, **given: object
) -> MeshNode:
    """A peer that has models on disk, none of which was named to it."""
    models = models or (MODEL,)
    return await mesh.join(
        name, founder, store=FakeModelStore(*models), shelf=FakeShelf(*models),  # type: ignore[arg-type]
        on_demand=OnDemandOptions(SERVING, idle_s), **given,
    )  # fmt: skip


async def settle() -> None:
    """Everybody has heard of everybody, and of what is on disks."""
    await trio.sleep(15)


def told_loads(*nodes: MeshNode) -> list[str]:
    return [fields["reason"] for node in nodes for fields in node.told("load_on_demand")]


async def test_a_request_elsewhere_makes_one_peer_load_the_model_and_waits_for_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        idle = [await with_shelf(mesh, f"peer-{n}", ingress) for n in range(5)]
        await settle()
        assert told_loads(*idle) == []
        request = mesh.request()
        started = trio.current_time()
        assert await ingress.ask(request) == expected(request)
        assert trio.current_time() - started < 10
        assert told_loads(*idle) == ["no_server"]
        await settle()
        (described,) = idle[0].node.status()["on_demand"]
        assert (described["model"], described["needed_bytes"] > 0) == ("fake", True)
        assert sum(len(node.told("pipeline_ready")) for node in idle) == 1
        assert "fake" in ingress.node.routable_models()
        (loader,) = (node for node in idle if node.told("load_on_demand"))
        assert isinstance(loader.node.coordinators.on_demand._allowed.shelf, FakeShelf)
        assert loader.node.coordinators.on_demand._allowed.shelf.holds[MODEL.digest] == 1


async def test_a_model_that_nobody_has_is_refused_at_once_and_counted(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        await with_shelf(mesh, "peer", ingress)
        await settle()
        started = trio.current_time()
        with pytest.raises(Refused):
            await ingress.ask(mesh.request(model="nobody's"))
        assert trio.current_time() - started < 15  # a search, at most
        await trio.sleep(LOOK_EVERY_S + 1)
        (row,) = ingress.node.overlay.board.own().demand
        assert (row.model, row.waiting, row.per_day) == (model_hash_of("nobody's"), 0, 1)


async def test_a_client_at_the_peer_itself_loads_what_lies_there(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found(
            "node", store=FakeModelStore(MODEL, OTHER), shelf=FakeShelf(MODEL, OTHER), on_demand=ON_DEMAND
        )
        await settle()
        for model in ("fake", "other"):
            request = mesh.request(model=model)
            assert await node.ask(request) == expected(request)
        assert set(node.node.routable_models()) == {"fake", "other"}
        for model in ("fake", "other"):  # side by side
            request = mesh.request(model=model)
            assert await node.ask(request) == expected(request)
        assert told_loads(node) == ["no_server", "no_server"]


async def test_an_idle_model_is_unloaded_and_comes_back_for_a_request(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        node = await with_shelf(mesh, "peer", ingress, idle_s=IDLE_S)
        await settle()
        for times in (1, 2, 3):
            request = mesh.request()
            assert await ingress.ask(request) == expected(request)
            told = await node.wait_told("model_unloaded", times)
            assert (told["model"], told["reason"]) == ("fake", "idle")
            await trio.sleep(5)
            assert ingress.node.routable_models() == {}
            assert node.node.stages.free_bytes == GIB
            assert node.node.coordinators.all() == ()
        assert told_loads(node) == ["no_server"] * 3
        await trio.sleep(600)
        assert told_loads(node) == ["no_server"] * 3  # nobody asks any more


async def test_a_model_that_was_given_is_unloaded_and_comes_back_in_the_same_way(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        options = OnDemandOptions(None, IDLE_S)
        node = await mesh.found("node", store=FakeModelStore(MODEL), on_demand=options)
        ingress = await mesh.join("ingress", node, memory_bytes=0)
        mesh.serve(node, MODEL)
        await ingress.wait_routable()
        await node.wait_told("model_unloaded")
        await trio.sleep(5)
        request = mesh.request()
        assert await ingress.ask(request) == expected(request)
        assert len(node.told("pipeline_ready")) == 2
        assert told_loads(node) == ["no_server"]


async def test_a_model_that_another_peer_drives_is_unloaded_by_its_coordinator_and_comes_back(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        options = OnDemandOptions(None, IDLE_S)
        coordinator = await mesh.found("coordinator", store=FakeModelStore(MODEL), memory_bytes=0, on_demand=options)
        holder = await mesh.join("holder", coordinator)
        mesh.serve(coordinator, MODEL)
        await coordinator.wait_told("pipeline_ready")
        for _ in range(5):  # by clients of the driver's own, whom the coordinator does not know of
            await trio.sleep(IDLE_S - 2)
            request = mesh.request()
            assert await holder.ask(request) == expected(request)
        assert coordinator.told("model_unloaded") == []
        for times in (1, 2):
            told = await coordinator.wait_told("model_unloaded", times)
            assert (told["model"], told["reason"]) == ("fake", "idle")
            await trio.sleep(5)
            assert holder.node.stages.free_bytes == GIB
            assert coordinator.node.routable_models() == {}
            request = mesh.request()
            assert await holder.ask(request) == expected(request)
        assert len(coordinator.told("pipeline_ready")) == 3


async def test_a_request_that_comes_as_another_peers_driver_is_let_go_is_answered(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        options = OnDemandOptions(None, IDLE_S)
        coordinator = await mesh.found("coordinator", store=FakeModelStore(MODEL), memory_bytes=0, on_demand=options)
        holder = await mesh.join("holder", coordinator)
        mesh.serve(coordinator, MODEL)
        await coordinator.wait_told("pipeline_ready")
        request = mesh.request()
        assert await holder.ask(request) == expected(request)
        for tenth in range(12):
            with trio.move_on_after(IDLE_S - 0.2 + tenth / 10):
                await coordinator.wait_told("model_unloaded", 99)
            request = mesh.request()
            assert await holder.ask(request) == expected(request)


async def test_a_request_that_is_long_keeps_its_model_loaded(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found("node", store=FakeModelStore(MODEL), on_demand=OnDemandOptions(None, IDLE_S))
        mesh.serve(node, MODEL)
        await node.wait_routable()
        request = mesh.request(max_tokens=20)
        async with node.node.generate(request) as events:
            tokens = await read_tokens(events, 3)
            node.engine.hold()
            await trio.sleep(20 * IDLE_S)
            assert node.told("model_unloaded") == []
            node.engine.go_on()
            tokens += await read_tokens(events)
        assert tokens == expected(request)
        await node.wait_told("model_unloaded")


class Memory:
    """What a machine has left."""

    def __init__(self) -> None:
        self.left_bytes: int | None = GIB

    def __call__(self) -> int | None:
        return self.left_bytes


async def test_little_memory_unloads_what_is_asked_for_least(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        memory = Memory()
        node = await mesh.found("node", store=FakeModelStore(MODEL, OTHER), memory_left=memory)
        for model in (MODEL, OTHER):
            mesh.serve(node, model)
            await node.wait_routable(model.name)
        request = mesh.request(model="other")
        assert await node.ask(request) == expected(request)
        memory.left_bytes = 100 * MIB
        told = await node.wait_told("model_unloaded")
        assert (told["model"], told["reason"]) == ("fake", "memory_low")
        assert "100" in told["message"]
        await trio.sleep(5)
        assert len(node.launcher.engines) == 1  # that of the other: no engine waits for what may come
        memory.left_bytes = 300 * MIB  # enough to go on, not to load anything
        with pytest.raises(Refused, match="no peer loaded it"):
            await node.ask(mesh.request())
        assert set(node.node.routable_models()) == {"other"}
        memory.left_bytes = GIB
        await trio.sleep(60)
        request = mesh.request()
        assert await node.ask(request) == expected(request)


async def test_a_peer_with_little_memory_keeps_no_engine_in_case_and_takes_none(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        memory = Memory()
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        mesh.serve(driver, MODEL)
        await driver.wait_routable()
        spare = await mesh.join("spare", driver, memory_left=memory)
        await trio.sleep(20)
        assert len(spare.launcher.engines) == 1
        memory.left_bytes = 100 * MIB
        await trio.sleep(20)
        assert spare.launcher.engines == []
        await trio.sleep(300)
        assert spare.launcher.engines == []
        memory.left_bytes = GIB
        await trio.sleep(180)
        assert len(spare.launcher.engines) == 1


async def lending(mesh: Mesh, memory: Memory) -> tuple[MeshNode, MeshNode]:
    """A coordinator without memory of its own, and the peer that holds its model's only stage."""
    coordinator = await mesh.found("coordinator", store=FakeModelStore(MODEL), memory_bytes=0)
    holder = await mesh.join("holder", coordinator, memory_left=memory)
    mesh.serve(coordinator, MODEL)
    await coordinator.wait_told("pipeline_ready")
    await settle()
    return coordinator, holder


async def test_little_memory_has_a_stage_of_anothers_run_loaded_elsewhere_and_cuts_no_request(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        memory = Memory()
        coordinator, holder = await lending(mesh, memory)
        spare = await mesh.join("spare", coordinator)
        await settle()
        request = mesh.request(max_tokens=60)
        async with coordinator.node.generate(request) as events:
            tokens = await read_tokens(events, 3)
            holder.engine.hold()
            memory.left_bytes = 100 * MIB
            told = await holder.wait_told("stage_handed_over")
            assert (told["model"], told["stage"], told["layers"]) == ("fake", 0, [0, 6])
            tokens += await read_tokens(events)
        assert tokens == expected(request)
        assert [fields["reason"] for fields in coordinator.told("replanned")] == ["peer_leaves"]
        assert not holder.node.stages.is_holding
        assert holder.launcher.engines == []
        assert spare.node.stages.is_holding
        await mesh.kill(spare)
        await trio.sleep(300)
        assert not holder.node.stages.is_holding  # it would not be better there
        memory.left_bytes = GIB
        await trio.sleep(300)
        request = mesh.request()
        assert await coordinator.ask(request) == expected(request)
        assert holder.node.stages.is_holding


async def test_a_stage_of_anothers_run_stays_where_no_other_peer_takes_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        memory = Memory()
        coordinator, holder = await lending(mesh, memory)
        memory.left_bytes = 100 * MIB
        told = await holder.wait_told("unload_postponed")
        assert (told["model"], told["reason"]) == ("fake", "memory_low")
        request = mesh.request()
        assert await coordinator.ask(request) == expected(request)
        await trio.sleep(600)
        assert holder.told("stage_handed_over") == []
        request = mesh.request()
        assert await coordinator.ask(request) == expected(request)
        assert len(coordinator.told("pipeline_ready")) == 1


async def test_little_memory_cuts_no_request(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        memory = Memory()
        node = await mesh.found("node", store=FakeModelStore(MODEL), memory_left=memory)
        mesh.serve(node, MODEL)
        await node.wait_routable()
        request = mesh.request(max_tokens=20)
        async with node.node.generate(request) as events:
            tokens = await read_tokens(events, 3)
            node.engine.hold()
            memory.left_bytes = 0
            told = await node.wait_told("unload_postponed")
            assert told["model"] == "fake"
            assert "fake" in node.node.routable_models()
            node.engine.go_on()
            tokens += await read_tokens(events)
        assert tokens == expected(request)
        await node.wait_told("model_unloaded")


async def test_a_busy_model_is_loaded_by_one_peer_more(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        server = await mesh.found("server", store=FakeModelStore(MODEL))
        mesh.serve(server, MODEL)
        ingress = await mesh.join("ingress", server, memory_bytes=0)
        idle = [await with_shelf(mesh, f"peer-{n}", server) for n in range(3)]
        await settle()
        await ingress.wait_routable()
        for _ in range(9):
            await ingress.ask(mesh.request(max_tokens=1))
        await trio.sleep(2)
        assert told_loads(*idle) == []
        await ingress.ask(mesh.request(max_tokens=1))
        await trio.sleep(40)
        assert told_loads(*idle) == ["busy"]
        assert sum(len(node.told("pipeline_ready")) for node in idle) == 1


async def test_a_request_outlives_the_only_peer_that_had_its_model_loaded(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        peers = [await with_shelf(mesh, f"peer-{n}", ingress) for n in range(2)]
        await settle()
        request = mesh.request(max_tokens=60)
        async with ingress.node.generate(request) as events:
            tokens = await read_tokens(events, 10)
            (first,) = (peer for peer in peers if peer.told("pipeline_ready"))
            mesh.overlay.kill(first.peer)
            tokens += await read_tokens(events)
        assert tokens == expected(request)
        assert [told_loads(peer) for peer in peers if peer is not first] == [["no_server"]]
        (recovered,) = ingress.told("request_recovered")
        assert recovered["is_exact"]


@pytest.mark.parametrize("failure", [ConfigError(ErrorCode.GGUF_INVALID, "it is damaged"), None])
async def test_a_load_that_fails_is_told_to_who_waits(autojump_clock: MockClock, failure: ConfigError | None) -> None:
    async with open_mesh() as mesh:
        shelf = FakeShelf(MODEL)
        shelf.failure = failure
        node = await mesh.found("node", store=FakeModelStore(MODEL), shelf=shelf, on_demand=ON_DEMAND)
        if failure is None:
            node.node.stages._memory_bytes = 1000  # the machine has less than the file needs
        await settle()
        with pytest.raises(Refused, match="damaged" if failure else "no peer loaded it within 60 s") as raised:
            await node.ask(mesh.request())
        assert raised.value.code is ErrorCode.MODEL_NOT_READY
        assert node.node.coordinators.on_demand.coordinators == ()
        shelf.failure = None
        node.node.stages._memory_bytes = GIB
        await trio.sleep(31)
        request = mesh.request()
        assert await node.ask(request) == expected(request)


async def test_a_disk_that_cannot_be_read_now_is_read_later(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        shelf = FakeShelf(MODEL)
        shelf.disk_error = ConfigError(ErrorCode.HOME_UNUSABLE, "cannot list models")
        node = await mesh.found("node", store=FakeModelStore(MODEL), shelf=shelf, on_demand=ON_DEMAND)
        assert (await node.wait_told("error"))["message"] == "cannot list models"
        await trio.sleep(SURVEY_EVERY_S + 1)
        request = mesh.request()
        assert await node.ask(request) == expected(request)


async def test_a_client_that_hangs_up_waits_for_nothing_any_more(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        peer = await with_shelf(mesh, "peer", ingress, memory_bytes=1000)
        await settle()
        with trio.move_on_after(5):
            await ingress.ask(mesh.request())
        heard = peer.node.overlay.board
        await trio.sleep(5)
        (said,) = heard.others()
        assert [(row.waiting, row.per_day) for row in said.demand] == [(0, 1)]


async def test_another_name_of_the_same_file_is_served(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found("node", store=FakeModelStore(MODEL))
        mesh.serve(node, MODEL)
        alias = replace(MODEL, name="alias")
        second = await mesh.join("second", node, store=FakeModelStore(alias), memory_bytes=0)
        third = await mesh.join("third", node, memory_bytes=0)
        await third.wait_routable()
        mesh.serve(second, alias)
        await settle()
        for asked in (node, second, third):
            request = mesh.request(model="alias")
            assert await asked.ask(request) == expected(request)
        with pytest.raises(Refused, match="served are: fake"):
            await third.ask(mesh.request(model="alia"))


async def test_one_file_under_two_names_at_one_node_is_served_under_both(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found("node", store=FakeModelStore(MODEL))
        mesh.serve(node, MODEL)
        await node.wait_routable()
        await node.node.coordinators.serve_model(replace(MODEL, name="same"), SERVING)
        assert node.told("model_aliased") == [{"model": "same", "served_as": "fake"}]
        request = mesh.request(model="same")
        assert await node.ask(request) == expected(request)
        assert len(node.told("pipeline_ready")) == 1
        with pytest.raises(ConfigError, match="another file as fake"):
            await node.node.coordinators.serve_model(replace(OTHER, name="fake"), SERVING)


async def test_a_file_of_the_shelf_that_is_served_elsewhere_under_another_name_is_not_loaded_again(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found("node", store=FakeModelStore(MODEL))
        mesh.serve(node, MODEL)
        peer = await with_shelf(mesh, "peer", node, replace(MODEL, name="alias"))
        ingress = await mesh.join("ingress", node, memory_bytes=0)
        await ingress.wait_routable()
        await settle()
        for _ in range(2):
            request = mesh.request(model="alias")
            assert await ingress.ask(request) == expected(request)
        await settle()
        assert told_loads(peer) == ["no_server"]
        assert peer.told("pipeline_ready") == []


async def test_another_name_of_a_model_that_was_unloaded_here_brings_it_back(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        alias = replace(MODEL, name="alias")
        shelf = FakeShelf(alias)
        options = OnDemandOptions(SERVING, IDLE_S)
        node = await mesh.found("node", store=FakeModelStore(MODEL), shelf=shelf, on_demand=options)
        mesh.serve(node, MODEL)
        await node.wait_told("model_unloaded", 1)
        for times in (2, 3):
            request = mesh.request(model="alias")
            assert await node.ask(request) == expected(request)
            await node.wait_told("model_unloaded", times)
        assert len(shelf.loads) == 2
        assert shelf.holds[MODEL.digest] == 0


async def test_of_many_peers_that_have_more_models_than_they_may_tell_of_one_loads_the_model(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        models = [fake_model(f"model-{n}") for n in range(2 * MAX_ANNOUNCED_LOADABLE)]
        last = max(models, key=lambda model: model_hash_of(model.name))
        ingress = await mesh.found("ingress", memory_bytes=0)
        peers = [await with_shelf(mesh, f"peer-{n}", ingress, *models) for n in range(6)]
        await settle()
        with pytest.raises(Refused):
            await ingress.ask(mesh.request(model=last.name))  # nobody says that it is there
        await trio.sleep(30)
        assert told_loads(*peers) == ["no_server"]
        request = mesh.request(model=last.name)
        assert await ingress.ask(request) == expected(request)


SPLIT = 76_000_000
"""Bytes of memory that hold not all of the fake model (75 MB and head room), but a half (68 MB)."""


@pytest.mark.parametrize(("largest", "stages"), [(GIB, 1), (SPLIT, 2)])
async def test_a_model_is_split_only_where_no_peer_can_hold_it(
    autojump_clock: MockClock, largest: int, stages: int
) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        small = await with_shelf(mesh, "small", ingress, memory_bytes=SPLIT)
        large = await with_shelf(mesh, "large", ingress, memory_bytes=largest)
        await settle()
        request = mesh.request()
        assert await ingress.ask(request) == expected(request)
        ready = [fields for node in (small, large) for fields in node.told("pipeline_ready")]
        assert [len(fields["stages"]) for fields in ready] == [stages]


async def test_nobody_offers_to_load_what_its_owner_excludes(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        ingress = await mesh.found("ingress", memory_bytes=0)
        settings = {"wishes": OwnerWishes(excluded_models=("FAKE",))}
        peer = await with_shelf(mesh, "peer", ingress, MODEL, OTHER, settings=settings)
        await settle()
        assert peer.node.overlay.board.own().loadable == (model_hash_of(OTHER.name),)
