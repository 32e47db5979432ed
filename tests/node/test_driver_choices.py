"""Drivers are chosen by what their answers told."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import trio
import trio.testing

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.affinity import NOBODY, AffinityKeys, Asker, affinity_keys
from p2pmesh.core.routing import RouteReason
from p2pmesh.node.driver_choices import Candidate, DriverChoices
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    SamplingParameters,
)
from tests.fakes.mesh import MockedClock

A, B = Candidate(PeerId("a"), b"run a", 0), Candidate(PeerId("b"), b"run b", 0)
SESSION = Asker(session="s")


def keys(asker: Asker = NOBODY, text: str = "x") -> AffinityKeys:
    return affinity_keys(GenerationRequest(bytes(16), "m", Prompt(text=text), SamplingParameters()), asker)


def choices() -> DriverChoices:
    return DriverChoices(MockedClock(), lambda: {A.peer: 1000, B.peer: 1000})


async def answer(wait_s: float, token_s: float, tokens: int) -> AsyncGenerator[GenerationEvent, None]:
    await trio.sleep(wait_s)
    yield GenerationStarted((1,), b"run", "f", 100)
    for token in range(tokens):
        yield GenerationDelta((token,), "t")
        await trio.sleep(token_s)
    yield GenerationFinished(FinishReason.STOP, "", tokens)


async def ask(
    made: DriverChoices, one: Candidate, asked: AffinityKeys, token_s: float = 0.02, read_s: float = 0.0
) -> None:
    held_us = 0
    with made.observing((one.peer, one.run_id), asked) as note:
        async with aclosing(answer(0.1, token_s, 10)) as events:
            async for event in events:
                note(event, held_us)
                await trio.sleep(read_s)
                held_us += round(read_s * MICROS_PER_SECOND)


async def test_a_session_stays_with_the_driver_that_took_it(autojump_clock: trio.testing.MockClock) -> None:
    made = choices()
    for one in (A, B):
        await ask(made, one, keys(SESSION))
        assert made.choose([A, B], keys(SESSION)) == (one.peer, RouteReason.SESSION)
    assert made.choose([A], keys(SESSION)) == (A.peer, RouteReason.ONLY)


async def test_the_faster_one_is_asked_once_both_are_known(autojump_clock: trio.testing.MockClock) -> None:
    made = choices()
    for _ in range(3):
        await ask(made, A, keys(), token_s=0.1)
        await ask(made, B, keys(), token_s=0.02)
    assert made.choose([A, B], keys(text="new")) == (B.peer, RouteReason.FASTEST)


async def test_a_slow_reader_makes_no_driver_slow(autojump_clock: trio.testing.MockClock) -> None:
    made = choices()
    for _ in range(3):
        await ask(made, A, keys(), token_s=0.02)
        await ask(made, B, keys(), token_s=0.1)
        await ask(made, A, keys(), token_s=0.02, read_s=1.0)
    assert made.choose([A, B], keys(text="new")) == (A.peer, RouteReason.FASTEST)


async def test_a_driver_that_was_lost_is_left_alone_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    made = choices()
    await ask(made, A, keys(SESSION))
    with pytest.raises(Refused):
        with made.observing((A.peer, A.run_id), keys(SESSION)):
            raise Refused(ErrorCode.PEER_UNREACHABLE, "gone")
    assert made.choose([A, B], keys(SESSION)) == (B.peer, RouteReason.ONLY)
    assert made.choose([Candidate(A.peer, b"its next run", 0)], keys()) == (A.peer, RouteReason.ONLY)
    await trio.sleep(30)
    assert made.choose([A, B], keys(SESSION)) == (A.peer, RouteReason.SESSION)


async def test_also_a_loss_inside_a_group_counts(autojump_clock: trio.testing.MockClock) -> None:
    made = choices()
    with pytest.RaisesGroup(Refused):
        with made.observing((A.peer, A.run_id), keys()):
            async with trio.open_nursery():
                raise Refused(ErrorCode.PEER_LOST, "gone")
    assert made.choose([A, B], keys()) == (B.peer, RouteReason.ONLY)


async def test_a_refusal_and_a_client_that_goes_away_count_against_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = choices()
    with pytest.raises(Refused):
        with made.observing((A.peer, A.run_id), keys(SESSION)):
            raise Refused(ErrorCode.OVERLOADED, "full")
    with trio.move_on_after(0.15):
        await ask(made, A, keys(SESSION))
    assert made.choose([A, B], keys(SESSION)) == (A.peer, RouteReason.SESSION)


def auto(text: str, asker: Asker = NOBODY) -> tuple[GenerationRequest, Asker]:
    return GenerationRequest(bytes(16), "auto", Prompt(text=text), SamplingParameters()), asker


async def test_a_conversation_stays_with_its_model_as_long_as_that_is_served() -> None:
    made = choices()
    runs = {name: [(A.peer, A.run_id)] for name in ("x", "y", "z")}
    first = {text: made.choose_model(runs, *auto(text)) for text in map(str, range(40))}
    assert set(first.values()) == {"x", "y", "z"}
    assert {text: made.choose_model(runs, *auto(text)) for text in first} == first
    del runs["x"]
    assert {made.choose_model(runs, *auto(text)) for text in first} == {"y", "z"}
    assert made.choose_model({}, *auto("0")) is None


async def test_the_class_of_a_request_and_the_speed_of_drivers_choose_the_model(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = choices()
    for _ in range(3):
        await ask(made, A, keys(), token_s=0.2)
        await ask(made, B, keys(), token_s=0.01)
    runs = {"coder": [(A.peer, A.run_id)], "slow": [(A.peer, A.run_id)], "fast": [(B.peer, B.run_id)]}
    assert made.choose_model(runs, *auto("Debug this function.")) == "coder"
    chosen = [made.choose_model(runs, *auto(f"Hello {number}")) for number in range(200)]
    assert chosen.count("fast") > 170
    assert "coder" not in chosen


async def test_requests_on_their_way_make_a_driver_slower(autojump_clock: trio.testing.MockClock) -> None:
    made = choices()
    await ask(made, A, keys(SESSION))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, made, A, keys(SESSION), 10.0)
        await trio.sleep(1)
        assert made.choose([A, B], keys(SESSION)) == (B.peer, RouteReason.FASTEST)
        nursery.cancel_scope.cancel()
    assert made.choose([A, B], keys(SESSION)) == (A.peer, RouteReason.SESSION)
