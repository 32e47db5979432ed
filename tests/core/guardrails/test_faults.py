"""What is wrong with answers, and how they are asked for anew."""

from dataclasses import replace

import pytest

from p2pmesh.core.guardrails.faults import FaultKind, ask_anew, find_fault, retries_of
from p2pmesh.core.guardrails.policy import GuardrailPolicy
from p2pmesh.core.json_schema.translate import translate_schema
from p2pmesh.core.mixture.drafts import Call, Draft
from p2pmesh.core.tool_calls.formats import HERMES
from p2pmesh.core.tool_calls.tools import Tool, encode_tools
from p2pmesh.wire.generation import (
    ChatMessage,
    GenerationRequest,
    Prompt,
    SamplingParameters,
    ToolChoice,
    ToolUse,
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
USE = ToolUse(encode_tools((Tool("weather", "", CITY), Tool("now"))))
ASKED = GenerationRequest(bytes(16), "m", Prompt(messages=(ChatMessage("user", "q"),)), SamplingParameters())
WITH_TOOLS = replace(ASKED, tools=USE)
OBJECT = translate_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
assert isinstance(OBJECT, str)
WITH_SCHEMA = replace(ASKED, grammar=OBJECT)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (Call("weather", '{"city": "Oslo"}'), None),
        (Call("now", "{}"), None),
        (Call("weather", '{"city": '), "the call of weather: its arguments are no JSON object"),
        (Call("now", '{"x": NaN}'), "the call of now: its arguments are no JSON object"),
        (Call("weather", "[1]"), "the call of weather: its arguments are no JSON object"),
        (Call("weather", "{}"), "the call of weather: it lacks 'city'"),
        (Call("weather", '{"city": 5}'), "the call of weather: /city must be of type string"),
        (Call("rain", "{}"), "the call of rain: there is no such function"),
    ],
)
def test_a_call_must_parse_and_fit(call: Call, problem: str | None) -> None:
    fault = find_fault(Draft("", (Call("now", "{}"), call)), WITH_TOOLS)
    assert (None if fault is None else fault.problem) == problem
    assert fault is None or fault.kind is FaultKind.TOOL


@pytest.mark.parametrize(
    ("text", "is_wrong"), [("It is cold.", False), ("<tool_call>\n{", True), ("say <tool_call> to call", False)]
)
def test_a_call_that_cannot_be_read_is_one_that_begins_on_a_line(text: str, is_wrong: bool) -> None:
    assert (find_fault(Draft(text), WITH_TOOLS) is not None) == is_wrong
    assert find_fault(Draft(text), ASKED) is None


def test_an_answer_that_must_call_and_talks_is_wrong() -> None:
    must = replace(ASKED, tools=replace(USE, choice=ToolChoice.REQUIRED))
    fault = find_fault(Draft("It is cold."), must)
    assert fault is not None
    assert fault.problem == "it calls no function, and it must"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1}', None),
        (' {"a": 1}\n', None),
        ('{"a": 1', "it is no JSON"),
        ("one", "it is no JSON"),
        ('{"a": "x"}', "it does not fit the schema that was asked for"),
        ("[]", "it does not fit the schema that was asked for"),
    ],
)
def test_a_structured_answer_must_be_what_was_asked_for(text: str, problem: str | None) -> None:
    fault = find_fault(Draft(text), WITH_SCHEMA)
    assert (None if fault is None else fault.problem) == problem
    assert fault is None or fault.kind is FaultKind.STRUCTURE


def test_what_was_cut_off_would_be_cut_off_again() -> None:
    assert find_fault(Draft("", (Call("weather", "{"),), is_whole=False), WITH_TOOLS) is None
    assert find_fault(Draft("{", is_whole=False), WITH_SCHEMA) is None


def test_a_grammar_that_takes_too_long_is_no_fault() -> None:
    assert find_fault(Draft("1"), replace(ASKED, grammar="root ::= nothing")) is None


def test_each_kind_has_its_retries() -> None:
    tool, structure = find_fault(Draft("", (Call("rain", "{}"),)), WITH_TOOLS), find_fault(Draft("x"), WITH_SCHEMA)
    assert tool is not None
    assert structure is not None
    assert (retries_of(tool, GuardrailPolicy()), retries_of(structure, GuardrailPolicy())) == (1, 2)


def test_an_answer_is_asked_for_anew_with_what_is_wrong_with_it() -> None:
    draft = Draft("I look.", (Call("weather", "{}"),))
    fault = find_fault(draft, WITH_TOOLS)
    assert fault is not None
    asked = ask_anew(WITH_TOOLS, draft, fault, HERMES, b"n" * 16)
    question, answer, told = asked.prompt.messages or ()
    assert (question, answer.role, told.role) == (ChatMessage("user", "q"), "assistant", "user")
    assert answer.content == 'I look.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    assert told.content.startswith("Your last answer cannot be used: the call of weather: it lacks 'city'.")
    assert (asked.request_id, asked.tools, asked.sampling) == (b"n" * 16, USE, WITH_TOOLS.sampling)
    assert ask_anew(ASKED, Draft(""), fault, HERMES, b"").prompt.messages
