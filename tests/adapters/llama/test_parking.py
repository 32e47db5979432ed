"""Sequences whose run is over: their rows stay, go to whom they are meant for, and stand in nobody's way."""

from collections.abc import Sequence

import pytest

from p2pmesh.adapters.llama.lanes import LaneTable
from p2pmesh.adapters.llama.launcher import LlamaEngineLauncher
from p2pmesh.base.errors import ErrorCode
from p2pmesh.ports.engine import Engine
from p2pmesh.wire.begin import Begin, encode_begin
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, decode_error
from tests.adapters.llama.conftest import CUTS
from tests.adapters.llama.dialogue import GREEDY, Dialogue

PROMPT = [(7 * index) % 250 for index in range(150)]
SAMPLED = SamplingParameters(temperature=0.8, seed=5, frequency_penalty=0.3)
CHUNK = 64


async def begin(engine: Engine, request: int, continues: int | None = None, parameters=GREEDY) -> StageFrame | None:
    """What the engine answers, if it must."""
    dialogue = Dialogue([engine], request, parameters)
    body = encode_begin(Begin(parameters, len(PROMPT), continues=bytes([continues]) * 16 if continues else b""))
    await engine.send(dialogue.frame(FrameKind.BEGIN, body=body))
    return await engine.receive() if continues else None


async def replay(engine: Engine, dialogue: Dialogue, tokens: Sequence[int]) -> None:
    """Prompt and history through one engine, which sends nothing on."""
    frames = [
        dialogue.frame(FrameKind.PREFILL, start, PROMPT[start : start + CHUNK], stages=1)
        for start in range(0, len(PROMPT), CHUNK)
    ]
    frames += [
        dialogue.frame(
            FrameKind.DECODE, len(PROMPT) + start, tokens[start : start + 16], flags=FrameFlag.REPLAY, stages=1
        )
        for start in range(0, len(tokens), 16)
    ]
    for frame in frames:
        await engine.send(frame)
        credit = await engine.receive()
        assert (credit.kind, credit.position) == (FrameKind.CREDIT, frame.position + len(frame.tokens))


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
async def test_a_stage_after_the_lost_one_goes_on_from_what_it_held(
    launcher: LlamaEngineLauncher, make_spec, family: str, parameters: SamplingParameters
) -> None:
    first_spec = make_spec(family, 0, CUTS[family])
    async with launcher.launch(first_spec) as first, launcher.launch(make_spec(family, CUTS[family])) as last:
        undisturbed = await Dialogue([first, last], 1, parameters).generate(PROMPT, 60)
        lost = Dialogue([first, last], 2, parameters)
        await lost.begin(len(PROMPT))
        given = [await lost.prefill(PROMPT, CHUNK)]
        for at in range(39):
            given += await lost.decode(len(PROMPT) + at, [given[-1]])
        assert given == undisturbed[:40]
        await last.park()
        async with launcher.launch(first_spec) as replaced:
            assert await begin(replaced, 3, 2, parameters) == held(3, 0)
            assert await begin(last, 3, 2, parameters) == held(3, len(PROMPT) + 39)
            again = Dialogue([replaced, last], 3, parameters)
            await replay(replaced, again, given[:-1])
            while len(given) < 60:
                given += await again.decode(len(PROMPT) + len(given) - 1, [given[-1]])
        assert given == undisturbed


def held(request: int, rows: int) -> StageFrame:
    return StageFrame(FrameKind.HELD, bytes([request]) * 16, b"r" * 16, position=rows, body=memoryview(b""))


async def test_parked_sequences_give_way_to_those_that_are_served(launcher: LlamaEngineLauncher, make_spec) -> None:
    async with launcher.launch(make_spec()) as engine:
        for request in (1, 2):
            dialogue = Dialogue([engine], request)
            await dialogue.begin(len(PROMPT))
            await dialogue.prefill(PROMPT, CHUNK)
        await engine.park()
        assert len(await Dialogue([engine], 3).generate(PROMPT, 3)) == 3
        assert await begin(engine, 4, 2) == held(4, len(PROMPT))
        assert await begin(engine, 5, 1) == held(5, 0)
        await begin(engine, 6)
        code, _ = decode_error(await engine.receive())
        assert code is ErrorCode.OVERLOADED


async def test_what_is_served_or_was_cancelled_is_nobody_elses(launcher: LlamaEngineLauncher, make_spec) -> None:
    async with launcher.launch(make_spec()) as engine:
        dialogue = Dialogue([engine], 1)
        await dialogue.begin(len(PROMPT))
        await dialogue.prefill(PROMPT, CHUNK)
        assert await begin(engine, 2, 1) == held(2, 0)
        await dialogue.end(FrameKind.CANCEL)
        await engine.park()
        assert await begin(engine, 3, 1) == held(3, 0)


def test_a_parked_lane_is_found_by_whom_it_is_meant_for_and_by_nobody_else() -> None:
    table, made = LaneTable(2), Begin(GREEDY, 3)
    one, two = (b"1" * 16, 0), (b"2" * 16, 0)
    lane = table.take(one, made)
    assert lane is not None
    lane.history += [1, 2, 3]
    table.take(two, made)
    table.park()
    assert (len(table), table.find(one), table.has_ended(one), table.oldest_parked()) == (0, None, True, one)
    assert table.adopt((b"3" * 16, 0), (b"4" * 16, 0), made) is None
    assert table.adopt(one, (b"4" * 16, 0), made) is lane
    assert (table.find((b"4" * 16, 0)), lane.history, len(table)) == (lane, [1, 2, 3], 1)
    assert table.adopt(one, (b"5" * 16, 0), made) is None
    assert table.take((b"5" * 16, 0), made) is None
    table.unpark(two)
    assert table.oldest_parked() is None
    assert table.take((b"5" * 16, 0), made) is not None
