"""GGUF: bytes -> index (metadata, tensor directory, exact byte sizes).

Pure: reads from a ``Source`` that the caller opened; never touches a file system. Every count and length from the file
is checked against a limit and against the file's size before memory is spent on it. Long arrays (a vocabulary) are
walked, not kept: their value is ``None`` and their bytes stay in the file, at ``MetadataValue.record``.

Owns the format, and facts that are the same for every architecture. What a particular architecture means by its keys
is in ``families``; writing is in ``stage_file``. Versions 2 and 3, little-endian.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from p2pmesh.base import limits
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.quantities import MIB
from p2pmesh.model.tensor_types import TENSOR_TYPES, tensor_bytes

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

_MAX_ALIGNMENT = 65_536
_MAX_NAME_BYTES = 65_535
_MAX_TENSOR_NAME_BYTES = 63
_MAX_DIMENSIONS = 4
_MAX_INLINE_ITEMS = 4096
"""Longer arrays stay in the file. Above ``MAX_LAYERS``, so that every per-layer array is at hand."""
_MAX_INLINE_BYTES = 64 * MIB
_WINDOW_BYTES = MIB
_MAX_ELEMENTS = 2**62


class ValueType(IntEnum):
    """GGUF metadata value types."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_FORMATS: Mapping[int, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
"""``struct`` letters of the fixed-size types."""


class Source(Protocol):
    """Random access to the bytes of one file."""

    @property
    def size_bytes(self) -> int:
        """Length of the file."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``[offset, offset + size_bytes)`` of a file."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its dimensions in ggml order (fastest first), ggml type number, and place in the file (absolute)."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """A metadata value with its GGUF type; ``element_type`` is set for arrays, whose value is a tuple.

    An array of more than 4,096 items is not kept: its value is ``None``, ``count`` its length. ``record`` is the place
    of the whole entry (key, types, value) in the file, for copying it unchanged.
    """

    value_type: int
    value: object
    element_type: int | None = None
    count: int = 1
    record: Span = Span(0, 0)


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """All of a GGUF but the tensor data."""

    version: int
    alignment: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorEntry, ...]
    data_offset: int
    size_bytes: int

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        entry = self.metadata.get("general.architecture")
        if entry is None or not isinstance(entry.value, str) or not entry.value:
            raise _invalid("it names no architecture (general.architecture)")
        return entry.value

    @property
    def name(self) -> str:
        """``general.name``, or an empty text."""
        entry = self.metadata.get("general.name")
        return entry.value if entry is not None and isinstance(entry.value, str) else ""

    @property
    def layer_count(self) -> int:
        """``<arch>.block_count`` less ``predictor_count``."""
        count = self.required_number("block_count") - self.predictor_count
        if not 1 <= count <= limits.MAX_LAYERS:
            raise _invalid(f"it claims {count} layers; 1 to {limits.MAX_LAYERS} are possible")
        return count

    @property
    def predictor_count(self) -> int:
        """``<arch>.nextn_predict_layers``: trailing layers that predict further tokens and are not served."""
        return self.number("nextn_predict_layers") or 0

    @property
    def hidden_size(self) -> int:
        """``<arch>.embedding_length``."""
        size = self.required_number("embedding_length")
        if not 1 <= size <= limits.MAX_HIDDEN_SIZE:
            raise _invalid(f"it claims a hidden size of {size}; 1 to {limits.MAX_HIDDEN_SIZE} are possible")
        return size

    @property
    def context_length(self) -> int:
        """``<arch>.context_length``, the tokens it was trained for; 0 where it does not say."""
        return self.number("context_length") or 0

    @property
    def sliding_window(self) -> int:
        """``<arch>.attention.sliding_window`` in tokens; 0 without one."""
        return self.number("attention.sliding_window") or 0

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Attention heads of each layer."""
        return self.per_layer("attention.head_count")

    @property
    def kv_head_counts(self) -> tuple[int, ...]:
        """Key and value heads of each layer; as many as there are attention heads where it does not say."""
        if self.key("attention.head_count_kv") not in self.metadata:
            return self.head_counts
        return self.per_layer("attention.head_count_kv")

    @property
    def key_length(self) -> int:
        """Width of one key head."""
        return self.number("attention.key_length") or self._default_head_width()

    @property
    def value_length(self) -> int:
        """Width of one value head."""
        return self.number("attention.value_length") or self._default_head_width()

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the vocabulary: the tokenizer's list, else ``<arch>.vocab_size``; 0 without either."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if tokens is not None and tokens.element_type is not None:
            return tokens.count
        return self.number("vocab_size") or 0

    def key(self, suffix: str) -> str:
        """The metadata key ``<arch>.<suffix>``."""
        return f"{self.architecture}.{suffix}"

    def number(self, suffix: str) -> int | None:
        """The integer at ``<arch>.<suffix>``; ``None`` where it is missing."""
        entry = self.metadata.get(self.key(suffix))
        if entry is None:
            return None
        if isinstance(entry.value, bool) or not isinstance(entry.value, int) or entry.value < 0:
            raise _invalid(f"{self.key(suffix)} is not a whole number")
        return entry.value

    def required_number(self, suffix: str) -> int:
        """The integer at ``<arch>.<suffix>``; ``GGUF_INVALID`` where it is missing."""
        value = self.number(suffix)
        if value is None:
            raise _invalid(f"it has no {self.key(suffix)}")
        return value

    def per_layer(self, suffix: str) -> tuple[int, ...]:
        """One integer per layer from ``<arch>.<suffix>``, which may be one number for all or an array."""
        entry = self.metadata.get(self.key(suffix))
        if entry is None or entry.element_type is None:
            return (self.required_number(suffix),) * self.layer_count
        items = entry.value if isinstance(entry.value, tuple) else ()
        whole = tuple(item for item in items if isinstance(item, int) and item >= 0)
        if len(whole) != entry.count or len(whole) < self.layer_count:
            raise _invalid(f"{self.key(suffix)} is not one whole number per layer")
        return whole[: self.layer_count]

    def find_tensor(self, name: str) -> TensorEntry | None:
        """The tensor of this name, if any."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def _default_head_width(self) -> int:
        heads = max(self.head_counts)  # a hybrid says 0 for its layers without attention
        if heads == 0:
            raise _invalid(f"{self.key('attention.head_count')} is 0")
        return self.hidden_size // heads


def layer_of_tensor(name: str) -> tuple[int, str] | None:
    """Layer number and remaining name of ``blk.<n>.<rest>``; ``None`` for a tensor that belongs to no layer."""
    prefix, _, after = name.partition(".")
    number, _, rest = after.partition(".")
    if prefix != "blk" or not number.isascii() or not number.isdigit() or not rest:
        return None
    return int(number), rest


def read_index(source: Source) -> GgufIndex:
    """Reads header, metadata and tensor directory; no tensor data.

    Raises ``RemoteProtocolError`` with ``GGUF_NOT_GGUF``, ``GGUF_TRUNCATED`` (saying which byte is missing) or
    ``GGUF_INVALID``.
    """
    version, tensor_count, key_count, cursor = _read_header(source)
    metadata = _read_metadata(cursor, key_count)
    alignment = _alignment(metadata)
    declarations = [_read_declaration(cursor) for _ in range(tensor_count)]
    data_offset = padded(cursor.position, alignment)
    tensors = _place_tensors(declarations, data_offset, alignment)
    _check_complete(tensors, source.size_bytes)
    return GgufIndex(version, alignment, metadata, tensors, data_offset, source.size_bytes)


def padded(size_bytes: int, alignment: int) -> int:
    """``size_bytes`` rounded up to a multiple of ``alignment``."""
    return -(-size_bytes // alignment) * alignment


def _invalid(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.GGUF_INVALID, message)


def _truncated(size_bytes: int, what: str, end: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        ErrorCode.GGUF_TRUNCATED,
        f"the file ends at byte {size_bytes} but {what} needs bytes up to {end}: download it again",
    )


class _Cursor:
    """Reads forward through a source, one window at a time, and counts what the index keeps in memory."""

    __slots__ = ("_inline_bytes", "_source", "_window", "_window_offset", "position")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._window = b""
        self._window_offset = 0
        self._inline_bytes = 0
        self.position = 0

    def take(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes."""
        end = self.position + count
        self._check_end(end, what)
        start = self.position - self._window_offset
        if not 0 <= start <= len(self._window) - count:
            self._window = self._source.read_at(self.position, max(count, _WINDOW_BYTES))
            self._window_offset = self.position
            start = 0
            if len(self._window) < count:
                raise _truncated(self.position + len(self._window), what, end)
        self.position = end
        return self._window[start : start + count]

    def skip(self, count: int, what: str) -> None:
        """Passes over ``count`` bytes without reading them."""
        self._check_end(self.position + count, what)
        self.position += count

    def keep(self, count: int) -> None:
        """Charges ``count`` bytes that the index will hold; refuses a file that would fill memory with them."""
        self._inline_bytes += count
        if self._inline_bytes > _MAX_INLINE_BYTES:
            raise _invalid(f"its metadata texts take more than {_MAX_INLINE_BYTES} bytes")

    def number(self, letter: str, what: str) -> int:
        """One little-endian integer of a ``struct`` letter."""
        (value,) = struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter), what))
        return int(value)

    def text_bytes(self, max_bytes: int, what: str) -> bytes:
        """A length-prefixed string of at most ``max_bytes``."""
        length = self.number("Q", what)
        if length > max_bytes:
            raise _invalid(f"{what} has {length} bytes; {max_bytes} are possible")
        return self.take(length, what)

    def skip_texts(self, count: int, what: str) -> None:
        """Passes over ``count`` length-prefixed strings, checking every length."""
        left = count
        while left:
            self.skip(0, what)
            window = self.take(min(_WINDOW_BYTES, max(8, self._source.size_bytes - self.position)), what)
            start = self.position - len(window)
            passed, done = _pass_texts(window, left, what)
            self.position = start
            self.skip(passed, what)
            left -= done

    def _check_end(self, end: int, what: str) -> None:
        if end > self._source.size_bytes:
            raise _truncated(self._source.size_bytes, what, end)
        if end > limits.MAX_GGUF_HEADER_BYTES:
            raise _invalid(f"its header goes on beyond {limits.MAX_GGUF_HEADER_BYTES} bytes")


def _pass_texts(window: bytes, most: int, what: str) -> tuple[int, int]:
    """Bytes and number of the length-prefixed strings that start in ``window``; the last may end beyond it."""
    position = done = 0
    last_start = len(window) - 8
    while done < most and position <= last_start:
        length = int.from_bytes(window[position : position + 8], "little")
        if length > limits.MAX_GGUF_STRING_BYTES:
            raise _invalid(f"a text of {what} has {length} bytes; {limits.MAX_GGUF_STRING_BYTES} are possible")
        position += 8 + length
        done += 1
    return position, done


def _read_header(source: Source) -> tuple[int, int, int, _Cursor]:
    magic = source.read_at(0, len(MAGIC))
    if not magic or not MAGIC.startswith(magic):
        reason = "the file is empty" if not magic else f"it begins with {magic!r} instead of {MAGIC!r}"
        raise RemoteProtocolError(ErrorCode.GGUF_NOT_GGUF, f"not a GGUF model: {reason}")
    cursor = _Cursor(source)
    cursor.skip(len(MAGIC), "the header")
    version = cursor.number("I", "the header")
    if version & 0xFFFF == 0:
        raise _invalid("it is big-endian; convert it to little-endian")
    if version not in (2, 3):
        raise _invalid(f"it is GGUF version {version}; versions 2 and 3 are supported")
    tensor_count = cursor.number("Q", "the header")
    key_count = cursor.number("Q", "the header")
    if tensor_count > limits.MAX_GGUF_TENSORS:
        raise _invalid(f"it claims {tensor_count} tensors; {limits.MAX_GGUF_TENSORS} are possible")
    if key_count > limits.MAX_GGUF_METADATA_KEYS:
        raise _invalid(f"it claims {key_count} metadata keys; {limits.MAX_GGUF_METADATA_KEYS} are possible")
    return version, tensor_count, key_count, cursor


def _read_metadata(cursor: _Cursor, key_count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for number in range(key_count):
        start = cursor.position
        key = _name(cursor, _MAX_NAME_BYTES, f"metadata key {number}")
        if key in metadata:
            raise _invalid(f"metadata key {key} occurs twice")
        value_type, value, element_type, count = _read_value(cursor, key)
        record = Span(start, cursor.position - start)
        metadata[key] = MetadataValue(value_type, value, element_type, count, record)
    return metadata


def _name(cursor: _Cursor, max_bytes: int, what: str) -> str:
    raw = cursor.text_bytes(max_bytes, what)
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise _invalid(f"{what} is not UTF-8") from None
    if not name or not name.isprintable():
        raise _invalid(f"{what} is empty or holds control characters")
    cursor.keep(len(raw))
    return name


def _read_value(cursor: _Cursor, key: str) -> tuple[int, object, int | None, int]:
    value_type = cursor.number("I", key)
    if value_type == ValueType.ARRAY:
        element_type = cursor.number("I", key)
        count = cursor.number("Q", key)
        return value_type, _read_array(cursor, key, element_type, count), element_type, count
    if value_type == ValueType.STRING:
        return value_type, _read_text(cursor, key), None, 1
    letter = _letter(value_type, key)
    (value,) = struct.unpack("<" + letter, cursor.take(struct.calcsize("<" + letter), key))
    return value_type, value, None, 1


def _read_array(cursor: _Cursor, key: str, element_type: int, count: int) -> object:
    if count > limits.MAX_GGUF_ARRAY_ITEMS:
        raise _invalid(f"{key} claims {count} items; {limits.MAX_GGUF_ARRAY_ITEMS} are possible")
    if element_type == ValueType.STRING:
        if count > _MAX_INLINE_ITEMS:
            cursor.skip_texts(count, key)
            return None
        return tuple(_read_text(cursor, key) for _ in range(count))
    letter = _letter(element_type, key)
    size_bytes = count * struct.calcsize("<" + letter)
    if count > _MAX_INLINE_ITEMS:
        cursor.skip(size_bytes, key)
        return None
    cursor.keep(size_bytes)
    return struct.unpack(f"<{count}{letter}", cursor.take(size_bytes, key))


def _read_text(cursor: _Cursor, key: str) -> str:
    raw = cursor.text_bytes(limits.MAX_GGUF_STRING_BYTES, key)
    cursor.keep(len(raw))
    # A vocabulary may hold half characters; whoever needs the exact bytes copies the record.
    return raw.decode(errors="replace")


def _letter(value_type: int, key: str) -> str:
    letter = SCALAR_FORMATS.get(value_type)
    if letter is None:
        raise _invalid(f"{key} has the unknown value type {value_type}")
    return letter


def _alignment(metadata: Mapping[str, MetadataValue]) -> int:
    entry = metadata.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if entry.value_type != ValueType.UINT32 or not isinstance(value, int):
        raise _invalid(f"{ALIGNMENT_KEY} is not a 32-bit number")
    if not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise _invalid(f"{ALIGNMENT_KEY} is {value}, which is no power of two up to {_MAX_ALIGNMENT}")
    return value


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A tensor as the directory states it; ``offset`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    size_bytes: int


def _read_declaration(cursor: _Cursor) -> _Declaration:
    name = _name(cursor, _MAX_TENSOR_NAME_BYTES, "a tensor name")
    dimensions = cursor.number("I", name)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise _invalid(f"tensor {name} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    shape = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, name))
    ggml_type = cursor.number("I", name)
    offset = cursor.number("Q", name)
    return _Declaration(name, shape, ggml_type, offset, _declared_bytes(name, shape, ggml_type))


def _declared_bytes(name: str, shape: tuple[int, ...], ggml_type: int) -> int:
    elements = 1
    for length in shape:
        elements *= length
    if not 1 <= elements <= _MAX_ELEMENTS:
        raise _invalid(f"tensor {name} has {elements} elements, which no tensor can have")
    tensor_type = TENSOR_TYPES.get(ggml_type)
    if tensor_type is None:
        raise _invalid(f"tensor {name} has the unknown ggml type {ggml_type}")
    try:
        return tensor_bytes(tensor_type, shape)
    except ValueError as error:
        raise _invalid(f"tensor {name}: {error}") from None


def _place_tensors(declarations: list[_Declaration], data_offset: int, alignment: int) -> tuple[TensorEntry, ...]:
    """Absolute places. llama.cpp wants the tensors in order, gapless up to alignment; so nothing can overlap."""
    tensors: list[TensorEntry] = []
    names: set[str] = set()
    expected = 0
    for tensor in declarations:
        if tensor.name in names:
            raise _invalid(f"tensor {tensor.name} occurs twice")
        if tensor.offset != expected:
            raise _invalid(f"tensor {tensor.name} stands at data byte {tensor.offset} instead of {expected}")
        names.add(tensor.name)
        place = data_offset + tensor.offset
        tensors.append(TensorEntry(tensor.name, tensor.shape, tensor.ggml_type, place, tensor.size_bytes))
        expected = padded(expected + tensor.size_bytes, alignment)
    return tuple(tensors)


def _check_complete(tensors: tuple[TensorEntry, ...], size_bytes: int) -> None:
    for tensor in tensors:
        if tensor.offset + tensor.size_bytes > size_bytes:
            last = tensors[-1]
            missing = last.offset + last.size_bytes - size_bytes
            what = f"tensor {tensor.name} (of a file that lacks {missing} bytes)"
            raise _truncated(size_bytes, what, tensor.offset + tensor.size_bytes)
