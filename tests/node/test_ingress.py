"""A request outlives its driver, its stages and their peers: same tokens, same text, one start, one end."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    SamplingParameters,
)
from p2pmesh.wire.stage import FrameFlag, FrameKind
from tests.fakes.mesh import GREEDY, PATIENCE_S, Mesh, MeshNode, expected, open_mesh
from tests.fakes.models import FakeModelStore
from tests.node.test_pipelines import MODEL, chain

SAMPLED = SamplingParameters(temperature=0.8, seed=7)
Strike = Callable[[], object]


async def events_of(node: MeshNode, request: GenerationRequest, strikes: dict[int, Strike]) -> list[GenerationEvent]:
    """All that a client gets; after so many tokens something happens."""
    given: list[GenerationEvent] = []
    tokens = 0
    waiting = dict(sorted(strikes.items()))
    with trio.fail_after(PATIENCE_S):
        async with node.node.generate(request) as events:
            async for event in events:
                given.append(event)
                if isinstance(event, GenerationDelta):
                    tokens += len(event.tokens)
                while waiting and isinstance(event, GenerationStarted | GenerationDelta) and tokens >= min(waiting):
                    waiting.pop(min(waiting))()
    return given


def tokens_of(events: list[GenerationEvent]) -> list[int]:
    return [token for event in events if isinstance(event, GenerationDelta) for token in event.tokens]


def end_of(events: list[GenerationEvent]) -> GenerationFinished:
    """One start first, one end last, nothing but deltas between."""
    assert isinstance(events[0], GenerationStarted)
    assert all(isinstance(event, GenerationDelta) for event in events[1:-1])
    assert isinstance(events[-1], GenerationFinished)
    return events[-1]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("at", [0, 1, 17, 40])
@pytest.mark.parametrize("index", [0, 1, 2])
async def test_a_stream_survives_the_engine_of_any_stage(
    autojump_clock: MockClock, index: int, at: int, sampling: SamplingParameters
) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        for ingress in (nodes[0], nodes[1]):
            await ingress.wait_routable()
            request = mesh.request("a prompt " * 100, max_tokens=120, sampling=sampling)
            events = await events_of(ingress, request, {at: nodes[index].engine.kill})
            assert tokens_of(events) == expected(request)
            assert "".join(e.text for e in events if not isinstance(e, GenerationStarted)).encode() == bytes(
                expected(request)
            )
            assert end_of(events) == GenerationFinished(FinishReason.LENGTH, "", 120, 1)
            told = ingress.told("request_recovered")[-1]
            assert (told["request_id"], told["is_exact"]) == (request.request_id.hex(), True)
            assert told["tokens"] > at
            await nodes[0].wait_routable()


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_stages_after_the_lost_one_keep_what_they_hold(autojump_clock: MockClock, index: int) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        before = [0, 0, 0]

        def strike() -> None:
            before[:] = [node.engine.rows_computed for node in nodes]
            nodes[index].engine.kill()

        request = mesh.request("x" * 300, max_tokens=120)
        events = await events_of(nodes[0], request, {60: strike})
        assert tokens_of(events) == expected(request)
        before[index] = 0
        computed = [node.engine.rows_computed - rows for node, rows in zip(nodes, before, strict=True)]
        assert all(rows > 400 for rows in computed[: index + 1])
        assert all(rows < 80 for rows in computed[index + 1 :])


async def test_a_stage_that_kept_nothing_has_all_computed_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)

        def strike() -> None:
            nodes[2].engine.forgets = True
            nodes[0].engine.kill()

        request = mesh.request("x" * 300, max_tokens=120)
        assert tokens_of(await events_of(nodes[0], request, {60: strike})) == expected(request)
        assert nodes[2].engine.rows_computed > 700


async def test_one_loss_upon_another_is_gone_on_from_what_the_last_run_held(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        request = mesh.request("x" * 300, max_tokens=120)
        strikes: dict[int, Strike] = {at: lambda: nodes[0].engine.kill() for at in (20, 40, 60, 80)}
        assert tokens_of(await events_of(nodes[0], request, strikes)) == expected(request)
        assert nodes[2].engine.rows_computed < 550


@pytest.mark.parametrize("index", [1, 2])
async def test_a_stream_survives_the_peer_of_a_stage(autojump_clock: MockClock, index: int) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        spare = await mesh.join("spare", nodes[0])
        await spare.wait_routable()
        request = mesh.request(max_tokens=400)
        events = await events_of(spare, request, {30: lambda: mesh.overlay.kill(nodes[index].peer)})
        assert tokens_of(events) == expected(request)
        assert end_of(events).recoveries == 1


async def test_a_stream_survives_its_driver(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
        peers = {}
        for number in range(3):
            node = await mesh.join(f"peer-{number}", coordinator)
            peers[node.peer] = node
        mesh.serve(coordinator, MODEL, stage_count=2)
        ready = await coordinator.wait_told("pipeline_ready")
        await coordinator.wait_routable()
        driver = ready["stages"][0]["peer_id"]
        request = mesh.request(max_tokens=300, sampling=SAMPLED)
        events = await events_of(coordinator, request, {100: lambda: mesh.overlay.kill(driver)})
        assert tokens_of(events) == expected(request)
        assert end_of(events).recoveries == 1


async def test_a_stream_survives_one_loss_after_another(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        request = mesh.request(max_tokens=200)

        def strike(number: int) -> Strike:
            return lambda: nodes[number % 3].engine.kill()

        events = await events_of(nodes[0], request, {at: strike(at) for at in range(10, 200, 20)})
        assert tokens_of(events) == expected(request)
        assert end_of(events).recoveries == 10


async def test_a_replay_goes_in_frames_behind_the_prompt_and_one_row_is_sampled(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        engine = nodes[1].engine
        await events_of(nodes[0], mesh.request("x" * 300, max_tokens=150), {100: engine.kill})
        taken = nodes[1].engine.taken
        last_begin = max(index for index, frame in enumerate(taken) if frame.kind is FrameKind.BEGIN)
        first, second, *rest = taken[last_begin + 1 :]
        assert [(f.kind, f.position, len(f.tokens), f.flags) for f in (first, second)] == [
            (FrameKind.PREFILL, 0, 240, FrameFlag.NONE), (FrameKind.PREFILL, 240, 60, FrameFlag.NONE)
        ]  # fmt: skip
        replayed = [frame for frame in rest if frame.flags & FrameFlag.REPLAY]
        history = nodes[0].told("request_recovered")[0]["tokens"] - 1
        assert sum(len(frame.tokens) for frame in replayed) == history - 1
        assert {len(frame.tokens) for frame in replayed[:-1]} == {16}
        assert rest[: len(replayed)] == replayed
        sampled = rest[len(replayed)]
        assert (sampled.kind, sampled.position, len(sampled.tokens)) == (FrameKind.DECODE, 300 + history - 1, 1)


async def test_other_engines_go_on_and_the_client_may_know(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        request = mesh.request(max_tokens=60)

        def strike() -> None:
            nodes[1].launcher.fingerprint = "another build"
            nodes[1].engine.kill()

        events = await events_of(nodes[0], request, {20: strike})
        assert tokens_of(events) == expected(request)
        assert end_of(events).is_exact is False
        assert nodes[0].told("request_recovered")[0]["is_exact"] is False


async def test_without_a_new_placement_the_stream_ends_with_the_loss_within_its_deadline(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        started = trio.current_time()
        with pytest.raises(P2PMeshError) as raised:
            await events_of(driver, mesh.request(max_tokens=100), {5: lambda: mesh.overlay.kill(other.peer)})
        assert raised.value.code in (ErrorCode.PEER_LOST, ErrorCode.PEER_UNREACHABLE)
        waiting = (await driver.wait_told("waiting_for_peers"))["message"]
        assert "start 1 more" in waiting
        assert raised.value.message.endswith(f"nobody took over in time: it waits for peers: {waiting}")
        assert 60 <= trio.current_time() - started < 70


async def test_a_request_that_kills_every_engine_ends_with_its_error(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        (node,) = await chain(mesh, 1)
        poison = mesh.request("poison")
        node.launcher.killed_by = poison.prompt.tokens
        node.engine.killed_by = poison.prompt.tokens
        with pytest.raises(P2PMeshError) as raised:
            await events_of(node, poison, {})
        assert raised.value.code is ErrorCode.ENGINE_CRASHED
        assert len(node.told("pipeline_ready")) <= 4
        killed = len(node.told("pipeline_ready"))
        await node.wait_told("model_withdrawn", times=killed)
        await node.wait_told("pipeline_ready", times=killed + 1)
        request = mesh.request()
        assert await node.ask(request) == expected(request)


async def test_a_client_that_leaves_in_a_stall_is_waited_for_no_longer(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        with trio.move_on_after(20) as scope:
            await events_of(driver, mesh.request(max_tokens=100), {5: lambda: mesh.overlay.kill(other.peer)})
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await driver.node.drivers.wait_idle()


async def test_a_request_that_was_never_admitted_is_refused_at_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        (node,) = await chain(mesh, 1)
        started = trio.current_time()
        for request, code in (
            (mesh.request(model="other"), ErrorCode.MODEL_UNKNOWN),
            (replace(mesh.request(), history=(1,) * 5000), ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        ):
            with pytest.raises(P2PMeshError) as raised:
                await events_of(node, request, {})
            assert raised.value.code is code
        assert trio.current_time() - started < 5


async def test_losses_of_many_requests_at_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        for node in nodes:
            await node.wait_routable()
        answers: dict[int, list[int]] = {}
        requests = [mesh.request(f"request {number} " * number, max_tokens=80) for number in range(1, 9)]

        async def ask(index: int, mesh: Mesh) -> None:
            strikes: dict[int, Strike] = {40: nodes[1].engine.kill} if index == 0 else {}
            answers[index] = tokens_of(await events_of(nodes[index % 3], requests[index], strikes))

        async with trio.open_nursery() as nursery:
            for index in range(len(requests)):
                nursery.start_soon(ask, index, mesh)
        assert answers == {index: expected(request) for index, request in enumerate(requests)}


async def test_a_request_between_two_runs_waits_for_the_next_one(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        ingress = await mesh.join("ingress", driver, memory_bytes=0)
        await ingress.wait_routable()
        await mesh.kill(other)
        await driver.wait_told("model_withdrawn")
        for node in (driver, ingress):
            while node.node.routable_models():
                await node.node.overlay.board.changes.wait_beyond(node.node.overlay.board.changes.count)
        answers: dict[str, list[int]] = {}
        requests = {"driver": mesh.request("one"), "ingress": mesh.request("two")}

        async def ask(name: str, node: MeshNode) -> None:
            answers[name] = await node.ask(requests[name])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "driver", driver)
            nursery.start_soon(ask, "ingress", ingress)
            await trio.sleep(5)
            assert answers == {}
            await mesh.join("spare", driver)
        assert answers == {name: expected(request) for name, request in requests.items()}
        assert ingress.told("request_recovered") == []


async def test_a_request_for_a_model_that_does_not_come_back_is_refused_after_a_deadline(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        driver, other = await chain(mesh, 2)
        await mesh.kill(other)
        await driver.wait_told("not_routable")
        started = trio.current_time()
        with pytest.raises(P2PMeshError) as raised:
            await driver.ask(mesh.request())
        assert raised.value.code is ErrorCode.MODEL_NOT_READY
        assert 60 <= trio.current_time() - started < 70
