"""The driver's machine for one sequence: prompt in chunks under credit, then one token at a time, until an end.

Owns the order of frames, credits, stops, limits and deadlines of the sequence. What stays elsewhere: frames as bytes
(``wire.stage``), sampling (``core.sampling``, at the last stage), who may send frames (``node.stages``).

Chunks lie on an absolute grid of ``chunk_tokens`` positions, and the calls that engines make of them on the finer one
of ``slice_tokens``, so that a repeated prefill repeats its calls exactly wherever it begins. A sequence that goes on
after a loss begins with a *history*: tokens that an earlier driver gave out. They are replayed as decoded rows, several
a frame, which every engine cuts into calls within its exact width; nobody waits for a token before the row of the last
one is sampled. Where stages may still hold rows of it, each is heard first, and rows go no further than to the last
stage that lacks them (``core.holding``).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.quantities import Micros
from p2pmesh.core.holding import Held, Reach
from p2pmesh.core.text import TextAssembler
from p2pmesh.wire.generation import FinishReason
from p2pmesh.wire.token_report import TokenReport

REPLAY_ROWS = 16
"""Rows of a replayed frame: the widest exact call that is ever measured, and little enough for others to get a turn."""


@dataclass(frozen=True, slots=True)
class GenerationPolicy:
    """Bounds of one sequence, times in microseconds.

    ``prefill_us_per_token`` and ``step_us`` are what the run measured (0: nothing yet). A wait may take
    ``patience`` times the measured time, and never less than ``floor_us``.
    """

    chunk_tokens: int
    credits: int
    context_tokens: int
    replay_rows: int = REPLAY_ROWS
    prefill_us_per_token: int = 0
    step_us: int = 0
    slice_tokens: int = 0
    """Where rows that a stage holds of a prompt may end; divides ``chunk_tokens``. 0: only where chunks end."""
    patience: int = 20
    floor_us: int = 15_000_000
    unmeasured_us_per_token: int = 250_000

    def prefill_wait_us(self, tokens: int) -> int:
        """Longest time without a credit or a token while ``tokens`` are on their way."""
        per_token = self.patience * self.prefill_us_per_token or self.unmeasured_us_per_token
        return max(self.floor_us, per_token * tokens)

    def replay_wait_us(self) -> int:
        """Longest time without a credit while a replay is on its way."""
        return max(self.prefill_wait_us(self.replay_rows), self.patience * self.step_us * self.replay_rows)

    def step_wait_us(self) -> int:
        """Longest time for one decoded token."""
        return max(self.floor_us, self.patience * self.step_us)


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begin:
    """The sequence has been admitted."""


@dataclass(frozen=True, slots=True)
class TokensArrived:
    """The last stage sampled ``tokens`` for positions from ``position`` on, and tells beside them what it was asked."""

    position: int
    tokens: tuple[int, ...]
    reports: tuple[TokenReport, ...] = ()
    embedding: bytes = b""


@dataclass(frozen=True, slots=True)
class CreditArrived:
    """The last stage has consumed the rows up to ``position``."""

    position: int


@dataclass(frozen=True, slots=True)
class HeldArrived:
    """A stage said what it holds of the sequence, which goes on there."""

    stage: int
    held: Held


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over, and its stages see to the rows that they hold."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """A stage, a stream or the engine gave the sequence up."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The client is gone."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = (
    Begin | TokensArrived | CreditArrived | HeldArrived | RunEnded | SequenceFailed | CancelRequested | DeadlinePassed
)


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SendBegin:
    """Take a lane at each stage."""


@dataclass(frozen=True, slots=True)
class Reused:
    """So many rows of the prompt were another sequence's, and no stage computes them; 0: it was not so after all."""

    rows: int


@dataclass(frozen=True, slots=True)
class SendPrefill:
    """One chunk of the prompt; the last one is sampled. ``stages`` take it, 0: all."""

    position: int
    tokens: tuple[int, ...]
    is_last: bool
    stages: int = 0


@dataclass(frozen=True, slots=True)
class SendReplay:
    """Rows of tokens that were given out already; the last of the ``stages`` (0: all) answers them with a credit."""

    position: int
    tokens: tuple[int, ...]
    stages: int = 0


@dataclass(frozen=True, slots=True)
class SendDecode:
    """The token at ``position``, to be followed by a sampled one."""

    position: int
    token: int


@dataclass(frozen=True, slots=True)
class SendEnd:
    """Free the lanes."""


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Drop what is queued and free the lanes."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Tokens and certain text for the ingress."""

    tokens: tuple[int, ...]
    text: str
    reports: tuple[TokenReport, ...] = ()
    embedding: bytes = b""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end; nothing follows. ``stop`` is the stop sequence that brought it, or empty."""

    reason: FinishReason
    text: str
    completion_tokens: int
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """The end, as an error; nothing follows."""

    code: ErrorCode
    text: str


Effect = SendBegin | Reused | SendPrefill | SendReplay | SendDecode | SendEnd | SendCancel | Emit | Finish | Fail


@dataclass(frozen=True, slots=True)
class Asking:
    """How many stages will tell what they hold, all of the run; 0: none is asked.

    ``shared_rows`` of another sequence's prompt were named to them as this one's; 0: it goes on with its own. Where it
    ``continues`` a sequence of a run that is over, stages that have kept its own rows tell of those instead.
    """

    stages: int = 0
    shared_rows: int = 0
    continues: bool = False


_ASKS_NOBODY = Asking()
_NOTHING_TOLD = TokensArrived(0, ())


class GenerationMachine:
    """One sequence at its driver. Every admitted sequence ends with exactly one ``Finish`` or ``Fail``."""

    def __init__(
        self,
        prompt: Sequence[int],
        max_tokens: int | None,
        end_tokens: frozenset[int],
        assembler: TextAssembler,
        policy: GenerationPolicy,
        history: Sequence[int] = (),
        asks: Asking = _ASKS_NOBODY,
    ) -> None:
        if not prompt:
            raise ValueError("a prompt holds at least one token")
        self._prompt = tuple(prompt)
        self._history = tuple(history)
        self._inputs = self._prompt + self._history
        room = policy.context_tokens - len(self._prompt)
        self._budget = room if max_tokens is None else min(room, max_tokens)
        self._end_tokens = end_tokens
        self._assembler = assembler
        self._policy = policy
        self._sent = 0
        self._credited = 0
        self._open: deque[tuple[int, int]] = deque()
        """Of frames without a credit: where they end, and the rows that every stage charges for them."""
        self._overtaken: set[int] = set()
        """Ends of frames whose own credit, from a stage between, a later one of the last stage overtook."""
        self._asks = asks
        self._held: dict[int, Held] = {}
        self._reach = Reach(())
        self._generated = 0
        self._deadline: Micros | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the end has been given out."""
        return self._is_over

    @property
    def max_tokens(self) -> int:
        """Tokens that the answer may hold: what was asked for, or what the context leaves."""
        return max(0, self._budget)

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due."""
        return self._deadline

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event; after the end there are none."""
        if self._is_over:
            return ()
        match event:
            case Begin():
                return self._on_begin(now)
            case CreditArrived(position):
                return self._on_credit(position, now)
            case TokensArrived():
                return self._on_tokens(event, now)
            case HeldArrived(stage, held):
                return self._on_held(stage, held, now)
            case RunEnded(code, text):
                return self._end(Fail(code, text))
            case SequenceFailed(code, text):
                return self._end(SendCancel(), Fail(code, text))
            case CancelRequested():
                return self._end(SendCancel(), Fail(ErrorCode.CANCELLED, "the client went away"))
            case DeadlinePassed():
                return self._on_deadline(now)

    def _on_begin(self, now: Micros) -> tuple[Effect, ...]:
        if self._deadline is not None:
            return ()
        if len(self._prompt) >= self._policy.context_tokens:
            text = f"a prompt of {len(self._prompt)} tokens leaves no room in {self._policy.context_tokens}; shorten it"
            return self._end(Fail(ErrorCode.CONTEXT_LENGTH_EXCEEDED, text))
        if self._budget < 1:
            return self._end(Finish(FinishReason.LENGTH, "", 0))
        end = self._replay_text()
        if end or self._asks.stages == 0:
            return end or (SendBegin(), *self._send_inputs(now))
        self._wait(now, self._policy.prefill_wait_us(self._policy.credits * self._policy.chunk_tokens))
        return (SendBegin(),)

    def _on_held(self, stage: int, held: Held, now: Micros) -> tuple[Effect, ...]:
        shared_rows = 0 if self._asks.continues else self._asks.shared_rows
        is_asked = not shared_rows or held.rows in (0, shared_rows)
        if stage in self._held or not 0 <= stage < self._asks.stages or not is_asked:
            return self._broken(f"that stage {stage} holds {held.rows} rows, which was not asked for")
        self._held[stage] = held
        if len(self._held) < self._asks.stages:
            return ()
        grid = self._policy.slice_tokens or self._policy.chunk_tokens
        prompt_end, last = len(self._prompt), len(self._inputs) - 1
        told = [self._held[index].usable(grid, prompt_end, last) for index in range(self._asks.stages)]
        self._reach = Reach(told)
        self._sent = self._credited = self._reach.first
        reused = (Reused(min(self._reach.first, self._asks.shared_rows)),) if self._asks.shared_rows else ()
        return (*reused, *self._send_inputs(now))

    def _replay_text(self) -> tuple[Effect, ...]:
        """Brings text, stops and counts to where the history ends; an end that was reached already is said again."""
        given: tuple[Effect, ...] = ()
        for token in self._history:
            if self._is_over:
                return (Fail(ErrorCode.REQUEST_INVALID, "the history goes on after its end"),)
            given = self._take(token)
        return given[1:] if self._is_over else ()

    def _send_inputs(self, now: Micros) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        window = self._policy.credits * self._policy.chunk_tokens
        while self._sent < len(self._inputs) and self._open_rows() + self._next_charge() <= window:
            effects.append(self._next_input())
        is_replaying = self._sent > len(self._prompt)
        open_tokens = min(self._sent, len(self._prompt)) - self._credited
        wait_us = self._policy.prefill_wait_us(max(0, open_tokens))
        self._wait(now, wait_us + (self._policy.replay_wait_us() if is_replaying else 0))
        return tuple(effects)

    def _open_rows(self) -> int:
        return sum(rows for _, rows in self._open)

    def _next_charge(self) -> int:
        """What the next frame costs of the credits: short ones no less than full ones, as at the stages."""
        if self._sent < len(self._prompt):
            return self._policy.chunk_tokens
        return self._policy.replay_rows if self._sent < len(self._inputs) - 1 else 0

    def _next_input(self) -> Effect:
        """The frame that begins where the last one ended: of the prompt, of the history, or its last row."""
        start, prompt_end, last = self._sent, len(self._prompt), len(self._inputs) - 1
        charge = self._next_charge()
        stages = self._reach.stages(start)
        if start < prompt_end:
            chunk = self._policy.chunk_tokens
            end = min(start - start % chunk + chunk, prompt_end, self._reach.next_edge(start))
            effect: Effect = SendPrefill(start, self._inputs[start:end], end > last, stages)
        elif start < last:
            end = min(start + self._policy.replay_rows, last, self._reach.next_edge(start))
            effect = SendReplay(start, self._inputs[start:end], stages)
        else:
            self._sent = start + 1
            return SendDecode(start, self._inputs[start])
        self._open.append((end, charge))
        self._sent = end
        return effect

    def _on_credit(self, position: int, now: Micros) -> tuple[Effect, ...]:
        if position in self._overtaken:
            self._overtaken.discard(position)
            return ()
        if all(end != position for end, _ in self._open):
            return self._broken(f"a credit for position {position}; {self._credited} to {self._sent} are open")
        while (end := self._open.popleft()[0]) != position:
            if self._reach.stages(end - 1):
                self._overtaken.add(end)
        self._credited = position
        if self._generated > len(self._history):
            return ()  # a token overtook the credit: the wait is for the next token by now
        return self._send_inputs(now)

    def _on_tokens(self, event: TokensArrived, now: Micros) -> tuple[Effect, ...]:
        position, tokens = event.position, event.tokens
        is_due = self._sent == len(self._inputs) and position == len(self._prompt) + self._generated
        if not is_due or len(tokens) != 1:
            return self._broken(f"{len(tokens)} tokens for position {position}, which was not asked for")
        effects = self._take(tokens[0], event)
        if self._is_over:
            return (SendEnd(), *effects)
        self._wait(now, self._policy.step_wait_us())
        return (SendDecode(position, tokens[0]), *effects)

    def _take(self, token: int, told: TokensArrived = _NOTHING_TOLD) -> tuple[Effect, ...]:
        """What a token gives rise to at the ingress; the machine is over if it was the last one."""
        self._generated += 1
        if token in self._end_tokens:
            return self._finish(FinishReason.STOP, Emit((token,), "", told.reports, told.embedding))
        step = self._assembler.add(token)
        last = Emit((token,), step.text, told.reports, told.embedding)
        if step.is_stopped:
            return self._end(last, Finish(FinishReason.STOP, "", self._generated, step.stop))
        return self._finish(FinishReason.LENGTH, last) if self._generated >= self._budget else (last,)

    def _finish(self, reason: FinishReason, last: Emit) -> tuple[Effect, ...]:
        """The end by other means than a stop sequence, unless one is complete now that no more bytes will come."""
        rest = self._assembler.finish()
        reason = FinishReason.STOP if rest.is_stopped else reason
        return self._end(last, Finish(reason, rest.text, self._generated, rest.stop))

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        if self._deadline is None or now < self._deadline:
            return ()
        what = "the prompt" if self._generated == 0 else f"token {self._generated + 1}"
        return self._end(
            SendCancel(), Fail(ErrorCode.DEADLINE_EXCEEDED, f"the stages did not answer in time for {what}")
        )

    def _broken(self, text: str) -> tuple[Effect, ...]:
        return self._end(SendCancel(), Fail(ErrorCode.FRAME_POSITION_INVALID, f"the last stage sent {text}"))

    def _wait(self, now: Micros, at_most_us: int) -> None:
        self._deadline = Micros(now + at_most_us)

    def _end(self, *effects: Effect) -> tuple[Effect, ...]:
        self._is_over = True
        self._deadline = None
        return effects
