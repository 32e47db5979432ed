"""The grammar that an answer with tools is held to."""

import pytest

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.grammar.notation import prefix_rules
from p2pmesh.core.json_schema.translate import translate_schema
from p2pmesh.core.tool_calls.binding import bind_answer, find_unkept
from p2pmesh.core.tool_calls.formats import HERMES, LLAMA3
from p2pmesh.core.tool_calls.tools import Tool, decode_tools, encode_tools
from p2pmesh.wire.generation import ToolCall, ToolChoice, ToolUse

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = encode_tools((Tool("weather", "of a city", CITY), Tool("now"), Tool("odd", "", {"not": {"type": "null"}})))
REQUIRED = ToolUse(TOOLS, ToolChoice.REQUIRED)


def takes(grammar, text):
    assert grammar is not None
    matcher = Matcher(compile_grammar(grammar.text))
    state = matcher.walk(matcher.start, text.encode())
    return state is not None and state.is_complete


def call(name, arguments, form=HERMES):
    return form.write([ToolCall("", name, arguments)])


def bind(use, grammar="", form=HERMES, is_reasoning=False):
    return bind_answer(grammar, use, form, is_reasoning=is_reasoning)


def test_nothing_asked_for_is_nothing_held_to():
    assert bind(None) is None


def test_arguments_keep_to_their_schema_and_names_to_the_tools():
    grammar = bind(REQUIRED)
    assert grammar.triggers == ()
    assert takes(grammar, call("weather", '{"city": "Bern"}'))
    assert takes(grammar, call("now", "{}"))
    assert takes(grammar, call("odd", '{"any": [1]}'))
    assert not takes(grammar, call("weather", '{"town": "Bern"}'))
    assert not takes(grammar, call("forecast", "{}"))
    assert not takes(grammar, "hello")


def test_calls_may_be_several_or_one():
    two = HERMES.write([ToolCall("", "now", "{}"), ToolCall("", "now", "{}")])
    assert takes(bind(REQUIRED), two)
    assert not takes(bind(ToolUse(TOOLS, ToolChoice.REQUIRED, may_repeat=False)), two)
    assert not takes(bind(ToolUse(TOOLS, ToolChoice.REQUIRED, only="now")), two)
    assert takes(bind(REQUIRED), HERMES.write([ToolCall("", "now", "{}")] * 16))
    assert not takes(bind(REQUIRED), HERMES.write([ToolCall("", "now", "{}")] * 17))
    assert not takes(bind(REQUIRED, form=LLAMA3), call("now", "{}", LLAMA3) * 2)


def test_a_named_function_alone_can_be_called():
    grammar = bind(ToolUse(TOOLS, ToolChoice.REQUIRED, only="now"))
    assert takes(grammar, call("now", "{}"))
    assert not takes(grammar, call("weather", '{"city": "Bern"}'))


def test_by_choice_the_grammar_waits_for_a_call():
    assert bind(ToolUse(TOOLS)).triggers == ("<tool_call>",)
    assert not bind(ToolUse(TOOLS)).is_at_start
    assert bind(ToolUse(TOOLS), form=LLAMA3).is_at_start


def test_with_a_schema_an_answer_is_either():
    schema = translate_schema(CITY)
    grammar = bind(ToolUse(TOOLS), schema)
    assert grammar.triggers == ()
    assert takes(grammar, '{"city": "Bern"}')
    assert takes(grammar, call("now", "{}"))
    assert not takes(grammar, "hello")
    assert not takes(bind(REQUIRED, schema), '{"city": "Bern"}')


def test_reasoning_comes_before_what_is_held_to():
    grammar = bind(None, translate_schema(CITY), is_reasoning=True)
    assert grammar.triggers == ("</think>",)
    assert takes(grammar, '</think>\n\n{"city": "Bern"}')
    assert takes(bind(REQUIRED, is_reasoning=True), "</think>" + call("now", "{}"))
    assert not bind(ToolUse(TOOLS), form=LLAMA3, is_reasoning=True).is_at_start


def test_schemas_too_large_for_a_grammar_are_not_held_to():
    large = {"type": "object", "properties": {f"p{i}": {"enum": [f"{i}-{j}" for j in range(90)]} for i in range(200)}}
    grammar = bind(ToolUse(encode_tools((Tool("big", "", large),)), ToolChoice.REQUIRED))
    assert takes(grammar, call("big", '{"any": 1}'))


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("{", ""), ("{}", ""), ("[]", ""), ("[1]", ""), ('[{"function": 1}]', ""),
        ('[{"function": {"name": "a b"}}]', ""),
        ('[{"function": {"name": "a"}}, {"function": {"name": "a"}}]', ""), ('[{"function": {"name": "a"}}]', "b"),
        ('[{"function": {"name": "a", "parameters": []}}]', ""), ("[" * 100_000, ""),
    ],
)  # fmt: skip
def test_what_is_no_list_of_tools_is_refused(text, only):
    with pytest.raises(RemoteProtocolError) as caught:
        decode_tools(ToolUse(text, only=only))
    assert caught.value.code is ErrorCode.REQUEST_INVALID


def test_rules_are_renamed_and_texts_are_not():
    text = 'root ::= "root" [root] a{1,2} # root\na ::= "\\"a" | root-1\nroot-1 ::= "x"\n'
    assert (
        prefix_rules(text, "p-")
        == 'p-root ::= "root" [root] p-a{1,2} # root\np-a ::= "\\"a" | p-root-1\np-root-1 ::= "x"\n'
    )


def doubling_tool(name):
    """A schema of some kilobytes that stands for a million parts."""
    steps = {
        f"n{i}": {"properties": {key: {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}]} for key in "ab"}} for i in range(20)
    }
    return Tool(name, "", {"type": "object", "$defs": {**steps, "n20": {}}, "allOf": [{"$ref": "#/$defs/n0"}]})


def test_the_work_of_all_tools_together_is_bounded():
    tools = (
        Tool("plain", "", {"properties": {"x": {"type": "integer"}}}),
        *(doubling_tool(f"t{i}") for i in range(99)),
    )
    grammar = bind(ToolUse(encode_tools(tools), ToolChoice.REQUIRED))
    assert takes(grammar, call("plain", '{"x": 1}'))
    assert not takes(grammar, call("plain", '{"x": "1"}'))
    assert takes(grammar, call("t9", '{"any": "thing"}'))
    name, problem = find_unkept(tools, {"t9"})
    assert name == "t9"
    assert "work" in problem


def test_a_promise_that_one_tool_could_keep_alone_may_be_too_much_for_all():
    longer = [Tool(f"t{i}", "", {"properties": {"x": {"type": "string", "maxLength": 9000 + i}}}) for i in range(12)]
    assert find_unkept(longer[:1], {"t0"}) is None
    assert find_unkept(longer, {"t0", "t1"})[0] == ""
