"""Both HTTP ports of ``up``, the API's and the console's: served from before there is a node until clients are done.

Owns who may ask which port and when the last answer has ended. What a port answers is ``api``'s; sockets, deadlines and
connections are ``api.server``'s.
"""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from p2pmesh.api.access import LOOPBACK_NAMES
from p2pmesh.api.console import console_app
from p2pmesh.api.openai.app import AccessRules, openai_app
from p2pmesh.api.server import LAST_EVENTS_S, serve_app, url_of
from p2pmesh.app.api_keys import HomeKeys
from p2pmesh.app.backend import NodeBackend
from p2pmesh.app.config import UpOptions
from p2pmesh.app.open_files import http_connections_per_server, raise_open_files_limit

END_S = LAST_EVENTS_S + 1.0

HttpSockets = tuple[socket.socket, socket.socket]
"""Listening: the API's, and the console's."""


class HttpPorts:
    """The two servers of one ``up``, which drain once ``shutdown`` is set, for ``drain_s`` at most."""

    def __init__(self, options: UpOptions, sockets: HttpSockets, shutdown: trio.Event, drain_s: float) -> None:
        self._options = options
        self._api_socket, self._console_socket = sockets
        self._shutdown = shutdown
        self._drain_s = drain_s
        self._drained = trio.Event()
        self._serving = 0
        self._ended = trio.Event()
        self._connections_per_server = http_connections_per_server(raise_open_files_limit())
        self.api_url = url_of(self._api_socket)
        self.console_url = url_of(self._console_socket)

    def start(
        self,
        nursery: trio.Nursery,
        backend: NodeBackend,
        token: str,
        reload: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        """Answers on both from now on; ``token`` is this run's, which opens the console."""
        options = self._options
        for app, sock in (
            (openai_app(backend, self._access(token), options.mixture, options.guardrails), self._api_socket),
            (console_app(backend, token, backend, reload=reload), self._console_socket),
        ):
            self._serving += 1
            nursery.start_soon(self._serve, app, sock)

    async def wait_answered(self) -> None:
        """Until no client has an answer under way any more."""
        await self._ended.wait()

    async def end(self) -> None:
        """While there is a node yet, which tells those that generate for our clients that nobody listens any more."""
        self._drained.set()
        with trio.move_on_after(END_S):
            await self._ended.wait()

    def _access(self, token: str) -> AccessRules:
        """Names are checked on loopback, where nothing else keeps a foreign page out, and where names are given."""
        options = self._options
        is_open = options.host not in LOOPBACK_NAMES and not options.allowed_hosts
        names = None if is_open else LOOPBACK_NAMES | {options.host, *map(str.lower, options.allowed_hosts)}
        return AccessRules(HomeKeys(options.home, token), names, options.cors_origins)

    async def _serve(self, app: Any, sock: socket.socket) -> None:
        try:
            await serve_app(
                app, sock, shutdown=self._shutdown, drain_s=self._drain_s, drained=self._drained,
                max_connections=self._connections_per_server,
            )  # fmt: skip
        finally:
            self._serving -= 1
            if not self._serving:
                self._ended.set()
