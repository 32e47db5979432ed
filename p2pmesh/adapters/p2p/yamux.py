"""Our own yamux: the multiplexer of libp2p's wire (``/yamux/1.0.0``), in place of py-libp2p's.

Owns streams, windows and the end of one connection; frames are ``yamux_frames``', when a peer counts as silent
``yamux_pings``'. Why not py-libp2p's: a
cancelled read or write there destroys the connection, a reader that pauses 5 s kills the stream, a frozen peer is never
noticed, and one small message costs six locks and a frame back. Here every frame is queued whole without waiting, so
cancellation loses nothing; the window is the only bound a slow reader meets, for as long as it likes; and a connection
on which nothing is heard for some pings is closed.

Bounds: streams a peer may open, bytes per stream (its window; what a reader has asked for on top), window growth per
connection, unsent answers. A peer that breaks the protocol loses its connection, with nothing else touched.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

import trio
from libp2p.abc import IMuxedConn, IMuxedStream
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from multiaddr import Multiaddr

from p2pmesh.adapters.p2p.noise import MAX_RECORD_PLAINTEXT_BYTES, NoiseChannel
from p2pmesh.adapters.p2p.yamux_frames import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    GO_AWAY_NORMAL,
    GO_AWAY_PROTOCOL_ERROR,
    HEADER_BYTES,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    FrameParser,
    FramePart,
    ProtocolViolation,
    encode_header,
)
from p2pmesh.adapters.p2p.yamux_pings import Pings, Vigilance
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_STREAMS_PER_PEER
from p2pmesh.base.quantities import KIB, MIB
from p2pmesh.ports.network import FaultKind

PROTOCOL_ID = "/yamux/1.0.0"

INITIAL_WINDOW_BYTES = 256 * KIB
MAX_WINDOW_BYTES = 8 * MIB
MAX_WINDOW_GROWTH_BYTES = 32 * MIB
"""What all streams of one connection together may add to their initial windows."""
MAX_FRAME_BYTES = MAX_RECORD_PLAINTEXT_BYTES - HEADER_BYTES
"""One frame fits one noise record."""
MAX_UNSENT_ANSWER_BYTES = MIB
"""A peer that makes us answer and does not read is cut off here."""
MAX_OPEN_STREAMS = 1024
"""Streams we open ourselves on one connection."""
SENDS_BETWEEN_CHECKPOINTS = 16
NOWAIT_BYTES = 32 * KIB
"""Larger writes let other tasks run in between."""
LINGER_S = 30.0
"""How long the peer may leave a stream open that we are done with."""
CLOSE_FLUSH_S = 0.5


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What the peer of one connection may have.

    ``held_bytes`` bounds what has arrived and nobody has read yet, over all streams. Without it a member could fill
    its windows (streams x 256 KiB, and 32 MiB of growth), and the largest message that a reader waits for on each
    stream besides.
    """

    streams: int = MAX_STREAMS_PER_PEER
    held_bytes: int = 192 * MIB
    unsent_answer_bytes: int = MAX_UNSENT_ANSWER_BYTES


MEMBER_LIMITS = ConnectionLimits()
STRANGER_LIMITS = ConnectionLimits(streams=16, held_bytes=512 * KIB, unsent_answer_bytes=256 * KIB)
"""Before admission there are identify, ping, gossip's greeting and one hello."""
ASKED_LIMITS = ConnectionLimits(streams=16, held_bytes=2 * MAX_CONTROL_MESSAGE_BYTES)
"""Of a stranger that we have opened a stream to ourselves: a welcome is as large as any message."""
GUEST_LIMITS = ConnectionLimits(streams=32, held_bytes=16 * MIB)
"""Of a stranger with circuits through us, or of a relay that is a stranger: each stream may fill its window."""


class _Excess(ProtocolViolation):
    """The peer takes more than it may have."""


class YamuxStream(IMuxedStream):
    """One stream. Reads and writes may be cancelled; one task reads at a time, writes are kept whole and in order."""

    muxed_conn: "YamuxConnection"

    def __init__(self, connection: "YamuxConnection", stream_id: int) -> None:
        self.muxed_conn = connection
        self.stream_id = stream_id
        self.is_inbound = connection.is_initiator == (stream_id % 2 == 0)
        self.send_window = INITIAL_WINDOW_BYTES
        self.abandoned_at: float | None = None
        self.is_exchange = False
        """Whether it is one of ours, not one that libp2p keeps open for itself."""
        self._received = bytearray()
        self._wanted = 0
        self._uncredited = 0
        self._window = INITIAL_WINDOW_BYTES
        self._credited_at: float | None = None
        self._is_sent_finished = self._is_received_finished = False
        self._failure: str | None = None
        self._is_forgotten = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self._sending = trio.Lock()
        self._sends = 0

    @property
    def window_growth(self) -> int:
        """Bytes by which the receive window exceeds the initial one."""
        return self._window - INITIAL_WINDOW_BYTES

    # --- reading

    async def receive_exactly(self, count: int) -> bytes:
        """``count`` bytes; ``MuxedStreamEOF`` or ``MuxedStreamReset`` if they will never be complete.

        Cancelled, it leaves all that has arrived for the next call.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._wait_for(count)
        return self._take(count)

    def receive_nowait(self, count: int) -> bytes | None:
        """``count`` bytes if they are here; otherwise nothing, and None."""
        return self._take(count) if len(self._received) >= count else None

    async def read(self, n: int | None = None) -> bytes:
        """Between 1 and ``n`` bytes (all there are for None or a negative number)."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._wait_for(1)
        available = len(self._received)
        return self._take(available if n is None or n < 0 else min(n, available))

    async def _wait_for(self, count: int) -> None:
        while len(self._received) < count:
            if self._is_received_finished:
                raise MuxedStreamEOF("the peer finished the stream")
            if self._failure is not None:
                raise MuxedStreamReset(self._failure)
            self._wanted = count
            self._give_credit()
            try:
                await self._readers.park()
            finally:
                self._wanted = 0

    def _take(self, count: int) -> bytes:
        if not self._is_forgotten:
            self.muxed_conn.held_bytes -= count
        if count == len(self._received):
            data = bytes(self._received)
            self._received.clear()
        else:
            with memoryview(self._received) as view:
                data = bytes(view[:count])
            del self._received[:count]
        self._give_credit()
        return data

    def _give_credit(self) -> None:
        """Lets the peer send as much again as left the buffer, or is asked for; in steps of half a window."""
        held = max(0, len(self._received) - self._wanted)
        credit = self._uncredited - held
        if credit * 2 < self._window or self._is_received_finished or self._failure is not None:
            return
        # The writer gets the new window at once: what it held back plus the growth.
        grown = self.muxed_conn.grow_window(self._window, self._credited_at)
        self._credited_at = trio.current_time()
        self._uncredited -= credit
        self._window += grown
        self.muxed_conn.send_control(WINDOW_UPDATE, 0, self.stream_id, credit + grown)

    # --- writing

    async def write(self, data: bytes) -> None:
        """All of ``data``, in frames; waits for window and for the socket.

        Cancelled, it may have sent a beginning of ``data``; the connection and all other streams are untouched.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            await self._write_frames(data)
        finally:
            self._sending.release()

    def write_nowait(self, data: bytes) -> bool:
        """All of ``data`` in one frame if no writer, window or socket is in the way and it is nobody else's turn."""
        length = len(data)
        is_free = not self._sending.locked() and self._failure is None and not self._is_sent_finished
        is_small = length <= min(self.send_window, MAX_FRAME_BYTES, NOWAIT_BYTES)
        if not is_free or not is_small or self.muxed_conn.is_congested:
            return False
        self._sends += 1
        if self._sends % SENDS_BETWEEN_CHECKPOINTS == 0:
            return False
        self.muxed_conn.send_data(self.stream_id, memoryview(data))
        self.send_window -= length
        return True

    def write_some(self, data: memoryview) -> int:
        """As much of ``data`` as window and socket take now; ``MuxedStreamError`` once the stream is over.

        For a connection that runs on this stream, which nobody else may write to.
        """
        self._check_open()
        sent = 0
        while sent < len(data) and self.send_window > 0 and not self.muxed_conn.is_congested:
            length = min(len(data) - sent, self.send_window, MAX_FRAME_BYTES)
            self.muxed_conn.send_data(self.stream_id, data[sent : sent + length])
            self.send_window -= length
            sent += length
        return sent

    async def wait_writable(self) -> None:
        """Returns once ``write_some`` takes a byte; ``MuxedStreamError``."""
        await self._wait_to_send()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise MuxedStreamReset(self._failure)
        if self._is_sent_finished:
            raise MuxedStreamClosed("the stream was finished here")

    async def _write_frames(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            await self._wait_to_send()
            length = min(len(rest), self.send_window, MAX_FRAME_BYTES)
            self.muxed_conn.send_data(self.stream_id, rest[:length])
            self.send_window -= length
            rest = rest[length:]
            await self._let_others_run(length)

    async def _wait_to_send(self) -> None:
        while True:
            self._check_open()
            if self.send_window > 0:
                if not self.muxed_conn.is_congested:
                    return
                await self.muxed_conn.wait_for_room()
            else:
                await self._writers.park()

    async def _let_others_run(self, length: int) -> None:
        self._sends += 1
        if length > NOWAIT_BYTES or self._sends % SENDS_BETWEEN_CHECKPOINTS == 0:
            await trio.lowlevel.checkpoint()

    # --- ending

    def finish(self) -> None:
        """Half-close: the peer reads an end after all that was written."""
        if self._is_sent_finished or self._failure is not None:
            return
        self._is_sent_finished = True
        self._writers.unpark_all()
        self.muxed_conn.send_control(WINDOW_UPDATE, FIN, self.stream_id, 0)
        self._forget_if_over()

    def abandon(self) -> None:
        """Done with it both ways: finishes, and drops what may still arrive; the peer gets some time to finish too."""
        self.finish()
        if not self._is_received_finished and self._failure is None:
            self.abandoned_at = trio.current_time()
        self._drop_received()

    def abort(self) -> None:
        """Reset both directions now."""
        if self._failure is not None:
            return
        is_over = self._is_sent_finished and self._is_received_finished
        if not is_over:
            self.muxed_conn.send_control(WINDOW_UPDATE, RST, self.stream_id, 0)
        self._drop_received()
        self._is_received_finished = False
        self.break_off("the stream was reset here")

    def _drop_received(self) -> None:
        if not self._is_forgotten:
            self.muxed_conn.held_bytes -= len(self._received)
        self._received.clear()

    def forgotten(self) -> int:
        """The connection counts the stream no more; the bytes that it holds still, which its reader may yet take."""
        self._is_forgotten = True
        return len(self._received)

    async def close(self) -> None:
        """libp2p's name for ``finish``."""
        self.finish()
        await trio.lowlevel.checkpoint()

    async def close_write(self) -> None:
        """libp2p's other name for ``finish``."""
        await self.close()

    async def reset(self) -> None:
        """libp2p's name for ``abort``."""
        self.abort()
        await trio.lowlevel.checkpoint()

    # --- what the connection tells

    def take_in(self, data: memoryview) -> None:
        """Bytes from the peer; ``ProtocolViolation`` beyond the window it was given."""
        if self._is_received_finished:
            raise ProtocolViolation("data after the end of its stream")
        self._uncredited += len(data)
        if self._uncredited > self._window:
            raise ProtocolViolation("more data than its window allows")
        if self.abandoned_at is not None or self._failure is not None:
            return
        self._received += data
        self.muxed_conn.hold(len(data))
        if len(self._received) >= self._wanted:
            self._readers.unpark_all()
        else:
            self._give_credit()

    def take_in_end(self) -> None:
        """The peer has finished its direction."""
        self._is_received_finished = True
        self._readers.unpark_all()
        self._forget_if_over()

    def take_in_credit(self, credit: int) -> None:
        """The peer may be sent ``credit`` more bytes."""
        self.send_window += credit
        if credit:
            self._writers.unpark_all()

    def break_off(self, reason: str) -> None:
        """No more in either direction, for ``reason``; what has arrived can still be read (it may say why)."""
        if self._failure is None:
            self._failure = reason
        self._readers.unpark_all()
        self._writers.unpark_all()
        self.muxed_conn.forget(self)

    def _forget_if_over(self) -> None:
        if self._is_sent_finished and self._is_received_finished:
            self.muxed_conn.forget(self)

    # --- the rest of libp2p's interface

    def set_deadline(self, ttl: int) -> None:
        """Not offered: deadlines are trio's cancel scopes here."""
        raise NotImplementedError("use trio.fail_after")

    def get_remote_address(self) -> tuple[str, int] | None:
        """Address and port of the other end."""
        return self.muxed_conn.get_remote_address()

    async def __aenter__(self) -> "YamuxStream":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class YamuxConnection(IMuxedConn):
    """All streams of one secured connection. ``start`` runs it; everything else may be called while it runs."""

    def __init__(self, channel: NoiseChannel, peer_id: ID, vigilance: Vigilance | None = None) -> None:
        self.peer_id = peer_id
        self.secured_conn = channel
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self.pings = Pings(vigilance or Vigilance())
        self.limits = MEMBER_LIMITS
        self.held_bytes = 0
        """Bytes that have arrived on streams that stand and wait for their readers."""
        self.on_fault: Callable[[FaultKind], None] | None = None
        """Told once, when the peer breaks the protocol or takes more than it may have."""
        self._channel = channel
        self._streams: dict[int, YamuxStream] = {}
        self._next_stream_id = 1 if channel.is_initiator else 2
        self._accepted: deque[YamuxStream] = deque()
        self._acceptors = trio.lowlevel.ParkingLot()
        self._parser = FrameParser()
        self._is_leaving = False
        self._window_growth = 0
        self._scope = trio.CancelScope()

    # --- life

    @property
    def is_initiator(self) -> bool:
        """Whether we dialled."""
        return self._channel.is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and not self.is_closed and not self._is_leaving

    @property
    def is_closed(self) -> bool:
        """Whether the connection is over."""
        return self.event_closed.is_set()

    @property
    def exchange_count(self) -> int:
        """Streams of ours that somebody still uses."""
        return sum(stream.is_exchange and stream.abandoned_at is None for stream in self._streams.values())

    @property
    def is_relayed(self) -> bool:
        """Whether it goes through a relay."""
        return self.get_connection_type() is ConnectionType.RELAYED

    @property
    def is_congested(self) -> bool:
        """Whether a writer of data has to ``wait_for_room``."""
        return not self._channel.has_room

    async def start(self) -> None:
        """Runs until the connection is over; never raises for what the peer does."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_with, self._channel.flush_forever)
                    nursery.start_soon(self._end_with, self._watch)
                    self.event_started.set()
                    await self._end_with(self._receive)
        finally:
            self.event_started.set()
            self._die("the connection is closed")

    async def _end_with(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs one part; its end is the connection's end."""
        try:
            await work()
        except ConnectionClosedError as error:
            self._die(str(error))
        except ProtocolViolation as error:
            self._tell_fault(FaultKind.FLOOD if isinstance(error, _Excess) else FaultKind.INVALID)
            self._say_good_bye(GO_AWAY_PROTOCOL_ERROR)
            self._die(f"the peer broke the yamux protocol: {error}")
        self._scope.cancel()

    async def close(self) -> None:
        """Says good-bye, gives what was written a moment to leave, and closes."""
        if not self.is_closed:
            self._say_good_bye(GO_AWAY_NORMAL)
            with trio.move_on_after(CLOSE_FLUSH_S):
                await self._channel.wait_until_flushed()
        self._die("the connection was closed here")
        await trio.lowlevel.checkpoint()

    def abort(self, reason: str) -> None:
        """Says good-bye and closes at once, whatever is unsent."""
        if not self.is_closed:
            self._say_good_bye(GO_AWAY_NORMAL)
            self._die(reason)

    def _tell_fault(self, kind: FaultKind) -> None:
        if self.on_fault is not None:
            self.on_fault(kind)
            self.on_fault = None

    def _say_good_bye(self, code: int) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self.send_control(GO_AWAY, 0, 0, code)

    def _die(self, reason: str) -> None:
        if self.is_closed:
            return
        self.event_closed.set()
        self._channel.abort()
        for stream in list(self._streams.values()):
            stream.break_off(reason)
        self._accepted.clear()
        self._acceptors.unpark_all()
        self._scope.cancel()

    # --- streams

    async def open_stream(self) -> YamuxStream:
        """A new stream; ``MuxedStreamError`` when the connection is over or too many are open."""
        if not self.is_established:
            raise MuxedStreamError("the connection is closing")
        opened = sum(not stream.is_inbound for stream in self._streams.values())
        if opened >= MAX_OPEN_STREAMS:
            raise MuxedStreamError(f"{MAX_OPEN_STREAMS} streams are open already")
        stream = YamuxStream(self, self._next_stream_id)
        self._next_stream_id += 2
        self._streams[stream.stream_id] = stream
        self.send_control(WINDOW_UPDATE, SYN, stream.stream_id, 0)
        await trio.lowlevel.checkpoint_if_cancelled()
        return stream

    async def accept_stream(self) -> YamuxStream:
        """The next stream that the peer opened; ``MuxedConnUnavailable`` once the connection is over."""
        while not self._accepted:
            if self.is_closed:
                raise MuxedConnUnavailable("the connection is closed")
            await self._acceptors.park()
        return self._accepted.popleft()

    def forget(self, stream: YamuxStream) -> None:
        """Takes a stream that is over out of the table."""
        if self._streams.pop(stream.stream_id, None) is not None:
            self._window_growth -= stream.window_growth
            self.held_bytes -= stream.forgotten()

    def expect_answers(self) -> None:
        """We ask the peer something: a stranger may answer at length."""
        if self.limits is STRANGER_LIMITS:
            self.limits = ASKED_LIMITS

    def hold(self, count: int) -> None:
        """``count`` bytes more wait for their readers; ``ProtocolViolation`` beyond what the peer may make us hold."""
        self.held_bytes += count
        if self.held_bytes > self.limits.held_bytes:
            raise _Excess(f"more than {self.limits.held_bytes} bytes wait for their readers")

    def grow_window(self, window: int, credited_at: float | None) -> int:
        """Bytes by which a stream's window may grow: it doubles while the reader takes half of it within 4 RTT."""
        round_trip_s = self.pings.smoothed_s or 0.001
        if self.limits is GUEST_LIMITS:  # its streams must fit what it may make us hold
            return 0
        if credited_at is None or trio.current_time() - credited_at > 4 * round_trip_s:
            return 0
        growth = min(window, MAX_WINDOW_BYTES - window, MAX_WINDOW_GROWTH_BYTES - self._window_growth)
        self._window_growth += max(0, growth)
        return max(0, growth)

    # --- sending

    def send_data(self, stream_id: int, data: memoryview) -> None:
        """One DATA frame, at most ``MAX_FRAME_BYTES``."""
        self._submit(encode_header(DATA, 0, stream_id, len(data)) + data)

    def send_control(self, kind: int, flags: int, stream_id: int, value: int) -> None:
        """One frame without a body; a peer that lets these pile up is cut off."""
        if self._channel.unsent_bytes > self.limits.unsent_answer_bytes:
            self._tell_fault(FaultKind.FLOOD)
            self._die("the peer does not read")
        self._submit(encode_header(kind, flags, stream_id, value))

    async def wait_for_room(self) -> None:
        """Waits while the socket is behind."""
        await self._channel.wait_for_room()

    def _submit(self, frame: bytes) -> None:
        if self.is_closed:
            return
        try:
            self._channel.submit(frame)
        except ConnectionClosedError as error:
            self._die(str(error))

    # --- receiving

    async def _receive(self) -> None:
        while True:
            data = await self._channel.receive()
            self.pings.note_heard()
            for part in self._parser.feed(data):
                self._take_in(part)
            if self.is_closed:
                return

    def _take_in(self, part: FramePart) -> None:
        if part.kind == PING:
            self._take_in_ping(part)
            return
        if part.kind == GO_AWAY:
            self._is_leaving = True
            return
        if part.is_first and part.flags & SYN:
            self._take_in_new_stream(part.stream_id)
        stream = self._streams.get(part.stream_id)
        if stream is None:
            return  # reset or forgotten here while the frame was on its way
        if part.kind == WINDOW_UPDATE:
            stream.take_in_credit(part.length)
        elif part.body:
            stream.take_in(part.body)
        if part.is_last and part.flags & RST:
            # A member's last words before a reset are heard; a stranger has no stream that nobody has seen to fill.
            if self.limits is STRANGER_LIMITS and stream in self._accepted:
                self._accepted.remove(stream)
                stream.abandon()
            stream.break_off("the peer reset the stream")
        elif part.is_last and part.flags & FIN:
            stream.take_in_end()

    def _take_in_new_stream(self, stream_id: int) -> None:
        if stream_id == 0 or (stream_id % 2 == 1) == self.is_initiator or stream_id in self._streams:
            raise ProtocolViolation("a stream id that is not the peer's to open")
        inbound = sum(stream.is_inbound for stream in self._streams.values())
        limit = self.limits.streams
        if inbound >= limit or len(self._accepted) >= limit or self._is_leaving:
            self.send_control(WINDOW_UPDATE, RST, stream_id, 0)
            return
        stream = YamuxStream(self, stream_id)
        self._streams[stream_id] = stream
        self.send_control(WINDOW_UPDATE, ACK, stream_id, 0)
        self._accepted.append(stream)
        self._acceptors.unpark_all()

    def _take_in_ping(self, part: FramePart) -> None:
        if part.flags & SYN:
            self.send_control(PING, ACK, 0, part.length)
        else:
            self.pings.note_answer(part.length, trio.current_time())

    async def _watch(self) -> None:
        """Pings; ends when the peer has not been heard for too long. Resets streams that it leaves open after us."""
        while not self.pings.is_over:
            self.send_control(PING, SYN, 0, self.pings.begin(trio.current_time()))
            await self._rest()
        self._die("the peer has gone silent")

    async def _rest(self) -> None:
        """Until the next ping. What is quiet is looked at as often as ever, since an exchange may begin."""
        for _ in range(self.pings.vigilance.quiet_intervals):
            await trio.sleep(self.pings.vigilance.interval_s)
            for stream in list(self._streams.values()):
                if stream.abandoned_at is not None and trio.current_time() - stream.abandoned_at > LINGER_S:
                    stream.abort()
            if self.pings.is_awaited or self.exchange_count:
                return

    # --- the rest of libp2p's interface

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The multiaddr of the other end."""
        return self._channel.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct, or through a relay."""
        return self._channel.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Address and port of the other end."""
        return self._channel.get_remote_address()
