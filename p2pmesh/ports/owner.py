"""What the node asks about its owner: what time it is where they are, and whether they are at the machine."""

from typing import Protocol

from p2pmesh.core.share_hours import LocalTime
from p2pmesh.core.sharing import OwnerSigns


class Owner(Protocol):
    """Whoever the machine belongs to."""

    def local_time(self) -> LocalTime:
        """By the clock of the machine and its time zone, now."""

    async def signs(self) -> OwnerSigns:
        """Whether keys or a mouse were used of late, as far as anything tells."""
