"""``response_format`` of chats, and ``text.format`` of responses: what an answer must be -> the grammar it is held to.

What a JSON Schema means as a grammar is ``core.json_schema``'s.
"""

from typing import Any

from p2pmesh.api.errors import invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, wrong_type
from p2pmesh.api.openai.parameters import check_names
from p2pmesh.api.openai.tools import read_tool_name
from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.json_schema.translate import Unsupported, translate_schema

_ANY_OBJECT = {"type": "object"}
_SCHEMA_FIELDS = frozenset({"name", "description", "schema", "strict"})


def read_response_format(fields: Fields) -> str:
    """The grammar of a chat's ``response_format``; empty where any text will do."""
    wanted = fields.object("response_format")
    if wanted is None:
        return ""
    kind = wanted.required_text("type", 64)
    if kind != "json_schema":
        return _grammar_of_kind(wanted, kind)
    check_names(wanted, frozenset({"type", "json_schema"}), {})
    described = wanted.object("json_schema")
    if described is None:
        param = wanted.param("json_schema")
        raise invalid_parameter(param, f"{param} is required")
    check_names(described, _SCHEMA_FIELDS, {})
    return _grammar_of_schema(described)


def read_text_format(fields: Fields) -> str:
    """The grammar of ``format`` inside a response's ``text``, where name and schema stand beside the type."""
    wanted = fields.object("format")
    if wanted is None:
        return ""
    kind = wanted.required_text("type", 64)
    if kind != "json_schema":
        return _grammar_of_kind(wanted, kind)
    check_names(wanted, _SCHEMA_FIELDS | {"type"}, {})
    return _grammar_of_schema(wanted)


def grammar_of_schema(schema: dict[str, Any], param: str) -> str:
    """The grammar of a JSON Schema; a ``RequestError`` names the keyword that stands in the way."""
    translated = translate_schema(schema)
    if isinstance(translated, Unsupported):
        raise unsupported_parameter(param, f"{param}: {translated.describe()}")
    try:
        compile_grammar(translated)
    except RemoteProtocolError as error:  # more nodes than a grammar may have, or nothing that satisfies it
        raise unsupported_parameter(param, f"{param}: {error.message}") from None
    return translated


def _grammar_of_kind(wanted: Fields, kind: str) -> str:
    check_names(wanted, frozenset({"type"}), {})
    param = wanted.param("type")
    if kind == "text":
        return ""
    if kind == "json_object":
        return grammar_of_schema(_ANY_OBJECT, param)
    raise unsupported_parameter(param, f"{param} is supported only as 'text', 'json_object' and 'json_schema'")


def _grammar_of_schema(described: Fields) -> str:
    read_tool_name(described)  # names of schemas are of the same form
    described.boolean("strict")  # a grammar is kept to in either case
    schema = described.values.get("schema")
    if schema is None:
        schema = _ANY_OBJECT
    if not isinstance(schema, dict):
        raise wrong_type(schema, described.param("schema"), "an object")
    return grammar_of_schema(schema, described.param("schema"))
