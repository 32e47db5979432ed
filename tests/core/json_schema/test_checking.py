"""Values against schemas, beside a validator of others."""

import json
import random

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pmesh.core.json_schema.checking import MAX_CHECKS, find_mismatch
from p2pmesh.core.json_schema.translate import translate_schema
from tests.core.json_schema.suite import PERSON, SCHEMAS, TREE, obj
from tests.core.json_schema.walk import Walker

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, -2.5]) | st.text("ab", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
LEAVES = st.one_of(
    st.sampled_from(
        [True, False, {}, {"type": "integer"}, {"type": ["string", "null"]}, {"type": "number"}, {"const": 1},
         {"enum": ["a", 2, None, [1]]}, {"minLength": 1, "maxLength": 2}, {"minimum": 0, "exclusiveMaximum": 3},
         {"exclusiveMinimum": -1, "maximum": 2}, {"multipleOf": 2}, {"multipleOf": 0.5}, {"minItems": 1, "maxItems": 2},
         {"uniqueItems": True}, {"minProperties": 1, "maxProperties": 1}, {"required": ["a"]}]
    )
)  # fmt: skip


def grow(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    members = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    return st.one_of(
        st.tuples(members, inner).map(lambda two: {"properties": two[0], "additionalProperties": two[1]}),
        st.tuples(st.lists(inner, max_size=2), inner).map(
            lambda two: {"prefixItems": two[0] or [True], "items": two[1]}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda ways: {"anyOf": ways}),
        st.lists(inner, min_size=1, max_size=2).map(lambda ways: {"oneOf": ways}),
        st.lists(inner, min_size=1, max_size=2).map(lambda ways: {"allOf": ways}),
        inner.map(lambda one: {"not": one}),
    )


@pytest.mark.parametrize(
    ("value", "step", "is_fine"),
    [(0.3, 0.1, True), (0.35, 0.1, False), (4, 2.0, True), (5, 2.0, False), (0.5, 2, False), (0, 7, True),
     (10**400, 10, True), (10**400 + 1, 10, False), (1e308, 1e-300, True), (float("inf"), 2, False)],
    ids=range(10),
)  # fmt: skip
def test_multiples_are_told_by_their_digits(value: float, step: float, is_fine: bool) -> None:
    assert (find_mismatch(value, {"multipleOf": step}) is None) == is_fine


@example(value=[None, 0.5], schema={"items": {"type": ["null", "number"], "multipleOf": 2}})
@example(value=3, schema={"multipleOf": 1.5})
@given(value=VALUES, schema=st.recursive(LEAVES, grow, max_leaves=6))
def test_it_finds_what_another_validator_finds(value: object, schema: object) -> None:
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)  # type: ignore[arg-type]
    assert (find_mismatch(value, schema) is None) == expected


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_of_a_schemas_grammar_satisfy_it(name: str) -> None:
    grammar = translate_schema(SCHEMAS[name])
    assert isinstance(grammar, str)
    walker, rng = Walker(grammar), random.Random(3)
    for _ in range(5):
        assert find_mismatch(json.loads(walker.text(rng)), SCHEMAS[name]) is None


@pytest.mark.parametrize(
    ("value", "schema", "told"),
    [
        ({"name": "x"}, PERSON, "it lacks 'age'"),
        ({"name": "x", "age": "3"}, PERSON, "/age must be of type integer"),
        ({"name": "x", "age": 300}, PERSON, "/age is too large"),
        ({"name": "x", "age": 3, "b/c": 1}, PERSON, "/b~1c is not allowed"),
        ({"value": 1, "children": [{"value": 2, "children": [{}]}]}, TREE, "/children/0/children/0 lacks 'value'"),
        ([1, 2, 1], {"uniqueItems": True}, "it holds an item twice"),
        (True, {"type": "integer"}, "it must be of type integer"),
        (1, {"const": True}, "it is not the one value that is allowed"),
        ({"a": 1}, obj(a={"anyOf": [{"type": "string"}, {"type": "null"}]}), "/a is of none of the forms"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(value: object, schema: object, told: str) -> None:
    found = find_mismatch(value, schema)
    assert found is not None
    assert found.startswith(told)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^b"}, {"format": "date"}, {"type": 5}, {"type": "text"}, {"enum": 3}, {"properties": 1},
        {"minLength": "x"}, {"$ref": "other.json"}, {"$ref": "#/$defs/none"}, {"allOf": 1}, 7, None,
        {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, {"$ref": "#"},
    ],
)  # fmt: skip
def test_what_is_not_known_says_nothing_against_a_value(schema: object) -> None:
    assert find_mismatch("a", schema) is None
    assert find_mismatch({"a": 1}, schema) is None


def test_an_anchor_is_not_looked_up_and_is_not_the_whole_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#s"}}, "$defs": {"s": {"$anchor": "s", "type": "string"}}}
    assert find_mismatch({"a": "x"}, schema) is None


def test_no_schema_takes_more_than_its_share() -> None:
    doubling: dict[str, object] = {"$defs": {"n0": {"const": 0}}, "$ref": "#/$defs/n30"}
    for number in range(1, 31):
        both = [{"$ref": f"#/$defs/n{number - 1}"}] * 2
        doubling["$defs"][f"n{number}"] = {"anyOf": both}  # type: ignore[index]
    assert find_mismatch(1, doubling) is None
    assert MAX_CHECKS < 2**30


ITEM = list(range(1000))
LONG_LIST = list(range(MAX_CHECKS // 2))


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ([LONG_LIST[-1]] * 3 + [MAX_CHECKS], {"items": {"enum": LONG_LIST}}),
        ([[*ITEM, index] for index in range(64)], {"uniqueItems": True, "items": {"type": "null"}}),
        ([{"a": 1}] * 3 + [0], {"items": {"type": "object", "required": ["a"] * (MAX_CHECKS // 2)}}),
        ([1] * MAX_CHECKS, {"oneOf": [{"items": {"type": "integer"}}, {"items": {"type": "number"}}]}),
    ],
)  # fmt: skip
def test_looks_into_lists_of_a_schema_and_into_values_are_counted_and_a_doubt_says_nothing(
    value: object, schema: object
) -> None:
    assert find_mismatch(value, schema) is None


def test_values_that_nest_too_deep_to_be_compared_are_in_doubt() -> None:
    deep: object = 1
    for _ in range(800):
        deep = [deep]
    assert find_mismatch(json.loads(json.dumps(deep)), {"const": deep}) is None
    assert find_mismatch(deep, {"not": {"const": deep}}) is None


def test_a_reference_is_followed_so_far_only() -> None:
    pointer = "#" + "/properties/a" * MAX_CHECKS
    schema: dict[str, object] = {"$ref": pointer}
    inner = schema
    for _ in range(100):
        inner["properties"] = {"a": {}}
        inner = inner["properties"]["a"]  # type: ignore[index]
    assert find_mismatch(1, schema) is None
