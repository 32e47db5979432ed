"""Where a node keeps what it gave and got, so that a restart does not begin at nothing."""

from typing import Protocol

from p2pmesh.core.usage import Totals


class UsageStore(Protocol):
    """Counters may be lost in a crash, but are never half written."""

    def restored(self) -> Totals | None:
        """What an earlier life of the node saved; None if there is nothing that can be read."""

    async def save(self, totals: Totals) -> None:
        """Replaces all of it; a disk that refuses costs only the counters since the last time."""
