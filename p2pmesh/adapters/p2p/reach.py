"""Implements ``ports.reach.ReachPort`` on a running host: puts relay, witnesses and hole punching together.

Serves their protocols, keeps which relays are ours and what we announce for them. Decisions are ``node.reach``'s.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Protocol

import trio
from libp2p.abc import INetConn, IRawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from p2pmesh.adapters.p2p import autonat, punch, relay
from p2pmesh.adapters.p2p.addresses import TcpAddress
from p2pmesh.adapters.p2p.circuit import CircuitAddress, CircuitCarrier
from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.hardening import HardenedHost, HardenedSwarm
from p2pmesh.adapters.p2p.keys import libp2p_id, peer_id_of
from p2pmesh.adapters.p2p.noise import NoiseChannel, NoiseTransport, SocketChannel
from p2pmesh.adapters.p2p.sockets import connect_from_listen_port, interface_addresses, listen_port
from p2pmesh.adapters.p2p.streams import PeerStream, open_stream_on
from p2pmesh.adapters.p2p.yamux import GUEST_LIMITS, MEMBER_LIMITS, STRANGER_LIMITS, YamuxConnection, YamuxStream
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ADDRESSES
from p2pmesh.base.quantities import micros
from p2pmesh.core.addresses import is_loopback
from p2pmesh.core.reachability import DialBack, network_of
from p2pmesh.core.relaying import RelayLimits
from p2pmesh.ports.reach import PeerPaths, RelayUse, Sight

RELAY_TIMEOUT_S = 8.0
LOCAL_NETWORK = "local"
"""Of peers on this machine: there each counts as of one network."""


class Hub(Protocol):
    """What this needs of the network that it is a part of."""

    async def dial_direct(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> None:
        """Connects past relays."""

    def serve(self, protocol_id: str, server: Callable[[PeerStream], Awaitable[None]]) -> None:
        """Serves inbound streams."""


class Reach:
    """Being reached, of one host."""

    def __init__(self, hub: Hub, host: HardenedHost, swarm: HardenedSwarm, noise: NoiseTransport) -> None:
        self._hub = hub
        self._host = host
        self._swarm = swarm
        self._noise = noise
        self._relays: dict[PeerId, None] = {}
        """Peers that may lead others to us."""
        self._starting: set[PeerId] = set()
        """Peers that we try to meet of our own accord. Apart from the next: both ends may start at once."""
        self._meetings = punch.Meetings()
        self._own: tuple[str, ...] = ()
        self._besides: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._relay = relay.Relay(
            RelayLimits(), self._open_stop, self._is_member, self._network_of, self._told_addresses, self._fit_limits
        )
        self._is_relaying = False
        self._witness = autonat.DialBackServer(self._prove)
        hub.serve(relay.HOP_PROTOCOL, self._serve_hop)
        hub.serve(relay.STOP_PROTOCOL, self._serve_stop)
        hub.serve(autonat.AUTONAT_PROTOCOL, self._witness.serve)
        hub.serve(punch.DCUTR_PROTOCOL, self._serve_punch)

    # --- what is there

    def own_hosts(self) -> frozenset[str]:
        """Addresses of this machine's interfaces."""
        return interface_addresses()

    def inner_hosts(self) -> frozenset[str]:
        """Those of its containers."""
        return interface_addresses(is_inner_only=True)

    def listen_port(self) -> int | None:
        """The TCP port that is listened on."""
        return listen_port(self._swarm)

    def remote_host(self, peer: PeerId) -> str | None:
        """The address at the other end of the direct connection."""
        connection = self._swarm.direct_connection(libp2p_id(peer))
        address = None if connection is None else connection.get_remote_address()
        return None if address is None else address[0]

    def dialled_address(self, peer: PeerId) -> str | None:
        """Where a direct connection that we opened leads."""
        for connection in self._swarm.connections_of(libp2p_id(peer)):
            address = connection.get_remote_address()
            if connection.is_initiator and not connection.is_relayed and address is not None:
                host = address[0].partition("%")[0]
                return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{address[1]}"
        return None

    def paths_of(self, peer: PeerId) -> PeerPaths:
        """How a peer is connected now."""
        target = libp2p_id(peer)
        relayed = self._swarm.relayed_connections(target)
        was_dialled = bool(relayed) and not relayed[-1].is_initiator
        return PeerPaths(self._swarm.direct_connection(target) is not None, bool(relayed), was_dialled)

    async def paths_changed(self, seen: int) -> int:
        """Waits until connections have come or gone."""
        return await self._swarm.paths.wait_beyond(seen)

    def with_found(self, listened: tuple[str, ...]) -> tuple[str, ...]:
        """What is announced beside what is listened on, loopback last."""
        own = peer_id_of(self._host.get_id())
        direct, relayed = ([f"{address}/p2p/{own}" for address in some] for some in self._besides)
        local = [address for address in listened if is_loopback(address)]
        others = [address for address in listened if address not in local]
        return tuple(dict.fromkeys((*others, *direct, *relayed, *local)))[:MAX_ADDRESSES]

    def announce_besides(self, direct: tuple[str, ...], relayed: tuple[str, ...]) -> None:
        """What ``with_found`` adds."""
        self._besides = (direct, relayed)

    # --- witnesses

    async def observe(self, peer: PeerId, timeout_s: float) -> Sight | None:
        """Where a directly connected peer sees us."""
        connection = self._swarm.direct_connection(libp2p_id(peer))
        return None if connection is None else await _observe(connection, timeout_s)

    async def observe_listen_port(self, peer: PeerId, timeout_s: float) -> Sight | None:
        """The same, from the port that we listen on: one connection more, for no longer than the question takes."""
        connection = self._swarm.direct_connection(libp2p_id(peer))
        address = None if connection is None else connection.get_remote_address()
        if connection is None or address is None or not connection.is_initiator:
            return None
        seen: list[Sight | None] = []
        with trio.move_on_after(timeout_s), suppress(P2PMeshError):
            raw = await connect_from_listen_port(self._swarm, *address[:2])
            try:
                muxed = await self._upgrade_apart(raw, connection.peer_id)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(muxed.start)
                    await muxed.event_started.wait()
                    seen.append(await _observe(muxed, timeout_s))
                    await muxed.close()
                    nursery.cancel_scope.cancel()
            finally:
                with shielded_for(1.0):
                    await raw.close()
        return seen[0] if seen else None

    async def _upgrade_apart(self, raw: IRawConnection, peer: ID) -> YamuxConnection:
        """A connection that the swarm does not hear of."""
        upgrader = self._swarm.upgrader
        try:
            secured = await upgrader.upgrade_security(raw, True, peer)
            muxed = await upgrader.upgrade_connection(secured, peer)
        except Exception as error:
            text = "the handshake from our own port failed"
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, text) from error
        assert isinstance(muxed, YamuxConnection)
        return muxed

    async def ask_dial_back(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> tuple[DialBack, str]:
        """Has a peer dial us."""
        answer = (DialBack.DECLINED, "")
        with trio.move_on_after(timeout_s), suppress(P2PMeshError):
            stream = await self._open_direct(peer, autonat.AUTONAT_PROTOCOL, timeout_s)
            try:
                answer = await autonat.ask(stream, self._host.get_id(), addresses)
            finally:
                await stream.reset()
        return answer

    async def _prove(self, address: TcpAddress, peer: ID) -> bool:
        return await autonat.prove_dialable(self._swarm.upgrader, address, peer)

    async def _open_direct(self, peer: PeerId, protocol_id: str, timeout_s: float) -> PeerStream:
        connection = self._swarm.direct_connection(libp2p_id(peer))
        if connection is None:
            raise PeerUnavailable(ErrorCode.PEER_LOST, f"there is no direct connection to peer {peer}")
        return await open_stream_on(connection, protocol_id, timeout_s)

    # --- relays that we use

    async def reserve(self, relay_peer: PeerId, timeout_s: float) -> int:
        """Has a peer keep a place for us; for how many seconds."""
        life_s = 0
        with trio.move_on_after(timeout_s):
            stream = await self._open_direct(relay_peer, relay.HOP_PROTOCOL, timeout_s)
            was_ours = relay_peer in self._relays  # a place that is not renewed stands to its end
            self._relays[relay_peer] = None  # before the answer is here, somebody may be led to us
            try:
                life_s = await relay.reserve(stream)
            finally:
                await stream.reset()
                if not life_s and not was_ours:
                    self.give_up_relay(relay_peer)
        if not life_s:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"relay {relay_peer} did not answer in {timeout_s:g} s")
        self._relays[relay_peer] = None  # also if it was given up meanwhile, for its last place had ended
        self._make_guest(libp2p_id(relay_peer))
        return life_s

    def give_up_relay(self, relay_peer: PeerId) -> None:
        """Takes no more circuits from a peer."""
        self._relays.pop(relay_peer, None)

    async def dial_circuit(self, target: ID, circuit: CircuitAddress) -> INetConn:
        """Connects through a relay, which is connected to first if need be; raises whatever goes wrong."""
        await self._hub.dial_direct(circuit.relay, (str(circuit.via.multiaddr()),), RELAY_TIMEOUT_S)
        stream = await self._open_direct(circuit.relay, relay.HOP_PROTOCOL, RELAY_TIMEOUT_S)
        is_done = False
        try:
            muxed = await relay.connect(stream, target)
            self._make_guest(libp2p_id(circuit.relay))
            connection = await self._swarm.upgrade_outbound_raw_conn(CircuitCarrier(muxed, is_initiator=True), target)
            self._make_guest(libp2p_id(circuit.relay))  # again: only now is it seen that it leads us
            is_done = True
        finally:
            if not is_done:
                await stream.reset()
        return connection

    def _make_guest(self, peer: ID) -> None:
        """A stranger through which circuits go makes us hold what their windows take."""
        for connection in self._swarm.connections_of(peer):
            if connection.limits is not MEMBER_LIMITS:
                connection.limits = GUEST_LIMITS

    def _fit_limits(self, peer: PeerId) -> None:
        """A guest's limits as long as it has something here, and no longer: who only asks has a stranger's."""
        users = self.relay_users()
        if peer in users:
            self._make_guest(libp2p_id(peer))
        everyone = [connection.muxed_conn for connection in self._swarm.get_connections()]
        guests = [one for one in everyone if isinstance(one, YamuxConnection) and one.limits is GUEST_LIMITS]
        for guest in guests:
            if peer_id_of(guest.peer_id) not in users:
                guest.limits = STRANGER_LIMITS

    async def _serve_stop(self, stream: PeerStream) -> None:
        """Somebody is led to us."""
        is_wanted = stream.remote_peer in self._relays and not stream.muxed.muxed_conn.is_relayed
        muxed: YamuxStream | None = None
        with trio.move_on_after(RELAY_TIMEOUT_S):
            muxed = await relay.accept(stream, is_wanted=is_wanted)
        if muxed is None:
            return
        carrier = CircuitCarrier(muxed, is_initiator=False)
        with suppress(SwarmException):  # it says so when the connection has ended
            await self._swarm.upgrade_inbound_raw_conn(carrier, Multiaddr(f"/p2p/{stream.remote_peer}/p2p-circuit"))

    # --- being a relay

    def offer_relay(self, limits: RelayLimits | None) -> None:
        """Relays for others, or no more."""
        self._is_relaying = limits is not None
        if limits is not None:
            self._relay.ledger.limits = limits

    def relay_use(self) -> RelayUse:
        """What is relayed now."""
        ledger = self._relay.ledger
        return RelayUse(ledger.place_count(micros(trio.current_time())), ledger.circuit_count)

    def uses_relay(self, peer: PeerId) -> bool:
        """Whether a peer has a place or a circuit here, or keeps one for us; ``relay_users`` for many peers."""
        return peer in self.relay_users()

    def relay_users(self) -> frozenset[PeerId]:
        """Of all peers those; one walk over the connections."""
        return frozenset((*self._relays, *self._leading_us(), *self._relay.ledger.users(micros(trio.current_time()))))

    def _leading_us(self) -> Iterator[PeerId]:
        """Peers through which circuits of ours go."""
        for connection in self._swarm.get_connections():
            muxed = connection.muxed_conn
            if isinstance(muxed, YamuxConnection) and muxed.is_relayed and isinstance(muxed.secured_conn, NoiseChannel):
                raw = muxed.secured_conn.raw
                if isinstance(raw, CircuitCarrier):
                    yield raw.relay

    def forget(self, peer: PeerId) -> None:
        """The last direct connection to a peer is gone, and with it all places."""
        self.give_up_relay(peer)
        self._relay.ledger.forget(peer)

    async def _serve_hop(self, stream: PeerStream) -> None:
        if not self._is_relaying:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "this node relays for nobody")
        await self._relay.serve(stream)

    async def _open_stop(self, peer: PeerId) -> PeerStream:
        return await self._open_direct(peer, relay.STOP_PROTOCOL, relay.MESSAGE_TIMEOUT_S)

    def _is_member(self, peer: PeerId) -> bool:
        return self._swarm.gate.is_admitted(libp2p_id(peer))

    def _network_of(self, peer: PeerId) -> str | None:
        host = self.remote_host(peer)
        return None if host is None else network_of(host) or LOCAL_NETWORK

    def _told_addresses(self) -> list[bytes]:
        told = []
        for address in self._host.get_addrs():
            with suppress(MultiaddrError, ValueError):
                told.append(Multiaddr(str(address)).to_bytes())
        return told[:8]

    # --- direct paths

    def set_own_addresses(self, own: tuple[str, ...]) -> None:
        """Where we may be met."""
        self._own = own

    async def punch(self, peer: PeerId, own: tuple[str, ...], timeout_s: float) -> bool:
        """Tries for a direct connection to a peer that dialled us through a relay."""
        target = libp2p_id(peer)
        relayed = self._swarm.relayed_connections(target)
        if not relayed or peer in self._starting:
            return self._swarm.direct_connection(target) is not None
        self._starting.add(peer)
        try:
            with trio.move_on_after(timeout_s), suppress(P2PMeshError, trio.TooSlowError):
                stream = await open_stream_on(relayed[-1], punch.DCUTR_PROTOCOL, timeout_s)
                try:
                    addresses, round_trip_s = await punch.start(stream, own)
                    await trio.sleep(round_trip_s / 2)
                    await self._meet(target, addresses, round_trip_s, is_server=True)
                finally:
                    await stream.reset()
        finally:
            self._starting.discard(peer)
        return self._swarm.direct_connection(target) is not None

    async def _serve_punch(self, stream: PeerStream) -> None:
        """Only members, and only through a relay: where we connect to is what the other end says."""
        peer = stream.remote_peer
        is_allowed = stream.muxed.muxed_conn.is_relayed and self._is_member(peer)
        if not is_allowed or not self._meetings.enter(peer, micros(trio.current_time())):
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "no direct connection is tried now")
        try:
            with suppress(trio.TooSlowError):
                addresses = await punch.answer_start(stream, self._own)
                await self._meet(libp2p_id(peer), addresses, 0.0, is_server=False)
        finally:
            self._meetings.leave(peer)

    async def _meet(self, peer: ID, addresses: list[TcpAddress], round_trip_s: float, *, is_server: bool) -> None:
        meeting = punch.Meeting(self._swarm, self._noise, peer, round_trip_s, is_server=is_server)
        self._swarm.meeting.add(peer)
        try:
            await meeting.run(addresses)
        finally:
            self._swarm.meeting.discard(peer)

    async def close_relayed(self, peer: PeerId) -> bool:
        """Closes relayed connections that we opened and that nothing runs on, where a direct one stands."""
        target = libp2p_id(peer)
        if self._swarm.direct_connection(target) is None:
            return False
        for connection in self._swarm.relayed_connections(target):
            if connection.is_initiator and not connection.exchange_count:
                with shielded_for(2.0):
                    await connection.close()
        return not self._swarm.relayed_connections(target)


async def _observe(connection: YamuxConnection, timeout_s: float) -> Sight | None:
    channel = connection.secured_conn
    local_port = channel.local_port if isinstance(channel, SocketChannel) else None
    seen: tuple[str, int] | None = None
    with trio.move_on_after(timeout_s), suppress(P2PMeshError):
        stream = await open_stream_on(connection, autonat.IDENTIFY_PROTOCOL, timeout_s)
        try:
            seen = await autonat.read_observed(stream)
        finally:
            await stream.reset()
    return None if seen is None or local_port is None else Sight(seen[0], seen[1], local_port)
