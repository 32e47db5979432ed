"""Who asks, by what a request says."""

import json
from typing import Any

import pytest

from p2pmesh.api.access import KEY_ID
from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.asking import asker_of
from p2pmesh.core.affinity import NOBODY, Asker
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend

PLAIN: dict[str, Any] = {"headers": []}
NAMED: dict[str, Any] = {"headers": [(b"x-session-id", b"of the header")]}

FROM_AFAR: dict[str, Any] = {"headers": [], "client": ("192.0.2.7", 999)}


@pytest.mark.parametrize(
    ("body", "scope", "expected"),
    [
        ({}, PLAIN, NOBODY),
        ({"prompt_cache_key": "s"}, NAMED, Asker("s")),
        ({"prompt_cache_key": ""}, NAMED, Asker("of the header")),
        ({"user": "u"}, PLAIN, Asker("", "u")),
        ({"user": "u", "safety_identifier": "i"}, PLAIN, Asker("", "i")),
        ({"metadata": {"user_id": "anthropic"}}, PLAIN, Asker("", "anthropic")),
        ({"metadata": ["user_id"], "user": 7}, PLAIN, NOBODY),
        ({}, FROM_AFAR, Asker(account="address 192.0.2.7 ")),
        ({"user": "u"}, FROM_AFAR, Asker("", "u", "address 192.0.2.7 u")),
        ({"user": "u"}, {**FROM_AFAR, KEY_ID: "k1"}, Asker("", "u", "key k1")),
    ],
)
def test_a_request_says_who_asks(body: dict[str, Any], scope: dict[str, Any], expected: Asker) -> None:
    assert asker_of(body, scope) == expected


async def test_the_node_hears_of_it() -> None:
    backend = FakeBackend()
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": MODEL, "messages": messages, "prompt_cache_key": "s", "user": "u"}
    client = AsgiClient(json.dumps(body).encode())
    await client.run(openai_app(backend), "/v1/chat/completions")
    assert client.status == 200
    assert backend.askers == [Asker("s", "u", "address 127.0.0.1 u")]
