"""The console's port: the node's state for its operator, behind a bearer token.

The token stands in ``HOME/run.json``, so that whoever may read that file may read the state. Host and Origin are
checked besides, because a browser on this machine can be made to call loopback addresses by any page.
"""

import secrets
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from p2pmesh.api.backend import Backend
from p2pmesh.api.exchange import Exchange, send_error
from p2pmesh.api.invites import InviteDesk, invite_routes
from p2pmesh.api.json_response import error_response, json_response
from p2pmesh.api.openai.app import answer_http_exception
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def console_app(
    backend: Backend, token: str, desk: InviteDesk | None = None, host_names: frozenset[str] = LOOPBACK_NAMES
) -> Starlette:
    """The application for the console port; ``host_names`` are the names that it may be called by."""

    def guard(request: Request) -> Response | None:
        if _bears(request, token):
            return None
        return error_response(Refused(ErrorCode.UNAUTHORIZED, "send the bearer token of run.json in the node's home"))

    async def status(request: Request) -> Response:
        return guard(request) or json_response(backend.status())

    async def peers(request: Request) -> Response:
        try:
            return guard(request) or json_response(await backend.peers())
        except P2PMeshError as error:
            return error_response(error)

    async def live(request: Request) -> Response:
        return json_response({"status": "live"})

    app = Starlette(
        routes=[
            Route("/api/status", status, methods=["GET"]),
            Route("/api/peers", peers, methods=["GET"]),
            Route("/livez", live, methods=["GET"]),
            *(invite_routes(desk, guard) if desk is not None else ()),
        ],
        middleware=[
            Middleware(Exchange, new_request_id=backend.new_request_id, retry_after_s=backend.status_retry_after_s),
            Middleware(SameHost, host_names=host_names),
        ],
        exception_handlers={HTTPException: answer_http_exception},
    )
    app.router.redirect_slashes = False
    return app


def _bears(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # bytes, because compare_digest refuses text beyond ASCII
    is_equal = secrets.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and is_equal


class SameHost:
    """Middleware that refuses a request made under another host's name or by another site's page."""

    def __init__(self, app: ASGIApp, host_names: frozenset[str]) -> None:
        self._app = app
        self._host_names = host_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_ours(Headers(scope=scope)):
            message = "the console answers only under its own host name"
            await send_error(send, Refused(ErrorCode.UNAUTHORIZED, message), 1)
            return
        await self._app(scope, receive, send)

    def _is_ours(self, headers: Headers) -> bool:
        names = [_host_name("//" + headers.get("host", ""))]
        if "origin" in headers:
            names.append(_host_name(headers["origin"]))
        return all(name in self._host_names for name in names)


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as an unclosed bracket
        return None
