"""Ownership claims: an owner's signed word, for a while, that a node is its own.

Owns the bytes of a claim and the rules that need no other facts. Whether an owner is trusted, what is revoked and
whether the claim speaks of the peer at hand are ``core.ownership``'s; where the owner's key lives is
``adapters.owner_keystore``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import OwnerId, owner_id_of_key
from p2pmesh.base.limits import MAX_NODE_LABEL_BYTES, MAX_OWNERSHIP_CLAIM_BYTES
from p2pmesh.wire.schema import Bytes, Integer, Text, checked_map, declared, from_map, is_line, malformed, pack, unpack
from p2pmesh.wire.shapes import PEER_ID
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

DOMAIN = b"p2pmesh-node-ownership-v1"
VERSION = 1
LIFE_MS = 168 * 3600 * 1000
LONGEST_LIFE_MS = 720 * 3600 * 1000
RENEWAL_MS = 36 * 3600 * 1000
"""A claim is renewed from this long before its end."""

_TIME = Integer(0, 2**53)
_VERSION = Integer(1, 2**31)


@dataclass(frozen=True, slots=True)
class OwnershipClaim:
    """The node ``peer_id`` is the signer's from ``issued_unix_ms`` to ``expires_unix_ms``; ``label`` is for people."""

    version: int = declared(_VERSION)
    certificate_id: bytes = declared(Bytes(16, 16))
    peer_id: str = declared(PEER_ID)
    label: str = declared(Text(MAX_NODE_LABEL_BYTES, is_line))
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)

    @property
    def life_ms(self) -> int:
        """From its issue to its end."""
        return self.expires_unix_ms - self.issued_unix_ms


@dataclass(frozen=True, slots=True)
class SignedClaim:
    """A claim whose signature was right, and the owner that the key stands for."""

    owner_id: OwnerId
    claim: OwnershipClaim


@dataclass(frozen=True, slots=True)
class _Head:
    """The one field that every version of a claim has."""

    version: int = declared(_VERSION)


class ClaimVersionUnsupported(RemoteProtocolError):
    """The signature is right, but the claim is of a version that this software does not know."""


def encode_claim(claim: OwnershipClaim, public_key: bytes, sign: Sign) -> bytes:
    """The claim, sealed with the owner's key; ``LocalProtocolError`` where no reader would take it."""
    problem = _problem_of(claim)
    if problem is not None:
        raise LocalProtocolError(ErrorCode.MESSAGE_MALFORMED, f"not sent: a claim {problem}")
    return seal(DOMAIN, pack(checked_map(claim)), public_key, sign)


def decode_claim(data: bytes, verify: Verify) -> SignedClaim:
    """A claim whose signature is right; who it speaks of, and when, is for the caller to check.

    Raises ``RemoteProtocolError`` with ``MESSAGE_TOO_LARGE``, ``MESSAGE_MALFORMED`` or ``SIGNATURE_INVALID``; its
    subclass ``ClaimVersionUnsupported`` for another version.
    """
    envelope = unseal(DOMAIN, data, verify, MAX_OWNERSHIP_CLAIM_BYTES, "a claim")
    value = unpack(envelope.payload, "claim")
    version = from_map(_Head, value, "claim").version
    if version != VERSION:
        text = f"an ownership claim of version {version}, this software knows {VERSION}; update the older"
        raise ClaimVersionUnsupported(ErrorCode.GENERATION_UNSUPPORTED, text)
    claim = from_map(OwnershipClaim, value, "claim")
    problem = _problem_of(claim)
    if problem is not None:
        raise malformed("claim", problem)
    return SignedClaim(owner_id_of_key(envelope.key), claim)


def _problem_of(claim: OwnershipClaim) -> str | None:
    if claim.life_ms <= 0:
        return "ends before it begins"
    if claim.life_ms > LONGEST_LIFE_MS:
        return f"lives longer than {LONGEST_LIFE_MS // 3_600_000} hours"
    return None
