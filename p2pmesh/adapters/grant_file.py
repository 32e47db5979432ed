"""``HOME/grants.json``: what this node promised to coordinators of models.

A damaged file is an error that names it, never an empty one: a node that forgets its promises may give one twice. The
meaning of the records is ``core.grants``'.
"""

import json
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.private_files import read_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import ID_BYTES, PeerId, is_digest, is_peer_id
from p2pmesh.base.limits import MAX_CLAIMED_MODELS, MAX_LEASE_MS, MAX_TERM
from p2pmesh.base.quantities import MIB
from p2pmesh.core.grants import KeptGrant

GRANTS_FILE = "grants.json"
MAX_GRANTS_FILE_BYTES = MIB

_VERSION = 1


class HomeGrants:
    """Implements ``ports.grants.GrantStore`` in a home; reads it once, ``ConfigError(HOME_UNUSABLE)`` if it cannot."""

    def __init__(self, home: Path) -> None:
        self._path = home / GRANTS_FILE
        self._restored = load_grants(home)

    def restored(self) -> tuple[KeptGrant, ...]:
        """What the file said at the start."""
        return self._restored

    async def save(self, grants: tuple[KeptGrant, ...]) -> None:
        """Replaces the file, durably."""
        await trio.to_thread.run_sync(write_private, self._path, _encode(grants))


def load_grants(home: Path) -> tuple[KeptGrant, ...]:
    """The promises of a home, none if there is no file."""
    path = home / GRANTS_FILE
    data = read_private(path, MAX_GRANTS_FILE_BYTES)
    if data is None:
        return ()
    try:
        document = json.loads(data)
        return _grants_of(document)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        message = f"{path} is damaged ({error}); restore it, or remove it a minute after the node stopped"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None


def _grants_of(document: Any) -> tuple[KeptGrant, ...]:
    if document["version"] != _VERSION or len(document["grants"]) > MAX_CLAIMED_MODELS:
        raise ValueError("another version, or too many records")
    return tuple(_grant_of(record) for record in document["grants"])


def _grant_of(record: Any) -> KeptGrant:
    run_id = bytes.fromhex(record["run_id"])
    term, lease_us = record["term"], record["lease_us"]
    is_whole = type(term) is int and type(lease_us) is int and len(run_id) == ID_BYTES
    if not is_whole or not 0 < term <= MAX_TERM or not 0 <= lease_us <= MAX_LEASE_MS * 1000:
        raise ValueError("a term, lease or run id that none is")
    if not is_digest(record["model"]) or not is_peer_id(record["coordinator"]):
        raise ValueError("a model or coordinator that none is")
    return KeptGrant(record["model"], term, run_id, PeerId(record["coordinator"]), lease_us)


def _encode(grants: tuple[KeptGrant, ...]) -> bytes:
    records = [
        {
            "model": grant.model,
            "term": grant.term,
            "run_id": grant.run_id.hex(),
            "coordinator": grant.coordinator,
            "lease_us": grant.lease_us,
        }
        for grant in grants
    ]
    return json.dumps({"version": _VERSION, "grants": records}, indent=2).encode() + b"\n"
