"""One generating endpoint as an ASGI application: read, parse, generate, answer, and stop when the client leaves.

Owns the order of things on the connection, and that a request with several choices is as many generations, a bounded
number at a time. Errors before the first byte become an HTTP status; therefore nothing is sent before a driver has
admitted a choice (``GenerationStarted``), unless a stream waits so long for it that somebody on the way may take
silence for death. What a body means stays with the shapes.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Protocol

import trio
from starlette.types import Receive, Scope, Send

from p2pmesh.api.backend import Backend
from p2pmesh.api.errors import error_of
from p2pmesh.api.exchange import (
    ClientGone,
    Drain,
    EventStream,
    Headers,
    drain_of,
    encode_json,
    internal_error,
    is_client_gone,
    read_body,
    request_id_of,
    send_error,
    send_json,
)
from p2pmesh.api.openai.asking import asker_of
from p2pmesh.api.openai.fields import decode_object
from p2pmesh.api.openai.logprobs import mean_logprob
from p2pmesh.api.openai.parameters import Call
from p2pmesh.api.openai.shape import (
    AnswerHead,
    AnswerShape,
    Choice,
    ChoiceReader,
    Events,
    Piece,
    ServerEvent,
    StreamShape,
    Usage,
)
from p2pmesh.base.errors import ErrorCode, LocalProtocolError, P2PMeshError, Refused
from p2pmesh.wire.generation import (
    Fact,
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    Spent,
    TokenLogprob,
)

CONCURRENT_CHOICES = 8
"""Choices of one request that are generated at a time: one client must not take all lanes of a model."""
LONG_PROMPT_CHARACTERS = 65_536
"""Of a prompt as long as that one choice is admitted before the others are asked for: each has it tokenised anew, and a
prompt that is refused, which may take seconds to find out, need be refused only once."""
LATE_S = 10.0
"""A stream that nobody has admitted by then is opened, and kept alive: a placement may be on its way."""


class Answer(Protocol):
    """The way in which one answer is sent. Events of a choice come in order, those of several in any."""

    async def begin(self, index: int, started: GenerationStarted) -> None:
        """The choice was admitted."""

    async def add(self, index: int, delta: GenerationDelta) -> None:
        """More tokens; the text is empty where it lags behind."""

    async def close(self, index: int, finished: GenerationFinished) -> None:
        """The choice is complete."""

    async def finish(self) -> None:
        """All choices are, and their lanes are free again."""

    async def fail(self, error: P2PMeshError) -> None:
        """A generation ended badly, or never began."""


class GenerationEndpoint:
    """An ASGI application for ``POST`` requests of one shape."""

    def __init__(self, backend: Backend, shape: AnswerShape) -> None:
        self._backend = backend
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = await self._accept(scope, receive)
        except P2PMeshError as error:
            await _send_refusal(send, self._backend, self._shape, error)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
            answer: Answer
            if call.is_streamed:
                stream = EventStream(send)
                nursery.start_soon(_ping, stream, nursery.cancel_scope)
                answer = streamed = StreamedAnswer(self._backend, self._shape, call, stream, send)
                nursery.start_soon(_open_late, streamed, nursery.cancel_scope)
            else:
                answer = WholeAnswer(self._backend, self._shape, call, send)
            await self._generate(call, answer, drain_of(scope))
            nursery.cancel_scope.cancel()

    async def _accept(self, scope: Scope, receive: Receive) -> Call:
        body = decode_object(await read_body(scope, receive))
        call = self._shape.parse(body, request_id_of(scope), self._backend.random_seed)
        if not self._backend.is_ready() and not self._backend.is_awaited(call.request.model):
            raise Refused(ErrorCode.MODEL_NOT_READY, self._backend.not_ready_reason(call.request.model))
        return replace(call, asker=replace(asker_of(body, scope), is_streaming=call.is_streamed))

    async def _generate(self, call: Call, answer: Answer, drain: Drain) -> None:
        """Never raises but ``trio.Cancelled``, because the nursery round it would wrap anything else in a group."""
        try:
            try:
                with drain.interruptible():
                    await self._generate_all(call, answer)
                await answer.finish()
            except Exception as raised:  # noqa: BLE001 - the edge: any failure of a generation becomes an answer
                if not is_client_gone(raised):
                    await answer.fail(error_of(raised) or internal_error(raised))
        except ClientGone:
            return

    async def _generate_all(self, call: Call, answer: Answer) -> None:
        if len(call.requests) == 1:
            await self._generate_one(call, 0, answer)
            return
        turns = trio.Semaphore(CONCURRENT_CHOICES)
        admitted = trio.Event()
        async with trio.open_nursery() as nursery:
            for index in range(len(call.requests)):
                nursery.start_soon(self._generate_in_turn, turns, call, index, answer, admitted)
                if index == 0 and _has_long_prompt(call):
                    await admitted.wait()

    async def _generate_in_turn(
        self, turns: trio.Semaphore, call: Call, index: int, answer: Answer, admitted: trio.Event
    ) -> None:
        async with turns:
            await self._generate_one(call, index, answer, admitted)

    async def _generate_one(self, call: Call, index: int, answer: Answer, admitted: trio.Event | None = None) -> None:
        """The lane is free before the client is told of the end, which it may be slow to take."""
        async with self._backend.generate(call.requests[index], call.asker) as events:
            finished = await _relay(events, answer, index, admitted)
        await answer.close(index, finished)


def _has_long_prompt(call: Call) -> bool:
    return any(request.prompt.size_characters > LONG_PROMPT_CHARACTERS for request in call.requests[:: call.candidates])


async def _relay(
    events: AsyncIterator[GenerationEvent], answer: Answer, index: int, admitted: trio.Event | None
) -> GenerationFinished:
    async for event in events:
        if isinstance(event, GenerationStarted):
            if admitted is not None:
                admitted.set()
            await answer.begin(index, event)
        elif isinstance(event, GenerationDelta):
            await answer.add(index, event)
        else:
            return event
    raise LocalProtocolError(ErrorCode.INTERNAL, "the generation ended without saying why")


async def cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    """Runs beside an answer whose body was read, and ends it with its client."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _ping(stream: EventStream, scope: trio.CancelScope) -> None:
    try:
        await stream.ping_when_silent()
    except ClientGone:
        scope.cancel()


async def _open_late(answer: "StreamedAnswer", scope: trio.CancelScope) -> None:
    try:
        await trio.sleep(LATE_S)
        await answer.open(())
    except ClientGone:
        scope.cancel()


async def _send_refusal(send: Send, backend: Backend, shape: AnswerShape, error: P2PMeshError) -> None:
    await send_error(send, error, backend.status_retry_after_s(), shape.error(error))


class _AnswerFacts:
    """What both ways of answering remember between the events of the generations."""

    def __init__(self, backend: Backend, shape: AnswerShape, call: Call) -> None:
        self._backend = backend
        self._shape = shape
        self._call = call
        self._created_unix_s = backend.now_unix_s()
        self._started: GenerationStarted | None = None
        """Of the choice that was admitted first."""
        self._readers: dict[int, ChoiceReader] = {}
        self._prompt_tokens: dict[int, int] = {}
        """By prompt, each counted once however many choices it has."""
        self._cached_tokens: dict[int, int] = {}
        """By prompt, of the choice that found least: the others may have had its rows."""
        self._finished: list[GenerationFinished] = []

    def _note_start(self, index: int, started: GenerationStarted) -> None:
        self._started = self._started or started
        self._readers[index] = self._shape.reader(self._call, started)
        prompt = self._call.prompt_of(index)
        self._prompt_tokens[prompt] = len(started.prompt_tokens)
        self._cached_tokens[prompt] = min(self._cached_tokens.get(prompt, started.cached_tokens), started.cached_tokens)

    def _reader(self, index: int) -> ChoiceReader:
        reader = self._readers.get(index)
        if reader is None:
            raise LocalProtocolError(ErrorCode.INTERNAL, "the generation produced text before it had started")
        return reader

    def _note_end(self, index: int, finished: GenerationFinished) -> tuple[Piece, FinishReason]:
        self._finished.append(finished)
        return self._reader(index).finish(finished)

    def _prompt_ids(self, started: GenerationStarted) -> tuple[int, ...] | None:
        return started.prompt_tokens if self._call.wants_token_ids else None

    def _echo(self, index: int) -> Piece | None:
        if not self._call.echoes:
            return None
        return Piece(self._call.echoes[index], () if self._call.wants_token_ids else None)

    def _head(self) -> AnswerHead:
        return AnswerHead(
            id=self._shape.id_prefix + self._call.request.request_id.hex(),
            created_unix_s=self._created_unix_s,
            model=self._require_started().model or self._call.request.model,
            fingerprint=self._require_started().fingerprint,
            wants_usage_chunk=self._call.wants_usage_chunk,
            prompt_tokens=len(self._require_started().prompt_tokens) + self._besides().prompt_tokens,
            cached_tokens=self._require_started().cached_tokens + self._besides().cached_tokens,
            given=self._call.given,
        )

    def _usage(self) -> Usage:
        besides = self._besides()
        return Usage(
            sum(self._prompt_tokens.values()) + besides.prompt_tokens,
            sum(finished.completion_tokens for finished in self._finished) + besides.completion_tokens,
            sum(reader.reasoning_tokens for reader in self._readers.values()),
            sum(self._cached_tokens.values()) + besides.cached_tokens,
        )

    def _besides(self) -> Spent:
        """What choices cost beyond what they show."""
        return sum((finished.besides for finished in self._finished), Spent())

    def _require_started(self) -> GenerationStarted:
        if self._started is None:
            raise LocalProtocolError(ErrorCode.INTERNAL, "the generation produced text before it had started")
        return self._started

    def _route_headers(self) -> list[tuple[bytes, bytes]]:
        """Where the choice that was admitted first began; after a loss others may have gone on."""
        return route_headers(self._require_started())

    def _late_facts(self) -> list[tuple[bytes, bytes]]:
        """What a client may know of losses, none of it without one, and of what was done to its answer."""
        told = dict.fromkeys(fact for finished in self._finished for fact in finished.facts)
        recoveries = sum(finished.recoveries for finished in self._finished)
        if recoveries == 0:
            return _encoded(told)
        kind = b"exact" if all(finished.is_exact for finished in self._finished) else b"inexact"
        return [(b"x-p2pmesh-recoveries", b"%d" % recoveries), (b"x-p2pmesh-recovery", kind), *_encoded(told)]


class WholeAnswer(_AnswerFacts):
    """One JSON object when all is done."""

    def __init__(self, backend: Backend, shape: AnswerShape, call: Call, send: Send) -> None:
        super().__init__(backend, shape, call)
        self._send = send
        self._parts: dict[int, list[Piece]] = {}
        self._prompts: dict[int, tuple[int, ...] | None] = {}
        self._reasons: dict[int, FinishReason] = {}
        self._stops: dict[int, str] = {}

    async def begin(self, index: int, started: GenerationStarted) -> None:
        """Notes the head."""
        self._note_start(index, started)
        self._prompts[index] = self._prompt_ids(started)
        echo = self._echo(index)
        self._parts[index] = [] if echo is None else [echo]

    async def add(self, index: int, delta: GenerationDelta) -> None:
        """Collects; the backend bounds the number of tokens by the context."""
        piece = self._reader(index).add(delta)
        self._parts[index].append(piece)

    async def close(self, index: int, finished: GenerationFinished) -> None:
        """Collects what was held back."""
        piece, self._reasons[index] = self._note_end(index, finished)
        self._parts[index].append(piece)
        self._stops[index] = finished.stop

    async def finish(self) -> None:
        """Sends the answer."""
        whole = self._shape.whole(self._head(), self._choices(), self._usage())
        await send_json(self._send, 200, whole, [*self._route_headers(), *self._late_facts()])

    def _choices(self) -> list[Choice]:
        """Those to show, numbered anew: of each prompt the best ``n``, which are all unless ``best_of`` is above it."""
        call = self._call
        shown: list[Choice] = []
        for first in range(0, len(call.requests), call.candidates):
            group = [self._choice(index) for index in range(first, first + call.candidates)]
            if call.candidates > call.n:  # sorting is stable: among equals the earlier one
                group = sorted(group, key=lambda choice: -mean_logprob(choice.piece.logprobs))[: call.n]
            shown += group
        return [replace(self._as_asked(choice), index=index) for index, choice in enumerate(shown)]

    def _as_asked(self, choice: Choice) -> Choice:
        """Without the log probabilities that only ``best_of`` had use for."""
        return choice if self._call.shows_logprobs else replace(choice, piece=replace(choice.piece, logprobs=()))

    def _choice(self, index: int) -> Choice:
        parts = self._parts[index]
        ids = tuple(token for part in parts for token in part.token_ids or ())
        logprobs: tuple[TokenLogprob, ...] = tuple(one for part in parts for one in part.logprobs)
        piece = Piece(
            "".join(part.text for part in parts),
            ids if self._call.wants_token_ids else None,
            "".join(part.reasoning for part in parts),
            logprobs,
            tuple(one for part in parts for one in part.calls),
        )
        return Choice(index, piece, self._reasons[index], self._prompts[index], self._stops[index])

    async def fail(self, error: P2PMeshError) -> None:
        """Sends the error in its place."""
        await _send_refusal(self._send, self._backend, self._shape, error)


class StreamedAnswer(_AnswerFacts):
    """Server-sent events as the text arises."""

    def __init__(self, backend: Backend, shape: AnswerShape, call: Call, stream: EventStream, send: Send) -> None:
        super().__init__(backend, shape, call)
        self._stream = stream
        self._send = send
        self._events: StreamShape = shape.stream(call)
        self._is_open = trio.Event()
        self._opening = trio.Lock()

    async def open(self, facts: Headers) -> None:
        """Sends the headers, and as comments what is known only when they are gone."""
        async with self._opening:
            if not self._stream.has_started():
                await self._stream.start(facts)
            elif facts:
                await self._stream.comment(*(f"{name.decode()}: {value.decode()}" for name, value in facts))

    async def begin(self, index: int, started: GenerationStarted) -> None:
        """Sends the headers with the first choice, and what opens each."""
        is_first = self._started is None
        self._note_start(index, started)
        if is_first:
            await self.open(self._route_headers())
            await self._write(self._events.begin(self._head()))
            self._is_open.set()
        await self._is_open.wait()
        await self._write(self._events.open(index, self._prompt_ids(started)))
        echo = self._echo(index)
        if echo is not None:
            await self._write(self._events.add(index, echo))

    async def add(self, index: int, delta: GenerationDelta) -> None:
        """Sends what there is to show; a piece without text only to a client that wants the tokens."""
        piece = self._reader(index).add(delta)
        if piece.is_shown():
            await self._write(self._events.add(index, piece))

    async def close(self, index: int, finished: GenerationFinished) -> None:
        """Sends the text held back and the finish reason."""
        piece, reason = self._note_end(index, finished)
        held_back = self._events.add(index, piece) if piece.is_shown() else ()
        await self._write((*held_back, *self._events.close(index, reason, finished.stop)))

    async def finish(self) -> None:
        """Sends the usage if asked for, and the end mark."""
        facts = [f"{name.decode()}: {value.decode()}" for name, value in self._late_facts()]
        if facts:  # the headers are long gone; clients read over comments, so the body is that of an undisturbed run
            await self._stream.comment(*facts)
        await self._write(self._events.finish(self._usage()))
        await self._stream.end()

    async def fail(self, error: P2PMeshError) -> None:
        """An HTTP status before the first byte, an event after it."""
        async with self._opening:
            if not self._stream.has_started():
                await _send_refusal(self._send, self._backend, self._shape, error)
                return
        await self._write(self._events.fail(error))
        await self._stream.end()

    async def _write(self, events: Events) -> None:
        if events:
            await self._stream.write(*[(_payload(event), event.name) for event in events])


def route_headers(started: GenerationStarted) -> list[tuple[bytes, bytes]]:
    """What computes an answer, as its headers say it."""
    stages = ", ".join(f"{stage.peer_id} {stage.start}-{stage.end}" for stage in started.stages)
    return [
        (b"x-p2pmesh-run-id", started.run_id.hex().encode()),
        (b"x-p2pmesh-model-digest", started.model_digest.encode()),
        (b"x-p2pmesh-stages", stages.encode()),
        (b"x-p2pmesh-verified", b"yes" if started.is_verified else b"no"),
        *_encoded(started.facts),
    ]


def _encoded(facts: Iterable[Fact]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in facts]


def _payload(event: ServerEvent) -> str:
    return event.data if isinstance(event.data, str) else encode_json(event.data)
