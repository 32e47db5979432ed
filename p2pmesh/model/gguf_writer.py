"""GGUF: metadata and tensor shapes -> the bytes of a header. Version 3, little-endian.

For files that this package makes itself (tiny models). A stage file copies the records of its model instead, see
``stage_file``.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2pmesh.model.gguf import DEFAULT_ALIGNMENT, MAGIC, ValueType, padded

Value = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]
"""A metadata value: whole numbers are written in 32 bits (64 where they need them), real ones in 32."""

_VERSION = 3


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor to come: dimensions in ggml order (fastest first), ggml type number, bytes of its data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    size_bytes: int


def encode_header(metadata: Mapping[str, Value], tensors: Sequence[TensorShape] = ()) -> bytes:
    """Everything before the tensor data, which follows in order, each tensor padded to ``DEFAULT_ALIGNMENT``."""
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    parts += [_text(key) + _typed(value) for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        dimensions = len(tensor.shape)
        shape = struct.pack(f"<I{dimensions}Q", dimensions, *tensor.shape)
        parts.append(_text(tensor.name) + shape + struct.pack("<IQ", tensor.ggml_type, offset))
        offset += padded(tensor.size_bytes, DEFAULT_ALIGNMENT)
    header = b"".join(parts)
    return header.ljust(padded(len(header), DEFAULT_ALIGNMENT), b"\0")


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
        return _text(str(value))
    letters = {ValueType.BOOL: "?", ValueType.UINT32: "I", ValueType.UINT64: "Q", ValueType.FLOAT32: "f"}
    return struct.pack("<" + letters[kind], value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
