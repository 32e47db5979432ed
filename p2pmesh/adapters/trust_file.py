"""``HOME/trust.json`` and ``HOME/node.claim``: whom this node's operator trusts, and this node's own claim.

Owns both files' formats. A damaged one is an error that names it, never an empty store: that would trust differently
from what the operator decided. The meaning of the records is ``core.ownership``'s and ``wire.ownership``'s.
"""

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any

from p2pmesh.adapters.private_files import read_private, remove_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId, PeerId
from p2pmesh.base.limits import MAX_OWNERSHIP_CLAIM_BYTES
from p2pmesh.base.quantities import MIB
from p2pmesh.core.ownership import TrustPolicy, TrustStore

TRUST_FILE = "trust.json"
CLAIM_FILE = "node.claim"
MAX_TRUST_FILE_BYTES = 4 * MIB
CLAIM_PREFIX = "p2pmesh-claim1-"

_VERSION = 1
_LINE = re.compile(r"[A-Za-z0-9_-]+\Z")
_MAX_CLAIM_FILE_BYTES = 4096


def load_trust(home: Path) -> TrustStore:
    """The trust store of a home, an empty one if there is no file; ``ConfigError(HOME_UNUSABLE)`` if it is damaged."""
    path = home / TRUST_FILE
    data = read_private(path, MAX_TRUST_FILE_BYTES)
    if data is None:
        return TrustStore()
    try:
        return _trust_of(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = _reason(error)
        message = f"the trust store {path} is damaged ({reason}); restore it, or move it away to begin anew"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None


def save_trust(home: Path, trust: TrustStore) -> None:
    """Replaces the trust store of a home."""
    document = {
        "version": _VERSION,
        "policy": trust.policy.value,
        "trusted_owners": dict(sorted(trust.trusted_owners.items())),
        "revoked_owners": sorted(trust.revoked_owners),
        "revoked_certificates": sorted(certificate.hex() for certificate in trust.revoked_certificates),
        "revoked_nodes": sorted(trust.revoked_peers),
    }
    write_private(home / TRUST_FILE, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")


def load_claim(home: Path) -> bytes | None:
    """The claim of the home's node as it was signed; None if there is none. It is not checked here."""
    return _read_claim(home / CLAIM_FILE, is_ours=True)


def save_claim(home: Path, claim: bytes) -> None:
    """Replaces the claim of the home's node."""
    write_claim(home / CLAIM_FILE, claim)


def remove_claim(home: Path) -> None:
    """Leaves the home's node without a claim."""
    remove_private(home / CLAIM_FILE)


def write_claim(path: Path, claim: bytes) -> None:
    """A claim as one line of text, which can be mailed or pasted."""
    write_private(path, encode_claim_line(claim).encode() + b"\n")


def read_claim(path: Path) -> bytes | None:
    """The claim in a file, which may be another user's; None if there is no file.

    ``ConfigError(CLAIM_INVALID)`` for what is no line of a claim.
    """
    return _read_claim(path, is_ours=False)


def _read_claim(path: Path, *, is_ours: bool) -> bytes | None:
    data = read_private(path, _MAX_CLAIM_FILE_BYTES, is_ours=is_ours)
    if data is None:
        return None
    try:
        return decode_claim_line(data.decode("ascii"))
    except ValueError as error:
        reason = "it is not text" if isinstance(error, UnicodeError) else str(error)
        message = f"the claim in {path} cannot be read: {reason}; sign the node again with p2pmesh auth sign-node"
        raise ConfigError(ErrorCode.CLAIM_INVALID, message) from None


def encode_claim_line(claim: bytes) -> str:
    """``p2pmesh-claim1-`` and base64url without padding."""
    return CLAIM_PREFIX + base64.urlsafe_b64encode(claim).decode().rstrip("=")


def decode_claim_line(text: str) -> bytes:
    """The inverse; white space around the line is forgiven. ``ValueError`` says what is wrong."""
    line = text.strip()
    body = line.removeprefix(CLAIM_PREFIX)
    if body == line:
        raise ValueError(f"it does not start with {CLAIM_PREFIX}")
    if not _LINE.match(body):
        raise ValueError("it is cut, or holds characters that no claim has")
    try:
        claim = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except binascii.Error:
        raise ValueError("it is cut") from None
    if len(claim) > MAX_OWNERSHIP_CLAIM_BYTES:
        raise ValueError("it is too long")
    return claim


class _Wrong(ValueError):
    """A rule of the file is broken; the text says which, to a person."""


def _reason(error: Exception) -> str:
    """Never the words of the interpreter, which tell a person nothing."""
    if isinstance(error, _Wrong):
        return str(error)
    if isinstance(error, (json.JSONDecodeError, UnicodeError, RecursionError)):
        return "it is no JSON"
    return "a field is missing or of another form"


def _trust_of(value: Any) -> TrustStore:
    if value["version"] != _VERSION:
        raise _Wrong("its version is unknown to this software")
    labels = value["trusted_owners"]
    if not all(isinstance(label, str) for label in labels.values()):
        raise _Wrong("a label is no text")
    lists = [value[name] for name in ("revoked_owners", "revoked_certificates", "revoked_nodes")]
    if not all(isinstance(items, list) for items in lists):
        raise _Wrong("a revocation list is no list")
    owners, certificates, peers = lists
    if value["policy"] not in [policy.value for policy in TrustPolicy]:
        raise _Wrong("its policy is unknown to this software")
    certificate_ids = frozenset(map(bytes.fromhex, certificates))
    try:
        return TrustStore(
            TrustPolicy(value["policy"]),
            {OwnerId(owner): label for owner, label in labels.items()},
            frozenset(map(OwnerId, owners)),
            certificate_ids,
            frozenset(map(PeerId, peers)),
        )
    except ValueError as error:  # its sentences are for people
        raise _Wrong(str(error)) from None
