"""The OpenAPI document: what it says is what there is."""

from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.document import openapi_document
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FakeBackend

DOCUMENT = openapi_document("1")
WRITES = {path: item["post"] for path, item in DOCUMENT["paths"].items() if "post" in item}


async def test_every_route_is_in_it_and_no_other() -> None:
    app = openai_app(FakeBackend())
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ("POST",)
        if method != "HEAD"
    }
    assert routes == {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}


async def test_it_is_served() -> None:
    client = AsgiClient()
    await client.run(openai_app(FakeBackend()), "/openapi.json", "GET")
    assert client.json()["paths"] == DOCUMENT["paths"]
    assert client.json()["openapi"].startswith("3.1")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [ref for item in value.values() for ref in references(item)]
    return [ref for item in value for ref in references(item)] if isinstance(value, list) else []


def test_references_lead_somewhere() -> None:
    assert set(references(DOCUMENT)) == {"#/components/schemas/Error"}
    assert "Error" in DOCUMENT["components"]["schemas"]


@pytest.mark.parametrize("path", WRITES)
def test_every_parameter_has_a_shape_that_is_a_schema(path: str) -> None:
    schema = WRITES[path]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert [name for name, shape in schema["properties"].items() if not {"type", "anyOf", "enum"} & shape.keys()] == []


@pytest.mark.parametrize("path", WRITES)
async def test_what_is_required_is_declared_and_an_empty_body_is_no_bug(path: str) -> None:
    schema = WRITES[path]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) <= schema["properties"].keys()
    client = AsgiClient(b"{}")
    await client.run(openai_app(FakeBackend()), path)
    assert client.status == 400
    unknown = AsgiClient(b'{"invented": 1}')
    await unknown.run(openai_app(FakeBackend()), path)
    assert unknown.status == 400
