"""The console's routes for invites and members."""

import json
from typing import Any

import pytest

from p2pmesh.api.console import console_app
from p2pmesh.api.invites import DEADLINE_HEADER
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FakeBackend
from tests.wire.keys import JOINER

TOKEN = "s3cret"


class FakeDesk:
    """Implements ``InviteDesk``: notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def create_invite(self, life_s: int, max_uses: int) -> dict[str, Any]:
        self.asked.append(("create", life_s, max_uses))
        return {"invite": "p2pmesh2-x"}

    def describe_invites(self) -> dict[str, Any]:
        return {"invites": []}

    async def revoke_invite(self, invite_id: str, *, is_expelling: bool) -> dict[str, Any]:
        if invite_id == "unknown":
            raise Refused(ErrorCode.REQUEST_INVALID, "no such invite")
        self.asked.append(("revoke", invite_id, is_expelling))
        return {"id": invite_id}

    async def remove_peer(self, peer: PeerId, *, is_forced: bool) -> dict[str, Any]:
        self.asked.append(("remove", peer, is_forced))
        return {"peer_id": peer}

    async def readmit_peer(self, peer: PeerId) -> dict[str, Any]:
        self.asked.append(("readmit", peer))
        return {"peer_id": peer}

    async def forgive_peer(self, peer: PeerId) -> dict[str, Any]:
        self.asked.append(("forgive", peer))
        return {"peer_id": peer}


async def ask(desk: FakeDesk, method: str, path: str, body: Any = None, token: str = TOKEN, **more: str) -> AsgiClient:
    client = AsgiClient(body if isinstance(body, bytes) else json.dumps(body).encode())
    headers = {"host": "127.0.0.1:3131", "authorization": f"Bearer {token}", **more}
    await client.run(console_app(FakeBackend(), TOKEN, desk), path, method, headers)
    return client


async def test_each_route_asks_the_desk() -> None:
    desk = FakeDesk()
    made = await ask(desk, "POST", "/api/invites", {"life_s": 60, "max_uses": 1})
    assert (made.status, made.json()) == (200, {"invite": "p2pmesh2-x"})
    assert (await ask(desk, "GET", "/api/invites")).json() == {"invites": []}
    assert (await ask(desk, "POST", "/api/invites/revoke", {"id": "ab", "expel": True})).status == 200
    assert (await ask(desk, "POST", "/api/invites/revoke", {"id": "cd"})).status == 200
    assert (await ask(desk, "POST", "/api/peers/remove", {"peer_id": JOINER.peer_id})).status == 200
    assert (await ask(desk, "POST", "/api/peers/remove", {"peer_id": JOINER.peer_id, "force": True})).status == 200
    assert (await ask(desk, "POST", "/api/peers/readmit", {"peer_id": JOINER.peer_id})).status == 200
    assert (await ask(desk, "POST", "/api/peers/forgive", {"peer_id": JOINER.peer_id})).status == 200
    assert desk.asked == [
        ("create", 60, 1),
        ("revoke", "ab", True),
        ("revoke", "cd", False),
        ("remove", JOINER.peer_id, False),
        ("remove", JOINER.peer_id, True),
        ("readmit", JOINER.peer_id),
        ("forgive", JOINER.peer_id),
    ]


async def test_what_comes_after_its_deadline_is_not_carried_out() -> None:
    desk = FakeDesk()
    body = {"life_s": 60, "max_uses": 1}
    late = await ask(desk, "POST", "/api/invites", body, **{DEADLINE_HEADER: "1"})
    assert late.json()["error"]["code"] == "deadline_exceeded"
    assert (await ask(desk, "POST", "/api/invites", body, **{DEADLINE_HEADER: "soon"})).status == 400
    assert desk.asked == []
    assert (await ask(desk, "POST", "/api/invites", body, **{DEADLINE_HEADER: "9" * 15})).status == 200
    assert desk.asked == [("create", 60, 1)]


@pytest.mark.parametrize("path", ["/api/invites", "/api/invites/revoke", "/api/peers/remove", "/api/peers/forgive"])
async def test_nothing_is_done_without_the_token(path: str) -> None:
    desk = FakeDesk()
    body = {"life_s": 60, "max_uses": 1, "id": "ab", "peer_id": JOINER.peer_id}
    assert (await ask(desk, "POST", path, body, token="other")).status == 401
    assert desk.asked == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/invites", b"{"),
        ("/api/invites", b"[" * 100_000),
        ("/api/invites", []),
        ("/api/invites", {"life_s": 60}),
        ("/api/invites", {"life_s": True, "max_uses": 1}),
        ("/api/invites", {"life_s": 60.5, "max_uses": 1}),
        ("/api/invites", {"life_s": -1, "max_uses": 1}),
        ("/api/invites", {"life_s": 2**40, "max_uses": 1}),
        ("/api/invites/revoke", {}),
        ("/api/invites/revoke", {"id": 3}),
        ("/api/invites/revoke", {"id": "x" * 129}),
        ("/api/invites/revoke", {"id": "ab", "expel": "yes"}),
        ("/api/invites/revoke", {"id": "unknown"}),
        ("/api/peers/remove", {"peer_id": "0"}),
        ("/api/peers/remove", {"peer_id": None}),
        ("/api/peers/remove", {"peer_id": JOINER.peer_id, "force": 1}),
        ("/api/peers/readmit", {}),
    ],
)
async def test_what_makes_no_sense_is_a_400_and_changes_nothing(path: str, body: Any) -> None:
    desk = FakeDesk()
    client = await ask(desk, "POST", path, body)
    assert (client.status, client.json()["error"]["type"]) == (400, "invalid_request_error")
    assert desk.asked == []
