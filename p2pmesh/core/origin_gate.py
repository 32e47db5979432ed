"""What of one speaker may pass through a topic: only what is fresher than the last, and only so much.

Owns that decision for announcements on one topic. Whether a record is true, whole and in time is checked before.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.allowance import spend


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """How often one speaker may be heard, and how many are remembered."""

    burst: int = 16
    """A change is said six times in sixteen seconds, and changes come in series."""
    us_per_message: int = 2 * MICROS_PER_SECOND
    capacity: int = 4096


class _Origin:
    __slots__ = ("freshness", "full_at")

    def __init__(self) -> None:
        self.freshness = (-1, -1)
        self.full_at = Micros(0)
        """When its allowance is whole again; each message moves this on."""


class OriginGate:
    """The speakers of one topic; of too many, the one heard longest ago is forgotten."""

    def __init__(self, policy: OriginPolicy | None = None) -> None:
        self._policy = policy or OriginPolicy()
        self._origins: dict[PeerId, _Origin] = {}

    def admit(self, origin: PeerId, freshness: tuple[int, int], now: Micros) -> bool:
        """Whether a message passes; asked once for each, since it counts."""
        known = self._origins.pop(origin, None) or _Origin()
        while len(self._origins) >= self._policy.capacity:
            del self._origins[next(iter(self._origins))]
        self._origins[origin] = known
        full_at = spend(known.full_at, now, self._policy.us_per_message, self._policy.burst)
        if freshness <= known.freshness or full_at is None:
            return False
        known.freshness = freshness
        known.full_at = full_at
        return True
