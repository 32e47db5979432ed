"""Engines without llama.cpp: a model whose next token is a pure function of the token history.

An activation says which token a row is and how many layers it has been through; the last stage checks both, so that a
row which took another way, or came out of order, is noticed. ``next_token`` is the reference.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import trio

from p2pmesh.base.errors import EngineError, ErrorCode, P2PMeshError
from p2pmesh.core.grammar.constraint import Constraint, Rules, Words
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.ports.engine import EngineFacts, EngineSpec, TakeFrames
from p2pmesh.wire.begin import Begin, decode_begin, digest_tokens
from p2pmesh.wire.generation import ChatMessage, SamplingParameters, ToolUse
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, WireDtype, decode_activation, error_frame
from p2pmesh.wire.token_report import TokenReport, encode_reports

HIDDEN_SIZE = 4
TEXT_TOKENS = 256
END_TOKEN = 256
BEGINNING_TOKEN = 257
VOCABULARY = 258
DECODE_US = 1000
"""What a fake engine says that a row takes it."""
_ROWS = (FrameKind.PREFILL, FrameKind.DECODE)

Key = tuple[bytes, int]


def next_token(history: Sequence[int], parameters: SamplingParameters) -> int:
    """A letter that depends on all tokens so far, and on the seed unless the request is greedy."""
    salt = 0 if parameters.temperature == 0 else parameters.seed + 1
    digest = hashlib.sha256(repr((salt, tuple(history))).encode()).digest()
    return ord("a") + digest[0] % 26


def report_of(token: int, position: int, top_logprobs: int) -> TokenReport:
    """What is told beside a token: values that name its position."""
    return TokenReport(-position / 1024, tuple((token + index, -index / 4) for index in range(top_logprobs)))


def embedding_of(prompt: Sequence[int]) -> bytes:
    """What a prompt is read as."""
    return np.array([len(prompt), sum(prompt), prompt[0], prompt[-1]], "<f4").tobytes()


def expected_tokens(prompt: Sequence[int], count: int, parameters: SamplingParameters) -> list[int]:
    """What any pipeline must answer."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, parameters))
    return history[len(prompt) :]


@dataclass
class _Sequence:
    parameters: SamplingParameters
    top_logprobs: int | None = None
    wants_embedding: bool = False
    history: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    constraint: Constraint | None = None

    def next_token(self) -> int:
        """Of those that the grammar allows the one that a hash says, where there is a grammar."""
        if self.constraint is None:
            return next_token(self.history, self.parameters)
        assert self.constraint.follow(self.history[self.prompt_tokens :])
        seed = hashlib.sha256(repr(self.history).encode()).digest()[0]
        keys = np.random.default_rng(seed).permutation(VOCABULARY).astype(np.float64)
        found = self.constraint.first_allowed(np.arange(VOCABULARY), keys)
        assert found is not None
        return found


class FakeEngine:
    """Implements ``ports.engine.Engine``. While held it takes frames and does nothing with them."""

    shares_prefixes = True

    def __init__(self, spec: EngineSpec, fingerprint: str = "fake", killed_by: tuple[int, ...] | None = None) -> None:
        self.spec = spec
        self.killed_by = killed_by
        """A prompt that no engine survives."""
        self.taken: list[StageFrame] = []
        self.together: list[int] = []
        """How many came at once, each time."""
        self.facts = EngineFacts(
            HIDDEN_SIZE, 8, fingerprint, 0, VOCABULARY, BEGINNING_TOKEN, frozenset({END_TOKEN}), (),
            DECODE_US, shares_prefixes=self.shares_prefixes,
        )  # fmt: skip
        self.rows_computed = 0
        self.told_pieces = 0
        self.forgets = False
        """Keeps nothing of a run that is over, nor of a sequence."""
        self._ended: dict[Key, list[int]] = {}
        """Prompts whose rows are kept."""
        self._sequences: dict[Key, _Sequence] = {}
        self._parked: dict[Key, _Sequence] = {}
        self._waiting: list[StageFrame] | None = None
        self._death: EngineError | None = None
        self._out, self._in = trio.open_memory_channel[StageFrame](10_000)

    # --- what a test does to it
    def kill(self, message: str = "the engine process was killed by SIGKILL") -> None:
        """The child is gone."""
        self._death = EngineError(ErrorCode.ENGINE_CRASHED, message)
        self._out.close()

    def hold(self) -> None:
        """Computes nothing until ``go_on``."""
        self._waiting = []

    def go_on(self) -> None:
        """Does what has come meanwhile."""
        waiting, self._waiting = self._waiting or [], None
        for frame in waiting:
            self._take(frame)

    @property
    def open_sequences(self) -> int:
        """Whose rows it keeps for more to come."""
        return len(self._sequences)

    def count(self, kind: FrameKind) -> int:
        """Frames of a kind that have come."""
        return sum(frame.kind is kind for frame in self.taken)

    # --- the port
    async def send(self, frame: StageFrame) -> None:
        await trio.lowlevel.checkpoint()
        self._let_in(frame)

    async def send_all(self, frames: Sequence[StageFrame]) -> None:
        """One call computes them all: nothing of it can be heard before the last is in."""
        await trio.lowlevel.checkpoint()
        self.together.append(len(frames))
        for frame in frames:
            self._let_in(frame)

    def _let_in(self, frame: StageFrame) -> None:
        if self._death is not None:
            raise self._death
        self.taken.append(frame)
        if frame.kind is FrameKind.PREFILL and frame.tokens == self.killed_by:
            self.kill("the engine process was killed by SIGSEGV")
            return
        if self._waiting is not None:
            self._waiting.append(frame)
        else:
            self._take(frame)

    async def park(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._death is not None:
            raise self._death
        if self._waiting is not None:
            self._waiting = []
        if not self.forgets:
            self._parked |= self._sequences
        self._ended = {}
        self._sequences = {}

    async def follow(self, take: TakeFrames) -> None:
        """All that is there, until the engine is gone."""
        while True:
            frames = [await self.receive()]
            with suppress(trio.WouldBlock, trio.EndOfChannel):
                while True:
                    frames.append(self._in.receive_nowait())
            await take(frames)

    async def receive(self) -> StageFrame:
        try:
            return await self._in.receive()
        except trio.EndOfChannel:
            assert self._death is not None
            raise self._death from None

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        return (BEGINNING_TOKEN,) * add_special + tuple(text.encode())

    async def render_chat(
        self, messages: tuple[ChatMessage, ...], reasoning_effort: str = "", tools: ToolUse | None = None
    ) -> str:
        shown = "" if tools is None else f"[tools]{tools.tools}\n"
        return shown + "".join(f"[{message.role}]{message.content}\n" for message in messages)

    async def pieces(self) -> tuple[bytes, ...]:
        self.told_pieces += 1
        return (*(bytes([token]) for token in range(TEXT_TOKENS)), b"", b"")

    # --- the model
    @property
    def _is_last(self) -> bool:
        return self.spec.layers.end == self.spec.layer_count

    def _take(self, frame: StageFrame) -> None:
        key = (frame.request_id, frame.sequence)
        if frame.kind is FrameKind.BEGIN:
            self._begin(key, frame)
        elif frame.kind in (FrameKind.CANCEL, FrameKind.END):
            ended = self._sequences.pop(key, None)
            if ended is not None and not self.forgets:
                self._ended[key] = ended.history[: ended.prompt_tokens]
        elif frame.kind in _ROWS and key in self._sequences:
            self._run(self._sequences[key], frame)

    def _begin(self, key: Key, frame: StageFrame) -> None:
        begin = decode_begin(frame.body)
        try:
            constraint = _constraint(begin) if self._is_last else None
        except P2PMeshError as error:
            self._out.send_nowait(error_frame(frame, error.code, error.message))
            return
        kept = self._parked.pop((begin.continues, frame.sequence), None)
        history = max(kept.history if kept else [], self._copied(begin), key=len)
        self._sequences[key] = _Sequence(
            begin.parameters, begin.top_logprobs, begin.wants_embedding, history, begin.prompt_tokens, constraint
        )
        if begin.continues or begin.prefix:
            self._say(frame, FrameKind.HELD, len(self._sequences[key].history))

    def _copied(self, begin: Begin) -> list[int]:
        prefix = begin.prefix
        if prefix is None:
            return []
        live = {key: sequence.history[: sequence.prompt_tokens] for key, sequence in self._sequences.items()}
        for source in (live | self._ended).values():  # whoever it is: the ids tell
            rows = source[: prefix.rows]
            if digest_tokens(rows) == prefix.digest:
                return rows
        return []

    def _run(self, sequence: _Sequence, frame: StageFrame) -> None:
        if frame.position > len(sequence.history):
            text = f"rows from {frame.position} on, {len(sequence.history)} are here"
            self._out.send_nowait(error_frame(frame, ErrorCode.FRAME_POSITION_INVALID, text))
            return
        if self.spec.layers.start > 0 and not self._is_sound(frame):
            self._out.send_nowait(error_frame(frame, ErrorCode.FRAME_VALUE_INVALID, "rows of another way"))
            return
        del sequence.history[frame.position :]
        sequence.history += frame.tokens
        self.rows_computed += len(frame.tokens)
        if self._is_last or frame.stages == 1:
            self._answer(sequence, frame)
        else:
            self._out.send_nowait(self._passed_on(frame))

    def _is_sound(self, frame: StageFrame) -> bool:
        rows = decode_activation(frame)
        return bool((rows[:, 0] == frame.tokens).all() and (rows[:, 1] == self.spec.layers.start).all())

    def _passed_on(self, frame: StageFrame) -> StageFrame:
        rows = np.zeros((len(frame.tokens), HIDDEN_SIZE), np.float32)
        rows[:, 0] = frame.tokens
        rows[:, 1] = self.spec.layers.end
        return StageFrame(
            frame.kind, frame.request_id, frame.run_id, frame.sequence, frame.position, frame.tokens,
            HIDDEN_SIZE, WireDtype.F32, frame.flags, rows.tobytes(), max(0, frame.stages - 1),
        )  # fmt: skip

    def _answer(self, sequence: _Sequence, frame: StageFrame) -> None:
        end = frame.position + len(frame.tokens)
        is_replay = bool(frame.flags & FrameFlag.REPLAY)
        if frame.kind is FrameKind.PREFILL or is_replay:
            self._say(frame, FrameKind.CREDIT, end)
        if (frame.kind is FrameKind.DECODE and not is_replay) or frame.flags & FrameFlag.SAMPLE:
            self._say(frame, FrameKind.TOKEN, end, *self._token_of(sequence, end))

    @staticmethod
    def _token_of(sequence: _Sequence, end: int) -> tuple[tuple[int, ...], bytes]:
        if sequence.wants_embedding:
            return (0,), embedding_of(sequence.history)
        token = sequence.next_token()
        asked = sequence.top_logprobs
        return (token,), b"" if asked is None else encode_reports((report_of(token, end, asked),))

    def _say(
        self, cause: StageFrame, kind: FrameKind, position: int, tokens: tuple[int, ...] = (), body: bytes = b""
    ) -> None:
        frame = StageFrame(kind, cause.request_id, cause.run_id, cause.sequence, position, tokens, body=body)
        self._out.send_nowait(frame)


def _constraint(begin: Begin) -> Constraint | None:
    if begin.grammar is None:
        return None
    words = Words((*(bytes([token]) for token in range(TEXT_TOKENS)), b"", b""), frozenset({END_TOKEN}))
    triggers = tuple(trigger.encode() for trigger in begin.grammar.triggers)
    rules = Rules(Matcher(compile_grammar(begin.grammar.text)), begin.max_tokens, triggers, begin.grammar.is_at_start)
    return Constraint(rules, words)


class FakeLauncher:
    """Implements ``ports.engine.EngineLauncher``; ``engines`` are those that live, the newest last."""

    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []
        self.failure: P2PMeshError | None = None
        self.fingerprint = "fake"
        self.killed_by: tuple[int, ...] | None = None
        self.load_s = 0.0

    @asynccontextmanager
    async def launch(self, spec: EngineSpec) -> AsyncIterator[FakeEngine]:
        await trio.sleep(self.load_s)
        if self.failure is not None:
            raise self.failure
        engine = FakeEngine(spec, self.fingerprint, self.killed_by)
        self.engines.append(engine)
        try:
            yield engine
        finally:
            self.engines.remove(engine)
