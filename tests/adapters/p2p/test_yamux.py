"""The multiplexer over a channel in memory: the parser, the protocol's rules, windows, and silence."""

import struct
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamError, MuxedStreamReset
from trio.testing import MockClock, wait_all_tasks_blocked

from p2pmesh.adapters.p2p import yamux
from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.adapters.p2p.yamux import INITIAL_WINDOW_BYTES, YamuxConnection
from p2pmesh.adapters.p2p.yamux_frames import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER_BYTES,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    FrameParser,
)
from p2pmesh.adapters.p2p.yamux_pings import Vigilance
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_STREAMS_PER_PEER
from p2pmesh.ports.network import FaultKind

PEER = ID(b"\x00\x24\x08\x01\x12\x20" + bytes(32))


def frame(kind: int, flags: int, stream_id: int, length: int, body: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream_id, length) + body


class ScriptedChannel:
    """The test is the peer: what it says is received, what the connection submits is kept."""

    def __init__(self, *, is_initiator: bool = False) -> None:
        self.is_initiator = is_initiator
        self.unsent_bytes = 0
        self.has_room = True
        self.submitted = bytearray()
        self._say, self._hear = trio.open_memory_channel[bytes](1000)

    async def say(self, data: bytes) -> None:
        self._say.send_nowait(data)
        await wait_all_tasks_blocked()

    def hang_up(self) -> None:
        self._say.close()

    def heard(self) -> list[tuple[int, int, int, int]]:
        """Headers of all frames submitted since the last call, pings left out."""
        headers = []
        while self.submitted:
            _, kind, flags, stream_id, length = struct.unpack("!BBHII", self.submitted[:12])
            del self.submitted[: 12 + (length if kind == DATA else 0)]
            if not (kind == PING and flags == SYN):
                headers.append((kind, flags, stream_id, length))
        return headers

    def submit(self, data: bytes) -> None:
        self.submitted += data

    async def receive(self) -> bytes:
        try:
            return await self._hear.receive()
        except trio.EndOfChannel:
            raise ConnectionClosedError("hung up") from None

    async def flush_forever(self) -> None:
        await trio.sleep_forever()

    async def wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_until_flushed(self) -> None:
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        self._say.close()


@pytest.fixture
async def channel() -> ScriptedChannel:
    return ScriptedChannel()


@pytest.fixture
async def connection(channel: ScriptedChannel, nursery: trio.Nursery) -> YamuxConnection:
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=1000.0))
    nursery.start_soon(connection.start)
    await connection.event_started.wait()
    return connection


# --- the parser


@given(
    frames=st.lists(
        st.one_of(
            st.builds(
                lambda body, sid: frame(DATA, 0, sid, len(body), body), st.binary(max_size=40), st.integers(1, 9)
            ),
            st.builds(
                lambda kind, n: frame(kind, SYN, 0, n), st.sampled_from([WINDOW_UPDATE, PING]), st.integers(0, 99)
            ),
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_frames_are_the_same_however_the_bytes_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    assert parsed([stream]) == parsed(pieces(stream, cuts))
    assert len(parsed([stream])) == len(frames)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def parsed(chunks: list[bytes]) -> list[tuple[int, int, int, int, bytes]]:
    parser = FrameParser()
    whole: list[tuple[int, int, int, int, bytes]] = []
    for chunk in chunks:
        for part in parser.feed(chunk):
            if part.is_first:
                whole.append((part.kind, part.flags, part.stream_id, part.length, b""))
            whole[-1] = (*whole[-1][:4], whole[-1][4] + bytes(part.body))
            assert part.is_last == (part.kind != DATA or len(whole[-1][4]) == part.length)
    return whole


# --- streams that the peer opens


async def test_an_inbound_stream_is_accepted_read_answered_and_over(
    channel: ScriptedChannel, connection: YamuxConnection
) -> None:
    await channel.say(frame(DATA, SYN, 1, 5, b"hello"))
    stream = await connection.accept_stream()
    assert await stream.receive_exactly(5) == b"hello"
    await stream.write(b"welcome")
    await channel.say(frame(WINDOW_UPDATE, FIN, 1, 0))
    await stream.close()
    assert channel.heard() == [(WINDOW_UPDATE, ACK, 1, 0), (DATA, 0, 1, 7), (WINDOW_UPDATE, FIN, 1, 0)]
    assert not connection._streams


async def test_a_reset_lets_what_came_before_be_read(channel: ScriptedChannel, connection: YamuxConnection) -> None:
    await channel.say(frame(DATA, SYN, 1, 5, b"hello") + frame(WINDOW_UPDATE, RST, 1, 0))
    stream = await connection.accept_stream()
    assert await stream.read() == b"hello"
    with pytest.raises(MuxedStreamReset):
        await stream.read()
    with pytest.raises(MuxedStreamReset):
        await stream.write(b"x")


async def test_streams_beyond_the_limit_are_reset(channel: ScriptedChannel, connection: YamuxConnection) -> None:
    for n in range(MAX_STREAMS_PER_PEER + 3):
        await channel.say(frame(WINDOW_UPDATE, SYN, 2 * n + 1, 0))
    flags = [header[1] for header in channel.heard()]
    assert flags == [ACK] * MAX_STREAMS_PER_PEER + [RST] * 3
    assert connection.is_established


async def test_data_for_a_stream_that_is_gone_is_ignored(channel: ScriptedChannel, connection: YamuxConnection) -> None:
    await channel.say(frame(DATA, 0, 77, 3, b"abc") + frame(WINDOW_UPDATE, FIN, 77, 0))
    assert connection.is_established
    assert channel.heard() == []


# --- what costs the peer its connection


@pytest.mark.parametrize(
    "bytes_of_peer",
    [
        struct.pack("!BBHII", 1, DATA, 0, 1, 0),
        frame(9, 0, 0, 0),
        frame(WINDOW_UPDATE, SYN, 0, 0),
        frame(WINDOW_UPDATE, SYN, 2, 0),
        frame(WINDOW_UPDATE, SYN, 1, 0) * 2,
        frame(DATA, SYN, 1, INITIAL_WINDOW_BYTES + 1, bytes(INITIAL_WINDOW_BYTES + 1)),
        frame(DATA, SYN | FIN, 1, 1, b"x") + frame(DATA, 0, 1, 1, b"y"),
        b"\xff" * 64,
    ],
    ids=["version", "type", "stream 0", "our parity", "opened twice", "beyond window", "after end", "noise"],
)
async def test_breaking_the_protocol_ends_the_connection_and_nothing_else(
    channel: ScriptedChannel, connection: YamuxConnection, bytes_of_peer: bytes
) -> None:
    told: list[FaultKind] = []
    connection.on_fault = told.append
    await channel.say(bytes_of_peer)
    assert connection.is_closed
    assert channel.heard()[-1] == (GO_AWAY, 0, 0, 1)
    assert told == [FaultKind.INVALID]
    with pytest.raises(MuxedStreamError):
        await connection.open_stream()
    with pytest.raises(MuxedConnUnavailable):
        await connection.accept_stream()


async def test_a_peer_that_makes_us_answer_and_does_not_read_is_cut_off(
    channel: ScriptedChannel, connection: YamuxConnection
) -> None:
    channel.unsent_bytes = yamux.MAX_UNSENT_ANSWER_BYTES + 1
    await channel.say(frame(PING, SYN, 0, 1))
    assert connection.is_closed


def window_full(stream_id: int) -> bytes:
    return frame(DATA, SYN, stream_id, INITIAL_WINDOW_BYTES, bytes(INITIAL_WINDOW_BYTES))


async def test_a_stranger_that_makes_us_hold_too_much_is_cut_off_and_reported(
    channel: ScriptedChannel, connection: YamuxConnection
) -> None:
    told: list[FaultKind] = []
    connection.on_fault = told.append
    connection.limits = yamux.STRANGER_LIMITS
    most = yamux.STRANGER_LIMITS.held_bytes // INITIAL_WINDOW_BYTES
    for n in range(most):
        await channel.say(window_full(2 * n + 1))
    assert connection.held_bytes == most * INITIAL_WINDOW_BYTES
    assert not connection.is_closed
    await channel.say(frame(DATA, SYN, 99, 1, b"x"))
    assert connection.is_closed
    assert told == [FaultKind.FLOOD]


async def test_what_is_read_reset_or_abandoned_is_held_no_more(
    channel: ScriptedChannel, connection: YamuxConnection
) -> None:
    connection.limits = yamux.STRANGER_LIMITS
    for n in range(200):
        await channel.say(window_full(2 * n + 1))
        stream = None if n % 4 == 3 else await connection.accept_stream()
        match n % 4:
            case 0:
                assert stream is not None
                await stream.receive_exactly(INITIAL_WINDOW_BYTES - 5)
                assert connection.held_bytes == 5
                stream.abort()
            case 1:
                assert stream is not None
                stream.abandon()
                await channel.say(frame(WINDOW_UPDATE, FIN, 2 * n + 1, 0))
            case _:
                await channel.say(frame(WINDOW_UPDATE, RST, 2 * n + 1, 0))
        if n % 4 == 2:
            assert stream is not None
            assert len(await stream.read()) == INITIAL_WINDOW_BYTES
        assert connection.held_bytes == 0
    assert not connection.is_closed
    assert not connection._accepted


async def test_a_stranger_opens_few_streams_and_a_member_more(
    channel: ScriptedChannel, connection: YamuxConnection
) -> None:
    for limits in (yamux.STRANGER_LIMITS, yamux.MEMBER_LIMITS):
        connection.limits = limits
        for n in range(limits.streams + 5):
            await channel.say(frame(WINDOW_UPDATE, SYN, 2 * n + 1 + 1000 * limits.streams, 0))
        flags = [header[1] for header in channel.heard()]
        assert flags.count(RST) >= 5
        assert len(connection._streams) == limits.streams


async def test_who_is_asked_may_answer_at_length_and_a_member_keeps_its_limits(connection: YamuxConnection) -> None:
    connection.expect_answers()
    assert connection.limits is yamux.MEMBER_LIMITS
    connection.limits = yamux.STRANGER_LIMITS
    connection.expect_answers()
    assert connection.limits.held_bytes >= MAX_CONTROL_MESSAGE_BYTES
    assert connection.limits.streams == yamux.STRANGER_LIMITS.streams


async def test_a_peer_that_is_gone_breaks_all_waits(
    channel: ScriptedChannel, connection: YamuxConnection, nursery: trio.Nursery
) -> None:
    stream = await connection.open_stream()
    failed: list[str] = []

    async def expect_failure(wait: object) -> None:
        with pytest.raises((MuxedStreamReset, MuxedConnUnavailable)):
            await wait()  # type: ignore[operator]
        failed.append("yes")

    async def write_for_ever() -> None:
        while True:
            await stream.write(bytes(INITIAL_WINDOW_BYTES))

    for wait in (stream.read, write_for_ever, connection.accept_stream):
        nursery.start_soon(expect_failure, wait)
    await wait_all_tasks_blocked()
    channel.hang_up()
    await wait_all_tasks_blocked()
    assert len(failed) == 3
    assert connection.is_closed


# --- windows


async def test_a_writer_waits_for_the_window_as_long_as_it_takes(
    channel: ScriptedChannel, connection: YamuxConnection, nursery: trio.Nursery
) -> None:
    stream = await connection.open_stream()
    nursery.start_soon(stream.write, bytes(INITIAL_WINDOW_BYTES + 1000))
    await wait_all_tasks_blocked()
    assert sum(length for kind, _, _, length in channel.heard() if kind == DATA) == INITIAL_WINDOW_BYTES
    await channel.say(frame(WINDOW_UPDATE, 0, stream.stream_id, 400))
    assert channel.heard() == [(DATA, 0, stream.stream_id, 400)]
    await channel.say(frame(WINDOW_UPDATE, 0, stream.stream_id, 10_000))
    assert channel.heard() == [(DATA, 0, stream.stream_id, 600)]


async def test_a_reader_gives_credit_in_steps_of_half_a_window(
    channel: ScriptedChannel, connection: YamuxConnection
) -> None:
    await channel.say(frame(WINDOW_UPDATE, SYN, 1, 0))
    stream = await connection.accept_stream()
    channel.heard()
    half = INITIAL_WINDOW_BYTES // 2
    for size in (half, half):
        await channel.say(frame(DATA, 0, 1, size, bytes(size)))
    assert channel.heard() == []
    await stream.receive_exactly(half - 1)
    assert channel.heard() == []
    await stream.receive_exactly(1)
    assert channel.heard() == [(WINDOW_UPDATE, 0, 1, half)]


async def test_a_read_larger_than_the_window_is_given_its_credit_while_it_waits(
    channel: ScriptedChannel, connection: YamuxConnection, nursery: trio.Nursery
) -> None:
    await channel.say(frame(WINDOW_UPDATE, SYN, 1, 0))
    stream = await connection.accept_stream()
    size = 3 * INITIAL_WINDOW_BYTES
    received: list[bytes] = []

    async def read() -> None:
        received.append(await stream.receive_exactly(size))

    nursery.start_soon(read)
    credit, sent = INITIAL_WINDOW_BYTES, 0
    while sent < size:
        piece = min(credit, size - sent)
        assert piece > 0
        await channel.say(frame(DATA, 0, 1, piece, bytes(piece)))
        sent, credit = sent + piece, credit - piece
        credit += sum(length for kind, _, _, length in channel.heard() if kind == WINDOW_UPDATE)
    assert [len(data) for data in received] == [size]


async def test_a_cancelled_large_read_leaves_its_bytes(channel: ScriptedChannel, connection: YamuxConnection) -> None:
    await channel.say(frame(WINDOW_UPDATE, SYN, 1, 0))
    stream = await connection.accept_stream()
    await channel.say(frame(DATA, 0, 1, 3, b"abc"))
    async with trio.open_nursery() as reading:
        reading.start_soon(stream.receive_exactly, 10)
        await wait_all_tasks_blocked()
        reading.cancel_scope.cancel()
    await channel.say(frame(DATA, 0, 1, 7, b"defghij"))
    assert await stream.receive_exactly(10) == b"abcdefghij"


# --- silence


async def run_against_silence(channel: ScriptedChannel, connection: YamuxConnection) -> float:
    started = trio.current_time()
    await connection.start()
    return trio.current_time() - started


async def test_a_silent_peer_is_given_up_after_so_many_pings(autojump_clock: MockClock) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0, max_silent=3))
    assert await run_against_silence(channel, connection) == pytest.approx(6.0)
    assert connection.is_closed


async def test_a_peer_that_is_heard_in_any_way_is_kept(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0, max_silent=3))
    nursery.start_soon(connection.start)
    for _ in range(20):
        await trio.sleep(3.0)
        channel._say.send_nowait(frame(WINDOW_UPDATE, 0, 9, 0))
    assert connection.is_established


async def answer_pings(channel: ScriptedChannel, count: int) -> list[int]:
    """The seconds from now at which so many pings came; each is answered."""
    began, times = trio.current_time(), []
    while len(times) < count:
        await trio.sleep(0.05)
        while (sent := bytes(channel.submitted[:HEADER_BYTES])) != b"":
            del channel.submitted[:HEADER_BYTES]
            _, kind, flags, _, number = struct.unpack("!BBHII", sent)
            if (kind, flags) == (PING, SYN):
                times.append(round(trio.current_time() - began))
                channel._say.send_nowait(frame(PING, ACK, 0, number))
    return times


async def test_a_connection_without_exchanges_is_pinged_rarely_and_given_up_nearly_as_soon(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0, max_silent=3))
    nursery.start_soon(connection.start)
    assert await answer_pings(channel, 4) == [0, 10, 20, 30]
    silent_since = trio.current_time()
    await connection.event_closed.wait()
    assert trio.current_time() - silent_since == pytest.approx(10 + 3 * 2, abs=0.2)


async def test_a_connection_with_an_exchange_is_pinged_often_until_it_is_over(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0, max_silent=3))
    nursery.start_soon(connection.start)
    await connection.event_started.wait()
    await connection.open_stream()  # one that libp2p keeps for itself
    stream = PeerStream(await connection.open_stream())
    assert connection.exchange_count == 1
    assert await answer_pings(channel, 4) == [0, 2, 4, 6]
    await stream.reset()
    assert connection.exchange_count == 0
    assert await answer_pings(channel, 3) == [10, 20, 30]


async def test_pings_are_answered_and_measure_the_round_trip(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0))
    nursery.start_soon(connection.start)
    await trio.sleep(0.5)
    channel._say.send_nowait(frame(PING, ACK, 0, 1) + frame(PING, SYN, 0, 4711))
    await trio.sleep(0.1)
    assert connection.pings.smoothed_s == pytest.approx(0.5)
    assert channel.heard() == [(PING, ACK, 0, 4711)]


async def test_of_recent_pings_the_slowest_but_one_is_told(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0, max_silent=1000, quiet_intervals=1))
    nursery.start_soon(connection.start)
    told = []
    for number, took_s in enumerate((0.1, 1.9, 0.3, 0.2), 1):
        await trio.sleep(took_s)
        channel._say.send_nowait(frame(PING, ACK, 0, number))
        await trio.sleep(2.0 - took_s)
        told.append(connection.pings.slowest_s)
    assert told == [None, None, None, pytest.approx(0.3)]


async def test_a_stream_that_the_peer_leaves_open_after_us_is_reset(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    channel = ScriptedChannel()
    connection = YamuxConnection(channel, PEER, Vigilance(interval_s=2.0, max_silent=1000))
    nursery.start_soon(connection.start)
    await connection.event_started.wait()
    stream = await connection.open_stream()
    stream.abandon()
    await trio.sleep(yamux.LINGER_S + 5)
    assert channel.heard()[-1] == (WINDOW_UPDATE, RST, stream.stream_id, 0)
    assert not connection._streams


# --- the end


async def test_closing_says_good_bye_and_ends_everything(channel: ScriptedChannel, connection: YamuxConnection) -> None:
    stream = await connection.open_stream()
    await connection.close()
    await connection.close()
    assert channel.heard()[-1] == (GO_AWAY, 0, 0, 0)
    with pytest.raises(MuxedStreamReset):
        await stream.read()


async def test_a_peer_that_leaves_gets_no_new_streams(channel: ScriptedChannel, connection: YamuxConnection) -> None:
    await channel.say(frame(GO_AWAY, 0, 0, 0))
    with pytest.raises(MuxedStreamError):
        await connection.open_stream()
