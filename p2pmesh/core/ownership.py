"""Who owns a peer, as far as this node believes it, and what follows from that for joining, placement and routing.

Total functions over a claim's bytes and this node's ``TrustStore``. The bytes of a claim are ``wire.ownership``'s;
where the trust store is kept is ``adapters.trust_file``'s. A claim says who answers for a machine, not that it computes
honestly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import OwnerId, PeerId, is_owner_id, is_peer_id
from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_NODE_LABEL_BYTES, MAX_REVOCATIONS, MAX_TRUSTED_OWNERS
from p2pmesh.wire.ownership import (
    RENEWAL_MS,
    ClaimVersionUnsupported,
    OwnershipClaim,
    SignedClaim,
    decode_claim,
)
from p2pmesh.wire.schema import is_line
from p2pmesh.wire.signed import Verify

CERTIFICATE_ID_BYTES = 16


class OwnershipStatus(StrEnum):
    """What a node makes of a peer's claim."""

    VERIFIED = "verified"
    UNSIGNED = "unsigned"
    EXPIRED = "expired"
    INVALID_SIGNATURE = "invalid_signature"
    MISMATCHED_NODE_ID = "mismatched_node_id"
    REVOKED_OWNER = "revoked_owner"
    REVOKED_CERT = "revoked_cert"
    REVOKED_NODE_ID = "revoked_node_id"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
    UNTRUSTED_OWNER = "untrusted_owner"


class TrustPolicy(StrEnum):
    """What a node does with the status of its peers."""

    OFF = "off"
    PREFER_OWNED = "prefer-owned"
    REQUIRE_OWNED = "require-owned"
    ALLOWLIST = "allowlist"


@dataclass(frozen=True, slots=True)
class TrustStore:
    """What this node's operator decided. ``trusted_owners`` maps an owner id to a label for people.

    ``ValueError`` for ids of another form, labels that are no line, and more entries than ``base.limits`` allows.
    """

    policy: TrustPolicy = TrustPolicy.OFF
    trusted_owners: Mapping[OwnerId, str] = field(default_factory=lambda: MappingProxyType({}))
    revoked_owners: frozenset[OwnerId] = frozenset()
    revoked_certificates: frozenset[bytes] = frozenset()
    revoked_peers: frozenset[PeerId] = frozenset()

    def __post_init__(self) -> None:
        _check_owners(self.trusted_owners, self.revoked_owners)
        if not all(len(certificate) == CERTIFICATE_ID_BYTES for certificate in self.revoked_certificates):
            raise ValueError("a certificate id has 32 hex digits")
        if not all(is_peer_id(peer) for peer in self.revoked_peers):
            raise ValueError("a revoked node is not named by a peer id")
        if len(self.trusted_owners) > MAX_TRUSTED_OWNERS:
            raise ValueError(f"more than {MAX_TRUSTED_OWNERS} trusted owners")
        if max(map(len, (self.revoked_owners, self.revoked_certificates, self.revoked_peers))) > MAX_REVOCATIONS:
            raise ValueError(f"more than {MAX_REVOCATIONS} revocations of one kind")

    def trusting(self, owner_id: OwnerId, label: str) -> "TrustStore":
        """With one more trusted owner, or another label of one. Its revocation, if any, stands."""
        return replace(self, trusted_owners=MappingProxyType({**self.trusted_owners, owner_id: label}))

    def not_trusting(self, owner_id: OwnerId) -> "TrustStore":
        """Without a trusted owner."""
        left = {owner: label for owner, label in self.trusted_owners.items() if owner != owner_id}
        return replace(self, trusted_owners=MappingProxyType(left))


def _check_owners(trusted: Mapping[OwnerId, str], revoked: frozenset[OwnerId]) -> None:
    if not all(is_owner_id(owner) for owner in (*trusted, *revoked)):
        raise ValueError("an owner id has 64 lower-case hex digits")
    if not all(is_line(label) and len(label.encode()) <= MAX_NODE_LABEL_BYTES for label in trusted.values()):
        raise ValueError(f"a label is one line of at most {MAX_NODE_LABEL_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Ownership:
    """A status, and what the claim says where its signature is right.

    ``label`` is the owner's name for the node, ``owner_label`` this operator's name for the owner; both may be empty.
    """

    status: OwnershipStatus
    owner_id: OwnerId | None = None
    label: str = ""
    owner_label: str = ""
    certificate_id: bytes = b""
    issued_unix_ms: int | None = None
    expires_unix_ms: int | None = None


OpenedClaim = SignedClaim | OwnershipStatus
"""A claim whose signature is right, or the status of one that cannot be read (or is none)."""


def assess_ownership(
    claim_bytes: bytes | None, peer_id: PeerId, trust: TrustStore, now_unix_ms: int, verify: Verify
) -> Ownership:
    """What to make of the claim that ``peer_id`` shows, at a wall-clock time; no claim is None or empty bytes."""
    return judge_claim(open_claim(claim_bytes, verify), peer_id, trust, now_unix_ms)


def open_claim(claim_bytes: bytes | None, verify: Verify) -> OpenedClaim:
    """The costly half of ``assess_ownership``: it depends on the bytes alone, so that a caller may keep it."""
    if not claim_bytes:
        return OwnershipStatus.UNSIGNED
    try:
        return decode_claim(claim_bytes, verify)
    except ClaimVersionUnsupported:
        return OwnershipStatus.UNSUPPORTED_PROTOCOL
    except RemoteProtocolError:  # damaged or forged: either way nothing is proven
        return OwnershipStatus.INVALID_SIGNATURE


def judge_claim(opened: OpenedClaim, peer_id: PeerId, trust: TrustStore, now_unix_ms: int) -> Ownership:
    """The cheap half of ``assess_ownership``.

    A revoked node is that whatever it shows: its peer id is proven by the connection, and a claim can be left away.
    """
    if isinstance(opened, OwnershipStatus):
        return Ownership(OwnershipStatus.REVOKED_NODE_ID if peer_id in trust.revoked_peers else opened)
    claim = opened.claim
    return Ownership(
        _status_of(opened, peer_id, trust, now_unix_ms),
        opened.owner_id,
        claim.label,
        trust.trusted_owners.get(opened.owner_id, ""),
        claim.certificate_id,
        claim.issued_unix_ms,
        claim.expires_unix_ms,
    )


def _status_of(signed: SignedClaim, peer_id: PeerId, trust: TrustStore, now_unix_ms: int) -> OwnershipStatus:
    claim = signed.claim
    not_yet = now_unix_ms < claim.issued_unix_ms - CLOCK_SKEW_MS
    over = now_unix_ms > claim.expires_unix_ms + CLOCK_SKEW_MS
    is_trusted = trust.policy is not TrustPolicy.ALLOWLIST or signed.owner_id in trust.trusted_owners
    findings = (
        (peer_id in trust.revoked_peers, OwnershipStatus.REVOKED_NODE_ID),
        (claim.peer_id != peer_id, OwnershipStatus.MISMATCHED_NODE_ID),
        (signed.owner_id in trust.revoked_owners, OwnershipStatus.REVOKED_OWNER),
        (claim.certificate_id in trust.revoked_certificates, OwnershipStatus.REVOKED_CERT),
        (not_yet or over, OwnershipStatus.EXPIRED),
        (not is_trusted, OwnershipStatus.UNTRUSTED_OWNER),
    )
    return next((status for is_so, status in findings if is_so), OwnershipStatus.VERIFIED)


def admits(policy: TrustPolicy, status: OwnershipStatus) -> bool:
    """Whether a peer of this status may join, be placed on and be routed to.

    ``prefer-owned`` turns away none but nodes that the operator revoked by their peer id; ``off`` looks at nothing.
    """
    match policy:
        case TrustPolicy.OFF:
            return True
        case TrustPolicy.PREFER_OWNED:
            return status is not OwnershipStatus.REVOKED_NODE_ID
        case TrustPolicy.REQUIRE_OWNED | TrustPolicy.ALLOWLIST:
            return status is OwnershipStatus.VERIFIED


def rank(policy: TrustPolicy, status: OwnershipStatus) -> int:
    """Where a peer stands among those admitted, 0 first: under ``prefer-owned`` verified ones before all others."""
    return int(policy is TrustPolicy.PREFER_OWNED and status is not OwnershipStatus.VERIFIED)


def renewal_due_unix_ms(claim: OwnershipClaim) -> int:
    """From when on a claim is renewed: 36 hours before its end, half its life for one that lives shorter than 72."""
    return claim.expires_unix_ms - min(RENEWAL_MS, claim.life_ms // 2)


def renewal_due(claim: OwnershipClaim, now_unix_ms: int) -> bool:
    """Whether it is time to renew a claim."""
    return now_unix_ms >= renewal_due_unix_ms(claim)
