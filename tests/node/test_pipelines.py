"""Runs over fake engines: relay, direct return, cancellation, death, replacement, drain."""

from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.base.errors import ConfigError, EngineError, ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.base.quantities import GIB
from p2pmesh.core.affinity import Asker
from p2pmesh.core.coordination import RunPolicy
from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.core.served_steps import COMPARED_TOKENS
from p2pmesh.node.coordinator import FAILED_S, PROBE_STEPS, Coordinator
from p2pmesh.node.standby import SETTLED_S
from p2pmesh.ports.models import ModelFile, StageArtifact
from p2pmesh.wire.generation import GenerationRequest, Prompt, SamplingParameters
from p2pmesh.wire.stage import FrameKind
from tests.fakes.mesh import GREEDY, Mesh, MeshNode, expected, open_mesh, read_tokens
from tests.fakes.models import LAYERS, FakeModelStore, fake_model

MODEL = fake_model()


async def chain(mesh: Mesh, stages: int, **options: int) -> list[MeshNode]:
    """A coordinator that drives, and the peers that hold the other stages, in order."""
    driver = await mesh.found("driver", store=FakeModelStore(MODEL))
    others = [await mesh.join(f"peer-{n}", driver) for n in range(stages - 1)]
    mesh.serve(driver, MODEL, stage_count=stages, **options)
    ready = await driver.wait_told("pipeline_ready")
    nodes = {node.peer: node for node in (driver, *others)}
    return [nodes[stage["peer_id"]] for stage in ready["stages"]]


async def drains(node: MeshNode, within_s: float) -> bool:
    """Whether a node has nothing left to do within a time."""
    with trio.move_on_after(within_s) as scope:
        await node.node.drain(1000)
    return not scope.cancelled_caught


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
async def test_any_number_of_stages_gives_the_same_tokens(autojump_clock: MockClock, stages: int) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, stages)
        assert nodes[0].engine.spec.layers.start == 0
        assert nodes[-1].engine.spec.layers.end == LAYERS
        for sampling in (GREEDY, SamplingParameters(temperature=0.8, seed=7)):
            for text in ("hi", "a long prompt " * 100):
                request = mesh.request(text, sampling=sampling)
                assert await nodes[0].ask(request) == expected(request)


async def test_a_prompt_longer_than_all_credits_goes_through(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        request = mesh.request("x" * 3000, max_tokens=3)
        assert await nodes[0].ask(request) == expected(request)
        assert nodes[2].engine.count(FrameKind.PREFILL) == 1 + 13  # the probe's and ours


async def test_many_requests_share_the_lanes(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        requests = [mesh.request(f"request {n} " * (n + 1)) for n in range(12)]
        answers: dict[int, list[int]] = {}

        async def ask(index: int) -> None:
            answers[index] = await nodes[index % 3].ask(requests[index])

        for node in nodes:
            await node.wait_routable()
        async with trio.open_nursery() as nursery:
            for index in range(len(requests)):
                nursery.start_soon(ask, index)
        assert answers == {index: expected(request) for index, request in enumerate(requests)}


async def test_tokens_return_straight_to_the_driver(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, middle, last = await chain(mesh, 3)
        await driver.ask(mesh.request())
        assert last.told("direct_return_failed") == []
        run = middle.node.table.runs()[0]
        assert run.engine is middle.engine
        assert len(driver.network.streams[last.peer]) > len(middle.network.streams[last.peer])


async def test_without_a_way_back_tokens_take_the_chain(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
        nodes = [await mesh.join(f"peer-{n}", coordinator) for n in range(3)]
        for one in nodes:
            for other in nodes:
                if one is not other:
                    await one.node.overlay.ensure_admitted(other.peer, other.network.addresses())
        # whoever gets stage 0 and stage 2, they cannot reach each other; the coordinator reaches all
        peers = {node.peer: node for node in nodes}
        coordinator.launcher.engines.clear()
        mesh.serve(coordinator, MODEL, stage_count=3)
        placed = await coordinator.wait_told("placement")
        driver, last = (peers[placed["stages"][index]["peer_id"]] for index in (0, 2))
        mesh.overlay.cut(driver.peer, last.peer)
        await coordinator.wait_told("pipeline_ready")
        await last.wait_told("direct_return_failed")
        await coordinator.wait_routable()
        request = mesh.request()
        assert await coordinator.ask(request) == expected(request)


async def test_leaving_a_generation_cancels_it_on_every_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        for ingress in (nodes[0], nodes[1]):
            await ingress.wait_routable()
            before = [node.engine.count(FrameKind.CANCEL) for node in nodes]
            async with ingress.node.generate(mesh.request(max_tokens=100_000)) as events:
                await read_tokens(events, at_most=5)
            with trio.fail_after(5):
                await nodes[0].node.drivers.wait_idle()
                await nodes[2].node.table.wait_idle()
                await trio.testing.wait_all_tasks_blocked()
            assert [node.engine.count(FrameKind.CANCEL) for node in nodes] == [count + 1 for count in before]


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_an_engine_that_dies_is_named_and_the_model_comes_back(autojump_clock: MockClock, index: int) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        nodes[index].engine.kill("killed by SIGKILL")
        withdrawn = await nodes[0].wait_told("model_withdrawn")
        assert "SIGKILL" in withdrawn["message"]
        await nodes[0].wait_told("pipeline_ready", times=2)
        request = mesh.request()
        assert await nodes[0].ask(request) == expected(request)


@pytest.mark.parametrize("index", [1, 2])
async def test_a_lost_peer_is_replaced(autojump_clock: MockClock, index: int) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        spare = await mesh.join("spare", nodes[0])
        mesh.overlay.kill(nodes[index].peer)
        again = await nodes[0].wait_told("pipeline_ready", times=2)
        assert spare.peer in {stage["peer_id"] for stage in again["stages"]}
        request = mesh.request()
        assert await nodes[0].ask(request) == expected(request)


async def test_a_lost_stage_goes_to_no_peer_that_failed_lately_where_there_is_another(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        spares = sorted([(await mesh.join(f"spare-{n}", driver)).peer for n in range(2)])
        (coordinator,) = driver.node.coordinators.all()
        assert isinstance(coordinator, Coordinator)
        coordinator._candidates.note_failed(spares[0], FAILED_S)
        mesh.overlay.kill(other.peer)
        again = await driver.wait_told("pipeline_ready", times=2)
        assert [stage["peer_id"] for stage in again["stages"]] == [driver.peer, spares[1]]


async def test_engines_are_kept_ready_at_peers_that_did_not_fail_lately_and_may_hold_them(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        driver, _ = await chain(mesh, 2)
        settings = {"wishes": OwnerWishes(max_layers=1)}
        await mesh.join("capped", driver, memory_bytes=4 * GIB, settings=settings)
        spares = sorted([(await mesh.join(f"spare-{n}", driver)).peer for n in range(2)])
        (coordinator,) = driver.node.coordinators.all()
        assert isinstance(coordinator, Coordinator)
        assert coordinator.run is not None
        coordinator._candidates.note_failed(spares[1], FAILED_S)
        await trio.sleep(SETTLED_S + 1)
        kept = {coordinator._standbys.peer_for(stage.layers) for stage in coordinator.run.placement.stages}
        assert kept == {spares[0]}


class StuckStore(FakeModelStore):
    """On a disk that answers nothing any more; whoever waits for it is told that it is at work."""

    async def find_by_digest(self, digest: Digest, size_bytes: int) -> ModelFile | None:
        await trio.sleep_forever()


async def test_a_spare_that_only_says_that_it_is_at_work_is_left_for_another(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RunPolicy(fetch_us=60_000_000, slowest_bytes_per_s=2**40, load_us=0)
    monkeypatch.setattr("p2pmesh.node.standby._RUNS", policy)
    async with open_mesh() as mesh:
        driver, _ = await chain(mesh, 2)
        await mesh.join("stuck", driver, memory_bytes=2**40, store=StuckStore())
        honest = await mesh.join("honest", driver)
        await trio.sleep(50)  # a file may take so long
        assert honest.launcher.engines == []
        await trio.sleep(50)
        assert len(honest.launcher.engines) == 2


async def test_without_a_spare_the_coordinator_waits_for_one(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        await mesh.kill(other)
        await driver.wait_told("waiting_for_peers", times=1)
        with pytest.raises(P2PMeshError) as raised:
            await driver.ask(mesh.request())
        assert raised.value.code is ErrorCode.MODEL_NOT_READY
        await mesh.join("late", driver)
        await driver.wait_told("pipeline_ready", times=2)
        request = mesh.request()
        assert await driver.ask(request) == expected(request)


async def test_clients_hear_what_a_model_waits_for(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        mesh.serve(driver, MODEL, stage_count=3)
        waiting = (await driver.wait_told("waiting_for_peers"))["message"]
        assert "start 2 more" in waiting
        with pytest.raises(P2PMeshError) as raised:
            await driver.ask(mesh.request())
        assert raised.value.message == f"{MODEL.name} is not ready: it waits for peers: {waiting}"
        router = driver.node.router
        assert router.expected_reason(MODEL.name) == f"it waits for peers: {waiting}"
        for name in ("one", "two"):
            await mesh.join(name, driver)
        await driver.wait_told("pipeline_ready")
        assert router.waiting_reason(MODEL.name) is None


async def test_a_stage_that_cannot_load_ends_the_run_with_its_reason(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver)
        other.launcher.failure = RemoteProtocolError(ErrorCode.GGUF_INVALID, "no such tensor")
        mesh.serve(driver, MODEL, stage_count=2)
        withdrawn = await driver.wait_told("model_withdrawn")
        assert "no such tensor" in withdrawn["message"]
        other.launcher.failure = None
        await driver.wait_told("pipeline_ready")


async def test_a_peer_without_the_model_fetches_its_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        assert other.told("stage_loading")[0]["source"] == driver.peer
        assert set(other.store.files) < set(driver.store.files)


async def test_a_stage_that_was_served_or_loaded_is_held_no_longer_than_its_run(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        assert other.told("stage_loading")
        digest = Digest(other.engine.spec.artifact_digest)
        assert other.store.holds[digest] == 1  # its engine
        assert driver.store.holds[digest] == 1  # its run, and nobody for having served it
        await mesh.kill(other)
        await driver.wait_told("model_withdrawn")
        assert other.store.holds.total() == 0
        await trio.testing.wait_all_tasks_blocked()
        assert driver.store.holds.total() == 0


async def test_a_refusal_tells_no_local_path(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver)
        other.launcher.failure = EngineError(ErrorCode.ENGINE_LOAD_FAILED, "cannot load /home/jane/x.gguf: bad magic")
        mesh.serve(driver, MODEL, stage_count=2)
        withdrawn = await driver.wait_told("model_withdrawn")
        assert withdrawn["message"].endswith("cannot load x.gguf: bad magic")
        assert "jane" not in withdrawn["message"]


async def test_a_peer_with_the_model_fetches_nothing(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver, store=FakeModelStore(MODEL))
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert other.told("stage_loading") == []


class StoreOfNoUse(FakeModelStore):
    """Has the model and can cut nothing of it."""

    failure: P2PMeshError = Refused(ErrorCode.DISK_FULL, "1 GiB is needed here but 1 MiB is free")

    async def cut(self, model: ModelFile, layers: LayerRange) -> StageArtifact:
        raise self.failure


@pytest.mark.parametrize("error", [StoreOfNoUse.failure, ConfigError(ErrorCode.GGUF_INVALID, "it changed")])
async def test_a_peer_whose_own_file_is_of_no_use_fetches_its_stage(
    autojump_clock: MockClock, error: P2PMeshError
) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver, store=StoreOfNoUse(MODEL))
        other.store.failure = error
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert other.told("stage_loading")[0]["source"] == driver.peer


async def test_a_stage_that_loads_for_minutes_is_waited_for(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        joiner = await mesh.join("joiner", driver, store=FakeModelStore())
        joiner.launcher.load_s = 200.0
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert joiner.told("stage_failed") == []


async def test_a_stage_with_another_digest_is_not_loaded(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver)
        driver.store.damage = lambda data: data[:-1] + b"?"
        mesh.serve(driver, MODEL, stage_count=2)
        withdrawn = await driver.wait_told("model_withdrawn")
        assert withdrawn["code"] == "artifact_corrupt"
        assert other.store.files == {}
        assert other.launcher.engines == []


async def test_a_drain_waits_for_what_runs_and_takes_nothing_new(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        other.engine.hold()
        request = mesh.request()
        answers: list[list[int]] = []

        async def ask() -> None:
            answers.append(await driver.ask(request))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not await drains(driver, 1)
            with pytest.raises(P2PMeshError) as raised:
                driver.node.generate(mesh.request())
            assert raised.value.code is ErrorCode.SHUTTING_DOWN
            assert not await drains(other, 1)
            other.engine.go_on()
            assert await drains(driver, 5)
            assert await drains(other, 5)
        assert answers == [expected(request)]


async def test_a_drain_that_takes_too_long_is_over_in_time(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        other.engine.hold()
        async with driver.node.generate(mesh.request()) as events:
            await anext(events)
            started = trio.current_time()
            await driver.node.drain(8)
            assert trio.current_time() - started == pytest.approx(8)


@pytest.mark.parametrize("takes_s", [3, 600])
async def test_a_drain_waits_as_long_for_answers_that_others_drive(autojump_clock: MockClock, takes_s: float) -> None:
    async with open_mesh() as mesh:
        driver, _ = await chain(mesh, 2)
        started = trio.current_time()
        await driver.node.drain(8, partial(trio.sleep, takes_s))
        assert trio.current_time() - started == pytest.approx(min(8, takes_s), abs=0.5)


async def test_a_stage_that_answers_nothing_runs_into_the_drivers_deadline(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        other.engine.hold()
        with pytest.raises(P2PMeshError) as raised:
            await driver.ask(mesh.request())
        assert raised.value.code is ErrorCode.DEADLINE_EXCEEDED


async def test_more_requests_than_lanes_wait_for_their_turn(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        other.engine.hold()
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(driver.ask, mesh.request())
            await trio.testing.wait_all_tasks_blocked()
            assert driver.node.table.runs()[0].open_sequences == 4
            other.engine.go_on()


@pytest.mark.parametrize("ingress", [0, 1])
async def test_a_client_with_many_requests_does_not_make_another_wait_for_all(
    autojump_clock: MockClock, ingress: int
) -> None:
    ended: list[str] = []
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        await nodes[ingress].wait_routable()
        nodes[1].engine.hold()

        async def ask(account: str) -> None:
            async with nodes[ingress].node.generate(mesh.request(), Asker(account=account)) as events:
                await read_tokens(events)
            ended.append(account)

        async with trio.open_nursery() as nursery:
            for account in (*["greedy"] * 20, "modest"):
                nursery.start_soon(ask, account)
                await trio.testing.wait_all_tasks_blocked()
            nodes[1].engine.go_on()
    assert len(ended) == 21
    assert ended.index("modest") < 8


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ((), ErrorCode.REQUEST_INVALID),
        ((1, 258), ErrorCode.REQUEST_INVALID),
        ((1,) * 4096, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
    ],
)
async def test_a_prompt_that_cannot_be_is_refused_from_near_and_far(
    autojump_clock: MockClock, tokens: tuple[int, ...], code: ErrorCode
) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for node in nodes:
            await node.wait_routable()
            request = GenerationRequest(bytes(16), "fake", Prompt(tokens=tokens), GREEDY)
            with pytest.raises(P2PMeshError) as raised:
                await node.ask(request)
            assert raised.value.code is code


async def test_an_unknown_model_is_no_ones(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        with pytest.raises(P2PMeshError) as raised:
            await nodes[0].ask(mesh.request(model="other"))
        assert raised.value.code is ErrorCode.MODEL_UNKNOWN


async def test_a_coordinator_goes_and_meets_peers_that_it_only_heard_of(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        hub = await mesh.found("hub", memory_bytes=0)
        worker = await mesh.join("worker", hub)
        driver = await mesh.join("driver", hub, store=FakeModelStore(MODEL))
        assert not driver.node.overlay.is_admitted(worker.peer)
        mesh.serve(driver, MODEL, stage_count=2)
        ready = await driver.wait_told("pipeline_ready")
        assert [stage["peer_id"] for stage in ready["stages"]] == [driver.peer, worker.peer]
        await hub.wait_routable()
        request = mesh.request()
        assert await hub.ask(request) == expected(request)


async def test_a_peer_that_was_only_heard_of_and_cannot_be_reached_is_tried_again_later(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        hub = await mesh.found("hub", memory_bytes=0)
        worker = await mesh.join("worker", hub)
        driver = await mesh.join("driver", hub, store=FakeModelStore(MODEL))
        mesh.overlay.cut(driver.peer, worker.peer)
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("waiting_for_peers")
        await trio.sleep(120)
        mesh.overlay.mend(driver.peer, worker.peer)
        await driver.wait_told("pipeline_ready")


async def test_a_stage_that_takes_more_memory_than_was_asked_for_is_not_loaded(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver)
        other.store.stage_memory = 1 << 40
        mesh.serve(driver, MODEL, stage_count=2)
        withdrawn = await driver.wait_told("model_withdrawn")
        assert withdrawn["code"] == "placement_refused"
        assert other.launcher.engines == []
        assert len(other.store.released) > 0


async def test_gossip_fills_half_the_table_and_leaves_room_for_admitted_peers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pmesh.node.announcements.MAX_KNOWN_BYTES", 1)
    async with open_mesh() as mesh:
        founder = await mesh.found()
        first = await mesh.join("first", founder)
        second = await mesh.join("second", founder)
        await trio.sleep(5)
        known = {a.peer_id for a in founder.node.overlay.board.others()}
        assert known == {first.peer, second.peer}
        assert {a.peer_id for a in first.node.overlay.board.others()} == {founder.peer}


# --- what a token takes
async def test_a_run_is_timed_before_it_serves_and_its_driver_compares(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
        driver = await mesh.join("driver", coordinator)
        last = await mesh.join("last", coordinator)
        mesh.serve(coordinator, MODEL, stage_count=2)
        ready = await coordinator.wait_told("pipeline_ready")
        if ready["stages"][0]["peer_id"] != driver.peer:
            driver, last = last, driver
        assert last.engine.count(FrameKind.DECODE) == PROBE_STEPS
        await driver.wait_routable()
        [before] = driver.node.status()["driven"]
        assert (before["tokens"], before["measured_tpot_us"]) == (0, None)
        for _ in range(3):
            await driver.ask(mesh.request(max_tokens=COMPARED_TOKENS))
        [told] = driver.told("tpot_compared")
        assert told["predicted_tpot_us"] == ready["predicted_tpot_us"]
        assert told["measured_tpot_us"] > 0
        assert told["tokens"] >= COMPARED_TOKENS
        [served] = driver.node.status()["driven"]
        assert served["tokens"] > told["tokens"]
        assert last.node.status()["driven"] == []


async def test_a_run_that_replaces_another_is_not_timed_while_clients_wait(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, last = await chain(mesh, 2)
        await trio.sleep(10)
        last.engine.kill()
        await driver.wait_told("pipeline_ready", 2)
        assert last.engine.count(FrameKind.DECODE) == 0
