"""Announcements: what a peer says of itself, signed, with incarnation and expiry; gossiped and exchanged at hello."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, LocalProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import (
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    MAX_ANNOUNCED_DEMANDS,
    MAX_ANNOUNCED_FILES,
    MAX_ANNOUNCED_LINKS,
    MAX_ANNOUNCED_LOADABLE,
    MAX_ANNOUNCED_MODELS,
    MAX_ANNOUNCED_WISHES,
    MAX_ANNOUNCEMENT_BYTES,
    MAX_DECODE_BYTES_PER_S,
    MAX_DEMAND_COUNT,
    MAX_LANES,
    MAX_LAYERS,
    MAX_LINK_BYTES_PER_S,
    MAX_LINK_RTT_US,
    MAX_OWNERSHIP_CLAIM_BYTES,
    MAX_PASS_BYTES,
    MAX_PASSES,
    MAX_SHARD_DEPTH,
)
from p2pmesh.wire.schema import (
    Boolean,
    Bytes,
    HexBytes,
    Integer,
    ListOf,
    OpenRow,
    Row,
    Text,
    checked_map,
    declared,
    from_open_row,
    is_line,
    malformed,
    pack,
    to_open_row,
    unpack,
)
from p2pmesh.wire.shapes import ID, NAME, PEER_ID
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

DOMAIN = b"p2pmesh-announcement-v3"
SHORTEST_INTERVAL_MS = 20_000
LONGEST_INTERVAL_MS = 900_000
LIFE_INTERVALS = 3
LIFE_MARGIN_MS = 30_000
LONGEST_LIFE_MS = 1_800_000
"""Twice the longest interval, so that one lost announcement makes nobody forget its speaker."""
LIFE_MS = LIFE_INTERVALS * SHORTEST_INTERVAL_MS + LIFE_MARGIN_MS
"""Of an announcement in a small overlay."""
PEER_HASH_BYTES = 8
MODEL_HASH_BYTES = 8

_TIME = Integer(0, 2**53)
_DIGEST = HexBytes(32)


def topic_of(mesh_id: MeshId, shard_bits: str = "") -> str:
    """The gossipsub topic of a shard of an overlay: of all of it, or of the peers whose bits begin so."""
    root = f"mesh-llm/1/{mesh_id}/announce"
    return f"{root}/{shard_bits}" if shard_bits else root


def model_topic_of(mesh_id: MeshId, digest: str) -> str:
    """The topic on which the drivers of one model announce themselves, too."""
    return f"mesh-llm/1/{mesh_id}/model/{digest[:16]}"


def peer_hash_of(peer: str) -> bytes:
    """How a link names its other end, 8 bytes instead of 52: links are a third of what a large overlay gossips."""
    return hashlib.sha256(peer.encode()).digest()[:PEER_HASH_BYTES]


def model_hash_of(name: str) -> bytes:
    """How demand and ``loadable`` name a model: 8 bytes, since not everybody need read it spelt out."""
    return hashlib.sha256(name.encode()).digest()[:MODEL_HASH_BYTES]


def life_ms(interval_ms: int) -> int:
    """How long an announcement lives whose writer repeats it every ``interval_ms``."""
    return min(LONGEST_LIFE_MS, LIFE_INTERVALS * interval_ms + LIFE_MARGIN_MS)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the announcing peer drives and that can be routed to it now."""

    name: str = declared(NAME)
    digest: str = declared(_DIGEST)
    run_id: bytes = declared(ID)
    stage_count: int = declared(Integer(1, 64))
    context_tokens: int = declared(Integer(1, 2**31))


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model file that lies on the announcing peer's disk."""

    name: str = declared(NAME)
    digest: str = declared(_DIGEST)


@dataclass(frozen=True, slots=True)
class Link:
    """What the announcing peer measured towards another; a figure of 0 was not measured."""

    peer_hash: bytes = declared(Bytes(PEER_HASH_BYTES, PEER_HASH_BYTES))
    """``peer_hash_of`` the other."""
    rtt_us: int = declared(Integer(0, MAX_LINK_RTT_US))
    throughput_bytes_per_s: int = declared(Integer(0, MAX_LINK_BYTES_PER_S))
    is_relayed: bool = declared(Boolean())


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Requests of the announcing peer's clients for one model: those that wait for it now, of a minute, of a day."""

    model: bytes = declared(Bytes(MODEL_HASH_BYTES, MODEL_HASH_BYTES))
    """``model_hash_of`` its name."""
    waiting: int = declared(Integer(0, MAX_DEMAND_COUNT))
    per_minute: int = declared(Integer(0, MAX_DEMAND_COUNT))
    per_day: int = declared(Integer(0, MAX_DEMAND_COUNT))


@dataclass(frozen=True, slots=True)
class Announcement:
    """One peer's state. Newer is (incarnation, sequence); the incarnation grows at each start of the peer."""

    peer_id: str = declared(PEER_ID)
    mesh_id: str = declared(HexBytes(16))
    name: str = declared(NAME)
    version: str = declared(Text(64, is_line))
    incarnation: int = declared(_TIME)
    sequence: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES))
    memory_bytes: int = declared(Integer(0, 2**53))
    free_bytes: int = declared(Integer(0, 2**53))
    models: tuple[ServedModel, ...] = declared(ListOf(OpenRow(ServedModel), MAX_ANNOUNCED_MODELS))
    issued_unix_ms: int = declared(_TIME, 0)
    interval_ms: int = declared(Integer(SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS), SHORTEST_INTERVAL_MS)
    shard_depth: int = declared(Integer(0, MAX_SHARD_DEPTH), 0)
    is_dht_server: bool = declared(Boolean(), False)
    engine: str = declared(Text(64, is_line), "")
    lanes: int = declared(Integer(0, MAX_LANES * MAX_ANNOUNCED_MODELS), 0)
    lanes_free: int = declared(Integer(0, MAX_LANES * MAX_ANNOUNCED_MODELS), 0)
    decode_tokens_per_s_milli: int = declared(Integer(0, 2**32), 0)
    wanted: tuple[str, ...] = declared(ListOf(NAME, MAX_ANNOUNCED_WISHES), ())
    on_disk: tuple[HeldModel, ...] = declared(ListOf(OpenRow(HeldModel), MAX_ANNOUNCED_FILES), ())
    links: tuple[Link, ...] = declared(ListOf(Row(Link), MAX_ANNOUNCED_LINKS), ())
    ownership: bytes = declared(Bytes(0, MAX_OWNERSHIP_CLAIM_BYTES), b"")
    passes: tuple[bytes, ...] = declared(ListOf(Bytes(1, MAX_PASS_BYTES), MAX_PASSES), ())
    """The speaker's chain, its own pass first; empty at the founder, and before a pass was granted."""
    decode_bytes_per_s: int = declared(Integer(0, MAX_DECODE_BYTES_PER_S), 0)
    """Weights that its engines read in a second of decoding, measured; 0: not yet."""
    loadable: tuple[bytes, ...] = declared(
        ListOf(Bytes(MODEL_HASH_BYTES, MODEL_HASH_BYTES), MAX_ANNOUNCED_LOADABLE), ()
    )
    """Models that it would load for a request, each as ``model_hash_of`` its name."""
    demand: tuple[ModelDemand, ...] = declared(ListOf(OpenRow(ModelDemand), MAX_ANNOUNCED_DEMANDS), ())
    max_layers: int = declared(Integer(0, MAX_LAYERS), 0)
    """Of one stage, by its owner's wish; 0: any number."""
    is_on_battery: bool = declared(Boolean(), False)
    is_busy: bool = declared(Boolean(), False)
    """Its owner's other programs take most of the machine."""
    is_relay: bool = declared(Boolean(), False)
    """Others can dial it, and it relays for peers behind NATs."""

    @property
    def freshness(self) -> tuple[int, int]:
        """Orders announcements of one peer."""
        return (self.incarnation, self.sequence)


def encode_announcement(announcement: Announcement, public_key: bytes, sign: Sign) -> bytes:
    """Signed bytes. ``LocalProtocolError`` where no reader would take them: announce fewer models or addresses.

    The peer id is not written: it is that of the key, which must be the speaker's own.
    """
    checked_map(announcement)
    sealed = seal(DOMAIN, pack(to_open_row(announcement)[1:]), public_key, sign)
    if len(sealed) > MAX_ANNOUNCEMENT_BYTES:
        raise LocalProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE, f"an announcement of {len(sealed)} bytes; allowed are {MAX_ANNOUNCEMENT_BYTES}"
        )
    return sealed


def decode_announcement(data: bytes, verify: Verify, peer_id_of: Callable[[bytes], PeerId]) -> Announcement:
    """A checked announcement (but for its time) of the peer that signed it."""
    envelope = unseal(DOMAIN, data, verify, MAX_ANNOUNCEMENT_BYTES, "an announcement")
    plain = unpack(envelope.payload, "announcement")
    if not isinstance(plain, list):
        raise malformed("announcement", f"a list expected, not {type(plain).__name__}")
    return from_open_row(Announcement, [peer_id_of(envelope.key), *plain], "announcement")
