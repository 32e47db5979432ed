"""GBNF, llama.cpp's notation of grammars: text -> expressions by rule name.

Owns the notation and its limits: ``name ::= expression``, literals in double quotes, ``[classes]`` of characters,
``.``, groups, ``|``, the repetitions ``* + ? {m} {m,} {m,n}``, and ``#`` comments. What an expression means is
``network``'s. References to token ids (``<[7]>``) are no part of it: they would tie a grammar to a vocabulary.
"""

import re
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_REPEATS, MAX_GRAMMAR_RULES

ROOT = "root"
_MAX_CODE_POINT = 0x10FFFF
_MAX_GROUP_DEPTH = 64
_MAX_REPETITION_SIGNS = 8
_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_SPACE = re.compile(r"(?:[ \t]|#[^\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BOUNDS = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\\"\[\]]))")
_QUOTED_OR_NAME = re.compile(r"""("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|\{[^}]*\})|([A-Za-z0-9_-]+)""")
_SIMPLE_ESCAPES = {"n": 10, "r": 13, "t": 9, "\\": 92, '"': 34, "[": 91, "]": 93}
_POSTFIXES = {"*": (0, None), "+": (1, None), "?": (0, 1)}

Ranges = tuple[tuple[int, int], ...]
"""Code points from first to last, both included; ascending, without touching ones."""


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of ``ranges``; none at all where they are empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Reference:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Series:
    """One after another; the empty text where there are none."""

    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    ways: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """``least`` to ``most`` times; None: without end."""

    part: "Expression"
    least: int
    most: int | None


Expression = Characters | Reference | Series | Choice | Repeat


def parse_grammar(text: str) -> dict[str, Expression]:
    """The rules of a grammar by name; ``RemoteProtocolError(GRAMMAR_INVALID)`` says what is wrong and in which line."""
    if len(text.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        raise invalid_grammar(f"longer than {MAX_GRAMMAR_BYTES} bytes")
    rules = _Reader(text).read_rules()
    if ROOT not in rules:
        raise invalid_grammar(f"no rule {ROOT}")
    return rules


def prefix_rules(text: str, prefix: str) -> str:
    """The same grammar with ``prefix`` before the name of every rule, to stand beside another one."""
    return _QUOTED_OR_NAME.sub(lambda found: found[1] if found[2] is None else prefix + found[2], text)


def invalid_grammar(problem: str) -> RemoteProtocolError:
    """The error of every rule of this package."""
    return RemoteProtocolError(ErrorCode.GRAMMAR_INVALID, f"the grammar: {problem}")


def merge_ranges(ranges: list[tuple[int, int]]) -> Ranges:
    """The same characters in order, overlapping and touching ranges made one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def invert_ranges(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for first, last in ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= _MAX_CODE_POINT:
        gaps.append((start, _MAX_CODE_POINT))
    return tuple(gaps)


class _Reader:
    """A cursor over the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read_rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._name()
            self._skip(_SPACE)
            if not self._take("::="):
                raise self._error(f"::= expected after {name}")
            if name in rules:
                raise self._error(f"the rule {name} stands twice")
            if len(rules) >= MAX_GRAMMAR_RULES:
                raise self._error(f"more than {MAX_GRAMMAR_RULES} rules")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._choice()
            self._skip(_SPACE)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"{self._text[self._at]!r} is not expected here")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _choice(self) -> Expression:
        ways = [self._series()]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            ways.append(self._series())
        return ways[0] if len(ways) == 1 else Choice(tuple(ways))

    def _series(self) -> Expression:
        parts: list[Expression] = []
        while True:
            self._skip(_SPACE_AND_LINES if self._depth else _SPACE)
            part = self._atom()
            if part is None:
                return parts[0] if len(parts) == 1 else Series(tuple(parts))
            parts.append(self._repeated(part))

    def _atom(self) -> Expression | None:
        """None where the series ends."""
        match self._text[self._at : self._at + 1]:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case ".":
                self._at += 1
                return Characters(((0, _MAX_CODE_POINT),))
            case "(":
                return self._group()
            case "" | "|" | ")" | "\r" | "\n":
                return None
            case _:
                return Reference(self._name())

    def _group(self) -> Expression:
        self._at += 1
        self._depth += 1
        if self._depth > _MAX_GROUP_DEPTH:
            raise self._error(f"groups nested more than {_MAX_GROUP_DEPTH} deep")
        self._skip(_SPACE_AND_LINES)
        inner = self._choice()
        self._skip(_SPACE_AND_LINES)
        if not self._take(")"):
            raise self._error(") expected")
        self._depth -= 1
        return inner

    def _literal(self) -> Expression:
        self._at += 1
        parts: list[Expression] = []
        while not self._take('"'):
            code = self._character()
            parts.append(Characters(((code, code),)))
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _class(self) -> Expression:
        self._at += 1
        is_inverted = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = last = self._character()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
            if last < first:
                raise self._error("a range of characters that ends before it begins")
            ranges.append((first, last))
        merged = merge_ranges(ranges)
        return Characters(invert_ranges(merged) if is_inverted else merged)

    def _character(self) -> int:
        """One character of a literal or class, escaped or not."""
        found = _ESCAPE.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            digits = found[1] or found[2] or found[3]
            code = int(digits, 16) if digits else _SIMPLE_ESCAPES[found[4]]
            if code > _MAX_CODE_POINT:
                raise self._error(f"no character has the number {code:#x}")
            return code
        shown = self._text[self._at : self._at + 1]
        if shown in ("", "\n", "\\"):
            raise self._error("an escape that is not known" if shown == "\\" else "a literal or class without its end")
        self._at += 1
        return ord(shown)

    def _repeated(self, part: Expression) -> Expression:
        """The part with the repetitions that follow it."""
        for _ in range(_MAX_REPETITION_SIGNS):
            self._skip(_SPACE)
            sign = self._text[self._at : self._at + 1]
            if sign in _POSTFIXES and sign:
                self._at += 1
                least, most = _POSTFIXES[sign]
            elif sign == "{":
                least, most = self._bounds()
            else:
                return part
            part = Repeat(part, least, most)
        raise self._error(f"more than {_MAX_REPETITION_SIGNS} repetitions of repetitions")

    def _bounds(self) -> tuple[int, int | None]:
        found = _BOUNDS.match(self._text, self._at)
        if found is None:
            raise self._error("{m}, {m,} or {m,n} expected")
        self._at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > MAX_GRAMMAR_REPEATS:
            raise self._error(f"more than {MAX_GRAMMAR_REPEATS} repetitions")
        if most is not None and most < least:
            raise self._error("a repetition whose upper bound is below its lower one")
        return least, most

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            shown = self._text[self._at : self._at + 1]
            raise self._error(f"{shown!r} is not expected here" if shown else "the name of a rule expected")
        self._at = found.end()
        return found[0]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()

    def _take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _error(self, problem: str) -> RemoteProtocolError:
        line = self._text.count("\n", 0, self._at) + 1
        return invalid_grammar(f"line {line}: {problem}")
