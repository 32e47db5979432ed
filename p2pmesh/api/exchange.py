"""One HTTP exchange over ASGI: body in, JSON or an event stream out, each within a deadline.

Owns what OpenAI's surface and the console share: limits and deadlines, the request id header, the answer to an
unforeseen exception. What a body means stays with the endpoints.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2pmesh.api.errors import error_body, error_headers, error_of, http_error
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.limits import MAX_HTTP_BODY_BYTES

SEND_DEADLINE_S = 30.0
"""So long a client may take nothing of its answer. Sockets and streams see to it (``server``); here is the backstop."""
LEAST_TAKEN_BYTES = 8 * 1024
"""What a client takes in that time at least: half of what the server lets lie unsent before it waits."""
BODY_DEADLINE_S = 60.0
PING_AFTER_SILENCE_S = 5.0
MAX_DISCARDED_BODY_BYTES = 4 * MAX_HTTP_BODY_BYTES

_REQUEST_ID = "p2pmesh.request_id"
_DRAIN = "p2pmesh.drain"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""Made once: ``json.dumps`` makes an encoder for each event."""
_log = logging.getLogger("p2pmesh.api")

Headers = Iterable[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client hung up, or stopped reading for longer than the deadline of a send. Nobody is left to be told."""


def is_client_gone(raised: Exception) -> bool:
    """Whether ``raised``, or a member of it, is ``ClientGone``."""
    if isinstance(raised, ExceptionGroup):
        return any(is_client_gone(inner) for inner in raised.exceptions)
    return isinstance(raised, ClientGone)


def request_id_of(scope: Scope) -> bytes:
    """The id that ``Exchange`` gave to this request."""
    request_id: bytes = scope[_REQUEST_ID]
    return request_id


class Drain:
    """Answers of one server that are being made, which the end of its drain ends in words.

    Whoever makes one stands within ``interruptible``. Bounded by the connections of the server and their streams.
    """

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._is_over = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raises ``Refused(SHUTTING_DOWN)`` for what is within it when the drain ends."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._is_over:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            text = (
                "this node stopped before the answer was whole; send the request again once it runs, or to another node"
            )
            raise Refused(ErrorCode.SHUTTING_DOWN, text)

    def end(self) -> int:
        """How many answers were still being made."""
        self._is_over = True
        for scope in self._scopes:
            scope.cancel()
        return len(self._scopes)

    def told_to(self, app: ASGIApp) -> ASGIApp:
        """``app``, whose requests find this drain with ``drain_of``."""

        async def with_drain(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, _DRAIN: self}, receive, send)

        return with_drain


def drain_of(scope: Scope) -> Drain:
    """That of the server which a request came by; one that never ends where there is none."""
    drain: Drain | None = scope.get(_DRAIN)
    return Drain() if drain is None else drain


class Exchange:
    """Middleware round every request: an id, a deadline for each send, and a 500 instead of a traceback."""

    def __init__(self, app: ASGIApp, new_request_id: Callable[[], bytes], retry_after_s: Callable[[], int]) -> None:
        self._app = app
        self._new_request_id = new_request_id
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_REQUEST_ID] = self._new_request_id()
        sender = _Sender(send, scope[_REQUEST_ID])
        try:
            await self._app(scope, receive, sender)
        except Exception as raised:  # noqa: BLE001 - the edge: a bug costs one request, never the server
            if not is_client_gone(raised):
                await self._answer(raised, sender)

    async def _answer(self, raised: Exception, sender: "_Sender") -> None:
        error = error_of(raised) or internal_error(raised)
        if sender.has_started:
            return
        try:
            await send_error(sender, error, self._retry_after_s())
        except ClientGone:
            return


class _Sender:
    """An ASGI ``send`` with a deadline for each message and the request id among the headers."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._request_id = request_id
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = [*message.get("headers", []), (b"x-request-id", self._request_id.hex().encode())]
            message = {**message, "headers": headers}
        deadline_s = SEND_DEADLINE_S * (1 + len(message.get("body", b"")) // LEAST_TAKEN_BYTES)
        with trio.move_on_after(deadline_s) as scope:
            # The server reports the end of an exchange as a disconnect from within the last send, and who watches for
            # that would cancel this very send: the connection would then neither be reused nor closed.
            scope.shield = _is_last(message)
            await self._send(message)
        if scope.cancelled_caught:
            raise ClientGone


def _is_last(message: Message) -> bool:
    return bool(message["type"] == "http.response.body" and not message.get("more_body", False))


def internal_error(raised: Exception) -> P2PMeshError:
    """Logs an unforeseen exception and gives what a client may know of it."""
    _log.error("unforeseen failure of a request", exc_info=raised)
    return Refused(ErrorCode.INTERNAL, "the node failed unexpectedly; its log says more")


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body of a request.

    Raises ``Refused(REQUEST_TOO_LARGE)``, ``Refused(REQUEST_TIMEOUT)`` or ``ClientGone``. A body over the limit is
    read to its end and dropped, so that the client is listening when the refusal comes; one that declares more than
    is ever dropped is refused at once, and so is one that is encoded (compressed): ``Refused(REQUEST_INVALID)``.
    """
    encoding = dict(scope["headers"]).get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        shown = encoding[:32].decode("ascii", "replace")
        text = f"the body is encoded ({shown}: content-encoding), which is not read here; send it as plain JSON"
        raise Refused(ErrorCode.REQUEST_INVALID, text)
    if _declared_bytes(scope) > MAX_DISCARDED_BODY_BYTES:
        raise _too_large()
    with trio.move_on_after(BODY_DEADLINE_S):
        return await _read_limited(receive)
    raise Refused(ErrorCode.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_DEADLINE_S:.0f} seconds")


async def _read_limited(receive: Receive) -> bytes:
    body = bytearray()
    received_bytes = 0
    more = True
    while more and received_bytes <= MAX_DISCARDED_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        received_bytes += len(piece)
        if received_bytes <= MAX_HTTP_BODY_BYTES:
            body += piece
        more = message.get("more_body", False)
    if received_bytes > MAX_HTTP_BODY_BYTES:
        raise _too_large()
    return bytes(body)


def _declared_bytes(scope: Scope) -> int:
    """What ``Content-Length`` says; 0 without one. The server below has refused whatever is not a short number."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0


def _too_large() -> Refused:
    limit_mib = MAX_HTTP_BODY_BYTES // 1024**2
    return Refused(ErrorCode.REQUEST_TOO_LARGE, f"the body is larger than {limit_mib} MiB")


def encode_json(value: Any) -> str:
    """Compact JSON text; NaN and infinity are a bug here, not an extension."""
    return _encode(value)


async def send_json(send: Send, status: int, value: Any, headers: Headers = ()) -> None:
    """A whole JSON answer."""
    body = encode_json(value).encode("utf-8", "backslashreplace")
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(
    send: Send, error: P2PMeshError, retry_after_s: int = 1, body: dict[str, Any] | None = None
) -> None:
    """An error as a whole answer; ``body`` where the endpoint has a shape of its own for it."""
    headers = error_headers(error, retry_after_s)
    await send_json(send, http_error(error).status, error_body(error) if body is None else body, headers)


def _lines(payload: str, name: str | None) -> str:
    return f"event: {name}\ndata: {payload}\n\n" if name else f"data: {payload}\n\n"


class EventStream:
    """``text/event-stream``: whole events, one writer at a time, a comment when it has been silent for long."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = trio.Lock()
        self._last_sent_s = 0.0
        self._started = trio.Event()

    async def start(self, headers: Headers) -> None:
        """Sends the status line; after it an error can only be an event."""
        fixed = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*fixed, *headers]})
        self._last_sent_s = trio.current_time()
        self._started.set()

    def has_started(self) -> bool:
        """Whether the status line is on its way."""
        return self._started.is_set()

    async def write(self, *events: tuple[str, str | None]) -> None:
        """One event for each payload and name, in one piece; most have no name."""
        await self._put("".join([_lines(payload, name) for payload, name in events]))

    async def comment(self, *lines: str) -> None:
        """Lines that clients read over."""
        await self._put("".join(f": {line}\n" for line in lines) + "\n")

    async def end(self) -> None:
        """The clean end of the body."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def ping_when_silent(self) -> None:
        """Runs beside the writer for as long as the stream lives, so that no proxy takes silence for death."""
        await self._started.wait()
        while True:
            due_s = self._last_sent_s + PING_AFTER_SILENCE_S
            if trio.current_time() < due_s:
                await trio.sleep_until(due_s)
            else:
                await self.comment("keep-alive")

    async def _put(self, text: str) -> None:
        try:
            self._turn.acquire_nowait()  # a lock that is free would let every other task run first, for each token
        except trio.WouldBlock:
            await self._turn.acquire()
        try:
            body = text.encode("utf-8", "backslashreplace")  # what JSON can hold and UTF-8 cannot, as JSON writes it
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._last_sent_s = trio.current_time()
        finally:
            self._turn.release()
