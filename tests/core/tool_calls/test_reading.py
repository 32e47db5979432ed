"""Calls come out of texts whole, however the text is cut, and nothing else comes out as a call."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.tool_calls.binding import bind_answer
from p2pmesh.core.tool_calls.formats import FORMATS, HERMES, LLAMA3, MISTRAL, PLAIN, detect_format, find_format
from p2pmesh.core.tool_calls.reading import CallReader
from p2pmesh.core.tool_calls.tools import Tool, encode_tools
from p2pmesh.wire.generation import ToolCall, ToolUse

NAMES = ("get_weather", "f", "search-2")
each_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def read(form, *texts):
    """Content and (name, arguments) of an answer that came in parts."""
    reader = CallReader(form, NAMES)
    content, calls = "", []
    for step in [*(reader.add(text) for text in texts), reader.finish()]:
        content += step.content
        for part in step.calls:
            if part.name:
                assert part.index == len(calls)
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
    assert reader.call_count == len(calls)
    return content, [tuple(call) for call in calls]


def cut(text, places):
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=5), plain_values, max_size=3)
calls = st.lists(
    st.tuples(st.sampled_from(NAMES), objects.map(lambda value: json.dumps(value, ensure_ascii=False))), max_size=4
)
words = st.text("abc \n<[{", max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(FORMATS.values())), words, calls, st.lists(st.integers(0, 500), max_size=12))
def test_what_is_written_is_read_wherever_it_is_cut(form, said, made, places):
    made = made if form.may_repeat else made[:1]
    said = "" if form.is_at_start and made else said
    text = said + (form.write([ToolCall("", name, arguments) for name, arguments in made]) if made else "")
    if form.trigger in said:
        return
    content, found = read(form, *cut(text, places))
    assert found == made
    assert content == (said.rstrip() if made else said)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(list(FORMATS.values())), st.data())
def test_any_text_is_read_alike_wherever_it_is_cut(form, data):
    pieces = [
        form.trigger,
        form.opening,
        form.head,
        form.middle,
        form.tail,
        form.separator,
        form.closing,
        "f",
        "{",
        "}",
    ]
    pieces += ['"', "\\", " ", "\n", "x", "get_weather", "nobody", "{}"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=14)))
    whole = read(form, text)
    assert read(form, *cut(text, data.draw(st.lists(st.integers(0, 200), max_size=10)))) == whole
    assert read(form, *text) == whole
    assert {name for name, _ in whole[1]} <= set(NAMES)


@each_format
def test_a_name_that_was_not_offered_is_text(form):
    text = form.write([ToolCall("", "rm_rf", "{}")])
    assert read(form, text) == (text, [])
    assert read(form, *text) == (text, [])


@each_format
def test_a_name_comes_before_its_arguments_and_these_as_they_come(form):
    reader = CallReader(form, NAMES)
    text = form.write([ToolCall("", "f", '{"a": "bcd"}')])
    at = text.index('"bcd"') + 2
    parts = reader.add(text[:at]).calls
    assert [part.name for part in parts] == ["f", ""]
    assert parts[1].arguments == '{"a": "b'
    assert "".join(part.arguments for part in reader.add(text[at:]).calls) == 'cd"}'


def test_a_call_that_is_cut_off_keeps_what_came():
    assert read(HERMES, HERMES.head + "f" + HERMES.middle + '{"a": [1') == ("", [("f", '{"a": [1')])


def cut_off(form, text, names=NAMES, *, must_call=False):
    """Content and parts of an answer that a limit ended."""
    reader = CallReader(form, names, must_call=must_call)
    steps = [reader.add(text), reader.finish(is_cut=True)]
    return "".join(step.content for step in steps), [part for step in steps for part in step.calls]


@each_format
def test_what_a_limit_leaves_of_the_beginning_of_a_call_is_never_said(form):
    whole = form.write([ToolCall("", "f", "{}")])
    for end in range(1, len(whole)):
        said, parts = cut_off(form, whole[:end], must_call=True)
        assert said == ""
        assert {part.name for part in parts} <= {"f", ""}
        named, told = cut_off(form, whole[:end], ["f"], must_call=True)
        assert (named, told[0].name) == ("", "f")
        assert sum(bool(part.name) for part in told) == 1


@each_format
def test_where_calls_are_free_it_is_said_up_to_what_begins_them(form):
    whole = form.write([ToolCall("", "f", "{}")])
    begun = (form.opening + form.head).index(form.trigger) + len(form.trigger)
    for end in range(1, len(whole)):
        assert cut_off(form, whole[:end])[0] == (whole[:end] if end < begun else "")


@each_format
def test_a_second_call_that_is_cut_off_leaves_the_first_alone(form):
    if not form.may_repeat:
        return
    first, both = form.write([ToolCall("", "f", "{}")]), form.write([ToolCall("", "f", "{}"), ToolCall("", "f", "{}")])
    for end in range(len(first) - len(form.closing), len(both)):
        said, parts = cut_off(form, both[:end])
        assert said == ""
        assert parts[0].name == "f"
        assert "".join(part.arguments for part in parts if part.index == 0) == "{}"


@pytest.mark.parametrize("text", ['<tool_call>\n{"name": "rm_rf', "<tool_call> to call", "a < b", "<tool_call>\n[1"])
def test_text_that_is_cut_off_is_text(text):
    assert cut_off(HERMES, text) == (text, [])


def test_text_about_calls_is_text():
    text = "Write <tool_call> to call, <tool"
    assert read(HERMES, text) == (text, [])
    assert read(LLAMA3, 'See {"name": "f", "parameters": {}}') == ('See {"name": "f", "parameters": {}}', [])


def test_text_after_calls_is_said_without_the_space_between():
    text = HERMES.write([ToolCall("", "f", "{}")])
    assert read(HERMES, text + "\n\n done") == ("done", [("f", "{}")])


@each_format
def test_what_the_grammar_of_calls_takes_is_read_as_calls(form):
    tools = tuple(Tool(name, "", {"type": "object"}) for name in NAMES)
    grammar = bind_answer("", ToolUse(encode_tools(tools)), form, is_reasoning=False)
    assert grammar is not None
    matcher = Matcher(compile_grammar(grammar.text))
    made = [ToolCall("", "f", '{"a": {"b": [1, "}"]}}'), ToolCall("", "search-2", "{}")][: 2 if form.may_repeat else 1]
    text = form.write(made)
    assert text.startswith(grammar.triggers[0])
    state = matcher.walk(matcher.start, text.encode())
    assert state is not None
    assert state.is_complete
    assert read(form, text) == ("", [(call.name, call.arguments) for call in made])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "plain"),
        ("{{ messages }}", "plain"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[TOOL_CALLS] [{% endif %}", "mistral"),
        ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{% endif %}", "mistral-args"),
        ("{% if tools %}<function=name>{% endif %}", "function"),
        ("{% if tools %}<tool_call><function=x><parameter=y>{% endif %}", "plain"),
        ('{% if tools %}"parameters": <|python_tag|>{% endif %}', "llama3"),
        ("{% if tools %}<|tool_call|>{% endif %}", "phi4"),
        ("{% if tools %}something of its own{% endif %}", "plain"),
    ],
)
def test_a_template_tells_its_format(template, name):
    assert detect_format(template).name == name


def test_a_format_of_a_later_version_is_read_as_the_plain_one():
    assert find_format("of-2031") is PLAIN
    assert find_format("mistral") is MISTRAL
