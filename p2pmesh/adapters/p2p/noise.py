"""Our own transport phase of noise, after libp2p's handshake: over TCP, or over whatever else carries a connection.

Owns the socket from the moment the handshake is done: one system call for many records, nothing awaited while a record
is half written. Sealing and queueing are synchronous, so no cancellation can tear a record (in py-libp2p it does, and
the whole connection is lost). The handshake, and who the peer is, stay with libp2p; so do the bytes on the wire: a
2-byte big-endian length, then ChaCha20-Poly1305 with the record's number as nonce. Streams of relays as carriers are
``circuit``'s.
"""

import contextlib
import os
import socket as stdlib_socket
from abc import ABC, abstractmethod
from typing import cast

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.base_session import BaseSession
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.io import BaseNoiseMsgReadWriter
from libp2p.security.noise.transport import Transport
from libp2p.security.secure_session import SecureSession
from multiaddr import Multiaddr

from p2pmesh.base.quantities import KIB

TAG_BYTES = 16
LENGTH_BYTES = 2
MAX_RECORD_BYTES = 65_535
MAX_RECORD_PLAINTEXT_BYTES = MAX_RECORD_BYTES - TAG_BYTES

READ_BYTES = 256 * KIB
WRITE_HIGH_WATER_BYTES = 64 * KIB
"""Sealed bytes that may wait for the socket before a writer of data has to wait."""
UNSENT_LOW_WATER_BYTES = 128 * KIB
"""Bytes the kernel holds beyond what the peer's window takes; more only delays small frames behind bulk ones."""

HANDSHAKE_TIMEOUT_S = 10.0


class NoiseTransport(Transport):
    """libp2p's noise, with our channel in place of its slow session; each handshake has a deadline."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """The channel to whoever proves an identity within the deadline; libp2p's handshake errors otherwise."""
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            return _take_over(conn, await super().secure_inbound(conn))
        raise HandshakeFailure("the peer did not finish the noise handshake in time")

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """The channel to ``peer_id`` and nobody else."""
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            return _take_over(conn, await super().secure_outbound(conn, peer_id))
        raise HandshakeFailure("the peer did not finish the noise handshake in time")


def _take_over(conn: IRawConnection, session: ISecureConn) -> "NoiseChannel":
    """The session's keys and carrier in a channel of ours. libp2p has read exactly the handshake, not a byte more."""
    if not isinstance(session, SecureSession) or not isinstance(session.conn, BaseNoiseMsgReadWriter):
        raise HandshakeFailure("libp2p returned a session that is not noise")
    protocol = session.conn.noise_state.noise_protocol
    seal_key, open_key = protocol.cipher_state_encrypt.k, protocol.cipher_state_decrypt.k
    if isinstance(conn, Carrier):
        return conn.channel(session, seal_key, open_key)
    if not isinstance(conn, RawConnection) or not isinstance(conn.stream, TrioTCPStream):
        raise HandshakeFailure("only TCP connections are carried")
    return SocketChannel(session, conn, conn.stream.stream.socket, seal_key, open_key)


class Carrier(RawConnection):
    """A connection that is no socket, and knows its own channel."""

    def channel(self, session: SecureSession, seal_key: bytes, open_key: bytes) -> "NoiseChannel":
        """The channel over it, once the handshake is done."""
        raise NotImplementedError


class NoiseChannel(BaseSession, ABC):
    """Sealed bytes both ways over what a subclass carries them by.

    ``submit`` never waits; ``write`` does. One task at a time may ``receive``. ``ConnectionClosedError`` is raised for
    every way in which the connection can end, a forged record among them.
    """

    def __init__(
        self,
        session: SecureSession,
        raw: RawConnection,
        seal_key: bytes,
        open_key: bytes,
    ) -> None:
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
        )
        self._raw = raw
        self._seal, self._open = ChaCha20Poly1305(seal_key), ChaCha20Poly1305(open_key)
        self._sealed_count = self._opened_count = 0
        self._unsent = bytearray()
        self._unopened = b""
        self._unread = b""
        self._is_flusher_running = False
        self._flushing = trio.Lock()
        self._room = trio.lowlevel.ParkingLot()
        self._work = trio.Event()

    # --- what carries it

    @abstractmethod
    def _send_now(self, data: bytes | bytearray) -> int:
        """As much of ``data`` as is taken without waiting; ``ConnectionClosedError``."""

    @abstractmethod
    async def _wait_sendable(self) -> None:
        """Until more is taken; ``ConnectionClosedError``."""

    @abstractmethod
    async def _read_some(self) -> bytes:
        """What has arrived, at least one byte; ``ConnectionClosedError``."""

    @abstractmethod
    def _close_carrier(self) -> None:
        """Closes it now; wakes whoever waits on it. Never raises."""

    @property
    def raw(self) -> RawConnection:
        """The connection below."""
        return self._raw

    @property
    def unsent_bytes(self) -> int:
        """Sealed bytes that wait for the socket."""
        return len(self._unsent)

    @property
    def has_room(self) -> bool:
        """Whether a writer of data need not wait."""
        return len(self._unsent) < WRITE_HIGH_WATER_BYTES

    # --- sending

    def submit(self, data: bytes) -> None:
        """Seals ``data`` and sends or queues it. Never waits."""
        for start in range(0, len(data), MAX_RECORD_PLAINTEXT_BYTES):
            piece = data[start : start + MAX_RECORD_PLAINTEXT_BYTES]
            sealed = self._seal.encrypt(_nonce(self._sealed_count), piece, None)
            self._sealed_count += 1
            self._send_or_queue(len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed)

    def _send_or_queue(self, record: bytes) -> None:
        if not self._unsent:
            sent = self._send_now(record)
            if sent == len(record):
                return
            record = record[sent:]
        self._unsent += record
        self._work.set()

    async def write(self, data: bytes) -> None:
        """``submit`` with back-pressure: waits while more than the high-water mark is unsent."""
        await self.wait_for_room()
        self.submit(data)
        if self._unsent and not self._is_flusher_running:
            await self.flush()

    async def wait_for_room(self) -> None:
        """Returns once less than the high-water mark is unsent; cancelling it loses nothing."""
        while not self.has_room and self._is_flusher_running:
            await self._room.park()

    async def wait_until_flushed(self) -> None:
        """Returns once nothing is unsent, or nobody is there to send it."""
        while self._unsent and self._is_flusher_running:
            await self._room.park()

    async def flush(self) -> None:
        """Waits until everything submitted is with the kernel; a second task waits for the first."""
        async with self._flushing:
            while self._unsent:
                await self._wait_sendable()
                sent = self._send_now(self._unsent)
                del self._unsent[:sent]
                if self.has_room:
                    self._room.unpark_all()

    async def flush_forever(self) -> None:
        """The task that empties the queue for all writers; ends with ``ConnectionClosedError``."""
        self._is_flusher_running = True
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                await self.flush()
        finally:
            self._is_flusher_running = False
            self._room.unpark_all()

    # --- receiving

    async def receive(self) -> bytes:
        """The next plaintext, at least one byte, however many records it was in."""
        while True:
            plaintext = self._unread or self._open_records()
            if plaintext:
                self._unread = b""
                return plaintext
            await self._fill()

    async def read(self, n: int | None = None) -> bytes:
        """Up to ``n`` bytes, at least one; what libp2p reads negotiations with."""
        data = await self.receive()
        if n is not None and len(data) > n:
            self._unread = data[n:]
            data = data[:n]
        return data

    async def _fill(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        chunk = await self._read_some()
        self._unopened = self._unopened + chunk if self._unopened else chunk

    def _open_records(self) -> bytes:
        data = memoryview(self._unopened)
        opened: list[bytes] = []
        at = 0
        while len(data) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if end > len(data):
                break
            opened.append(self._open_record(data[at + LENGTH_BYTES : end]))
            at = end
        if at:
            self._unopened = bytes(data[at:])
        return opened[0] if len(opened) == 1 else b"".join(opened)

    def _open_record(self, record: memoryview) -> bytes:
        try:
            plaintext = self._open.decrypt(_nonce(self._opened_count), record, None)
        except (InvalidTag, ValueError) as error:
            raise ConnectionClosedError("the peer sent a record that was not sealed for us", transport="tcp") from error
        self._opened_count += 1
        return plaintext

    # --- the rest of libp2p's interface

    def abort(self) -> None:
        """Closes the connection below now; wakes whoever waits on it."""
        self._close_carrier()
        self._room.unpark_all()

    async def close(self) -> None:
        """Closes the connection below."""
        self.abort()
        await trio.lowlevel.checkpoint()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Address and port of the other end."""
        return self._raw.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The multiaddr of the other end."""
        return self._raw.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct, or through a relay."""
        return self._raw.get_connection_type()


class SocketChannel(NoiseChannel):
    """Over one TCP socket."""

    def __init__(
        self,
        session: SecureSession,
        raw: RawConnection,
        socket: trio.socket.SocketType,
        seal_key: bytes,
        open_key: bytes,
    ) -> None:
        super().__init__(session, raw, seal_key, open_key)
        self._socket = socket
        self._is_drained = False
        _tune(socket)

    @property
    def local_port(self) -> int | None:
        """The port here; None once it is closed."""
        try:
            return int(self._socket.getsockname()[1])
        except (OSError, IndexError):
            return None

    def _send_now(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionClosedError(f"the connection broke: {error}", transport="tcp") from error

    async def _wait_sendable(self) -> None:
        await self._wait(trio.lowlevel.wait_writable)

    async def _read_some(self) -> bytes:
        if self._is_drained:  # trying the socket again would delay whoever waits for what was just read
            await self._wait(trio.lowlevel.wait_readable)
        while True:
            try:
                chunk = os.read(self._socket.fileno(), READ_BYTES)
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)
                continue
            except OSError as error:
                raise ConnectionClosedError(f"the connection broke: {error}", transport="tcp") from error
            if not chunk:
                raise ConnectionClosedError("the peer closed the connection", transport="tcp")
            self._is_drained = len(chunk) < READ_BYTES
            return chunk

    async def _wait(self, wait: object) -> None:
        try:
            await wait(self._socket)  # type: ignore[operator]
        except (trio.ClosedResourceError, OSError, ValueError) as error:
            raise ConnectionClosedError("the connection was closed here", transport="tcp") from error

    def _close_carrier(self) -> None:
        self._socket.close()


def _nonce(count: int) -> bytes:
    return b"\0\0\0\0" + count.to_bytes(8, "little")


def _tune(socket: trio.socket.SocketType) -> None:
    """No delay for small frames; and a short queue in the kernel, so that they need not wait behind bulk data."""
    options = [(stdlib_socket.TCP_NODELAY, 1)]
    low_water = getattr(stdlib_socket, "TCP_NOTSENT_LOWAT", None)
    if low_water is not None:
        options.append((cast(int, low_water), UNSENT_LOW_WATER_BYTES))
    for option, value in options:
        with contextlib.suppress(OSError):
            socket.setsockopt(stdlib_socket.IPPROTO_TCP, option, value)
