"""Messages that measure the link between two peers."""

from dataclasses import dataclass

from p2pmesh.base.limits import MAX_LINK_CHUNK_BYTES, MAX_LINK_PROBE_BYTES
from p2pmesh.wire.schema import Bytes, Integer, declared


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """Asks for that many bytes, to time them."""

    size_bytes: int = declared(Integer(1, MAX_LINK_PROBE_BYTES))


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Bytes without a meaning, until as many have come as were asked for."""

    data: bytes = declared(Bytes(1, MAX_LINK_CHUNK_BYTES))
