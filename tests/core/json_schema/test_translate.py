"""Every text of a grammar satisfies the schema that it comes from; what cannot be promised is refused by name."""

import json
import random

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pmesh.base.limits import MAX_GRAMMAR_BYTES
from p2pmesh.core.json_schema.rules import RuleBook
from p2pmesh.core.json_schema.translate import Unsupported, translate_schema
from tests.core.json_schema.suite import SCHEMAS, obj
from tests.core.json_schema.walk import Walker


def check(schema, texts, seed=0):
    grammar = translate_schema(schema)
    assert isinstance(grammar, str), grammar.describe()
    walker, rng = Walker(grammar), random.Random(seed)
    validator = jsonschema.Draft202012Validator(schema)
    seen = set()
    for _ in range(texts):
        text = walker.text(rng)
        validator.validate(json.loads(text))
        seen.add(text)
    return seen


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_satisfy_their_schema(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    check(SCHEMAS[name], 25)


def test_the_suite_is_large_enough():
    assert len(SCHEMAS) >= 40


LEAVES = st.sampled_from(
    [{"type": "integer", "minimum": -3, "maximum": 12}, {"type": "boolean"}, {"const": "k"}, {"enum": [1, "a", None]},
     {"type": "string", "maxLength": 3}, {"type": "number", "exclusiveMinimum": -1.5}, {"type": "null"}]
)  # fmt: skip


def grow(inner):
    return st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).flatmap(
            lambda members: st.lists(st.sampled_from(sorted(members) or ["d"]), unique=True, max_size=2).map(
                lambda required: obj([name for name in required if name in members], **members)
            )
        ),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
            lambda parts: {"type": "array", "items": parts[0], "minItems": parts[1], "maxItems": parts[1] + parts[2]}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda ways: {"anyOf": ways}),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda parts: {"type": "array", "prefixItems": parts, "items": False}
        ),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(LEAVES, grow, max_leaves=6), st.integers(0, 999))
def test_texts_satisfy_schemas_of_any_shape(schema, seed):
    check(schema, 4, seed)


bounds = st.none() | st.integers(-2000, 2000)


@settings(max_examples=80, deadline=None)
@given(bounds, bounds, bounds, bounds, st.integers(0, 999))
def test_integers_lie_within_their_bounds(lowest, highest, above, below, seed):
    named = {"minimum": lowest, "maximum": highest, "exclusiveMinimum": above, "exclusiveMaximum": below}
    schema = {"type": "integer"} | {name: value for name, value in named.items() if value is not None}
    if isinstance(translate_schema(schema), str):
        check(schema, 6, seed)
    else:
        assert not any(
            (lowest is None or n >= lowest) and (highest is None or n <= highest)
            and (above is None or n > above) and (below is None or n < below) for n in range(-2001, 2002)
        )  # fmt: skip


@pytest.mark.parametrize(("least", "most"), [(0, 9), (7, 123), (-5, 5), (-120, -7), (99, 101), (0, 0)])
def test_every_integer_within_the_bounds_can_be_written(least, most):
    grammar = translate_schema({"type": "integer", "minimum": least, "maximum": most})
    assert isinstance(grammar, str)
    matcher = Walker(grammar)._matcher
    for number in range(least - 12, most + 13):
        state = matcher.walk(matcher.start, str(number).encode())
        assert (state is not None and state.is_complete) == (least <= number <= most), number


decimals = st.none() | st.decimals(-50, 50, places=3).map(float)


@settings(max_examples=80, deadline=None)
@given(decimals, decimals, st.booleans(), st.booleans(), st.integers(0, 999))
def test_numbers_lie_within_their_bounds(least, most, is_least_open, is_most_open, seed):
    schema = {"type": "number"}
    if least is not None:
        schema["exclusiveMinimum" if is_least_open else "minimum"] = least
    if most is not None:
        schema["exclusiveMaximum" if is_most_open else "maximum"] = most
    if isinstance(translate_schema(schema), str):
        check(schema, 6, seed)
    else:
        assert least is not None
        assert most is not None
        assert most - least < 0.011


@pytest.mark.parametrize(
    "pattern",
    ["^a$", "^[^abc]{2}$", "a|^b$|c$", r"^\d+(\.\d{2})?$", r"^[\w.-]+@\w+\.(com|org)$", "^(?:ab?){2,3}$", r"^[\d\-x]$",
     r"^\S\D\W.$", "^$", "", r"^[^\d]$", r"^é[à-ü]+$", r"^\x41\u00e9\n\t$", "^a+?b*?$", r"^[\]\\\"/]$", "^[-a]$"],
)  # fmt: skip
def test_strings_match_their_pattern(pattern):
    check({"type": "string", "pattern": pattern}, 12)


@pytest.mark.parametrize(
    "pattern", ["(?=a)", r"\bword", r"(a)\1", "a{2", "[a", "(a", "*", "a**", r"\p{L}", "a$b", "(^a)", "a{\u00b2}"]
)
def test_a_pattern_that_is_not_understood_is_refused(pattern):
    refusal = translate_schema({"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}})
    assert isinstance(refusal, Unsupported)
    assert refusal.path == "/properties/x/pattern"


@pytest.mark.parametrize("patterns", [["[" + "a" * 60_000 + "]"], ["[" + "a" * 6_000 + "]"] * 10])
def test_patterns_of_a_schema_are_read_to_a_bound(patterns):
    schema = {"type": "array", "prefixItems": [{"type": "string", "pattern": one} for one in patterns], "minItems": 1}
    refusal = translate_schema(schema)
    assert isinstance(refusal, Unsupported)
    assert "patterns read" in refusal.problem


def test_a_long_pattern_is_read():
    assert isinstance(translate_schema({"type": "string", "pattern": "^[" + "ab" * 8_000 + "]$"}), str)


REFUSED = {
    "not": ({"not": {"type": "string"}}, "/not"),
    "if": ({"if": {}, "then": {}}, "/if"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
    "contains": ({"type": "array", "contains": {}}, "/contains"),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {}}}, "/patternProperties"),
    "propertyNames": ({"properties": {"x": {"propertyNames": {}}}}, "/properties/x/propertyNames"),
    "dependentRequired": ({"dependentRequired": {}}, "/dependentRequired"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, "/unevaluatedProperties"),
    "$dynamicRef": ({"$dynamicRef": "#x"}, "/$dynamicRef"),
    "nullable": ({"nullable": True}, "/nullable"),
    "contentEncoding": ({"type": "string", "contentEncoding": "base64"}, "/contentEncoding"),
    "multipleOf": ({"type": "number", "multipleOf": 0.1}, "/multipleOf"),
    "format": ({"type": "string", "format": "regex"}, "/format"),
    "minProperties": ({"type": "object", "minProperties": 2}, "/minProperties"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf"),
    "pattern beside": ({"type": "string", "pattern": "a", "minLength": 3}, "/pattern"),
    "a reference out": ({"$ref": "https://example.com/schema"}, "/$ref"),
    "a reference nowhere": ({"$ref": "#/$defs/x"}, "/$ref"),
    "false": ({"type": "object", "properties": {"x": False}, "required": ["x"]}, "/required"),
    "an empty range": ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
    "an unknown type": ({"type": "date"}, "/type"),
    "an empty enum": ({"enum": []}, "/enum"),
    "half a pair": ({"const": "\ud800"}, ""),
    "closed parts": (
        {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
        "",
    ),
    "no schema": ("string", ""),
    "false itself": (False, ""),
    "items in a list": ({"type": "array", "items": [{}]}, "/items"),
    "items beside prefixItems": (
        {"allOf": [{"type": "array", "prefixItems": [{"type": "string"}]}, {"items": {"type": "integer"}}]},
        "",
    ),
    "an index that is no number": ({"anyOf": [{"type": "string"}, {"$ref": "#/anyOf/\u00b2"}]}, "/anyOf/1/$ref"),
    "an index with a zero": ({"anyOf": [{"type": "string"}, {"$ref": "#/anyOf/00"}]}, "/anyOf/1/$ref"),
    "too many repeats": ({"type": "string", "maxLength": 100_000}, "/maxLength"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_promised_is_refused_by_name(name):
    schema, path = REFUSED[name]
    refusal = translate_schema(schema)
    assert isinstance(refusal, Unsupported)
    assert refusal.path == path
    assert refusal.problem in refusal.describe()
    assert "\n" not in refusal.describe()


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"minimum": 5, "maximum": 3}, "minimum 5 above maximum 3"),
        ({"exclusiveMinimum": 5, "maximum": 3}, "exclusiveMinimum 5 above maximum 3"),
        ({"minimum": 5, "exclusiveMaximum": 3.5}, "minimum 5 above exclusiveMaximum 3.5"),
    ],
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_that_exclude_each_other_are_named(kind, bounds, problem):
    refusal = translate_schema({"type": kind, **bounds})
    assert refusal == Unsupported("", problem)


def test_a_range_that_holds_nothing_says_so():
    refusal = translate_schema({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4})
    assert refusal == Unsupported("", "a range without an integer")


def test_a_deep_schema_and_a_large_one_are_refused():
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"type": "array", "items": deep, "maxItems": 1}
    assert isinstance(translate_schema(deep), Unsupported)
    large = obj(**{f"p{i}": {"enum": [f"{i}-{j}" for j in range(200)]} for i in range(100)})
    refusal = translate_schema(large)
    assert isinstance(refusal, Unsupported)
    assert str(MAX_GRAMMAR_BYTES) in refusal.problem


def doubling(kind):
    """Twenty definitions, each of the next one twice: a million parts if all are written out."""
    both = {
        "allOf": lambda ref: {"type": "object", "properties": {"a": {"allOf": [ref]}, "b": {"allOf": [ref]}}},
        "anyOf": lambda ref: {"anyOf": [{"allOf": [ref]}, {"allOf": [ref]}]},
    }[kind]
    steps = {f"n{i}": both({"$ref": f"#/$defs/n{i + 1}"}) for i in range(20)}
    return {"$defs": {**steps, "n20": {"type": "string"}}, "$ref": "#/$defs/n0"}


@pytest.mark.parametrize(
    "schema",
    [
        doubling("allOf"),
        doubling("anyOf"),
        {"oneOf": [{"const": i} for i in range(5000)]},
        {"oneOf": [{"enum": [f"{i}-{j}" for j in range(1000)]} for i in range(64)]},
        {"$defs": {"x": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/x"}] * 300_000},
    ],
    ids=["allOf doubles", "anyOf doubles", "many ways", "ways of many values", "many parts"],
)
def test_work_beyond_reason_is_refused(schema):
    refusal = translate_schema(schema)
    assert isinstance(refusal, Unsupported)
    assert "work" in refusal.problem


def test_a_hint_that_many_rules_share_gives_each_a_name_of_its_own():
    book = RuleBook()
    book.reserve("x-2")
    names = {book.add("x", str(number)) for number in range(20_000)}
    assert len(names) == 20_000
    assert "r-x-2" not in names


def test_a_union_of_many_kinds_of_objects_is_not_too_much_work():
    kinds = [
        obj(["kind", "x"], kind={"const": f"k{i}"}, x={"type": "string"}, y={"type": "integer"}) for i in range(80)
    ]
    assert isinstance(translate_schema({"oneOf": kinds}), str)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "required", "enum", "$ref", "allOf", "anyOf", "oneOf", "const",
                         "minimum", "minItems", "maxLength", "additionalProperties", "pattern", "prefixItems"]),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_any_json_is_translated_or_refused(value):
    assert isinstance(translate_schema(value), str | Unsupported)
