"""What a home keeps of a mesh."""

from hypothesis import given

from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.core.standing import Founding, Membership
from p2pmesh.wire.schema import from_map, pack, to_map, unpack
from tests.wire.keys import FOUNDER
from tests.wire.records import records_of


@given(records_of(Membership))
def test_a_membership_comes_back_under_the_same_mesh(kept: Membership) -> None:
    read = from_map(Membership, unpack(pack(to_map(kept)), "membership"), "membership")
    assert (read, read.mesh_id) == (kept, kept.mesh_id)


@given(records_of(InviteLedger))
def test_a_ledger_comes_back(ledger: InviteLedger) -> None:
    assert from_map(InviteLedger, unpack(pack(to_map(ledger)), "ledger"), "ledger") == ledger


def test_a_founder_begins_with_an_empty_ledger() -> None:
    assert Founding(FOUNDER.requirements).ledger == InviteLedger()
