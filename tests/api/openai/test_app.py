import pytest

from p2pmesh.api.backend import ModelListing
from p2pmesh.api.openai.app import openai_app
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend


async def get(path: str, backend: FakeBackend | None = None, method: str = "GET") -> AsgiClient:
    client = AsgiClient()
    await client.run(openai_app(backend or FakeBackend()), path, method)
    return client


async def test_models_are_listed_with_the_facts_that_are_known() -> None:
    listings = (ModelListing("a", 1), ModelListing("org/b", 2, context_tokens=4096, stage_count=2))
    client = await get("/v1/models", FakeBackend(listings=listings))
    assert client.json() == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 1, "owned_by": "p2pmesh"},
            {
                "id": "org/b",
                "object": "model",
                "created": 2,
                "owned_by": "p2pmesh",
                "context_length": 4096,
                "stage_count": 2,
            },
            {"id": "mesh", "object": "model", "created": 2, "owned_by": "p2pmesh"},
        ],
    }


async def test_a_model_id_may_hold_slashes() -> None:
    assert (await get(f"/v1/models/{MODEL}")).json()["id"] == MODEL


async def test_an_unknown_model_is_a_404_while_another_is_ready() -> None:
    client = await get("/v1/models/nope")
    error = client.json()["error"]
    assert (client.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    client = await get("/v1/models/nope", FakeBackend(listings=()))
    assert (client.status, client.headers["retry-after"]) == (503, "7")


async def test_nothing_ready_is_an_empty_list() -> None:
    assert (await get("/v1/models", FakeBackend(listings=()))).json()["data"] == []


async def test_liveness_and_readiness_differ() -> None:
    assert (await get("/livez", FakeBackend(listings=()))).status == 200
    assert (await get("/readyz")).status == 200
    client = await get("/readyz", FakeBackend(listings=()))
    assert (client.status, client.json()["error"]["code"]) == (503, "model_not_ready")
    assert client.headers["retry-after"] == "7"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions/", "/v1/images/generations", "/v1/audio/speech"])
async def test_other_paths_are_openai_shaped_404s(path: str) -> None:
    client = await get(path)
    assert (client.status, client.json()["error"]["code"]) == (404, "route_unknown")
    assert f"there is no {path} here; there are /v1/models, /v1/chat/completions," in client.json()["error"]["message"]
    assert "the console has a port of its own" in client.json()["error"]["message"]
    assert "x-request-id" in client.headers


async def test_other_methods_are_405s() -> None:
    client = await get("/v1/chat/completions")
    assert (client.status, client.json()["error"]["code"]) == (405, "method_not_allowed")
    assert client.headers["allow"] == "POST"
    assert client.json()["error"]["message"] == "GET is not allowed for /v1/chat/completions; send POST"


async def test_no_other_site_is_invited() -> None:
    client = AsgiClient()
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    await client.run(openai_app(FakeBackend()), "/v1/chat/completions", "OPTIONS", headers)
    assert client.status == 405
    assert not [name for name in client.headers if name.startswith("access-control")]
