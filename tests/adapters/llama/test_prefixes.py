"""Prompts that begin alike: their rows are computed once, and nobody can tell by the tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from p2pmesh.adapters.llama.lanes import LaneTable
from p2pmesh.adapters.llama.launcher import LlamaEngineLauncher
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_SLICE_TOKENS
from p2pmesh.core.prefix_index import PrefixIndex, PrefixPolicy
from p2pmesh.ports.engine import Engine
from p2pmesh.wire.begin import Begin, Prefix, digest_tokens, encode_begin
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame
from tests.adapters.llama.conftest import CUTS
from tests.adapters.llama.dialogue import GREEDY, Dialogue

SHARED = [(7 * index + index // 11) % 250 for index in range(300)]
ROWS = 288
SAMPLED = SamplingParameters(temperature=0.8, seed=5, frequency_penalty=0.3)


def prefix_of(request: int, prompt: Sequence[int], rows: int = ROWS) -> Prefix:
    return Prefix(bytes([request]) * 16, 0, rows, digest_tokens(prompt[:rows]))


async def begin(
    engine: Engine, request: int, prompt: Sequence[int], prefix: Prefix, parameters=GREEDY, continues: int = 0
) -> StageFrame:
    """What the engine says that it holds."""
    earlier = bytes([continues]) * 16 if continues else b""
    body = encode_begin(Begin(parameters, len(prompt), continues=earlier, prefix=prefix))
    await engine.send(Dialogue([engine], request).frame(FrameKind.BEGIN, body=body))
    return await engine.receive()


async def finish(
    engines: Sequence[Engine], request: int, prompt: Sequence[int], start: int, count: int, parameters=GREEDY
) -> list[int]:
    """Tokens of a sequence that has begun, its rows computed from ``start`` on in the chunks of a driver."""
    dialogue = Dialogue(engines, request, parameters)
    position = start
    while position < len(prompt):
        end = min(position - position % PREFILL_CHUNK_TOKENS + PREFILL_CHUNK_TOKENS, len(prompt))
        flags = FrameFlag.SAMPLE if end == len(prompt) else FrameFlag.NONE
        await dialogue.push(dialogue.frame(FrameKind.PREFILL, position, prompt[position:end], flags=flags))
        assert (await dialogue.receive()).position == end
        position = end
    out = list((await dialogue.receive()).tokens)
    while len(out) < count:
        out += await dialogue.decode(len(prompt) + len(out) - 1, [out[-1]])
    return out


async def cold(
    engines: Sequence[Engine], request: int, prompt: Sequence[int], count: int, parameters=GREEDY
) -> list[int]:
    dialogue = Dialogue(engines, request, parameters)
    await dialogue.begin(len(prompt))
    out = await finish(engines, request, prompt, 0, count, parameters)
    await dialogue.end()
    return out


async def warm(
    engines: Sequence[Engine], request: int, prompt: Sequence[int], prefix: Prefix, count: int, parameters=GREEDY
) -> list[int]:
    for engine in engines:
        assert await begin(engine, request, prompt, prefix, parameters) == held(request, prefix.rows)
    out = await finish(engines, request, prompt, prefix.rows, count, parameters)
    await Dialogue(engines, request).end()
    return out


def held(request: int, rows: int) -> StageFrame:
    return StageFrame(FrameKind.HELD, bytes([request]) * 16, b"r" * 16, position=rows, body=memoryview(b""))


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
async def test_tokens_are_the_same_whoever_had_the_prefix_computed(
    launcher: LlamaEngineLauncher, make_spec, family: str, parameters: SamplingParameters
) -> None:
    prompts = [[*SHARED, *range(30, 30 + length)] for length in (1, 37)]
    specs = (make_spec(family, 0, CUTS[family]), make_spec(family, CUTS[family]))
    async with launcher.launch(specs[0]) as first, launcher.launch(specs[1]) as last:
        alone = [await cold([first, last], 1 + index, prompt, 20, parameters) for index, prompt in enumerate(prompts)]
        for engine in (first, last):
            await engine.park()  # the run is over, and what was kept of it
        await cold([first, last], 3, [*SHARED, *range(90, 130)], 5)
        shared = [
            await warm([first, last], 4 + index, prompt, prefix_of(3, prompt), 20, parameters)
            for index, prompt in enumerate(prompts)
        ]
        assert shared == alone


async def test_several_sequences_share_a_prefix_at_once_with_one_that_still_runs(
    launcher: LlamaEngineLauncher, make_spec
) -> None:
    prompts = [[*SHARED, 10 + index] for index in range(3)]
    async with launcher.launch(make_spec(lanes=3)) as engine:
        alone = []
        for index, prompt in enumerate(prompts):
            alone.append(await cold([engine], 1 + index, prompt, 12))
            await engine.park()
        await Dialogue([engine], 4).begin(len(prompts[0]))
        first = await finish([engine], 4, prompts[0], 0, 6)
        for index in (1, 2):
            request = 4 + index
            assert await begin(engine, request, prompts[index], prefix_of(4, SHARED)) == held(request, ROWS)
        others = [await finish([engine], 4 + index, prompts[index], ROWS, 12) for index in (1, 2)]
        while len(first) < 12:
            first += await Dialogue([engine], 4).decode(len(prompts[0]) + len(first) - 1, [first[-1]])
        assert [first, *others] == alone


async def test_without_a_lane_to_spare_the_kept_one_is_taken_over(launcher: LlamaEngineLauncher, make_spec) -> None:
    prompt = [*SHARED, 5, 6]
    async with launcher.launch(make_spec(lanes=1)) as engine:
        alone = await cold([engine], 1, prompt, 9)
        assert await warm([engine], 2, prompt, prefix_of(1, prompt), 9) == alone
        assert await begin(engine, 3, [9, *prompt], prefix_of(1, [9, *prompt])) == held(3, 0)


async def test_one_that_goes_on_has_its_own_rows_or_the_prefix_whichever_is_more(
    launcher: LlamaEngineLauncher, make_spec
) -> None:
    prompt = [*SHARED, 5, 6]
    chunk = prompt[:PREFILL_CHUNK_TOKENS]
    async with launcher.launch(make_spec(lanes=4)) as engine:
        alone = await cold([engine], 1, prompt, 9)
        await Dialogue([engine], 2).begin(len(prompt))
        await Dialogue([engine], 2).push(Dialogue([engine], 2).frame(FrameKind.PREFILL, 0, chunk))
        assert (await engine.receive()).position == len(chunk) < ROWS
        await Dialogue([engine], 3).begin(len(prompt))
        assert await finish([engine], 3, prompt, 0, 4) == alone[:4]
        await engine.park()
        prefix = prefix_of(4, prompt)
        assert await begin(engine, 6, prompt, prefix, continues=3) == held(6, len(prompt) + 3)
        assert await begin(engine, 4, prompt, prefix, continues=2) == held(4, ROWS)
        assert await finish([engine], 4, prompt, ROWS, 9) == alone
        assert await begin(engine, 7, prompt, prefix_of(4, [9, *prompt]), continues=9) == held(7, 0)


async def test_one_that_goes_on_keeps_what_it_has_where_the_prefix_is_not(
    launcher: LlamaEngineLauncher, make_spec
) -> None:
    async with launcher.launch(make_spec()) as engine:
        await Dialogue([engine], 2).begin(len(SHARED))
        await Dialogue([engine], 2).push(Dialogue([engine], 2).frame(FrameKind.PREFILL, 0, SHARED[:96]))
        assert (await engine.receive()).position == 96
        await engine.park()
        assert await begin(engine, 4, SHARED, prefix_of(3, SHARED), continues=2) == held(4, 96)


async def test_only_the_rows_that_are_meant_are_given(launcher: LlamaEngineLauncher, make_spec) -> None:
    prompt = [*SHARED, 5, 6]
    async with launcher.launch(make_spec()) as engine:
        await cold([engine], 1, prompt, 9)
        for request, prefix in enumerate(
            [
                prefix_of(1, [1, *prompt[1:]]),  # other tokens
                prefix_of(9, [1, *prompt[1:]]),  # nobody's
            ],
            start=10,
        ):
            assert await begin(engine, request, prompt, prefix) == held(request, 0)
            await Dialogue([engine], request).end()
        longer = [*prompt, *range(100)]  # what decoding wrote is not kept, nor a call that was not whole
        assert await begin(engine, 20, longer, prefix_of(1, longer, 336)) == held(20, 0)


async def test_rows_are_found_by_their_tokens_whoever_has_them_by_now(launcher: LlamaEngineLauncher, make_spec) -> None:
    prompt = [*SHARED, 5, 6]
    async with launcher.launch(make_spec(lanes=2)) as engine:
        alone = await cold([engine], 1, prompt, 9)
        for request in (2, 3):  # 2 shares with 1, 3 takes its lane over
            assert await begin(engine, request, prompt, prefix_of(1, prompt)) == held(request, ROWS)
            assert await finish([engine], request, prompt, ROWS, 9) == alone
        await Dialogue([engine], 2).end()
        assert await warm([engine], 4, prompt, prefix_of(1, prompt), 9) == alone


async def test_another_run_finds_nothing(launcher: LlamaEngineLauncher, make_spec) -> None:
    async with launcher.launch(make_spec()) as engine:
        await cold([engine], 1, [*SHARED, 5], 2)
        await engine.park()
        assert await begin(engine, 2, [*SHARED, 5], prefix_of(1, SHARED)) == held(2, 0)


async def test_what_is_kept_gives_way_to_what_runs(launcher: LlamaEngineLauncher, make_spec) -> None:
    prompts = [[index, *SHARED] for index in range(4)]
    async with launcher.launch(make_spec(lanes=2, context_tokens=600)) as engine:
        for index, prompt in enumerate(prompts[:2]):
            await cold([engine], 1 + index, prompt, 2)
        assert len(await cold([engine], 3, prompts[2], 2)) == 2  # the first one's lane
        assert await begin(engine, 4, prompts[0], prefix_of(1, prompts[0])) == held(4, 0)


LANES = 3
POLICY = PrefixPolicy(grid_tokens=2, least_tokens=2, most_sequences=LANES, most_tokens=16)
KEYS = st.builds(lambda number: (bytes([number]), 0), st.integers(0, 5))


class AnyOrder(RuleBasedStateMachine):
    """Whatever sequences do: no lane is lost, and none is two sequences'."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LaneTable(LANES, PrefixIndex(POLICY))

    @rule(key=KEYS, prompt=st.lists(st.integers(0, 1), max_size=9))
    def begin(self, key: tuple[bytes, int], prompt: list[int]) -> None:
        if self.table.find(key) is None and (lane := self.table.take(key, Begin(GREEDY, 6))) is not None:
            lane.history += prompt

    @rule(key=KEYS)
    def finish(self, key: tuple[bytes, int]) -> None:
        self.table.finish(key)
        assert self.table.find(key) is None

    @rule(key=KEYS)
    def release(self, key: tuple[bytes, int]) -> None:
        self.table.release(key)

    @rule(key=KEYS, source=KEYS)
    def take_over(self, key: tuple[bytes, int], source: tuple[bytes, int]) -> None:
        if self.table.find(key) is None:
            self.table.find_source(Prefix(*source, 48, bytes(16)))
            self.table.take_over(source, key, Begin(GREEDY, 6))

    @rule()
    def free_one(self) -> None:
        self.table.free_oldest_kept()

    def teardown(self) -> None:
        while self.table.free_oldest_kept() is not None:
            pass
        for number in range(6):
            self.table.release((bytes([number]), 0))
        taken = [self.table.take((bytes([number]), 9), Begin(GREEDY, 6)) for number in range(LANES)]
        assert sorted(lane.index for lane in taken if lane is not None) == list(range(LANES))


TestAnyOrder = AnyOrder.TestCase


def test_the_grid_divides_the_chunk() -> None:
    assert PREFILL_CHUNK_TOKENS % PREFILL_SLICE_TOKENS == 0
