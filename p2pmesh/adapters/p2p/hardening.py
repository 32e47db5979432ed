"""Everything in py-libp2p 0.8.1 that a peer could use against us, replaced or guarded; applied once per process.

Owns: the assertion that the installed libp2p is the one these cures were written for; subclasses of its services in
which no task of a peer's making can end the host; what is patched in modules because no parameter reaches it. The
multiplexer (``yamux``) and the secure channel (``noise``) are replacements of their own.

Cured here, each measured or read in the installed source:

- an exception in a stream handler, or in any task of swarm, pubsub or gossipsub, cancelled the whole process;
- a malformed pubsub message, a garbage key in one or a raising validator did the same;
- the inbound limit was never given back: after ``max_connections`` inbound connections in the life of a process,
  every further one was refused;
- a connection that ended while it was registered stayed in the table, and so many of them filled it for good;
- one peer could take all inbound slots, and every name ever seen stayed in the peer store;
- listening sockets shared their port (SO_REUSEPORT) with any process of the same user, which got half of the peers;
- whoever connected was told all gossip, and could say what it liked;
- a peer that restarted before its old connection ended was neither heard nor told anything by gossip;
- a gossip message whose peer record was older than the last was dropped: of two nodes with one peer id the older was
  not heard any more, and could not be found out;
- control lists of a gossip message were not bounded, and topics nobody joined grew tables for ever;
- a thousand gossip messages of up to 64 KiB were kept, and the time of every one for ever;
- the auto-connector dials every peer that was ever heard of;
- a peer with a relayed connection beside a direct one was not told where it was seen on either;
- ``logging.warning`` on the root logger, and an error line for each normal end of a connection.
"""

import importlib
import importlib.metadata
import logging
import socket as stdlib_socket
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import libp2p.identity.identify.identify as libp2p_identify
import libp2p.network.connection.swarm_connection as libp2p_swarm_connection
import libp2p.pubsub.gossipsub as libp2p_gossipsub
import libp2p.pubsub.pubsub as libp2p_pubsub
import libp2p.transport.tcp.tcp as libp2p_tcp
import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IMuxedConn, INetConn, INetStream, IRawConnection, ISecureConn
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectError
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.transport.exceptions import MuxerUpgradeFailure
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import encode_varint_prefixed
from multiaddr import Multiaddr

import p2pmesh
from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.doorway import Doorway, Gate, source_of
from p2pmesh.adapters.p2p.events import PathChanges, PeerFaults
from p2pmesh.adapters.p2p.keys import peer_id_of
from p2pmesh.adapters.p2p.negotiation import NegotiationRefused, propose
from p2pmesh.adapters.p2p.noise import NoiseChannel
from p2pmesh.adapters.p2p.yamux import MEMBER_LIMITS, STRANGER_LIMITS, YamuxConnection
from p2pmesh.adapters.p2p.yamux import PROTOCOL_ID as YAMUX_PROTOCOL_ID
from p2pmesh.adapters.p2p.yamux_pings import Vigilance
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_UNADMITTED_PEERS
from p2pmesh.ports.network import FaultKind

LIBP2P_VERSION = "0.8.1"
MAX_CONNECTIONS_PER_PEER = 2
"""Of each kind, direct and relayed: two peers that dial each other at once have two; more serve nobody."""
MAX_GOSSIP_CONTROLS = 256
"""Entries of each control list (IHAVE, IWANT, GRAFT, PRUNE) in one gossip message."""
MUXER_TIMEOUT_S = 10
DAEMON_RESTART_S = 1.0
RESET_TIMEOUT_S = 2.0

AGENT_VERSION = f"p2pmesh/{p2pmesh.__version__}"

# Private or patched names that the cures rest on; a libp2p without one of them is another libp2p.
_NAMES: tuple[tuple[str, str], ...] = (
    ("libp2p.host.basic_host", "BasicHost._identify_task_entry"),
    ("libp2p.host.basic_host", "BasicHost._swarm_stream_handler"),
    ("libp2p.identity.identify.identify", "AGENT_VERSION"),
    ("libp2p.identity.identify.identify", "_prefer_circuit_addr"),
    ("libp2p.kad_dht.common", "PROTOCOL_ID"),
    ("libp2p.kad_dht.common", "MAX_DHT_MESSAGE_SIZE"),
    ("libp2p.kad_dht.kad_dht", "PROTOCOL_ID"),
    ("libp2p.kad_dht.kad_dht", "MAX_DHT_MESSAGE_SIZE"),
    ("libp2p.kad_dht.kad_dht", "KadDHT._check_provider_rate_limit"),
    ("libp2p.kad_dht.peer_routing", "PROTOCOL_ID"),
    ("libp2p.kad_dht.peer_routing", "MAX_DHT_MESSAGE_SIZE"),
    ("libp2p.kad_dht.peer_routing", "PeerRouting.find_closest_peers_network"),
    ("libp2p.kad_dht.provider_store", "PROTOCOL_ID"),
    ("libp2p.kad_dht.provider_store", "MAX_DHT_MESSAGE_SIZE"),
    ("libp2p.kad_dht.provider_store", "PROVIDER_RECORD_EXPIRATION_INTERVAL"),
    ("libp2p.kad_dht.provider_store", "ProviderStore._get_providers_from_peer_with_closers"),
    ("libp2p.kad_dht.provider_store", "ProviderStore._send_add_provider"),
    ("libp2p.kad_dht.routing_table", "RoutingTable.add_peer"),
    ("libp2p.kad_dht.value_store", "PROTOCOL_ID"),
    ("libp2p.kad_dht.value_store", "MAX_DHT_MESSAGE_SIZE"),
    ("libp2p.network.auto_connector", "AutoConnector.maybe_connect"),
    ("libp2p.network.auto_connector", "AutoConnector.record_disconnect"),
    ("libp2p.network.connection.swarm_connection", "SwarmConn._handle_muxed_stream"),
    ("libp2p.network.connection.swarm_connection", "logging"),
    ("libp2p.network.swarm", "Swarm._select_connection"),
    ("libp2p.network.swarm", "Swarm.add_conn"),
    ("libp2p.network.swarm", "Swarm.dial_addr"),
    ("libp2p.network.swarm", "Swarm.notify_disconnected"),
    ("libp2p.network.swarm", "Swarm.remove_conn"),
    ("libp2p.network.swarm", "Swarm.upgrade_inbound_raw_conn"),
    ("libp2p.pubsub.gossipsub", "GossipSub._check_equivocation"),
    ("libp2p.pubsub.gossipsub", "GossipSub.handle_rpc"),
    ("libp2p.pubsub.gossipsub", "maybe_consume_signed_record"),
    ("libp2p.pubsub.pubsub", "Pubsub._forget_all_subscriptions"),
    ("libp2p.pubsub.pubsub", "Pubsub._handle_dead_peer"),
    ("libp2p.pubsub.pubsub", "Pubsub._handle_new_peer"),
    ("libp2p.pubsub.pubsub", "Pubsub._handle_new_peer_with_retry"),
    ("libp2p.pubsub.pubsub", "Pubsub.handle_dead_peer_queue"),
    ("libp2p.pubsub.pubsub", "Pubsub.push_msg"),
    ("libp2p.pubsub.pubsub", "Pubsub.stream_handler"),
    ("libp2p.pubsub.pubsub", "Pubsub.write_msg"),
    ("libp2p.pubsub.pubsub", "maybe_consume_signed_record"),
    ("libp2p.security.noise.io", "BaseNoiseMsgReadWriter.write_msg"),
    ("libp2p.tools.anyio_service.api", "Service.manager"),
    ("libp2p.transport.tcp.tcp", "_set_reuse_flags"),
    ("libp2p.transport.upgrader", "TransportUpgrader.upgrade_connection"),
)

log = logging.getLogger(__name__)


def harden_libp2p() -> None:
    """Checks the installed libp2p and patches it; idempotent. ``ConfigError(CONFIG_INVALID)`` if it is another one."""
    _check_libp2p(importlib.metadata.version("libp2p"))
    libp2p_tcp._set_reuse_flags = _own_the_port
    libp2p_identify.AGENT_VERSION = AGENT_VERSION
    vars(libp2p_identify)["_prefer_circuit_addr"] = _observed_here
    for module in (libp2p_pubsub, libp2p_gossipsub):
        vars(module)["maybe_consume_signed_record"] = _leave_signed_record
    # That module warns on the root logger; as a logger of its own it obeys the level set below.
    vars(libp2p_swarm_connection)["logging"] = logging.getLogger("libp2p.network.connection")
    for name in ("libp2p", *(name for name in logging.root.manager.loggerDict if name.startswith("libp2p."))):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _leave_signed_record(message: Any, host: Any, peer_id: Any) -> bool:
    """Whom a message is from is proved by the connection; where that peer listens we learn from its announcement."""
    return True


def _observed_here(host: Any, peer_id: Any, observed: Any) -> Any:
    """A peer is told where it was seen on the connection that it asks on, whatever other connections it has."""
    return observed


def _check_libp2p(version: str) -> None:
    advice = f"install exactly libp2p=={LIBP2P_VERSION}"
    if version != LIBP2P_VERSION:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"libp2p {version} is installed, and is not hardened; {advice}")
    for module, path in _NAMES:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise ConfigError(ErrorCode.CONFIG_INVALID, f"{module}.{path} is missing in libp2p; {advice}")


def _own_the_port(sock: Any) -> None:
    """Listen alone on the port, also over the last process's lingering connections; IPv6 apart from IPv4."""
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEADDR, 1)
    if sock.family == stdlib_socket.AF_INET6:
        sock.setsockopt(stdlib_socket.IPPROTO_IPV6, stdlib_socket.IPV6_V6ONLY, 1)


class FaultLog:
    """Tells the operator of faults that peers cause, without letting peers fill the log: the 1st, 2nd, 4th, 8th, …"""

    def __init__(self) -> None:
        self._count = 0

    def note(self, where: str, error: BaseException) -> None:
        """Counts one fault."""
        self._count += 1
        if self._count & (self._count - 1) == 0:
            log.warning("a peer caused a fault in %s, contained: %r (%d so far)", where, error, self._count)


faults = FaultLog()


class _GuardedManager:
    """A libp2p service manager whose tasks cannot end the service: a failed task is noted, a daemon starts again."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def run_task(self, async_fn: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
        """The manager's ``run_task``, guarded."""
        is_daemon = bool(options.get("daemon", False))

        async def guarded(*inner: Any) -> None:
            while True:
                try:
                    await async_fn(*inner)
                    return
                except Exception as error:  # noqa: BLE001  whatever a peer provoked must stay in this task
                    faults.note(getattr(async_fn, "__qualname__", "a task"), error)
                if not is_daemon:
                    return
                await trio.sleep(DAEMON_RESTART_S)

        self._manager.run_task(guarded, *args, **options)

    def run_daemon_task(self, async_fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None) -> None:
        """The manager's ``run_daemon_task``, guarded."""
        self.run_task(async_fn, *args, daemon=True, name=name)


class HardenedUpgrader(TransportUpgrader):
    """Upgrades with our multiplexer; the stock one builds py-libp2p's whatever is registered."""

    vigilance = Vigilance()
    gate = Gate()

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """A yamux connection over a noise channel; ``MuxerUpgradeFailure``."""
        if not isinstance(conn, NoiseChannel):
            raise MuxerUpgradeFailure("the connection is not a noise channel")
        if self.gate.is_banned(peer_id):
            raise MuxerUpgradeFailure("the peer is banned")
        try:
            with trio.fail_after(MUXER_TIMEOUT_S):
                await self._agree_on_yamux(conn)
        except (MultiselectError, NegotiationRefused, trio.TooSlowError) as error:
            raise MuxerUpgradeFailure("the peer does not speak yamux") from error
        return YamuxConnection(conn, peer_id, self.vigilance)

    async def _agree_on_yamux(self, conn: NoiseChannel) -> None:
        if conn.is_initiator:
            await propose(conn, YAMUX_PROTOCOL_ID)
        else:
            await Multiselect({TProtocol(YAMUX_PROTOCOL_ID): None}).negotiate(
                MultiselectCommunicator(conn), MUXER_TIMEOUT_S
            )


class HardenedSwarm(Swarm):
    """The swarm in which each connection's trouble is its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.auto_connector = IdleAutoConnector(self)
        self.gate = Gate()
        self.peer_faults = PeerFaults()
        self.doorway = Doorway(self.gate.is_spared)
        self._strangers: dict[YamuxConnection, None] = {}
        self.paths = PathChanges()
        self.meeting: set[ID] = set()
        """Peers with which direct connections are tried over several addresses at once: one too many is no flood."""

    @property
    def manager(self) -> Any:
        """The guarded manager."""
        return _GuardedManager(super().manager)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """Registers a connection; ``SwarmException`` if the peer has enough of them or is banned."""
        if not isinstance(muxed_conn, YamuxConnection):
            raise SwarmException("the connection is not ours")
        if isinstance(muxed_conn.secured_conn, NoiseChannel):
            self.doorway.leave(muxed_conn.secured_conn.raw)
        self._make_room_for(muxed_conn)
        refusal = self._why_refused(muxed_conn)
        if refusal is not None:
            muxed_conn.abort(refusal)
            raise SwarmException(refusal)
        muxed_conn.on_fault = partial(self.peer_faults.put, peer_id_of(muxed_conn.peer_id))
        if not self.gate.is_admitted(muxed_conn.peer_id):
            muxed_conn.limits = STRANGER_LIMITS
            if not muxed_conn.is_initiator:
                self._count_stranger(muxed_conn)
        try:
            connection = await super().add_conn(muxed_conn, direction)
        finally:
            if muxed_conn.is_closed:  # so soon that nobody waits for its end
                self._strangers.pop(muxed_conn, None)
        if muxed_conn.is_closed:
            self.remove_conn(connection)
            await self.notify_disconnected(connection)
            raise SwarmException("the connection ended while it was registered")
        return connection

    def connections_of(self, peer: ID) -> list[YamuxConnection]:
        """Those that libp2p has registered."""
        found = (connection.muxed_conn for connection in self.get_connections(peer))
        return [muxed for muxed in found if isinstance(muxed, YamuxConnection)]

    def newest_connection(self, peer: ID) -> YamuxConnection | None:
        """The one to open streams on: direct before relayed, then the newest, for an older one may be a life ago."""
        usable = [muxed for muxed in self.connections_of(peer) if muxed.is_established]
        direct = [muxed for muxed in usable if not muxed.is_relayed]
        return next(reversed(direct or usable), None)

    def direct_connection(self, peer: ID) -> YamuxConnection | None:
        """The newest that goes through no relay."""
        newest = self.newest_connection(peer)
        return None if newest is None or newest.is_relayed else newest

    def relayed_connections(self, peer: ID) -> list[YamuxConnection]:
        """Those that go through relays, and stand."""
        return [muxed for muxed in self.connections_of(peer) if muxed.is_relayed and muxed.is_established]

    def _select_connection(self, connections: list[INetConn], peer_id: ID) -> INetConn:
        newest = self.newest_connection(peer_id)
        chosen = [connection for connection in connections if connection.muxed_conn is newest]
        return chosen[0] if chosen else connections[-1]

    def admit(self, peer: ID) -> None:
        """Gives the connections of a peer, also later ones, the limits of a member, as long as it has any."""
        connections = self.connections_of(peer)
        if connections:
            known = (muxed.get_remote_address() for muxed in connections)
            self.gate.admit(peer, frozenset(source_of(address) for address in known if address is not None))
        for muxed in connections:
            muxed.limits = MEMBER_LIMITS
            self._strangers.pop(muxed, None)

    def dismiss(self, peer: ID) -> None:
        """Takes back ``admit``."""
        self.gate.forget(peer)
        for muxed in self.connections_of(peer):
            muxed.limits = STRANGER_LIMITS

    def ban(self, peer: ID) -> None:
        """Cuts a peer off, and keeps it out."""
        self.gate.ban(peer)
        self.gate.forget(peer)
        for muxed in self.connections_of(peer):
            muxed.abort("the peer is banned")

    def _standing(self, like: YamuxConnection) -> list[YamuxConnection]:
        """Those of its peer and kind that live; libp2p takes a moment to forget one that has ended."""
        connections = self.connections_of(like.peer_id)
        return [muxed for muxed in connections if not muxed.is_closed and muxed.is_relayed == like.is_relayed]

    def _why_refused(self, muxed_conn: YamuxConnection) -> str | None:
        peer = muxed_conn.peer_id
        if self.gate.is_banned(peer):
            return "the peer is banned"
        if len(self._standing(muxed_conn)) >= MAX_CONNECTIONS_PER_PEER:
            if peer not in self.meeting:
                self.peer_faults.put(peer_id_of(peer), FaultKind.FLOOD)
            return f"{peer} has {MAX_CONNECTIONS_PER_PEER} connections already"
        return None

    def _make_room_for(self, muxed_conn: YamuxConnection) -> None:
        """A peer that comes back before we notice that its old connections are dead must not be kept out by them."""
        standing = self._standing(muxed_conn)
        if len(standing) >= MAX_CONNECTIONS_PER_PEER:
            silent = next((muxed for muxed in standing if muxed.pings.is_silent), None)
            if silent is not None:
                silent.abort("the peer came back on another connection")

    def _count_stranger(self, muxed_conn: YamuxConnection) -> None:
        """The oldest gives way: silent strangers must not lock members out."""
        if len(self._strangers) >= MAX_UNADMITTED_PEERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort("newer connections need the room")
        self._strangers[muxed_conn] = None

    async def upgrade_inbound_raw_conn(self, raw_conn: IRawConnection, maddr: Multiaddr) -> IMuxedConn:
        """Serves an inbound connection to its end: only then may the caller give its inbound slot back."""
        muxed_conn = await self._shake_hands(raw_conn, maddr)
        if isinstance(muxed_conn, YamuxConnection):
            try:
                await muxed_conn.event_closed.wait()
            finally:
                self._strangers.pop(muxed_conn, None)
        raise SwarmException("the connection has ended")

    async def _shake_hands(self, raw_conn: IRawConnection, maddr: Multiaddr) -> IMuxedConn | None:
        """The upgraded connection; None when it was given up for others, took too long, or found no place."""
        visit = self.doorway.enter(raw_conn, source_of(raw_conn.get_remote_address()))
        muxed_conn: IMuxedConn | None = None
        if visit is not None:
            try:
                with visit.scope:
                    muxed_conn = await super().upgrade_inbound_raw_conn(raw_conn, maddr)
            finally:
                self.doorway.leave(raw_conn)
        if muxed_conn is None:
            with shielded_for(RESET_TIMEOUT_S):
                await raw_conn.close()
        return muxed_conn


class IdleAutoConnector(AutoConnector):
    """Connects to nobody and remembers nobody: whom to dial is the node's decision."""

    async def start(self) -> None:
        """Stays idle."""

    async def maybe_connect(self) -> None:
        """Never."""

    def record_disconnect(self, peer_id: ID) -> None:
        """Forgets at once."""


class HardenedHost(BasicHost):
    """The host whose handlers and background work cannot escape."""

    def guard_streams(self) -> None:
        """Puts the guard around everything that runs for an inbound stream, negotiation included."""
        self.get_network().set_stream_handler(guarded_handler(self._swarm_stream_handler))

    async def _identify_task_entry(self, peer_id: ID, reason: str) -> None:
        # It runs as a system task, where an exception would end the process.
        try:
            await super()._identify_task_entry(peer_id, reason)
        except Exception as error:  # noqa: BLE001  whatever the peer answered
            faults.note("identify", error)


def guarded_handler(handler: StreamHandlerFn) -> StreamHandlerFn:
    """A stream handler whose exceptions cost its stream and nothing else."""

    async def guarded(stream: INetStream) -> None:
        try:
            await handler(stream)
        except Exception as error:  # noqa: BLE001  handlers run peers' input
            faults.note(f"the handler of {stream.get_protocol()}", error)
            with shielded_for(RESET_TIMEOUT_S):
                await stream.reset()

    return guarded


async def _reset(stream: INetStream) -> None:
    with shielded_for(RESET_TIMEOUT_S):
        try:
            await stream.reset()
        except Exception as error:  # noqa: BLE001  it may be over already
            log.debug("resetting a gossip stream failed: %r", error)


class HardenedPubsub(Pubsub):
    """Pubsub that survives whatever is in a message, and a peer that comes back before its last connection has ended.

    libp2p keeps one outbound stream to a peer. When a peer restarts and its old connection is still taken for alive
    (its machine lost power, its NAT forgot), libp2p goes on writing to the old stream and tells the new life nothing;
    when the old connection ends, it forgets what the new life subscribed to, which is never said again. So here the
    outbound stream moves to the newest connection, and subscriptions last as long as the newest inbound stream.

    Only with members: a peer that the gate has not admitted is sent nothing, not even what we subscribed to, and what
    it sends waits unread, for the other end may admit us before we admit it. How much waits is the connection's bound.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._inbound: dict[ID, INetStream] = {}
        self._registering: dict[ID, trio.Lock] = {}
        self._parked: dict[ID, tuple[INetStream, trio.Event]] = {}
        """The newest inbound stream of each peer that is not admitted, and what wakes its reader."""

    def admit(self, peer: ID) -> None:
        """The gate has just admitted a connected peer: gossip begins, both ways."""
        self._wake(peer)
        if self.manager.is_running:
            self.manager.run_task(self._handle_new_peer_with_retry, peer)

    def dismiss(self, peer: ID) -> None:
        """The gate admits a peer no more: it is told nothing from now on, and not heard."""
        inbound, outbound = self._inbound.pop(peer, None), self.peers.get(peer)
        self._handle_dead_peer(peer)
        for stream in (inbound, outbound):
            if stream is not None and self.manager.is_running:
                self.manager.run_task(_reset, stream)

    def _is_member(self, peer: ID) -> bool:
        network = self.host.get_network()
        return isinstance(network, HardenedSwarm) and network.gate.is_admitted(peer)

    def _wake(self, peer: ID) -> None:
        parked = self._parked.pop(peer, None)
        if parked is not None:
            parked[1].set()

    async def _wait_admitted(self, stream: INetStream) -> bool:
        """Whether the stream's peer is a member; False once the stream has ended or another took its place."""
        peer = stream.muxed_conn.peer_id
        self._wake(peer)
        if not self._is_member(peer):
            woken = trio.Event()
            self._parked[peer] = (stream, woken)
            await woken.wait()
        return self._is_member(peer) and peer not in self._parked and not stream.muxed_conn.is_closed

    @property
    def manager(self) -> Any:
        """The guarded manager."""
        return _GuardedManager(super().manager)

    async def stream_handler(self, stream: INetStream) -> None:
        """Reads one peer's messages; one that cannot be parsed ends the stream, not the service."""
        peer = stream.muxed_conn.peer_id
        if not await self._wait_admitted(stream):
            await _reset(stream)
            return
        self._inbound.pop(peer, None)
        self._forget_all_subscriptions(peer)  # a stream starts with all of them
        self._inbound[peer] = stream
        try:
            await self._read_guarded(stream)
        finally:
            if self._inbound.get(peer) is stream:
                del self._inbound[peer]
                self._forget_all_subscriptions(peer)

    async def _read_guarded(self, stream: INetStream) -> None:
        try:
            await super().stream_handler(stream)
        except Exception as error:  # noqa: BLE001  protobuf and crypto raise many kinds
            faults.note("pubsub", error)
            network = self.host.get_network()
            if isinstance(error, DecodeError) and isinstance(network, HardenedSwarm):
                network.peer_faults.put(peer_id_of(stream.muxed_conn.peer_id), FaultKind.INVALID)
            with shielded_for(RESET_TIMEOUT_S):
                await stream.reset()
            self._handle_dead_peer(stream.muxed_conn.peer_id)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Takes in what a member, or we ourselves, send; what was read before a dismissal counts no more."""
        if msg_forwarder == self.my_id or self._is_member(msg_forwarder):
            await super().push_msg(msg_forwarder, msg)

    def _forget_all_subscriptions(self, peer_id: ID) -> None:
        if peer_id not in self._inbound:
            super()._forget_all_subscriptions(peer_id)

    async def handle_dead_peer_queue(self) -> None:
        """Opens the outbound stream anew when its connection has ended, also while another connection stands."""
        async with self.dead_peer_receive_channel:
            self.event_handle_dead_peer_queue_started.set()
            async for peer_id in self.dead_peer_receive_channel:
                stream = self.peers.get(peer_id)
                if stream is None or stream.muxed_conn.is_closed:
                    self._handle_dead_peer(peer_id)
                parked = self._parked.get(peer_id)
                if parked is not None and parked[0].muxed_conn.is_closed:
                    self._wake(peer_id)

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Whether it was written; a stream that was replaced takes nothing down with it."""
        try:
            await stream.write(encode_varint_prefixed(rpc_msg.SerializeToString()))
        except Exception as error:  # noqa: BLE001  whatever a stream raises, it is over
            peer = stream.muxed_conn.peer_id
            log.debug("writing gossip to %s failed: %r", peer, error)
            if self.peers.get(peer) is stream:
                self._handle_dead_peer(peer)
            return False
        return True

    async def _handle_new_peer(self, peer_id: ID) -> None:
        """Opens the outbound stream, or moves it to the newest connection; once at a time for each member."""
        if not self._is_member(peer_id):
            return
        lock = self._registering.setdefault(peer_id, trio.Lock())
        try:
            async with lock:
                await self._register(peer_id)
                if not self._is_member(peer_id):  # dismissed while the stream was opened
                    self.dismiss(peer_id)
        finally:
            if not lock.locked():
                self._registering.pop(peer_id, None)

    async def _register(self, peer_id: ID) -> None:
        stream = self.peers.get(peer_id)
        network = self.host.get_network()
        newest = network.newest_connection(peer_id) if isinstance(network, HardenedSwarm) else None
        if stream is None or newest is None or stream.muxed_conn is newest:
            await super()._handle_new_peer(peer_id)
            return
        del self.peers[peer_id]
        if peer_id in self.peer_queues:
            self.peer_queues.pop(peer_id).close()
        self.router.remove_peer(peer_id)
        try:
            await super()._handle_new_peer(peer_id)
        finally:
            with shielded_for(RESET_TIMEOUT_S):
                await stream.reset()


class HardenedGossipSub(GossipSub):
    """Gossipsub that hears control entries only of topics joined here, only so many, and keeps no message for long."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The time of each delivery, for an adaptation that is off and would clear it.
        self.recent_message_deliveries = defaultdict(partial(deque, maxlen=1))  # type: ignore[arg-type]

    def _check_equivocation(self, msg: rpc_pb2.Message) -> bool:
        """libp2p keeps a thousand messages for this. A second one of an id never comes here: ids are seen for 2 min."""
        return True

    @property
    def manager(self) -> Any:
        """The guarded manager."""
        return _GuardedManager(super().manager)

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        """Handles the entries within the limits."""
        control = rpc.control
        for entries in (control.ihave, control.graft, control.prune, control.iwant, control.idontwant):
            del entries[MAX_GOSSIP_CONTROLS:]
        for named in (control.ihave, control.graft, control.prune):
            for index in reversed(range(len(named))):
                if named[index].topicID not in self.mesh:
                    del named[index]
        await super().handle_rpc(rpc, sender_peer_id)
