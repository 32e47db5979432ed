"""HTTP/1.1 and HTTP/2 of one connection: hypercorn's protocols, and what they lack.

Owns what is said to requests that no application sees, and how far an answer over HTTP/2 may be ahead of its client.
Sockets, the deadline of a send to one, and the drain are ``server``'s.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import h11
import trio
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived
from h2.exceptions import ProtocolError
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.events import Body, StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol

from p2pmesh.api.errors import INVALID_REQUEST
from p2pmesh.api.exchange import SEND_DEADLINE_S, encode_json
from p2pmesh.base.limits import MAX_HTTP_HEADER_BYTES

LAST_BYTES_S = 5.0
MOST_UNSENT_BYTES = 16 * 1024
"""Of one answer over HTTP/2 that its client has not given window for; more waits until half of it has left. The socket
below keeps as much, so both demand the same least rate of who reads."""
MAX_READ_HEADER_BYTES = 16 * MAX_HTTP_HEADER_BYTES
"""Over HTTP/2 so much is read to the end and told that it is too much; what is cut off before leaves a connection whose
table of headers nobody knows any more, and ends it."""
_HEADER_OVERHEAD_BYTES = 32
"""What each header counts beside its name and value: RFC 9113, 6.5.2."""

_UNREADABLE = {
    431: f"the headers are larger than {MAX_HTTP_HEADER_BYTES // 1024} KiB; send fewer or shorter ones",
    405: "CONNECT is for proxies and WebSockets, and there are none here; send GET or POST",
    501: "the body has a transfer-encoding that is not read here; send it chunked, or with a content-length",
}


class ServingConfig(Config):  # type: ignore[misc]
    """Hypercorn's settings, and the deadline of a send, which both protocols and sockets keep."""

    send_deadline_s = SEND_DEADLINE_S


def _unreadable(status: int) -> bytes:
    """What a client is told of a request that could not be read, in the shape of all other errors."""
    told = "this is not a request of HTTP/1.1 or HTTP/2; TLS is not spoken here, so the URL begins with http://"
    message = _UNREADABLE.get(status, told)
    code = "method_not_allowed" if status == 405 else "request_unreadable"
    error = {"message": message, "type": INVALID_REQUEST, "param": None, "code": code}
    return encode_json({"error": error}).encode()


def _answer_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """A request's target as a path, and the authority that it names instead of the host header, if it does.

    Clients write whole URLs to proxies, and some to everybody: servers must take them (RFC 9112, 3.2.2).
    """
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target, None
    at = min((place for place in (rest.find(b"/"), rest.find(b"?")) if place >= 0), default=len(rest))
    authority, path = rest[:at].rpartition(b"@")[2], rest[at:]
    return (path if path.startswith(b"/") else b"/" + path), authority


class Http1Protocol(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1, which ends where a client that knows HTTP/2 begins with its preface."""

    async def _check_protocol(self, event: Any) -> None:
        """An offered upgrade to h2c is passed over: it would begin in the middle of a request."""
        if (event.method, event.target, event.http_version) == (b"PRI", b"*", b"2.0"):
            await super()._check_protocol(event)

    async def _create_stream(self, request: h11.Request) -> None:
        """An offer to become a WebSocket is passed over too: there are none, and its refusal could not say so."""
        target, authority = origin_form(request.target)
        left_out = (b"upgrade",) if authority is None else (b"upgrade", b"host")
        headers = [one for one in request.headers.raw_items() if one[0].lower() not in left_out]
        if authority is not None:
            headers.insert(0, (b"host", authority))
        plain = h11.Request(method=request.method, headers=headers, target=target, http_version=request.http_version)
        await super()._create_stream(plain)

    async def _send_error_response(self, status_code: int) -> None:
        """Of a request that cannot be read, so that no application was asked."""
        body = _unreadable(status_code)
        headers = [*_answer_headers(body), (b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class Http2Protocol(H2Protocol):  # type: ignore[misc]
    """HTTP/2 whose answers wait for their clients, and end whole or as broken off.

    Hypercorn's own wait for a client's window ends whenever its sender looks whether there is one, so that whoever
    gives none was generated for to the end. It closes a stream when the last bytes are taken out of their buffer: in a
    drain the connection then ended before the end of the stream was sent, and the client took its answer for cut off.
    An answer that was cut off it leaves open.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._moved = trio.Event()
        """Something left a buffer; made anew each time."""
        self.connection.decoder.max_header_list_size = MAX_READ_HEADER_BYTES
        self.connection.local_settings.enable_connect_protocol = 0  # there are no WebSockets
        self.connection.local_settings.acknowledge()

    async def handle(self, event: Any) -> None:
        """Bytes of the client, or the end of the connection."""
        await super().handle(event)
        if isinstance(event, Closed):
            self._tell_moved()

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        self._tell_moved()

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def stream_send(self, event: Any) -> None:
        """An event of one answer."""
        if isinstance(event, Body):
            await self._send_body(event.stream_id, event.data)
            return
        if isinstance(event, StreamClosed):
            with trio.move_on_after(LAST_BYTES_S):
                while self._is_ending(event.stream_id):
                    await self._moved.wait()
            if event.stream_id in self.stream_buffers and not self.stream_buffers[event.stream_id].complete:
                await self._break_off(event.stream_id, ErrorCodes.INTERNAL_ERROR)
        await super().stream_send(event)

    def _is_ending(self, stream_id: int) -> bool:
        return not self.closed and stream_id in self.stream_buffers and self.stream_buffers[stream_id].complete

    async def _send_body(self, stream_id: int, data: bytes) -> None:
        """Piece by piece, each within the deadline: a large answer need not be taken faster than others."""
        for start in range(0, len(data), MOST_UNSENT_BYTES):
            with trio.move_on_after(self.config.send_deadline_s) as scope:
                await self._wait_for_room(stream_id)
            if scope.cancelled_caught:
                await self._break_off(stream_id, ErrorCodes.CANCEL)
            if stream_id not in self.streams:
                await trio.lowlevel.checkpoint()  # where whoever goes on is told that nobody wants more
                return
            await super().stream_send(Body(stream_id, data[start : start + MOST_UNSENT_BYTES]))

    async def _wait_for_room(self, stream_id: int) -> None:
        room_from = MOST_UNSENT_BYTES
        while not self.closed and stream_id in self.stream_buffers:
            if len(self.stream_buffers[stream_id].buffer) < room_from:
                return
            room_from = MOST_UNSENT_BYTES // 2
            await self._moved.wait()

    async def _break_off(self, stream_id: int, code: ErrorCodes) -> None:
        """The client sees that its answer is not whole; its other streams go on."""
        with suppress(ProtocolError):
            self.connection.reset_stream(stream_id, code)
        await self._flush()
        await self._close_stream(stream_id)
        if stream_id in self.stream_buffers:
            await self.stream_buffers[stream_id].close()
            await self._window_updated(stream_id)  # the sender takes the buffer away

    async def _handle_events(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, RequestReceived) and (status := _status_of(event.headers)) is not None:
                self._refuse(event, status)
            elif isinstance(event, DataReceived) and event.stream_id not in self.streams:
                # of a request that was answered before it was whole; hypercorn would fail, with all of the connection
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                await super()._handle_events([event])
        await self._flush()

    def _refuse(self, request: RequestReceived, status: int) -> None:
        """No application sees the request."""
        body = _unreadable(status)
        headers = [(b":status", b"%d" % status), *_answer_headers(body), *self.config.response_headers("h2")]
        has_room = self.connection.local_flow_control_window(request.stream_id) >= len(body)
        self.connection.send_headers(request.stream_id, headers, end_stream=not has_room)
        if has_room:
            self.connection.send_data(request.stream_id, body, end_stream=True)
        if request.stream_ended is None:
            with suppress(ProtocolError):  # all of it was here already
                self.connection.reset_stream(request.stream_id, ErrorCodes.NO_ERROR)  # nobody wants its body


def _status_of(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Why no application can be asked; None where one can."""
    if sum(len(name) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in headers) > MAX_HTTP_HEADER_BYTES:
        return 431
    named = dict(headers)
    if named[b":method"].upper() == b"CONNECT":
        return 405
    return None if named[b":path"].isascii() and named[b":method"].isascii() else 400


class Protocols(ProtocolWrapper):  # type: ignore[misc]
    """One connection's protocol: HTTP/1.1 until an HTTP/2 preface comes."""

    protocol: Any

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.protocol = Http1Protocol(*self._parts())

    async def handle(self, event: Any) -> None:
        """Hypercorn counts a connection that becomes HTTP/2 as busy, and a silent one would stay for ever."""
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            self.protocol = Http2Protocol(*self._parts())
            await self.protocol.initiate()
            await self.protocol.handle(RawData(data=error.data))
            await self.send(Updated(idle=self.protocol.idle))

    def _parts(self) -> tuple[Any, ...]:
        return (
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.state,
            self.ssl,
            self.client,
            self.server,
            self.send,
        )
