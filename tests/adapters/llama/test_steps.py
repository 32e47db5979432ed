"""Steps of a loaded model in this process: what a call holds besides changes no bit of a sequence."""

import pytest

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from p2pmesh.adapters.llama.steps import StageShape, Stepper
from p2pmesh.adapters.llama.width import measure_widths
from p2pmesh.core.batching import Call, CallKind
from p2pmesh.model.cost import SPARE_CELLS, SPARE_SEQUENCES
from p2pmesh.wire.begin import Begin, encode_begin
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, WireDtype
from p2pmesh.wire.token_report import decode_reports

LANES, CONTEXT, STEPS = 4, 256, 8
RUN = b"r" * 16
PROMPTS = [[3 + (index * (37 + lane)) % 350 for index in range(30)] for lane in range(3)]
GREEDY = SamplingParameters(temperature=0.0)


@pytest.fixture(scope="module")
def stepper(stage_folder):
    """Of the whole tiny model, as an engine process makes it."""
    cells = CONTEXT * LANES + SPARE_CELLS
    path = str(stage_folder / "llama.gguf")
    stage = LoadedStage(LoadOptions(path, True, True, LANES + SPARE_SEQUENCES, cells, 2, False))
    shape = StageShape(True, True, stage.hidden_size, stage.vocabulary_size, CONTEXT, LANES, WireDtype.F32)
    widths = measure_widths(stage, shape)
    assert widths.exact_width >= len(PROMPTS)
    yield Stepper(stage, shape, widths)
    stage.close()


def frame(kind, lane, position=0, tokens=(), **more):
    return StageFrame(kind, bytes([lane]) * 16, RUN, 0, position, tuple(tokens), **more)


def token_of(frames):
    """The last frame's token, and what was told of the likeliest, to the bit."""
    answer = frames[-1]
    assert answer.kind is FrameKind.TOKEN, bytes(answer.body)
    return answer.tokens[0], decode_reports(answer.body, 1, 5)


def begin(stepper, lane, prompt):
    """A sequence up to its first token."""
    assert stepper.begin(frame(FrameKind.BEGIN, lane, body=encode_begin(Begin(GREEDY, len(prompt), 5)))) == []
    rows = frame(FrameKind.PREFILL, lane, 0, prompt, flags=FrameFlag.SAMPLE)
    return token_of(stepper.run(Call(CallKind.PREFILL, (rows,))))


def test_several_sequences_in_one_call_have_the_bits_of_each_alone(stepper):
    alone = []
    for lane, prompt in enumerate(PROMPTS):
        told = [begin(stepper, lane, prompt)]
        for step in range(STEPS):
            rows = frame(FrameKind.DECODE, lane, len(prompt) + step, (told[-1][0],))
            told.append(token_of(stepper.run(Call(CallKind.DECODE, (rows,)))))
        alone.append(told)
        stepper.release((bytes([lane]) * 16, 0))
    together = [[begin(stepper, 10 + lane, prompt)] for lane, prompt in enumerate(PROMPTS)]
    for step in range(STEPS):
        rows = tuple(
            frame(FrameKind.DECODE, 10 + lane, len(PROMPTS[lane]) + step, (told[-1][0],))
            for lane, told in enumerate(together)
        )
        answers = stepper.run(Call(CallKind.DECODE, rows))
        for told, answer in zip(together, answers, strict=True):
            told.append(token_of([answer]))
    assert together == alone
