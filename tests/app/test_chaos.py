"""What chaos does by a seed, and what it makes of an answer."""

import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import trio

from p2pmesh.app.chaos import check_fits, run_chaos
from p2pmesh.app.chaos_faults import (
    LEAVES_S,
    Fault,
    FaultKind,
    Victim,
    choose_cases,
    engines_of,
    inflict,
    plan_cases,
    plan_faults,
)
from p2pmesh.app.chaos_lies import Lie
from p2pmesh.app.chaos_links import Links
from p2pmesh.app.chaos_options import CHAOS_FAULTS, ChaosOptions
from p2pmesh.app.chaos_requests import MOST_REFUSALS, Answer, ask, ask_undisturbed, question, undated
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.cli.parser import build_parser, chaos_options
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

KINDS = tuple(FaultKind)


def test_equal_seeds_give_equal_faults_and_more_of_them_begin_alike() -> None:
    faults = plan_faults(7, KINDS, 10.0, 3, 200)
    assert faults[:50] == plan_faults(7, KINDS, 10.0, 3, 50)
    assert faults != plan_faults(8, KINDS, 10.0, 3, 200)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.lie for fault in faults} == set(Lie)
    assert {fault.stage for fault in faults} == {0, 1, 2}
    gaps = [after.at_s - before.at_s for before, after in pairwise(faults)]
    assert all(8.0 <= gap <= 12.001 for gap in gaps)


def test_the_matrix_is_every_stage_at_every_position_greedy_and_sampled() -> None:
    cases = plan_cases(3, 20, 64)
    assert len(cases) == len(set(cases)) == 3 * 20 * 2
    assert {case.stage for case in cases} == {0, 1, 2}
    assert len({case.position for case in cases}) == 20
    assert (cases[0].position, cases[-1].position < 64) == (0, True)
    for case in cases:
        assert {other.question // 2 for other in cases if other.position == case.position} == {0, 1}


def test_a_dozen_of_the_matrix_is_chosen_by_the_seed() -> None:
    cases = plan_cases(3, 20, 64)
    dozen = choose_cases(cases, 12, 5)
    assert len(dozen) == 12
    assert dozen == choose_cases(cases, 12, 5) != choose_cases(cases, 12, 6)
    assert list(dozen) == [case for case in cases if case in dozen]
    assert choose_cases(cases, 1000, 5) == cases


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


@pytest.mark.parametrize(("status", "text", "told"), [(500, '{"error": "no"}', "failed.*no"), (503, "{}", "refused")])
async def test_nothing_is_compared_with_an_answer_that_failed_by_itself(
    autojump_clock: trio.testing.MockClock, status: int, text: str, told: str
) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=text))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        with pytest.raises(Refused, match=told):
            await ask_undisturbed(client, question(0, "m", 2))


async def test_a_node_is_killed_and_frozen_and_let_go(autojump_clock: trio.testing.MockClock) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE)
    try:
        assert engines_of(process.pid) == ()
        async with trio.open_nursery() as nursery:
            victim, links = Victim("a", process, "", ()), Links(nursery, dict)

            async def strike(kind: FaultKind) -> None:
                await inflict(Fault(0.0, kind, 0), victim, links)

            with trio.move_on_after(1):
                await strike(FaultKind.FREEZE)
            for kind in (FaultKind.FREEZE_ENGINE, FaultKind.SLOW, FaultKind.KILL_ENGINE):
                await strike(kind)
            assert process.poll() is None
            await strike(FaultKind.KILL_NODE)
            assert process.returncode == -9
    finally:
        if process.poll() is None:
            process.kill()


async def test_a_node_that_is_told_to_leave_has_time_to_and_no_longer(autojump_clock: trio.testing.MockClock) -> None:
    deaf = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.receive_some(1)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await inflict(Fault(0.0, FaultKind.LEAVE, 0), Victim("a", process, "", ()), Links(nursery, dict))
    assert process.returncode == -9
    assert trio.current_time() - began >= LEAVES_S


def test_its_options_are_checked() -> None:
    given = chaos_options(build_parser().parse_args(["chaos", "--faults", "freeze,slow", "--spares", "0", "--matrix"]))
    assert (given.faults, given.spares, given.is_matrix) == (("freeze", "slow"), 0, True)
    for wrong in (
        {"faults": ("melt",)},
        {"stages": 0},
        {"tokens": 1},
        {"every_s": 0.5},
        {"peer_memory_bytes": -1},
        {"cases": 0},
    ):
        with pytest.raises(ConfigError):
            ChaosOptions(given.home, **wrong)  # type: ignore[arg-type]


def test_every_fault_has_a_name_to_choose_it_by() -> None:
    assert set(CHAOS_FAULTS) == {kind.value for kind in FaultKind}


async def test_a_peer_is_told_to_lie_and_to_stop(autojump_clock: trio.testing.MockClock) -> None:
    command = [sys.executable, "-c", "import sys; print([line for line in sys.stdin], flush=True)"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with trio.open_nursery() as nursery:
        await inflict(Fault(0.0, FaultKind.LIE, 1, Lie.SHAPE), Victim("a", process, "b", ("b",)), Links(nursery, dict))
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    told = b"".join([bytes(chunk) async for chunk in process.stdout])
    assert told == b"['shape\\n', 'truth\\n']\n"
    await process.wait()


def options(**changed: object) -> ChaosOptions:
    return replace(ChaosOptions(Path("/nowhere")), **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"peer_memory_bytes": 1000}, "does not go on 4 peers of 1000 B in 3 stages"),
        ({"peer_memory_bytes": 0, "spares": 0}, "does not go on 3 peers of 0 B in 3 stages"),
        ({"stages": 9}, "does not go on 10 peers of 4.0 GiB in 9 stages"),
    ],
)
async def test_what_can_never_be_served_is_not_tried(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_llama(TinyShape(layers=6), seed=7))
    model = await open_access(tmp_path).store.resolve(str(path))
    check_fits(model, options())
    with pytest.raises(Refused, match=told) as refusal:
        check_fits(model, options(**changed))
    assert refusal.value.code is ErrorCode.PLACEMENT_REFUSED
    assert "\n" not in refusal.value.message


def test_a_model_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.gguf"):
        run_chaos(options(home=tmp_path, model=str(tmp_path / "nothing.gguf")), io.StringIO())
