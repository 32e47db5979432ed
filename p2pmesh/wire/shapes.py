"""Shapes that fields of several records have: ids, digests, names. How one is read and written is ``wire.schema``'s."""

from p2pmesh.base.ids import ID_BYTES, is_digest, is_mesh_id, is_peer_id
from p2pmesh.base.limits import MAX_ANNOUNCEMENT_BYTES, MAX_NAME_BYTES, MAX_TERM
from p2pmesh.wire.schema import Bytes, Integer, Text, is_line, malformed

ID = Bytes(ID_BYTES, ID_BYTES)
"""Drawn at random: of a run, a request, an invite, a probe."""
MESH_ID = Text(32, is_mesh_id)
PEER_ID = Text(128, is_peer_id)
DIGEST = Text(64, is_digest)
NAME = Text(MAX_NAME_BYTES, is_line)
"""Of a model, or a node."""
TOKEN = Integer(0, 2**31 - 1)
TERM = Integer(1, MAX_TERM)
SEALED_ANNOUNCEMENT = Bytes(1, MAX_ANNOUNCEMENT_BYTES)


def check_layers(record: str, start: int, end: int) -> None:
    """``[start, end)`` must hold a layer; each field of it has its own limit."""
    if start >= end:
        raise malformed(record, f"layers [{start}, {end}) are none")
