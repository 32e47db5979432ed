"""Messages of peers that meet: hello and its answer, proofs of membership, and what strangers are told.

Who is let in by them is ``core.credentials``' and ``core.admission``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.limits import (
    MAX_ANNOUNCEMENTS_PER_MESSAGE,
    MAX_INVITE_BYTES,
    MAX_KNOWN_PEERS,
    MAX_PASS_BYTES,
    MAX_PASSES,
    MAX_PEERS,
    MAX_REVOCATION_BYTES,
    MAX_ROUTE_ENTRIES,
)
from p2pmesh.wire.announcement import PEER_HASH_BYTES
from p2pmesh.wire.schema import Bytes, Integer, ListOf, Record, Text, declared
from p2pmesh.wire.shapes import MESH_ID, NAME, SEALED_ANNOUNCEMENT

_PASSES = ListOf(Bytes(1, MAX_PASS_BYTES), MAX_PASSES)


@dataclass(frozen=True, slots=True)
class Hello:
    """First word of a peer: an invite the first time, its passes ever after, neither if it is the founder itself.

    ``passes`` are sealed, the sender's own first, each signed by the peer of the next, the last by the founder.
    """

    generation: int = declared(Integer(0, 2**16))
    mesh_id: str = declared(MESH_ID)
    invite: str = declared(Text(MAX_INVITE_BYTES))
    passes: tuple[bytes, ...] = declared(_PASSES)
    announcement: bytes = declared(SEALED_ANNOUNCEMENT)
    knows: tuple[bytes, ...] = declared(ListOf(Bytes(PEER_HASH_BYTES, PEER_HASH_BYTES), MAX_KNOWN_PEERS), ())
    """Hashes of peers whose announcements the sender holds, and need not be handed."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to an accepted hello, with the sender's own proof and the peers it knows.

    ``granted`` is a pass for the reader, or empty; with ``passes`` after it, it is the reader's proof from now on.
    ``revocation`` is the newest that the sender knows, or empty.
    """

    generation: int = declared(Integer(0, 2**16))
    mesh_id: str = declared(MESH_ID)
    passes: tuple[bytes, ...] = declared(_PASSES)
    announcement: bytes = declared(SEALED_ANNOUNCEMENT)
    granted: bytes = declared(Bytes(0, MAX_PASS_BYTES))
    revocation: bytes = declared(Bytes(0, MAX_REVOCATION_BYTES))
    known: tuple[bytes, ...] = declared(ListOf(SEALED_ANNOUNCEMENT, MAX_ANNOUNCEMENTS_PER_MESSAGE))


@dataclass(frozen=True, slots=True)
class ProofQuery:
    """Anyone who knows the mesh, before it shows an invite: are you a member of it? It never admits."""

    mesh_id: str = declared(MESH_ID)


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to a ``ProofQuery``: the sender's passes; none at the founder, whose key is its proof."""

    passes: tuple[bytes, ...] = declared(_PASSES)


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """Anyone, also before admission: which models can be reached through you? It never admits."""


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A model that the answering peer can route to."""

    model: str = declared(NAME)
    context_tokens: int = declared(Integer(1, 2**31))


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The answer to a ``RouteQuery``."""

    generation: int = declared(Integer(0, 2**16))
    mesh_id: str = declared(MESH_ID)
    routes: tuple[RouteEntry, ...] = declared(ListOf(Record(RouteEntry), MAX_ROUTE_ENTRIES))
    node_count: int = declared(Integer(0, MAX_PEERS), 0)
    """Nodes that the answering peer sees of a public pool, itself included."""
