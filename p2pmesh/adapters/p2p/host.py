"""The libp2p host as ``ports.network.Network``.

Owns start and stop, dialling (every address, staggered, with deadlines; libp2p's own dialler tries two, waits 250 ms
and then refuses the peer for a minute), inbound streams, connection events and the addresses we announce. What peers
could break is cured in ``hardening``; gossip is in ``gossip``.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore, PeerStoreError
from libp2p.rcmgr import Direction
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL_ID
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.adapters.p2p.addresses import (
    ANOTHER_PEER,
    dialable,
    parse_announced_addresses,
    parse_listen_addresses,
    port_in_use,
)
from p2pmesh.adapters.p2p.circuit import CircuitAddress, circuits_to, is_circuit
from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.dht import RecordTable
from p2pmesh.adapters.p2p.events import ConnectionEvents
from p2pmesh.adapters.p2p.gossip import Gossip, open_gossip
from p2pmesh.adapters.p2p.hardening import (
    MAX_CONNECTIONS_PER_PEER,
    HardenedHost,
    HardenedSwarm,
    HardenedUpgrader,
    faults,
    harden_libp2p,
)
from p2pmesh.adapters.p2p.keys import libp2p_id, libp2p_key_pair, peer_id_of
from p2pmesh.adapters.p2p.noise import NoiseTransport
from p2pmesh.adapters.p2p.own_addresses import OwnAddresses
from p2pmesh.adapters.p2p.racing import Attempt, DialRace
from p2pmesh.adapters.p2p.reach import Reach
from p2pmesh.adapters.p2p.streams import PeerStream, forget_net_stream, open_stream_on
from p2pmesh.adapters.p2p.yamux import PROTOCOL_ID as YAMUX_PROTOCOL_ID
from p2pmesh.adapters.p2p.yamux import YamuxConnection, YamuxStream
from p2pmesh.adapters.p2p.yamux_pings import Vigilance
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.core.addresses import AddressChoice
from p2pmesh.ports.interfaces import Interfaces
from p2pmesh.ports.network import (
    ConnectionEvent,
    ConnectionUse,
    PathKind,
    PeerFault,
    Provider,
    RecordPeers,
    StreamServer,
    Subscription,
)

MAX_CONNECTIONS = 512
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
DISCONNECT_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Built:
    """What a network stands on."""

    host: HardenedHost
    swarm: HardenedSwarm
    noise: NoiseTransport
    own_addresses: OwnAddresses


class Libp2pNetwork:
    """Implements ``ports.network.Network`` on a running host; made by ``open_network``."""

    def __init__(self, built: _Built, gossip: Gossip, events: ConnectionEvents) -> None:
        host, swarm, own_addresses = built.host, built.swarm, built.own_addresses
        self._host = host
        self._swarm = swarm
        self._gossip = gossip
        self._events = events
        self._own_addresses = own_addresses
        self._peer_id = peer_id_of(host.get_id())
        self._dialling: dict[PeerId, trio.Event] = {}
        self.records = RecordTable(host, self.open_stream, lambda: len(events.connected_peers()))
        self.reach = Reach(self, host, swarm, built.noise)

    @property
    def peer_id(self) -> PeerId:
        """Our own peer id."""
        return self._peer_id

    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs that others can dial us at: direct ones, best first, then those at relays."""
        return self.reach.with_found(tuple(str(address) for address in self._host.get_addrs()))

    def bound_addresses(self) -> tuple[str, ...]:
        """Multiaddrs that are listened on, "every interface" as it is."""
        return tuple(str(address) for address in self._host.get_transport_addrs())

    def address_choice(self) -> AddressChoice:
        """What others are told of them, and what not, for which reason."""
        return self._own_addresses.choose(self._host.get_transport_addrs())

    # --- connections

    async def dial(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> None:
        """Connects unless connected; ``PeerUnavailable(PEER_UNREACHABLE)``, ``ConfigError(ADDRESS_INVALID)``."""
        target = libp2p_id(peer)
        if peer == self._peer_id:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "that address leads to this node itself")
        if self._swarm.gate.is_banned(target):
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"peer {peer} is banned here for what it did")
        circuits = circuits_to(peer, addresses)
        direct = tuple(address for address in addresses if not is_circuit(address))
        usable: tuple[Multiaddr, ...] = ()
        with suppress(*((ConfigError,) if circuits else ())):  # with a way that is good, a bad one is passed over
            usable = self._ordered(dialable(peer, direct))
        race = DialRace()
        with trio.move_on_after(timeout_s):
            while peer in self._dialling:
                await self._dialling[peer].wait()
            if self._connection(target) is not None:
                return
            done = self._dialling[peer] = trio.Event()
            try:
                relayed = [self._by_relay(target, one) for one in circuits]
                await race.run([self._by_address(target, one) for one in usable], relayed)
            finally:
                del self._dialling[peer]
                done.set()
        if self._connection(target) is None:
            names = (*map(str, usable), *(_relay_name(one) for one in circuits))
            tried = ", ".join(f"{name} ({race.failures.get(name, 'no answer')})" for name in names)
            tried = tried or ("only addresses of this node" if addresses else "no usable address was given")
            raise PeerUnavailable(
                ErrorCode.PEER_UNREACHABLE, f"cannot reach peer {peer} within {timeout_s:g} s; tried: {tried}"
            )

    def _ordered(self, addresses: tuple[Multiaddr, ...]) -> tuple[Multiaddr, ...]:
        return self._own_addresses.order_dials(addresses, self._host.get_transport_addrs())

    def _by_address(self, target: ID, address: Multiaddr) -> Attempt:
        return Attempt(str(address), partial(self._dial_address, target, address))

    def _by_relay(self, target: ID, circuit: CircuitAddress) -> Attempt:
        return Attempt(_relay_name(circuit), partial(self.reach.dial_circuit, target, circuit))

    async def _dial_address(self, target: ID, address: Multiaddr) -> None:
        """Who else answers there is no fault of the peer."""
        connection = await self._swarm.dial_addr(address, target)
        if connection.muxed_conn.peer_id != target:
            await self._close(connection)
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, ANOTHER_PEER)

    async def dial_direct(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> None:
        """Connects past relays, also where a relayed connection stands; ``PeerUnavailable(PEER_UNREACHABLE)``."""
        target = libp2p_id(peer)
        with trio.move_on_after(timeout_s):
            while peer in self._dialling and self._swarm.direct_connection(target) is None:
                await self._dialling[peer].wait()
            if self._swarm.direct_connection(target) is None:
                usable = self._ordered(dialable(peer, addresses))
                await DialRace().run([self._by_address(target, one) for one in usable])
        if self._swarm.direct_connection(target) is None:
            text = f"cannot reach peer {peer} without a relay within {timeout_s:g} s"
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, text)

    def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a connection now."""
        return self._events.connected_peers()

    async def connection_event(self) -> ConnectionEvent:
        """Waits for the next event, folded per peer."""
        return await self._events.next()

    async def disconnect(self, peer: PeerId) -> None:
        """Closes every connection to a peer."""
        with suppress(P2PMeshError):
            await self._close_all(self._swarm.get_connections(libp2p_id(peer)))

    def admit(self, peer: PeerId) -> None:
        """Gives the connections of a peer the limits of a member, and opens gossip to it."""
        with suppress(P2PMeshError):
            target = libp2p_id(peer)
            self._swarm.admit(target)
            if self._swarm.gate.is_admitted(target):
                self._gossip.admit(target)

    def dismiss(self, peer: PeerId) -> None:
        """Takes back ``admit``."""
        with suppress(P2PMeshError):
            self._swarm.dismiss(libp2p_id(peer))
            self._gossip.dismiss(libp2p_id(peer))

    def ban(self, peer: PeerId) -> None:
        """Cuts a peer off, and each new connection of it as soon as it has proved its identity."""
        with suppress(P2PMeshError):
            self._swarm.ban(libp2p_id(peer))
            self._gossip.dismiss(libp2p_id(peer))

    def unban(self, peer: PeerId) -> None:
        """Lets a peer connect again."""
        with suppress(P2PMeshError):
            self._swarm.gate.unban(libp2p_id(peer))

    async def peer_fault(self) -> PeerFault:
        """Waits for the next report of a peer that broke a rule of a connection."""
        return await self._swarm.peer_faults.next()

    async def _close_all(self, connections: list[INetConn]) -> None:
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(self._close, connection)

    async def _close(self, connection: INetConn) -> None:
        with shielded_for(DISCONNECT_TIMEOUT_S):
            try:
                await connection.close()
            except Exception as error:  # noqa: BLE001  closing must never fail for the caller
                faults.note("closing a connection", error)

    async def close_connections(self) -> None:
        """Closes all, at once; for the end."""
        await self._close_all(self._swarm.get_connections())

    def round_trip_s(self, peer: PeerId) -> float | None:
        """The newest ping of the connection, as it was; None if not connected or not measured yet."""
        connection = self._connection(libp2p_id(peer))
        return None if connection is None else connection.pings.newest_s

    def slowest_round_trip_s(self, peer: PeerId) -> float | None:
        """The slowest of the connection's recent pings; None if not connected or too few were answered."""
        connection = self._connection(libp2p_id(peer))
        return None if connection is None else connection.pings.slowest_s

    def path_of(self, peer: PeerId) -> PathKind | None:
        """Whether the connection goes through a relay; None if not connected."""
        connection = self._connection(libp2p_id(peer))
        if connection is None:
            return None
        return PathKind.RELAYED if connection.is_relayed else PathKind.DIRECT

    def uses(self) -> dict[PeerId, ConnectionUse]:
        """Of each connected peer the exchanges that are open, and whether it is in a gossip mesh."""
        meshed, relay_users = self._gossip.meshed_peers(), self.reach.relay_users()
        uses: dict[PeerId, ConnectionUse] = {}
        for connection in self._swarm.get_connections():
            muxed = connection.muxed_conn
            if isinstance(muxed, YamuxConnection) and not muxed.is_closed:
                peer = peer_id_of(muxed.peer_id)
                before = uses.get(peer) or ConnectionUse(int(peer in relay_users), muxed.peer_id in meshed)
                uses[peer] = replace(before, exchanges=before.exchanges + muxed.exchange_count)
        return uses

    def _connection(self, target: ID) -> YamuxConnection | None:
        return self._swarm.newest_connection(target)

    # --- streams

    async def open_stream(self, peer: PeerId, protocol_id: str, timeout_s: float) -> PeerStream:
        """A new stream on the connection that stands; ``PeerUnavailable``."""
        connection = self._connection(libp2p_id(peer))
        if connection is None:
            await trio.lowlevel.checkpoint()  # whoever tries in a loop must let the end of the connection be noticed
            raise PeerUnavailable(ErrorCode.PEER_LOST, f"there is no connection to peer {peer}; dial it first")
        return await open_stream_on(connection, protocol_id, timeout_s)

    def serve(self, protocol_id: str, server: StreamServer | Callable[[PeerStream], Awaitable[None]]) -> None:
        """Serves inbound streams of a protocol; a server that raises costs its stream, nothing else."""

        async def handle(net_stream: INetStream) -> None:
            muxed = getattr(net_stream, "muxed_stream", None)
            if not isinstance(muxed, YamuxStream):
                return
            await self._serve_stream(net_stream, PeerStream(muxed), server)

        self._host.set_stream_handler(TProtocol(protocol_id), handle)

    async def _serve_stream(
        self, net_stream: INetStream, stream: PeerStream, server: Callable[[PeerStream], Awaitable[None]]
    ) -> None:
        try:
            await server(stream)
            stream.close()
        except P2PMeshError as error:
            log.debug("a stream of %s ended: %s", stream.remote_peer, error)
        except Exception:  # one stream's fault; the node goes on
            log.exception("the server of %s failed", net_stream.get_protocol())
        finally:
            if not stream.is_closed:
                await stream.reset()
            await forget_net_stream(net_stream)

    # --- gossip

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossips ``data``; silently lossy."""
        await self._gossip.publish(topic, data)

    async def subscribe(self, topic: str, validator: Callable[[bytes], bool]) -> Subscription:
        """Joins a topic."""
        return await self._gossip.subscribe(topic, validator)

    # --- provider records

    def serve_records(self, peers: RecordPeers, *, is_server: bool) -> None:
        """Takes part in the provider records."""
        self.records.serve(peers, is_server=is_server)

    async def provide(self, key: bytes, timeout_s: float) -> int:
        """Tells the closest peers that we provide a key; how many took it."""
        return await self.records.provide(key, timeout_s)

    def stop_providing(self, key: bytes) -> None:
        """Forgets our own record of a key here."""
        self.records.stop_providing(key)

    async def find_providers(self, key: bytes, limit: int, timeout_s: float) -> tuple[Provider, ...]:
        """Who is said to provide a key."""
        return await self.records.find_providers(key, limit, timeout_s)


def _relay_name(circuit: CircuitAddress) -> str:
    return f"relay {circuit.relay}"


class _ConnectionWatch(INotifee):
    """Tells the events of what libp2p connects, and lets the peer store forget who is gone."""

    def __init__(self, swarm: HardenedSwarm, events: ConnectionEvents) -> None:
        self._swarm = swarm
        self._events = events
        self.on_direct_gone: Callable[[PeerId], None] = lambda peer: None

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        is_inbound = getattr(conn, "direction", None) == Direction.INBOUND
        self._events.connected(peer_id_of(conn.muxed_conn.peer_id), is_inbound=is_inbound)
        self._swarm.paths.mark()

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        peer = conn.muxed_conn.peer_id
        self._swarm.paths.mark()
        left = [muxed for muxed in self._swarm.connections_of(peer) if not muxed.is_relayed and not muxed.is_closed]
        if not left:  # one that is only beginning counts
            self.on_direct_gone(peer_id_of(peer))
        if not self._swarm.get_connections(peer):
            self._swarm.gate.forget(peer)
            self._events.disconnected(peer_id_of(peer))
            with suppress(PeerStoreError):
                self._swarm.peerstore.clear_peerdata(peer)

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        pass

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        pass

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        pass

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        pass


class _Runner:
    """Runs a host in a task of its own, shielded: whoever is cancelled outside, the host still stops in order.

    libp2p's services open nurseries that must be left in the task and in the order in which they were entered; and a
    stop that is cancelled half-way leaves its listening sockets behind.
    """

    def __init__(self, built: _Built, listen: tuple[Multiaddr, ...]) -> None:
        self._built = built
        self._host = built.host
        self._swarm = built.swarm
        self._listen = listen
        self._stopping = trio.Event()
        self._outcome: Libp2pNetwork | ConfigError | None = None
        self._decided = trio.Event()

    async def started(self) -> "Libp2pNetwork | ConfigError":
        """Waits for the running network, or for why it cannot run."""
        await self._decided.wait()
        assert self._outcome is not None
        return self._outcome

    def stop(self) -> None:
        """Asks for the end; it comes within ``STOP_TIMEOUT_S``."""
        self._stopping.set()

    async def run(self) -> None:
        """Starts, says so (or why not), and runs until ``stop``."""
        with shielded_for(START_TIMEOUT_S) as scope:
            async with AsyncExitStack() as stack:
                outcome = await self._start(stack)
                self._outcome = outcome
                self._decided.set()
                if isinstance(outcome, Libp2pNetwork):
                    scope.deadline = float("inf")
                    await self._stopping.wait()
                    scope.deadline = trio.current_time() + STOP_TIMEOUT_S
                    await outcome.close_connections()
        if not self._decided.is_set():
            self._outcome = ConfigError(
                ErrorCode.CONFIG_INVALID,
                f"the network did not start within {START_TIMEOUT_S:g} s; is the machine overloaded?",
            )
            self._decided.set()

    async def _stop_listening(self) -> None:
        """libp2p closes its listeners in tasks that it has already cancelled, so they stay open for ever."""
        for listener in list(self._swarm.listeners.values()):
            await listener.close()
        self._swarm.listeners.clear()

    async def _start(self, stack: AsyncExitStack) -> "Libp2pNetwork | ConfigError":
        events = ConnectionEvents()
        watch = _ConnectionWatch(self._swarm, events)
        self._swarm.register_notifee(watch)
        await stack.enter_async_context(self._host.run(self._listen))
        stack.push_async_callback(self._stop_listening)
        for address in self._listen:
            if str(address) not in self._swarm.listeners:
                return port_in_use(str(address))
        gossip = await stack.enter_async_context(open_gossip(self._host))
        network = Libp2pNetwork(self._built, gossip, events)
        watch.on_direct_gone = network.reach.forget
        await stack.enter_async_context(network.records.running())
        return network


@asynccontextmanager
async def open_network(
    identity: NodeIdentity,
    listen: tuple[str, ...],
    *,
    vigilance: Vigilance | None = None,
    max_connections: int = MAX_CONNECTIONS,
    announce: tuple[str, ...] = (),
    interfaces: Interfaces | None = None,
) -> AsyncIterator[Libp2pNetwork]:
    """A started host that listens on ``listen`` (multiaddrs) under the key of ``identity``.

    Others are told ``announce``, or, where it is empty, what ``core.addresses`` chooses of what it listens on.

    Raises ``ConfigError``: ``ADDRESS_INVALID``, ``PORT_IN_USE``, ``CONFIG_INVALID`` for another libp2p than the one we
    harden. Leaving the scope closes everything within ``STOP_TIMEOUT_S``, also when it is left by cancellation.
    """
    harden_libp2p()
    listen_addresses = parse_listen_addresses(listen)
    own_addresses = OwnAddresses(parse_announced_addresses(announce), interfaces or SystemInterfaces())
    built = _build_host(identity, vigilance or Vigilance(), max_connections, own_addresses)
    runner = _Runner(built, listen_addresses)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        started = await runner.started()
        if isinstance(started, ConfigError):
            failure = started
        else:
            try:
                yield started
            except Exception as error:  # noqa: BLE001  passed on below, not wrapped in this nursery's group
                failure = error
            finally:
                runner.stop()
    if failure is not None:
        raise failure


def _build_host(
    identity: NodeIdentity, vigilance: Vigilance, max_connections: int, own_addresses: OwnAddresses
) -> _Built:
    """Noise and yamux over TCP, nothing else: libp2p's defaults accept a peer under any name it likes."""
    keys = libp2p_key_pair(identity)
    noise = NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)
    upgrader = HardenedUpgrader({TProtocol(NOISE_PROTOCOL_ID): noise}, {TProtocol(YAMUX_PROTOCOL_ID): YamuxConnection})
    upgrader.vigilance = vigilance
    peer_store = PeerStore()
    own_id = ID.from_pubkey(keys.public_key)
    peer_store.add_key_pair(own_id, keys)
    swarm = HardenedSwarm(
        own_id,
        peer_store,
        upgrader,
        transports=[TCP()],
        retry_config=RetryConfig(max_retries=0),
        connection_config=ConnectionConfig(
            max_connections=max_connections,
            min_connections=0,
            low_watermark=0,
            high_watermark=max_connections,
            max_connections_per_peer=2 * MAX_CONNECTIONS_PER_PEER,
        ),
    )

    upgrader.gate = swarm.gate

    def announce(bound: list[Multiaddr]) -> list[Multiaddr]:
        return [Multiaddr(text) for text in own_addresses.choose(bound).announced]

    host = HardenedHost(network=swarm, addrs_factory=announce, disable_identify_address_discovery=True)
    host.guard_streams()
    return _Built(host, swarm, noise, own_addresses)
