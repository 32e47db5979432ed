"""Messages between the node and an engine child, on their socket pair.

A message is ``u32 length`` (little-endian, of what follows), ``u8 kind``, then the payload: the bytes of a stage frame
(as after its own length prefix) for ``FRAME``, a msgpack map for every other kind. Both ends are this package at one
version, yet the node checks lengths and kinds: the child runs native code on a file from outside.
"""

from enum import IntEnum
from typing import Any

import msgpack

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_ENGINE_MESSAGE_BYTES
from p2pmesh.wire.schema import unpack

LENGTH_BYTES = 4
MAX_ENGINE_VALUES = 2**21  # the pieces of a vocabulary are one list


class EngineKind(IntEnum):
    """Direction in brackets: n = node to child, c = child to node."""

    FRAME = 0  # n, c
    LOAD = 1  # n: the fields of EngineSpec
    LOADED = 2  # c: the fields of EngineFacts
    FAILED = 3  # c: {code, message}; answers LOAD, then the child exits
    BEAT = 4  # c: every ENGINE_BEAT_MS, from a thread of its own
    CALL = 5  # n: {id, name, arguments}
    RESULT = 6  # c: {id, value} or {id, code, message}
    PARK = 7  # n: {}: the run is over, its sequences may be continued in another


_KINDS = {
    int(kind): kind for kind in EngineKind
}  # in the path of every token; calling the class costs several times it


def encode_message(kind: EngineKind, fields: dict[str, Any]) -> bytes:
    """A msgpack message with its prefix."""
    return frame_message(kind, msgpack.packb(fields))


def frame_message(kind: EngineKind, payload: bytes) -> bytes:
    """Payload bytes with prefix and kind."""
    return (len(payload) + 1).to_bytes(LENGTH_BYTES, "little") + bytes((kind,)) + payload


def decode_length(prefix: bytes | bytearray) -> int:
    """Checked length of what follows a prefix."""
    length = int.from_bytes(prefix, "little")
    if not 1 <= length <= MAX_ENGINE_MESSAGE_BYTES:
        raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, f"an engine message of {length} bytes")
    return length


def decode_kind(message: bytes | memoryview) -> tuple[EngineKind, memoryview]:
    """Kind and payload of a message without its prefix."""
    view = memoryview(message)
    if not len(view):
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "an engine message without a kind")
    kind = _KINDS.get(view[0])
    if kind is None:
        raise RemoteProtocolError(ErrorCode.MESSAGE_KIND_UNKNOWN, f"engine message kind {view[0]}")
    return kind, view[1:]


def decode_fields(payload: memoryview) -> dict[str, Any]:
    """The map of a msgpack message."""
    fields = unpack(payload, "an engine message", MAX_ENGINE_VALUES)
    if not isinstance(fields, dict):
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "an engine message that is no map")
    return fields
