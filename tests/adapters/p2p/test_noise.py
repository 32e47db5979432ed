"""The transport phase of noise over a pair of sockets."""

import os
import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.secure_session import SecureSession
from trio.testing import wait_all_tasks_blocked

from p2pmesh.adapters.p2p.noise import MAX_RECORD_PLAINTEXT_BYTES, WRITE_HIGH_WATER_BYTES, SocketChannel

KEYS = (bytes(range(32)), bytes(range(32, 64)))


def channel_on(sock: socket.socket, *, is_initiator: bool) -> SocketChannel:
    keys = create_new_key_pair()
    peer = ID.from_pubkey(keys.public_key)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    raw = RawConnection(TrioTCPStream(stream), is_initiator)
    session = SecureSession(
        local_peer=peer,
        local_private_key=keys.private_key,
        remote_peer=peer,
        remote_permanent_pubkey=keys.public_key,
        is_initiator=is_initiator,
        conn=None,  # type: ignore[arg-type]
    )
    seal_key, open_key = KEYS if is_initiator else reversed(KEYS)
    return SocketChannel(session, raw, stream.socket, seal_key, open_key)


def pair() -> tuple[SocketChannel, SocketChannel]:
    one, other = socket.socketpair()
    for end in (one, other):
        end.setblocking(False)
    return channel_on(one, is_initiator=True), channel_on(other, is_initiator=False)


async def receive_all(channel: SocketChannel, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await channel.receive()
    return data


@pytest.mark.parametrize("size", [1, 100, MAX_RECORD_PLAINTEXT_BYTES, MAX_RECORD_PLAINTEXT_BYTES + 1, 3_000_000])
async def test_bytes_arrive_whole_and_in_order(size: int) -> None:
    a, b = pair()
    data = os.urandom(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.write, data)
        assert await receive_all(b, size) == data
    a.abort()
    b.abort()


@given(pieces=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=6), step=st.integers(1, 97))
def test_records_are_the_same_however_the_socket_cuts_them(pieces: list[bytes], step: int) -> None:
    async def run() -> None:
        a, b = pair()
        carrier, end = socket.socketpair()
        carrier.setblocking(False)
        for piece in pieces:
            a.submit(piece)
        sealed = os.read(b._socket.fileno(), 1 << 20)
        reader = channel_on(carrier, is_initiator=False)
        received = b""
        async with trio.open_nursery() as nursery:

            async def feed() -> None:
                for start in range(0, len(sealed), step):
                    end.send(sealed[start : start + step])
                    await wait_all_tasks_blocked()

            nursery.start_soon(feed)
            received = await receive_all(reader, sum(map(len, pieces)))
        assert received == b"".join(pieces)
        for channel in (a, b, reader):
            channel.abort()
        end.close()

    trio.run(run)


async def test_small_reads_of_one_record() -> None:
    a, b = pair()
    a.submit(b"abcdef")
    assert [await b.read(1), await b.read(2), await b.read(100)] == [b"a", b"bc", b"def"]
    a.abort()
    b.abort()


@pytest.mark.parametrize(
    "damage", [lambda r: r[:-1] + bytes([r[-1] ^ 1]), lambda r: b"\0\0" + r, lambda r: b"\0\5hello"]
)
async def test_a_record_that_was_not_sealed_for_us_ends_the_connection(damage: object) -> None:
    a, b = pair()
    a.submit(b"secret")
    record = os.read(b._socket.fileno(), 1000)
    os.write(a._socket.fileno(), damage(record))  # type: ignore[operator]
    with pytest.raises(ConnectionClosedError):
        await b.receive()
    a.abort()
    b.abort()


async def test_a_record_cannot_be_played_again() -> None:
    a, b = pair()
    a.submit(b"once")
    record = os.read(b._socket.fileno(), 1000)
    os.write(a._socket.fileno(), record)
    assert await b.receive() == b"once"
    os.write(a._socket.fileno(), record)
    with pytest.raises(ConnectionClosedError):
        await b.receive()
    a.abort()
    b.abort()


async def test_a_writer_waits_while_nobody_reads_and_goes_on_when_somebody_does() -> None:
    a, b = pair()
    size = 200 * WRITE_HIGH_WATER_BYTES

    async def write_all() -> None:
        for _ in range(200):
            await a.write(bytes(WRITE_HIGH_WATER_BYTES))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed, a.flush_forever)
        await wait_all_tasks_blocked()  # or the writer would empty the queue by itself
        nursery.start_soon(write_all)
        await wait_all_tasks_blocked()
        assert a.unsent_bytes >= WRITE_HIGH_WATER_BYTES
        assert a.unsent_bytes < 3 * WRITE_HIGH_WATER_BYTES
        await receive_all(b, size)
        await a.wait_until_flushed()
        assert a.unsent_bytes == 0
        a.abort()
        nursery.cancel_scope.cancel()
    b.abort()


async def expect_closed(work: object) -> None:
    with pytest.raises(ConnectionClosedError):
        await work()  # type: ignore[operator]


async def test_closing_here_wakes_a_reader_and_closing_there_ends_it() -> None:
    a, b = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed, a.receive)
        nursery.start_soon(expect_closed, b.receive)
        await wait_all_tasks_blocked()
        a.abort()
    with pytest.raises(ConnectionClosedError):
        a.submit(b"x")
    b.abort()
