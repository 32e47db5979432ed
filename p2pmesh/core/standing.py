"""What a node keeps of its place in a mesh: the founder its terms, a member its passes. Records with their shapes.

Where the files lie is ``adapters.credential_files``'; what they prove is ``core.credentials``'.
"""

from dataclasses import dataclass, field

from p2pmesh.base.ids import MeshId
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES, MAX_PASS_BYTES, MAX_PASSES, MAX_REVOCATION_BYTES
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from p2pmesh.wire.schema import Bytes, Integer, ListOf, Record, Text, declared, is_line


@dataclass(frozen=True, slots=True)
class Membership:
    """A member's standing in one mesh: enough to come back without an invite.

    ``addresses`` name their peers; ``passes`` and ``revocation`` are sealed, the latter empty where none is known.
    """

    requirements: MeshRequirements = declared(Record(MeshRequirements))
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES))
    passes: tuple[bytes, ...] = declared(ListOf(Bytes(1, MAX_PASS_BYTES), MAX_PASSES))
    revocation: bytes = declared(Bytes(0, MAX_REVOCATION_BYTES), b"")
    saved_unix_ms: int = declared(Integer(0, 2**53), 0)

    @property
    def mesh_id(self) -> MeshId:
        """The mesh."""
        return mesh_id_of(self.requirements)


@dataclass(frozen=True, slots=True)
class Founding:
    """A founder's standing in its own mesh."""

    requirements: MeshRequirements
    ledger: InviteLedger = field(default_factory=InviteLedger)
