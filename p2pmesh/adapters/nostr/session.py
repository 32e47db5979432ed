"""One visit to a relay: a WebSocket is opened, something is said or asked, and it is closed again.

A visit a minute costs a relay no more than a connection that is kept, and nothing can be half dead: a laptop that
slept, a NAT that forgot. Every wait is bounded by the deadline of the caller; what a relay does wrong ends as
``RelayUnavailable``.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11
import trio
import trio_websocket
from wsproto.utilities import ProtocolError

from p2pmesh.adapters.nostr.messages import (
    AuthMessage,
    ClosedMessage,
    EndMessage,
    EventMessage,
    NoticeMessage,
    OkMessage,
    RelayMessage,
    decode_message,
    encode_auth,
    encode_close,
    encode_event,
    encode_request,
)
from p2pmesh.adapters.nostr.streams import (
    CONNECT_TIMEOUT_S,
    NETWORK_ERRORS,
    RelayUnavailable,
    Stream,
    line_of,
    open_stream,
)
from p2pmesh.base.limits import MAX_LISTING_EVENTS
from p2pmesh.base.quantities import MIB
from p2pmesh.ports.relays import PublishOutcome
from p2pmesh.wire.schema import as_line

T = TypeVar("T")

_DISCONNECT_TIMEOUT_S = 0.5
_MAX_MESSAGE_BYTES = MIB
_MAX_MESSAGES = 2 * MAX_LISTING_EVENTS
_MAX_UNEXPECTED_MESSAGES = 64
_SUBSCRIPTION = "listings"
_NO_WEBSOCKET = (ProtocolError, h11.ProtocolError, UnicodeError)
"""What trio-websocket's own tasks end with where whoever answers speaks something else, as a login page of a hotel."""

Answer = Callable[[str], tuple[str, str]]
"""From a challenge the id and text of the event that answers it."""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended: ``is_complete`` where the relay said that it gave all it had."""

    is_complete: bool
    detail: str = ""


class RelaySession:
    """An open connection to one relay, for one task."""

    def __init__(self, socket: trio_websocket.WebSocketConnection, answer: Answer) -> None:
        self._socket = socket
        self._answer = answer
        self._challenge: str | None = None
        self._has_answered = False

    async def publish(self, event_id: str, event_text: str) -> OkMessage:
        """Says an event and waits for its OK; says who we are where the relay asks for that, once."""
        await self._send(encode_event(event_text))
        ok = await self._ok_of(event_id)
        if not self._may_be_mended(ok.outcome) or not await self._authenticate():
            return ok
        await self._send(encode_event(event_text))
        return await self._ok_of(event_id)

    async def request(self, query: dict[str, Any], take: Callable[[EventMessage], bool]) -> RequestEnd:
        """Gives each stored event to ``take``, until it says false or the relay has no more."""
        await self._send(encode_request(_SUBSCRIPTION, query))
        for _ in range(_MAX_MESSAGES):
            message = await self._receive()
            match message:
                case EventMessage():
                    if not take(message):
                        await self._send(encode_close(_SUBSCRIPTION))
                        return RequestEnd(False, "more than is taken of one relay")
                case EndMessage():
                    await self._send(encode_close(_SUBSCRIPTION))
                    return RequestEnd(True)
                case ClosedMessage() if self._may_be_mended(message.outcome) and await self._authenticate():
                    await self._send(encode_request(_SUBSCRIPTION, query))
                case ClosedMessage():
                    return RequestEnd(False, message.detail or "it closed the request")
                case _:
                    continue
        return RequestEnd(False, "it says more than anyone has to say")

    def _may_be_mended(self, outcome: PublishOutcome) -> bool:
        """Whether it may help to say who we are: some say "restricted" before, where NIP-42 means after."""
        is_asking = outcome is PublishOutcome.BLOCKED and self._challenge is not None
        return outcome is PublishOutcome.AUTH_REQUIRED or is_asking

    async def _ok_of(self, event_id: str) -> OkMessage:
        notice = ""
        for _ in range(_MAX_UNEXPECTED_MESSAGES):
            message = await self._receive()
            if isinstance(message, OkMessage) and message.event_id in (event_id, ""):
                return message  # some relays name no event where they refuse it; we say one at a time
            if isinstance(message, ClosedMessage) and not message.subscription:
                return OkMessage(event_id, message.outcome, message.detail)  # a notice that begins as an OK would
            if isinstance(message, NoticeMessage):
                notice = message.text
        return OkMessage(event_id, PublishOutcome.FAILED, notice or "it says other things than OK")

    async def _authenticate(self) -> bool:
        """Whether the relay was told who we are. It may send its challenge only with, or after, its refusal."""
        if self._has_answered:
            return False
        for _ in range(_MAX_UNEXPECTED_MESSAGES):
            if self._challenge is not None:
                break
            await self._receive()
        else:
            return False
        self._has_answered = True
        _, text = self._answer(self._challenge)
        await self._send(encode_auth(text))  # its OK is not waited for: not every relay says one
        return True

    async def _receive(self) -> RelayMessage | None:
        try:
            text = await self._socket.get_message()
        except trio_websocket.ConnectionClosed as error:
            raise RelayUnavailable(_closed(error)) from None
        message = decode_message(text) if isinstance(text, str) else None
        if isinstance(message, AuthMessage):
            self._challenge = message.challenge
        return message

    async def _send(self, text: str) -> None:
        try:
            await self._socket.send_message(text)
        except trio_websocket.ConnectionClosed as error:
            raise RelayUnavailable(_closed(error)) from None


async def visit(url: str, trust: ssl.SSLContext, answer: Answer, act: Callable[[RelaySession], Awaitable[T]]) -> T:
    """What ``act`` makes of a session with the relay at ``url``, which ends with it. Raises ``RelayUnavailable``."""
    results: list[T] = []
    problem = ""
    stream = await open_stream(url, trust)
    try:
        async with trio.open_nursery() as nursery:
            socket = await _shake_hands(nursery, stream, url)
            results.append(await act(RelaySession(socket, answer)))
            with trio.move_on_after(_DISCONNECT_TIMEOUT_S):
                await socket.aclose()
            nursery.cancel_scope.cancel()
    except* RelayUnavailable as group:
        problem = _first_line(group)
    except* (*NETWORK_ERRORS, trio_websocket.ConnectionClosed, trio_websocket.HandshakeError) as group:
        problem = _first_line(group)
    except* _NO_WEBSOCKET:
        problem = "whoever answers there speaks no WebSocket"
    finally:
        await trio.aclose_forcefully(stream)
    if not results:
        raise RelayUnavailable(problem or "it broke off")
    return results[0]


async def _shake_hands(nursery: trio.Nursery, stream: Stream, url: str) -> trio_websocket.WebSocketConnection:
    parts = urlsplit(url)
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            return await trio_websocket.wrap_client_stream(
                nursery, stream, parts.netloc, parts.path or "/", max_message_size=_MAX_MESSAGE_BYTES
            )
    except trio.TooSlowError:
        raise RelayUnavailable("it takes connections, but speaks no WebSocket in time") from None


def _first_line(group: BaseExceptionGroup[Exception]) -> str:
    """What the first of the errors says, however deep it lies."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    match first:
        case trio_websocket.ConnectionClosed():
            return _closed(first)
        case trio_websocket.ConnectionRejected():
            return f"it answers HTTP {first.status_code} to a WebSocket"
    return line_of(first)


def _closed(error: trio_websocket.ConnectionClosed) -> str:
    reason = error.reason
    if reason is None:
        return "the connection broke"
    text = f"it closed the connection ({reason.name.lower().replace('_', ' ')})"
    return as_line(f"{text}: {reason.reason}" if reason.reason else text, 200)
