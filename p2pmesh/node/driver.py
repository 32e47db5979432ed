"""Drivers: runs whose stage 0 is here. They tokenise, admit by lanes, generate, and answer other peers' requests.

One sequence's life is ``node.sequences``'; frames between stages are ``node.stage_run``'s.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_CREDITS, PREFILL_SLICE_TOKENS
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.client_cap import ClientCap
from p2pmesh.core.generation import Asking, GenerationMachine, GenerationPolicy
from p2pmesh.core.lane_queue import Claimant, LaneQueuePolicy
from p2pmesh.core.reasoning import opens_reasoning
from p2pmesh.core.served_steps import Comparison, ServedSteps
from p2pmesh.core.text import TextAssembler
from p2pmesh.core.tool_calls.binding import bind_answer
from p2pmesh.core.tool_calls.formats import find_format
from p2pmesh.node.changes import Changes
from p2pmesh.node.lane_turns import LaneTurns
from p2pmesh.node.pace import Pace
from p2pmesh.node.prefixes import Prefixes
from p2pmesh.node.reporting import Report
from p2pmesh.node.sequences import Sequence, SequenceStart
from p2pmesh.node.step_turns import FrameTaker, StepTurns
from p2pmesh.node.vigil import Vigils, Watch, unreachable
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.engine import Engine
from p2pmesh.wire.generation import (
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Grammar,
    Prompt,
    RoutedStage,
    SamplingParameters,
    ToolUse,
)
from p2pmesh.wire.messages.runs import LoadStage, ProbeResult, PublishRun
from p2pmesh.wire.stage import StageFrame

HELD_S = 60.0
"""So long requests are held at most while a run moves."""
MAX_VOCABULARIES = 4
_MOVER = Claimant("moving")
"""Whose turn it is when a run that moves takes its lanes: a claimant like the peers."""
TOKENIZE_TIMEOUT_S = 30.0
LEAST_PROBE_STEPS = 3
MOST_PROBED_US = MICROS_PER_SECOND
"""After so long no further step of a probe is waited for."""
_REASONING_MARK_TOKENS = 16
"""At the end of a prompt: more than the mark and white space after it are made of."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a driver knows of the model's tokens."""

    pieces: tuple[bytes, ...]
    beginning_token: int | None
    end_tokens: frozenset[int]


class Driver:
    """One run driven from here."""

    def __init__(
        self,
        load: LoadStage,
        engine: Engine,
        vocabulary: Vocabulary,
        clock: Clock,
        nursery: trio.Nursery,
        vigils: Vigils,
        report: Report,
    ) -> None:
        self.load = load
        self._vigils = vigils
        self._watch: Watch | None = None
        self.is_published = False
        self.is_leaving = False
        """Whether it is announced no more: it goes on for those who have not heard of that yet."""
        self.open_requests = 0
        self.idle_since = clock.now()
        """When the last request ended."""
        self.traffic = Changes()
        """Marked when a request begins or ends."""
        self.fingerprint = engine.facts.fingerprint
        """Of the whole run, once its coordinator has told it."""
        self._engine = engine
        self._vocabulary = vocabulary
        self._clock = clock
        self._nursery = nursery
        self._turns = StepTurns(load.stages, clock, nursery)
        self.lanes = LaneTurns(LaneQueuePolicy(load.lanes), clock)
        self._holding = trio.Lock()
        """Two that each have some of the lanes would wait for each other."""
        self._cause: P2PMeshError | None = None
        """Why the run is over."""
        self._sequences: dict[tuple[bytes, int], Sequence] = {}
        self._pace = Pace()
        self.served = ServedSteps()
        self._prefixes = Prefixes(load, is_possible=engine.facts.shares_prefixes)
        self._report = report
        self.used: Callable[[str, str, int, int], None] = lambda peer, model, tokens, requests: None
        """Told of what peers asked for, "" for our own clients: the model, tokens, and a request at its start."""
        self.ended = Changes()
        """Marked when a sequence ends."""

    def attach(self, stage: FrameTaker) -> None:
        """Stage 0 is up."""
        self._turns.attach(stage)

    @property
    def active_sequences(self) -> int:
        """Sequences that generate now."""
        return len(self._sequences)

    @property
    def step_us(self) -> int:
        """From one token to the next of a sequence, as measured; 0 before."""
        return self._pace.step_us

    async def deliver(self, frame: StageFrame) -> None:
        """A frame of the last stage; one for a sequence that is over is late, and dropped."""
        if self._watch is not None:
            self._watch.hear()
        sequence = self._sequences.get((frame.request_id, frame.sequence))
        if sequence is not None:
            await sequence.deliver(frame)

    def fail_all(self, error: P2PMeshError) -> None:
        """The run broke: every sequence ends with its cause, and so do requests that wait for one."""
        self._cause = error
        for sequence in tuple(self._sequences.values()):
            sequence.end_with_run(error.code, error.message)

    async def probe(self, request_id: bytes, steps: int) -> ProbeResult:
        """One real token through every stage, and up to ``steps`` more as long as that takes no more than a moment."""
        times = [self._clock.now()]
        begin = self._vocabulary.beginning_token
        prompt = Prompt(tokens=(begin if begin is not None else 0,))
        request = GenerationRequest(
            request_id, self.load.model, prompt, SamplingParameters(temperature=0.0), max_tokens=1 + steps
        )
        token = -1
        async with self.generate(request) as events:
            async for event in events:
                tokens = getattr(event, "tokens", ())
                if tokens:
                    times.append(self._clock.now())
                    token = tokens[0] if token < 0 else token
                if len(times) > LEAST_PROBE_STEPS + 1 and times[-1] - times[1] > MOST_PROBED_US:
                    break
        elapsed = [later - earlier for earlier, later in pairwise(times)] or [self._clock.now() - times[0]]
        return ProbeResult(token, elapsed[0], round(median(elapsed[1:])) if elapsed[1:] else 0)

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, peer: str = ""
    ) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        """Events of one request of a ``peer``, "" for this one's own clients; ``GenerationStarted`` first.

        Leaving the scope cancels it on every stage.
        """
        with self._counted():
            async with self._admitted(request, Claimant(peer, request.client)) as events:
                yield events

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """From its first moment here, so that no run ends while a prompt is tokenised or waits for a lane."""
        self.open_requests += 1
        self.traffic.mark()
        try:
            yield
        finally:
            self.open_requests -= 1
            self.idle_since = self._clock.now()
            self.traffic.mark()

    @asynccontextmanager
    async def _admitted(
        self, request: GenerationRequest, claimant: Claimant
    ) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        prompt, is_reasoning = await self._tokenize(request.prompt, request.tools, add_special=True)
        self._check_length(prompt, self._checked(request.history))
        self._check_biased(tuple(token for token, _ in request.sampling.logit_bias))
        ticket = await self.lanes.take(claimant)
        try:
            await self._prefixes.wait_for_equal(request, prompt)
            sequence = self._open_sequence(request, prompt)
        except BaseException:
            self.lanes.give_back(ticket)
            raise
        self._nursery.start_soon(self._run_sequence, sequence, ticket)
        try:
            call_format = "" if request.tools is None else self._engine.facts.call_format
            load = self.load
            stages = tuple(RoutedStage(entry.peer_id, entry.layer_start, entry.layer_end) for entry in load.stages)
            started = GenerationStarted(
                prompt, load.run_id, self.fingerprint, sequence.max_tokens, is_reasoning, call_format,
                load.model_digest, stages,
            )  # fmt: skip
            self._note_used(claimant.peer, 0, 1)
            async with aclosing(self._events(sequence, started, claimant.peer)) as events:
                yield events
        finally:
            sequence.cancel()

    async def tokenize(self, prompt: Prompt, tools: ToolUse | None, *, add_special: bool) -> tuple[int, ...]:
        """Ids of a text or a conversation as a request would have them."""
        tokens, _ = await self._tokenize(prompt, tools, add_special=add_special)
        return tokens

    def text_of(self, tokens: tuple[int, ...]) -> str:
        """The text of ids, without control tokens; U+FFFD where bytes are no character."""
        pieces = self._vocabulary.pieces
        return b"".join(pieces[token] for token in self._checked(tokens)).decode("utf-8", "replace")

    async def _run_sequence(self, sequence: Sequence, ticket: int) -> None:
        """Apart from the request's own task, so that the lane is free only once every stage was told."""
        self._keep_watch()
        try:
            await sequence.run()
        finally:
            self._sequences.pop(sequence.key, None)
            self._prefixes.note_over(sequence.key)
            self._turns.leave(sequence.key)
            self._end_watch()
            self.lanes.give_back(ticket)
            self.ended.mark()

    def _keep_watch(self) -> None:
        """While a sequence is on its way its stages are asked whether they live as soon as nothing comes."""
        if self._watch is not None:
            self._watch.hear()
        else:
            stages = ((PeerId(entry.peer_id), entry.addresses) for entry in self.load.stages)
            stage = self._turns.stage
            self._watch = self._vigils.watch(stages, lambda _, error: stage.fail(unreachable(error)))

    def _end_watch(self) -> None:
        if self._watch is not None and not self._sequences:
            self._watch.end()
            self._watch = None

    def _note_used(self, peer: str, tokens: int, requests: int = 0) -> None:
        """Probes are nobody's use."""
        if self.is_published and (tokens or requests):
            self.used(peer, self.load.model, tokens, requests)

    async def _events(
        self, sequence: Sequence, started: GenerationStarted, peer: str
    ) -> AsyncGenerator[GenerationEvent, None]:
        yield replace(started, cached_tokens=await self._reused_rows(sequence))
        meter = self._pace.meter(self._clock.now(), sequence.sent_tokens)
        async with aclosing(sequence.events()) as events:
            async for event in events:
                if not isinstance(event, GenerationFinished):
                    step_us = meter.note_token(self._clock.now(), is_behind=sequence.is_unread)
                    self._note_step(step_us, event)
                self._note_used(peer, len(getattr(event, "tokens", ())))
                yield event

    async def _reused_rows(self, sequence: Sequence) -> int:
        rows = await sequence.reused_rows()
        if sequence.prefix is not None:
            self._prefixes.note_reused(sequence.prefix, rows)
        return rows

    def _note_step(self, step_us: int | None, event: GenerationEvent) -> None:
        if step_us is None or not self.is_published or len(self._sequences) != 1:
            return
        compared = self.served.note(step_us, len(getattr(event, "tokens", ())))
        if compared is not None and compared.predicted_us:
            self._report("tpot_compared", describe_driven(self.load, compared))

    def _open_sequence(self, request: GenerationRequest, prompt: tuple[int, ...]) -> Sequence:
        if self._cause is not None:
            raise self._cause  # it ended while the request waited for its lane
        stage = self._turns.stage
        prefix = self._prefixes.find(request, prompt)
        machine = GenerationMachine(
            prompt,
            request.max_tokens,
            self._vocabulary.end_tokens,
            TextAssembler(self._vocabulary.pieces, request.stop),
            GenerationPolicy(
                chunk_tokens=PREFILL_CHUNK_TOKENS,
                credits=PREFILL_CREDITS,
                context_tokens=self.load.context_tokens,
                prefill_us_per_token=self._pace.prefill_us_per_token,
                step_us=self._pace.step_us,
                slice_tokens=PREFILL_SLICE_TOKENS,
            ),
            request.history,
            Asking(
                len(self.load.stages) if request.continues or prefix else 0,
                prefix.rows if prefix else 0,
                continues=bool(request.continues),
            ),
        )
        start = SequenceStart(
            request,
            self.load.run_id,
            prompt,
            self._vocabulary.pieces,
            self._grammar_of(request, prompt),
            self._engine.facts.hidden_size,
            prefix,
        )
        key = (request.request_id, request.sequence)
        note_read = partial(self._prefixes.note_read, key, prompt)
        sequence = Sequence(start, machine, self._turns.submit, self._clock, stage.fail, note_read)
        if key in self._sequences:
            raise Refused(ErrorCode.REQUEST_INVALID, "a request id is used twice")
        self._sequences[key] = sequence
        if not request.wants_embedding:
            self._prefixes.note_opened(key, prompt)
        return sequence

    def _grammar_of(self, request: GenerationRequest, prompt: tuple[int, ...]) -> Grammar | None:
        """What the last stage holds the answer to; after a loss the same, so it is read off the tokens."""
        end = b"".join(self._vocabulary.pieces[token] for token in prompt[-_REASONING_MARK_TOKENS:])
        is_reasoning = opens_reasoning(end.decode("utf-8", "replace"))
        form = find_format(self._engine.facts.call_format)
        return bind_answer(request.grammar, request.tools, form, is_reasoning=is_reasoning)

    @asynccontextmanager
    async def held(self, quiet_s: float) -> AsyncIterator[None]:
        """Once nobody has asked for anything for so long: no sequence is left, and requests wait for a lane.

        Lanes are taken in turn with those who wait already.
        """
        while (left_s := self._quiet_in_s(quiet_s)) > 0:
            with trio.move_on_after(left_s):
                await self.traffic.wait_beyond(self.traffic.count)
        taken: list[int] = []
        async with self._holding:
            try:
                for _ in range(self.load.lanes):
                    taken.append(await self.lanes.take(_MOVER))
                yield
            finally:
                for ticket in taken:
                    self.lanes.give_back(ticket)

    def _quiet_in_s(self, quiet_s: float) -> float:
        if quiet_s and self.open_requests:
            return quiet_s
        return quiet_s - (self._clock.now() - self.idle_since) / MICROS_PER_SECOND if quiet_s else 0

    async def _tokenize(
        self, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> tuple[tuple[int, ...], bool]:
        """Ids, and whether the prompt ends within a block of reasoning."""
        with trio.move_on_after(TOKENIZE_TIMEOUT_S):
            if prompt.tokens is not None:
                return self._checked(prompt.tokens), False
            if prompt.text is not None:
                return await self._engine.tokenize(prompt.text, add_special=add_special, parse_special=True), False
            assert prompt.messages is not None
            text = await self._engine.render_chat(prompt.messages, prompt.reasoning_effort, tools)
            tokens = await self._engine.tokenize(text, add_special=True, parse_special=True)
            return self._begun_once(tokens), opens_reasoning(text)
        raise Refused(ErrorCode.DEADLINE_EXCEEDED, f"the prompt was not tokenised in {TOKENIZE_TIMEOUT_S:.0f} s")

    def _begun_once(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Templates that write the beginning token themselves make the tokenizer's a second one."""
        begin = self._vocabulary.beginning_token
        return tokens[1:] if begin is not None and tokens[:2] == (begin, begin) else tokens

    def _checked(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        highest = self._engine.facts.vocabulary_size
        if any(not 0 <= token < highest for token in tokens):
            raise Refused(ErrorCode.REQUEST_INVALID, f"a token id is not in 0 to {highest - 1}")
        return tokens

    def _check_biased(self, tokens: tuple[int, ...]) -> None:
        highest = self._engine.facts.vocabulary_size
        for token in tokens:
            if not 0 <= token < highest:
                text = f"logit_bias names the token id {token}, and the model's are 0 to {highest - 1}"
                raise Refused(ErrorCode.LOGIT_BIAS_INVALID, text)

    def _check_length(self, prompt: tuple[int, ...], history: tuple[int, ...]) -> None:
        if not prompt:
            raise Refused(ErrorCode.REQUEST_INVALID, "the prompt is empty")
        if len(prompt) >= self.load.context_tokens:
            raise Refused(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                # Clients know this error by the words "this model's maximum context length is", whatever its code.
                f"this model's maximum context length is {self.load.context_tokens} tokens, at least one of them for "
                f"the answer; the prompt has {len(prompt)}: shorten it",
            )
        if len(prompt) + len(history) > self.load.context_tokens:
            text = f"{len(prompt)} tokens and {len(history)} of the answer do not fit {self.load.context_tokens}"
            raise Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, text)


class Drivers:
    """The runs that are driven from here."""

    def __init__(
        self, clock: Clock, entropy: Entropy, vigils: Vigils, changed: Callable[[], None], report: Report
    ) -> None:
        self._report = report
        self._vigils = vigils
        self._clock = clock
        self._entropy = entropy
        self._changed = changed
        self._drivers: dict[bytes, Driver] = {}
        self.used: Callable[[str, str, int, int], None] = lambda peer, model, tokens, requests: None
        """See ``Driver.used``."""
        self._vocabularies: dict[str, Vocabulary] = {}
        """By the digest of the stage's file, that of the newest run last."""
        self.clients = ClientCap()
        """Clients of other peers, over all drivers."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Runs the sequences of every driver until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def prepare(self, load: LoadStage, engine: Engine) -> Driver | None:
        """A driver for a stage that is loaded, if it is stage 0."""
        if load.index != 0 or self._nursery is None:
            return None
        nursery, vocabulary = self._nursery, await self._vocabulary_of(load, engine)
        driver = Driver(load, engine, vocabulary, self._clock, nursery, self._vigils, self._report)
        self._drivers[load.run_id] = driver
        driver.used = self.used
        return driver

    async def _vocabulary_of(self, load: LoadStage, engine: Engine) -> Vocabulary:
        """That of the run before, if its stage was the same file: megabytes, and a new run is waited for."""
        digest = load.artifact_digest
        known = self._vocabularies.pop(digest, None)
        if known is None:
            known = Vocabulary(await engine.pieces(), engine.facts.beginning_token, engine.facts.end_tokens)
        self._vocabularies[digest] = known
        while len(self._vocabularies) > MAX_VOCABULARIES:
            del self._vocabularies[next(iter(self._vocabularies))]
        return known

    def remove(self, driver: Driver, error: P2PMeshError) -> None:
        """Its stage is gone: nothing is routed to it any more, and what it generates fails with the cause."""
        self._drivers.pop(driver.load.run_id, None)
        driver.fail_all(error)
        self._changed()

    def fail_run(self, run_id: bytes, error: P2PMeshError) -> None:
        """The run is ending: its sequences hear the cause before their stage is stopped."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.is_published = False
            driver.fail_all(error)
            self._changed()

    def note_leaving(self, driver: Driver, *, is_leaving: bool) -> None:
        """The driver is announced no more, or again; whoever still asks it is served."""
        driver.is_leaving = is_leaving
        self._changed()

    def describe(self) -> list[dict[str, object]]:
        """The published runs, with what their tokens were predicted to take and what they take."""
        return [describe_driven(one.load, one.served.comparison()) for one in self.all() if one.is_published]

    def all(self) -> tuple[Driver, ...]:
        """Every driver, oldest first."""
        return tuple(self._drivers.values())

    async def wait_idle(self) -> None:
        """Until no sequence generates here."""
        for driver in self.all():
            seen = driver.ended.count
            while driver.active_sequences:
                seen = await driver.ended.wait_beyond(seen)

    @contextmanager
    def served(self, client: Claimant) -> Iterator[None]:
        """While a request of another peer's client is served; refused where the owner wants no more of them."""
        if not self.clients.enter(client):
            text = f"this peer serves others' clients no more than {self.clients.most} at a time; try again"
            raise Refused(ErrorCode.OVERLOADED, text)
        try:
            yield
        finally:
            self.clients.leave(client)

    def find_published(self, model: str) -> Driver | None:
        """The newest driver of a model that may be routed to."""
        return next((d for d in reversed(self.all()) if d.is_published and d.load.model == model), None)

    def load_of(self, run_id: bytes) -> LoadStage:
        """The order that a run's stage 0 was loaded by; ``STAGE_UNKNOWN`` if it is not driven here."""
        return self._find(run_id).load

    async def probe(self, run_id: bytes, steps: int) -> ProbeResult:
        """Real tokens through a run; see ``Driver.probe``."""
        return await self._find(run_id).probe(self._entropy.random_bytes(16), steps)

    @asynccontextmanager
    async def held(self, run_id: bytes, quiet_s: float) -> AsyncIterator[None]:
        """See ``Driver.held``."""
        async with self._find(run_id).held(quiet_s):
            yield

    def publish(self, asked: PublishRun) -> None:
        """The run may be routed to."""
        driver = self._find(asked.run_id)
        driver.fingerprint = asked.fingerprint
        if asked.predicted_us or not driver.is_published:
            driver.served.expect(asked.predicted_us)
        driver.is_published = True
        self._changed()

    def _find(self, run_id: bytes) -> Driver:
        driver = self._drivers.get(run_id)
        if driver is None:
            raise Refused(ErrorCode.STAGE_UNKNOWN, "this peer drives no such run")
        return driver


def describe_driven(load: LoadStage, compared: Comparison | None) -> dict[str, object]:
    """As event fields; null for what is not known yet."""
    return {
        "model": load.model,
        "run_id": load.run_id.hex(),
        "stage_count": len(load.stages),
        "predicted_tpot_us": compared.predicted_us or None if compared else None,
        "measured_tpot_us": compared.measured_us if compared else None,
        "error_percent": compared.error_percent if compared else None,
        "tokens": compared.tokens if compared else 0,
    }
