"""Announcements: what a peer says of itself, signed, with incarnation and expiry; gossiped and exchanged at hello."""

from collections.abc import Callable
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId, is_digest, is_mesh_id, is_peer_id
from p2pmesh.base.limits import (
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    MAX_ANNOUNCED_MODELS,
    MAX_ANNOUNCEMENT_BYTES,
    MAX_NAME_BYTES,
)
from p2pmesh.wire.schema import (
    Bytes,
    Integer,
    ListOf,
    Record,
    Text,
    checked_map,
    declared,
    from_map,
    is_line,
    pack,
    unpack,
)
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

DOMAIN = b"p2pmesh-announcement-v1"
LIFE_MS = 90_000
REPEAT_MS = 20_000

_TIME = Integer(0, 2**53)
_NAME = Text(MAX_NAME_BYTES, is_line)
PEER_ID_SHAPE = Text(128, is_peer_id)


def topic_of(mesh_id: MeshId) -> str:
    """The gossipsub topic that announcements of an overlay travel on."""
    return f"mesh-llm/1/{mesh_id}/announce"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the announcing peer drives and that can be routed to it now."""

    name: str = declared(_NAME)
    digest: str = declared(Text(64, is_digest))
    run_id: bytes = declared(Bytes(16, 16))
    stage_count: int = declared(Integer(1, 64))
    context_tokens: int = declared(Integer(1, 2**31))


@dataclass(frozen=True, slots=True)
class Announcement:
    """One peer's state. Newer is (incarnation, sequence); the incarnation grows at each start of the peer."""

    peer_id: str = declared(PEER_ID_SHAPE)
    mesh_id: str = declared(Text(32, is_mesh_id))
    name: str = declared(_NAME)
    version: str = declared(Text(64, is_line))
    incarnation: int = declared(_TIME)
    sequence: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES))
    memory_bytes: int = declared(Integer(0, 2**53))
    free_bytes: int = declared(Integer(0, 2**53))
    models: tuple[ServedModel, ...] = declared(ListOf(Record(ServedModel), MAX_ANNOUNCED_MODELS))

    @property
    def freshness(self) -> tuple[int, int]:
        """Orders announcements of one peer."""
        return (self.incarnation, self.sequence)


def encode_announcement(announcement: Announcement, public_key: bytes, sign: Sign) -> bytes:
    """Signed bytes. ``LocalProtocolError`` where no reader would take them: announce fewer models or addresses."""
    sealed = seal(DOMAIN, pack(checked_map(announcement)), public_key, sign)
    if len(sealed) > MAX_ANNOUNCEMENT_BYTES:
        raise LocalProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE, f"an announcement of {len(sealed)} bytes; allowed are {MAX_ANNOUNCEMENT_BYTES}"
        )
    return sealed


def decode_announcement(data: bytes, verify: Verify, peer_id_of: Callable[[bytes], PeerId]) -> Announcement:
    """A checked announcement (but for its time): signed by the very peer that it speaks of."""
    if len(data) > MAX_ANNOUNCEMENT_BYTES:
        raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, f"an announcement of {len(data)} bytes")
    envelope = unseal(DOMAIN, data, verify)
    announcement = from_map(Announcement, unpack(envelope.payload, "announcement"), "announcement")
    if peer_id_of(envelope.key) != announcement.peer_id:
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "an announcement speaks for another peer")
    return announcement
