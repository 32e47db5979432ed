"""Tools of a request as they are read, calls of an answer as they are shown."""

import json
from dataclasses import replace

import pytest

from p2pmesh.api.errors import RequestError
from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.chat import parse_chat
from p2pmesh.base.errors import ErrorCode
from p2pmesh.core.tool_calls.formats import HERMES, MISTRAL
from p2pmesh.core.tool_calls.tools import decode_tools
from p2pmesh.wire.generation import (
    ChatMessage,
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    ToolCall,
    ToolChoice,
    ToolUse,
)
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, started

USER = {"role": "user", "content": "Weather in Bern?"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name="weather", **fields):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": CITY, **fields}}


def parse(**fields):
    body = {"model": "m", "messages": [USER], **fields}
    return parse_chat(body, bytes(16), lambda: 1).request


def use_of(**fields):
    use = parse(tools=[function(), function("now")], **fields).tools
    assert use is not None
    return replace(use, tools="")


def test_tools_reach_the_driver_in_openais_shape():
    use = parse(tools=[function(), {"type": "function", "function": {"name": "now"}}]).tools
    weather, now = decode_tools(use)
    assert (weather.name, weather.description, weather.parameters) == ("weather", "d", CITY)
    assert now.name == "now"
    assert use == ToolUse(use.tools)


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, ToolUse("")),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, ToolUse("")),
        ({"tool_choice": None, "parallel_tool_calls": None}, ToolUse("")),
        ({"tool_choice": "required"}, ToolUse("", ToolChoice.REQUIRED)),
        ({"parallel_tool_calls": False}, ToolUse("", may_repeat=False)),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, ToolUse("", ToolChoice.REQUIRED, "now")),
    ],
)
def test_choices_are_read(fields, use):
    assert use_of(**fields) == use


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": []}, {"tools": None}, {"tools": [function()], "tool_choice": "none"}, {"tool_choice": "auto"}],
)
def test_without_tools_or_choice_nothing_is_called(fields):
    assert parse(**fields).tools is None


def large(name, *, strict=True):
    """A function whose grammar fits, and not twice."""
    values = [f"{name} {number:070}" for number in range(1000)]
    return function(name, parameters={"type": "object", "properties": {"x": {"enum": values}}}, strict=strict)


NULLABLE = {"parameters": {"type": ["object", "null"]}, "strict": True}
STRICT = {"parameters": {"type": "object", "properties": {"x": {"not": {}}}}, "strict": True}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": {}}, ErrorCode.REQUEST_INVALID, "tools"),
        ({"tools": "f"}, ErrorCode.REQUEST_INVALID, "tools"),
        ({"tools": [function()] * 129}, ErrorCode.REQUEST_INVALID, "tools"),
        ({"tools": [{"type": "custom", "custom": {}}]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, ErrorCode.REQUEST_INVALID, "tools[0].function"),
        ({"tools": [function("a b")]}, ErrorCode.REQUEST_INVALID, "tools[0].function.name"),
        ({"tools": [function(), function()]}, ErrorCode.REQUEST_INVALID, "tools[1].function.name"),
        ({"tools": [function(parameters=[])]}, ErrorCode.REQUEST_INVALID, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"x": "\ud800"})]}, ErrorCode.REQUEST_INVALID, "tools[0].function.parameters"),
        ({"tools": [function(description=1)]}, ErrorCode.REQUEST_INVALID, "tools[0].function.description"),
        ({"tools": [function(**STRICT)]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools[0].function.parameters"),
        ({"tools": [function(**NULLABLE)]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools[0].function.parameters"),
        ({"tools": [function("f"), function("g", **STRICT)]}, ErrorCode.PARAMETER_UNSUPPORTED,
         "tools[1].function.parameters"),
        ({"tools": [function(parameters={"$ref": "#"}, strict=True)]}, ErrorCode.PARAMETER_UNSUPPORTED,
         "tools[0].function.parameters"),
        ({"tools": [large("f"), large("g")]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools"),
        ({"tools": [large("f", strict=False), large("g")]},
         ErrorCode.PARAMETER_UNSUPPORTED, "tools"),
        ({"tools": [function(strict="yes")]}, ErrorCode.REQUEST_INVALID, "tools[0].function.strict"),
        ({"tools": [function(more=1)]}, ErrorCode.PARAMETER_UNSUPPORTED, "tools[0].function.more"),
        ({"tool_choice": "required"}, ErrorCode.REQUEST_INVALID, "tool_choice"),
        ({"tools": [function()], "tool_choice": "any"}, ErrorCode.REQUEST_INVALID, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "allowed_tools"}}, ErrorCode.PARAMETER_UNSUPPORTED,
         "tool_choice.type"),
        ({"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "f"}}},
         ErrorCode.REQUEST_INVALID, "tool_choice.function"),
        ({"tools": [function()], "parallel_tool_calls": 1}, ErrorCode.REQUEST_INVALID, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields, code, param):
    with pytest.raises(RequestError) as raised:
        parse(**fields)
    assert (raised.value.code, raised.value.param) == (code, param)


def test_one_large_promise_can_be_kept_and_two_need_not_be_made():
    assert parse(tools=[large("f")]).tools is not None
    assert parse(tools=[large("f", strict=False), large("g", strict=False)]).tools is not None


def test_a_schema_that_is_not_strict_may_hold_anything():
    assert parse(tools=[function(**{**STRICT, "strict": False})]).tools is not None


CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


def test_calls_and_their_answers_are_read_from_the_history():
    request = parse(
        messages=[
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        ]
    )
    assert request.prompt.messages[1:] == (
        ChatMessage("assistant", "", (ToolCall("call_1", "weather", '{"city": "Bern"}'),)),
        ChatMessage("tool", "rain", answers="call_1"),
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "rain"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "rain", "tool_call_id": "x" * 65}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{**CALLED, "id": None}]}, "messages[0].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "f", "arguments": {}}}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "user", "content": "hi", "tool_calls": [CALLED]}, "messages[0].tool_calls"),
    ],
)  # fmt: skip
def test_a_call_at_fault_is_named(message, param):
    with pytest.raises(RequestError) as raised:
        parse(messages=[message])
    assert raised.value.param == param


# --- answers ------------------------------------------------------------------------
def says(text, form=HERMES, reason=FinishReason.STOP, width=5):
    """A driver's script for an answer in this format, a few characters a token."""
    pieces = [text[start : start + width] for start in range(0, len(text), width)]
    deltas = [GenerationDelta((index,), piece) for index, piece in enumerate(pieces)]
    return (replace(started(), call_format=form.name), *deltas, GenerationFinished(reason, "", len(pieces)))


async def ask(script, **fields):
    body = json.dumps({"model": MODEL, "messages": [USER], "tools": [function(), function("now")], **fields}).encode()
    client = AsgiClient(body)
    await client.run(openai_app(FakeBackend(script)), "/v1/chat/completions")
    assert client.status == 200, client.text
    return client


TWO = [ToolCall("", "weather", '{"city": "Bern"}'), ToolCall("", "now", "{}")]


@pytest.mark.parametrize("form", [HERMES, MISTRAL])
async def test_calls_are_part_of_the_message(form):
    client = await ask(says(form.write(TWO), form))
    choice = client.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": '{"city": "Bern"}'},
        {"name": "now", "arguments": "{}"},
    ]
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == 2


async def test_an_answer_without_calls_is_as_it_always_was():
    choice = (await ask(says("It rains."))).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "It rains."
    assert "tool_calls" not in choice["message"]


async def test_what_is_said_before_a_call_is_content():
    choice = (await ask(says("Let me look.\n" + HERMES.write(TWO[:1])))).json()["choices"][0]
    assert choice["message"]["content"] == "Let me look."
    assert len(choice["message"]["tool_calls"]) == 1


async def test_reasoning_comes_before_calls():
    choice = (await ask(says("<think>Rain?</think>\n" + HERMES.write(TWO[:1])))).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "Rain?"
    assert choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 1


async def test_a_name_that_was_not_offered_never_comes_out():
    text = HERMES.write([ToolCall("", "rm_rf", "{}")])
    choice = (await ask(says(text))).json()["choices"][0]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    named = {"type": "function", "function": {"name": "now"}}
    choice = (await ask(says(HERMES.write(TWO[:1])), tool_choice=named)).json()["choices"][0]
    assert "tool_calls" not in choice["message"]


async def test_a_call_that_the_limit_cut_says_so():
    choice = (await ask(says(HERMES.write(TWO)[:50], reason=FinishReason.LENGTH))).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("choice", "names"), [("required", []), (NAMED, ["now"])])
async def test_marks_of_a_call_that_the_limit_cut_are_no_content(choice, names, is_streamed):
    cut = says(HERMES.write([ToolCall("", "now", "{}")])[:20], reason=FinishReason.LENGTH)
    client = await ask(cut, tool_choice=choice, stream=is_streamed)
    choices = [event["choices"][0] for event in client.events()[:-1]] if is_streamed else client.json()["choices"]
    told = [choice.get("delta", choice.get("message")) for choice in choices]
    assert "".join(one.get("content") or "" for one in told) == ""
    calls = [call for one in told for call in one.get("tool_calls", [])]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [(n, "") for n in names]
    assert choices[-1]["finish_reason"] == "length"


async def test_a_stream_names_a_call_once_and_then_sends_its_arguments():
    events = (await ask(says("Well.\n" + HERMES.write(TWO), width=3), stream=True)).events()
    choices = [event["choices"][0] for event in events if isinstance(event, dict)]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Well."
    deltas = [delta for choice in choices for delta in choice["delta"].get("tool_calls", [])]
    assert [delta["function"]["name"] for delta in deltas if "id" in delta] == ["weather", "now"]
    for index, call in enumerate(TWO):
        mine = [delta for delta in deltas if delta["index"] == index]
        assert sum("id" in delta for delta in mine) == 1
        assert "id" in mine[0]
        assert "".join(delta["function"]["arguments"] for delta in mine) == call.arguments
    assert len(deltas) > 6
