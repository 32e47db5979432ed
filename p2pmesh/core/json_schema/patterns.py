"""Regular expressions of ``pattern`` -> expressions over the characters of a JSON string.

The part of ECMA-262 that is regular and means the same in Python: literals, classes, ``\\d \\w \\s``, their
opposites, groups, ``|``, quantifiers, ``^`` and ``$`` at the ends. Where dialects differ the narrower reading counts.
"""

import re

from p2pmesh.core.grammar.notation import Ranges, invert_ranges, merge_ranges
from p2pmesh.core.json_schema.rules import either, literal

_MAX_DEPTH = 32
_BOUND = re.compile("[0-9]*")
_ASCII: Ranges = ((0x20, 0x7E),)
_SHORT = {"d": [(48, 57)], "w": [(48, 57), (65, 90), (95, 95), (97, 122)], "s": [(9, 10), (13, 13), (32, 32)]}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_IN_JSON = {34: '\\"', 92: "\\\\", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t"}
_PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0x2027), (0x202A, 0xD7FF), (0xE000, 0x10FFFF))
"""Characters that stand for themselves in a JSON string."""


class PatternUnsupported(Exception):
    """What in a pattern is not understood."""


def translate_pattern(pattern: str) -> str:
    """The expression of a JSON string, without its quotes, that the pattern finds itself in."""
    reader = _Reader(pattern)
    ways = reader.read_ways()
    if reader.peek():
        raise PatternUnsupported(f"{reader.peek()!r}")
    return either(ways)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def peek(self, ahead: int = 0) -> str:
        """The next character, or one behind it; "" at the end."""
        return self._pattern[self._at + ahead : self._at + ahead + 1]

    def read_ways(self) -> list[str]:
        ways = [self._series()]
        while self._take("|"):
            ways.append(self._series())
        return ways

    def _series(self) -> str:
        """One way; outside groups what is not anchored may have any text around it."""
        is_outer = self._depth == 0
        parts: list[str] = []
        if self._take("^"):
            if not is_outer:
                raise PatternUnsupported("'^' in a group")
        elif is_outer:
            parts.append("char*")
        is_anchored = False
        while self.peek() not in ("", "|", ")"):
            if self._take("$"):
                is_anchored = True
                break
            parts.append(self._quantified())
        if is_anchored and (not is_outer or self.peek() not in ("", "|")):
            raise PatternUnsupported("'$' before the end")
        if is_outer and not is_anchored:
            parts.append("char*")
        return " ".join(parts) or '""'

    def _quantified(self) -> str:
        part = self._atom()
        sign = self.peek()
        if sign and sign in "*+?":
            self._at += 1
        elif sign == "{":
            end = self._pattern.find("}", self._at)
            bounds = self._pattern[self._at + 1 : end].split(",") if end > 0 else []
            if not 1 <= len(bounds) <= 2 or not bounds[0] or not all(_BOUND.fullmatch(bound) for bound in bounds):
                raise PatternUnsupported("'{' without bounds")
            sign = self._pattern[self._at : end + 1]
            self._at = end + 1
        else:
            return part
        if self._take("?"):  # lazy: the same strings
            pass
        if self.peek() in ("*", "+", "{"):
            raise PatternUnsupported("a quantifier of a quantifier")
        return f"({part}){sign}"

    def _atom(self) -> str:
        sign = self.peek()
        if sign == "(":
            return self._group()
        if sign == "[":
            return _characters(self._class())
        self._at += 1
        if sign == ".":
            return _characters(invert_ranges(merge_ranges([(10, 10), (13, 13), (0x2028, 0x2029)])))
        if sign == "\\":
            ranges, is_opposite = self._escape()
            return _characters(_opposite(ranges) if is_opposite else ranges)
        if sign in "*+?{}":
            raise PatternUnsupported(f"{sign!r} without what it repeats")
        return _characters(((ord(sign), ord(sign)),))

    def _group(self) -> str:
        self._at += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise PatternUnsupported(f"groups nested more than {_MAX_DEPTH} deep")
        if self._take("?") and not self._take(":"):
            raise PatternUnsupported(f"'(?{self.peek()}'")
        ways = self.read_ways()
        if not self._take(")"):
            raise PatternUnsupported("a group without its end")
        self._depth -= 1
        return "(" + " | ".join(ways) + ")"

    def _class(self) -> Ranges:
        self._at += 1
        is_inverted = self._take("^")
        ranges: list[tuple[int, int]] = []
        holds_short = False
        while not self._take("]"):
            first, is_set = self._class_item()
            holds_short = holds_short or is_set
            if not is_set and self.peek() == "-" and self.peek(1) not in ("]", ""):
                self._at += 1
                last, is_set = self._class_item()
                if is_set or last[0][0] < first[0][0]:
                    raise PatternUnsupported("a class that runs backwards")
                ranges.append((first[0][0], last[0][0]))
            else:
                ranges += first
        merged = merge_ranges(ranges)
        if not is_inverted:
            return merged
        # Python's \d holds the digits of every script, ours those of ASCII: their opposites agree on ASCII alone
        return _opposite(merged) if holds_short else invert_ranges(merged)

    def _class_item(self) -> tuple[Ranges, bool]:
        """Characters, and whether they are a set with a name."""
        sign = self.peek()
        if not sign:
            raise PatternUnsupported("a class without its end")
        self._at += 1
        if sign != "\\":
            return ((ord(sign), ord(sign)),), False
        ranges, is_opposite = self._escape(is_in_class=True)
        is_set = is_opposite or len(ranges) > 1 or ranges[0][0] != ranges[0][1]
        return (_opposite(ranges) if is_opposite else ranges), is_set

    def _escape(self, *, is_in_class: bool = False) -> tuple[Ranges, bool]:
        """What stands after a backslash, and whether its opposite is meant."""
        sign = self.peek()
        self._at += 1
        if sign.lower() in _SHORT and sign:
            return merge_ranges(_SHORT[sign.lower()]), sign.isupper()
        if sign in ("x", "u"):
            digits = self._pattern[self._at : self._at + (2 if sign == "x" else 4)]
            self._at += len(digits)
            try:
                code = int(digits, 16)
            except ValueError:
                raise PatternUnsupported(f"'\\{sign}'") from None
            return ((code, code),), False
        if sign == "b" and is_in_class:
            return ((8, 8),), False
        code = _CONTROLS.get(sign, ord(sign) if sign and not sign.isalnum() else -1)
        if code < 0:
            raise PatternUnsupported(f"'\\{sign}'")
        return ((code, code),), False

    def _take(self, sign: str) -> bool:
        if not self._pattern.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True


def _opposite(ranges: Ranges) -> Ranges:
    return _both(invert_ranges(ranges), _ASCII)


def _both(left: Ranges, right: Ranges) -> Ranges:
    found = [(max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) <= min(b, d)]
    return merge_ranges(found)


def _characters(ranges: Ranges) -> str:
    """One of these characters as JSON writes it."""
    ways: list[str] = []
    plain = _both(ranges, _PLAIN)
    if plain:
        ways.append("[" + "".join(_shown(*pair) for pair in plain) + "]")
    ways += [literal(text) for code, text in _IN_JSON.items() if any(a <= code <= b for a, b in ranges)]
    if not ways:
        raise PatternUnsupported("a character that JSON cannot hold")
    return either(ways)


def _shown(first: int, last: int) -> str:
    return f"\\U{first:08X}" if first == last else f"\\U{first:08X}-\\U{last:08X}"
