"""What peers say of life and death: a proof that one lives, a report that one does not, a word of leaving.

Owns the bytes and the topic. Whom to believe is ``core.membership``'s. Normative text: ``protocols/liveness.md``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import MAX_LIVENESS_RECORD_BYTES
from p2pmesh.wire.schema import Integer, checked_map, declared, from_map, malformed, pack, unpack
from p2pmesh.wire.shapes import ID, MESH_ID, PEER_ID
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

PROOF_DOMAIN = b"p2pmesh-life-proof-v1"
NOTE_DOMAIN = b"p2pmesh-liveness-v1"
NOTE_LIFE_MS = 60_000
"""Older notes count for nothing: an old report, said again, would make a liar of its writer."""

_TIME = Integer(0, 2**53)

PeerIdOf = Callable[[bytes], PeerId]


@dataclass(frozen=True, slots=True)
class LifeProof:
    """A peer's answer to whoever drew ``nonce``, through whosever hands it comes."""

    peer_id: str = declared(PEER_ID)
    nonce: bytes = declared(ID)
    incarnation: int = declared(_TIME)
    sequence: int = declared(_TIME)


@dataclass(frozen=True, slots=True)
class DownReport:
    """``reporter`` reaches that incarnation of ``peer_id`` neither itself nor through those it asked."""

    mesh_id: str = declared(MESH_ID)
    reporter: str = declared(PEER_ID)
    peer_id: str = declared(PEER_ID)
    incarnation: int = declared(_TIME)
    issued_unix_ms: int = declared(_TIME)

    @property
    def speaker(self) -> PeerId:
        """Who must have signed it."""
        return PeerId(self.reporter)


@dataclass(frozen=True, slots=True)
class Leaving:
    """This incarnation of the peer ends; nothing that it announced counts any more."""

    mesh_id: str = declared(MESH_ID)
    peer_id: str = declared(PEER_ID)
    incarnation: int = declared(_TIME)
    sequence: int = declared(_TIME)
    issued_unix_ms: int = declared(_TIME)

    @property
    def speaker(self) -> PeerId:
        """Who must have signed it."""
        return PeerId(self.peer_id)


Note = DownReport | Leaving
NOTES: dict[str, type[DownReport] | type[Leaving]] = {"down_report": DownReport, "leaving": Leaving}
_KIND_OF = {cls: kind for kind, cls in NOTES.items()}


def topic_of(mesh_id: MeshId, shard_bits: str = "") -> str:
    """The gossipsub topic of notes about the peers of a shard (see ``wire.announcement.topic_of``)."""
    root = f"mesh-llm/1/{mesh_id}/liveness"
    return f"{root}/{shard_bits}" if shard_bits else root


def model_topic_of(mesh_id: MeshId, digest: str) -> str:
    """The topic of notes about the drivers of a model, for those who hear them beyond their shard."""
    return f"mesh-llm/1/{mesh_id}/liveness/model/{digest[:16]}"


def topic_beside(announcement_topic: str) -> str:
    """The topic of notes about those who announce on that one."""
    if "/model/" in announcement_topic:
        return announcement_topic.replace("/model/", "/liveness/model/")
    return announcement_topic.replace("/announce", "/liveness")


def encode_proof(proof: LifeProof, public_key: bytes, sign: Sign) -> bytes:
    """The sealed proof."""
    return seal(PROOF_DOMAIN, pack(checked_map(proof)), public_key, sign)


def decode_proof(data: bytes, peer: PeerId, nonce: bytes, verify: Verify, peer_id_of: PeerIdOf) -> LifeProof:
    """The proof that ``peer`` answers ``nonce``; else ``RemoteProtocolError``: another's or an old one is none."""
    envelope = unseal(PROOF_DOMAIN, data, verify, MAX_LIVENESS_RECORD_BYTES, "a proof of life")
    proof = from_map(LifeProof, unpack(envelope.payload, "life_proof"), "life_proof")
    if proof.peer_id != peer or peer_id_of(envelope.key) != peer:
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "a proof of life of another peer")
    if proof.nonce != nonce:
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "a proof of life for another question")
    return proof


def encode_note(note: Note, public_key: bytes, sign: Sign) -> bytes:
    """The sealed note."""
    return seal(NOTE_DOMAIN, pack({"kind": _KIND_OF[type(note)], **checked_map(note)}), public_key, sign)


def decode_note(data: bytes, mesh_id: MeshId, verify: Verify, peer_id_of: PeerIdOf) -> Note:
    """A checked note of a mesh (but for its time), signed by its speaker; else ``RemoteProtocolError``."""
    envelope = unseal(NOTE_DOMAIN, data, verify, MAX_LIVENESS_RECORD_BYTES, "a note")
    plain = unpack(envelope.payload, "note")
    kind = plain.get("kind") if isinstance(plain, dict) else None
    cls = NOTES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise malformed("note", "of no known kind")
    note = from_map(cls, plain, str(kind))
    if peer_id_of(envelope.key) != note.speaker:
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "a note that speaks for another peer")
    if note.mesh_id != mesh_id:
        raise RemoteProtocolError(ErrorCode.INVITE_FOREIGN, "a note of another mesh")
    return note
