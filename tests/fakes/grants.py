"""Promises that outlive a node of a test."""

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.grants import KeptGrant


class FakeGrantStore:
    """Implements ``ports.grants.GrantStore``."""

    def __init__(self, grants: tuple[KeptGrant, ...] = ()) -> None:
        self.grants = grants
        self.is_full = False

    def restored(self) -> tuple[KeptGrant, ...]:
        return self.grants

    async def save(self, grants: tuple[KeptGrant, ...]) -> None:
        if self.is_full:
            raise ConfigError(ErrorCode.HOME_UNUSABLE, "the home cannot be written: no space left on device")
        self.grants = grants
