"""Where a node keeps what it promised to coordinators, so that a restart cannot make it promise twice."""

from typing import Protocol

from p2pmesh.core.grants import KeptGrant


class GrantStore(Protocol):
    """What is saved is durable when the call returns."""

    def restored(self) -> tuple[KeptGrant, ...]:
        """What an earlier life of the node promised, oldest first."""

    async def save(self, grants: tuple[KeptGrant, ...]) -> None:
        """Replaces all of it; ``ConfigError(HOME_UNUSABLE)``."""
