"""Tiny models of many architectures through real engines: two stages give the tokens of one."""

import subprocess
import sys
from pathlib import Path

import pytest

from p2pmesh.adapters.llama.tiny_variants import VARIANTS, layer_count
from p2pmesh.adapters.model_files import FileSource
from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.family_verdicts import verdict_of
from p2pmesh.model.gguf import read_index
from p2pmesh.model.stage_file import Copy, Literal, plan_stage_file
from p2pmesh.ports.engine import EngineSpec
from p2pmesh.wire.stage import FrameKind, WireDtype, decode_error
from tests.adapters.llama.dialogue import Dialogue

PROMPT = [3 + (index * 37) % 120 for index in range(150)]
STATEFUL = ["falcon-h1", "mamba2", "qwen3next", "granitehybrid", "rwkv7", "arwkv7"]
PLAIN = ["gemma2", "phi3", "llama", "qwen2", "qwen3", "gemma3", "olmo2", "qwen3moe"]
SAMPLE = 2
"""So many of them run with every change; the rest are for CI."""
REPEATED = ["talkie", "cogvlm"]
TAPPED = ["gpt2", "bloom", "glm4moe", "gpt-oss", "deepseek2", "cohere2"]
WRITER = """
import sys
from pathlib import Path
from p2pmesh.adapters.llama.tiny_models import write_tiny_model
from p2pmesh.adapters.llama.tiny_variants import VARIANTS, tiny_metadata
variant = next(item for item in VARIANTS if item.architecture == sys.argv[1])
write_tiny_model(tiny_metadata(variant), Path(sys.argv[2]))
"""


def _write_stage(model: Path, layers: LayerRange, path: Path) -> None:
    data = model.read_bytes()
    with FileSource(model) as source:
        plan = plan_stage_file(read_index(source), layers)
    parts: list[bytes] = []
    for segment in plan.segments:
        if isinstance(segment, Literal):
            parts.append(segment.data)
        elif isinstance(segment, Copy):
            parts.append(data[segment.span.offset : segment.span.offset + segment.span.size_bytes])
        else:
            parts.append(bytes(segment.size_bytes))
    path.write_bytes(b"".join(parts))


@pytest.fixture
def make_specs(tmp_path: Path):
    """Specs of the whole tiny model and of its two halves."""

    def make(architecture: str, lanes: int = 2) -> list[EngineSpec]:
        variant = next(item for item in VARIANTS if item.architecture == architecture)
        count = layer_count(variant)
        model = tmp_path / "model.gguf"
        subprocess.run([sys.executable, "-c", WRITER, architecture, str(model)], check=True, timeout=60)
        specs = []
        for start, end in ((0, count), (0, count // 2), (count // 2, count)):
            path = tmp_path / f"{start}-{end}.gguf" if end - start < count else model
            if path != model:
                _write_stage(model, LayerRange(start, end), path)
            digest = (f"{architecture}-{start}-{end}".encode().hex() + "0" * 64)[:64]
            specs.append(EngineSpec(str(path), digest, LayerRange(start, end), count, 384, lanes, WireDtype.F32))
        return specs

    return make


async def _check_split(launcher, specs: list[EngineSpec]) -> None:
    whole_spec, first_spec, last_spec = specs
    async with launcher.launch(whole_spec) as whole:
        expected = await Dialogue([whole]).generate(PROMPT, 24)
    async with launcher.launch(first_spec) as first, launcher.launch(last_spec) as last:
        assert await Dialogue([first, last]).generate(PROMPT, 24) == expected
        assert await Dialogue([first, last], 2).generate(PROMPT[:70], 4)
        assert await Dialogue([first, last], 3).generate(PROMPT, 24) == expected


@pytest.mark.parametrize(
    "architecture", [*PLAIN[:SAMPLE], *(pytest.param(name, marks=pytest.mark.slow) for name in PLAIN[SAMPLE:])]
)
async def test_two_engines_give_the_tokens_of_one(launcher, make_specs, architecture):
    verdict = verdict_of(architecture)
    assert verdict is not None
    assert verdict.is_served
    await _check_split(launcher, make_specs(architecture))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TAPPED)
async def test_rows_written_over_a_tensor_and_rotated_by_sections_give_the_tokens_of_one(
    launcher, make_specs, architecture
):
    await _check_split(launcher, make_specs(architecture))


async def test_a_stage_that_computes_the_first_layer_again_gives_the_tokens_of_one(launcher, make_specs):
    await _check_split(launcher, make_specs("rwkv7"))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", REPEATED)
async def test_the_first_layer_may_attend_where_it_is_computed_again(launcher, make_specs, architecture):
    await _check_split(launcher, make_specs(architecture))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", STATEFUL)
async def test_families_with_a_state_split_and_bear_neighbours(launcher, make_specs, architecture):
    specs = make_specs(architecture)
    await _check_split(launcher, specs)
    async with launcher.launch(specs[0]) as engine:
        alone = await Dialogue([engine], 1).generate(PROMPT, 12)
        other, mine = Dialogue([engine], 2), Dialogue([engine], 1)
        await other.begin(100)
        await other.prefill([9] * 100)
        await mine.begin(len(PROMPT))
        out = [await mine.prefill(PROMPT)]
        for step in range(11):
            await engine.send(other.frame(FrameKind.DECODE, 100 + step, [7]))
            await engine.send(mine.frame(FrameKind.DECODE, len(PROMPT) + step, [out[-1]]))
            answers = {frame.request_id[0]: frame for frame in (await engine.receive(), await engine.receive())}
            out += answers[1].tokens
        assert out == alone
        await mine.end()
        for request in range(4, 9):  # until what they leave behind makes the engine write its cache anew
            assert await Dialogue([engine], request).generate(PROMPT, 12) == alone


async def test_a_state_rolls_back_to_nothing_but_the_start(launcher, make_specs):
    async with launcher.launch(make_specs("mamba2")[0]) as engine:
        dialogue = Dialogue([engine], 1)
        await dialogue.begin(40)
        first = await dialogue.prefill(PROMPT[:40])
        assert await dialogue.prefill(PROMPT[:40]) == first
        await dialogue.push(dialogue.frame(FrameKind.DECODE, 20, [5]))
        answer = await dialogue.receive()
        assert answer.kind is FrameKind.ERROR
        assert decode_error(answer)[0] is ErrorCode.CANNOT_ROLLBACK
