"""Messages and frames over byte streams, each receive and send with a deadline.

Every refusal and every ERROR frame leaves this node through here, and without the local paths that its text may hold:
what our own events and logs say keeps them.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import trio

from p2pmesh.base.errors import ErrorCode, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_RETRY_AFTER_S
from p2pmesh.node.outlet import Outlet
from p2pmesh.ports.network import ByteStream
from p2pmesh.wire.control import decode_control, encode_control
from p2pmesh.wire.messages.answers import Refusal
from p2pmesh.wire.stage import (
    HEADER_BYTES,
    LENGTH_BYTES,
    FrameKind,
    StageFrame,
    decode_error,
    decode_frame,
    decode_length,
    encode_frame,
    error_frame,
)
from p2pmesh.wire.varint import decode_varint

M = TypeVar("M")
SEND_TIMEOUT_S = 20.0
MAX_FRAMES_AT_ONCE = 64
"""A reader that never comes to an end lets no other task run."""
MAX_TEXT_CHARACTERS = 4000
"""Of a text before its paths are taken out; messages and frames carry less."""

_CLAUSE_END = r"[:;,]\s"
_LOCAL_PATH = re.compile(
    r"(?<![\w.~/\\-])"  # not within a word, a relative path or a multiaddress
    r"(?!(?<=[a-z]:)//\w)"  # no URL
    r"(?:file://)?"
    r"(?!/(?:ip4|ip6|dns|dns4|dns6|dnsaddr|p2p|mesh-llm|skippy-stage)/)"
    r"(?:~?/|~?\\|[A-Za-z]:[/\\])(?=\S)"
    rf"(?:(?:(?!{_CLAUSE_END}).)*[/\\])?"  # directories may hold spaces, so up to the last separator of the clause
    r"(?P<last>\S*?)(?=[:;,.)\]'\"]*(?:\s|$))",
    re.DOTALL,
)


class MessageStream:
    """``/mesh-llm/1`` messages on one stream."""

    def __init__(self, stream: ByteStream, limit_bytes: int = MAX_CONTROL_MESSAGE_BYTES) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._send_lock = trio.Lock()

    @property
    def remote_peer(self) -> PeerId:
        """The peer at the other end."""
        return self._stream.remote_peer

    async def send(self, message: Any, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """One message; ``PeerUnavailable`` when the peer is gone or does not read in time."""
        if isinstance(message, Refusal):
            message = replace(message, message=without_paths(message.message))
        data = encode_control(message)
        if not self._send_lock.locked() and self._stream.send_nowait(data):
            return
        with _deadline(timeout_s, self.remote_peer, "does not read"):
            async with self._send_lock:
                await self._stream.send(data)

    async def receive(self, timeout_s: float) -> Any:
        """The next message; ``RemoteProtocolError`` for a bad one."""
        try:
            with _deadline(timeout_s, self.remote_peer, "does not answer"):
                length = None
                prefix = b""
                while length is None:
                    prefix += self._stream.receive_nowait(1) or await self._stream.receive_exactly(1)
                    length = decode_varint(prefix, self._limit_bytes)
                return decode_control(self._stream.receive_nowait(length) or await self._stream.receive_exactly(length))
        except RemoteProtocolError as error:
            error.culprit = self.remote_peer
            raise

    async def expect(self, kind: type[M], timeout_s: float) -> M:
        """The next message, which must be of ``kind``; a refusal is raised as the error it carries."""
        message = await self.receive(timeout_s)
        if isinstance(message, Refusal):
            raise error_of(message)
        if not isinstance(message, kind):
            text = f"{type(message).__name__} where {kind.__name__} was due"
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, text, culprit=self.remote_peer)
        return message

    async def finish(self) -> None:
        """Half-closes."""
        await self._stream.finish()

    async def reset(self) -> None:
        """Aborts."""
        await self._stream.reset()


class FrameStream:
    """``/skippy-stage/2`` frames on one stream; sends of several tasks do not interleave."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._send_lock = trio.Lock()
        self._prefix = b""
        """Of a frame whose rest was not here yet."""
        self.outlet = Outlet(self._send_all)
        """What all frames go through."""

    @property
    def remote_peer(self) -> PeerId:
        """The peer at the other end."""
        return self._stream.remote_peer

    async def send(self, frame: StageFrame) -> None:
        """One frame; ``PeerUnavailable`` when the peer is gone or does not read in time."""
        await self.outlet.send(frame)

    async def _send_all(self, frames: Sequence[StageFrame]) -> None:
        data = b"".join([_encoded(frame) for frame in frames])
        if not self._send_lock.locked() and self._stream.send_nowait(data):
            return
        with _deadline(SEND_TIMEOUT_S, self.remote_peer, "does not read"):
            async with self._send_lock:
                await self._stream.send(data)

    async def receive_all(self) -> list[StageFrame]:
        """The next frame and the whole ones that came with it, ``MAX_FRAMES_AT_ONCE`` at most; as ``receive``."""
        frames = [await self.receive()]
        try:
            while len(frames) < MAX_FRAMES_AT_ONCE and (frame := self._receive_nowait()) is not None:
                frames.append(frame)
        except RemoteProtocolError as error:
            error.culprit = self.remote_peer
            raise
        return frames

    def _receive_nowait(self) -> StageFrame | None:
        """The next frame if all of it is here."""
        self._prefix = self._prefix or self._stream.receive_nowait(LENGTH_BYTES) or b""
        data = self._stream.receive_nowait(decode_length(self._prefix)) if self._prefix else None
        if data is None:
            return None
        self._prefix = b""
        return decode_frame(data)

    async def receive(self) -> StageFrame:
        """The next frame. No deadline: an idle stage hears nothing; a dead peer ends the stream."""
        try:
            prefix = self._prefix or await self._stream.receive_exactly(LENGTH_BYTES)
            self._prefix = b""
            length = decode_length(prefix)
            return decode_frame(self._stream.receive_nowait(length) or await self._stream.receive_exactly(length))
        except RemoteProtocolError as error:
            error.culprit = self.remote_peer
            raise

    async def receive_opening(self) -> StageFrame:
        """The first frame of a stream, which has no body: whoever opened it need not be who may send one."""
        try:
            length = _opening_length(await self._stream.receive_exactly(LENGTH_BYTES))
            return decode_frame(await self._stream.receive_exactly(length))
        except RemoteProtocolError as error:
            error.culprit = self.remote_peer
            raise

    async def finish(self) -> None:
        """Half-closes."""
        await self._stream.finish()

    async def reset(self) -> None:
        """Aborts."""
        await self._stream.reset()


def _encoded(frame: StageFrame) -> bytes:
    if frame.kind is FrameKind.ERROR:
        code, text = decode_error(frame)
        frame = error_frame(frame, code, without_paths(text))
    return encode_frame(frame)


def _opening_length(prefix: bytes) -> int:
    length = decode_length(prefix)
    if length > HEADER_BYTES:
        raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, "a stream opens with a frame without a body")
    return length


class _deadline:  # noqa: N801 - reads as the statement it is
    """``trio.fail_after`` whose time-out is a ``PeerUnavailable`` that names the peer."""

    def __init__(self, timeout_s: float, peer: PeerId, what: str) -> None:
        self._scope = trio.CancelScope(deadline=trio.current_time() + timeout_s)
        self._text = f"peer {peer} {what}, waited {timeout_s:.0f} s"

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        is_swallowed = bool(self._scope.__exit__(kind, error, traceback))
        if self._scope.cancelled_caught:
            raise PeerUnavailable(ErrorCode.DEADLINE_EXCEEDED, self._text)
        return is_swallowed


def error_of(refusal: Refusal) -> RemoteProtocolError:
    """A refusal of a peer, as an error here; an unknown code reads as internal."""
    try:
        code = ErrorCode(refusal.code)
    except ValueError:
        code = ErrorCode.INTERNAL
    return RemoteProtocolError(code, refusal.message, retry_after_s=refusal.retry_after_s)


def refusal_of(code: ErrorCode, text: str, retry_after_s: int = 0) -> Refusal:
    """The refusal that says ``text``, without local paths and cut to what a message may hold."""
    shown = without_paths(text).encode()[:1000].decode("utf-8", "ignore")
    return Refusal(code.value, shown, min(retry_after_s, MAX_RETRY_AFTER_S))


def without_paths(text: str) -> str:
    """``text`` fit for a peer: of a local path only a GGUF file's name stays, anything else becomes ``…``.

    Paths are known by their looks. Where that is unsure rather more is taken out than less.
    """
    return _LOCAL_PATH.sub(_shown_path, text[:MAX_TEXT_CHARACTERS])


def _shown_path(found: re.Match[str]) -> str:
    last = found["last"]
    return last if last.endswith(".gguf") else "…"
