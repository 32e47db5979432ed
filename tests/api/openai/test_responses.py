"""``/v1/responses``: requests, whole answers, the sequence of events."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from p2pmesh.api.errors import RequestError
from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.parameters import Call
from p2pmesh.api.openai.responses import parse_responses
from p2pmesh.base.errors import EngineError, ErrorCode, Refused
from p2pmesh.wire.generation import ChatMessage, FinishReason, GenerationDelta, TokenLogprob, ToolCall
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, say, started

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
THOUGHT = say("<think>", "hm", "</think>", "Hel", "lo")
REASONING = [
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
OPEN = ["response.output_item.added", "response.content_part.added"]
CLOSE = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
BEGIN = ["response.created", "response.in_progress"]


def parse(**body: Any) -> Call:
    return parse_responses({"model": "m", "input": "hi", **body}, bytes(16), lambda: 1)


async def ask(backend: FakeBackend | None = None, **body: Any) -> AsgiClient:
    client = AsgiClient(json.dumps({"model": MODEL, "input": "hi", **body}).encode())
    await client.run(openai_app(backend or FakeBackend()), "/v1/responses")
    return client


def events_of(client: AsgiClient) -> list[dict[str, Any]]:
    """Every event, its name checked against its type, its shape by OpenAI's own package, its number by its place."""
    events = []
    for number, block in enumerate(block for block in client.text.split("\n\n") if block.startswith("event: ")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert event["type"] == name.removeprefix("event: ")
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
        events.append(event)
    return events


async def test_a_whole_answer_is_a_response_object() -> None:
    client = await ask(metadata={"a": "b"}, instructions="be brief", max_output_tokens=9, temperature=0.5)
    answer = client.json()
    Response.model_validate(answer)
    assert (answer["object"], answer["status"], answer["error"], answer["incomplete_details"]) == (
        "response", "completed", None, None
    )  # fmt: skip
    (message,) = answer["output"]
    assert (message["type"], message["role"], message["content"][0]["text"]) == ("message", "assistant", "Hello")
    assert answer["usage"]["total_tokens"] == 5
    assert (answer["metadata"], answer["instructions"], answer["max_output_tokens"]) == ({"a": "b"}, "be brief", 9)
    assert (answer["temperature"], answer["store"], answer["previous_response_id"]) == (0.5, False, None)
    assert answer["id"].startswith("resp_")


async def test_the_events_of_a_stream_end_with_the_whole_answer() -> None:
    backend = FakeBackend()
    whole = (await ask(backend)).json()
    streamed = events_of(await ask(FakeBackend(), stream=True))
    delta = "response.output_text.delta"
    assert [event["type"] for event in streamed] == [*BEGIN, *OPEN, delta, delta, *CLOSE, "response.completed"]
    assert "".join(event["delta"] for event in streamed if event["type"] == delta) == "Hello"
    assert streamed[-1]["response"] == whole
    assert streamed[0]["response"]["status"] == "in_progress"
    assert streamed[0]["response"]["output"] == []
    assert streamed[2]["item"]["content"] == []
    assert {event["item_id"] for event in streamed if "item_id" in event} == {whole["output"][0]["id"]}


async def test_reasoning_is_an_item_before_the_message() -> None:
    streamed = events_of(await ask(FakeBackend(script=THOUGHT), stream=True))
    kinds = [event["type"] for event in streamed]
    assert kinds[2:8] == REASONING
    reasoning, message = streamed[-1]["response"]["output"]
    assert (reasoning["type"], reasoning["content"][0]["text"]) == ("reasoning", "hm")
    assert (message["type"], message["content"][0]["text"]) == ("message", "Hello")
    assert [event["output_index"] for event in streamed if event["type"] == "response.output_item.done"] == [0, 1]
    assert streamed[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_that_the_limit_ended_is_incomplete(is_streamed: bool) -> None:
    client = await ask(FakeBackend(script=say("a", reason=FinishReason.LENGTH)), stream=is_streamed)
    events = events_of(client) if is_streamed else []
    response = events[-1]["response"] if is_streamed else client.json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert not is_streamed or events[-1]["type"] == "response.incomplete"


async def test_an_answer_without_text_has_an_empty_message() -> None:
    streamed = events_of(await ask(FakeBackend(script=say()), stream=True))
    assert [event["type"] for event in streamed] == [*BEGIN, *OPEN, *CLOSE, "response.completed"]


async def test_an_answer_that_breaks_off_has_failed() -> None:
    error = EngineError(ErrorCode.ENGINE_CRASHED, "the engine died")
    client = await ask(FakeBackend(script=(started(), GenerationDelta((1,), "Hel"), error)), stream=True)
    last = events_of(client)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "the engine died"}
    refused = await ask(FakeBackend(entry_error=Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9")), stream=True)
    assert (refused.status, refused.json()["error"]["param"]) == (400, "input")


async def test_a_response_that_never_began_ends_with_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async def wait_long() -> None:
        await trio.sleep(30)

    gone = Refused(ErrorCode.MODEL_NOT_READY, "nobody took over in time")
    client = await ask(FakeBackend(script=(wait_long, gone)), stream=True)
    (event,) = events_of(client)
    assert (event["type"], event["code"], event["message"]) == ("error", "model_not_ready", "nobody took over in time")
    assert client.is_complete


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_utf_8_cannot_hold_is_given_back_as_json_writes_it(is_streamed: bool) -> None:
    client = await ask(metadata={"a": "\ud800"}, stream=is_streamed)
    answer = events_of(client)[-1]["response"] if is_streamed else client.json()
    assert answer["metadata"] == {"a": "\ud800"}


async def test_log_probabilities_come_where_they_are_included() -> None:
    told = TokenLogprob(1, b"a", -0.5, (TokenLogprob(1, b"a", -0.5),))
    script = (started(), GenerationDelta((1,), "a", (told,)), say("a")[-1])
    backend = FakeBackend(script=script)
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    whole = (await ask(backend, **body)).json()
    assert backend.requests[0].top_logprobs == 1
    entry = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert whole["output"][0]["content"][0]["logprobs"] == [{**entry, "top_logprobs": [entry]}]
    streamed = events_of(await ask(FakeBackend(script=script), stream=True, **body))
    assert streamed[4]["logprobs"] == [{**entry, "top_logprobs": [entry]}]
    assert streamed[3]["part"]["logprobs"] == []


async def test_log_probabilities_of_text_that_is_held_back_come_with_it() -> None:
    told = [TokenLogprob(number, piece, -0.5, ()) for number, piece in enumerate((b"<", b"b>"))]
    script = (started(), GenerationDelta((1,), "<", (told[0],)), GenerationDelta((2,), "b>", (told[1],)), say("")[-1])
    body = {"include": ["message.output_text.logprobs"]}
    whole = (await ask(FakeBackend(script=script), **body)).json()["output"]
    streamed = events_of(await ask(FakeBackend(script=script), stream=True, **body))[-1]["response"]["output"]
    assert [one["token"] for one in streamed[0]["content"][0]["logprobs"]] == ["<", "b>"]
    assert streamed == whole


def test_a_conversation_of_items_is_one_of_messages() -> None:
    call = parse(
        instructions="be brief",
        input=[
            {"role": "developer", "content": "be kind"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "two", "annotations": [], "logprobs": []}],
            },
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "not that"}]},
        ],
        reasoning={"effort": "low"},
        text={"format": {"type": "text"}},
    )
    assert call.request.prompt.messages == (
        ChatMessage("system", "be brief"),
        ChatMessage("system", "be kind"),
        ChatMessage("user", "one"),
        ChatMessage("assistant", "two"),
        ChatMessage("user", "three"),
        ChatMessage("assistant", "not that"),
    )
    assert call.request.prompt.reasoning_effort == "low"


WEATHER = {"type": "function", "name": "weather", "description": "of a city", "parameters": {"type": "object"}}
CALLED = (
    replace(started(), call_format="hermes"),
    *(
        GenerationDelta((number,), text)
        for number, text in enumerate(("Let me see.", '<tool_call>\n{"name": "weather", "argu', 'ments": {"city": ',
                                       '"Bern"}}\n</tool_call>'))
    ),
    say("", "", "", "")[-1],
)  # fmt: skip


async def test_a_call_is_an_item_whose_arguments_are_streamed() -> None:
    whole = (await ask(FakeBackend(script=CALLED), tools=[WEATHER])).json()
    Response.model_validate(whole)
    message, call = whole["output"]
    assert (message["type"], call["type"], call["name"]) == ("message", "function_call", "weather")
    assert json.loads(call["arguments"]) == {"city": "Bern"}
    assert whole["tools"] == [WEATHER]
    streamed = events_of(await ask(FakeBackend(script=CALLED), tools=[WEATHER], stream=True))
    kinds = [event["type"] for event in streamed]
    added = kinds.index("response.output_item.added", 4)
    assert streamed[added]["item"]["arguments"] == ""
    assert kinds[-3:] == [
        "response.function_call_arguments.done", "response.output_item.done", "response.completed"
    ]  # fmt: skip
    deltas = [event["delta"] for event in streamed if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"]
    assert len(deltas) > 1
    assert [item["type"] for item in streamed[-1]["response"]["output"]] == ["message", "function_call"]


def test_calls_and_their_outputs_are_messages_of_the_assistant_and_of_tools() -> None:
    call = parse(
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        input=[
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": "Let me see."},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        ],
    )
    calls = (ToolCall("c1", "weather", "{}"), ToolCall("c2", "weather", "{}"))
    assert call.request.prompt.messages == (
        ChatMessage("user", "weather?"),
        ChatMessage("assistant", "Let me see.", calls),
        ChatMessage("tool", "sun", answers="c1"),
        ChatMessage("tool", "rain", answers="c2"),
    )
    assert call.request.tools is not None
    assert (call.request.tools.only, call.request.tools.may_repeat) == ("weather", False)


def test_a_schema_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    call = parse(text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    assert call.request.grammar


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": None}, ErrorCode.REQUEST_INVALID, "input"),
        ({"input": []}, ErrorCode.REQUEST_INVALID, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, ErrorCode.REQUEST_INVALID, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, ErrorCode.PARAMETER_UNSUPPORTED, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            ErrorCode.PARAMETER_UNSUPPORTED,
            "input[0].content[0].type",
        ),
        ({"previous_response_id": "resp_1"}, ErrorCode.PARAMETER_UNSUPPORTED, "previous_response_id"),
        ({"store": True}, ErrorCode.PARAMETER_UNSUPPORTED, "store"),
        ({"background": True}, ErrorCode.PARAMETER_UNSUPPORTED, "background"),
        ({"truncation": "auto"}, ErrorCode.PARAMETER_UNSUPPORTED, "truncation"),
        ({"include": ["file_search_call.results"]}, ErrorCode.PARAMETER_UNSUPPORTED, "include[0]"),
        ({"reasoning": {"effort": "much"}}, ErrorCode.REQUEST_INVALID, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, ErrorCode.PARAMETER_UNSUPPORTED, "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, ErrorCode.PARAMETER_UNSUPPORTED, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, ErrorCode.REQUEST_INVALID, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, ErrorCode.REQUEST_INVALID, "tools[0].name"),
        ({"tools": "x"}, ErrorCode.REQUEST_INVALID, "tools"),
        ({"tool_choice": "required"}, ErrorCode.REQUEST_INVALID, "tool_choice"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
            ErrorCode.REQUEST_INVALID,
            "input[0].arguments",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f \u00e9", "arguments": "{}"}]},
            ErrorCode.REQUEST_INVALID,
            "input[0].name",
        ),
        ({"input": [{"type": "function_call_output", "output": "1"}]}, ErrorCode.REQUEST_INVALID, "input[0].call_id"),
        ({"max_output_tokens": 0}, ErrorCode.REQUEST_INVALID, "max_output_tokens"),
        ({"seed": 1}, ErrorCode.PARAMETER_UNSUPPORTED, "seed"),
    ],
)
def test_what_is_at_fault_is_named(body: dict[str, Any], code: ErrorCode, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(**body)
    assert (raised.value.code, raised.value.param) == (code, param)
