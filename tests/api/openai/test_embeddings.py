"""``/v1/embeddings``."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import trio

from p2pmesh.api.openai.app import openai_app
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.wire.generation import FinishReason, GenerationDelta, GenerationFinished
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, RUN_ID, FakeBackend, started

READ = (
    started(),
    GenerationDelta((0,), "", embedding=np.array([3, 0, 4, 0], "<f4").tobytes()),
    GenerationFinished(FinishReason.LENGTH, "", 1),
)


async def embed(backend: FakeBackend | None = None, **body: Any) -> AsgiClient:
    client = AsgiClient(json.dumps({"model": MODEL, "input": "hi", **body}).encode())
    await client.run(openai_app(backend or FakeBackend(script=READ)), "/v1/embeddings")
    return client


async def test_an_input_is_read_and_brought_to_unit_length() -> None:
    backend = FakeBackend(script=READ)
    client = await embed(backend)
    assert client.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": pytest.approx([0.6, 0.0, 0.8, 0.0])}],
        "model": MODEL,
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert client.headers["x-p2pmesh-run-id"] == RUN_ID.hex()
    assert client.headers["x-p2pmesh-stages"] == "peer-a 0-10, peer-b 10-22"
    (request,) = backend.requests
    assert (request.wants_embedding, request.max_tokens, request.prompt.text) == (True, 1, "hi")


async def test_inputs_come_back_in_order_each_under_an_id_of_its_own() -> None:
    backend = FakeBackend(script=READ)
    answer = (await embed(backend, input=["a", [1, 2]] + ["b"] * 18)).json()
    assert [one["index"] for one in answer["data"]] == list(range(20))
    assert len({request.request_id for request in backend.requests}) == 20
    assert answer["usage"]["prompt_tokens"] == 60
    one = await embed(backend, input=[7, 8])
    assert (len(one.json()["data"]), backend.requests[-1].prompt.tokens) == (1, (7, 8))


async def test_base64_is_little_endian_float32() -> None:
    (one,) = (await embed(encoding_format="base64")).json()["data"]
    assert np.frombuffer(base64.b64decode(one["embedding"]), "<f4") == pytest.approx([0.6, 0.0, 0.8, 0.0])


async def test_fewer_dimensions_are_the_first_ones_at_unit_length() -> None:
    (one,) = (await embed(dimensions=1)).json()["data"]
    assert one["embedding"] == [1.0]
    client = await embed(dimensions=5)
    error = client.json()["error"]
    assert (client.status, error["param"]) == (400, "dimensions")
    assert "4" in error["message"]


async def test_a_vector_of_zeros_stays_one() -> None:
    script = (READ[0], GenerationDelta((0,), "", embedding=bytes(8)), READ[2])
    assert (await embed(FakeBackend(script=script))).json()["data"][0]["embedding"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "auto"}, "model"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", {}]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": {}}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"invented": 1}, "invented"),
        ({"user": 1}, "user"),
    ],
)
async def test_what_is_at_fault_is_named(body: dict[str, Any], param: str) -> None:
    client = await embed(**body)
    assert (client.status, client.json()["error"]["param"]) == (400, param)


async def test_a_model_that_gives_none_and_a_text_too_long_are_the_clients_doing() -> None:
    refused = await embed(FakeBackend(entry_error=Refused(ErrorCode.REQUEST_INVALID, "this model ranks texts")))
    assert (refused.status, refused.json()["error"]["message"]) == (400, "this model ranks texts")
    too_long = await embed(FakeBackend(entry_error=Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9 tokens")))
    assert (too_long.status, too_long.json()["error"]["param"]) == (400, "input")


async def test_a_client_that_leaves_cancels_the_reading() -> None:
    reached = trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(script=(started(), hang))
    client = AsgiClient(json.dumps({"model": MODEL, "input": "hi"}).encode())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run, openai_app(backend), "/v1/embeddings")
        await reached.wait()
        client.gone.set()
    assert backend.outcomes == ["cancelled"]
