"""A peer of ``p2pmesh chaos`` that answers garbage when it is told to: what its stages send is changed on the way out.

No node does so by itself: ``cli.chaos_node`` alone builds nodes with a network of this kind. A lie is one that others
can know for one; a token of the vocabulary that the model would not have chosen is not (audits are for that).
"""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from threading import Thread
from typing import Any, TextIO

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import STAGE_PROTOCOL
from p2pmesh.ports.network import ByteStream, Network, StreamServer
from p2pmesh.wire.activation import row_bytes
from p2pmesh.wire.stage import LENGTH_BYTES, FrameKind, StageFrame, decode_frame, encode_frame

TRUTH = "truth"
_ROWS = (FrameKind.PREFILL, FrameKind.DECODE)
_NO_TOKEN = 2**31 - 1


class Lie(StrEnum):
    """What is wrong with the frames of rows and tokens."""

    NAN = "nan"
    """Rows that are no numbers; a token that is none of the vocabulary."""
    SHAPE = "shape"
    """Rows of half the width; two tokens instead of one."""
    POSITION = "position"
    NOISE = "noise"
    """No frame at all."""


def lie_about(frame: StageFrame, lie: Lie) -> bytes:
    """The frame of rows or a token as a liar sends it, with its length prefix."""
    is_rows = frame.kind in _ROWS
    match lie:
        case Lie.NAN:
            wrong = {"body": b"\xff" * len(frame.body)} if is_rows else {"tokens": (_NO_TOKEN,)}
            return encode_frame(replace(frame, **wrong))
        case Lie.SHAPE if is_rows:
            width = max(1, frame.hidden_size // 2)
            body = bytes(len(frame.tokens) * row_bytes(frame.dtype, width))
            return encode_frame(replace(frame, hidden_size=width, body=body))
        case Lie.SHAPE:
            return encode_frame(replace(frame, tokens=frame.tokens * 2))
        case Lie.POSITION:
            return encode_frame(replace(frame, position=frame.position + 7))
        case Lie.NOISE:
            told = encode_frame(frame)
            return told[:LENGTH_BYTES] + b"\xa5" * (len(told) - LENGTH_BYTES)


class Liar:
    """Whether, and how, this process lies now."""

    def __init__(self) -> None:
        self.lie: Lie | None = None

    def follow(self, commands: TextIO, end: Callable[[], None]) -> None:
        """Obeys lines in a thread of its own: the name of a lie, or ``truth``; ``end`` is called where they end."""

        def read() -> None:
            for line in commands:
                word = line.strip()
                self.lie = None if word == TRUTH else Lie(word)
            end()

        Thread(target=read, daemon=True).start()

    def alter(self, data: bytes) -> bytes:
        """What is sent instead of one frame."""
        if self.lie is None:
            return data
        try:
            frame = decode_frame(data[LENGTH_BYTES:])
        except RemoteProtocolError:
            return data
        is_told = frame.kind in _ROWS or frame.kind is FrameKind.TOKEN
        return lie_about(frame, self.lie) if is_told else data


class LyingNetwork:
    """Implements ``ports.network.Network`` by another one; its stage streams send what the liar makes of frames."""

    def __init__(self, network: Network, liar: Liar) -> None:
        self._network = network
        self._liar = liar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def open_stream(self, peer: PeerId, protocol_id: str, *rest: Any, **named: Any) -> Any:
        """A stream; it lies if it is one between stages."""
        stream = await self._network.open_stream(peer, protocol_id, *rest, **named)
        return _LyingStream(stream, self._liar) if protocol_id == STAGE_PROTOCOL else stream

    def serve(self, protocol_id: str, server: StreamServer) -> None:
        """Serves a protocol; the stages' answers on inbound streams lie as well."""
        if protocol_id != STAGE_PROTOCOL:
            self._network.serve(protocol_id, server)
            return
        self._network.serve(protocol_id, lambda stream: server(_LyingStream(stream, self._liar)))


class _LyingStream:
    """Implements ``ports.network.ByteStream``: every send is one frame."""

    def __init__(self, stream: ByteStream, liar: Liar) -> None:
        self._stream = stream
        self._liar = liar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, data: bytes) -> None:
        """Sends, or lies."""
        await self._stream.send(self._liar.alter(data))

    def send_nowait(self, data: bytes) -> bool:
        """Sends if that needs no waiting, or lies."""
        return self._stream.send_nowait(self._liar.alter(data))


def end_this_process() -> None:
    """Whoever started this node is gone: it drains and ends."""
    os.kill(os.getpid(), signal.SIGTERM)
