"""An agent of the official package that uses tools over several turns, at a peer without a stage of a split model."""

import json

import jsonschema
import openai
import pytest

from p2pmesh.core.tool_calls.formats import PLAIN
from tests.e2e.conftest import SMOLLM

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}},
    "required": ["numbers"],
    "additionalProperties": False,
}
SCHEMAS = {"forecast": CITY, "add": SUM}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]


def ask(split_client: openai.OpenAI, messages, **parameters):
    return split_client.chat.completions.create(
        model=SMOLLM, messages=messages, tools=TOOLS, max_tokens=120, temperature=0, **parameters
    )


def run_tool(name: str, arguments: str) -> str:
    """What an agent does with a call: it trusts name and arguments."""
    given = json.loads(arguments)
    jsonschema.validate(given, SCHEMAS[name])
    return str(sum(given["numbers"])) if name == "add" else f"rain in {given['city']} for {given['days']} days"


def test_an_agent_uses_tools_over_several_turns(split_client: openai.OpenAI) -> None:
    messages: list[dict] = [{"role": "user", "content": "Use the tools: the weather in Bern for 3 days, then 2 + 40."}]
    called = []
    choices = ["required", {"type": "function", "function": {"name": "add"}}, "required", "none"]
    for choice in choices:
        answer = ask(split_client, messages, tool_choice=choice, parallel_tool_calls=False).choices[0]
        messages.append(answer.message.model_dump(exclude_none=True))
        if answer.finish_reason != "tool_calls":
            break
        assert len(answer.message.tool_calls) == 1
        for call in answer.message.tool_calls:
            called.append(call.function.name)
            result = run_tool(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert len(called) == 3
    assert called[1] == "add"
    assert messages[-1]["role"] == "assistant"
    assert messages[-1]["content"]
    assert [message["role"] for message in messages].count("tool") == 3


def test_a_streamed_call_is_the_whole_one(split_client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Add 1 and 2."}]
    named = {"type": "function", "function": {"name": "add"}}
    whole = ask(split_client, messages, tool_choice=named).choices[0]
    names, arguments, ids, reasons = [], "", set(), []
    for chunk in ask(split_client, messages, tool_choice=named, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.index == 0
            ids |= {call.id} - {None}
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
        reasons.append(chunk.choices[0].finish_reason)
    assert (names, len(ids), reasons[-1]) == (["add"], 1, "tool_calls")
    assert arguments == whole.message.tool_calls[0].function.arguments
    jsonschema.validate(json.loads(arguments), SUM)


def test_by_choice_a_model_may_call_or_answer(split_client: openai.OpenAI) -> None:
    """SmolLM2 was taught no tools, so a call is put into its mouth: from there on the grammar holds it."""
    answer = ask(split_client, [{"role": "user", "content": "Say hello."}]).choices[0]
    for call in answer.message.tool_calls or []:
        run_tool(call.function.name, call.function.arguments)
    begun = f"Repeat exactly: {PLAIN.trigger}"
    answer = ask(split_client, [{"role": "user", "content": begun}], logit_bias={}, seed=1).choices[0]
    for call in answer.message.tool_calls or []:
        run_tool(call.function.name, call.function.arguments)
    assert answer.message.content or answer.message.tool_calls


def test_a_strict_tool_that_cannot_be_promised_is_a_400(split_client: openai.OpenAI) -> None:
    strict = {"name": "f", "strict": True, "parameters": {"type": "object", "patternProperties": {"a": {}}}}
    with pytest.raises(openai.BadRequestError) as raised:
        split_client.chat.completions.create(
            model=SMOLLM, messages=[{"role": "user", "content": "hi"}], tools=[{"type": "function", "function": strict}]
        )
    assert raised.value.code == "unsupported_parameter"
    assert "patternProperties" in raised.value.message
