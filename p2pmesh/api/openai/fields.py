"""Typed reading of a JSON object, with the parameter's name in each refusal.

Owns types and ranges. An explicit null counts as absent, as it does for OpenAI.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from p2pmesh.api.errors import RequestError, invalid_parameter
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.core.json_schema.checking import nests_beyond

_SHOWN_NAME_CHARACTERS = 64
_MAX_DEPTH = 256
"""Of objects and arrays within each other: what was read must also be written again, from deeper in the stack."""
_TYPE_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def describe_type(value: object) -> str:
    """A JSON value's type in words."""
    return _TYPE_NAMES.get(type(value), "a number")


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``; ``Refused(REQUEST_INVALID)`` for anything else.

    NaN and infinity (``1e999`` is one, once it is a double), nesting beyond ``_MAX_DEPTH`` and numbers of thousands of
    digits are refused here; lone surrogates, which JSON can hold and UTF-8 cannot, by ``check_text``, which knows the
    parameter.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also bad UTF-8 and over-long integers
        raise Refused(ErrorCode.REQUEST_INVALID, f"the body is not valid JSON: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise Refused(ErrorCode.REQUEST_INVALID, f"the body must be a JSON object, not {describe_type(value)}")
    if nests_beyond(value, _MAX_DEPTH):
        raise _too_deep()
    return value


def _too_deep() -> Refused:
    return Refused(ErrorCode.REQUEST_INVALID, f"the body's JSON is nested more than {_MAX_DEPTH} deep")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Refused(ErrorCode.REQUEST_INVALID, f"the body holds {digits[:32]}, a number beyond the range of a double")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _one_line(error: ValueError) -> str:
    """What is wrong, without the advice to a Python program that may follow a semicolon."""
    text = " ".join(str(error).encode("utf-8", "replace").decode().split(";")[0].split())
    return text[:200]


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object; ``path`` is where it stands in the body, ``""`` for the body itself."""

    values: Mapping[str, Any]
    path: str = ""

    def param(self, name: str) -> str:
        """The full name of a field, for a refusal."""
        return f"{self.path}.{name}" if self.path else name

    def shown_param(self, name: str) -> str:
        """The full name of a field that the client made up: short, and printable on one line."""
        printable = "".join(c if c.isprintable() else "?" for c in name[:_SHOWN_NAME_CHARACTERS])
        return self.param(printable)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def required_text(self, name: str, max_bytes: int) -> str:
        """A string of 1 to ``max_bytes`` bytes of UTF-8."""
        if not self.has(name):
            raise invalid_parameter(self.param(name), f"{self.param(name)} is required")
        return check_text(self.values[name], self.param(name), max_bytes)

    def boolean(self, name: str) -> bool:
        """A boolean, False when absent."""
        if not self.has(name):
            return False
        value = self.values[name]
        if not isinstance(value, bool):
            raise self._wrong_type(name, "a boolean")
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        """A whole number in ``[least, most]``, None when absent; 3.0 is a whole number in JSON."""
        number = self._number(name, "an integer")
        if number is None:
            return None
        if number != number // 1:
            raise self._wrong_type(name, "an integer")
        if not least <= number <= most:
            raise invalid_parameter(self.param(name), f"{self.param(name)} must be {least} to {most}")
        return int(number)

    def number(self, name: str) -> float | None:
        """A finite number, None when absent."""
        number = self._number(name, "a number")
        try:
            return None if number is None else float(number)
        except OverflowError:
            raise invalid_parameter(self.param(name), f"{self.param(name)} is out of range") from None

    def array(self, name: str, max_items: int) -> list[Any]:
        """A required array of 1 to ``max_items`` values."""
        value = self.values.get(name)
        if value is None:
            raise invalid_parameter(self.param(name), f"{self.param(name)} is required")
        if not isinstance(value, list):
            raise self._wrong_type(name, "an array")
        if not 1 <= len(value) <= max_items:
            raise invalid_parameter(
                self.param(name), f"{self.param(name)} must hold 1 to {max_items} values, not {len(value)}"
            )
        return value

    def object(self, name: str) -> "Fields | None":
        """A nested object, None when absent."""
        if not self.has(name):
            return None
        return as_fields(self.values[name], self.param(name))

    def _number(self, name: str, wanted: str) -> int | float | None:
        if not self.has(name):
            return None
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong_type(name, wanted)
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid_parameter(self.param(name), f"{self.param(name)} must be finite")
        return value

    def _wrong_type(self, name: str, wanted: str) -> RequestError:
        return wrong_type(self.values[name], self.param(name), wanted)


def wrong_type(value: object, param: str, wanted: str) -> RequestError:
    """The refusal of a value of another type than ``wanted``."""
    return invalid_parameter(param, f"{param} must be {wanted}, not {describe_type(value)}")


def as_fields(value: object, param: str) -> Fields:
    """``value`` as the fields of an object."""
    if not isinstance(value, dict):
        raise wrong_type(value, param, "an object")
    return Fields(value, param)


def check_text(value: object, param: str, max_bytes: int, *, may_be_empty: bool = False) -> str:
    """``value`` as a string of at most ``max_bytes`` bytes of UTF-8."""
    if not isinstance(value, str):
        raise wrong_type(value, param, "a string")
    if not value and not may_be_empty:
        raise invalid_parameter(param, f"{param} must not be empty")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise invalid_parameter(param, f"{param} holds half of a surrogate pair, which is no character") from None
    if size_bytes > max_bytes:
        raise invalid_parameter(param, f"{param} is longer than {max_bytes} bytes")
    return value
