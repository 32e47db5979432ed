"""The console's routes for invites and members: what the founder's operator does while the node runs.

Owns the shape of requests and answers. Behind them stands an ``InviteDesk``; who may ask is checked by ``api.console``.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from p2pmesh.api.exchange import read_body
from p2pmesh.api.json_response import error_response, json_response
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId, is_peer_id

Guard = Callable[[Request], Response | None]
"""The refusal of a request that does not bear the console's token."""


class InviteDesk(Protocol):
    """The founder's desk as the console sees it; every method raises ``P2PMeshError``, at a member ``Refused``."""

    async def create_invite(self, life_s: int, max_uses: int) -> dict[str, Any]:
        """A new invite, saved: the line itself and its facts."""

    def describe_invites(self) -> dict[str, Any]:
        """Every invite that still matters, without the lines."""

    async def revoke_invite(self, invite_id: str, *, is_expelling: bool) -> dict[str, Any]:
        """Lets nobody in by an invite any more, and puts out those who came in by it."""

    async def remove_peer(self, peer: PeerId) -> dict[str, Any]:
        """Puts a member out; tells the invites that it came by."""


def invite_routes(desk: InviteDesk, guard: Guard) -> list[Route]:
    """The routes, each behind ``guard``."""

    async def create(asked: dict[str, Any]) -> dict[str, Any]:
        return await desk.create_invite(_whole(asked, "life_s"), _whole(asked, "max_uses"))

    async def listed(asked: dict[str, Any]) -> dict[str, Any]:
        return desk.describe_invites()

    async def revoke(asked: dict[str, Any]) -> dict[str, Any]:
        is_expelling = asked.get("expel", False)
        if not isinstance(is_expelling, bool):
            raise _invalid("expel is true or false")
        return await desk.revoke_invite(_text(asked, "id"), is_expelling=is_expelling)

    async def remove(asked: dict[str, Any]) -> dict[str, Any]:
        peer = _text(asked, "peer_id")
        if not is_peer_id(peer):
            raise _invalid("peer_id is no peer id; `p2pmesh status` lists them")
        return await desk.remove_peer(PeerId(peer))

    return [
        _route("/api/invites", "POST", guard, create),
        _route("/api/invites", "GET", guard, listed),
        _route("/api/invites/revoke", "POST", guard, revoke),
        _route("/api/peers/remove", "POST", guard, remove),
    ]


_Act = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def _route(path: str, method: str, guard: Guard, act: _Act) -> Route:
    async def endpoint(request: Request) -> Response:
        refusal = guard(request)
        if refusal is not None:
            return refusal
        try:
            asked = {} if method == "GET" else _object(await read_body(request.scope, request.receive))
            return json_response(await act(asked))
        except P2PMeshError as error:
            return error_response(error)

    return Route(path, endpoint, methods=[method])


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _invalid("the body is no JSON object")
    return value


def _whole(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if type(value) is not int or not 0 <= value < 2**40:
        raise _invalid(f"{name} is a whole number, and there")
    return value


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or len(value) > 128:
        raise _invalid(f"{name} is text, and there")
    return value


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.REQUEST_INVALID, message)
