"""Messages by which a coordinator claims a model of its peers; what they promise is ``core.grants``'."""

from dataclasses import dataclass

from p2pmesh.base.limits import (
    MAX_ARTIFACT_BYTES,
    MAX_CLAIM_PEERS,
    MAX_LEASE_MS,
    MAX_REASON_BYTES,
    MAX_TERM,
    MIN_LEASE_MS,
)
from p2pmesh.wire.schema import Boolean, Integer, Line, ListOf, Text, declared, malformed
from p2pmesh.wire.shapes import DIGEST, ID, PEER_ID, TERM


@dataclass(frozen=True, slots=True)
class ClaimRun:
    """Coordinator to a peer of its list, itself the first: promise me the model for this run, or go on promising.

    The fields of ``core.claims.Claim``; ``is_serving`` says that the run is published. ``needed_bytes`` is the memory
    that the reader's stage of it will take; 0 if it has none, or has loaded it.
    """

    model_digest: str = declared(DIGEST)
    run_id: bytes = declared(ID)
    term: int = declared(TERM)
    lease_ms: int = declared(Integer(MIN_LEASE_MS, MAX_LEASE_MS))
    peers: tuple[str, ...] = declared(ListOf(PEER_ID, MAX_CLAIM_PEERS))
    is_serving: bool = declared(Boolean())
    needed_bytes: int = declared(Integer(0, MAX_ARTIFACT_BYTES), 0)

    def __post_init__(self) -> None:
        if not self.peers or len(set(self.peers)) < len(self.peers):
            raise malformed("claim_run", "the list is empty, or names a peer twice")


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    """The sender promises the model to this term, for a lease from now."""

    term: int = declared(TERM)


@dataclass(frozen=True, slots=True)
class ClaimDenied:
    """It does not; ``term`` is the one that it promised (0: none), ``wait_ms`` what is left of that lease."""

    code: str = declared(Text(64))
    message: str = declared(Line(MAX_REASON_BYTES))
    term: int = declared(Integer(0, MAX_TERM))
    wait_ms: int = declared(Integer(0, MAX_LEASE_MS))


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """The coordinator gives a claim back; the run ``is_over``, or left to its successor. Answered by ``Done``."""

    model_digest: str = declared(DIGEST)
    run_id: bytes = declared(ID)
    term: int = declared(TERM)
    is_over: bool = declared(Boolean())
