"""HTTP service on sockets of our own, by hypercorn's trio connection handler.

Owns binding, the number of connections, the deadline of a send and the drain. HTTP/1.1, and HTTP/2 for clients that
begin with its preface (without TLS nothing else tells it), are ``protocols``'. Hypercorn shields each send from
cancellation, so a client that stops reading could hold a task for ever; the deadline therefore sits in the stream below
hypercorn, where it also ends a shielded send.
"""

import errno
import logging
import os
import socket
from functools import partial
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from starlette.types import ASGIApp

from p2pmesh.api.exchange import SEND_DEADLINE_S, Drain
from p2pmesh.api.protocols import MOST_UNSENT_BYTES, Protocols, ServingConfig
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_HTTP2_STREAMS, MAX_HTTP_CONNECTIONS, MAX_HTTP_HEADER_BYTES

DEFAULT_HOST = "127.0.0.1"
KEEP_ALIVE_S = 15.0
BACKLOG = 256
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
    """A socket stream whose sends end: done, or with the connection dropped where its peer took too little in time."""

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
        """``trio.BrokenResourceError`` when the peer does not take each piece of ``data`` within the deadline."""
        for start in range(0, len(data), MOST_UNSENT_BYTES):
            with trio.move_on_after(self._send_deadline_s) as scope:
                await self._stream.send_all(data[start : start + MOST_UNSENT_BYTES])
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


class _Server(TCPServer):  # type: ignore[misc]
    """Hypercorn's connection with our protocols."""

    protocol: Any
    _has_ended = False
    """Whether the client has said all that it will."""

    async def protocol_send(self, event: Any) -> None:
        """What the socket takes at once costs neither a lock nor a scope nor a turn of the loop, for each token."""
        if isinstance(event, Updated) and self._has_ended:
            return
        if not isinstance(event, RawData) or self.send_lock.locked():
            await super().protocol_send(event)
            return
        sent = self.stream.send_now(event.data)
        if sent < len(event.data):
            with trio.CancelScope(shield=sent > 0):  # half an event would be read as nonsense
                await super().protocol_send(RawData(event.data[sent:]))

    async def _read_data(self) -> None:
        made = self.protocol
        self.protocol = Protocols(
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
        self._has_ended = True
        await self.idle_task.stop()  # hypercorn would wait for another request, and the connection count meanwhile


class _Service:
    """The connections of one listening socket."""

    def __init__(self, app: ASGIApp, send_deadline_s: float, max_connections: int) -> None:
        self._drain = Drain()
        self._app = ASGIWrapper(self._drain.told_to(app))
        self._config = _hypercorn_config(send_deadline_s)
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


def _hypercorn_config(send_deadline_s: float) -> Config:
    config = ServingConfig()
    config.send_deadline_s = send_deadline_s
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
