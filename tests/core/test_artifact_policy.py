"""Whom files are exchanged with, by mode and by what is made of the peer's owner."""

from types import MappingProxyType

import pytest

from p2pmesh.base.ids import OwnerId
from p2pmesh.core.artifact_policy import ArtifactTransfer, default_transfer, may_exchange
from p2pmesh.core.ownership import Ownership, OwnershipStatus, TrustStore

LISTED, OTHER = OwnerId("a" * 64), OwnerId("b" * 64)
STORE = TrustStore(trusted_owners=MappingProxyType({LISTED: "a friend"}))


@pytest.mark.parametrize("status", list(OwnershipStatus))
def test_open_is_for_everyone_but_a_node_that_was_revoked(status: OwnershipStatus) -> None:
    is_taken = may_exchange(ArtifactTransfer.OPEN, Ownership(status), TrustStore(), None)
    assert is_taken is (status is not OwnershipStatus.REVOKED_NODE_ID)


@pytest.mark.parametrize("status", list(OwnershipStatus))
@pytest.mark.parametrize("owner", [LISTED, OTHER, None])
def test_off_is_for_nobody_and_trusted_for_claims_that_hold_of_listed_owners(
    status: OwnershipStatus, owner: OwnerId | None
) -> None:
    owned = Ownership(status, owner)
    assert not may_exchange(ArtifactTransfer.OFF, owned, STORE, LISTED)
    is_trusted = status is OwnershipStatus.VERIFIED and owner == LISTED
    assert may_exchange(ArtifactTransfer.TRUSTED, owned, STORE, None) is is_trusted


def test_nodes_of_our_own_owner_are_trusted_unlisted() -> None:
    owned = Ownership(OwnershipStatus.VERIFIED, OTHER)
    assert may_exchange(ArtifactTransfer.TRUSTED, owned, STORE, OTHER)
    assert not may_exchange(ArtifactTransfer.TRUSTED, Ownership(OwnershipStatus.VERIFIED), STORE, None)


def test_the_default_is_open_among_the_invited_and_off_in_public() -> None:
    assert default_transfer(is_public=False) is ArtifactTransfer.OPEN
    assert default_transfer(is_public=True) is ArtifactTransfer.OFF
