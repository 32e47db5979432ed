"""Rules of a grammar as they are collected, and the ones that any JSON needs."""

import re
from collections import Counter
from collections.abc import Sequence

_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]+")
_COMMA, _COLON = '"," space', '":" space'

_BASICS = {
    "space": '" "?',
    "char": r'[^"\\\x00-\x1F\x7F\u2028\u2029] | "\\" ["\\/bfnrt]',
    "string": r'"\"" char* "\""',
    "whole": '"0" | [1-9] [0-9]{0,14}',
    "integer": '"-"? whole',
    "number": '"-"? whole ("." [0-9]{1,15})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "pair": f"string {_COLON} value",
    "object": '"{" (pair (' + _COMMA + ' pair)*)? "}"',
    "array": '"[" (value (' + _COMMA + ' value)*)? "]"',
}


def literal(text: str) -> str:
    """The expression of exactly this text."""
    return '"' + "".join(_ESCAPED.get(sign, sign if sign.isprintable() else _numbered(sign)) for sign in text) + '"'


def separated(items: Sequence[str]) -> str:
    """A series with commas between."""
    return f" {_COMMA} ".join(items)


def list_of(item: str, least: int, most: int | None) -> str:
    """``least`` to ``most`` items with commas between."""
    if most == 0:
        return ""
    bounds = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    several = f"{item} ({_COMMA} {item}){bounds}"
    return several if least else f"({several})?"


def member(key: str, value: str) -> str:
    """A property: ``key`` is the expression of its name in quotes, ``value`` of what it holds."""
    return f"{key} {_COLON} {value}"


def following(part: str) -> str:
    """A part with a comma before."""
    return f"{_COMMA} {part}"


def either(ways: Sequence[str]) -> str:
    """One of several, as a part of a series."""
    return ways[0] if len(ways) == 1 else "(" + " | ".join(ways) + ")"


MAX_STEPS = 200_000
"""Of all schemas of a grammar; some kilobytes can stand for millions of parts once their references are followed."""


class RuleBook:
    """Named rules, each written once, and what work may still be put into them."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._by_text: dict[str, str] = {}
        self._with_stem: Counter[str] = Counter()
        self._steps_left = MAX_STEPS

    def spend(self, steps: int) -> bool:
        """Whether that much work may still be done."""
        self._steps_left -= steps
        return self._steps_left >= 0

    def reserve(self, hint: str) -> str:
        """A fresh name, for a rule that may use itself."""
        stem = "r-" + (_NOT_IN_A_NAME.sub("-", hint)[:40].strip("-") or "x")
        name = stem
        while name in self._rules:  # hints differ where stems do not: ``a 2`` makes the name of the second ``a``
            self._with_stem[stem] += 1
            name = f"{stem}-{self._with_stem[stem] + 1}"
        self._rules[name] = ""
        return name

    def define(self, name: str, expression: str) -> str:
        """What a reserved name stands for."""
        self._rules[name] = expression
        return name

    def add(self, hint: str, expression: str) -> str:
        """A rule for the expression; the one that there is, if it has been added."""
        known = self._by_text.get(expression)
        if known is None:
            known = self._by_text[expression] = self.define(self.reserve(hint), expression)
        return known

    def text(self, root: str) -> str:
        """The whole grammar; ``root`` is what a text must be."""
        rules = {"root": root, **self._rules, **_BASICS}
        return "".join(f"{name} ::= {expression}\n" for name, expression in rules.items())


def _numbered(sign: str) -> str:
    return f"\\U{ord(sign):08X}"
