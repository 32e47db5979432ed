"""The ownership vectors, for ``tests.wire.regenerate``: claims, and what a reader makes of them."""

from dataclasses import replace
from typing import Any

from p2pmesh.base.ids import owner_id_of_key
from p2pmesh.wire import announcement, ownership
from p2pmesh.wire.schema import pack, to_map
from p2pmesh.wire.signed import seal
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, OWNER, STRANGER, sealing

ISSUED_MS = 1_780_000_000_000
CLAIM = ownership.OwnershipClaim(
    ownership.VERSION, bytes(range(64, 80)), JOINER.peer_id, "kitchen", ISSUED_MS, ISSUED_MS + ownership.LIFE_MS
)
HOUR_MS = 3_600_000

Case = dict[str, Any]


sealed = sealing(ownership.DOMAIN, OWNER)


def _flipped(data: bytes, index: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= 1
    return bytes(changed)


def _valid() -> list[Case]:
    claims = {
        "for a week": CLAIM,
        "without a label": replace(CLAIM, label=""),
        "label of 128 bytes": replace(CLAIM, label="ü" * 64),
        "the shortest life": replace(CLAIM, expires_unix_ms=ISSUED_MS + 1),
        "the longest life": replace(CLAIM, expires_unix_ms=ISSUED_MS + ownership.LONGEST_LIFE_MS),
    }
    return [
        {
            "name": name,
            "bytes": ownership.encode_claim(claim, OWNER.public_key, OWNER.sign).hex(),
            "value": vectors.to_json(claim),
            "owner_id": owner_id_of_key(OWNER.public_key),
        }
        for name, claim in claims.items()
    ]


def _invalid() -> list[Case]:
    good = to_map(CLAIM)
    whole = sealed(good)
    changes: dict[str, Case] = {
        "version 0": {"version": 0},
        "version as text": {"version": "1"},
        "true as a version": {"version": True},
        "certificate id of 15 bytes": {"certificate_id": bytes(15)},
        "certificate id of 17 bytes": {"certificate_id": bytes(17)},
        "certificate id as text": {"certificate_id": "0" * 16},
        "peer id with a letter base58 lacks": {"peer_id": "0" * 40},
        "peer id of 129 letters": {"peer_id": "1" * 129},
        "empty peer id": {"peer_id": ""},
        "peer id as bytes": {"peer_id": JOINER.peer_id.encode()},
        "label of 129 bytes": {"label": "l" * 129},
        "line feed in the label": {"label": "a\nb"},
        "escape in the label": {"label": "\x1b[2J"},
        "text reordered by a mark in the label": {"label": "a\u202eb"},
        "label as bytes": {"label": b"kitchen"},
        "negative issue": {"issued_unix_ms": -1},
        "issue as a float": {"issued_unix_ms": float(ISSUED_MS)},
        "end beyond 2^53": {"issued_unix_ms": 2**53, "expires_unix_ms": 2**53 + 1},
        "ends when it begins": {"expires_unix_ms": ISSUED_MS},
        "ends before it begins": {"expires_unix_ms": ISSUED_MS - 1},
        "lives a millisecond too long": {"expires_unix_ms": ISSUED_MS + ownership.LONGEST_LIFE_MS + 1},
        "lives for ever": {"expires_unix_ms": 2**53},
    }
    cases = [(name, sealed({**good, **change}), "message_malformed") for name, change in changes.items()]
    cases += [
        (f"payload without {name}", sealed({k: v for k, v in good.items() if k != name}), "message_malformed")
        for name in good
    ]
    envelope = {"payload": pack(good), "key": OWNER.public_key, "signature": bytes(64)}
    cases += [
        ("no bytes", b"", "message_malformed"),
        ("nil", b"\xc0", "message_malformed"),
        ("payload is a list", sealed(list(good.values())), "message_malformed"),
        ("payload is no msgpack", seal(ownership.DOMAIN, b"\xc1", OWNER.public_key, OWNER.sign), "message_malformed"),
        ("two payloads in one", seal(ownership.DOMAIN, pack(good) * 2, OWNER.public_key, OWNER.sign),
         "message_malformed"),
        ("envelope is a list", pack(list(envelope.values())), "message_malformed"),
        ("envelope without a key", pack({k: v for k, v in envelope.items() if k != "key"}), "message_malformed"),
        ("key of 33 bytes", pack({**envelope, "key": bytes(33)}), "message_malformed"),
        ("signature of 63 bytes", pack({**envelope, "signature": bytes(63)}), "message_malformed"),
        ("bytes after the envelope", whole + b"\0", "message_malformed"),
        ("cut by one byte", whole[:-1], "message_malformed"),
        ("version 2", sealed({**good, "version": 2}), "generation_unsupported"),
        ("version 2 with other fields", sealed({"version": 2, "node": "x"}), "generation_unsupported"),
        ("version 2 with a wrong signature", pack({**envelope, "payload": pack({**good, "version": 2})}),
         "signature_invalid"),
        ("signature of zeros", pack(envelope), "signature_invalid"),
        ("signed by another owner", pack({**envelope, "signature": STRANGER.sign(
            ownership.DOMAIN + b"\0" + pack(good))}), "signature_invalid"),
        ("signed for announcements", sealed(good, OWNER, announcement.DOMAIN), "signature_invalid"),
        ("signed without a domain", pack({**envelope, "signature": OWNER.sign(pack(good))}), "signature_invalid"),
        ("one bit of the payload flipped", _flipped(whole, 60), "signature_invalid"),
        ("one bit of the signature flipped", _flipped(whole, len(whole) - 1), "signature_invalid"),
    ]  # fmt: skip
    invalid: list[Case] = [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in cases]
    invalid.append({"name": "1025 bytes", "parts": [["c1", 1025]], "error": "message_too_large"})
    return invalid


def _assessed() -> list[Case]:
    """``status`` of ``bytes`` shown by ``peer_id`` to a reader with this ``trust`` at ``now_unix_ms``."""
    owner, other = owner_id_of_key(OWNER.public_key), owner_id_of_key(STRANGER.public_key)
    whole = ownership.encode_claim(CLAIM, OWNER.public_key, OWNER.sign).hex()
    late, early = CLAIM.expires_unix_ms + 30_000, ISSUED_MS - 30_000
    revoked = {
        "revoked_owners": [owner],
        "revoked_certificates": [CLAIM.certificate_id.hex()],
    }
    base: Case = {"bytes": whole, "peer_id": JOINER.peer_id, "now_unix_ms": ISSUED_MS + HOUR_MS, "trust": {}}
    rows: list[tuple[str, Case, str]] = [
        ("a good claim", {}, "verified"),
        ("no claim", {"bytes": ""}, "unsigned"),
        ("no claim of a revoked node", {"bytes": "", "trust": {"revoked_peers": [JOINER.peer_id]}}, "revoked_node_id"),
        ("damaged bytes", {"bytes": whole[:-2]}, "invalid_signature"),
        ("forged", {"bytes": sealed(to_map(CLAIM), OWNER, b"x").hex()}, "invalid_signature"),
        ("another version", {"bytes": sealed({"version": 7}).hex()}, "unsupported_protocol"),
        ("another peer's", {"peer_id": FOUNDER.peer_id}, "mismatched_node_id"),
        ("another peer's, of a revoked owner", {"peer_id": FOUNDER.peer_id, "trust": revoked}, "mismatched_node_id"),
        ("owner revoked, claim revoked too", {"trust": revoked}, "revoked_owner"),
        ("claim revoked", {"trust": {"revoked_certificates": [CLAIM.certificate_id.hex()]}}, "revoked_cert"),
        ("claim revoked and over", {"trust": {"revoked_certificates": [CLAIM.certificate_id.hex()]},
                                    "now_unix_ms": late + 1}, "revoked_cert"),
        ("node revoked", {"trust": {**revoked, "revoked_peers": [JOINER.peer_id]}}, "revoked_node_id"),
        ("another node revoked", {"trust": {"revoked_peers": [FOUNDER.peer_id]}}, "verified"),
        ("within the skew at its end", {"now_unix_ms": late}, "verified"),
        ("beyond the skew", {"now_unix_ms": late + 1}, "expired"),
        ("within the skew at its begin", {"now_unix_ms": early}, "verified"),
        ("not yet", {"now_unix_ms": early - 1}, "expired"),
        ("on the list", {"trust": {"policy": "allowlist", "trusted_owners": [owner]}}, "verified"),
        ("not on the list", {"trust": {"policy": "allowlist", "trusted_owners": [other]}}, "untrusted_owner"),
        ("an empty list", {"trust": {"policy": "allowlist"}}, "untrusted_owner"),
        ("not on the list and over", {"trust": {"policy": "allowlist"}, "now_unix_ms": late + 1}, "expired"),
        ("on the list and revoked", {"trust": {"policy": "allowlist", "trusted_owners": [owner],
                                               "revoked_owners": [owner]}}, "revoked_owner"),
        ("a list counts for allowlist alone", {"trust": {"policy": "require-owned", "trusted_owners": [other]}},
         "verified"),
    ]  # fmt: skip
    return [{"name": name, **base, **change, "status": status} for name, change, status in rows]


def ownership_claims() -> Case:
    """The document."""
    keys = {
        key.name: {"seed": key.seed.hex(), "public_key": key.public_key.hex(), "peer_id": key.peer_id}
        for key in (OWNER, FOUNDER, JOINER, STRANGER)
    }
    document = {"domain": ownership.DOMAIN.decode(), "keys": keys}
    return {**document, "valid": _valid(), "invalid": _invalid(), "assessed": _assessed()}
