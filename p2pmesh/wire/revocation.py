"""The founder's word on who may no longer come in: invites and peers, in one record that replaces the one before.

Owns the bytes and the topic. What a revocation does to a peer is ``core.credentials``'.
"""

from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import MeshId
from p2pmesh.base.limits import MAX_REVOCATION_BYTES, MAX_REVOKED
from p2pmesh.wire.schema import Integer, ListOf, checked_map, declared, from_map, pack, unpack
from p2pmesh.wire.shapes import ID, MESH_ID, PEER_ID
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

DOMAIN = b"p2pmesh-revocation-v1"

_TIME = Integer(0, 2**53)
_INVITES = ListOf(ID, MAX_REVOKED)


@dataclass(frozen=True, slots=True)
class Revocation:
    """Everything that is revoked in a mesh; the record with the highest ``sequence`` counts.

    ``invites`` let nobody in any more; ``expelled_invites`` besides put out everyone who came in by them.
    """

    mesh_id: str = declared(MESH_ID)
    sequence: int = declared(Integer(0, 2**53))
    issued_unix_ms: int = declared(_TIME)
    invites: tuple[bytes, ...] = declared(_INVITES)
    expelled_invites: tuple[bytes, ...] = declared(_INVITES)
    peers: tuple[str, ...] = declared(ListOf(PEER_ID, MAX_REVOKED))


def topic_of(mesh_id: MeshId) -> str:
    """The gossipsub topic that revocations of an overlay travel on."""
    return f"mesh-llm/1/{mesh_id}/revocations"


def encode_revocation(revocation: Revocation, public_key: bytes, sign: Sign) -> bytes:
    """The sealed record."""
    return seal(DOMAIN, pack(checked_map(revocation)), public_key, sign)


def decode_revocation(data: bytes, founder_key: bytes, mesh_id: MeshId, verify: Verify) -> Revocation:
    """The record of a mesh, signed by its founder; else ``RemoteProtocolError``."""
    envelope = unseal(DOMAIN, data, verify, MAX_REVOCATION_BYTES, "a revocation")
    if envelope.key != founder_key:
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "a revocation that the founder did not sign")
    revocation = from_map(Revocation, unpack(envelope.payload, "revocation"), "revocation")
    if revocation.mesh_id != mesh_id:
        raise RemoteProtocolError(ErrorCode.INVITE_FOREIGN, "a revocation of another mesh")
    return revocation
