"""An overlay in memory: every node of a test in one process, behind ``ports.network``.

Passes the same conformance suite as the libp2p adapter. Beyond the port it can kill a node and cut the link between
two, at an instant.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from p2pmesh.adapters.p2p.events import ConnectionEvents
from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_STREAMS_PER_PEER, RECORD_LIFE_S
from p2pmesh.ports.network import (
    ConnectionEvent,
    ConnectionUse,
    PathKind,
    PeerFault,
    Provider,
    RecordPeers,
    StreamServer,
)
from tests.fakes.reach import FakeReach

PIPE_BYTES = 256 * 1024
MAX_QUEUED_MESSAGES = 256

_ADDRESS = re.compile(r"/ip4/127\.0\.0\.1/tcp/(\d+)(?:/p2p/(\w+))?\Z")


class FakePipe:
    """One direction of a stream: a bounded buffer with an end."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 0
        self._is_finished = False
        self._failure: str | None = None
        self._changes = trio.lowlevel.ParkingLot()

    async def receive_exactly(self, count: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while len(self._buffer) < count:
            if self._is_finished or self._failure is not None:
                raise PeerUnavailable(ErrorCode.PEER_LOST, self._failure or "the peer finished the stream")
            self._wanted = count
            self._changes.unpark_all()
            try:
                await self._changes.park()
            finally:
                self._wanted = 0
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._changes.unpark_all()
        return data

    def receive_nowait(self, count: int) -> bytes | None:
        if len(self._buffer) < count:
            return None
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._changes.unpark_all()
        return data

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while True:
            if self._is_finished or self._failure is not None:
                raise PeerUnavailable(ErrorCode.PEER_LOST, self._failure or "the stream was finished here")
            room = max(PIPE_BYTES, self._wanted) - len(self._buffer)
            if room > 0:
                self._buffer += rest[:room]
                rest = rest[room:]
                self._changes.unpark_all()
            if not rest:
                return
            await self._changes.park()

    def send_nowait(self, data: bytes) -> bool:
        room = PIPE_BYTES - len(self._buffer)
        if self._is_finished or self._failure is not None or len(data) > room:
            return False
        self._buffer += data
        self._changes.unpark_all()
        return True

    def finish(self) -> None:
        self._is_finished = True
        self._changes.unpark_all()

    @property
    def is_over(self) -> bool:
        return self._is_finished or self._failure is not None

    def drop(self) -> None:
        self._buffer.clear()
        self._is_finished = False

    def break_off(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        self._changes.unpark_all()


class FakeStream:
    """Implements ``ByteStream``."""

    def __init__(self, remote_peer: PeerId, incoming: FakePipe, outgoing: FakePipe) -> None:
        self._remote_peer = remote_peer
        self._incoming = incoming
        self._outgoing = outgoing
        self.is_served = False
        """Its server has done with it."""

    @property
    def remote_peer(self) -> PeerId:
        return self._remote_peer

    async def receive_exactly(self, count: int) -> bytes:
        return await self._incoming.receive_exactly(count)

    def receive_nowait(self, count: int) -> bytes | None:
        return self._incoming.receive_nowait(count)

    async def send(self, data: bytes) -> None:
        await self._outgoing.send(data)

    def send_nowait(self, data: bytes) -> bool:
        return self._outgoing.send_nowait(data)

    async def finish(self) -> None:
        self._outgoing.finish()

    async def reset(self) -> None:
        self.break_off("the stream was reset")
        self._incoming.drop()

    @property
    def is_over(self) -> bool:
        return self.is_served or (self._incoming.is_over and self._outgoing.is_over)

    def break_off(self, reason: str) -> None:
        self._incoming.break_off(reason)
        self._outgoing.break_off(reason)


class FakeSubscription:
    """Implements ``Subscription``."""

    def __init__(self, validator: Callable[[bytes], bool], topic: list[FakeSubscription]) -> None:
        self._validator = validator
        self._topic = topic
        self._queue: deque[tuple[PeerId, bytes]] = deque(maxlen=MAX_QUEUED_MESSAGES)
        self._arrivals = trio.lowlevel.ParkingLot()

    async def receive(self) -> tuple[PeerId, bytes]:
        await trio.lowlevel.checkpoint()
        while not self._queue:
            await self._arrivals.park()
        return self._queue.popleft()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if self in self._topic:
            self._topic.remove(self)

    def accepts(self, data: bytes) -> bool:
        try:
            return self._validator(data)
        except Exception:  # noqa: BLE001  the port says that raising means no
            return False

    def put(self, publisher: PeerId, data: bytes) -> None:
        self._queue.append((publisher, data))
        self._arrivals.unpark_all()


class FakeNetwork:
    """Implements ``Network`` for one node of a ``FakeOverlay``."""

    def __init__(self, overlay: FakeOverlay, peer_id: PeerId, port: int, nursery: trio.Nursery) -> None:
        self.port = port
        self.servers: dict[str, StreamServer] = {}
        self.streams: dict[PeerId, list[FakeStream]] = {}
        self.inbound_counts: dict[PeerId, int] = {}
        self.subscriptions: dict[str, list[FakeSubscription]] = {}
        self.admitted: set[PeerId] = set()
        self.gossip_mesh: set[PeerId] = set()
        """Peers that gossip passes over; there is no mesh here, so tests say."""
        self.banned: set[PeerId] = set()
        self.record_peers: RecordPeers | None = None
        self.is_record_server = False
        self._fault_sink, self._fault_source = trio.open_memory_channel[PeerFault](MAX_QUEUED_MESSAGES)
        self.events = ConnectionEvents()
        self.reach = FakeReach()
        self.nursery = nursery
        self.overlay = overlay
        self._peer_id = peer_id

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self._peer_id}",)

    async def dial(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> None:
        await trio.lowlevel.checkpoint()
        parsed = [_ADDRESS.match(text) for text in addresses]
        if addresses and not any(parsed):
            raise ConfigError(ErrorCode.ADDRESS_INVALID, f"{addresses[0]!r} cannot be used")
        if peer in self.connected_peers():
            return
        ports = {int(match[1]) for match in parsed if match is not None and match[2] in (None, peer)}
        if peer == self._peer_id or not self.overlay.connect(self, peer, ports):
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"cannot reach peer {peer} within {timeout_s:g} s")

    async def open_stream(self, peer: PeerId, protocol_id: str, timeout_s: float) -> FakeStream:
        await trio.lowlevel.checkpoint()
        if peer not in self.connected_peers():
            raise PeerUnavailable(ErrorCode.PEER_LOST, f"there is no connection to peer {peer}")
        return self.overlay.open_stream(self, peer, protocol_id)

    def serve(self, protocol_id: str, server: StreamServer) -> None:
        self.servers[protocol_id] = server

    async def connection_event(self) -> ConnectionEvent:
        return await self.events.next()

    def connected_peers(self) -> frozenset[PeerId]:
        return self.events.connected_peers()

    def round_trip_s(self, peer: PeerId) -> float | None:
        return self.overlay.link_of(self._peer_id, peer)[0] if peer in self.connected_peers() else None

    def slowest_round_trip_s(self, peer: PeerId) -> float | None:
        return self.round_trip_s(peer)

    def path_of(self, peer: PeerId) -> PathKind | None:
        return self.overlay.link_of(self._peer_id, peer)[1] if peer in self.connected_peers() else None

    def uses(self) -> dict[PeerId, ConnectionUse]:
        for peer, streams in self.streams.items():
            self.streams[peer] = [stream for stream in streams if not stream.is_over]
        return {
            peer: ConnectionUse(len(self.streams.get(peer, [])), peer in self.gossip_mesh)
            for peer in self.connected_peers()
        }

    async def disconnect(self, peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()
        self.overlay.disconnect(self._peer_id, peer)

    def admit(self, peer: PeerId) -> None:
        self.admitted.add(peer)

    def dismiss(self, peer: PeerId) -> None:
        self.admitted.discard(peer)

    def ban(self, peer: PeerId) -> None:
        self.banned.add(peer)
        self.overlay.disconnect(self._peer_id, peer)

    def unban(self, peer: PeerId) -> None:
        self.banned.discard(peer)

    async def peer_fault(self) -> PeerFault:
        return await self._fault_source.receive()

    def put_fault(self, fault: PeerFault) -> None:
        """What the layers below would report."""
        self._fault_sink.send_nowait(fault)

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.overlay.publish(self, topic, data)

    async def subscribe(self, topic: str, validator: Callable[[bytes], bool]) -> FakeSubscription:
        await trio.lowlevel.checkpoint()
        topic_subscriptions = self.subscriptions.setdefault(topic, [])
        subscription = FakeSubscription(validator, topic_subscriptions)
        topic_subscriptions.append(subscription)
        return subscription

    def serve_records(self, peers: RecordPeers, *, is_server: bool) -> None:
        self.record_peers = peers
        self.is_record_server = is_server

    async def provide(self, key: bytes, timeout_s: float) -> int:
        await trio.lowlevel.checkpoint()
        keepers = len(self._record_servers()) + self.is_record_server
        if keepers:
            self.overlay.keep_record(key, self)
        return keepers

    def stop_providing(self, key: bytes) -> None:
        if not self._record_servers():  # at other peers it expires
            self.overlay.drop_record(key, self)

    async def find_providers(self, key: bytes, limit: int, timeout_s: float) -> tuple[Provider, ...]:
        await trio.lowlevel.checkpoint()
        found = self.overlay.records_of(key) if self._record_servers() else {}
        others = [Provider(peer, addresses) for peer, addresses in sorted(found.items()) if peer != self._peer_id]
        return tuple(others[:limit])

    def _record_servers(self) -> tuple[Provider, ...]:
        return () if self.record_peers is None else self.record_peers.record_servers()

    def drop_streams(self, peer: PeerId, reason: str) -> None:
        for stream in self.streams.pop(peer, []):
            stream.break_off(reason)
        self.inbound_counts.pop(peer, None)


class FakeOverlay:
    """All nodes, the links between them, and what a test may do to them."""

    def __init__(self) -> None:
        self._nodes: dict[PeerId, FakeNetwork] = {}
        self._cut: set[frozenset[PeerId]] = set()
        self._records: dict[bytes, dict[PeerId, tuple[tuple[str, ...], float]]] = {}
        self._links: dict[frozenset[PeerId], tuple[float, PathKind]] = {}
        self._next_port = 4001

    @asynccontextmanager
    async def open_network(self, peer_id: PeerId) -> AsyncIterator[FakeNetwork]:
        """A node that lives as long as the scope."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            node = FakeNetwork(self, peer_id, self._next_port, nursery)
            self._next_port += 1
            self._nodes[peer_id] = node
            try:
                yield node
            except Exception as error:  # noqa: BLE001  passed on below, not wrapped in this nursery's group
                failure = error
            finally:
                self.kill(peer_id)
        if failure is not None:
            raise failure

    def kill(self, peer: PeerId) -> None:
        """The node is gone, as by SIGKILL: its servers stop, all others see it disconnected."""
        node = self._nodes.pop(peer, None)
        if node is not None:
            for other in sorted(node.connected_peers()):
                self._drop(node, self._nodes[other])
            node.nursery.cancel_scope.cancel()

    def cut(self, one: PeerId, other: PeerId) -> None:
        """Nothing passes between two nodes until ``mend``."""
        self._cut.add(frozenset((one, other)))
        self.disconnect(one, other)

    def mend(self, one: PeerId, other: PeerId) -> None:
        """They may dial each other again."""
        self._cut.discard(frozenset((one, other)))

    def set_link(self, one: PeerId, other: PeerId, round_trip_s: float, path: PathKind = PathKind.DIRECT) -> None:
        """What both ends measure of their link; nothing travels slower for it."""
        self._links[frozenset((one, other))] = (round_trip_s, path)

    # --- what the nodes do with each other

    def link_of(self, one: PeerId, other: PeerId) -> tuple[float, PathKind]:
        return self._links.get(frozenset((one, other)), (0.001, PathKind.DIRECT))

    def connect(self, node: FakeNetwork, peer: PeerId, ports: set[int]) -> bool:
        target = self._nodes.get(peer)
        if target is None or target.port not in ports or frozenset((node.peer_id, peer)) in self._cut:
            return False
        if peer in node.banned or node.peer_id in target.banned:
            return False
        node.events.connected(peer, is_inbound=False)
        target.events.connected(node.peer_id, is_inbound=True)
        return True

    def disconnect(self, one: PeerId, other: PeerId) -> None:
        if one in self._nodes and other in self._nodes:
            self._drop(self._nodes[one], self._nodes[other])

    def _drop(self, one: FakeNetwork, other: FakeNetwork) -> None:
        for node, peer in ((one, other.peer_id), (other, one.peer_id)):
            node.drop_streams(peer, "the connection is gone")
            node.admitted.discard(peer)
            node.events.disconnected(peer)

    def open_stream(self, node: FakeNetwork, peer: PeerId, protocol_id: str) -> FakeStream:
        target = self._nodes[peer]
        server = target.servers.get(protocol_id)
        if server is None:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"the peer does not speak {protocol_id}")
        if target.inbound_counts.get(node.peer_id, 0) >= MAX_STREAMS_PER_PEER:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "the peer refuses more streams")
        there, back = FakePipe(), FakePipe()
        ours, theirs = FakeStream(peer, back, there), FakeStream(node.peer_id, there, back)
        node.streams.setdefault(peer, []).append(ours)
        target.streams.setdefault(node.peer_id, []).append(theirs)
        target.inbound_counts[node.peer_id] = target.inbound_counts.get(node.peer_id, 0) + 1
        target.nursery.start_soon(self._serve, target, server, theirs)
        return ours

    async def _serve(self, node: FakeNetwork, server: StreamServer, stream: FakeStream) -> None:
        try:
            await server(stream)
        except Exception:  # noqa: BLE001  a server that raises costs its stream
            await stream.reset()
        else:
            await stream.finish()
        finally:
            stream.is_served = True
            if node.inbound_counts.get(stream.remote_peer):
                node.inbound_counts[stream.remote_peer] -= 1

    def keep_record(self, key: bytes, provider: FakeNetwork) -> None:
        """One table for all: the fake has no lookups."""
        expires = trio.current_time() + RECORD_LIFE_S
        self._records.setdefault(key, {})[provider.peer_id] = (provider.addresses(), expires)

    def drop_record(self, key: bytes, provider: FakeNetwork) -> None:
        self._records.get(key, {}).pop(provider.peer_id, None)

    def records_of(self, key: bytes) -> dict[PeerId, tuple[str, ...]]:
        now = trio.current_time()
        return {peer: addresses for peer, (addresses, due) in self._records.get(key, {}).items() if due > now}

    def publish(self, publisher: FakeNetwork, topic: str, data: bytes) -> None:
        reached = {publisher.peer_id}
        frontier = deque([publisher])
        while frontier:
            speaker = frontier.popleft()
            for peer in sorted(speaker.admitted & speaker.connected_peers() - reached):
                node = self._nodes[peer]
                if speaker.peer_id not in node.admitted:
                    continue
                reached.add(peer)
                heard = [
                    subscription for subscription in node.subscriptions.get(topic, []) if subscription.accepts(data)
                ]
                for subscription in heard:
                    subscription.put(publisher.peer_id, data)
                if heard:
                    frontier.append(node)
