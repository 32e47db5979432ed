"""The vectors of records on the local network, for ``tests.wire.regenerate``."""

from dataclasses import replace
from typing import Any

from p2pmesh.base.ids import MeshId
from p2pmesh.wire.lan_record import LanRecord, encode_txt, fingerprint_of
from tests.wire.keys import FOUNDER, JOINER, STRANGER
from tests.wire.listing_vectors import CONTENT

Case = dict[str, Any]
CHALLENGE = bytes(range(8))
ADDRESSES = ("/ip4/192.168.1.20/tcp/4001", "/ip6/fd12:3456::20/tcp/4001")
CLOSED = LanRecord(
    JOINER.peer_id, ADDRESSES, CHALLENGE, fingerprint_of(FOUNDER.mesh_id, JOINER.peer_id, CHALLENGE), "0.1.0"
)
POOL = MeshId(CONTENT.mesh_id)
OPEN = replace(
    CLOSED,
    fingerprint=fingerprint_of(POOL, JOINER.peer_id, CHALLENGE),
    listing=replace(CONTENT, addresses=CLOSED.dialable),
)


def record_to_json(record: LanRecord) -> Case:
    """What is read of a record."""
    listing = record.listing
    shown = None if listing is None else {name: _plain(getattr(listing, name)) for name in listing.__slots__}
    return {
        "peer": record.peer, "addresses": list(record.addresses), "challenge": record.challenge.hex(),
        "fingerprint": record.fingerprint.hex(), "version": record.version, "generation": record.generation,
        "listing": shown,
    }  # fmt: skip


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _valid() -> list[Case]:
    least = replace(OPEN, listing=replace(OPEN.listing, serving=(), wanted=(), on_disk=(), name=None, region=None))  # type: ignore[type-var]
    cases = {"of a closed mesh": CLOSED, "of an open pool": OPEN, "of an open pool without a name": least}
    return [
        {
            "name": name,
            "mesh_id": POOL if one.listing else FOUNDER.mesh_id,
            "fields": dict(encode_txt(one)),
            "value": record_to_json(one),
        }
        for name, one in cases.items()
    ]


def _invalid() -> list[Case]:
    closed, pool = dict(encode_txt(CLOSED)), dict(encode_txt(OPEN))
    other = fingerprint_of(POOL, STRANGER.peer_id, CHALLENGE).hex()
    malformed: dict[str, dict[str, str]] = {
        "another service": {**closed, "svc": "mesh-llm"},
        "no service": {key: value for key, value in closed.items() if key != "svc"},
        "another schema": {**closed, "schema": "2"},
        "a schema with a zero before it": {**closed, "schema": "01"},
        "no peer": {key: value for key, value in closed.items() if key != "peer"},
        "a peer that is none": {**closed, "peer": "me"},
        "a fingerprint in upper case": {**closed, "tok_fp": "A" * 16},
        "a fingerprint of 15 digits": {**closed, "tok_fp": "a" * 15},
        "no challenge": {key: value for key, value in closed.items() if key != "proof_challenge"},
        "a generation that is no number": {**closed, "generation": "one"},
        "a value of two lines": {**closed, "version": "0.1\n0"},
        "a value that turns the text round": {**pool, "name": "\u202eloop"},
        "an invite and no mesh": {key: value for key, value in pool.items() if key != "mesh_id"},
        "an invite of another mesh": {**pool, "mesh_id": STRANGER.mesh_id},
        "another's fingerprint": {**pool, "tok_fp": other},
        "nodes as text": {**pool, "nodes": "many"},
        "no nodes": {**pool, "nodes": "0"},
        "fewer than no clients": {**pool, "clients": "-1"},
        "memory of 17 digits": {**pool, "vram": "1" * 17},
        "a name of 65 bytes": {**pool, "name": "n" * 65},
    }
    cases: list[Case] = [
        {"name": name, "fields": fields, "error": "message_malformed"} for name, fields in malformed.items()
    ]
    return [
        *cases,
        {"name": "a later generation", "fields": {**closed, "generation": "2"}, "error": "generation_unsupported"},
        {"name": "no generation", "fields": {**closed, "generation": ""}, "error": "message_malformed"},
        {"name": "a value of 221 bytes", "fields": {**closed, "version": "v" * 221}, "error": "message_too_large"},
        {
            "name": "65 fields",
            "fields": {**closed, **{f"x{n}": "" for n in range(65 - len(closed))}},
            "error": "message_too_large",
        },
    ]


def lan_records() -> Case:
    """The document."""
    return {"valid": _valid(), "invalid": _invalid()}
