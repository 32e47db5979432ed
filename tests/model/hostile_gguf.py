"""Hostile GGUF files from seeds: a sound tiny model with one thing about its header made wrong.

``hostile_file`` of one seed is the same file everywhere. Each kind of damage has a hostile choice of values; which
field of the kind and which value it is, the seed says.
"""

import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from p2pmesh.model.gguf import SCALAR_FORMATS, ValueType
from tests.fakes.tiny_gguf import TinyShape, encode_gguf, number, text, tiny_llama, zero_tensor

MODEL = tiny_llama(TinyShape(layers=2, hidden_size=32, feed_forward=32, head_width=8))
_HEAD_BYTES = 24


@dataclass(slots=True)
class Places:
    """Where the fields of each kind stand in a sound file."""

    found: dict[str, list[int]] = field(default_factory=dict)
    names: list[tuple[int, int]] = field(default_factory=list)
    header_bytes: int = 0

    def note(self, kind: str, offset: int) -> None:
        self.found.setdefault(kind, []).append(offset)


class _Walk:
    """Walks a sound file's header and notes what it passes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEAD_BYTES
        self.places = Places({"version": [4], "tensor_count": [8], "key_count": [16]})

    def run(self) -> Places:
        tensors, keys = struct.unpack_from("<QQ", self._data, 8)
        for _ in range(keys):
            self._text("key_length")
            self._value(self._number("I", "value_type"))
        for _ in range(tensors):
            start = self._at
            length = self._text("name_length")
            self.places.names.append((start + 8, length))
            for _ in range(self._number("I", "dimension_count")):
                self._number("Q", "dimension")
            self._number("I", "tensor_type")
            self._number("Q", "tensor_offset")
        self.places.header_bytes = self._at
        return self.places

    def _number(self, letter: str, kind: str) -> int:
        (value,) = struct.unpack_from("<" + letter, self._data, self._at)
        self.places.note(kind, self._at)
        self._at += struct.calcsize("<" + letter)
        return int(value)

    def _text(self, kind: str) -> int:
        length = self._number("Q", kind)
        self._at += length
        return length

    def _value(self, value_type: int) -> None:
        if value_type == ValueType.STRING:
            self._text("text_length")
        elif value_type == ValueType.ARRAY:
            element, count = self._number("I", "element_type"), self._number("Q", "array_count")
            for _ in range(count):
                if element == ValueType.STRING:
                    self._text("text_length")
                else:
                    self._at += struct.calcsize("<" + SCALAR_FORMATS[element])
        else:
            self._at += struct.calcsize("<" + SCALAR_FORMATS[value_type])


PLACES = _Walk(MODEL).run()
_HUGE = (2**63, 2**64 - 1, 2**40, 2**32 + 7, 2**62)

VALUES: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "version": ("I", (0, 1, 4, 0x03000000, 2**32 - 1)),
    "tensor_count": ("Q", (*_HUGE, 300_000, 10_000)),
    "key_count": ("Q", (*_HUGE, 70_000, 10_000)),
    "key_length": ("Q", (*_HUGE, 0, 70_000)),
    "text_length": ("Q", (*_HUGE, len(MODEL), 17 * 2**20)),
    "value_type": ("I", (13, 99, 2**32 - 1, 2**31)),
    "element_type": ("I", (13, 99, 2**32 - 1, int(ValueType.ARRAY))),
    "array_count": ("Q", (*_HUGE, 2**24, 2**20)),
    "name_length": ("Q", (*_HUGE, 0, 64, 4000)),
    "dimension_count": ("I", (0, 5, 2**31, 2**32 - 1)),
    "dimension": ("Q", (*_HUGE, 0, 2**64 - 32)),
    "tensor_type": ("I", (4, 5, 9, 36, 99, 2**32 - 1)),
    "tensor_offset": ("Q", (*_HUGE, 1, 31, 2**64 - 32)),
}
"""Values of a kind that no sound file has at any of its places."""


def _wrong_field(kind: str, draw: random.Random) -> bytes:
    letter, values = VALUES[kind]
    data = bytearray(MODEL)
    struct.pack_into("<" + letter, data, draw.choice(PLACES.found[kind]), draw.choice(values))
    return bytes(data)


def _truncated(draw: random.Random) -> bytes:
    end = PLACES.header_bytes if draw.random() < 0.7 else len(MODEL)
    return MODEL[: draw.randrange(0, end)]


def _duplicate_name(draw: random.Random) -> bytes:
    data = bytearray(MODEL)
    same_length = [[place for place, length in PLACES.names if length == size] for _, size in PLACES.names]
    source, target = draw.sample(draw.choice([places for places in same_length if len(places) > 1]), 2)
    (length,) = struct.unpack_from("<Q", data, source - 8)
    data[target : target + length] = data[source : source + length]
    return bytes(data)


def _overlap(draw: random.Random) -> bytes:
    """A tensor that claims the place of an earlier one."""
    data = bytearray(MODEL)
    offsets = PLACES.found["tensor_offset"]
    later = draw.randrange(2, len(offsets))
    data[offsets[later] : offsets[later] + 8] = data[offsets[later - 2] : offsets[later - 2] + 8]
    return bytes(data)


def _alignment(draw: random.Random) -> bytes:
    tensors = [zero_tensor("token_embd.weight", (8, 4)), zero_tensor("blk.0.attn_norm.weight", (8,))]
    if draw.random() < 0.3:
        key = text("general.alignment", "32")
    else:
        key = number("general.alignment", draw.choice((0, 3, 33, 131_072, 2**31, 2**32 - 1)))
    return encode_gguf([text("general.architecture", "llama"), number("llama.block_count", 1), key], tensors)


def _name_bytes(draw: random.Random) -> bytes:
    """Names that are no text, or would write to a terminal."""
    data = bytearray(MODEL)
    place, length = draw.choice(PLACES.names)
    data[place + draw.randrange(length)] = draw.choice((0xFF, 0x00, 0x1B, 0x0A, 0x80))
    return bytes(data)


def _model_key(draw: random.Random) -> bytes:
    """Metadata of a wrong type or an impossible value, in a file that is sound otherwise."""
    facts: dict[str, object] = {
        "llama.block_count": 1,
        "llama.embedding_length": 8,
        "llama.attention.head_count": 2,
        "llama.context_length": 64,
    }
    facts[draw.choice(("llama.block_count", "llama.embedding_length"))] = draw.choice((0, 2**32 - 1, "4", 70_000))
    if draw.random() < 0.3:
        facts["llama.attention.head_count"] = draw.choice((0, "2"))
    keys = [
        text(key, value) if isinstance(value, str) else number(key, int(str(value))) for key, value in facts.items()
    ]
    tensors = [zero_tensor("token_embd.weight", (8, 4)), zero_tensor("blk.0.attn_norm.weight", (8,))]
    return encode_gguf([text("general.architecture", "llama"), *keys], tensors)


def _magic(draw: random.Random) -> bytes:
    return draw.choice((b"GGUX", b"\0\0\0\0", b"ggml", b"FUGG")) + MODEL[4:]


def _duplicate_key(draw: random.Random) -> bytes:
    key = draw.choice(("general.name", "llama.block_count"))
    return encode_gguf([text("general.architecture", "llama"), number(key, 1), number(key, draw.randrange(9))])


_Make = Callable[[random.Random], bytes]


def _of_kind(kind: str) -> _Make:
    return lambda draw: _wrong_field(kind, draw)


KINDS: Mapping[str, _Make] = {
    **{kind: _of_kind(kind) for kind in VALUES},
    "truncated": _truncated,
    "duplicate_name": _duplicate_name,
    "overlap": _overlap,
    "alignment": _alignment,
    "name_bytes": _name_bytes,
    "model_key": _model_key,
    "magic": _magic,
    "duplicate_key": _duplicate_key,
}


def hostile_file(seed: int) -> tuple[str, bytes]:
    """The kind of damage, and the file."""
    kind = list(KINDS)[seed % len(KINDS)]
    return kind, KINDS[kind](random.Random(seed))
