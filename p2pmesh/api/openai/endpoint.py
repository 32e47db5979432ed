"""One completion endpoint as an ASGI application: read, parse, generate, answer, and stop when the client leaves.

Owns the order of things on the connection. Errors before the first byte become an HTTP status; therefore nothing is
sent before the driver has admitted the request (``GenerationStarted``). What a body means stays with the shapes.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import trio
from starlette.types import Receive, Scope, Send

from p2pmesh.api.backend import Backend
from p2pmesh.api.errors import error_body, error_of
from p2pmesh.api.exchange import (
    ClientGone,
    EventStream,
    encode_json,
    internal_error,
    is_client_gone,
    read_body,
    request_id_of,
    send_error,
    send_json,
)
from p2pmesh.api.openai.fields import decode_object
from p2pmesh.api.openai.parameters import Call
from p2pmesh.api.openai.shape import AnswerHead, AnswerShape, Piece, Usage
from p2pmesh.base.errors import ErrorCode, LocalProtocolError, P2PMeshError, Refused
from p2pmesh.wire.generation import GenerationDelta, GenerationEvent, GenerationFinished, GenerationStarted

_DONE = "[DONE]"


class Answer(Protocol):
    """The way in which one answer is sent."""

    async def begin(self, started: GenerationStarted) -> None:
        """The request was admitted."""

    async def add(self, delta: GenerationDelta) -> None:
        """More tokens; the text is empty where it lags behind."""

    async def finish(self, finished: GenerationFinished) -> None:
        """The generation ended well; its lane is free again."""

    async def fail(self, error: P2PMeshError) -> None:
        """The generation ended badly, or never began."""


class GenerationEndpoint:
    """An ASGI application for ``POST`` requests of one shape."""

    def __init__(self, backend: Backend, shape: AnswerShape) -> None:
        self._backend = backend
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = await self._accept(scope, receive)
        except P2PMeshError as error:
            await send_error(send, error, self._backend.status_retry_after_s())
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_disconnect, receive, nursery.cancel_scope)
            answer: Answer
            if call.is_streamed:
                stream = EventStream(send)
                nursery.start_soon(_ping, stream, nursery.cancel_scope)
                answer = StreamedAnswer(self._backend, self._shape, call, stream, send)
            else:
                answer = WholeAnswer(self._backend, self._shape, call, send)
            await self._generate(call, answer)
            nursery.cancel_scope.cancel()

    async def _accept(self, scope: Scope, receive: Receive) -> Call:
        body = decode_object(await read_body(scope, receive))
        call = self._shape.parse(body, request_id_of(scope), self._backend.random_seed)
        if not self._backend.is_ready():
            raise Refused(ErrorCode.MODEL_NOT_READY, self._backend.not_ready_reason(call.request.model))
        return call

    async def _generate(self, call: Call, answer: Answer) -> None:
        """Never raises but ``trio.Cancelled``, because the nursery round it would wrap anything else in a group."""
        try:
            try:
                async with self._backend.generate(call.request) as events:
                    finished = await _relay(events, answer)
                await answer.finish(finished)
            except Exception as raised:  # noqa: BLE001 - the edge: any failure of a generation becomes an answer
                if not is_client_gone(raised):
                    await answer.fail(error_of(raised) or internal_error(raised))
        except ClientGone:
            return


async def _relay(events: AsyncIterator[GenerationEvent], answer: Answer) -> GenerationFinished:
    async for event in events:
        if isinstance(event, GenerationStarted):
            await answer.begin(event)
        elif isinstance(event, GenerationDelta):
            await answer.add(event)
        else:
            return event
    raise LocalProtocolError(ErrorCode.INTERNAL, "the generation ended without saying why")


async def _cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _ping(stream: EventStream, scope: trio.CancelScope) -> None:
    try:
        await stream.ping_when_silent()
    except ClientGone:
        scope.cancel()


class _AnswerFacts:
    """What both ways of answering remember between the events of a generation."""

    def __init__(self, backend: Backend, shape: AnswerShape, call: Call) -> None:
        self._backend = backend
        self._shape = shape
        self._call = call
        self._started: GenerationStarted | None = None
        self._created_unix_s = backend.now_unix_s()

    def _head(self) -> AnswerHead:
        return AnswerHead(
            id=self._shape.id_prefix + self._call.request.request_id.hex(),
            created_unix_s=self._created_unix_s,
            model=self._call.request.model,
            fingerprint=self._require_started().fingerprint,
            wants_usage_chunk=self._call.wants_usage_chunk,
            prompt_token_ids=self._require_started().prompt_tokens if self._call.wants_token_ids else None,
        )

    def _piece(self, text: str, tokens: tuple[int, ...]) -> Piece:
        return Piece(text, tokens if self._call.wants_token_ids else None)

    def _usage(self, finished: GenerationFinished) -> Usage:
        return Usage(len(self._require_started().prompt_tokens), finished.completion_tokens)

    def _require_started(self) -> GenerationStarted:
        if self._started is None:
            raise LocalProtocolError(ErrorCode.INTERNAL, "the generation produced text before it had started")
        return self._started

    def _route_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-p2pmesh-run-id", self._require_started().run_id.hex().encode())]


class WholeAnswer(_AnswerFacts):
    """One JSON object when all is done."""

    def __init__(self, backend: Backend, shape: AnswerShape, call: Call, send: Send) -> None:
        super().__init__(backend, shape, call)
        self._send = send
        self._pieces: list[str] = []
        self._tokens: list[int] = []

    async def begin(self, started: GenerationStarted) -> None:
        """Notes the head."""
        self._started = started

    async def add(self, delta: GenerationDelta) -> None:
        """Collects; the backend bounds the number of tokens by the context."""
        self._pieces.append(delta.text)
        self._tokens += delta.tokens

    async def finish(self, finished: GenerationFinished) -> None:
        """Sends the answer."""
        piece = self._piece("".join(self._pieces) + finished.text, tuple(self._tokens))
        whole = self._shape.whole(self._head(), piece, finished.reason, self._usage(finished))
        await send_json(self._send, 200, whole, [*self._route_headers(), *_recovery_facts(finished)])

    async def fail(self, error: P2PMeshError) -> None:
        """Sends the error in its place."""
        await send_error(self._send, error, self._backend.status_retry_after_s(), self._shape.prompt_param)


class StreamedAnswer(_AnswerFacts):
    """Server-sent events as the text arises."""

    def __init__(self, backend: Backend, shape: AnswerShape, call: Call, stream: EventStream, send: Send) -> None:
        super().__init__(backend, shape, call)
        self._stream = stream
        self._send = send

    async def begin(self, started: GenerationStarted) -> None:
        """Sends the headers and the opening chunk."""
        self._started = started
        await self._stream.start(self._route_headers())
        opening = self._shape.opening(self._head())
        if opening is not None:
            await self._write(opening)

    async def add(self, delta: GenerationDelta) -> None:
        """Sends a chunk; one without text only to a client that wants the tokens."""
        if delta.text or self._call.wants_token_ids:
            await self._write(self._shape.delta(self._head(), self._piece(delta.text, delta.tokens)))

    async def finish(self, finished: GenerationFinished) -> None:
        """Sends the text held back, the finish reason, the usage if asked for, and the end mark."""
        head = self._head()
        chunks = [self._shape.delta(head, self._piece(finished.text, ()))] if finished.text else []
        chunks.append(self._shape.closing(head, finished.reason))
        if head.wants_usage_chunk:
            chunks.append(self._shape.usage(head, self._usage(finished)))
        facts = [f"{name.decode()}: {value.decode()}" for name, value in _recovery_facts(finished)]
        if facts:  # the headers are long gone; clients read over comments, so the body is that of an undisturbed run
            await self._stream.comment(*facts)
        await self._stream.write(*(encode_json(chunk) for chunk in chunks), _DONE)
        await self._stream.end()

    async def fail(self, error: P2PMeshError) -> None:
        """An HTTP status before the first byte, an event after it."""
        if not self._stream.has_started():
            await send_error(self._send, error, self._backend.status_retry_after_s(), self._shape.prompt_param)
            return
        await self._stream.write(encode_json(error_body(error, self._shape.prompt_param)))
        await self._stream.end()

    async def _write(self, chunk: dict[str, Any]) -> None:
        await self._stream.write(encode_json(chunk))


def _recovery_facts(finished: GenerationFinished) -> list[tuple[bytes, bytes]]:
    """What a client may know of losses: none of it without one."""
    if finished.recoveries == 0:
        return []
    kind = b"exact" if finished.is_exact else b"inexact"
    return [(b"x-p2pmesh-recoveries", b"%d" % finished.recoveries), (b"x-p2pmesh-recovery", kind)]
