import pytest

from p2pmesh.api.console import console_app
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FakeBackend

TOKEN = "s3cret"
OURS = {"host": "127.0.0.1:3131"}


async def get(path: str = "/api/status", **headers: str) -> AsgiClient:
    client = AsgiClient()
    await client.run(console_app(FakeBackend(), TOKEN), path, "GET", {**OURS, **headers})
    return client


async def test_the_status_stands_behind_the_token() -> None:
    client = await get(authorization=f"Bearer {TOKEN}")
    assert (client.status, client.json()["peer_id"]) == (200, "fake")
    assert (await get(authorization=f"bearer {TOKEN}")).status == 200


@pytest.mark.parametrize("authorization", ["", TOKEN, "Bearer", "Bearer s3cre", "Basic s3cret", "Bearer s3cr\u00e9t"])
async def test_anything_else_is_a_401(authorization: str) -> None:
    client = await get(authorization=authorization)
    assert (client.status, client.json()["error"]["type"]) == (401, "authentication_error")
    assert client.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in client.text


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
async def test_other_hosts_and_origins_are_refused(headers: dict[str, str]) -> None:
    client = await get(authorization=f"Bearer {TOKEN}", **headers)
    assert client.status == 403
    assert "own host name" in client.text


async def test_a_page_of_the_console_itself_may_ask() -> None:
    client = await get(authorization=f"Bearer {TOKEN}", host="[::1]:3131", origin="http://localhost:3131")
    assert client.status == 200


async def test_liveness_needs_no_token() -> None:
    assert (await get("/livez")).status == 200
    error = (await get("/nothing")).json()["error"]
    assert (error["code"], "there are /api/status, " in error["message"]) == ("route_unknown", True)


async def test_peers_stand_behind_the_token_too_and_are_refused_while_the_node_starts() -> None:
    assert (await get("/api/peers")).status == 401
    client = await get("/api/peers", authorization=f"Bearer {TOKEN}")
    assert (client.status, client.json()["coordinator"]) == (200, "fake")
    starting = AsgiClient()
    app = console_app(FakeBackend(listings=()), TOKEN)
    await starting.run(app, "/api/peers", "GET", {**OURS, "authorization": f"Bearer {TOKEN}"})
    assert (starting.status, starting.json()["error"]["code"]) == (503, "model_not_ready")
