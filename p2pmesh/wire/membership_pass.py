"""Passes: what a member shows instead of an invite, signed by the founder or by a member that has one itself.

Owns the bytes of one pass and who signed it. What a chain of them proves is ``core.credentials``'.
"""

from collections.abc import Callable
from dataclasses import dataclass

from p2pmesh.base.ids import ID_BYTES, PeerId, is_mesh_id, is_peer_id
from p2pmesh.base.limits import MAX_PASS_BYTES
from p2pmesh.wire.schema import Bytes, Integer, Text, checked_map, declared, from_map, pack, unpack
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

DOMAIN = b"p2pmesh-pass-v1"
LIFE_MS = 30 * 24 * 3600 * 1000

_TIME = Integer(0, 2**53)


@dataclass(frozen=True, slots=True)
class MembershipPass:
    """The signer lets ``peer_id`` in until ``expires_unix_ms``; it first came by the invite ``invite_id``."""

    mesh_id: str = declared(Text(32, is_mesh_id))
    peer_id: str = declared(Text(128, is_peer_id))
    invite_id: bytes = declared(Bytes(ID_BYTES, ID_BYTES))
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)


@dataclass(frozen=True, slots=True)
class SignedPass:
    """A pass whose signature was right, and who made it."""

    granted: MembershipPass
    signer_key: bytes
    signer: PeerId


def encode_pass(granted: MembershipPass, public_key: bytes, sign: Sign) -> bytes:
    """The sealed pass."""
    return seal(DOMAIN, pack(checked_map(granted)), public_key, sign)


def decode_pass(data: bytes, verify: Verify, peer_id_of: Callable[[bytes], PeerId]) -> SignedPass:
    """A pass with a right signature; ``MESSAGE_TOO_LARGE``, ``MESSAGE_MALFORMED`` or ``SIGNATURE_INVALID``."""
    envelope = unseal(DOMAIN, data, verify, MAX_PASS_BYTES, "a pass")
    granted = from_map(MembershipPass, unpack(envelope.payload, "pass"), "pass")
    return SignedPass(granted, envelope.key, peer_id_of(envelope.key))
