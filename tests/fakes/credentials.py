"""A home that forgets nothing and touches no disk."""

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.core.standing import Membership


class FakeCredentialStore:
    """Implements ``ports.credentials.CredentialStore``; every record that was ever saved, oldest first."""

    def __init__(self) -> None:
        self.ledgers: list[InviteLedger] = []
        self.memberships: list[Membership] = []
        self.is_full = False

    async def save_ledger(self, ledger: InviteLedger) -> None:
        self._check()
        self.ledgers.append(ledger)

    async def save_membership(self, membership: Membership) -> None:
        self._check()
        self.memberships.append(membership)

    def _check(self) -> None:
        if self.is_full:
            raise ConfigError(ErrorCode.HOME_UNUSABLE, "the home cannot be written: no space left on device")
