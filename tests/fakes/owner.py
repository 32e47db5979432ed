"""An owner whose clock and presence are given."""

from p2pmesh.core.share_hours import LocalTime
from p2pmesh.core.sharing import OwnerSigns

NOON = LocalTime(0, 720)


class FakeOwner:
    """Implements ``ports.owner.Owner``."""

    def __init__(self, local: LocalTime = NOON, idle_s: int | None = None) -> None:
        self.local = local
        self.idle_s = idle_s

    def local_time(self) -> LocalTime:
        return self.local

    async def signs(self) -> OwnerSigns:
        return OwnerSigns(self.idle_s, ("keyboard",) if self.idle_s is not None else ())
