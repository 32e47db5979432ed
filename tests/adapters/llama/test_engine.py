"""Real engine children on tiny models."""

import json
import subprocess
import sys

import numpy as np
import pytest
import trio

from p2pmesh.adapters.llama.channel import Channel
from p2pmesh.adapters.llama.devices import list_devices
from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.base.errors import EngineError, ErrorCode, Refused
from p2pmesh.base.limits import MAX_LANES
from p2pmesh.core.devices import DeviceChoice
from p2pmesh.wire.activation import row_bytes
from p2pmesh.wire.dtype import LOSSY_DTYPES
from p2pmesh.wire.generation import ChatMessage, SamplingParameters
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, WireDtype, decode_error
from p2pmesh.wire.token_report import decode_reports
from tests.adapters.llama.conftest import CUTS, LAYERS
from tests.adapters.llama.dialogue import GREEDY, Dialogue

PROMPT = [3 + (index * 37) % 350 for index in range(150)]
SAMPLED = SamplingParameters(temperature=0.9, top_k=40, seed=5, frequency_penalty=0.3)


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
async def test_two_stages_give_the_tokens_of_one(launcher, make_spec, family, parameters):
    cut = CUTS[family]
    async with (
        launcher.launch(make_spec(family)) as whole,
        launcher.launch(make_spec(family, 0, cut)) as first,
        launcher.launch(make_spec(family, cut, LAYERS[family])) as last,
    ):
        expected = await Dialogue([whole], parameters=parameters).generate(PROMPT, 24)
        assert await Dialogue([first, last], parameters=parameters).generate(PROMPT, 24) == expected
        assert whole.facts.exact_width >= 2
        assert whole.facts.kv_bytes > 0
        assert min(engine.facts.decode_us for engine in (whole, first, last)) > 0
        assert min(engine.facts.prefill_us for engine in (whole, first, last)) > 0
        assert whole.facts.fingerprint == first.facts.fingerprint == last.facts.fingerprint
        assert len(set(expected)) > 1


@pytest.mark.parametrize("dtype", [WireDtype.F32, *LOSSY_DTYPES], ids=lambda dtype: dtype.label)
async def test_activations_travel_as_asked(launcher, make_spec, dtype):
    async with launcher.launch(make_spec("llama", 0, 2, wire_dtype=dtype)) as first:
        dialogue = Dialogue([first])
        await dialogue.begin(3)
        await first.send(dialogue.frame(FrameKind.PREFILL, 0, [5, 6, 7]))
        frame = await first.receive()
        assert (frame.kind, frame.dtype, frame.tokens) == (FrameKind.PREFILL, dtype, (5, 6, 7))
        assert len(frame.body) == 3 * row_bytes(dtype, first.facts.hidden_size)


async def told(engines, tokens, top_logprobs):
    """Reports of each token of an answer, given all but the last of them."""
    dialogue = Dialogue(engines, 3)
    await dialogue.begin(len(PROMPT), top_logprobs)
    await dialogue.push(dialogue.frame(FrameKind.PREFILL, 0, PROMPT, flags=FrameFlag.SAMPLE))
    answers = [await dialogue.receive(), await dialogue.receive()][1:]
    await dialogue.push(dialogue.frame(FrameKind.DECODE, len(PROMPT), tokens[:-1]))
    answers.append(await dialogue.receive())
    await dialogue.end()
    return [one for frame in answers for one in decode_reports(frame.body, len(frame.tokens), top_logprobs)]


async def test_log_probabilities_are_the_same_whole_and_cut_and_of_the_model_alone(launcher, make_spec):
    async with (
        launcher.launch(make_spec()) as whole,
        launcher.launch(make_spec("llama", 0, 2)) as first,
        launcher.launch(make_spec("llama", 2, 4)) as last,
    ):
        tokens = await Dialogue([whole]).generate(PROMPT, 6)
        reports = await told([whole], tokens, 5)
        assert [report.top[0][0] for report in reports] == tokens
        assert all(report.logprob == report.top[0][1] > report.top[1][1] for report in reports)
        assert all(len(report.top) == 5 for report in reports)
        assert await told([first, last], tokens, 5) == reports
        assert [report.top for report in await told([whole], tokens, 0)] == [()] * 6


async def read(engines, prompt):
    """The vector of a prompt."""
    dialogue = Dialogue(engines, 9)
    await dialogue.begin(len(prompt), wants_embedding=True)
    for start in range(0, len(prompt), 64):
        flags = FrameFlag.SAMPLE if start + 64 >= len(prompt) else FrameFlag.NONE
        await dialogue.push(dialogue.frame(FrameKind.PREFILL, start, prompt[start : start + 64], flags=flags))
        assert (await dialogue.receive()).kind is FrameKind.CREDIT
    answer = await dialogue.receive()
    assert (answer.kind, len(answer.tokens)) == (FrameKind.TOKEN, 1), bytes(answer.body)
    await dialogue.end()
    return np.frombuffer(answer.body, "<f4")


async def test_a_prompt_is_read_the_same_whole_and_cut_and_leaves_what_follows_as_it_was(launcher, make_spec):
    async with (
        launcher.launch(make_spec()) as whole,
        launcher.launch(make_spec("llama", 0, 2)) as first,
        launcher.launch(make_spec("llama", 2, 4)) as last,
    ):
        before = await Dialogue([whole]).generate(PROMPT, 8)
        vector = await read([whole], PROMPT)
        assert len(vector) == whole.facts.hidden_size
        assert np.array_equal(await read([first, last], PROMPT), vector)
        assert np.array_equal(await read([whole], PROMPT), vector)
        assert not np.array_equal(await read([whole], PROMPT[:-1]), vector)
        assert await Dialogue([whole], 2).generate(PROMPT, 8) == before


async def test_a_bias_forbids_a_token(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        first = (await Dialogue([engine]).generate(PROMPT, 1))[0]
        biased = SamplingParameters(temperature=0.0, logit_bias=((first, -100.0),))
        assert (await Dialogue([engine], 2, biased).generate(PROMPT, 1))[0] != first


async def test_a_neighbour_changes_nothing(launcher, make_spec):
    async with launcher.launch(make_spec(context_tokens=600)) as engine:
        alone = await Dialogue([engine], 1).generate(PROMPT, 30)
        other, mine = Dialogue([engine], 2), Dialogue([engine], 1)
        await other.begin(200)
        await other.prefill([9] * 200)
        await mine.begin(len(PROMPT))
        out = [await mine.prefill(PROMPT)]
        for step in range(29):
            await engine.send(other.frame(FrameKind.DECODE, 200 + step, [7]))
            await engine.send(mine.frame(FrameKind.DECODE, len(PROMPT) + step, [out[-1]]))
            answers = {frame.request_id[0]: frame for frame in (await engine.receive(), await engine.receive())}
            out += answers[1].tokens
        assert out == alone


async def test_a_rollback_and_a_wide_replay_give_the_same_tokens(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        tokens = await Dialogue([engine]).generate(PROMPT, 20)
        again = Dialogue([engine], 2)
        await again.begin(len(PROMPT))
        await again.prefill(PROMPT)
        assert list(await again.decode(len(PROMPT), tokens[:19])) == tokens[1:]
        assert list(await again.decode(len(PROMPT) + 5, tokens[5:8])) == tokens[6:9]
        assert list(await again.decode(len(PROMPT), tokens[:1])) == tokens[1:2]


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED])
async def test_a_replay_computes_without_sampling_and_leaves_what_decoding_left(launcher, make_spec, parameters):
    async with launcher.launch(make_spec("llama", 0, 2)) as first, launcher.launch(make_spec("llama", 2, 4)) as last:
        tokens = await Dialogue([first, last], parameters=parameters).generate(PROMPT, 40)
        for given in (1, 2, 18, 35):
            again = Dialogue([first, last], 2, parameters)
            await again.begin(len(PROMPT))
            await again.prefill(PROMPT)
            for start in range(0, given - 1, 16):
                rows = tokens[start : min(start + 16, given - 1)]
                at = len(PROMPT) + start
                await again.push(again.frame(FrameKind.DECODE, at, rows, flags=FrameFlag.REPLAY))
                credit = await again.receive()
                assert (credit.kind, credit.position, credit.tokens) == (FrameKind.CREDIT, at + len(rows), ())
            out = list(tokens[:given])
            while len(out) < len(tokens):
                out += await again.decode(len(PROMPT) + len(out) - 1, [out[-1]])
            await again.end()
            assert out == tokens


async def test_a_replay_beside_a_step_leaves_both_as_they_are(launcher, make_spec):
    async with launcher.launch(make_spec(context_tokens=600)) as engine:
        alone = await Dialogue([engine], 1).generate(PROMPT, 12)
        mine, other = Dialogue([engine], 1), Dialogue([engine], 2)
        for dialogue in (mine, other):
            await dialogue.begin(len(PROMPT))
            assert await dialogue.prefill(PROMPT) == alone[0]
        for step in range(11):
            at = len(PROMPT) + step
            await engine.send(other.frame(FrameKind.DECODE, at, [alone[step]], flags=FrameFlag.REPLAY))
            await engine.send(mine.frame(FrameKind.DECODE, at, [alone[step]]))
            answers = {frame.request_id[0]: frame for frame in (await engine.receive(), await engine.receive())}
            assert answers[1].tokens == (alone[step + 1],)
            assert answers[2].kind is FrameKind.CREDIT
        assert await other.decode(len(PROMPT) + 10, [alone[10]]) == (alone[11],)


async def _refusal(dialogue: Dialogue, frame: StageFrame) -> ErrorCode:
    await dialogue.push(frame)
    answer = await dialogue.receive()
    assert answer.kind is FrameKind.ERROR
    return decode_error(answer)[0]


async def test_bad_rows_end_their_sequence_only(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        size = engine.facts.vocabulary_size
        bad = {
            ErrorCode.FRAME_POSITION_INVALID: (FrameKind.DECODE, 5, [1]),
            ErrorCode.FRAME_VALUE_INVALID: (FrameKind.DECODE, 0, [size]),
            ErrorCode.CONTEXT_LENGTH_EXCEEDED: (FrameKind.PREFILL, 0, [1] * 385),
        }
        for code, (kind, position, tokens) in bad.items():
            dialogue = Dialogue([engine], 10 + len(code))
            await dialogue.begin(1)
            assert await _refusal(dialogue, dialogue.frame(kind, position, tokens)) is code
        stranger = Dialogue([engine], 99)
        assert await _refusal(stranger, stranger.frame(FrameKind.DECODE, 0, [1])) is ErrorCode.FRAME_UNEXPECTED
        assert len(await Dialogue([engine]).generate(PROMPT, 3)) == 3


async def test_a_later_stage_refuses_rows_of_another_width(launcher, make_spec):
    async with launcher.launch(make_spec("llama", 2, 4)) as last:
        for body, hidden, dtype, code in (
            (b"", 0, WireDtype.NONE, ErrorCode.FRAME_DTYPE_INVALID),
            (bytes(2 * 64), 64, WireDtype.F16, ErrorCode.FRAME_DTYPE_INVALID),
            (bytes(4 * 32), 32, WireDtype.F32, ErrorCode.FRAME_COUNT_INVALID),
            (b"\x00\x00\xc0\x7f" * 64, 64, WireDtype.F32, ErrorCode.FRAME_VALUE_INVALID),
        ):
            dialogue = Dialogue([last], 20 + hidden + dtype)
            await dialogue.begin(1)
            frame = dialogue.frame(FrameKind.DECODE, 0, [1], hidden_size=hidden, dtype=dtype, body=body)
            assert await _refusal(dialogue, frame) is code


async def test_lanes_are_bounded_and_cancel_frees_one(launcher, make_spec):
    async with launcher.launch(make_spec(lanes=2)) as engine:
        first, second, third = (Dialogue([engine], number) for number in (1, 2, 3))
        for dialogue in (first, second, third):
            await dialogue.begin(5)
        answer = await engine.receive()
        assert (answer.request_id, decode_error(answer)[0]) == (b"\x03" * 16, ErrorCode.OVERLOADED)
        await first.end(FrameKind.CANCEL)
        late = Dialogue([engine], 4)
        assert len(await late.generate(PROMPT[:20], 4)) == 4


@pytest.mark.parametrize("end", [2, 4], ids=["first", "whole"])
async def test_the_highest_number_of_lanes_loads_and_all_run_together(launcher, make_spec, end):
    async with launcher.launch(make_spec("llama", 0, end, lanes=MAX_LANES, context_tokens=64)) as engine:
        dialogues = [Dialogue([engine], number) for number in range(1, MAX_LANES + 1)]
        for dialogue in dialogues:
            await dialogue.begin(3)
        for dialogue in dialogues:
            await engine.send(dialogue.frame(FrameKind.DECODE, 0, [7]))
        answers = [await engine.receive() for _ in dialogues]
        assert {answer.kind for answer in answers} == {FrameKind.DECODE if end == 2 else FrameKind.TOKEN}
        assert len({answer.request_id for answer in answers}) == MAX_LANES
        assert len({(answer.tokens, bytes(answer.body)) for answer in answers}) == 1


async def test_what_comes_after_a_cancel_is_dropped_silently(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        gone = Dialogue([engine], 1)
        await gone.begin(5)
        await gone.end(FrameKind.CANCEL)
        await gone.push(gone.frame(FrameKind.PREFILL, 0, [1, 2, 3]))
        assert len(await Dialogue([engine], 2).generate(PROMPT[:20], 2)) == 2


async def test_text(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        tokens = await engine.tokenize("the end", add_special=True, parse_special=False)
        pieces = await engine.pieces()
        assert tokens[0] == engine.facts.beginning_token
        assert b"".join(pieces[token] for token in tokens).strip() == b"the end"
        assert len(pieces) == engine.facts.vocabulary_size
        assert all(pieces[token] == b"" for token in engine.facts.end_tokens)
        chat = await engine.render_chat((ChatMessage("user", "hi"),))
        assert chat == "[user]hi\n[assistant]"


async def test_a_middle_or_last_stage_without_vocabulary_says_so(launcher, make_spec):
    async with launcher.launch(make_spec("llama", 0, 2)) as first:
        assert (await first.tokenize("a", add_special=False, parse_special=False)) != ()
        with pytest.raises(Refused):
            await first._call("unheard_of", {})


async def test_a_file_that_is_no_stage_fails_to_load(launcher, make_spec, tmp_path):
    spec = make_spec()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError) as caught:
        async with launcher.launch(type(spec)(str(broken), "0" * 64, spec.layers, 4, 64, 1, WireDtype.F32)):
            pass
    assert caught.value.code is ErrorCode.ENGINE_LOAD_FAILED
    assert "\n" not in caught.value.message


async def test_a_file_of_other_layers_fails_to_load(launcher, make_spec):
    spec = make_spec()
    with pytest.raises(EngineError, match="holds 4 layers, not 3") as caught:
        async with launcher.launch(
            type(spec)(spec.artifact_path, "1" * 64, type(spec.layers)(0, 3), 4, 64, 1, WireDtype.F32)
        ):
            pass
    assert caught.value.code is ErrorCode.ENGINE_LOAD_FAILED


async def test_leaving_the_scope_ends_the_child_even_when_cancelled(launcher, make_spec):
    with trio.CancelScope() as scope:
        async with launcher.launch(make_spec()) as engine:
            process = engine._child.process
            scope.cancel()
            await trio.sleep_forever()
    assert process.returncode is not None


def test_the_child_needs_neither_trio_nor_libp2p():
    code = (
        "import sys, json; import p2pmesh.adapters.llama.child; "
        "print(json.dumps([name for name in ('trio', 'libp2p', 'anyio', 'asyncio') if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert json.loads(answer.stdout) == []
    assert Channel.__module__ in sys.modules


async def test_layers_given_to_a_device_that_ggml_finds_run_there_under_another_fingerprint(
    launcher, make_spec, cache_folder
):
    """The only device that every machine has is the processor: it stands for one that takes layers."""
    [processor] = [device for device in list_devices().devices if device.type == "cpu"]
    options = LauncherOptions(str(cache_folder), DeviceChoice((processor,), 2), is_probing=False)
    async with launcher.launch(make_spec()) as plain, LlamaEngineLauncher(options).launch(make_spec()) as given:
        expected = await Dialogue([plain]).generate(PROMPT, 8)
        assert await Dialogue([given]).generate(PROMPT, 8) == expected
        assert given.facts.fingerprint != plain.facts.fingerprint
