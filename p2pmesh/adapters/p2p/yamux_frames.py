"""Frames of yamux (``/yamux/1.0.0``): their header, and reading them out of a byte stream that is cut anywhere.

What they mean for streams and windows is ``yamux``'s.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct("!BBHII")
_VERSION = 0
HEADER_BYTES = _HEADER.size
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
GO_AWAY_NORMAL, GO_AWAY_PROTOCOL_ERROR = 0, 1


class ProtocolViolation(Exception):
    """The peer sent what yamux forbids."""


def encode_header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """A whole frame of any kind but DATA, whose body follows."""
    return _HEADER.pack(_VERSION, kind, flags, stream_id, length)


class FramePart(NamedTuple):
    """A frame without a body, or the next bytes of a DATA frame's body (a tuple: each token makes some of them)."""

    kind: int
    flags: int
    stream_id: int
    length: int
    body: memoryview
    is_first: bool
    is_last: bool


_NO_BODY = memoryview(b"")


class FrameParser:
    """Frames out of a byte stream that is cut anywhere; holds at most one header, never a body."""

    def __init__(self) -> None:
        self._beginning = b""
        self._frame = (0, 0, 0, 0)
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """What ``data`` completes or continues, in order; ``ProtocolViolation`` for a header yamux does not know."""
        rest = memoryview(self._beginning + data if self._beginning else data)
        self._beginning = b""
        while rest:
            if self._missing:
                body, rest = rest[: self._missing], rest[self._missing :]
                self._missing -= len(body)
                yield FramePart(*self._frame, body, is_first=False, is_last=not self._missing)
                continue
            if len(rest) < HEADER_BYTES:
                self._beginning = bytes(rest)
                return
            version, kind, flags, stream_id, length = _HEADER.unpack_from(rest)
            rest = rest[HEADER_BYTES:]
            if version != _VERSION or kind > GO_AWAY:
                raise ProtocolViolation(f"a frame of version {version} and type {kind}")
            if kind == DATA and 0 < length <= len(rest):  # the whole frame is here: one part
                body, rest = rest[:length], rest[length:]
                yield FramePart(kind, flags, stream_id, length, body, is_first=True, is_last=True)
                continue
            self._frame = (kind, flags, stream_id, length)
            self._missing = length if kind == DATA else 0
            yield FramePart(*self._frame, _NO_BODY, is_first=True, is_last=not self._missing)
