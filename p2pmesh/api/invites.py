"""The console's routes for invites and members: what the founder's operator does while the node runs.

Owns the shape of requests and answers. Behind them stands an ``InviteDesk``; who may ask is checked by ``api.console``.
"""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from p2pmesh.api.exchange import read_body
from p2pmesh.api.json_response import error_response, json_response
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId, is_peer_id

DEADLINE_HEADER = "x-p2pmesh-deadline-unix-ms"
"""Until when its sender waits for the answer; a change that is asked for later is not made."""
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

    async def remove_peer(self, peer: PeerId, *, is_forced: bool) -> dict[str, Any]:
        """Puts a member out, one that was never seen only if forced; tells the invites that it came by."""

    async def readmit_peer(self, peer: PeerId) -> dict[str, Any]:
        """Lets a removed member in again."""

    async def forgive_peer(self, peer: PeerId) -> dict[str, Any]:
        """Forgets what a peer did to this node, at any member; ``was_banned`` says whether that ended a ban."""


def invite_routes(desk: InviteDesk, guard: Guard) -> list[Route]:
    """The routes, each behind ``guard``."""

    async def create(asked: dict[str, Any]) -> dict[str, Any]:
        return await desk.create_invite(_whole(asked, "life_s"), _whole(asked, "max_uses"))

    async def listed(asked: dict[str, Any]) -> dict[str, Any]:
        return desk.describe_invites()

    async def revoke(asked: dict[str, Any]) -> dict[str, Any]:
        return await desk.revoke_invite(_text(asked, "id"), is_expelling=_flag(asked, "expel"))

    async def remove(asked: dict[str, Any]) -> dict[str, Any]:
        return await desk.remove_peer(_peer(asked), is_forced=_flag(asked, "force"))

    async def readmit(asked: dict[str, Any]) -> dict[str, Any]:
        return await desk.readmit_peer(_peer(asked))

    async def forgive(asked: dict[str, Any]) -> dict[str, Any]:
        return await desk.forgive_peer(_peer(asked))

    return [
        _route("/api/invites", "POST", guard, create),
        _route("/api/invites", "GET", guard, listed),
        _route("/api/invites/revoke", "POST", guard, revoke),
        _route("/api/peers/remove", "POST", guard, remove),
        _route("/api/peers/readmit", "POST", guard, readmit),
        _route("/api/peers/forgive", "POST", guard, forgive),
    ]


_Act = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def _route(path: str, method: str, guard: Guard, act: _Act) -> Route:
    async def endpoint(request: Request) -> Response:
        refusal = guard(request)
        if refusal is not None:
            return refusal
        try:
            _check_deadline(request)
            asked = {} if method == "GET" else _object(await read_body(request.scope, request.receive))
            return json_response(await act(asked))
        except P2PMeshError as error:
            return error_response(error)

    return Route(path, endpoint, methods=[method])


def _check_deadline(request: Request) -> None:
    """A node that stood still must not do later what its operator has given up on."""
    text = request.headers.get(DEADLINE_HEADER, "")
    if not text:
        return
    if not text.isascii() or not text.isdecimal():
        raise _invalid(f"{DEADLINE_HEADER} is a time in milliseconds since 1970")
    if time.time_ns() // 1_000_000 > int(text[:20]):
        raise Refused(ErrorCode.DEADLINE_EXCEEDED, "the request came too late and was not carried out; ask again")


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


def _flag(asked: dict[str, Any], name: str) -> bool:
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(f"{name} is true or false")
    return value


def _peer(asked: dict[str, Any]) -> PeerId:
    peer = _text(asked, "peer_id")
    if not is_peer_id(peer):
        raise _invalid("peer_id is no peer id; `p2pmesh status` lists them")
    return PeerId(peer)


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.REQUEST_INVALID, message)
