"""A circuit through a relay as the carrier of a connection: noise and our yamux run on one stream of the relay's.

Owns how a stream carries a channel, and circuit addresses (``/…/tcp/…/p2p/<relay>/p2p-circuit``). How the stream comes
to lead to the other peer is ``relay``'s. What the relay sees are sealed bytes.
"""

from dataclasses import dataclass

from libp2p.connection_types import ConnectionType
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.exceptions import MuxedStreamError
from multiaddr import Multiaddr

from p2pmesh.adapters.p2p.addresses import TcpAddress, parse_tcp_address
from p2pmesh.adapters.p2p.keys import peer_id_of
from p2pmesh.adapters.p2p.noise import READ_BYTES, Carrier, NoiseChannel
from p2pmesh.adapters.p2p.yamux import YamuxStream
from p2pmesh.base.errors import ConfigError
from p2pmesh.base.ids import PeerId, is_peer_id
from p2pmesh.base.limits import MAX_ADDRESSES

CIRCUIT = "/p2p-circuit"


@dataclass(frozen=True, slots=True)
class CircuitAddress:
    """A relay, and where it is."""

    relay: PeerId
    via: TcpAddress


def is_circuit(text: str) -> bool:
    """Whether a multiaddr leads through a relay."""
    return CIRCUIT in text


def parse_circuit(peer: PeerId, text: str) -> CircuitAddress | None:
    """A circuit address of ``peer``; None if it is none, or of another peer, or leads through two relays."""
    head, mark, tail = text.partition(CIRCUIT)
    if not mark or tail not in ("", f"/p2p/{peer}"):
        return None
    try:
        via = parse_tcp_address(head)
    except ConfigError:
        return None
    if via.peer is None or via.peer == peer or via.port == 0 or not is_peer_id(via.peer):
        return None
    return CircuitAddress(via.peer, via)


def circuits_to(peer: PeerId, texts: tuple[str, ...]) -> tuple[CircuitAddress, ...]:
    """The usable circuit addresses among a peer's, without repetition, at most ``MAX_ADDRESSES``."""
    found = (parse_circuit(peer, text) for text in texts[:MAX_ADDRESSES])
    return tuple(dict.fromkeys(one for one in found if one is not None))


class _CircuitStream(ReadWriteCloser):
    """A stream for libp2p's handshake, with the errors that it expects."""

    def __init__(self, stream: YamuxStream) -> None:
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._stream.read(n)
        except MuxedStreamError as error:
            raise _closed(error) from error

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except MuxedStreamError as error:
            raise _closed(error) from error

    async def close(self) -> None:
        await self._stream.reset()

    def get_remote_address(self) -> None:
        """Nobody here knows where the other end is."""


class CircuitCarrier(Carrier):
    """One end of a circuit, as libp2p upgrades it."""

    def __init__(self, stream: YamuxStream, *, is_initiator: bool) -> None:
        self.circuit = stream
        self.relay = peer_id_of(stream.muxed_conn.peer_id)
        addresses = [Multiaddr(f"/p2p/{self.relay}{CIRCUIT}")]
        super().__init__(_CircuitStream(stream), is_initiator, ConnectionType.RELAYED, addresses)

    def channel(self, session: SecureSession, seal_key: bytes, open_key: bytes) -> NoiseChannel:
        """Sealed bytes over the circuit."""
        return CircuitChannel(session, self, seal_key, open_key)


class CircuitChannel(NoiseChannel):
    """Over one stream of a relay's connection. The stream's window is the back-pressure."""

    def __init__(self, session: SecureSession, carrier: CircuitCarrier, seal_key: bytes, open_key: bytes) -> None:
        super().__init__(session, carrier, seal_key, open_key)
        self._stream = carrier.circuit

    def _send_now(self, data: bytes | bytearray) -> int:
        try:
            with memoryview(data) as view:
                return self._stream.write_some(view)
        except MuxedStreamError as error:
            raise _closed(error) from error

    async def _wait_sendable(self) -> None:
        try:
            await self._stream.wait_writable()
        except MuxedStreamError as error:
            raise _closed(error) from error

    async def _read_some(self) -> bytes:
        try:
            return await self._stream.read(READ_BYTES)
        except MuxedStreamError as error:
            raise _closed(error) from error

    def _close_carrier(self) -> None:
        self._stream.abort()


def _closed(error: MuxedStreamError) -> ConnectionClosedError:
    return ConnectionClosedError(f"the circuit is over: {error}", transport="circuit")
