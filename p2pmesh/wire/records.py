"""Keys of provider records: what a peer says it has, as a point of the Kademlia key space.

The records themselves are Kademlia's own (``protocols/records.md``); what is provided and when is ``core.records``'.
"""

import hashlib
from typing import NewType

from p2pmesh.base.ids import MeshId

RecordKey = NewType("RecordKey", bytes)
"""32 bytes; on the wire behind the two bytes of a sha2-256 multihash."""

DOMAIN = b"p2pmesh-provider-v1"


def model_key(mesh_id: MeshId, name: str) -> RecordKey:
    """The key under which the drivers of a model are found by its name."""
    return _key(mesh_id, b"model", name)


def artifact_key(mesh_id: MeshId, digest: str) -> RecordKey:
    """The key under which the holders of a file are found by its digest."""
    return _key(mesh_id, b"artifact", digest)


def _key(mesh_id: MeshId, kind: bytes, name: str) -> RecordKey:
    return RecordKey(hashlib.sha256(b"\0".join((DOMAIN, mesh_id.encode(), kind, name.encode()))).digest())
