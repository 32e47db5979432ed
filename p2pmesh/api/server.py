"""HTTP service on sockets of our own, by hypercorn's trio connection handler.

Owns binding, the number of connections, the deadline of a send and the drain. HTTP/1.1, and HTTP/2 for clients that
begin with its preface (without TLS nothing else tells it). Hypercorn shields each send from cancellation, so a client
that stops reading could hold a task for ever; the deadline therefore sits in the stream below hypercorn, where it also
ends a shielded send.
"""

import errno
import logging
import os
import socket
from functools import partial
from typing import Any

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from starlette.types import ASGIApp

from p2pmesh.api.errors import INVALID_REQUEST
from p2pmesh.api.exchange import SEND_DEADLINE_S, Drain, encode_json
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_HTTP2_STREAMS, MAX_HTTP_CONNECTIONS, MAX_HTTP_HEADER_BYTES

DEFAULT_HOST = "127.0.0.1"
KEEP_ALIVE_S = 15.0
BACKLOG = 256
LAST_BYTES_S = 5.0
LAST_EVENTS_S = 2.0
"""After the end of a drain, for clients to take the error that ends their answers."""
MOST_REQUESTS = 2**31
"""On one connection: to end an HTTP/2 one after so many would cut off what is on its way."""

_log = logging.getLogger("p2pmesh.api")


def bind_port(host: str, port: int, flag_name: str) -> socket.socket:
    """A listening TCP socket; port 0 picks a free one.

    ``flag_name`` is the command line's name for the port, such as ``--port``, for the advice in the error.
    Raises ``ConfigError`` with ``PORT_IN_USE`` or, for a host that is not this machine's, ``ADDRESS_INVALID``.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _bind_error(host, port, flag_name, error) from None
    return sock


def _bind_error(host: str, port: int, flag_name: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        message = f"port {port} is in use on {host}; stop what holds it or choose another with {flag_name}"
        return ConfigError(ErrorCode.PORT_IN_USE, message)
    if error.errno == errno.EACCES:
        message = f"port {port} needs rights that this user has not; choose one above 1023 with {flag_name}"
        return ConfigError(ErrorCode.ADDRESS_INVALID, message)
    reason = error.strerror or str(error)
    message = f"cannot listen on {host} (--host): {reason}; give an address of this machine, or 0.0.0.0 for all of them"
    return ConfigError(ErrorCode.ADDRESS_INVALID, message)


def url_of(sock: socket.socket) -> str:
    """The base URL of a bound socket, without a slash at the end."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class DeadlineStream:
    """A socket stream whose sends end: done within the deadline, or with the connection dropped."""

    def __init__(self, stream: trio.SocketStream, send_deadline_s: float) -> None:
        self._stream = stream
        self._send_deadline_s = send_deadline_s
        self.socket = stream.socket

    def send_now(self, data: bytes) -> int:
        """Bytes that the kernel took without waiting; what is wrong with the socket is said by a send that waits."""
        try:
            return os.write(self.socket.fileno(), data)
        except OSError:
            return 0

    async def send_all(self, data: bytes) -> None:
        """``trio.BrokenResourceError`` when the peer did not take ``data`` in time."""
        with trio.move_on_after(self._send_deadline_s) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            self.drop()
            raise trio.BrokenResourceError("the client stopped reading")

    async def receive_some(self, max_bytes: int) -> bytes:
        """What has arrived."""
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        """Closes the writing half."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._stream.aclose()

    def drop(self) -> None:
        """Closes at once; a send or receive that waits ends with an error."""
        self.socket.close()


_UNREADABLE = {
    431: f"the headers are larger than {MAX_HTTP_HEADER_BYTES // 1024} KiB; send fewer or shorter ones",
    501: "the body has a transfer-encoding that is not read here; send it chunked, or with a content-length",
}


def _unreadable(status: int) -> dict[str, Any]:
    """What a client is told of a request that h11 could not read, by the status that h11 gives it."""
    told = "this is not a request of HTTP/1.1 or HTTP/2; TLS is not spoken here, so the URL begins with http://"
    message = _UNREADABLE.get(status, told)
    return {"message": message, "type": INVALID_REQUEST, "param": None, "code": "request_unreadable"}


class _Http1Protocol(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1, which ends where a client that knows HTTP/2 begins with its preface."""

    async def _check_protocol(self, event: Any) -> None:
        """An offered upgrade to h2c is passed over: it would begin in the middle of a request."""
        if (event.method, event.target, event.http_version) == (b"PRI", b"*", b"2.0"):
            await super()._check_protocol(event)

    async def _create_stream(self, request: h11.Request) -> None:
        """An offer to become a WebSocket is passed over too: there are none, and its refusal could not say so."""
        headers = [one for one in request.headers.raw_items() if one[0].lower() != b"upgrade"]
        plain = h11.Request(
            method=request.method, headers=headers, target=request.target, http_version=request.http_version
        )
        await super()._create_stream(plain)

    async def _send_error_response(self, status_code: int) -> None:
        """Of a request that cannot be read, so that no application was asked: in the shape of all other errors."""
        body = encode_json({"error": _unreadable(status_code)}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class _Http2Protocol(H2Protocol):  # type: ignore[misc]
    """HTTP/2 whose answers have left whole before their stream counts as closed.

    Hypercorn closes it when the last bytes are taken out of their buffer; in a drain the connection then ended before
    the end of the stream was sent, and the client took its answer for cut off.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._ended = trio.Event()

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        if stream_id not in self.stream_buffers:
            self._ended.set()
            self._ended = trio.Event()

    async def stream_send(self, event: Any) -> None:
        """An event of one answer."""
        if isinstance(event, StreamClosed):
            with trio.move_on_after(LAST_BYTES_S):
                while self._is_ending(event.stream_id):
                    await self._ended.wait()
        await super().stream_send(event)

    def _is_ending(self, stream_id: int) -> bool:
        return not self.closed and stream_id in self.stream_buffers and self.stream_buffers[stream_id].complete


class _Protocols(ProtocolWrapper):  # type: ignore[misc]
    """One connection's protocol: HTTP/1.1 until an HTTP/2 preface comes."""

    protocol: Any

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.protocol = _Http1Protocol(*self._parts())

    async def handle(self, event: Any) -> None:
        """Hypercorn counts a connection that becomes HTTP/2 as busy, and a silent one would stay for ever."""
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            self.protocol = _Http2Protocol(*self._parts())
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


class _Server(TCPServer):  # type: ignore[misc]
    """Hypercorn's connection with our protocols."""

    protocol: Any

    async def protocol_send(self, event: Any) -> None:
        """What the socket takes at once costs neither a lock nor a scope nor a turn of the loop, for each token."""
        if not isinstance(event, RawData) or self.send_lock.locked():
            await super().protocol_send(event)
            return
        sent = self.stream.send_now(event.data)
        if sent < len(event.data):
            with trio.CancelScope(shield=sent > 0):  # half an event would be read as nonsense
                await super().protocol_send(RawData(event.data[sent:]))

    async def _read_data(self) -> None:
        made = self.protocol
        self.protocol = _Protocols(
            made.app,
            made.config,
            made.context,
            made.task_group,
            made.state,
            made.ssl,
            made.client,
            made.server,
            made.send,
            "http/1.1",
        )
        await super()._read_data()


class _Service:
    """The connections of one listening socket."""

    def __init__(self, app: ASGIApp, send_deadline_s: float, max_connections: int) -> None:
        self._drain = Drain()
        self._app = ASGIWrapper(self._drain.told_to(app))
        self._config = _hypercorn_config()
        self._send_deadline_s = send_deadline_s
        self._max_connections = max_connections
        self._streams: set[DeadlineStream] = set()
        self.context = WorkerContext(None)

    async def handle(self, raw: trio.SocketStream) -> None:
        """Serves one connection to its end."""
        if len(self._streams) >= self._max_connections:
            raw.socket.close()
            return
        stream = DeadlineStream(raw, self._send_deadline_s)
        self._streams.add(stream)
        try:
            await _Server(self._app, self._config, self.context, {}, stream)
        except Exception as raised:  # noqa: BLE001 - the edge: what breaks one connection must not end the server
            if not _is_closed_connection(raised):
                _log.error("unforeseen failure of a connection", exc_info=raised)
        finally:
            self._streams.discard(stream)
            stream.drop()

    async def cut_off(self, drained: trio.Event, drain_s: float, connections: trio.CancelScope) -> None:
        """The end of a drain with answers that are not whole: they are ended in words before connections close."""
        with trio.move_on_after(drain_s):
            await drained.wait()
        cut = self._drain.end()
        if cut:
            requests = "request was" if cut == 1 else "requests were"
            _log.warning("%d %s still running when this node stopped, and ended with an error", cut, requests)
        await trio.sleep(LAST_EVENTS_S)
        self.drop_all()
        connections.cancel()

    def drop_all(self) -> None:
        """Closes every connection, also those in a shielded send."""
        for stream in tuple(self._streams):
            stream.drop()


def _is_closed_connection(raised: Exception) -> bool:
    if isinstance(raised, ExceptionGroup):
        return all(_is_closed_connection(inner) for inner in raised.exceptions)
    return isinstance(raised, OSError | trio.BrokenResourceError | trio.ClosedResourceError)


def _hypercorn_config() -> Config:
    config = Config()
    config.errorlog = _log
    config.accesslog = None
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE_S  # also the time a client has to send its headers
    config.h11_max_incomplete_size = MAX_HTTP_HEADER_BYTES
    config.keep_alive_max_requests = MOST_REQUESTS
    config.h2_max_header_list_size = MAX_HTTP_HEADER_BYTES
    config.h2_max_concurrent_streams = MAX_HTTP2_STREAMS
    return config


async def serve_app(
    app: ASGIApp,
    sock: socket.socket,
    *,
    shutdown: trio.Event,
    drain_s: float,
    drained: trio.Event | None = None,
    send_deadline_s: float = SEND_DEADLINE_S,
    max_connections: int = MAX_HTTP_CONNECTIONS,
) -> None:
    """Serves ``app`` on a listening socket until ``shutdown``, then at most ``drain_s`` seconds for what is open.

    A connection beyond ``max_connections`` is closed at once.

    Takes the socket over and closes it. No new connection is accepted once ``shutdown`` is set, idle ones close, and
    requests that are still running at the end of the drain, which ``drained`` may bring sooner, are cancelled: their
    answers end with an error.
    """
    service = _Service(app, send_deadline_s, max_connections)
    drained = trio.Event() if drained is None else drained
    async with trio.open_nursery() as timers:
        async with trio.open_nursery() as connections:
            try:
                await _accept_until(shutdown, service, sock, connections)
            except BaseException:  # cancelled, perhaps in a group: no drain, and no shielded send may outlive it
                service.drop_all()
                raise
            await service.context.terminated.set()
            timers.start_soon(service.cut_off, drained, drain_s, connections.cancel_scope)
        timers.cancel_scope.cancel()


async def _accept_until(
    shutdown: trio.Event,
    service: _Service,
    sock: socket.socket,
    connections: trio.Nursery,
) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    async with listener, trio.open_nursery() as accepting:
        accepting.start_soon(_cancel_when, shutdown, accepting.cancel_scope)
        accepting.start_soon(partial(trio.serve_listeners, service.handle, [listener], handler_nursery=connections))


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
