"""A JSON Schema -> the rules of a grammar whose every text satisfies it.

Owns which keywords are honoured and how; how schemas are combined is ``parts``', digits are ``numbers``', regular
expressions ``patterns``'.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from p2pmesh.base.limits import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_REPEATS
from p2pmesh.core.json_schema.formats import FORMATS
from p2pmesh.core.json_schema.numbers import (
    MAX_BOUND_DIGITS,
    decimals_between,
    integers_between,
    multiples_of,
)
from p2pmesh.core.json_schema.parts import (
    ANNOTATIONS,
    Schema,
    SchemaUnsupported,
    are_disjoint,
    check_keywords,
    is_of,
    merge,
    size_of,
    text_of,
    types_of,
)
from p2pmesh.core.json_schema.patterns import PatternUnsupported, translate_pattern
from p2pmesh.core.json_schema.rules import RuleBook, either, following, list_of, literal, member, separated

_INDEX = re.compile("0|[1-9][0-9]{0,8}")
_MAX_DEPTH = 48
_MAX_VALUES = 1000
_MAX_PROPERTIES = 256
_MAX_REFERENCES = 64
_MAX_DIVISOR = 64
_STEPS_PER_PATTERN_CHARACTER = 4
_STEPS_PER_PART = 10
"""A part takes about as long as ten comparisons of values."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why a schema has no grammar: where (a JSON pointer), and what; ``describe`` makes it a sentence's part."""

    path: str
    problem: str

    def describe(self) -> str:
        """For the person who wrote the schema."""
        return f"{self.problem} is not supported at {self.path[:200] or 'the top'}"


def translate_schema(schema: Any) -> str | Unsupported:
    """The grammar of the JSON texts that satisfy ``schema``, or why there is none."""
    book = RuleBook()
    root = add_schema(book, schema)
    if isinstance(root, Unsupported):
        return root
    text = book.text(root)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        return Unsupported("", f"a schema whose grammar is longer than {MAX_GRAMMAR_BYTES} bytes")
    return text


def add_schema(book: RuleBook, schema: Any) -> str | Unsupported:
    """The expression of a schema, its rules added to ``book``."""
    try:
        return _Translator(book, schema).expression(schema, "", 0)
    except SchemaUnsupported as refusal:
        return Unsupported(refusal.path, refusal.problem)


class _Translator:
    """One schema; references lead to its own parts."""

    def __init__(self, book: RuleBook, root: Any) -> None:
        self._book = book
        self._root = root
        self._referenced: dict[str, str] = {}

    def expression(self, schema: Any, path: str, depth: int) -> str:
        """What stands for a value of the schema in a series."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, dict):
            raise SchemaUnsupported(path, "a schema that nothing satisfies" if schema is False else "what is no schema")
        if depth > _MAX_DEPTH:
            raise SchemaUnsupported(path, f"nesting beyond {_MAX_DEPTH}")
        self._enter(schema, path)
        if "$ref" in schema:
            return self._reference(schema, path, depth)
        if "allOf" in schema:
            return self.expression(self._merged(schema, path), path, depth + 1)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self._union(schema, name, path, depth)
        if "const" in schema or "enum" in schema:
            return self._values(schema, path)
        ways = [self._of_type(name, schema, path, depth) for name in types_of(schema, path)]
        return either(ways)

    def _enter(self, part: Schema, path: str) -> None:
        """Every keyword of a part is looked at, and the work is counted."""
        self._spend(_STEPS_PER_PART + sum(len(held) for held in part.values() if isinstance(held, dict | list)), path)
        check_keywords(part, path)

    def _spend(self, steps: int, path: str) -> None:
        if not self._book.spend(steps):
            raise SchemaUnsupported(
                path, "a schema that takes this much work (references followed, ways of oneOf compared, patterns read)"
            )

    # --- combinations -------------------------------------------------------------
    def _reference(self, schema: Schema, path: str, depth: int) -> str:
        target = schema["$ref"]
        if schema.keys() - ANNOTATIONS - {"$ref"}:
            return self.expression(self._merged(schema, path), path, depth + 1)
        known = self._referenced.get(target)
        if known is None:
            found = self._resolve(target, path)
            known = self._referenced[target] = self._book.reserve(target)
            self._book.define(known, self.expression(found, target.removeprefix("#"), depth + 1))
        return known

    def _resolve(self, target: str, path: str) -> Any:
        if not (target == "#" or target.startswith("#/")):
            raise SchemaUnsupported(f"{path}/$ref", "a reference out of the schema")
        found = self._root
        for part in target.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and _INDEX.fullmatch(name) and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise SchemaUnsupported(f"{path}/$ref", f"a reference that leads nowhere ({target[:64]!r})")
        return found

    def _merged(self, schema: Schema, path: str) -> Schema:
        """One schema without ``allOf`` and ``$ref`` for one with them."""
        merged: Schema = {}
        waiting: list[Any] = [schema]
        for _ in range(_MAX_REFERENCES):
            if not waiting:
                return merged
            part = waiting.pop(0)
            if part is True:
                continue
            if not isinstance(part, dict):
                raise SchemaUnsupported(path, "a schema that nothing satisfies")
            self._enter(part, path)
            waiting += part.get("allOf", [])
            if "$ref" in part:
                waiting.append(self._resolve(part["$ref"], path))
            own = {name: value for name, value in part.items() if name not in ("allOf", "$ref")}
            merged = merge(merged, own, path)
        raise SchemaUnsupported(f"{path}/allOf", f"more than {_MAX_REFERENCES} parts that hold at once")

    def _union(self, schema: Schema, name: str, path: str, depth: int) -> str:
        branches = schema[name]
        rest = {key: value for key, value in schema.items() if key != name and key not in ANNOTATIONS}
        wholes = [self._branch(rest, branch, f"{path}/{name}/{index}") for index, branch in enumerate(branches)]
        if name == "oneOf":
            self._check_disjoint(wholes, f"{path}/{name}")
        ways = [
            self._book.add(f"{path} {index}", self.expression(whole, f"{path}/{name}/{index}", depth + 1))
            for index, whole in enumerate(wholes)
        ]
        return either(ways)

    def _branch(self, rest: Schema, branch: Any, path: str) -> Any:
        if not rest:
            return branch
        return self._merged({"allOf": [rest, branch]}, path)

    def _check_disjoint(self, branches: Sequence[Any], path: str) -> None:
        """A text of ``oneOf`` must satisfy one branch alone, which a grammar cannot look at again."""
        plain = [self._merged(one, path) if isinstance(one, dict) else {} for one in branches]
        sizes = [size_of(one) for one in plain]
        for index, left in enumerate(plain):
            for other, right in enumerate(plain[index + 1 :], index + 1):
                self._spend(min(sizes[index], sizes[other]), path)
                if not are_disjoint(left, right, path):
                    raise SchemaUnsupported(path, "oneOf whose ways may hold at once (anyOf is)")

    # --- values ---------------------------------------------------------------------
    def _values(self, schema: Schema, path: str) -> str:
        name = "const" if "const" in schema else "enum"
        values = [schema["const"]] if name == "const" else schema["enum"]
        if not 1 <= len(values) <= _MAX_VALUES:
            raise SchemaUnsupported(f"{path}/enum", f"enum of other than 1 to {_MAX_VALUES} values")
        beside = schema.keys() - ANNOTATIONS - {name, "type"}
        if beside:
            raise SchemaUnsupported(f"{path}/{min(beside)}", f"{min(beside)} beside {name}")
        types = types_of(schema, path) if "type" in schema else None
        kept = [value for value in values if types is None or is_of(value, types)]
        if not kept:
            raise SchemaUnsupported(f"{path}/{name}", f"{name} without a value of its type")
        texts = dict.fromkeys(text_of(value, path) for value in kept)
        return self._book.add(path, " | ".join(literal(text) for text in texts)) if len(texts) > 1 else literal(*texts)

    def _of_type(self, name: str, schema: Schema, path: str, depth: int) -> str:
        match name:
            case "object":
                return self._object(schema, path, depth)
            case "array":
                return self._array(schema, path, depth)
            case "string":
                return self._string(schema, path)
            case "number" | "integer":
                return self._number(name, schema, path)
            case _:
                return name

    # --- objects ----------------------------------------------------------------------
    def _object(self, schema: Schema, path: str, depth: int) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        extra = schema.get("additionalProperties", True)
        least, most = (_count(schema, name, path) for name in ("minProperties", "maxProperties"))
        members = {key: value for key, value in properties.items() if value is not False}
        for key in required:
            if key not in members and (key in properties or extra is False):
                raise SchemaUnsupported(f"{path}/required", "a required property that is not allowed")
            members.setdefault(key, extra)
        if len(members) > _MAX_PROPERTIES:
            raise SchemaUnsupported(f"{path}/properties", f"more than {_MAX_PROPERTIES} properties")
        if not members:
            if "properties" in schema and "additionalProperties" not in schema and not least:
                return literal("{}")  # whoever names properties, if none, means those
            return self._map(extra, least or 0, most, path, depth)
        if most is not None and most < len(members):
            raise SchemaUnsupported(f"{path}/maxProperties", "maxProperties below the number of properties")
        if (least or 0) > max(1, len(required)):
            raise SchemaUnsupported(f"{path}/minProperties", "minProperties above the number of required ones")
        pairs = [(self._member(key, value, path, depth), key in required) for key, value in members.items()]
        return self._book.add(path, '"{" ' + self._members(pairs, path, may_be_empty=not least) + ' "}"')

    def _member(self, key: str, value: Any, path: str, depth: int) -> str:
        inner = f"{path}/properties/{key}"
        return member(literal(text_of(key, path)), self.expression(value, inner, depth + 1))

    def _members(self, pairs: list[tuple[str, bool]], path: str, *, may_be_empty: bool) -> str:
        """Properties in their order, those that are not required maybe left out, with commas where they belong."""
        tail = ""
        head = '""' if may_be_empty else None
        for pair, is_required in reversed(pairs):
            first = f"{pair} {tail}".rstrip()
            head = first if is_required else (first if head is None else f"({first} | {head})")
            head = self._book.add(f"{path} first", head)
            part = following(pair) if is_required else f"({following(pair)})?"
            tail = self._book.add(f"{path} more", f"{part} {tail}".rstrip())
        return head or ""

    def _map(self, extra: Any, least: int, most: int | None, path: str, depth: int) -> str:
        """Any names, all values of one schema."""
        if least > 1:
            raise SchemaUnsupported(f"{path}/minProperties", "minProperties above 1 of any names")
        if extra is False:
            if least:
                raise SchemaUnsupported(f"{path}/minProperties", "minProperties of no properties")
            return literal("{}")
        if extra is True or extra == {}:
            return "object" if (least, most) == (0, None) else '"{" ' + list_of("pair", least, most) + ' "}"'
        value = self.expression(extra, f"{path}/additionalProperties", depth + 1)
        pair = self._book.add(f"{path} pair", member("string", value))
        return '"{" ' + list_of(pair, least, most) + ' "}"'

    # --- arrays -----------------------------------------------------------------------
    def _array(self, schema: Schema, path: str, depth: int) -> str:
        prefix = schema.get("prefixItems", [])
        items = schema.get("items", True)
        least, most = _count(schema, "minItems", path) or 0, _count(schema, "maxItems", path)
        if most is not None and most < least:
            raise SchemaUnsupported(f"{path}/maxItems", "maxItems below minItems")
        if schema.get("uniqueItems") and (most is None or most > 1):
            raise SchemaUnsupported(f"{path}/uniqueItems", "uniqueItems of more than one item")
        if most is not None:
            prefix = prefix[:most]
        first = [self.expression(one, f"{path}/prefixItems/{index}", depth + 1) for index, one in enumerate(prefix)]
        if items is False or most == len(prefix):
            if least > len(prefix):
                raise SchemaUnsupported(f"{path}/minItems", "minItems above the number of items")
            return f'"[" {separated(first)} "]"'
        item = self._book.add(f"{path} item", self.expression(items, f"{path}/items", depth + 1))
        rest_least, rest_most = max(0, least - len(prefix)), None if most is None else most - len(prefix)
        if not prefix:
            return f'"[" {list_of(item, rest_least, rest_most)} "]"'
        bounds = f"{{{rest_least},{'' if rest_most is None else rest_most}}}"
        return f'"[" {separated(first)} ({following(item)}){bounds} "]"'

    # --- strings and numbers ------------------------------------------------------------
    def _string(self, schema: Schema, path: str) -> str:
        least, most = _count(schema, "minLength", path) or 0, _count(schema, "maxLength", path)
        present = [name for name in ("pattern", "format") if name in schema]
        if len(present) + (least > 0 or most is not None) > 1:
            last = present[-1]
            raise SchemaUnsupported(f"{path}/{last}", f"{last} beside another bound of the same string")
        if most is not None and most < least:
            raise SchemaUnsupported(f"{path}/maxLength", "maxLength below minLength")
        if "pattern" in schema:
            return self._quoted(self._pattern(schema["pattern"], path), path)
        if "format" in schema:
            known = FORMATS.get(schema["format"])
            if known is None:
                raise SchemaUnsupported(f"{path}/format", f"format {schema['format'][:32]!r}")
            return self._quoted(known, path)
        if least or most is not None:
            return self._quoted(f"char{{{least},{'' if most is None else most}}}", path)
        return "string"

    def _quoted(self, inner: str, path: str) -> str:
        quote = literal('"')
        return self._book.add(path, f"{quote} {inner} {quote}")

    def _pattern(self, pattern: str, path: str) -> str:
        self._spend(_STEPS_PER_PATTERN_CHARACTER * len(pattern), f"{path}/pattern")
        try:
            return translate_pattern(pattern)
        except PatternUnsupported as refusal:
            raise SchemaUnsupported(f"{path}/pattern", f"{refusal} in a pattern") from None

    def _number(self, name: str, schema: Schema, path: str) -> str:
        lowest, highest = _bound(schema, "minimum", path), _bound(schema, "maximum", path)
        above, below = _bound(schema, "exclusiveMinimum", path), _bound(schema, "exclusiveMaximum", path)
        has_bounds = any(bound is not None for bound in (lowest, highest, above, below))
        if schema.get("multipleOf", 1) != 1 or (name == "number" and "multipleOf" in schema):
            return self._multiple(schema["multipleOf"], path, has_bounds=has_bounds or name == "number")
        if not has_bounds:
            return name
        least, is_least_open = (above, True) if above is not None and (lowest is None or above >= lowest) else (
            lowest, False)  # fmt: skip
        most, is_most_open = (below, True) if below is not None and (highest is None or below <= highest) else (
            highest, False)  # fmt: skip
        if least is not None and most is not None and least > most:
            names = (
                "exclusiveMinimum" if is_least_open else "minimum",
                "exclusiveMaximum" if is_most_open else "maximum",
            )
            raise SchemaUnsupported(path, f"{names[0]} {least} above {names[1]} {most}")
        if name == "integer":
            least = least if least is None or not is_least_open else Decimal(int(least.__floor__()) + 1)
            most = most if most is None or not is_most_open else Decimal(int(most.__ceil__()) - 1)
            found = integers_between(least, most)
        else:
            found = decimals_between(least, most, is_least_open=is_least_open, is_most_open=is_most_open)
        if found is None:
            raise SchemaUnsupported(
                path, f"a range without {'an' if name == 'integer' else 'a plainly written'} {name}"
            )
        return self._book.add(path, found)

    def _multiple(self, divisor: Any, path: str, *, has_bounds: bool) -> str:
        if has_bounds or not isinstance(divisor, int) or not 2 <= divisor <= _MAX_DIVISOR:
            raise SchemaUnsupported(f"{path}/multipleOf", "multipleOf but for integers without bounds, 1 to 64,")
        prefix = self._book.reserve(f"multiple of {divisor}") + "-"
        for rule, expression in multiples_of(divisor, prefix).items():
            self._book.define(rule, expression)
        return self._book.define(prefix.removesuffix("-"), prefix)


def _count(schema: Schema, name: str, path: str) -> int | None:
    value = schema.get(name)
    if value is None:
        return None
    if value > MAX_GRAMMAR_REPEATS:
        raise SchemaUnsupported(f"{path}/{name}", f"{name} above {MAX_GRAMMAR_REPEATS}")
    return int(value)


def _bound(schema: Schema, name: str, path: str) -> Decimal | None:
    value = schema.get(name)
    if value is None:
        return None
    bound = Decimal(str(value))
    exponent = bound.as_tuple().exponent
    if abs(bound) >= 10**MAX_BOUND_DIGITS or not isinstance(exponent, int) or exponent < -MAX_BOUND_DIGITS:
        raise SchemaUnsupported(f"{path}/{name}", f"{name} of more than {MAX_BOUND_DIGITS} digits")
    return bound
