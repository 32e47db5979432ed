"""One sequence at its driver: runs ``GenerationMachine``, turns its effects into frames and generation events."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from p2pmesh.base.errors import GARBAGE_CODES, ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.core import generation
from p2pmesh.core.holding import Held
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.begin import Begin, Prefix, encode_begin
from p2pmesh.wire.generation import (
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    Grammar,
    TokenLogprob,
)
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, decode_error
from p2pmesh.wire.token_report import TokenReport, check_embedding, decode_reports

EVENT_CAPACITY = 64
CANCEL_TIMEOUT_S = 5.0
OUTPUT_CAPACITY = 4096
"""Deltas that an ingress may be behind; generation waits for it beyond that. A client on a slow link keeps its answer
and holds no lane for it: few answers are longer. One that reads nothing is found out by its ingress, far sooner."""
LOGPROBS_CAPACITY = 1024
"""Of deltas with log probabilities, which take some kilobytes each."""
READER_PATIENCE_S = 30.0
"""So long a sequence waits for its ingress in all: it has a lane meanwhile."""

GENERATION_CODES = GARBAGE_CODES | frozenset(
    {
        ErrorCode.CANCELLED,
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.ENGINE_CRASHED,
        ErrorCode.ENGINE_LOAD_FAILED,
        ErrorCode.CANNOT_ROLLBACK,
        ErrorCode.ENGINE_UNRESPONSIVE,
        ErrorCode.GRAMMAR_DEAD_END,
        ErrorCode.GRAMMAR_INVALID,
        ErrorCode.INTERNAL,
        ErrorCode.LOGIT_BIAS_INVALID,
        ErrorCode.MESSAGE_MALFORMED,
        ErrorCode.MODEL_NOT_READY,
        ErrorCode.NOT_IN_PLACEMENT,
        ErrorCode.OVERLOADED,
        ErrorCode.PEER_LOST,
        ErrorCode.PEER_UNREACHABLE,
        ErrorCode.REQUEST_INVALID,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.STAGE_UNKNOWN,
    }
)
"""What may end a generation at a stage; the client of a request is told no other code that a stage sends."""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """What a sequence begins with."""

    request: GenerationRequest
    run_id: bytes
    prompt: tuple[int, ...]
    pieces: tuple[bytes, ...] = ()
    grammar: Grammar | None = None
    hidden_size: int = 0
    prefix: Prefix | None = None
    """Rows of its prompt that stages may hold as another sequence's."""


class Sequence:
    """A live sequence. Frames of the last stage come in by ``deliver``, events go out by ``events``."""

    def __init__(
        self,
        start: SequenceStart,
        machine: generation.GenerationMachine,
        submit: Callable[[StageFrame], Awaitable[None]],
        clock: Clock,
        break_run: Callable[[P2PMeshError], None] = lambda _: None,
        note_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._start = start
        self._note_read: Callable[[], None] | None = note_read
        """Told once, with the first token: every stage has the prompt's rows. None: it was."""
        self._break_run = break_run
        """Told when the last stage answers garbage: what it gives other sequences is no better."""
        self._is_failed = False
        """Whether a stage or the run has said that it is over."""
        self._machine = machine
        self._submit = submit
        self._clock = clock
        self._runner: MachineRunner[generation.Event, generation.Effect] = MachineRunner(
            machine, clock, self._perform, generation.DeadlinePassed(), EVENT_CAPACITY
        )
        self._capacity = OUTPUT_CAPACITY if start.request.top_logprobs is None else LOGPROBS_CAPACITY
        self._output, self._input = trio.open_memory_channel[GenerationEvent | P2PMeshError](self._capacity)
        self._unread = 0
        """What ``events`` has not taken yet."""
        self._scope = trio.CancelScope()
        self._patience_s = READER_PATIENCE_S
        self._abandoned: Refused | None = None
        """Why nothing follows what was given: its reader was too slow."""
        self._reused_rows = 0
        self._is_settled = trio.Event()
        """Whether it is known how much of the prompt is computed."""

    @property
    def key(self) -> tuple[bytes, int]:
        """Request id and choice index."""
        return (self._start.request.request_id, self._start.request.sequence)

    @property
    def max_tokens(self) -> int:
        """Tokens that the answer may hold."""
        return self._machine.max_tokens

    @property
    def is_unread(self) -> bool:
        """Whether more was given than ``events`` has taken."""
        return self._unread > 0

    @property
    def sent_tokens(self) -> int:
        """Tokens whose rows all stages compute before the first one is sampled; 0 where they may hold some already."""
        request = self._start.request
        return 0 if request.continues or self._start.prefix else len(self._start.prompt) + len(request.history)

    @property
    def prompt(self) -> tuple[int, ...]:
        """Its token ids."""
        return self._start.prompt

    @property
    def prefix(self) -> Prefix | None:
        """What it was to begin with."""
        return self._start.prefix

    async def reused_rows(self) -> int:
        """Rows of the prompt that were another sequence's: known once every stage has said what it holds."""
        if self._start.prefix is not None:
            await self._is_settled.wait()
        return self._reused_rows

    async def deliver(self, frame: StageFrame) -> None:
        """A TOKEN, CREDIT or ERROR of this sequence; one that floods us fails."""
        event: generation.Event
        match frame.kind:
            case FrameKind.TOKEN:
                event = self._tokens_of(frame)
            case FrameKind.CREDIT:
                event = generation.CreditArrived(frame.position)
            case FrameKind.HELD:
                is_fixed = bool(frame.flags & FrameFlag.FIXED)
                event = generation.HeldArrived(frame.stages, Held(frame.position, is_fixed))
            case _:
                self._is_failed = True
                event = _failure_of(frame)
        try:
            if isinstance(event, generation.TokensArrived) and self._unread < self._capacity // 2:
                await self._take_token(event)
            else:
                self._runner.post(event)
        except trio.WouldBlock:
            text = "the last stage sends more than it was asked for"
            self.fail(ErrorCode.CREDIT_EXCEEDED, text)
            self._break_run(RemoteProtocolError(ErrorCode.CREDIT_EXCEEDED, text))

    def _tokens_of(self, frame: StageFrame) -> generation.Event:
        asked = self._start.request.top_logprobs
        if self._start.request.wants_embedding:
            return self._embedding_of(frame)
        if self._start.pieces and max(frame.tokens) >= len(self._start.pieces):
            return self._distrust(f"token {max(frame.tokens)} of {len(self._start.pieces)} from the last stage")
        if asked is None and not len(frame.body):
            return generation.TokensArrived(frame.position, frame.tokens)
        try:
            reports = decode_reports(frame.body, 0 if asked is None else len(frame.tokens), asked or 0)
        except RemoteProtocolError as error:
            return self._distrust(error.message)
        return generation.TokensArrived(frame.position, frame.tokens, reports)

    def _distrust(self, text: str) -> generation.Event:
        self._break_run(RemoteProtocolError(ErrorCode.FRAME_VALUE_INVALID, text))
        return generation.SequenceFailed(ErrorCode.FRAME_VALUE_INVALID, text)

    def _embedding_of(self, frame: StageFrame) -> generation.Event:
        if len(frame.body) != 4 * self._start.hidden_size:
            return self._distrust(f"an embedding of {len(frame.body)} bytes from the last stage")
        try:
            embedding = check_embedding(frame.body, self._start.hidden_size)
        except RemoteProtocolError as error:
            return generation.SequenceFailed(error.code, error.message)
        return generation.TokensArrived(frame.position, frame.tokens, embedding=embedding)

    async def _take_token(self, event: generation.Event) -> None:
        """In the task that read it: the next step must not wait for another task's turn."""
        try:
            await self._runner.handle_here(event)
        except P2PMeshError as error:
            self.fail(error.code, error.message)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return  # cancelled meanwhile: nobody wants the token
        if self._machine.is_over:
            self._runner.post(generation.DeadlinePassed())  # ends ``run``, which waits for an event

    def fail(self, code: ErrorCode, text: str) -> None:
        """Ends the sequence as an error as soon as its queue allows; its queue being full is an end by itself."""
        self._is_failed = True
        try:
            self._runner.post(generation.SequenceFailed(code, text))
        except trio.WouldBlock:
            self._output.close()

    def end_with_run(self, code: ErrorCode, text: str) -> None:
        """As ``fail``, but the run is over: no stage is told, since each keeps the rows for the run after it."""
        self._is_failed = True
        try:
            self._runner.post(generation.RunEnded(code, text))
        except trio.WouldBlock:
            self._output.close()

    def cancel(self) -> None:
        """Nobody wants the rest; every stage is told."""
        self._scope.cancel()

    async def run(self) -> None:
        """Generates until the end; a cancellation cancels the sequence on every stage."""
        self._runner.post(generation.Begin())
        try:
            with self._scope:
                await self._generate()
        finally:
            if not self._machine.is_over:
                with trio.CancelScope(deadline=trio.current_time() + CANCEL_TIMEOUT_S, shield=True):
                    await self._cancel()
            self._is_settled.set()
            self._output.close()

    async def _generate(self) -> None:
        try:
            await self._runner.run(lambda: self._machine.is_over)
        except P2PMeshError as error:
            with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                await self._give(error)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return  # ``fail`` found its queue full, or nobody listens: what the stage still sends is nobody's

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Deltas and the end; raises the error that ended it."""
        async for item in self._input:
            self._unread -= 1
            if isinstance(item, P2PMeshError):
                raise item
            yield item
            if isinstance(item, GenerationFinished):
                return
        raise self._abandoned or Refused(ErrorCode.INTERNAL, "the generation ended without an end")

    async def _give(self, item: GenerationEvent | P2PMeshError) -> None:
        """To whoever reads the events; one that is too slow loses the sequence, whose lane others wait for."""
        self._unread += 1
        try:
            self._output.send_nowait(item)  # no checkpoint: who reads it is woken, and the next frame is waited for
        except trio.WouldBlock:
            await self._give_slowly(item)

    async def _give_slowly(self, item: GenerationEvent | P2PMeshError) -> None:
        began_s = trio.current_time()
        with trio.move_on_after(self._patience_s) as scope:
            await self._output.send(item)
        self._patience_s -= trio.current_time() - began_s
        if scope.cancelled_caught:
            text = f"the answer was not read: it waited {READER_PATIENCE_S:.0f} s for its client, and ends here"
            self._abandoned = Refused(ErrorCode.CANCELLED, text)
            raise trio.BrokenResourceError

    async def _cancel(self) -> None:
        for effect in self._machine.handle(generation.CancelRequested(), self._clock.now()):
            if isinstance(effect, generation.SendCancel):
                await self._perform(effect)

    async def _submit_last(self, kind: FrameKind) -> None:
        """Stages that are gone have let the sequence go already; what ended it is told, not this."""
        with suppress(P2PMeshError):
            await self._submit(self._frame(kind))

    async def _give_failure(self, code: ErrorCode, text: str) -> None:
        if code is ErrorCode.FRAME_POSITION_INVALID and not self._is_failed:  # what came was not asked for
            self._break_run(RemoteProtocolError(code, text))
        await self._give(Refused(code, text))

    async def _perform(self, effect: generation.Effect) -> None:
        match effect:
            case generation.SendDecode(position, token):
                await self._submit(self._frame(FrameKind.DECODE, position, (token,)))
            case generation.Emit():
                await self._give(self._delta_of(effect))
            case generation.SendPrefill(position, tokens, is_last, stages):
                flags = FrameFlag.SAMPLE if is_last else FrameFlag.NONE
                await self._submit(self._frame(FrameKind.PREFILL, position, tokens, flags, stages=stages))
            case generation.SendReplay(position, tokens, stages):
                await self._submit(self._frame(FrameKind.DECODE, position, tokens, FrameFlag.REPLAY, stages=stages))
            case generation.SendBegin():
                start, request = self._start, self._start.request
                begin = Begin(
                    request.sampling, len(start.prompt), request.top_logprobs, self._machine.max_tokens, start.grammar,
                    request.continues, request.wants_embedding, start.prefix,
                )  # fmt: skip
                body = encode_begin(begin)
                await self._submit(self._frame(FrameKind.BEGIN, body=body))
            case generation.Reused(rows):
                self._reused_rows = rows
                self._is_settled.set()
            case generation.SendEnd() | generation.SendCancel():
                is_end = isinstance(effect, generation.SendEnd)
                await self._submit_last(FrameKind.END if is_end else FrameKind.CANCEL)
            case generation.Finish(reason, text, completion_tokens, stop):
                await self._give(GenerationFinished(reason, text, completion_tokens, stop=stop))
            case generation.Fail(code, text):
                await self._give_failure(code, text)

    def _delta_of(self, effect: generation.Emit) -> GenerationDelta:
        if self._note_read is not None:
            self._note_read()
            self._note_read = None
        return GenerationDelta(effect.tokens, effect.text, self._named(effect.tokens, effect.reports), effect.embedding)

    def _named(self, tokens: tuple[int, ...], reports: tuple[TokenReport, ...]) -> tuple[TokenLogprob, ...]:
        """Reports with the tokens' bytes."""
        if not reports:
            return ()
        return tuple(
            TokenLogprob(
                token,
                self._piece(token),
                report.logprob,
                tuple(TokenLogprob(likely, self._piece(likely), logprob) for likely, logprob in report.top),
            )
            for token, report in zip(tokens, reports, strict=True)
        )

    def _piece(self, token: int) -> bytes:
        pieces = self._start.pieces
        return pieces[token] if token < len(pieces) else b""

    def _frame(
        self,
        kind: FrameKind,
        position: int = 0,
        tokens: tuple[int, ...] = (),
        flags: FrameFlag = FrameFlag.NONE,
        body: bytes = b"",
        stages: int = 0,
    ) -> StageFrame:
        request = self._start.request
        return StageFrame(
            kind, request.request_id, self._start.run_id, request.sequence, position, tokens, flags=flags, body=body,
            stages=stages,
        )  # fmt: skip


def _failure_of(frame: StageFrame) -> generation.SequenceFailed:
    code, text = decode_error(frame)
    return generation.SequenceFailed(code_for_client(code), text)


def code_for_client(code: ErrorCode) -> ErrorCode:
    """What a peer's code becomes before a client hears it: only a generation's own pass."""
    return code if code in GENERATION_CODES else ErrorCode.INTERNAL
