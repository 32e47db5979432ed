"""What chaos does by a seed, and what it makes of an answer."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
import trio

from p2pmesh.app.chaos import MOST_REFUSALS, Answer, ask, describe_chaos, question, undated
from p2pmesh.app.chaos_faults import FaultKind, engines_of, inflict, plan_faults
from p2pmesh.app.config import ChaosOptions
from p2pmesh.base.errors import ConfigError
from p2pmesh.cli.parser import build_parser, chaos_options

KINDS = tuple(FaultKind)


def test_equal_seeds_give_equal_faults_and_more_of_them_begin_alike() -> None:
    faults = plan_faults(7, KINDS, 10.0, 3, 200)
    assert faults[:50] == plan_faults(7, KINDS, 10.0, 3, 50)
    assert faults != plan_faults(8, KINDS, 10.0, 3, 200)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.stage for fault in faults} == {0, 1, 2}
    gaps = [after.at_s - before.at_s for before, after in pairwise(faults)]
    assert all(8.0 <= gap <= 12.001 for gap in gaps)


def line(**fields: object) -> str:
    return "data: " + json.dumps({"id": "x", "created": 1, "choices": [], **fields})


def test_two_answers_are_compared_without_what_belongs_to_a_request() -> None:
    assert undated(line(id="a", created=5)) == undated(line(id="b", created=6))
    assert undated(line(model="a")) != undated(line(model="b"))
    assert undated("data: [DONE]") == "data: [DONE]"


def test_the_questions_are_few_greedy_and_sampled_short_and_long() -> None:
    asked = [question(number, "m", 8) for number in range(8)]
    assert asked[:4] == asked[4:]
    assert [body["temperature"] > 0 for body in asked[:4]] == [False, False, True, True]
    assert len({len(body["prompt"]) for body in asked[:4]}) > 1


async def answer_of(*bodies: tuple[int, str]) -> tuple[Answer, list[int]]:
    """What becomes of a server's answers, one after another; and what was noted."""
    left = list(bodies)
    noted: list[int] = []

    def respond(request: httpx.Request) -> httpx.Response:
        status, text = left.pop(0) if len(left) > 1 else left[0]

        async def stream() -> AsyncIterator[bytes]:
            yield text.encode()

        return httpx.Response(status, content=stream())

    transport = httpx.MockTransport(respond)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await ask(client, question(0, "m", 2), noted.append), noted


async def test_a_refusal_before_the_start_is_repeated(autojump_clock: trio.testing.MockClock) -> None:
    answer, noted = await answer_of((503, "{}"), (503, "{}"), (200, f"{line()}\n\n: keep-alive\n\ndata: [DONE]\n\n"))
    assert (answer.outcome, answer.refusals, len(answer.data)) == ("finished", 2, 2)
    assert noted == [1, 2]


@pytest.mark.parametrize(
    ("bodies", "outcome"),
    [
        ([(500, "{}")], "failed"),
        ([(200, f"{line()}\n\n")], "failed"),
        ([(200, "")], "failed"),
        ([(503, "{}")], "refused"),
    ],
)
async def test_half_an_answer_is_none(
    autojump_clock: trio.testing.MockClock, bodies: list[tuple[int, str]], outcome: str
) -> None:
    answer, _ = await answer_of(*bodies)
    assert answer.outcome == outcome
    assert answer.refusals == (MOST_REFUSALS if outcome == "refused" else 0)


async def test_a_node_is_killed_and_frozen_and_let_go(autojump_clock: trio.testing.MockClock) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE)
    try:
        assert engines_of(process.pid) == ()
        with trio.move_on_after(1):
            await inflict(FaultKind.FREEZE, process)
        await inflict(FaultKind.SLOW, process)
        assert process.poll() is None
        await inflict(FaultKind.KILL_NODE, process)
        assert process.returncode == -9
    finally:
        if process.poll() is None:
            process.kill()


def test_its_options_are_checked() -> None:
    given = chaos_options(build_parser().parse_args(["chaos", "--faults", "freeze,slow", "--spares", "0", "--matrix"]))
    assert (given.faults, given.spares, given.is_matrix) == (("freeze", "slow"), 0, True)
    for wrong in ({"faults": ("melt",)}, {"stages": 0}, {"tokens": 1}, {"every_s": 0.5}):
        with pytest.raises(ConfigError):
            ChaosOptions(given.home, **wrong)  # type: ignore[arg-type]


def test_the_report_says_what_was_lost() -> None:
    report = {
        "model": "m", "requests": 3, "outcomes": {"identical": 2, "failed": 1}, "faults": {"freeze": 1},
        "refused_and_repeated": 4, "recoveries": 1, "inexact_recoveries": 0,
        "stall_ms": {"median": 9, "p95": 9, "max": 9},
        "details": ["failed after 3 pieces: gone"],
    }  # fmt: skip
    told = "\n".join(describe_chaos(report))
    for part in ("3 requests of m: 2 identical, 1 failed", "1 freeze", "4 refusals", "median 9 ms", "failed after 3"):
        assert part in told
