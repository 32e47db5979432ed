"""The liveness vectors, for ``tests.wire.regenerate``: proofs of life and notes, and what is none."""

from typing import Any

from p2pmesh.wire import liveness
from p2pmesh.wire.schema import to_map
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, STRANGER, sealing

ISSUED_MS = 1_780_000_000_000
NONCE = bytes(range(80, 96))
PROOF = liveness.LifeProof(JOINER.peer_id, NONCE, ISSUED_MS, 7)
REPORT = liveness.DownReport(FOUNDER.mesh_id, FOUNDER.peer_id, JOINER.peer_id, ISSUED_MS, ISSUED_MS + 5000)
LEAVING = liveness.Leaving(FOUNDER.mesh_id, JOINER.peer_id, ISSUED_MS, 9, ISSUED_MS + 6000)

Case = dict[str, Any]


sealed_proof = sealing(liveness.PROOF_DOMAIN, JOINER)
sealed_note = sealing(liveness.NOTE_DOMAIN, JOINER)


def _flipped(data: bytes, index: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= 1
    return bytes(changed)


def _without(plain: Case, name: str) -> Case:
    return {key: value for key, value in plain.items() if key != name}


def proofs() -> Case:
    """``life_proofs.json``: each is looked at as the joiner's answer to the nonce."""
    good = to_map(PROOF)
    whole = sealed_proof(good)
    changes: dict[str, Case] = {
        "nonce of 15 bytes": {"nonce": bytes(15)},
        "nonce of 17 bytes": {"nonce": bytes(17)},
        "nonce as text": {"nonce": "0" * 16},
        "negative incarnation": {"incarnation": -1},
        "incarnation beyond 2^53": {"incarnation": 2**53 + 1},
        "true as a sequence": {"sequence": True},
        "sequence as a float": {"sequence": 7.0},
        "peer id with a letter base58 lacks": {"peer_id": "0" * 40},
        "peer id of nil": {"peer_id": None},
    }
    cases = [(name, sealed_proof({**good, **change}), "message_malformed") for name, change in changes.items()]
    cases += [
        ("no bytes", b"", "message_malformed"),
        ("payload is a list", sealed_proof(list(good.values())), "message_malformed"),
        ("payload without a nonce", sealed_proof(_without(good, "nonce")), "message_malformed"),
        ("bytes after the envelope", whole + b"\0", "message_malformed"),
        ("cut by one byte", whole[:-1], "message_malformed"),
        ("1025 bytes", bytes(1025), "message_too_large"),
        ("answer to another nonce", sealed_proof({**good, "nonce": bytes(16)}), "signature_invalid"),
        ("of another peer", sealed_proof({**good, "peer_id": STRANGER.peer_id}, STRANGER), "signature_invalid"),
        ("signed by another peer", sealed_proof(good, STRANGER), "signature_invalid"),
        ("signed as a note", sealed_proof(good, JOINER, liveness.NOTE_DOMAIN), "signature_invalid"),
        ("one bit of the payload flipped", _flipped(whole, 60), "signature_invalid"),
        ("one bit of the signature flipped", _flipped(whole, len(whole) - 1), "signature_invalid"),
    ]
    return {
        "domain": liveness.PROOF_DOMAIN.decode(),
        "keys": _keys(),
        "peer_id": JOINER.peer_id,
        "nonce": NONCE.hex(),
        "valid": [
            {
                "name": "an answer",
                "bytes": liveness.encode_proof(PROOF, JOINER.public_key, JOINER.sign).hex(),
                "value": vectors.to_json(PROOF),
            }
        ],
        "invalid": [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in cases],
    }


def notes() -> Case:
    """``liveness_notes.json``."""
    return {
        "domain": liveness.NOTE_DOMAIN.decode(),
        "keys": _keys(),
        "topic": liveness.topic_of(FOUNDER.mesh_id),
        "mesh_id": FOUNDER.mesh_id,
        "valid": [
            {
                "name": name,
                "kind": kind,
                "bytes": liveness.encode_note(note, key.public_key, key.sign).hex(),
                "value": vectors.to_json(note),
            }
            for name, kind, note, key in (
                ("a report", "down_report", REPORT, FOUNDER),
                ("a word of leaving", "leaving", LEAVING, JOINER),
            )
        ],
        "invalid": [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in _broken_notes()],
    }


def _broken_notes() -> list[tuple[str, bytes, str]]:
    report = {"kind": "down_report", **to_map(REPORT)}
    leaving = {"kind": "leaving", **to_map(LEAVING)}
    whole = sealed_note(leaving)
    report_changes: dict[str, Case] = {
        "report with a mesh id of 31 digits": {"mesh_id": "a" * 31},
        "report with a reporter of nil": {"reporter": None},
        "report of no peer id": {"peer_id": "nobody"},
        "report with a negative incarnation": {"incarnation": -1},
        "report with a time as text": {"issued_unix_ms": "now"},
        "report of an unknown kind": {"kind": "up_report"},
        "report with a kind as bytes": {"kind": b"down_report"},
    }
    cases = [
        (name, sealed_note({**report, **change}, FOUNDER), "message_malformed")
        for name, change in report_changes.items()
    ]
    leaving_changes: dict[str, Case] = {
        "leaving with a sequence beyond 2^53": {"sequence": 2**53 + 1},
        "leaving with true as an incarnation": {"incarnation": True},
        "leaving with the fields of a report": {"kind": "down_report"},
    }
    cases += [
        (name, sealed_note({**leaving, **change}), "message_malformed") for name, change in leaving_changes.items()
    ]
    foreign = "0" * 32
    return [
        *cases,
        ("no bytes", b"", "message_malformed"),
        ("payload is a list", sealed_note(["leaving"]), "message_malformed"),
        ("without a kind", sealed_note(_without(leaving, "kind")), "message_malformed"),
        ("leaving without a sequence", sealed_note(_without(leaving, "sequence")), "message_malformed"),
        ("bytes after the envelope", whole + b"\xc0", "message_malformed"),
        ("1025 bytes", bytes(1025), "message_too_large"),
        ("report signed by whom it is about", sealed_note(report, JOINER), "signature_invalid"),
        ("leaving signed by another peer", sealed_note(leaving, STRANGER), "signature_invalid"),
        ("leaving signed as a proof of life", sealed_note(leaving, JOINER, liveness.PROOF_DOMAIN), "signature_invalid"),
        ("one bit of the payload flipped", _flipped(whole, 80), "signature_invalid"),
        ("report of another mesh", sealed_note({**report, "mesh_id": foreign}, FOUNDER), "invite_foreign"),
        ("leaving of another mesh", sealed_note({**leaving, "mesh_id": foreign}), "invite_foreign"),
    ]


def _keys() -> Case:
    return {
        key.name: {"seed": key.seed.hex(), "public_key": key.public_key.hex(), "peer_id": key.peer_id}
        for key in (FOUNDER, JOINER, STRANGER)
    }
