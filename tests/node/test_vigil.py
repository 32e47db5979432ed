"""Frozen peers are lost to those who wait for them, slow ones are not; survivors and spares lose no time loading."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.base.errors import Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.node.channels import MessageStream, error_of
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.stages import MAX_LOADING
from p2pmesh.node.standby import SETTLED_S
from p2pmesh.node.vigil import ANSWER_S, FRESH_S, SILENCE_S, STEP_S, Vigils
from p2pmesh.ports.models import StageArtifact
from p2pmesh.wire.messages.answers import Refusal
from p2pmesh.wire.messages.liveness import Probe
from p2pmesh.wire.messages.runs import LoadStage
from tests.fakes.clock import FakeEntropy
from tests.fakes.mesh import Mesh, MeshNode, MockedClock, expected, open_mesh
from tests.fakes.models import FakeModelStore, fake_model
from tests.node.test_ingress import end_of, events_of, tokens_of
from tests.node.test_pipelines import MODEL, chain

SETTLING_S = 5 * SETTLED_S


def freeze(node: MeshNode) -> None:
    """Its connections stand, and nothing comes."""

    async def say_nothing(stream: MessageStream, asked: Any) -> None:
        await trio.sleep_forever()

    node.node.overlay.serve_exchange(Probe, say_nothing)
    if node.launcher.engines:
        node.engine.hold()


async def with_spare(mesh: Mesh) -> tuple[list[MeshNode], MeshNode]:
    nodes = await chain(mesh, 3)
    spare = await mesh.join("spare", nodes[0])
    await spare.wait_routable()
    await trio.sleep(SETTLING_S)
    return nodes, spare


@pytest.mark.parametrize("index", [1, 2])
async def test_a_frozen_stage_is_lost_within_two_seconds(autojump_clock: MockClock, index: int) -> None:
    async with open_mesh() as mesh:
        nodes, spare = await with_spare(mesh)
        request = mesh.request(max_tokens=200)
        events = await events_of(spare, request, {50: lambda: freeze(nodes[index])})
        assert tokens_of(events) == expected(request)
        assert end_of(events).recoveries == 1
        told = spare.told("request_recovered")[0]
        assert told["stall_ms"] < 1000 * ANSWER_S  # from when it was known: nobody waits for the frozen one again
        placed = nodes[0].told("placement")[-1]["stages"]
        assert nodes[index].peer not in {stage["peer_id"] for stage in placed}
        assert {node.peer for node in nodes if node is not nodes[index]} < {stage["peer_id"] for stage in placed}


async def test_a_frozen_driver_is_lost_to_its_ingress(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
        nodes = {node.peer: node for node in [await mesh.join(f"peer-{number}", coordinator) for number in range(3)]}
        mesh.serve(coordinator, MODEL, stage_count=2)
        ready = await coordinator.wait_told("pipeline_ready")
        await coordinator.wait_routable()
        await trio.sleep(SETTLING_S)
        driver = nodes[ready["stages"][0]["peer_id"]]
        request = mesh.request(max_tokens=200)
        events = await events_of(coordinator, request, {20: lambda: freeze(driver)})
        assert tokens_of(events) == expected(request)
        assert coordinator.told("request_recovered")[0]["stall_ms"] < 6000


async def test_a_step_that_takes_long_is_no_loss(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes, spare = await with_spare(mesh)
        request = mesh.request(max_tokens=60)

        def slow_down() -> None:
            engine = nodes[1].engine
            engine.hold()
            nodes[1].network.nursery.start_soon(go_on_later, engine)

        async def go_on_later(engine: Any) -> None:
            await trio.sleep(10)
            engine.go_on()

        events = await events_of(spare, request, {20: slow_down})
        assert tokens_of(events) == expected(request)
        assert end_of(events).recoveries == 0
        assert nodes[0].told("model_withdrawn") == []


async def test_survivors_keep_their_engines_and_the_spare_has_one_ready(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes, spare = await with_spare(mesh)
        first, last = nodes[0].engine, nodes[2].engine
        waiting = {engine.spec.layers: engine for engine in spare.launcher.engines}
        (placement,) = nodes[0].node.status()["placements"]
        ranges = [stage["layers"] for stage in placement["stages"]]
        assert placement["standbys"] == [{"peer_id": spare.peer, "layers": layers} for layers in ranges]
        assert waiting.keys() == {node.engine.spec.layers for node in nodes}
        assert nodes[0].node.stages.free_bytes < spare.node.stages.free_bytes
        layers = nodes[1].engine.spec.layers
        request = mesh.request(max_tokens=200)
        events = await events_of(nodes[0], request, {50: lambda: mesh.overlay.kill(nodes[1].peer)})
        assert tokens_of(events) == expected(request)
        assert nodes[0].launcher.engines == [first]
        assert nodes[2].launcher.engines == [last]
        assert spare.node.table.runs()[0].engine is waiting[layers]
        assert nodes[0].node.status()["placements"][0]["standbys"] == []
        await trio.sleep(2 * SETTLING_S)
        assert spare.launcher.engines == [waiting[layers]]  # busy itself, it is nobody's spare


async def test_an_engine_that_dies_is_replaced_by_a_spare_one(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes, spare = await with_spare(mesh)
        request = mesh.request(max_tokens=200)
        events = await events_of(nodes[0], request, {50: nodes[2].engine.kill})
        assert tokens_of(events) == expected(request)
        assert nodes[0].told("placement")[-1]["stages"][2]["peer_id"] == spare.peer


async def test_the_driver_of_the_next_run_asks_for_no_vocabulary_again(autojump_clock: MockClock) -> None:
    """Megabytes, which are in the way of a client that waits, and lay about after each run."""
    async with open_mesh() as mesh:
        nodes, _ = await with_spare(mesh)
        (before,) = nodes[0].node.drivers.all()
        events = await events_of(nodes[0], mesh.request(max_tokens=200), {50: nodes[2].engine.kill})
        assert end_of(events).recoveries == 1
        (after,) = nodes[0].node.drivers.all()
        assert after is not before
        assert nodes[0].engine.told_pieces == 1


async def test_spare_engines_make_room_for_a_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes, spare = await with_spare(mesh)
        assert len(spare.launcher.engines) == 3
        whole = spare.node.stages.free_bytes
        async with spare.node.stages._reserve(whole):
            await spare.node.stages._shelf.make_room(0)
            assert spare.launcher.engines == []
        request = mesh.request()
        assert await nodes[1].ask(request) == expected(request)


async def test_engines_that_are_loaded_in_case_keep_no_run_from_loading(autojump_clock: MockClock) -> None:
    other = fake_model("other")
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        node = await mesh.found("node", store=FakeModelStore(MODEL, other))
        mesh.serve(node, MODEL)
        await node.wait_told("pipeline_ready")
        stages, asker = node.node.stages, PeerId("asker")
        order = replace(node.node.table.runs()[0].load, is_standby=True)
        obtain = stages._obtain

        async def fetch_for_ever(load: LoadStage, *rest: Any) -> StageArtifact:
            if load.is_standby:
                await trio.sleep_forever()
            return await obtain(load, *rest)

        stages._obtain = fetch_for_ever  # type: ignore[method-assign]
        for _ in range(MAX_LOADING - 1):
            nursery.start_soon(stages._stand_by, order, asker, trio.sleep)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Refused, match="3 engines for you"):
            await stages._stand_by(order, asker, trio.sleep)
        nursery.start_soon(stages._stand_by, order, PeerId("another"), trio.sleep)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Refused, match="keeps 0 engines ready and loads 4"):
            await stages._stand_by(order, asker, trio.sleep)
        mesh.serve(node, other)
        await node.wait_told("pipeline_ready", times=2)
        assert node.told("stage_failed") == []
        nursery.cancel_scope.cancel()


async def test_whoever_loses_its_run_gives_the_spare_engines_back(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        hub = await mesh.found("hub", memory_bytes=0)
        coordinator = await mesh.join("coordinator", hub, memory_bytes=0, store=FakeModelStore(MODEL))
        peers = [await mesh.join(f"peer-{n}", hub) for n in range(2)]
        mesh.serve(coordinator, MODEL, stage_count=2)
        await coordinator.wait_told("pipeline_ready")
        spare = await mesh.join("spare", coordinator)
        await trio.sleep(SETTLING_S)
        assert spare.launcher.engines
        for peer in peers:
            mesh.overlay.cut(coordinator.peer, peer.peer)
            mesh.overlay.cut(spare.peer, peer.peer)  # else whoever takes the run over asks for some of its own
        held = await coordinator.wait_told("model_withdrawn")
        await trio.sleep(SETTLING_S)
        assert held["code"] in ("quorum_lost", "peer_lost")
        assert spare.launcher.engines == []


class SilentOverlay:
    """What a vigil needs of an overlay; nobody answers in less than ``answer_s``."""

    own_peer = PeerId("own")

    def __init__(self, answer_s: float = float("inf"), lag: Callable[[], None] = lambda: None) -> None:
        self.answer_s = answer_s
        self.lag = lag
        self.asked = 0

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        pass

    async def open_exchange(self, peer: PeerId, message: object) -> "SilentOverlay":
        self.asked += 1
        return self

    async def receive(self, timeout_s: float) -> Refusal:
        due = trio.current_time() + self.answer_s
        while trio.current_time() < due:
            self.lag()
            await trio.sleep(min(STEP_S, max(0.0, due - trio.current_time())))
        return Refusal("overloaded", "too much to do")

    async def expect(self, kind: type, timeout_s: float) -> None:
        raise error_of(await self.receive(timeout_s))

    async def reset(self) -> None:
        await trio.lowlevel.checkpoint()


@dataclass
class FixedPings:
    """Every peer is as far away, and nothing else is known of it."""

    newest_s: float | None = None
    slowest_s: float | None = None

    def round_trip_s(self, peer: PeerId) -> float | None:
        return self.newest_s

    def slowest_round_trip_s(self, peer: PeerId) -> float | None:
        return self.slowest_s


def vigils_over(overlay: SilentOverlay, round_trip_s: float | None = None, slowest_s: float | None = None) -> Vigils:
    pings = FixedPings(round_trip_s, slowest_s)
    return Vigils(cast("Overlay", overlay), MockedClock(), FakeEntropy(1), pings)


OTHER = (PeerId("other"), ())


async def silent_by(vigils: Vigils) -> tuple[PeerId, ...]:
    async with trio.open_nursery() as nursery:
        await nursery.start(vigils.run)
        silent = await vigils.find_silent([OTHER])
        nursery.cancel_scope.cancel()
    return silent


async def test_whoever_is_heard_of_while_it_is_asked_is_not_lost(autojump_clock: MockClock) -> None:
    """Its answer may wait behind what it sends: tokens prove as much."""
    lost: list[PeerId] = []
    async with trio.open_nursery() as nursery:
        vigils = vigils_over(SilentOverlay())
        await nursery.start(vigils.run)
        watch = vigils.watch([OTHER], lambda peer, _: lost.append(peer))
        assert watch is not None
        for _ in range(20):
            await trio.sleep(0.5)
            watch.hear()
        assert lost == []
        await trio.sleep(SILENCE_S + 3 * ANSWER_S)
        assert lost == ["other"]
        nursery.cancel_scope.cancel()


async def test_a_machine_that_is_always_late_does_not_ask_for_ever(autojump_clock: MockClock) -> None:
    vigils = vigils_over(SilentOverlay(lag=lambda: autojump_clock.jump(2 * ANSWER_S)))
    with trio.fail_after(60):
        assert await silent_by(vigils) == ()


async def test_a_busy_machine_waits_longer_for_an_answer(autojump_clock: MockClock) -> None:
    def be_late() -> None:
        autojump_clock.jump(3 * STEP_S)

    assert await silent_by(vigils_over(SilentOverlay(answer_s=1.5 * ANSWER_S))) == ("other",)
    assert await silent_by(vigils_over(SilentOverlay(answer_s=1.5 * ANSWER_S, lag=be_late))) == ()
    assert await silent_by(vigils_over(SilentOverlay(lag=be_late))) == ("other",)


async def test_a_refusal_is_an_answer(autojump_clock: MockClock) -> None:
    assert await silent_by(vigils_over(SilentOverlay(answer_s=0.1))) == ()


async def test_a_peer_is_asked_once_for_all_who_wait_for_it(autojump_clock: MockClock) -> None:
    """A thousand requests wait in its queue; streams for a thousand questions it has not."""
    overlay = SilentOverlay(answer_s=0.1)
    lost: list[PeerId] = []
    async with trio.open_nursery() as nursery:
        vigils = vigils_over(overlay)
        await nursery.start(vigils.run)
        for _ in range(1000):
            vigils.watch([OTHER], lambda peer, _: lost.append(peer))
        await trio.sleep(10)
        assert overlay.asked <= 10
        overlay.answer_s = 100
        await trio.sleep(5)
        assert len(lost) == 1000
        nursery.cancel_scope.cancel()


async def test_a_far_peer_is_given_its_round_trips(autojump_clock: MockClock) -> None:
    assert await silent_by(vigils_over(SilentOverlay(answer_s=1.5), round_trip_s=0.4)) == ()
    assert await silent_by(vigils_over(SilentOverlay(answer_s=1.5), round_trip_s=0.01)) == ("other",)


async def test_whoever_has_just_not_answered_is_not_waited_for_once_more(autojump_clock: MockClock) -> None:
    overlay = SilentOverlay()
    async with trio.open_nursery() as nursery:
        vigils = vigils_over(overlay)
        await nursery.start(vigils.run)
        assert await vigils.find_silent([OTHER]) == ("other",)
        began = trio.current_time()
        assert await vigils.find_silent([OTHER]) == ("other",)
        assert (trio.current_time(), overlay.asked) == (began, 1)
        await trio.sleep(FRESH_S)
        overlay.answer_s = 0.1
        assert await vigils.find_silent([OTHER]) == ()
        nursery.cancel_scope.cancel()


async def test_whoever_answers_pings_at_once_is_known_to_be_silent_in_half_a_second(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    assert await silent_by(vigils_over(SilentOverlay(), 0.001, 0.002)) == ("other",)
    assert trio.current_time() - began < 0.51
    assert await silent_by(vigils_over(SilentOverlay(answer_s=1.5), 0.001, 0.4)) == ()  # a machine that is busy


async def test_who_waits_in_vain_has_those_asked_who_watch_the_whole_run(autojump_clock: MockClock) -> None:
    """The driver answers while a stage behind it is frozen; the coordinator looks only now and then."""
    overlay, lost = SilentOverlay(answer_s=0.01), list[PeerId]()
    async with trio.open_nursery() as nursery:
        vigils = vigils_over(overlay, 0.001, 0.002)
        await nursery.start(vigils.run)
        run = vigils.watch([OTHER, (PeerId("stage"), ())], lambda peer, _: lost.append(peer), again_s=100)
        elsewhere = vigils.watch([(PeerId("elsewhere"), ())], lambda peer, _: lost.append(peer), again_s=100)
        await trio.sleep(10)
        assert overlay.asked == 3
        overlay.answer_s = 100
        began = trio.current_time()
        request = vigils.watch([OTHER], lambda peer, _: None)
        await trio.sleep(1)
        assert lost
        assert trio.current_time() - began == 1
        assert overlay.asked == 5  # nobody else was asked
        for watch in (run, elsewhere, request):
            assert watch is not None
            watch.end()
        nursery.cancel_scope.cancel()
