"""Whom this node gives files to, and takes them from: what ``--artifact-transfer`` means.

A total function of the mode and of what is made of the peer's owner. That a run's own stages travel between its
coordinator and the peers of its placement is no question of the mode: ``node.artifacts`` knows those.
"""

from enum import StrEnum

from p2pmesh.base.ids import OwnerId
from p2pmesh.core.ownership import Ownership, OwnershipStatus, TrustStore


class ArtifactTransfer(StrEnum):
    """With whom files are exchanged beyond what a run of our own needs."""

    OFF = "off"
    TRUSTED = "trusted"
    OPEN = "open"


def default_transfer(*, is_public: bool) -> ArtifactTransfer:
    """What holds where the operator says nothing: who was invited may have files, who came in by a listing not."""
    return ArtifactTransfer.OFF if is_public else ArtifactTransfer.OPEN


def may_exchange(mode: ArtifactTransfer, owned: Ownership, trust: TrustStore, own_owner: OwnerId | None) -> bool:
    """Whether files go to and come from an admitted peer of this ownership.

    ``trusted`` asks for a claim that holds, of an owner on the trust list or of our own.
    """
    if mode is ArtifactTransfer.OPEN:
        return owned.status is not OwnershipStatus.REVOKED_NODE_ID
    if mode is ArtifactTransfer.OFF or owned.status is not OwnershipStatus.VERIFIED:
        return False
    return owned.owner_id in trust.trusted_owners or (own_owner is not None and owned.owner_id == own_owner)
