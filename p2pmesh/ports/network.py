"""The peer-to-peer network as the node sees it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from p2pmesh.base.ids import PeerId
from p2pmesh.ports.reach import ReachPort


class ByteStream(Protocol):
    """One reliable, ordered, two-way stream to a peer. Cancelling any call leaves the connection sound."""

    @property
    def remote_peer(self) -> PeerId:
        """The authenticated peer at the other end."""

    async def receive_exactly(self, count: int) -> bytes:
        """``count`` bytes. Raises ``PeerUnavailable(PEER_LOST)`` at an end or a reset before that."""

    def receive_nowait(self, count: int) -> bytes | None:
        """``count`` bytes if they have arrived; otherwise nothing, and None: then ``receive_exactly``. Never raises."""

    async def send(self, data: bytes) -> None:
        """All of ``data``, with back-pressure. Raises ``PeerUnavailable(PEER_LOST)``."""

    def send_nowait(self, data: bytes) -> bool:
        """All of ``data`` if that needs no waiting; otherwise nothing, and False: then ``send`` it. Never raises."""

    async def finish(self) -> None:
        """Half-close: the peer reads an end, we may go on reading. Never raises."""

    async def reset(self) -> None:
        """Abort both directions. Never raises, returns within a bounded time, also when called twice."""


StreamServer = Callable[[ByteStream], Awaitable[None]]
"""Serves one inbound stream; the stream is closed when it returns, reset when it raises."""


class PathKind(Enum):
    """How bytes get to a peer."""

    DIRECT = "direct"
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A connection to ``peer`` stands (the first one; more to the same peer say nothing)."""

    peer: PeerId
    is_inbound: bool


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The last connection to ``peer`` is gone."""

    peer: PeerId


ConnectionEvent = PeerConnected | PeerDisconnected


@dataclass(frozen=True, slots=True)
class ConnectionUse:
    """What the connections to a peer are good for now."""

    exchanges: int
    """Streams of ``open_stream`` and ``serve`` that are not over."""
    is_in_gossip_mesh: bool
    """Whether messages of some topic are passed on to the peer."""


class FaultKind(Enum):
    """How a peer broke a rule below any protocol of ours."""

    INVALID = "invalid"
    """It sent what the connection's own protocol forbids; the connection is gone."""
    FLOOD = "flood"
    """It asked for more than it may have: connections, streams, memory."""


@dataclass(frozen=True, slots=True)
class PeerFault:
    """A rule that an authenticated peer broke."""

    peer: PeerId
    kind: FaultKind


@dataclass(frozen=True, slots=True)
class Provider:
    """A peer, and the multiaddrs that it can be dialled at."""

    peer: PeerId
    addresses: tuple[str, ...]


class RecordPeers(Protocol):
    """What the provider records ask the node about peers."""

    def is_admitted(self, peer: PeerId) -> bool:
        """Whether a peer may ask for records and store them here."""

    def record_servers(self) -> tuple[Provider, ...]:
        """Admitted peers that say they serve records."""

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Connects and says hello unless both are done; raises ``P2PMeshError``."""


class Subscription(Protocol):
    """Messages of one topic that passed its validator, from other peers, oldest first; bounded, drops the oldest."""

    async def receive(self) -> tuple[PeerId, bytes]:
        """The next message and the peer that *published* it."""

    async def close(self) -> None:
        """Leaves the topic; nothing is received any more. Never raises."""


class Network(Protocol):
    """A started libp2p host, or a fake of one."""

    @property
    def peer_id(self) -> PeerId:
        """Our own peer id."""

    @property
    def reach(self) -> ReachPort:
        """Relays, witnesses and direct paths."""

    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs that others can dial us at, ``/p2p/<peer id>`` included."""

    async def dial(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> None:
        """Connects unless connected: addresses in turn, staggered, first success wins.

        Raises ``PeerUnavailable(PEER_UNREACHABLE)`` naming what was tried, ``ConfigError(ADDRESS_INVALID)``.
        """

    async def open_stream(self, peer: PeerId, protocol_id: str, timeout_s: float) -> ByteStream:
        """A new stream on the connection that stands; raises ``PeerUnavailable``."""

    def serve(self, protocol_id: str, server: StreamServer) -> None:
        """Serves inbound streams of a protocol; a server that raises costs its stream, nothing else."""

    async def connection_event(self) -> ConnectionEvent:
        """Waits for the next event; bounded, never dropped (events per peer are folded instead)."""

    def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a connection now."""

    def round_trip_s(self, peer: PeerId) -> float | None:
        """The newest round trip of the connection that streams are opened on; None before there is one."""

    def slowest_round_trip_s(self, peer: PeerId) -> float | None:
        """The slowest of its recent round trips; None before there are some."""

    def path_of(self, peer: PeerId) -> PathKind | None:
        """The path of that connection; None without a connection."""

    def uses(self) -> Mapping[PeerId, ConnectionUse]:
        """What the connections of each connected peer are used for. Walks them all once."""

    async def disconnect(self, peer: PeerId) -> None:
        """Closes every connection to a peer. Never raises."""

    def admit(self, peer: PeerId) -> None:
        """Gives the connections of a peer the limits of a member, until the last of them is gone. Never raises.

        Gossip is with admitted peers alone: it begins now, both ways, with all subscriptions.
        """

    def dismiss(self, peer: PeerId) -> None:
        """Takes back ``admit``: gossip with the peer ends at once. Never raises."""

    def ban(self, peer: PeerId) -> None:
        """Cuts off every connection to a peer at once, and each new one as soon as it has proved its identity.

        Dialling it raises ``PeerUnavailable(PEER_UNREACHABLE)``. Until ``unban``; never raises.
        """

    def unban(self, peer: PeerId) -> None:
        """Lets a peer connect again. Never raises."""

    async def peer_fault(self) -> PeerFault:
        """Waits for the next report of a peer that broke a rule below our protocols; bounded, drops the oldest."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossips ``data``, at most once to each peer; silently lossy, so announcements are repeated."""

    async def subscribe(self, topic: str, validator: Callable[[bytes], bool]) -> Subscription:
        """Joins a topic; a message for which ``validator`` is false (or raises) is neither kept nor forwarded."""

    def serve_records(self, peers: RecordPeers, *, is_server: bool) -> None:
        """Takes part in the provider records of the overlay from now on; ``is_server`` says whether others are
        answered, which is for nodes that others can dial. Called again, it changes that."""

    async def provide(self, key: bytes, timeout_s: float) -> int:
        """Tells the peers closest to ``key`` (32 bytes) that we provide it; how many keep it, ourselves as a server
        included. Never raises."""

    def stop_providing(self, key: bytes) -> None:
        """Forgets our own record of ``key`` here; at other peers it expires."""

    async def find_providers(self, key: bytes, limit: int, timeout_s: float) -> tuple[Provider, ...]:
        """At most ``limit`` peers said to provide ``key``, most trusted first; what was found in time. Never raises."""
