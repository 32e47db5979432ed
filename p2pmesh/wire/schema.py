"""Declared shapes of msgpack maps: frozen dataclasses <-> plain values, every field with a limit.

A record is a frozen dataclass whose fields carry a ``Shape`` as metadata (``declared``). Decoding builds the record or
raises ``RemoteProtocolError(MESSAGE_MALFORMED)`` that names the field; unknown fields are left out. The reader and the
writer share one declaration, so they cannot drift apart: ``checked_map`` refuses to write what no reader would take.
Bytes to plain values, and their bounds, are ``wire.values``'.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, TypeVar

import msgpack

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.limits import MAX_MESSAGE_VALUES
from p2pmesh.wire.values import unpack_value

T = TypeVar("T")
_SHAPE = "shape"
_ABSENT = object()
# C0 and C1 controls, line separators, and the marks that reorder text: they would forge log lines and terminal output.
_HEX = re.compile("[0-9a-f]*")
_NOT_IN_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Shape(Protocol):
    """How one field looks on the wire."""

    def encode(self, value: Any) -> Any:
        """A msgpack value."""

    def decode(self, value: Any, where: str) -> Any:
        """The checked value; ``where`` names the field in errors."""


def malformed(where: str, problem: str) -> RemoteProtocolError:
    """The error of every rule in this module."""
    return RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, f"{where}: {problem}")


def is_line(text: str) -> bool:
    """Whether text can be shown in one line as it is: no control characters, no marks that reorder it."""
    return _NOT_IN_A_LINE.search(text) is None


def as_line(text: str, max_bytes: int) -> str:
    """``text`` made fit for a line of at most ``max_bytes`` of UTF-8, cut between characters."""
    shown = _NOT_IN_A_LINE.sub(" ", text).encode("utf-8", "replace")
    return shown[:max_bytes].decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class Text:
    """UTF-8 text of at most ``max_bytes``, optionally with a rule of its own."""

    max_bytes: int
    rule: Callable[[str], bool] | None = None

    def encode(self, value: Any) -> Any:
        return str(value)

    def decode(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise malformed(where, f"text expected, not {type(value).__name__}")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:  # a lone surrogate: only a writer of ours can hold one
            raise malformed(where, "text that has no UTF-8 form") from None
        if size > self.max_bytes:
            raise malformed(where, f"longer than {self.max_bytes} bytes")
        if self.rule is not None and not self.rule(value):
            raise malformed(where, "not of the right form")
        return value


@dataclass(frozen=True, slots=True)
class Line:
    """A line for a person, of at most ``max_bytes``: cut and cleaned by the writer, cleaned again by the reader."""

    max_bytes: int

    def encode(self, value: Any) -> Any:
        return as_line(str(value), self.max_bytes)

    def decode(self, value: Any, where: str) -> str:
        return as_line(Text(self.max_bytes).decode(value, where), self.max_bytes)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Between ``min_bytes`` and ``max_bytes`` raw bytes."""

    min_bytes: int
    max_bytes: int

    def encode(self, value: Any) -> Any:
        return bytes(value)

    def decode(self, value: Any, where: str) -> bytes:
        if not isinstance(value, bytes):
            raise malformed(where, f"bytes expected, not {type(value).__name__}")
        if not self.min_bytes <= len(value) <= self.max_bytes:
            raise malformed(where, f"{len(value)} bytes; allowed {self.min_bytes} to {self.max_bytes}")
        return value


@dataclass(frozen=True, slots=True)
class HexBytes:
    """Lower-case hex digits in the record, the ``count`` bytes that they mean on the wire: half as many."""

    count: int

    def encode(self, value: Any) -> Any:
        data = bytes.fromhex(value) if _HEX.fullmatch(value) and len(value) == 2 * self.count else None
        return value if data is None else data  # text, which no reader takes

    def decode(self, value: Any, where: str) -> str:
        data: bytes = Bytes(self.count, self.count).decode(value, where)
        return data.hex()


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in ``[lowest, highest]``."""

    lowest: int
    highest: int

    def encode(self, value: Any) -> Any:
        return int(value)

    def decode(self, value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise malformed(where, f"a whole number expected, not {type(value).__name__}")
        if not self.lowest <= value <= self.highest:
            raise malformed(where, f"{value} is not in {self.lowest} to {self.highest}")
        return value

    def fits_all(self, values: list[Any]) -> bool:
        """``decode`` of every item at once, for lists of hundreds of thousands."""
        return not values or (
            set(map(type, values)) == {int} and min(values) >= self.lowest and max(values) <= self.highest
        )


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    def encode(self, value: Any) -> Any:
        return bool(value)

    def decode(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise malformed(where, f"true or false expected, not {type(value).__name__}")
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number."""

    def encode(self, value: Any) -> Any:
        return float(value)

    def decode(self, value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise malformed(where, f"a number expected, not {type(value).__name__}")
        number = float(value)
        if not math.isfinite(number):
            raise malformed(where, "not a finite number")
        return number


@dataclass(frozen=True, slots=True)
class ListOf:
    """At most ``max_items`` items of one shape; a tuple in the record."""

    item: Shape
    max_items: int

    def encode(self, value: Any) -> Any:
        return [self.item.encode(item) for item in value]

    def decode(self, value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise malformed(where, f"a list expected, not {type(value).__name__}")
        if len(value) > self.max_items:
            raise malformed(where, f"{len(value)} items; allowed are {self.max_items}")
        if isinstance(self.item, Integer) and self.item.fits_all(value):
            return tuple(value)
        return tuple(self.item.decode(item, f"{where}[{index}]") for index, item in enumerate(value))


@dataclass(frozen=True, slots=True)
class Optional:
    """A shape or nil."""

    inner: Shape

    def encode(self, value: Any) -> Any:
        return None if value is None else self.inner.encode(value)

    def decode(self, value: Any, where: str) -> Any:
        return None if value is None else self.inner.decode(value, where)


@dataclass(frozen=True, slots=True)
class Record:
    """A nested record."""

    cls: type

    def encode(self, value: Any) -> Any:
        return to_map(value)

    def decode(self, value: Any, where: str) -> Any:
        return from_map(self.cls, value, where)


@dataclass(frozen=True, slots=True)
class Row:
    """A nested record as the list of its values in their order: for many small ones, whose names outweigh them."""

    cls: type

    def encode(self, value: Any) -> Any:
        return list(to_map(value).values())

    def decode(self, value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise malformed(where, f"a list expected, not {type(value).__name__}")
        names = [f.name for f in fields(self.cls)]
        if len(value) != len(names):
            raise malformed(where, f"{len(value)} values; a row of {self.cls.__name__} has {len(names)}")
        return from_map(self.cls, dict(zip(names, value, strict=True)), where)


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A row that later versions may make longer; without the values at its end that are defaults."""

    cls: type

    def encode(self, value: Any) -> Any:
        return to_open_row(value)

    def decode(self, value: Any, where: str) -> Any:
        return from_open_row(self.cls, value, where)


def declared(shape: Shape, default: Any = _ABSENT) -> Any:
    """A dataclass field of a record; with a default it may be missing on the wire."""
    if default is _ABSENT:
        return field(metadata={_SHAPE: shape})
    return field(default=default, metadata={_SHAPE: shape})


def to_map(record: Any) -> dict[str, Any]:
    """A record as a map of msgpack values."""
    return {f.name: f.metadata[_SHAPE].encode(getattr(record, f.name)) for f in fields(record)}


def checked_map(record: Any) -> dict[str, Any]:
    """``to_map`` of a record that every reader will take; else ``LocalProtocolError``, which is a bug of the caller."""
    plain = to_map(record)
    try:
        from_map(type(record), plain, type(record).__name__)
    except RemoteProtocolError as error:
        raise LocalProtocolError(error.code, f"not sent: {error.message}") from None
    return plain


def without_defaults(record: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """``plain``, the map of ``record``, without the fields that a reader fills in by itself."""
    defaults = {f.name: f.default for f in fields(record) if f.default is not f.default_factory}
    return {name: value for name, value in plain.items() if getattr(record, name) != defaults.get(name, _ABSENT)}


def to_open_row(record: Any) -> list[Any]:
    """A record as the list of its values, but for those at the end that a reader fills in by itself."""
    plain = to_map(record)
    present = without_defaults(record, plain)
    names = list(plain)
    while names and names[-1] not in present:
        names.pop()
    return [plain[name] for name in names]


def from_open_row(cls: type[T], value: Any, where: str) -> T:
    """The record of a decoded list: values that are missing at its end have their defaults, more are left out."""
    if not isinstance(value, list):
        raise malformed(where, f"a list expected, not {type(value).__name__}")
    assert is_dataclass(cls)
    names = [f.name for f in fields(cls)]
    return from_map(cls, dict(zip(names, value, strict=False)), where)


def from_map(cls: type[T], value: Any, where: str) -> T:
    """The record of a decoded map."""
    if not isinstance(value, dict):
        raise malformed(where, f"a map expected, not {type(value).__name__}")
    assert is_dataclass(cls)
    arguments: dict[str, Any] = {}
    for f in fields(cls):
        if f.name in value:
            arguments[f.name] = f.metadata[_SHAPE].decode(value[f.name], f"{where}.{f.name}")
        elif f.default is f.default_factory:  # both MISSING: the field is required
            raise malformed(where, f"field {f.name} is missing")
    return cls(**arguments)


def unpack(data: bytes | memoryview, where: str, max_values: int = MAX_MESSAGE_VALUES) -> Any:
    """One msgpack value that fills ``data`` exactly, bounded in depth and number; no extension types."""
    try:
        return unpack_value(data, max_values)
    except ValueError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise malformed(where, f"no msgpack value ({reason[:80]})") from None


def pack(value: Any) -> bytes:
    """Canonical enough for us: maps keep the order of declaration."""
    packed: bytes = msgpack.packb(value)
    return packed
