"""What a stage may tell the client of a request."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.core.generation import GenerationMachine, GenerationPolicy
from p2pmesh.core.text import TextAssembler
from p2pmesh.node.sequences import (
    EVENT_CAPACITY,
    GENERATION_CODES,
    OUTPUT_CAPACITY,
    READER_PATIENCE_S,
    Sequence,
    SequenceStart,
)
from p2pmesh.wire.generation import GenerationRequest, Prompt
from p2pmesh.wire.stage import FrameKind, StageFrame, error_frame
from tests.fakes.mesh import GREEDY, MockedClock


async def ended_by(code: ErrorCode, text: str) -> Refused:
    """How a sequence ends whose last stage answers its first frame with an error."""
    request = GenerationRequest(bytes(16), "fake", Prompt(tokens=(1,)), GREEDY)
    policy = GenerationPolicy(chunk_tokens=8, credits=1, context_tokens=16)
    machine = GenerationMachine((1,), None, frozenset(), TextAssembler([b"a"]), policy)

    async def answer(frame: StageFrame) -> None:
        await sequence.deliver(error_frame(frame, code, text))

    sequence = Sequence(SequenceStart(request, bytes(16), (1,)), machine, answer, MockedClock())
    await sequence.run()
    with pytest.raises(Refused) as raised:
        _ = [event async for event in sequence.events()]
    return raised.value


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_a_stage_ends_a_generation_by_a_generations_codes_only(
    autojump_clock: MockClock, code: ErrorCode
) -> None:
    error = await ended_by(code, "what went wrong")
    assert error.code is (code if code in GENERATION_CODES else ErrorCode.INTERNAL)
    assert error.message == "what went wrong"


@pytest.mark.parametrize(("body", "is_broken"), [(bytes(8), False), (bytes(4), True), (b"\xff" * 8, False)])
async def test_a_run_ends_whose_last_stage_gives_no_embedding(
    autojump_clock: MockClock, body: bytes, *, is_broken: bool
) -> None:
    request = GenerationRequest(bytes(16), "fake", Prompt(tokens=(1,)), GREEDY, max_tokens=1, wants_embedding=True)
    policy = GenerationPolicy(chunk_tokens=8, credits=1, context_tokens=16)
    machine = GenerationMachine((1,), 1, frozenset(), TextAssembler([b"a"]), policy)
    broken: list[P2PMeshError] = []

    async def answer(frame: StageFrame) -> None:
        if frame.kind is FrameKind.PREFILL:
            await sequence.deliver(
                StageFrame(FrameKind.TOKEN, bytes(16), bytes(16), position=1, tokens=(0,), body=body)
            )

    start = SequenceStart(request, bytes(16), (1,), hidden_size=2)
    sequence = Sequence(start, machine, answer, MockedClock(), broken.append)
    await sequence.run()
    assert bool(broken) is is_broken


def test_which_codes_are_a_generations() -> None:
    assert {ErrorCode.OVERLOADED, ErrorCode.CONTEXT_LENGTH_EXCEEDED, ErrorCode.PEER_LOST} <= GENERATION_CODES
    assert {code for code in ErrorCode if code.startswith("frame_")} <= GENERATION_CODES
    foreign = {ErrorCode.INVITE_EXPIRED, ErrorCode.UNAUTHORIZED, ErrorCode.MODEL_UNKNOWN, ErrorCode.PORT_IN_USE}
    assert not foreign & GENERATION_CODES


async def test_a_stage_that_floods_a_sequence_ends_that_alone(autojump_clock: MockClock) -> None:
    """More frames than the queue takes, while a step is on its way to a stage that does not read."""
    request = GenerationRequest(bytes(16), "fake", Prompt(tokens=(1,)), GREEDY)
    policy = GenerationPolicy(chunk_tokens=8, credits=1, context_tokens=16)
    machine = GenerationMachine((1,), None, frozenset(), TextAssembler([b"a"]), policy)
    goes_on = trio.Event()
    sent: list[FrameKind] = []

    async def submit(frame: StageFrame) -> None:
        sent.append(frame.kind)
        await goes_on.wait()

    sequence = Sequence(SequenceStart(request, bytes(16), (1,)), machine, submit, MockedClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sequence.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(EVENT_CAPACITY + 1):
            await sequence.deliver(StageFrame(FrameKind.CREDIT, bytes(16), bytes(16), position=7))
        goes_on.set()
        with pytest.raises(Refused):
            _ = [event async for event in sequence.events()]
    assert sent[-1] is FrameKind.CANCEL


class Talker:
    """A sequence whose stages answer each step at once, for as long as anybody listens."""

    def __init__(self) -> None:
        request = GenerationRequest(bytes(16), "fake", Prompt(tokens=(1,)), GREEDY)
        policy = GenerationPolicy(chunk_tokens=8, credits=1, context_tokens=100_000)
        machine = GenerationMachine((1,), None, frozenset(), TextAssembler([b"a"]), policy)
        self.sent: list[FrameKind] = []
        self.sequence = Sequence(SequenceStart(request, bytes(16), (1,)), machine, self._submit, MockedClock())
        self._steps, self._asked = trio.open_memory_channel[int](10)

    async def _submit(self, frame: StageFrame) -> None:
        self.sent.append(frame.kind)
        if frame.kind in (FrameKind.PREFILL, FrameKind.DECODE):
            await self._steps.send(frame.position + 1)

    async def answer(self) -> None:
        async for position in self._asked:
            token = StageFrame(FrameKind.TOKEN, bytes(16), bytes(16), position=position, tokens=(0,))
            await self.sequence.deliver(token)

    async def read(self, pause_s: float = 0) -> tuple[int, Refused]:
        """How many events there are, and what they end with."""
        given = 0
        try:
            async for _ in self.sequence.events():
                given += 1
                await trio.sleep(pause_s)
        except Refused as refusal:
            return given, refusal
        raise AssertionError("it ended well")


async def test_an_answer_that_nobody_reads_waits_within_a_bound_and_then_gives_up_its_lane(
    autojump_clock: MockClock,
) -> None:
    talker = Talker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talker.answer)
        began_s = trio.current_time()
        await talker.sequence.run()
        assert trio.current_time() - began_s == pytest.approx(READER_PATIENCE_S, abs=1)
        assert talker.sent[-1] is FrameKind.CANCEL
        given, error = await talker.read()
        assert error.code is ErrorCode.CANCELLED
        assert "not read" in error.message
        assert given == OUTPUT_CAPACITY
        nursery.cancel_scope.cancel()


async def test_a_reader_that_trickles_does_not_hold_a_lane_for_ever(autojump_clock: MockClock) -> None:
    talker = Talker()

    async def trickle() -> None:
        _, error = await talker.read(READER_PATIENCE_S / 10)
        assert error.code is ErrorCode.CANCELLED

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talker.answer)
        async with trio.open_nursery() as readers:
            readers.start_soon(trickle)
            await talker.sequence.run()
            assert talker.sent.count(FrameKind.DECODE) < OUTPUT_CAPACITY + 20
        nursery.cancel_scope.cancel()
