"""Keys, host names and pages at the API's port."""

import json
from dataclasses import dataclass, field

import pytest
import trio

from p2pmesh.api.access import KeyLimited
from p2pmesh.api.backend import ModelListing
from p2pmesh.api.openai.app import AccessRules, openai_app
from p2pmesh.base.errors import ErrorCode, Refused
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, started

NAMES = frozenset({"localhost", "127.0.0.1", "::1", "ai.example"})
PAGE = "https://chat.example"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
CHAT = "/v1/chat/completions"


@dataclass
class FakeKeys:
    """Implements ``Keys``: one is known, another is at its limit."""

    open: int = 0
    charged: int = 0
    begun: list[str] = field(default_factory=list)

    def begin(self, given: str) -> str | None:
        self.begun.append(given)
        if given == "busy":
            raise KeyLimited("too many", 17)
        if given != "good":
            raise Refused(ErrorCode.UNAUTHORIZED, "that API key is not accepted")
        self.open += 1
        return "id-of-good"

    def charge(self, key_id: str, uses: int) -> None:
        assert key_id == "id-of-good"
        self.charged += uses

    def end(self, key_id: str) -> None:
        assert key_id == "id-of-good"
        self.open -= 1


async def ask(
    access: AccessRules, path: str = CHAT, backend: FakeBackend | None = None, method: str = "POST", **headers: str
) -> AsgiClient:
    client = AsgiClient(BODY)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    await client.run(openai_app(backend or FakeBackend(), access), path, method, named)
    return client


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer bad"}, {"authorization": "Basic good"}])
async def test_another_key_or_none_is_401_in_openais_shape(headers: dict[str, str]) -> None:
    backend = FakeBackend()
    client = await ask(AccessRules(FakeKeys()), backend=backend, **headers)
    assert client.status == 401
    assert client.json()["error"]["code"] == "invalid_api_key"
    assert client.headers["www-authenticate"] == "Bearer"
    assert client.headers["x-request-id"]
    assert backend.requests == []


@pytest.mark.parametrize("headers", [{"authorization": "Bearer good"}, {"x_api_key": "good"}])
async def test_a_key_is_counted_while_its_request_lasts_and_names_the_account(headers: dict[str, str]) -> None:
    keys, seen = FakeKeys(), []

    async def look() -> None:
        seen.append(keys.open)

    backend = FakeBackend()
    first, *rest = backend.script
    backend.script = (first, look, *rest)
    client = await ask(AccessRules(keys), backend=backend, **headers)
    assert (client.status, seen, keys.open) == (200, [1], 0)
    assert backend.askers[0].account == "key id-of-good"


async def test_a_key_is_free_again_when_its_client_hangs_up() -> None:
    keys, reached = FakeKeys(), trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    app = openai_app(FakeBackend(script=(started(), hang)), AccessRules(keys))
    client = AsgiClient(BODY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run, app, CHAT, "POST", {"authorization": "Bearer good"})
        await reached.wait()
        assert keys.open == 1
        client.gone.set()
    assert keys.open == 0


async def test_a_key_at_its_limit_is_429_with_its_own_time() -> None:
    client = await ask(AccessRules(FakeKeys()), authorization="Bearer busy")
    assert (client.status, client.headers["retry-after"]) == (429, "17")


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/openapi.json"])
async def test_supervisors_need_no_key(path: str) -> None:
    keys = FakeKeys()
    assert (await ask(AccessRules(keys), path, method="GET")).status == 200
    assert keys.begun == []


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/nowhere"])
async def test_all_else_needs_one(path: str) -> None:
    assert (await ask(AccessRules(FakeKeys()), path, method="GET")).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:9337"}, 200),
        ({"host": "[::1]:9337"}, 200),
        ({"host": "AI.example"}, 200),
        ({"host": "rebound.example:9337"}, 403),
        ({"host": "127.0.0.1.rebound.example"}, 403),
        ({"host": "[::1"}, 403),
        ({}, 403),
        ({"host": "localhost", "origin": "http://localhost:3000"}, 200),
        ({"host": "localhost", "origin": "https://evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
    ],
)
async def test_only_our_names_and_our_pages_are_answered(headers: dict[str, str], status: int) -> None:
    assert (await ask(AccessRules(host_names=NAMES), **headers)).status == status


@pytest.mark.parametrize(("origin", "status"), [("http://any.example", 200), ("http://evil.example", 403)])
async def test_bound_elsewhere_any_name_is_answered_but_not_another_sites_page(origin: str, status: int) -> None:
    assert (await ask(AccessRules(), host="any.example:9337", origin=origin)).status == status


async def test_no_page_is_told_that_it_may_read_unless_it_is_named() -> None:
    client = await ask(AccessRules(host_names=NAMES), host="localhost", origin="http://localhost:3000")
    assert not [name for name in client.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
async def test_a_named_page_may_ask_and_read(origins: tuple[str, ...]) -> None:
    access = AccessRules(FakeKeys(), NAMES, origins)
    preflight = await ask(
        access, method="OPTIONS", host="localhost", origin=PAGE, access_control_request_headers="authorization"
    )
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    client = await ask(access, host="localhost", origin=PAGE, authorization="Bearer good")
    assert (client.status, client.headers["access-control-allow-origin"]) == (200, PAGE)
    refused = await ask(access, host="localhost", origin=PAGE)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(("n", "charged"), [(1, 1), (3, 3)])
async def test_a_key_is_charged_for_every_model_that_mesh_asks(n: int, charged: int) -> None:
    keys = FakeKeys()
    backend = FakeBackend(listings=(ModelListing("a-9B", 1), ModelListing("b-1B", 1)))
    body = {"model": "mesh", "messages": [{"role": "user", "content": "hi"}], "n": n}
    client = AsgiClient(json.dumps(body).encode())
    await client.run(openai_app(backend, AccessRules(keys)), CHAT, "POST", {"authorization": "Bearer good"})
    assert client.status == 200
    assert len(backend.requests) == n + charged
    assert (keys.charged, keys.open) == (charged, 0)


async def test_nobody_is_charged_where_any_key_will_do() -> None:
    backend = FakeBackend(listings=(ModelListing("a-9B", 1), ModelListing("b-1B", 1)))
    client = AsgiClient(json.dumps({"model": "mesh", "messages": [{"role": "user", "content": "hi"}]}).encode())
    await client.run(openai_app(backend), CHAT)
    assert client.status == 200
