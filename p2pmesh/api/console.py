"""The console's port: the node's state for its operator, behind a bearer token.

The token stands in ``HOME/run.json``, so that whoever may read that file may read the state. Host and Origin are
checked besides, because a browser on this machine can be made to call loopback addresses by any page.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from p2pmesh.api.access import LOOPBACK_NAMES, SameHost
from p2pmesh.api.backend import Backend
from p2pmesh.api.exchange import Exchange
from p2pmesh.api.invites import InviteDesk, invite_routes
from p2pmesh.api.json_response import error_response, json_response
from p2pmesh.api.openai.app import answer_http_exception
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused

_FOREIGN_HOST = "the console answers only under its own host name"


Reload = Callable[[], Awaitable[dict[str, Any]]]
"""Reads the node's settings again; raises ``P2PMeshError`` where they are broken."""


def console_app(
    backend: Backend,
    token: str,
    desk: InviteDesk | None = None,
    host_names: frozenset[str] = LOOPBACK_NAMES,
    reload: Reload | None = None,
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

    async def reload_settings(request: Request) -> Response:
        try:
            assert reload is not None
            return guard(request) or json_response(await reload())
        except P2PMeshError as error:
            return error_response(error)

    async def live(request: Request) -> Response:
        return json_response({"status": "live"})

    app = Starlette(
        routes=[
            Route("/api/status", status, methods=["GET"]),
            Route("/api/peers", peers, methods=["GET"]),
            Route("/livez", live, methods=["GET"]),
            *([Route("/api/config/reload", reload_settings, methods=["POST"])] if reload is not None else ()),
            *(invite_routes(desk, guard) if desk is not None else ()),
        ],
        middleware=[
            Middleware(Exchange, new_request_id=backend.new_request_id, retry_after_s=backend.status_retry_after_s),
            Middleware(SameHost, host_names=host_names, told=_FOREIGN_HOST),
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
