"""Schemas as plain values: what keywords there are, how several schemas become one, which can never hold at once."""

import json
from collections.abc import Callable, Mapping
from typing import Any

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ANNOTATIONS = frozenset(
    {
        "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
        "deprecated", "readOnly", "writeOnly",
    }
)  # fmt: skip
"""Say nothing about what is valid; ``$defs`` only holds what references lead to."""
OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
STRUCTURE = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
SUPPORTED = ANNOTATIONS | STRUCTURE | frozenset(name for names in OF_TYPE.values() for name in names)

Schema = dict[str, Any]


class SchemaUnsupported(Exception):
    """A part of a schema that cannot be promised: where it stands (a JSON pointer), and what it is."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def check_keywords(schema: Schema, path: str) -> None:
    """Every keyword is one that is honoured, and holds what the standard says that it holds."""
    for name, value in schema.items():
        if name not in SUPPORTED:
            raise SchemaUnsupported(f"{path}/{name}"[:200], f"the keyword {name[:64]!r}")
        if name in _HOLDS and not _HOLDS[name](value):
            raise SchemaUnsupported(f"{path}/{name}", f"{name} that holds something else than the standard says")


def size_of(value: Any) -> int:
    """How many values a JSON value holds, itself among them."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        count += 1
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return count


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == value // 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


_HOLDS: Mapping[str, Callable[[Any], bool]] = {
    "type": lambda value: isinstance(value, str) or (_are_texts(value) and bool(value)),
    "enum": lambda value: isinstance(value, list),
    "properties": lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
    "required": _are_texts,
    "uniqueItems": lambda value: isinstance(value, bool),
    **{name: lambda value: isinstance(value, str) for name in ("$ref", "pattern", "format")},
    **dict.fromkeys(("items", "additionalProperties"), _is_schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _are_schemas),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _is_number),
}


def text_of(value: Any, path: str) -> str:
    """A value as the JSON that answers hold."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SchemaUnsupported(path, "half of a surrogate pair, which is no character") from None
    return text


def type_of(value: Any) -> str:
    """The narrowest type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def is_of(value: Any, types: tuple[str, ...]) -> bool:
    """Whether a value has one of the types; an integer is a number."""
    own = type_of(value)
    return own in types or (own == "integer" and "number" in types)


def types_of(schema: Schema, path: str) -> tuple[str, ...]:
    """The types that a schema allows, in a fixed order; of one that names none those that its keywords are about."""
    named = schema.get("type")
    if named is not None:
        names = named if isinstance(named, list) else [named]
        unknown = [name for name in names if name not in TYPES]
        if unknown:
            raise SchemaUnsupported(f"{path}/type", f"type {unknown[0][:32]!r}")
        return tuple(name for name in TYPES if name in names and not (name == "integer" and "number" in names))
    meant = tuple(name for name, words in OF_TYPE.items() if words & schema.keys())
    return meant or tuple(name for name in TYPES if name != "integer")


def merge(left: Schema, right: Schema, path: str) -> Schema:
    """A schema that holds where both do."""
    _check_closed(left, right, path)
    merged = dict(left)
    for name, value in right.items():
        if name in ANNOTATIONS:
            continue
        merged[name] = _merge_keyword(name, merged[name], value, path) if name in merged else value
    return merged


def _check_closed(left: Schema, right: Schema, path: str) -> None:
    """``additionalProperties`` and ``items`` count what stands beside them alone, not what the other schema names."""
    for closed, other in ((left, right), (right, left)):
        if "additionalProperties" in closed and other.get("properties", {}).keys() - closed.get("properties", {}):
            raise SchemaUnsupported(path, "additionalProperties beside properties of another part")
        if "items" in closed and other.get("prefixItems", []) not in ([], closed.get("prefixItems", [])):
            raise SchemaUnsupported(path, "items beside prefixItems of another part")


def _merge_keyword(name: str, left: Any, right: Any, path: str) -> Any:
    if left == right and type(left) is type(right):
        return left
    combine = _COMBINED.get(name)
    merged = combine(left, right, path) if combine is not None else None
    if merged is None:
        raise SchemaUnsupported(f"{path}/{name}", f"{name} in several parts that hold at once")
    return merged


def _merge_properties(left: Any, right: Any, path: str) -> Any:
    merged = dict(left)
    for key, value in right.items():
        if key in merged and isinstance(merged[key], dict) and isinstance(value, dict):
            merged[key] = merge(merged[key], value, f"{path}/properties/{key}")
        else:
            keeps_own = key in merged and (merged[key] is False or value is True)
            merged[key] = merged[key] if keeps_own else value
    return merged


def _merge_types(left: Any, right: Any, path: str) -> Any:
    ours, theirs = (types_of({"type": one}, path) for one in (left, right))
    common = [name for name in ours if name in theirs or (name == "integer" and "number" in theirs)]
    return common + [name for name in theirs if name == "integer" and "number" in ours] or None


def _merge_enums(left: Any, right: Any, path: str) -> Any:
    kept = {text_of(value, path) for value in right}
    return [value for value in left if text_of(value, path) in kept] or None


_COMBINED: Mapping[str, Callable[[Any, Any, str], Any]] = {
    "properties": _merge_properties,
    "type": _merge_types,
    "enum": _merge_enums,
    "required": lambda left, right, _: [*left, *(name for name in right if name not in left)],
    **{
        name: lambda left, right, _: max(left, right)
        for name in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
    },
    **{
        name: lambda left, right, _: min(left, right)
        for name in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
    },
}


def are_disjoint(left: Schema, right: Schema, path: str) -> bool:
    """Whether surely no value satisfies both; what is not plain to see counts as no."""
    values = [_values_of(schema) for schema in (left, right)]
    if values[0] is not None and values[1] is not None:
        ours, theirs = ({text_of(value, path) for value in some} for some in values if some is not None)
        return not ours & theirs
    kinds = [
        {name if name != "integer" else "number" for name in _kinds_of(schema, some, path)}
        for schema, some in zip((left, right), values, strict=True)
    ]
    if not kinds[0] & kinds[1]:
        return True
    return kinds[0] == kinds[1] == {"object"} and _differ_in_a_property(left, right, path)


def _kinds_of(schema: Schema, values: list[Any] | None, path: str) -> tuple[str, ...]:
    if values is not None:
        return tuple(type_of(value) for value in values)
    return types_of(schema, path) if "type" in schema else TYPES


def _values_of(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _differ_in_a_property(left: Schema, right: Schema, path: str) -> bool:
    theirs_required = frozenset(right.get("required", ()))
    for name in left.get("required", ()):
        if name not in theirs_required:
            continue
        ours, theirs = (schema.get("properties", {}).get(name) for schema in (left, right))
        if isinstance(ours, dict) and isinstance(theirs, dict) and are_disjoint(ours, theirs, path):
            return True
    return False
