"""Calls found in text, and none where there are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.guardrails.rescue import Rescued, may_become_calls, rescue_calls
from p2pmesh.core.mixture.drafts import Call
from p2pmesh.core.tool_calls.formats import FORMATS
from p2pmesh.core.tool_calls.tools import Tool
from p2pmesh.wire.generation import ToolCall

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("weather", "", CITY), Tool("now"))
OSLO = Call("weather", '{"city": "Oslo"}')


def rescue(text: str, *, may_repeat: bool = True) -> Rescued | None:
    return rescue_calls(text, TOOLS, most_bytes=65_536, may_repeat=may_repeat)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
        '{"arguments": {"city": "Oslo"}, "name": "weather"}',
        '{"tool": "weather", "args": {"city": "Oslo"}}',
        '{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}',
        '{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{\\"city\\":\\"Oslo\\"}"}}',
        '```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```',
        '```\n[{"name": "weather", "arguments": {"city": "Oslo"}}]\n```\n',
        'TOOL_CALL {"name": "weather", "arguments": {"city": "Oslo"}}',
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}',
        '<function=weather>{"city": "Oslo"}</function>',
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}',
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]',
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>',
    ],
)
def test_a_call_is_found_however_it_is_written(text: str) -> None:
    assert rescue(text) == Rescued("", (OSLO,))
    assert rescue(f"I look it up.\n\n{text}") == Rescued("I look it up.", (OSLO,))
    assert all(may_become_calls(text[:end]) for end in range(len(text)))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_format_is_read_in_another_models_answer(form) -> None:  # type: ignore[no-untyped-def]
    calls = [ToolCall("", "weather", '{"city": "Oslo"}'), ToolCall("", "now", "{}")][: 2 if form.may_repeat else 1]
    found = rescue(form.write(calls))
    assert found is not None
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is cold in Oslo.",
        '{"name": "rain", "arguments": {"city": "Oslo"}}',
        '{"name": "weather", "arguments": {"town": "Oslo"}}',
        '{"name": "weather", "arguments": {"city": 5}}',
        '{"name": "weather", "arguments": {"city": "Oslo"}, "note": 1}',
        '{"name": "weather"}',
        '{"name": "weather", "arguments": [1]}',
        '{"name": "weather", "arguments": {"city": "Oslo"}',
        '{"city": "Oslo"}',
        '{"name": "weather", "arguments": {"city": "Oslo"}} is how I would call it.',
        'Write ```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n``` to call it.',
        '["weather"]',
        "<tool_call>",
        '<function=rain>{"city": "Oslo"}</function>',
        "[TOOL_CALLS]",
        "[" * 20_000,
        '{"name":' * 200,
    ],
)
def test_what_is_no_call_of_a_tool_that_was_offered_is_text(text: str) -> None:
    assert rescue(text) is None


def test_one_wrong_call_spoils_all() -> None:
    good = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    assert rescue(f"{good}\n{good}") == Rescued("", (OSLO, OSLO))
    assert rescue(f"{good}\n{good.replace('weather', 'rain')}") is None
    assert rescue(f"{good.replace('weather', 'rain')}\n{good}") is None
    assert rescue(f"```python\nprint()\n```\n{good}") == Rescued("```python\nprint()\n```", (OSLO,))
    assert rescue(f"{good}\n{good}", may_repeat=False) is None


def test_a_long_answer_is_not_looked_at() -> None:
    call = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    text = "x" * 100 + "\n" + call
    assert rescue_calls(text, TOOLS, most_bytes=len(text)) is not None
    assert rescue_calls(text, TOOLS, most_bytes=len(text) - 1) is None


@pytest.mark.parametrize(
    "text",
    ["I", "Hello {", "[1]", "[Tom]", '{"city"', '{"b', "```python\nimport", "```\nx", "<b>", "TOOLS", "{1", '["name"'],
)
def test_what_cannot_become_calls_is_known_early(text: str) -> None:
    assert not may_become_calls(text)


@given(text=st.text(alphabet='{}[]":, abename`\n<>tool_cargumsT', max_size=80))
def test_any_text_is_read_and_only_to_calls_that_were_offered(text: str) -> None:
    found = rescue(text)
    if found is not None:
        assert found.calls
        assert {call.name for call in found.calls} <= {"weather", "now"}
        assert text.startswith(found.said)
    assert may_become_calls(text) in (True, False)


@given(
    said=st.text(alphabet="abc .\n", max_size=20),
    cities=st.lists(st.text(max_size=8), min_size=1, max_size=3),
    fenced=st.booleans(),
)
def test_whatever_is_passed_comes_back(said: str, cities: list[str], fenced: bool) -> None:
    calls = "\n".join(json.dumps({"name": "weather", "arguments": {"city": city}}) for city in cities)
    text = f"{said}\n```json\n{calls}\n```" if fenced else f"{said}\n{calls}"
    found = rescue(text)
    assert found is not None
    assert [json.loads(call.arguments)["city"] for call in found.calls] == cities
    assert found.said == said.rstrip()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999", "[" * 400 + "]" * 400])
def test_arguments_that_a_client_could_not_read_are_no_call(value: str) -> None:
    assert rescue(f'{{"name": "now", "arguments": {{"x": {value}}}}}') is None
    assert rescue(json.dumps({"name": "now", "arguments": f'{{"x": {value}}}'})) is None
