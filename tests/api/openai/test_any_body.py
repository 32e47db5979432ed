"""No body is a bug: whatever a client sends to any route of the document, the answer is no 5xx."""

import json
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.document import openapi_document
from p2pmesh.wire.generation import FinishReason, GenerationDelta, GenerationFinished
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, started

PATHS = {path: item["post"] for path, item in openapi_document("1")["paths"].items() if "post" in item}
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD = {
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": MESSAGES},
    "/v1/embeddings": {"model": MODEL, "input": "hi"},
    "/tokenize": {"model": MODEL, "prompt": "hi"},
    "/detokenize": {"model": MODEL, "tokens": [104]},
}
SCRIPT = (
    started(),
    GenerationDelta((1,), "<think>a</think>b", embedding=bytes(8)),
    GenerationFinished(FinishReason.LENGTH, "c", 1),
)
WORDS = (
    "text",
    "auto",
    "none",
    "function",
    "json_schema",
    "type",
    "name",
    "content",
    "role",
    "user",
    "tool",
    "id",
    "low",
)
NAMES = sorted(
    {
        name
        for item in PATHS.values()
        for name in item["requestBody"]["content"]["application/json"]["schema"]["properties"]
    }
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(0, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(WORDS)
    | st.sampled_from(("\ud800", "\u00b2", "\0"))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
CHANGES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), VALUES, max_size=4)


def status_of(path: str, body: dict[str, Any]) -> int:
    client = AsgiClient(json.dumps(body).encode())
    trio.run(client.run, openai_app(FakeBackend(script=SCRIPT)), path)
    assert client.is_complete, body
    return client.status


@pytest.mark.parametrize("path", GOOD)
def test_the_plain_body_is_answered(path: str) -> None:
    assert GOOD.keys() == PATHS.keys()
    assert status_of(path, GOOD[path]) == 200


@pytest.mark.parametrize("path", GOOD)
@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, is_streamed=st.booleans())
def test_no_body_is_a_bug(path: str, changes: dict[str, Any], is_streamed: bool) -> None:
    streaming = {"stream": True} if is_streamed and path.startswith("/v1/") else {}
    status = status_of(path, {**GOOD[path], **streaming, **changes})
    assert status < 500, (status, changes)
