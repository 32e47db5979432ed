"""The tables of ``docs/api.md``: complete, and true."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from p2pmesh.api.errors import RequestError
from p2pmesh.api.openai.chat import CHAT_IMPLEMENTED, parse_chat
from p2pmesh.api.openai.completions import COMPLETIONS_IMPLEMENTED, parse_completions
from p2pmesh.api.openai.embeddings import EMBEDDINGS_HARMLESS, EMBEDDINGS_IMPLEMENTED, parse_embeddings
from p2pmesh.api.openai.messages import MESSAGES_HARMLESS, MESSAGES_IMPLEMENTED, parse_messages
from p2pmesh.api.openai.parameters import CHAT_HARMLESS, COMPLETIONS_HARMLESS, Harmless
from p2pmesh.api.openai.responses import RESPONSES_HARMLESS, RESPONSES_IMPLEMENTED, parse_responses
from p2pmesh.base.errors import ErrorCode

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
STREAM = {"stream"}  # in OpenAI's types a class of its own


@dataclass(frozen=True)
class Endpoint:
    """One endpoint's table and the code beside it."""

    path: str
    parse: Callable[[dict[str, Any]], object]
    body: dict[str, Any]
    implemented: frozenset[str]
    harmless: dict[str, Harmless]
    of_openai: frozenset[str]

    def rows(self) -> dict[str, str]:
        section = DOCUMENT.split(f"## `POST {self.path}`")[1].split("\n## ")[0]
        return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))


def names_of(params: type) -> frozenset[str]:
    return frozenset(params.__annotations__) | STREAM


ENDPOINTS = [
    Endpoint(
        "/v1/chat/completions",
        lambda body: parse_chat(body, bytes(16), lambda: 1),
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        CHAT_IMPLEMENTED,
        dict(CHAT_HARMLESS),
        names_of(chat_create_params.CompletionCreateParamsBase),
    ),
    Endpoint(
        "/v1/completions",
        lambda body: parse_completions(body, bytes(16), lambda: 1),
        {"model": "m", "prompt": "hi"},
        COMPLETIONS_IMPLEMENTED,
        dict(COMPLETIONS_HARMLESS),
        names_of(completion_create_params.CompletionCreateParamsBase),
    ),
    Endpoint(
        "/v1/responses",
        lambda body: parse_responses(body, bytes(16), lambda: 1),
        {"model": "m", "input": "hi"},
        RESPONSES_IMPLEMENTED,
        dict(RESPONSES_HARMLESS),
        names_of(response_create_params.ResponseCreateParamsBase),
    ),
    Endpoint(
        "/v1/messages",
        lambda body: parse_messages(body, bytes(16), lambda: 1),
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
        MESSAGES_IMPLEMENTED,
        dict(MESSAGES_HARMLESS),
        frozenset(),
    ),
    Endpoint(
        "/v1/embeddings",
        parse_embeddings,
        {"model": "m", "input": "hi"},
        EMBEDDINGS_IMPLEMENTED,
        EMBEDDINGS_HARMLESS,
        names_of(embedding_create_params.EmbeddingCreateParams) - STREAM,
    ),
]
each_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)


@each_endpoint
def test_every_parameter_of_openais_package_has_a_row(endpoint: Endpoint) -> None:
    assert endpoint.of_openai - endpoint.rows().keys() == set()


@each_endpoint
def test_rows_are_what_the_code_does(endpoint: Endpoint) -> None:
    rows = endpoint.rows()
    assert {name for name, kind in rows.items() if kind != "refused"} == endpoint.implemented | endpoint.harmless.keys()
    for name, kind in rows.items():
        if kind == "refused":
            with pytest.raises(RequestError) as raised:
                endpoint.parse({**endpoint.body, name: {"some": "value"}})
            assert (raised.value.code, raised.value.param) == (ErrorCode.PARAMETER_UNSUPPORTED, name)
        elif name in endpoint.harmless:
            accepts_all = all(endpoint.harmless[name].accepts(value) for value in ("strange", {"a": 1}, [1], 7))
            assert kind == ("accepted" if accepts_all else "only"), name
        else:
            assert kind in ("used", "accepted"), name


@each_endpoint
def test_a_name_without_a_row_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(RequestError) as raised:
        endpoint.parse({**endpoint.body, "invented": 1})
    assert (raised.value.code, raised.value.param) == (ErrorCode.PARAMETER_UNSUPPORTED, "invented")
