"""Circuit relay v2 on our streams: reserving and connecting, and, as a relay, both of them for others.

Owns the messages (the libp2p specification ``relay/circuit-v2``) and the bytes that pass. Who gets what is
``core.relaying``'s, the connection inside a circuit ``circuit``'s. Not py-libp2p's own service: it writes its status
into circuits that have spent their bytes, ends none that is idle, and lets one peer take all places.
"""

import time
from collections.abc import Awaitable, Callable

import trio
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, Reservation, Status, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerField
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError

from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.delimited import receive_delimited, send_delimited
from p2pmesh.adapters.p2p.keys import libp2p_id, peer_id_of
from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.adapters.p2p.yamux import YamuxStream
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import KIB, MICROS_PER_SECOND, Micros, micros
from p2pmesh.core.relaying import Circuit, Place, RelayLedger, RelayLimits, RelayRefusal

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/stop"

MESSAGE_TIMEOUT_S = 10.0
PUMP_BYTES = 64 * KIB
SHORTEST_LIFE_S = 120
LONGEST_LIFE_S = 86_400
"""Relays tell the end of a reservation by their own clock, which may be wrong."""
MAX_LIMIT = 2**32 - 1
"""Of the duration in a message."""

_STATUS = {RelayRefusal.FULL: Status.RESERVATION_REFUSED, RelayRefusal.NO_RESERVATION: Status.NO_RESERVATION}


# --- asking a relay -----------------------------------------------------------
async def reserve(stream: PeerStream) -> int:
    """Asks for a place; for how many seconds. ``PeerUnavailable`` where the relay refuses, ``P2PMeshError``."""
    await send_delimited(stream, HopMessage(type=HopMessage.RESERVE))
    answer = await receive_delimited(stream, HopMessage)
    if answer.type != HopMessage.STATUS or answer.status != Status.OK:
        raise _refused(stream.remote_peer, "keeps no place for us", answer.status)
    life_s = int(answer.reservation.expire - time.time())
    return min(LONGEST_LIFE_S, max(SHORTEST_LIFE_S, life_s))


async def connect(stream: PeerStream, target: ID) -> YamuxStream:
    """Has the relay lead ``stream`` to another peer; from then on it is a circuit. ``PeerUnavailable``, …"""
    await send_delimited(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerField(id=target.to_bytes())))
    answer = await receive_delimited(stream, HopMessage)
    if answer.type != HopMessage.STATUS or answer.status != Status.OK:
        raise _refused(stream.remote_peer, f"does not lead to {peer_id_of(target)}", answer.status)
    return stream.muxed


async def accept(stream: PeerStream, *, is_wanted: bool) -> YamuxStream | None:
    """Answers a relay that leads somebody to us; the circuit if it is wanted."""
    asked = await receive_delimited(stream, StopMessage)
    if asked.type != StopMessage.CONNECT or not asked.HasField("peer"):
        status = Status.MALFORMED_MESSAGE
    else:
        status = Status.OK if is_wanted else Status.PERMISSION_DENIED
    await send_delimited(stream, StopMessage(type=StopMessage.STATUS, status=status))
    return stream.muxed if status == Status.OK else None


def _refused(relay: PeerId, what: str, status: int) -> PeerUnavailable:
    try:
        name = Status.Name(status)  # type: ignore[arg-type]
    except ValueError:
        name = str(status)
    return PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"relay {relay} {what}: {name.lower()}")


# --- being a relay --------------------------------------------------------------
OpenStop = Callable[[PeerId], Awaitable[PeerStream]]
"""A stream of ``STOP_PROTOCOL`` on a direct connection; raises ``PeerUnavailable``."""


class Relay:
    """Serves ``HOP_PROTOCOL``.

    ``is_member`` says who counts as one now, ``network_of`` where a peer is; None for one that itself came by a relay,
    which is refused.
    """

    def __init__(
        self,
        limits: RelayLimits,
        open_stop: OpenStop,
        is_member: Callable[[PeerId], bool],
        network_of: Callable[[PeerId], str | None],
        own_addresses: Callable[[], list[bytes]],
        on_use: Callable[[PeerId], None],
    ) -> None:
        self.ledger = RelayLedger(limits)
        self._open_stop = open_stop
        self._is_member = is_member
        self._network_of = network_of
        self._own_addresses = own_addresses
        self._on_use = on_use
        """Told of each peer that has been given something, and when a circuit of it is over."""

    async def serve(self, stream: PeerStream) -> None:
        """One request: a place, or a circuit and all that passes through it."""
        with trio.move_on_after(MESSAGE_TIMEOUT_S) as waited:
            asked = await receive_delimited(stream, HopMessage)
        if waited.cancelled_caught:
            return
        network = self._network_of(stream.remote_peer)
        if network is None or stream.muxed.muxed_conn.is_relayed:
            await _answer(stream, Status.PERMISSION_DENIED)
        elif asked.type == HopMessage.RESERVE:
            await self._reserve(stream, network)
        elif asked.type == HopMessage.CONNECT and asked.HasField("peer"):
            await self._connect(stream, asked.peer.id, network)
        else:
            await _answer(stream, Status.MALFORMED_MESSAGE)

    async def _reserve(self, stream: PeerStream, network: str) -> None:
        """For who asks, which the connection proves; whom the message names counts for nothing."""
        peer, now = stream.remote_peer, _now()
        self.ledger.count_members(self._is_member)
        place = self.ledger.reserve(peer, network, now, is_member=self._is_member(peer))
        if not isinstance(place, Place):
            await _answer(stream, _STATUS[place])
            return
        self._on_use(peer)
        expire = int(time.time()) + (place.ends_at - now) // MICROS_PER_SECOND
        message = HopMessage(
            type=HopMessage.STATUS,
            status=Status.OK,
            reservation=Reservation(expire=expire, addrs=self._own_addresses()),
            limit=self._limit(is_of_members=place.is_member),
        )
        with trio.move_on_after(MESSAGE_TIMEOUT_S):
            await send_delimited(stream, message)

    def _limit(self, *, is_of_members: bool) -> Limit:
        limits = self.ledger.limits
        if is_of_members:
            return Limit(duration=min(MAX_LIMIT, limits.circuit_s), data=limits.circuit_bytes)
        return Limit(duration=min(MAX_LIMIT, limits.stranger_circuit_s), data=limits.stranger_circuit_bytes)

    async def _connect(self, stream: PeerStream, target_bytes: bytes, network: str) -> None:
        try:
            target = peer_id_of(ID(target_bytes))
        except ValueError:
            await _answer(stream, Status.MALFORMED_MESSAGE)
            return
        source = stream.remote_peer
        is_of_members = self._is_member(source) and self._is_member(target)
        circuit = self.ledger.open_circuit(source, target, network, _now(), is_of_members=is_of_members)
        if not isinstance(circuit, Circuit):
            is_full = circuit is RelayRefusal.FULL
            await _answer(stream, Status.RESOURCE_LIMIT_EXCEEDED if is_full else Status.NO_RESERVATION)
            return
        try:
            await self._lead(stream, circuit)
        finally:
            self.ledger.close_circuit(circuit)
            self._note_use(circuit)

    def _note_use(self, circuit: Circuit) -> None:
        for peer in (circuit.source, circuit.target):
            self._on_use(peer)

    async def _lead(self, stream: PeerStream, circuit: Circuit) -> None:
        stop: PeerStream | None = None
        try:
            with trio.fail_after(MESSAGE_TIMEOUT_S):
                stop = await self._ask_target(circuit)
        except (P2PMeshError, trio.TooSlowError):
            await _answer(stream, Status.CONNECTION_FAILED)
            return
        limit = self._limit(is_of_members=circuit.is_of_members)
        try:
            self._note_use(circuit)
            with trio.move_on_after(MESSAGE_TIMEOUT_S) as waited:  # who reads nothing must not hold a circuit for it
                await send_delimited(stream, HopMessage(type=HopMessage.STATUS, status=Status.OK, limit=limit))
            if not waited.cancelled_caught:
                await Passage(circuit, self._grow, stream.muxed, stop.muxed).run()
        finally:
            await stop.reset()
            await stream.reset()

    async def _ask_target(self, circuit: Circuit) -> PeerStream:
        stop = await self._open_stop(circuit.target)
        try:
            message = StopMessage(
                type=StopMessage.CONNECT,
                peer=PeerField(id=libp2p_id(circuit.source).to_bytes()),
                limit=self._limit(is_of_members=circuit.is_of_members),
            )
            await send_delimited(stop, message)
            answer = await receive_delimited(stop, StopMessage)
        except BaseException:
            with shielded_for(1.0):
                await stop.reset()
            raise
        if answer.type == StopMessage.STATUS and answer.status == Status.OK:
            return stop
        await stop.reset()
        raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "the peer takes no circuit")

    def _grow(self, circuit: Circuit) -> Circuit | None:
        """More for a circuit whose ends were strangers when it began, and are members now."""
        if self._is_member(circuit.source) and self._is_member(circuit.target):
            return self.ledger.extend(circuit, _now())
        return None


class Passage:
    """The bytes of one circuit, until its ends close it or it has had its share."""

    def __init__(
        self, circuit: Circuit, grow: Callable[[Circuit], Circuit | None], source: YamuxStream, target: YamuxStream
    ) -> None:
        self._circuit = circuit
        self._grow = grow
        self._ends = (source, target)
        self._passed = 0
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Returns when it is over, whatever ended it."""
        source, target = self._ends
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                async with trio.open_nursery() as pumps:
                    pumps.start_soon(self._pump, source, target)
                    pumps.start_soon(self._pump, target, source)
                nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """Ends it when its time is up, unless there is more by then."""
        while True:
            await trio.sleep(max(0.0, (self._circuit.ends_at - _now()) / MICROS_PER_SECOND))
            if self._circuit.ends_at <= _now() and not self._has_grown():  # it may have grown meanwhile for its bytes
                self._scope.cancel()

    def _has_grown(self) -> bool:
        longer = self._grow(self._circuit)
        if longer is not None:
            self._circuit = longer
        return longer is not None

    async def _pump(self, giver: YamuxStream, taker: YamuxStream) -> None:
        try:
            while True:
                data = await giver.read(PUMP_BYTES)
                self._passed += len(data)
                if self._passed > self._circuit.most_bytes and not self._has_grown():
                    self._scope.cancel()
                    return
                await taker.write(data)
        except MuxedStreamEOF:
            taker.finish()
        except MuxedStreamError:
            self._scope.cancel()


async def _answer(stream: PeerStream, status: "Status.ValueType") -> None:
    with trio.move_on_after(MESSAGE_TIMEOUT_S):
        await send_delimited(stream, HopMessage(type=HopMessage.STATUS, status=status))
        await stream.finish()


def _now() -> Micros:
    return micros(trio.current_time())
