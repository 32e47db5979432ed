"""Messages of peers that ask whether others live, that leave, and that part; the sealed records in them are
``wire.liveness``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.limits import MAX_ANNOUNCEMENT_BYTES, MAX_LIVENESS_RECORD_BYTES
from p2pmesh.wire.schema import Bytes, Integer, declared
from p2pmesh.wire.shapes import ID, PEER_ID


@dataclass(frozen=True, slots=True)
class Probe:
    """Are you alive? With how fresh the asker knows the asked one; (0, 0) if it does not care."""

    nonce: bytes = declared(ID)
    incarnation: int = declared(Integer(0, 2**53))
    sequence: int = declared(Integer(0, 2**53))


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A sealed ``LifeProof`` for the nonce; the announcement where the asker's is older, else empty."""

    proof: bytes = declared(Bytes(1, MAX_LIVENESS_RECORD_BYTES))
    announcement: bytes = declared(Bytes(0, MAX_ANNOUNCEMENT_BYTES))


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Ask that peer for me, with my nonce."""

    nonce: bytes = declared(ID)
    peer_id: str = declared(PEER_ID)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The proof as the asked one gave it; empty where it did not answer."""

    proof: bytes = declared(Bytes(0, MAX_LIVENESS_RECORD_BYTES))


@dataclass(frozen=True, slots=True)
class Farewell:
    """A sealed ``Leaving`` of the sender, besides the gossip; nothing answers it."""

    leaving: bytes = declared(Bytes(1, MAX_LIVENESS_RECORD_BYTES))


@dataclass(frozen=True, slots=True)
class Parting:
    """The sender has no use for this connection. Answered by ``Done`` if the other has none either; then it ends."""
