"""Does a JSON value satisfy a schema: for what no grammar held an answer to.

Keywords that are not known here, ``pattern`` and ``format`` among them, say nothing against a value: the question is
whether an answer is worth asking for anew, and a doubt is none. Work is counted, so that no schema holds a node up.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

MAX_DEPTH = 64
MAX_CHECKS = 20_000
"""Schemas applied to values, and values compared; beyond it nothing is found wrong any more."""
_POINTER_PARTS = 64
"""Of a ``$ref``; a longer one says nothing."""

Schema = Any
_JSON_TYPES: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "object": lambda value: isinstance(value, dict),
        "array": lambda value: isinstance(value, list),
        "string": lambda value: isinstance(value, str),
        "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "integer": lambda value: _is_integer(value),
        "boolean": lambda value: isinstance(value, bool),
        "null": lambda value: value is None,
    }
)


def find_mismatch(value: Any, schema: Schema) -> str | None:
    """What is wrong with a value, where (a JSON pointer) and why; None where nothing is found."""
    return _Check(schema).find(value, schema, "", 0)


class _Check:
    """One value against one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_CHECKS

    def find(self, value: Any, schema: Schema, at: str, depth: int) -> str | None:
        if not self._spend(depth):
            return None
        if isinstance(schema, bool):
            return None if schema else _wrong(at, "is not allowed")
        if not isinstance(schema, dict):
            return None
        for look in (self._own, self._object, self._array, self._combined, self._referred):
            found = look(value, schema, at, depth + 1)
            if found is not None:
                return found
        return None

    def _own(self, value: Any, schema: dict[str, Any], at: str, depth: int) -> str | None:
        types = schema.get("type")
        names = [types] if isinstance(types, str) else types if isinstance(types, list) else []
        tests = [_JSON_TYPES[name] for name in names if isinstance(name, str) and name in _JSON_TYPES]
        if tests and not any(test(value) for test in tests):
            return _wrong(at, f"must be of type {' or '.join(map(str, names))}")
        if "const" in schema and not self._equal(value, schema["const"], depth):
            return _wrong(at, "is not the one value that is allowed")
        allowed = schema.get("enum")
        if isinstance(allowed, list) and not any(self._equal(value, one, depth) for one in allowed):
            return _wrong(at, "is none of the values that are allowed")
        if isinstance(value, str):
            return _out_of_bounds(len(value), schema, "minLength", "maxLength", at, "characters")
        return _number_problem(value, schema, at) if _JSON_TYPES["number"](value) else None

    def _object(self, value: Any, schema: dict[str, Any], at: str, depth: int) -> str | None:
        if not isinstance(value, dict):
            return None
        for name in self._counted(_list(schema, "required")):
            if name not in value:
                return _wrong(at, f"lacks {name!r}")
        found = _out_of_bounds(len(value), schema, "minProperties", "maxProperties", at, "properties")
        known = schema.get("properties")
        known = known if isinstance(known, dict) else {}
        others = schema.get("additionalProperties", True)
        if schema.get("patternProperties"):
            others = True  # which of them it speaks of is not looked at
        for name, member in value.items():
            if found is not None:
                return found
            found = self.find(member, known.get(name, others), f"{at}/{_pointer(name)}", depth)
        return found

    def _array(self, value: Any, schema: dict[str, Any], at: str, depth: int) -> str | None:
        if not isinstance(value, list):
            return None
        found = _out_of_bounds(len(value), schema, "minItems", "maxItems", at, "items")
        if schema.get("uniqueItems") is True and len(value) <= 64:
            pairs = ((one, other) for index, one in enumerate(value) for other in value[:index])
            has_twins = any(self._equal(one, other, depth) for one, other in pairs) and self._left >= 0
            found = found or (_wrong(at, "holds an item twice") if has_twins else None)
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        for index, item in enumerate(value):
            if found is not None:
                return found
            within = first[index] if index < len(first) else schema.get("items", True)
            found = self.find(item, within, f"{at}/{index}", depth)
        return found

    def _combined(self, value: Any, schema: dict[str, Any], at: str, depth: int) -> str | None:
        for part in _list(schema, "allOf"):
            found = self.find(value, part, at, depth)
            if found is not None:
                return found
        ways = _list(schema, "anyOf")
        if ways and all(self.find(value, way, at, depth) is not None for way in ways):
            return _wrong(at, "is of none of the forms that are allowed")
        ones = _list(schema, "oneOf")
        fitting = sum(self.find(value, one, at, depth) is None for one in ones)
        if ones and fitting != 1 and self._left >= 0:
            return _wrong(at, "must be of exactly one of the forms that are allowed")
        if "not" in schema and self.find(value, schema["not"], at, depth) is None and self._left >= 0:
            return _wrong(at, "is what is not allowed")
        return None

    def _referred(self, value: Any, schema: dict[str, Any], at: str, depth: int) -> str | None:
        pointer = schema.get("$ref")
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            return None  # an anchor, or another document
        target = self._root
        for part in pointer[1:].split("/", _POINTER_PARTS)[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                return None
        return self.find(value, target, at, depth)

    def _spend(self, depth: int) -> bool:
        """Whether there is work left for one more look; once there is not, all is in doubt."""
        self._left = -1 if depth > MAX_DEPTH else self._left - 1
        return self._left >= 0

    def _counted(self, members: Iterable[Any]) -> Iterator[Any]:
        """As many as there is work left for."""
        for member in members:
            if not self._spend(0):
                return
            yield member

    def _equal(self, one: Any, other: Any, depth: int) -> bool:
        """As JSON has it: true is no 1, 1.0 is. What takes too much work, or nests too deep, counts as equal."""
        if not self._spend(depth):
            return True
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(self._equal(a, b, depth + 1) for a, b in zip(one, other, strict=True))
        if isinstance(one, dict) and isinstance(other, dict):
            return len(one) == len(other) and all(
                name in other and self._equal(one[name], other[name], depth + 1) for name in one
            )
        return bool(one == other)


def nests_beyond(value: Any, most: int) -> bool:
    """Whether objects and arrays stand deeper within each other; level by level, so that no depth is too much."""
    level = [value]
    for _ in range(most + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return False
        level = [one for held in level for one in (held.values() if isinstance(held, dict) else held)]
    return True


def _number_problem(value: float, schema: dict[str, Any], at: str) -> str | None:
    least, above = _bound(schema, "minimum"), _bound(schema, "exclusiveMinimum")
    most, below = _bound(schema, "maximum"), _bound(schema, "exclusiveMaximum")
    if (least is not None and value < least) or (above is not None and value <= above):
        return _wrong(at, "is too small")
    if (most is not None and value > most) or (below is not None and value >= below):
        return _wrong(at, "is too large")
    step = _bound(schema, "multipleOf")
    if step and not _is_multiple(value, step):
        return _wrong(at, f"is no multiple of {step}")
    return None


def _is_multiple(value: float, step: float) -> bool:
    dividend, divisor = _exact(value), _exact(step)
    return dividend is not None and divisor is not None and (dividend / divisor).denominator == 1


def _exact(number: float) -> Fraction | None:
    """By the decimal digits that a number is written with: 0.3 is three times 0.1. None for one that JSON lacks."""
    if isinstance(number, int):
        return Fraction(number)
    return Fraction(str(number)) if math.isfinite(number) else None


def _out_of_bounds(count: int, schema: dict[str, Any], least: str, most: str, at: str, what: str) -> str | None:
    lowest, highest = _bound(schema, least), _bound(schema, most)
    if lowest is not None and count < lowest:
        return _wrong(at, f"has fewer than {lowest} {what}")
    if highest is not None and count > highest:
        return _wrong(at, f"has more than {highest} {what}")
    return None


def _bound(schema: dict[str, Any], name: str) -> Any:
    bound = schema.get(name)
    return bound if _JSON_TYPES["number"](bound) else None


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")[:64]


def _wrong(at: str, problem: str) -> str:
    return f"{at or 'it'} {problem}"
