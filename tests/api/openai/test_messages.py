"""``/v1/messages`` as Anthropic's clients see it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from p2pmesh.api.errors import RequestError
from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.messages import parse_messages
from p2pmesh.base.errors import EngineError, ErrorCode, Refused
from p2pmesh.core.tool_calls.formats import HERMES
from p2pmesh.wire.generation import (
    ChatMessage,
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    ToolCall,
    ToolChoice,
)
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, say, started

BASE = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
THOUGHT = say("<think>", "hm", "</think>", "Hel", "lo")


async def ask(backend: FakeBackend | None = None, path: str = "/v1/messages", **body: Any) -> AsgiClient:
    client = AsgiClient(json.dumps({**BASE, **body}).encode())
    await client.run(openai_app(backend or FakeBackend()), path)
    return client


def events_of(client: AsgiClient) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in client.text.split("\n\n") if block.startswith("event: ")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [event["type"] for event in events] == [name.removeprefix("event: ") for name, _ in blocks]
    return events


async def test_a_whole_answer() -> None:
    backend = FakeBackend(script=THOUGHT)
    assert (await ask(backend)).json() == {
        "id": "msg_" + backend.requests[0].request_id.hex(),
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "Hello"},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "output_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }
    cut = (await ask(FakeBackend(script=say("a", reason=FinishReason.LENGTH)))).json()
    assert cut["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(("called", "reason", "sequence"), [(False, "stop_sequence", "END"), (True, "tool_use", None)])
async def test_a_stop_sequence_that_ended_an_answer_is_named(called: bool, reason: str, sequence: str | None) -> None:
    text = HERMES.write([ToolCall("", "weather", "{}")]) if called else "so "
    script = (
        replace(started(), call_format=HERMES.name),
        GenerationDelta((1,), text),
        GenerationFinished(FinishReason.STOP, "", 1, stop="END"),
    )
    body: dict[str, Any] = {"stop_sequences": ["END"], "tools": [{"name": "weather", "input_schema": {}}]}
    whole = (await ask(FakeBackend(script=script), **body)).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    events = events_of(await ask(FakeBackend(script=script), stream=True, **body))
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_a_stream_opens_and_closes_each_block() -> None:
    events = events_of(await ask(FakeBackend(script=THOUGHT), stream=True))
    assert [(event["type"], event.get("index")) for event in events] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 3
    assert (events[1]["content_block"]["type"], events[4]["content_block"]["type"]) == ("thinking", "text")
    assert (
        "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta") == "Hello"
    )
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    assert events[-2]["usage"]["output_tokens"] == 5


async def test_an_answer_without_text_has_an_empty_block() -> None:
    kinds = [event["type"] for event in events_of(await ask(FakeBackend(script=say()), stream=True))]
    assert kinds[1:3] == ["content_block_start", "content_block_stop"]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400, "invalid_request_error"),
        (ErrorCode.MODEL_UNKNOWN, 404, "not_found_error"),
        (ErrorCode.OVERLOADED, 429, "rate_limit_error"),
        (ErrorCode.MODEL_NOT_READY, 503, "overloaded_error"),
        (ErrorCode.INTERNAL, 500, "api_error"),
    ],
)
async def test_errors_have_anthropics_shape(code: ErrorCode, status: int, kind: str) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = {} if path == "/v1/messages" else {"max_tokens": None}
        client = await ask(FakeBackend(entry_error=Refused(code, "no")), path, **body)
        assert (client.status, client.json()) == (status, {"type": "error", "error": {"type": kind, "message": "no"}})


async def test_an_answer_that_breaks_off_ends_with_an_error() -> None:
    error = EngineError(ErrorCode.ENGINE_CRASHED, "the engine died")
    client = await ask(FakeBackend(script=(started(), GenerationDelta((1,), "Hel"), error)), stream=True)
    assert events_of(client)[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the engine died"},
    }


async def test_tokens_are_counted() -> None:
    client = AsgiClient(json.dumps({key: BASE[key] for key in ("model", "messages")}).encode())
    await client.run(openai_app(FakeBackend()), "/v1/messages/count_tokens")
    assert client.json() == {"input_tokens": 3}
    body = {**{key: BASE[key] for key in ("model", "messages")}, "tools": [WEATHER]}
    with_tools = AsgiClient(json.dumps(body).encode())
    await with_tools.run(openai_app(FakeBackend()), "/v1/messages/count_tokens")
    assert with_tools.json()["input_tokens"] > 3


CALLED = (
    replace(started(), call_format="hermes"),
    *(
        GenerationDelta((number,), text)
        for number, text in enumerate(("Let me see.", '<tool_call>\n{"name": "weather", "argu', 'ments": {"city": ',
                                       '"Bern"}}\n</tool_call>'))
    ),
    say("", "", "", "")[-1],
)  # fmt: skip
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object"}}


async def test_a_call_is_a_block_whose_input_is_streamed_as_json() -> None:
    whole = (await ask(FakeBackend(script=CALLED), tools=[WEATHER])).json()
    text, call = whole["content"]
    assert (text["type"], call["type"], call["name"], call["input"]) == (
        "text",
        "tool_use",
        "weather",
        {"city": "Bern"},
    )
    assert whole["stop_reason"] == "tool_use"
    events = events_of(await ask(FakeBackend(script=CALLED), tools=[WEATHER], stream=True))
    opened = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert (opened[1]["type"], opened[1]["id"], opened[1]["input"]) == ("tool_use", call["id"], {})
    parts = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"city": "Bern"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_calls_and_results_are_messages_of_the_assistant_and_of_tools() -> None:
    request = parse_messages(
        {
            **BASE,
            "tools": [WEATHER],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "messages": [
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}]},
                        {"type": "text", "text": "and now?"},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True}]},
            ],
        },
        bytes(16),
        lambda: 1,
    ).request
    assert request.prompt.messages == (
        ChatMessage("user", "weather?"),
        ChatMessage("assistant", "Let me see.", (ToolCall("t1", "weather", '{"city": "Zürich"}'),)),
        ChatMessage("tool", "sun", answers="t1"),
        ChatMessage("user", "and now?"),
        ChatMessage("tool", "error: ", answers="t1"),
    )
    assert request.tools is not None
    assert (request.tools.choice, request.tools.may_repeat) == (ToolChoice.REQUIRED, False)


def test_a_conversation_arrives() -> None:
    request = parse_messages(
        {
            **BASE,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "c"}],
                },
            ],
            "stop_sequences": ["END"],
            "temperature": 0.5,
            "top_k": 5,
            "thinking": {"type": "disabled"},
            "metadata": {"user_id": "u"},
        },
        bytes(16),
        lambda: 1,
    ).request
    assert request.prompt.messages == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "a\nb"),
        ChatMessage("assistant", "c"),
    )
    assert (request.stop, request.max_tokens, request.prompt.reasoning_effort) == (("END",), 9, "none")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"max_tokens": None}, ErrorCode.REQUEST_INVALID, "max_tokens"),
        ({"messages": []}, ErrorCode.REQUEST_INVALID, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, ErrorCode.REQUEST_INVALID, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            ErrorCode.PARAMETER_UNSUPPORTED,
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools[0].type"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, ErrorCode.REQUEST_INVALID, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, ErrorCode.REQUEST_INVALID, "tool_choice.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
            ErrorCode.REQUEST_INVALID,
            "messages[0].content",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f g", "input": {}}]}
                ]
            },
            ErrorCode.REQUEST_INVALID,
            "messages[0].content[0].name",
        ),
        ({"stop_sequences": ["a"] * 5}, ErrorCode.REQUEST_INVALID, "stop_sequences"),
        ({"thinking": {"type": "much"}}, ErrorCode.REQUEST_INVALID, "thinking.type"),
        ({"container": "x"}, ErrorCode.PARAMETER_UNSUPPORTED, "container"),
    ],
)
def test_what_is_at_fault_is_named(body: dict[str, Any], code: ErrorCode, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_messages({**BASE, **body}, bytes(16), lambda: 1)
    assert (raised.value.code, raised.value.param) == (code, param)
