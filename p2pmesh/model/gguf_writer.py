"""GGUF: metadata and tensor shapes -> the bytes of a header, whole or by its parts. Version 3, little-endian.

A whole header is for files that this package makes itself (tiny models). Stage files, fragments of packages and joined
parts copy the records of their model instead, and take the other parts from here.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2pmesh.model.gguf import DEFAULT_ALIGNMENT, MAGIC, ValueType, padded

Value = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]
"""A metadata value: whole numbers are written in 32 bits (64 where they need them), real ones in 32."""

GGUF_VERSION = 3


class Declared(Protocol):
    """A tensor as the directory states it: dimensions in ggml order, ggml type number, bytes of its data."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, fastest first."""

    @property
    def ggml_type(self) -> int:
        """Number of its type."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its data, without padding."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor to come: dimensions in ggml order (fastest first), ggml type number, bytes of its data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    size_bytes: int


def encode_header(metadata: Mapping[str, Value], tensors: Sequence[TensorShape] = ()) -> bytes:
    """Everything before the tensor data, which follows in order, each tensor padded to ``DEFAULT_ALIGNMENT``."""
    records = b"".join(encode_text(key) + _typed(value) for key, value in metadata.items())
    header = encode_head(len(tensors), len(metadata)) + records + encode_directory(tensors, DEFAULT_ALIGNMENT)
    return header.ljust(padded(len(header), DEFAULT_ALIGNMENT), b"\0")


def encode_head(tensor_count: int, record_count: int, version: int = GGUF_VERSION) -> bytes:
    """What a file begins with; records of metadata follow."""
    return MAGIC + struct.pack("<IQQ", version, tensor_count, record_count)


def encode_directory(tensors: Iterable[Declared], alignment: int) -> bytes:
    """Where each tensor stands, counted from the first one's data; they follow in order, each padded."""
    parts: list[bytes] = []
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts.append(encode_text(tensor.name) + shape + struct.pack("<IQ", tensor.ggml_type, offset))
        offset = padded(offset + tensor.size_bytes, alignment)
    return b"".join(parts)


def encode_text(text: str) -> bytes:
    """Its length and its bytes."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Value) -> bytes:
    if isinstance(value, (bool, int, float, str)):
        kind = _kind(value)
        return struct.pack("<I", kind) + _scalar(kind, value)
    items: list[bool | int | float | str] = list(value)
    kind = max((_kind(item) for item in items), default=ValueType.UINT32)
    body = b"".join(_scalar(kind, item) for item in items)
    return struct.pack("<IIQ", ValueType.ARRAY, kind, len(items)) + body


def _kind(value: bool | int | float | str) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return ValueType.UINT32 if value < 2**32 else ValueType.UINT64
    return ValueType.FLOAT32 if isinstance(value, float) else ValueType.STRING


def _scalar(kind: ValueType, value: bool | int | float | str) -> bytes:
    if kind is ValueType.STRING:
        return encode_text(str(value))
    letters = {ValueType.BOOL: "?", ValueType.UINT32: "I", ValueType.UINT64: "Q", ValueType.FLOAT32: "f"}
    return struct.pack("<" + letters[kind], value)
