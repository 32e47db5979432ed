"""What ``response_format`` and ``text.format`` become, and how they are refused."""

import pytest

from p2pmesh.api.errors import RequestError, error_body
from p2pmesh.api.openai.chat import parse_chat
from p2pmesh.api.openai.fields import Fields
from p2pmesh.api.openai.response_format import read_response_format, read_text_format
from p2pmesh.base.errors import ErrorCode
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def read(wanted):
    return read_response_format(Fields({"response_format": wanted}))


def matches(grammar, text):
    matcher = Matcher(compile_grammar(grammar))
    state = matcher.walk(matcher.start, text.encode())
    return state is not None and state.is_complete


@pytest.mark.parametrize("wanted", [None, {"type": "text"}])
def test_text_is_any_text(wanted):
    assert read(wanted) == ""


def test_a_json_object_is_any_object():
    grammar = read({"type": "json_object"})
    assert matches(grammar, '{"a": [1, {"b": null}]}')
    assert not matches(grammar, "[1]")


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": False}, {"strict": None, "description": "d"}])
def test_a_schema_is_kept_to_strict_or_not(strict):
    grammar = read({"type": "json_schema", "json_schema": {"name": "point", "schema": POINT, **strict}})
    assert matches(grammar, '{"x": 3}')
    assert not matches(grammar, '{"y": 3}')


def test_a_schema_may_be_left_out():
    assert matches(read({"type": "json_schema", "json_schema": {"name": "any"}}), '{"x": 3}')


def test_responses_have_the_same_in_one_place():
    chat = read({"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}})
    wanted = {"type": "json_schema", "name": "point", "schema": POINT, "strict": True}
    assert read_text_format(Fields({"format": wanted}, "text")) == chat
    assert read_text_format(Fields({}, "text")) == read_text_format(Fields({"format": {"type": "text"}}, "text")) == ""


def test_a_chat_carries_the_grammar():
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}}
    assert parse_chat(body, bytes(16), lambda: 1).request.grammar == read({"type": "json_object"})


@pytest.mark.parametrize(
    ("wanted", "code", "param"),
    [
        ("json", ErrorCode.REQUEST_INVALID, "response_format"),
        ({}, ErrorCode.REQUEST_INVALID, "response_format.type"),
        ({"type": "xml"}, ErrorCode.PARAMETER_UNSUPPORTED, "response_format.type"),
        ({"type": "json_object", "schema": {}}, ErrorCode.PARAMETER_UNSUPPORTED, "response_format.schema"),
        ({"type": "json_schema"}, ErrorCode.REQUEST_INVALID, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, ErrorCode.REQUEST_INVALID,
         "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, ErrorCode.REQUEST_INVALID,
         "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": []}}, ErrorCode.REQUEST_INVALID,
         "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": "yes"}}, ErrorCode.REQUEST_INVALID,
         "response_format.json_schema.strict"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}, ErrorCode.PARAMETER_UNSUPPORTED,
         "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}},
         ErrorCode.PARAMETER_UNSUPPORTED, "response_format.json_schema.schema"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(wanted, code, param):
    with pytest.raises(RequestError) as raised:
        read(wanted)
    assert (raised.value.code, raised.value.param) == (code, param)


def test_an_unsupported_keyword_is_named_with_its_place():
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(RequestError) as raised:
        read({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    error = error_body(raised.value)["error"]
    assert error["code"] == "unsupported_parameter"
    assert "uniqueItems" in error["message"]
    assert "/properties/tags/uniqueItems" in error["message"]
