"""``/tokenize`` and ``/detokenize``."""

import json
from typing import Any

import pytest

from p2pmesh.api.backend import ModelListing
from p2pmesh.api.openai.app import openai_app
from p2pmesh.base.errors import ErrorCode, Refused
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend


async def ask(path: str, backend: FakeBackend | None = None, **body: Any) -> AsgiClient:
    client = AsgiClient(json.dumps(body).encode())
    await client.run(openai_app(backend or FakeBackend()), path)
    return client


async def test_a_text_and_a_conversation_have_tokens() -> None:
    backend = FakeBackend(listings=(ModelListing(MODEL, 0, context_tokens=512),))
    answer = await ask("/tokenize", backend, model=MODEL, prompt="ab")
    assert answer.json() == {"model": MODEL, "count": 3, "max_model_len": 512, "tokens": [0, 97, 98]}
    plain = await ask("/tokenize", backend, model=MODEL, prompt="ab", add_special_tokens=False)
    assert plain.json()["tokens"] == [97, 98]
    chat = await ask("/tokenize", backend, model=MODEL, messages=[{"role": "user", "content": "c"}])
    assert chat.json()["tokens"] == [0, 99]


async def test_requests_of_llama_servers_kind_are_taken_too() -> None:
    assert (await ask("/tokenize", content="ab")).json()["tokens"] == [97, 98]
    assert (await ask("/tokenize", content="ab", add_special=True)).json()["tokens"] == [0, 97, 98]


async def test_tokens_have_a_text() -> None:
    answer = (await ask("/detokenize", model=MODEL, tokens=[104, 105])).json()
    assert (answer["prompt"], answer["content"]) == ("hi", "hi")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "invented": 1}, "invented"),
        ("/tokenize", {"messages": [{"role": "robot"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
async def test_what_is_at_fault_is_named(path: str, body: dict[str, Any], param: str) -> None:
    client = await ask(path, **body)
    assert (client.status, client.json()["error"]["param"]) == (400, param)


async def test_a_model_must_be_named_where_there_are_several_or_none() -> None:
    several = FakeBackend(listings=(ModelListing("a", 0), ModelListing("b", 0)))
    assert (await ask("/tokenize", several, prompt="a")).json()["error"]["param"] == "model"
    assert (await ask("/tokenize", FakeBackend(listings=()), prompt="a", model="m")).status == 503


async def test_a_refusal_of_the_driver_is_a_status() -> None:
    backend = FakeBackend(entry_error=Refused(ErrorCode.MODEL_UNKNOWN, "no peer serves it"))
    assert (await ask("/tokenize", backend, model="other", prompt="a")).status == 404
