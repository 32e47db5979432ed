"""Prompts that begin alike: computed from where they differ at every stage, told to clients, never another answer."""

from dataclasses import replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS
from p2pmesh.wire.begin import decode_begin
from p2pmesh.wire.generation import GenerationDelta, GenerationEvent, GenerationRequest, GenerationStarted
from p2pmesh.wire.stage import FrameKind
from tests.fakes.engine import FakeEngine
from tests.fakes.mesh import PATIENCE_S, Mesh, MeshNode, expected, open_mesh
from tests.node.test_ingress import Strike, end_of, events_of, tokens_of
from tests.node.test_pipelines import chain

TEXT = "what all of them are told first. " * 30
"""990 tokens, and one before them."""
SHARED = 960


def ask(mesh: Mesh, text: str, max_tokens: int = 12) -> GenerationRequest:
    return mesh.request(TEXT + text, max_tokens=max_tokens)


def cached_of(events: list[GenerationEvent]) -> int:
    started = events[0]
    assert isinstance(started, GenerationStarted)
    return started.cached_tokens


async def answer(
    node: MeshNode, request: GenerationRequest, strikes: dict[int, Strike] | None = None
) -> list[GenerationEvent]:
    events = await events_of(node, request, strikes or {})
    assert tokens_of(events) == expected(request)
    return events


def rows_of(nodes: list[MeshNode]) -> list[int]:
    return [node.engine.rows_computed for node in nodes]


async def test_a_second_prompt_is_computed_from_where_it_differs(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        assert cached_of(await answer(nodes[0], ask(mesh, "One?"))) == 0
        before = rows_of(nodes)
        for ingress in (nodes[0], nodes[1]):
            await ingress.wait_routable()
            assert cached_of(await answer(ingress, ask(mesh, "Another?"))) == SHARED
        computed = [after - rows for after, rows in zip(rows_of(nodes), before, strict=True)]
        assert all(rows < 2 * 60 for rows in computed)


async def test_one_that_runs_is_shared_with_by_several(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        cached: list[int] = []

        async def other(request: GenerationRequest) -> None:
            cached.append(cached_of(await answer(nodes[0], request)))

        first = ask(mesh, "First?", 200)
        with trio.fail_after(PATIENCE_S):
            async with nodes[0].node.generate(first) as events, trio.open_nursery() as nursery:
                tokens: list[int] = []
                async for event in events:
                    if isinstance(event, GenerationDelta):
                        tokens += event.tokens
                        if len(tokens) == 1:
                            for text in ("Second?", "Third?"):
                                nursery.start_soon(other, ask(mesh, text))
        assert tokens == expected(first)
        assert cached == [SHARED, SHARED]


async def test_a_stream_that_began_from_kept_rows_outlives_any_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        for index in range(3):
            await nodes[0].wait_routable()
            await answer(nodes[0], ask(mesh, "One?"))
            request = ask(mesh, f"Lost at {index}?", 60)
            events = await answer(nodes[0], request, {20: nodes[index].engine.kill})
            assert cached_of(events) == SHARED
            assert end_of(events).recoveries == 1


CHOICES = 4
LONG, SHORT = TEXT + "x" * 10, "a question of a hundred tokens. " * 3 + "why?"
"""1000 and 100 tokens; of them whole calls are 960 and 96."""


async def choose(
    node: MeshNode, request: GenerationRequest, strikes: dict[int, Strike] | None = None
) -> list[list[GenerationEvent]]:
    """All choices of a request, asked for at once; something happens when the first of them has so many tokens."""
    given: list[list[GenerationEvent]] = [[] for _ in range(CHOICES)]

    async def one(index: int) -> None:
        given[index] = await answer(node, replace(request, sequence=index), strikes if index == 0 else None)

    async with trio.open_nursery() as nursery:
        for index in range(CHOICES):
            nursery.start_soon(one, index)
    return given


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize(("text", "shared"), [(LONG, 960), (SHORT, 96)], ids=["long", "short"])
async def test_choices_of_a_request_have_their_prompt_computed_once(
    autojump_clock: MockClock, text: str, shared: int, lanes: int
) -> None:
    """At every stage: left to each choice is the call that the prompt ends in, by which its token is sampled."""
    is_in_turn = lanes == 1 and shared < PREFILL_CHUNK_TOKENS  # nobody keeps the rows of so short a prompt
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2, lanes=lanes)
        before = rows_of(nodes)
        request = mesh.request(text, max_tokens=12)
        events = await choose(nodes[0], request)
        ends = CHOICES * 11  # every token but the last is a row of each choice
        rows = CHOICES * len(text) if is_in_turn else len(text) + (CHOICES - 1) * (len(text) - shared)
        assert [after - rows for after, rows in zip(rows_of(nodes), before, strict=True)] == [rows + ends] * 2
        assert sorted(map(cached_of, events)) == [0] * CHOICES if is_in_turn else [0] + [shared] * (CHOICES - 1)


@pytest.mark.parametrize("at", [0, 1, 17])
@pytest.mark.parametrize("index", [0, 1, 2])
async def test_choices_go_on_after_a_loss_with_their_prompt_computed_once_more(
    autojump_clock: MockClock, index: int, at: int
) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        request = mesh.request(LONG, max_tokens=60)
        events = await choose(nodes[0], request, {at: nodes[index].engine.kill})
        assert any(end_of(each).recoveries == 1 for each in events)
        assert nodes[index].engine.rows_computed <= len(LONG) + CHOICES * (len(LONG) - 960 + 60) + 20


async def test_one_that_waits_for_another_goes_on_without_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        nodes[1].engine.hold()
        request = mesh.request(LONG, max_tokens=12)
        begins = nodes[0].engine.count(FrameKind.BEGIN)

        async def give_up() -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await answer(nodes[0], request)

        scopes: list[trio.CancelScope] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            for index in (1, 2):
                nursery.start_soon(answer, nodes[0], replace(request, sequence=index))
            await trio.testing.wait_all_tasks_blocked()
            assert nodes[0].engine.count(FrameKind.BEGIN) == begins + 1
            scopes[0].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert nodes[0].engine.count(FrameKind.BEGIN) == begins + 2
            nodes[1].engine.go_on()
        assert nodes[0].engine.count(FrameKind.BEGIN) == begins + 3


async def test_another_run_shares_nothing(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        await answer(nodes[0], ask(mesh, "One?", 60), {20: nodes[1].engine.kill})
        request = ask(mesh, "Two?")
        assert cached_of(await answer(nodes[0], request)) == 960  # of the run that went on with the first
        nodes[1].engine.kill()
        await nodes[0].wait_routable()
        assert cached_of(await answer(nodes[0], ask(mesh, "Three?"))) == 0


async def test_what_one_stage_has_lost_is_computed_and_not_asked_for_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        nodes[1].engine.forgets = True
        await answer(nodes[0], ask(mesh, "One?"))
        nodes[1].engine.forgets = False
        assert cached_of(await answer(nodes[0], ask(mesh, "Two?"))) == 0
        assert cached_of(await answer(nodes[0], ask(mesh, "Three?"))) == SHARED


async def test_prompts_that_are_read_are_neither_given_rows_nor_give_them(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for request in (ask(mesh, "One?"), ask(mesh, "Two?")):
            await events_of(nodes[0], replace(request, wants_embedding=True, max_tokens=1), {})
        begins = [frame for frame in nodes[1].engine.taken if frame.kind is FrameKind.BEGIN]
        assert [decode_begin(frame.body).prefix for frame in begins] == [None] * len(begins)
        assert cached_of(await answer(nodes[0], ask(mesh, "Three?"))) == 0


async def test_a_model_that_keeps_one_state_of_a_sequence_is_not_asked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "shares_prefixes", False)
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for text in ("One?", "Two?"):
            assert cached_of(await answer(nodes[0], ask(mesh, text))) == 0
        begins = [frame for frame in nodes[1].engine.taken if frame.kind is FrameKind.BEGIN]
        assert [decode_begin(frame.body).prefix for frame in begins] == [None] * len(begins)
