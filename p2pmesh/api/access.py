"""Who may ask at the API's port: under which host names, from which pages, with which keys.

Middleware only. What a key is, and its limits, stay behind ``Keys``; a key is compared here and handed to nobody: not
to the application, not to other peers, not to the log.
"""

from collections.abc import Collection
from typing import Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2pmesh.api.exchange import send_error
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_ORIGIN = "*"
KEY_ID = "p2pmesh.key_id"
"""Where the id of a request's key stands in its scope."""
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/openapi.json"})
"""What whoever supervises a node asks without a key."""
_PREFLIGHT_LIFE_S = 600


class Keys(Protocol):
    """The API keys of a node."""

    def begin(self, given: str) -> str | None:
        """The id under which a request counts, None where any key is accepted; ``P2PMeshError`` where it may not."""

    def charge(self, key_id: str, uses: int) -> None:
        """A request that was admitted counts so many times more."""

    def end(self, key_id: str) -> None:
        """A request that was admitted is over."""


class KeyLimited(Refused):
    """``OVERLOADED``: a key is at its limit, for so long."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(ErrorCode.OVERLOADED, message, retry_after_s)


class KeyCheck:
    """Middleware that lets requests in by their keys and counts them while they last."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            key_id = self._keys.begin(_given_key(Headers(scope=scope)))
        except P2PMeshError as error:
            await send_error(send, error)
            return
        if key_id is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(_without_key(scope, key_id), receive, send)
        finally:
            self._keys.end(key_id)


def _given_key(headers: Headers) -> str:
    """OpenAI's way of sending a key, or Anthropic's."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _without_key(scope: Scope, key_id: str) -> Scope:
    secret = (b"authorization", b"x-api-key")
    return {**scope, "headers": [one for one in scope["headers"] if one[0].lower() not in secret], KEY_ID: key_id}


class SameHost:
    """Middleware that refuses a request made under another host's name or by another site's page.

    A browser on this machine can be made to call loopback addresses by any page, also under a name that its owner lets
    point here. ``host_names`` None means any name. ``origins`` are pages that may ask all the same.
    """

    def __init__(
        self, app: ASGIApp, host_names: Collection[str] | None, told: str, origins: Collection[str] = ()
    ) -> None:
        self._app = app
        self._host_names = host_names
        self._told = told
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_ours(Headers(scope=scope)):
            await send_error(send, Refused(ErrorCode.SITE_REFUSED, self._told), 1)
            return
        await self._app(scope, receive, send)

    def _is_ours(self, headers: Headers) -> bool:
        host = host_name("//" + headers.get("host", ""))
        if self._host_names is not None and host not in self._host_names:
            return False
        origin = headers.get("origin")
        if origin is None or origin in self._origins or ANY_ORIGIN in self._origins:
            return True
        return host_name(origin) in ((host,) if self._host_names is None else self._host_names)


def host_name(url: str) -> str | None:
    """The lower-case name in a URL; None where there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as an unclosed bracket
        return None


class CrossOrigin:
    """Middleware that lets pages of ``origins`` read answers (CORS); without any it does nothing."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or not (origin in self._origins or ANY_ORIGIN in self._origins):
            await self._app(scope, receive, send)
            return

        async def allowing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["access-control-allow-origin"] = origin
                headers["access-control-expose-headers"] = "*"
                headers.add_vary_header("origin")
            await send(message)

        if scope["method"] == "OPTIONS":
            await _answer_preflight(Headers(scope=scope), allowing)
        else:
            await self._app(scope, receive, allowing)


async def _answer_preflight(asked: Headers, send: Send) -> None:
    """No cookie is ever read here, so a page that may ask may ask with any header."""
    headers = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", asked.get("access-control-request-headers", "*").encode("latin-1")),
        (b"access-control-max-age", str(_PREFLIGHT_LIFE_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
