"""Our streams as ``ports.network.ByteStream``: same bytes, our errors."""

import contextlib

import trio
from libp2p.abc import INetStream
from libp2p.stream_muxer.exceptions import MuxedStreamError

from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.keys import peer_id_of
from p2pmesh.adapters.p2p.negotiation import NegotiationRefused, propose
from p2pmesh.adapters.p2p.yamux import YamuxConnection, YamuxStream
from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId

CLEAN_UP_S = 2.0


class PeerStream:
    """Implements ``ports.network.ByteStream`` on a stream of our multiplexer."""

    def __init__(self, stream: YamuxStream) -> None:
        self._stream = stream
        stream.is_exchange = True
        self._remote_peer = peer_id_of(stream.muxed_conn.peer_id)
        self._is_closed = False

    @property
    def muxed(self) -> YamuxStream:
        """The stream below, for what runs on it."""
        return self._stream

    @property
    def remote_peer(self) -> PeerId:
        """The authenticated peer at the other end."""
        return self._remote_peer

    async def receive_exactly(self, count: int) -> bytes:
        """``count`` bytes; ``PeerUnavailable(PEER_LOST)`` if the stream ends before that."""
        try:
            return await self._stream.receive_exactly(count)
        except MuxedStreamError as error:
            raise self._lost(error) from error

    def receive_nowait(self, count: int) -> bytes | None:
        """``count`` bytes if they are here; otherwise nothing, and None."""
        return self._stream.receive_nowait(count)

    async def send(self, data: bytes) -> None:
        """All of ``data``; ``PeerUnavailable(PEER_LOST)``."""
        try:
            await self._stream.write(data)
        except MuxedStreamError as error:
            raise self._lost(error) from error

    def send_nowait(self, data: bytes) -> bool:
        """All of ``data`` at once, or nothing and False."""
        return self._stream.write_nowait(data)

    async def finish(self) -> None:
        """Half-close: the peer reads an end, we may go on reading."""
        self._stream.finish()

    async def reset(self) -> None:
        """Abort both directions."""
        self._stream.abort()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def close(self) -> None:
        """Done both ways: the peer reads an end after all that was sent, what it still sends is dropped."""
        self._is_closed = True
        self._stream.abandon()

    def _lost(self, error: MuxedStreamError) -> PeerUnavailable:
        return PeerUnavailable(ErrorCode.PEER_LOST, f"the stream to {self._remote_peer} has ended: {error}")


async def forget_net_stream(stream: INetStream) -> None:
    """Takes a stream that libp2p accepted out of libp2p's tables; never raises, bounded."""
    with shielded_for(CLEAN_UP_S), contextlib.suppress(MuxedStreamError, OSError):
        await stream.close()


async def open_stream_on(connection: YamuxConnection, protocol_id: str, timeout_s: float) -> PeerStream:
    """A new stream on one connection; ``PeerUnavailable``."""
    peer = peer_id_of(connection.peer_id)
    connection.expect_answers()
    stream: YamuxStream | None = None
    is_agreed = False
    try:
        with trio.move_on_after(timeout_s):
            stream = await connection.open_stream()
            await propose(stream, protocol_id)
            is_agreed = True
    except (NegotiationRefused, MuxedStreamError) as error:
        code = ErrorCode.PEER_LOST if connection.is_closed else ErrorCode.PEER_UNREACHABLE
        raise PeerUnavailable(code, f"cannot open {protocol_id} to peer {peer}: {error}") from error
    finally:
        if stream is not None and not is_agreed:
            stream.abort()
    if stream is None or not is_agreed:
        raise PeerUnavailable(
            ErrorCode.PEER_UNREACHABLE, f"peer {peer} did not answer for {protocol_id} within {timeout_s:g} s"
        )
    return PeerStream(stream)
