"""Where a node keeps its place in a mesh. It is read before a node starts and kept through this port."""

from typing import Protocol

from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.core.standing import Membership


class CredentialStore(Protocol):
    """What is saved is durable when a call returns: after a crash the old record stands there, or the new."""

    async def save_ledger(self, ledger: InviteLedger) -> None:
        """Replaces the founder's ledger; ``ConfigError(HOME_UNUSABLE)``."""

    async def save_membership(self, membership: Membership) -> None:
        """Replaces what is kept of one mesh that we joined; ``ConfigError(HOME_UNUSABLE)``."""
