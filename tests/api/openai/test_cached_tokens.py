"""What clients are told of tokens that were not computed again, each API in its own words."""

import json
from dataclasses import replace
from typing import Any

import pytest

from p2pmesh.api.openai.app import openai_app
from p2pmesh.wire.generation import FinishReason, GenerationDelta, GenerationFinished
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, started

CACHED, PROMPT = 960, 1000
SCRIPT = (
    replace(started(PROMPT), cached_tokens=CACHED),
    GenerationDelta((1,), "Hi"),
    GenerationFinished(FinishReason.STOP, "", 1),
)
CONVERSATION = [{"role": "user", "content": "hi"}]


async def ask(path: str, **body: Any) -> AsgiClient:
    client = AsgiClient(json.dumps({"model": MODEL, **body}).encode())
    await client.run(openai_app(FakeBackend(script=SCRIPT)), path)
    assert client.status == 200
    return client


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", {"messages": CONVERSATION}), ("/v1/completions", {"prompt": "hi"})]
)
async def test_chat_and_completions(path: str, body: dict[str, Any]) -> None:
    usage = (await ask(path, **body)).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]) == (PROMPT, {"cached_tokens": CACHED})
    streamed = (await ask(path, **body, stream=True, stream_options={"include_usage": True})).text
    assert f'"cached_tokens":{CACHED}' in streamed.replace(": ", ":")


async def test_choices_of_one_prompt_count_it_once() -> None:
    usage = (await ask("/v1/chat/completions", messages=CONVERSATION, n=2)).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (PROMPT, CACHED)


async def test_responses() -> None:
    usage = (await ask("/v1/responses", input="hi")).json()["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (PROMPT, CACHED)


async def test_messages_count_what_was_computed_and_what_was_not_apart() -> None:
    usage = (await ask("/v1/messages", messages=CONVERSATION, max_tokens=9)).json()["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (PROMPT - CACHED, CACHED)
