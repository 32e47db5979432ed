"""Provider records on py-libp2p's Kademlia, under a protocol id of our own.

Owns what its tables may hold (admitted servers, and nothing that was only heard of), the bounds of stored records and
of streams, whom a lookup may connect to, and that records are young. What to provide and when is
``core.records``'; who is admitted, and hello, are the node's: it is asked through ``RecordPeers``.

py-libp2p's own service is not run: it dials whoever it reads of, keeps records for two days in a table without a bound,
answers reads from old copies and looks up every bucket at once. Its messages, distances, lookups and handler are used.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import libp2p.kad_dht.common as kad_common
import libp2p.kad_dht.kad_dht as kad_service
import libp2p.kad_dht.peer_routing as kad_routing
import libp2p.kad_dht.provider_store as kad_providers
import libp2p.kad_dht.value_store as kad_values
import trio
from libp2p.abc import IHost, INetStream
from libp2p.crypto.keys import PrivateKey
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.peer_routing import PeerRouting
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.kad_dht.routing_table import RoutingTable
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.peer.peerstore import PeerStore, PeerStoreError
from libp2p.records.validator import NamespacedValidator
from multiaddr import Multiaddr

from p2pmesh.adapters.p2p.addresses import dialable
from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.hardening import faults
from p2pmesh.adapters.p2p.keys import libp2p_id, peer_id_of
from p2pmesh.adapters.p2p.streams import PeerStream, forget_net_stream
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import (
    MAX_ADDRESSES,
    MAX_RECORD_KEYS,
    MAX_RECORD_KEYS_PER_PEER,
    MAX_RECORD_MESSAGE_BYTES,
    RECORD_LIFE_S,
    RECORDS_PROTOCOL,
)
from p2pmesh.ports.network import Provider, RecordPeers

CLOSEST_PEERS = 8
"""So many peers hold a record, and are asked for it."""
ASKED_AT_ONCE = 3
MEET_TIMEOUT_S = 5.0
MET_AT_ONCE = 4
MAX_MET_CONNECTIONS = 64
"""With more connections, lookups go over the peers that are connected; the node ends those that are idle."""
STREAM_TIMEOUT_S = 10.0
STREAMS_PER_PEER = 2
CLEAN_UP_INTERVAL_S = 30.0
NEIGHBOURS_INTERVAL_S = 300.0
NEIGHBOURS_TIMEOUT_S = 20.0
_MULTIHASH_PREFIX = b"\x12\x20"
"""sha2-256, 32 bytes: what other implementations take for a key."""

OpenStream = Callable[[PeerId, str, float], Awaitable[PeerStream]]


def name_protocol() -> None:
    """Our protocol id, message limit and life of records in the modules that hold copies of them; idempotent."""
    modules: tuple[ModuleType, ...] = (kad_common, kad_service, kad_routing, kad_providers, kad_values)
    for module in modules:
        vars(module)["PROTOCOL_ID"] = TProtocol(RECORDS_PROTOCOL)
        vars(module)["MAX_DHT_MESSAGE_SIZE"] = MAX_RECORD_MESSAGE_BYTES
    vars(kad_providers)["PROVIDER_RECORD_EXPIRATION_INTERVAL"] = RECORD_LIFE_S


class _KadStream:
    """A stream as py-libp2p's Kademlia reads and writes it."""

    def __init__(self, stream: PeerStream) -> None:
        self._stream = stream

    async def read(self, n: int) -> bytes:
        return await self._stream.receive_exactly(n)

    async def write(self, data: bytes) -> None:
        await self._stream.send(data)

    async def close(self) -> None:
        self._stream.close()


class _KadHost:
    """What py-libp2p's Kademlia sees of the host: admitted servers, a book of its own, streams by our rules."""

    def __init__(self, host: IHost, open_stream: Callable[[ID], Awaitable[PeerStream]]) -> None:
        self._host = host
        self._open_stream = open_stream
        self.book = PeerStore()
        self.servers: dict[ID, PeerInfo] = {}

    def get_id(self) -> ID:
        return self._host.get_id()

    def get_private_key(self) -> PrivateKey:
        return self._host.get_private_key()

    def get_addrs(self) -> list[Multiaddr]:
        return self._host.get_addrs()[:MAX_ADDRESSES]

    def get_peerstore(self) -> PeerStore:
        return self.book

    def get_connected_peers(self) -> list[ID]:
        return list(self.servers)

    async def new_stream(self, peer: ID, protocols: Sequence[TProtocol]) -> _KadStream:
        return _KadStream(await self._open_stream(peer))

    def set_stream_handler(self, protocol: TProtocol, handler: StreamHandlerFn) -> None:
        """Nothing: ``RecordTable`` serves, and asks who it is before."""


class _ServerTable(RoutingTable):
    """Takes in who is an admitted server, whatever was read of others."""

    def __init__(self, host: _KadHost) -> None:
        super().__init__(host.get_id(), cast(IHost, host), max_peers_per_subnet=0)
        self._kad_host = host

    async def add_peer(self, peer_obj: PeerInfo | ID, *, skip_server_mode_check: bool = False) -> bool:
        """Whether the peer is in the table now."""
        peer = peer_obj.peer_id if isinstance(peer_obj, PeerInfo) else peer_obj
        known = self._kad_host.servers.get(peer)
        return known is not None and await super().add_peer(known, skip_server_mode_check=True)


class _BoundedProviders(ProviderStore):
    """Records within our limits: keys that are hashes, so many keys in all and of one peer, dialable addresses."""

    def __init__(self, host: _KadHost, routing: PeerRouting) -> None:
        super().__init__(cast(IHost, host), routing)
        self._key_counts: dict[str, int] = {}

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Keeps the record, unless it breaks a limit."""
        if len(key) != 34 or not key.startswith(_MULTIHASH_PREFIX):
            return
        name = str(provider.peer_id)
        is_known = name in self.providers.get(key, {})
        if not is_known:
            if self._key_counts.get(name, 0) >= MAX_RECORD_KEYS_PER_PEER:
                return
            if key not in self.providers and len(self.providers) >= MAX_RECORD_KEYS:
                return
        with suppress(ConfigError):
            addresses = dialable(peer_id_of(provider.peer_id), tuple(str(a) for a in provider.addrs[:MAX_ADDRESSES]))
            super().add_provider(key, PeerInfo(provider.peer_id, list(addresses)))
            if not is_known and name in self.providers[key]:
                self._key_counts[name] = self._key_counts.get(name, 0) + 1

    def cleanup_expired(self) -> None:
        """Drops old records and counts anew."""
        super().cleanup_expired()
        counts: dict[str, int] = {}
        for records in self.providers.values():
            for name in records:
                counts[name] = counts.get(name, 0) + 1
        self._key_counts = counts


@dataclass(frozen=True, slots=True)
class _ParsedServer:
    """What a server announced; ``info`` is None where none of its addresses can be dialled."""

    peer_id: ID
    addresses: tuple[str, ...]
    info: PeerInfo | None


class RecordTable:
    """The provider records of one node; silent until ``serve``.

    Args:
        host: the running libp2p host.
        open_stream: a stream on a connection that stands.
        connection_count: connections now.
    """

    def __init__(self, host: IHost, open_stream: OpenStream, connection_count: Callable[[], int]) -> None:
        name_protocol()
        self._host = host
        self._open_stream = open_stream
        self._connection_count = connection_count
        self._peers: RecordPeers | None = None
        self._is_server = False
        self._started = trio.Event()
        self._meetings = trio.CapacityLimiter(MET_AT_ONCE)
        self._busy: dict[ID, int] = {}
        self._parsed: dict[PeerId, _ParsedServer] = {}
        self._kad_host = _KadHost(host, self._open_to)
        kad_host = cast(IHost, self._kad_host)
        self._kad = KadDHT(
            kad_host,
            DHTMode.SERVER,
            validator=NamespacedValidator({}, strict_validation=True),
            validator_changed=True,
            strict_validation=True,
        )
        self._table = self._kad.routing_table = _ServerTable(self._kad_host)
        self._routing = self._kad.peer_routing = PeerRouting(kad_host, self._table)
        self._store = self._kad.provider_store = _BoundedProviders(self._kad_host, self._routing)

    def serve(self, peers: RecordPeers, *, is_server: bool) -> None:
        """Starts, or changes whether others are answered."""
        self._peers = peers
        if is_server and not self._is_server:
            self._host.set_stream_handler(TProtocol(RECORDS_PROTOCOL), self._serve)
        if self._is_server and not is_server:
            self._host.remove_stream_handler(TProtocol(RECORDS_PROTOCOL))
        self._is_server = is_server
        self._started.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Drops old records, and keeps in touch with the neighbours of our own id, as long as the scope."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_up)
            yield
            nursery.cancel_scope.cancel()

    async def _keep_up(self) -> None:
        await self._started.wait()
        neighbours_due_s = trio.current_time()
        while True:
            if trio.current_time() >= neighbours_due_s:
                neighbours_due_s = trio.current_time() + NEIGHBOURS_INTERVAL_S
                await self._closest(self._host.get_id().to_bytes(), NEIGHBOURS_TIMEOUT_S)
            self._store.cleanup_expired()
            self._kad._provider_rate_limits.clear()
            await trio.sleep(CLEAN_UP_INTERVAL_S)

    # --- what the node asks
    async def provide(self, key: bytes, timeout_s: float) -> int:
        """Tells the peers closest to a key that we provide it; how many keep it, ourselves as a server included."""
        name = _multihash(key)
        taken = 0

        async def tell(peer: ID) -> None:
            nonlocal taken
            with trio.move_on_after(STREAM_TIMEOUT_S):
                taken += await self._store._send_add_provider(peer, name)

        with trio.move_on_after(timeout_s):
            self._store.add_provider(name, PeerInfo(self._host.get_id(), self._kad_host.get_addrs()))
            await _each_of(await self._closest(name, timeout_s), tell)
        return taken + self._is_server

    def stop_providing(self, key: bytes) -> None:
        """Forgets our own record of a key here; elsewhere it expires."""
        self._store.providers.get(_multihash(key), {}).pop(str(self._host.get_id()), None)

    async def find_providers(self, key: bytes, limit: int, timeout_s: float) -> tuple[Provider, ...]:
        """Who provides a key, whom most of those asked named first; at most ``limit``, within the time."""
        name = _multihash(key)
        named: dict[ID, int] = {}
        addresses: dict[ID, dict[str, None]] = {}

        def note(found: Sequence[PeerInfo]) -> None:
            for info in {info.peer_id: info for info in found[: kad_common.BUCKET_SIZE]}.values():
                named[info.peer_id] = named.get(info.peer_id, 0) + 1
                known = addresses.setdefault(info.peer_id, {})
                known.update(dict.fromkeys(str(address) for address in info.addrs[:MAX_ADDRESSES]))

        async def ask(peer: ID) -> None:
            with trio.move_on_after(STREAM_TIMEOUT_S):
                found, _ = await self._store._get_providers_from_peer_with_closers(peer, name)
                note(found)

        with trio.move_on_after(timeout_s):
            note(self._store.get_providers(name))
            await _each_of(await self._closest(name, timeout_s), ask)
        named.pop(self._host.get_id(), None)
        order = sorted(named, key=lambda peer: (-named[peer], peer.to_bytes()))[:limit]
        return tuple(_provider(peer, tuple(addresses[peer])) for peer in order)

    # --- lookups
    async def _closest(self, name: bytes, timeout_s: float) -> list[ID]:
        """The servers closest to a name, by a lookup that meets peers on its way."""
        await self._take_in_servers()
        closest: list[ID] = []
        with trio.move_on_after(timeout_s):
            try:
                closest = await self._routing.find_closest_peers_network(name, CLOSEST_PEERS)
            except Exception as error:  # noqa: BLE001  answers of peers are parsed in there
                faults.note("a lookup of records", error)
        self._prune_book()
        return [peer for peer in closest if peer != self._host.get_id()]

    async def _take_in_servers(self) -> None:
        """The table holds exactly the admitted servers, at the addresses that they announce."""
        if self._peers is None:
            return
        self._parsed = {server.peer: self._parse(server) for server in self._peers.record_servers()}
        now = {server.peer_id: server.info for server in self._parsed.values()}
        for gone in self._kad_host.servers.keys() - now.keys():
            del self._kad_host.servers[gone]
            self._table.remove_peer(gone)
        for peer, info in now.items():
            if info is not None:
                self._kad_host.servers[peer] = info
                self._kad_host.book.add_addrs(peer, info.addrs, int(RECORD_LIFE_S))
                await self._table.add_peer(peer)

    def _parse(self, server: Provider) -> _ParsedServer:
        """Parsed once as long as it says the same: servers are taken in at every stream."""
        known = self._parsed.get(server.peer)
        if known is not None and known.addresses == server.addresses:
            return known
        peer_id, info = libp2p_id(server.peer), None
        with suppress(ConfigError):
            info = PeerInfo(peer_id, list(dialable(server.peer, server.addresses)))
        return _ParsedServer(peer_id, server.addresses, info)

    def _prune_book(self) -> None:
        """Lookups write down whoever they read of; only servers are worth keeping."""
        keep = {*self._kad_host.servers, self._host.get_id()}
        for peer in self._kad_host.book.peer_ids():
            if peer not in keep:
                with suppress(PeerStoreError):
                    self._kad_host.book.clear_peerdata(peer)

    async def _open_to(self, target: ID) -> PeerStream:
        """A stream to a peer that a lookup came upon, admitted first; ``PeerUnavailable``."""
        peer = peer_id_of(target)
        if self._peers is None:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "records are not served yet")
        if not self._peers.is_admitted(peer):
            await self._meet(self._peers, peer, target)
        return await self._open_stream(peer, RECORDS_PROTOCOL, MEET_TIMEOUT_S)

    async def _meet(self, peers: RecordPeers, peer: PeerId, target: ID) -> None:
        if self._connection_count() >= MAX_MET_CONNECTIONS:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "too many connections to meet more peers for records")
        addresses: list[Multiaddr] = []
        with suppress(PeerStoreError):
            addresses = self._kad_host.book.addrs(target)[:MAX_ADDRESSES]
        async with self._meetings:
            with trio.move_on_after(MEET_TIMEOUT_S):
                await peers.ensure_admitted(peer, tuple(str(address) for address in addresses))

    # --- serving
    async def _serve(self, stream: INetStream) -> None:
        """Answers one stream of an admitted peer, for a bounded time."""
        peer = stream.muxed_conn.peer_id
        is_welcome = self._peers is not None and self._peers.is_admitted(peer_id_of(peer))
        if not is_welcome or self._busy.get(peer, 0) >= STREAMS_PER_PEER:
            await self._end(stream)
            return
        self._busy[peer] = self._busy.get(peer, 0) + 1
        try:
            await self._take_in_servers()
            with trio.move_on_after(STREAM_TIMEOUT_S) as scope:
                await self._kad.handle_stream(stream)
            if scope.cancelled_caught:
                await self._end(stream)
        finally:
            self._busy[peer] -= 1
            if not self._busy[peer]:
                del self._busy[peer]
            self._prune_book()
            await forget_net_stream(stream)

    async def _end(self, stream: INetStream) -> None:
        with shielded_for(1):
            await stream.reset()


async def _each_of(peers: Sequence[ID], ask: Callable[[ID], Awaitable[Any]]) -> None:
    """Asks some at a time; what one of them causes concerns nobody else."""
    limiter = trio.CapacityLimiter(ASKED_AT_ONCE)

    async def guarded(peer: ID) -> None:
        async with limiter:
            try:
                await ask(peer)
            except Exception as error:  # noqa: BLE001  answers of peers are parsed in there
                faults.note("asking for records", error)

    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(guarded, peer)


def _multihash(key: bytes) -> bytes:
    if len(key) != hashlib.sha256().digest_size:
        raise ValueError(f"a record key of {len(key)} bytes")
    return _MULTIHASH_PREFIX + key


def _provider(peer: ID, addresses: tuple[str, ...]) -> Provider:
    """Addresses come from peers: the unusable ones are left out."""
    named = peer_id_of(peer)
    try:
        usable = tuple(str(address) for address in dialable(named, addresses))
    except P2PMeshError:
        usable = ()
    return Provider(named, usable)
