"""Claims as an operator's commands and a running node make and read them: a fresh one, its facts, its renewal."""

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from p2pmesh.adapters.identity import KEY_FILE_NAME, Ed25519Verifier, NodeIdentity, load_or_create_identity
from p2pmesh.adapters.owner_keystore import FILE_NAME, OwnerKey
from p2pmesh.adapters.trust_file import load_trust, save_trust
from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.ownership import Ownership, TrustStore
from p2pmesh.wire.ownership import (
    LIFE_MS,
    LONGEST_LIFE_MS,
    VERSION,
    OwnershipClaim,
    SignedClaim,
    decode_claim,
    encode_claim,
)

MS_PER_HOUR = 3_600_000
DEFAULT_HOURS = LIFE_MS // MS_PER_HOUR
LONGEST_HOURS = LONGEST_LIFE_MS // MS_PER_HOUR

verify = Ed25519Verifier().is_signature_of


@dataclass(frozen=True, slots=True)
class OwnerFiles:
    """Where an operator's commands look: a node's home, and the owner's keystore, which may serve several homes."""

    home: Path
    keystore: Path

    @classmethod
    def of(cls, home: Path, keystore: str | None) -> "OwnerFiles":
        """The keystore as given, else the one in the home."""
        return cls(home, Path(keystore).expanduser().absolute() if keystore else home / FILE_NAME)


def now_unix_ms() -> UnixMillis:
    """The wall clock."""
    return UnixMillis(time.time_ns() // 1_000_000)


def own_identity(home: Path) -> NodeIdentity | None:
    """The node key of a home; None if no node ever ran there. Looking does not make one."""
    return load_or_create_identity(home) if (home / KEY_FILE_NAME).exists() else None


def sign_claim(owner: OwnerKey, peer: PeerId, label: str, life_ms: int, now: UnixMillis) -> bytes:
    """A fresh claim that begins ``now``, with a certificate id of its own."""
    claim = OwnershipClaim(VERSION, secrets.token_bytes(16), peer, label, now, now + life_ms)
    return encode_claim(claim, owner.public_key, owner.sign)


def open_own_claim(claim: bytes) -> SignedClaim:
    """The claim of this home; ``ConfigError(CLAIM_INVALID)`` if it is none."""
    try:
        return decode_claim(claim, verify)
    except RemoteProtocolError as error:
        message = f"the claim is not valid ({error.message}); sign the node again with p2pmesh auth sign-node"
        raise ConfigError(ErrorCode.CLAIM_INVALID, message) from None


def trust_own_owner(home: Path, signed: SignedClaim) -> None:
    """A node trusts the owner that signs it, unless its operator named or revoked that owner before."""
    trust = load_trust(home)
    if signed.owner_id not in trust.trusted_owners and signed.owner_id not in trust.revoked_owners:
        save_changed(home, trust, lambda store: store.trusting(signed.owner_id, "owner of this node"))


def save_changed(home: Path, trust: TrustStore, change: Any) -> TrustStore:
    """Saves what ``change`` makes of the store; ``ConfigError(CONFIG_INVALID)`` where no store may hold that."""
    try:
        changed: TrustStore = change(trust)
    except ValueError as error:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"the trust store does not take this: {error}") from None
    if changed != trust:
        save_trust(home, changed)
    return changed


def describe_ownership(found: Ownership) -> dict[str, Any]:
    """A status with its claim's facts, as JSON can hold them."""
    return {
        "status": found.status.value,
        "owner_id": found.owner_id,
        "owner_label": found.owner_label,
        "label": found.label,
        "certificate_id": found.certificate_id.hex() or None,
        "issued_unix_ms": found.issued_unix_ms,
        "expires_unix_ms": found.expires_unix_ms,
        "expires": None if found.expires_unix_ms is None else as_utc(found.expires_unix_ms),
    }


def as_utc(unix_ms: int) -> str:
    """A time for people, to the second; what no calendar holds is shown as its number."""
    try:
        return datetime.fromtimestamp(unix_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{unix_ms} ms"
