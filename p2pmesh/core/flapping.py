"""Who connects again too often: a budget of admissions per peer, which time refills.

That an excess is an offence, and what follows, is ``core.conduct``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros


@dataclass(frozen=True, slots=True)
class FlappingPolicy:
    """``burst`` admissions at once, one more after each ``refill_us``; the newest ``capacity`` peers are counted."""

    burst: int = 10
    refill_us: int = 6 * MICROS_PER_SECOND
    capacity: int = 1024


class FlappingMachine:
    """Of each peer: until when its admissions so far have used the budget up. Integers alone, oldest use first."""

    def __init__(self, policy: FlappingPolicy | None = None) -> None:
        self._policy = policy or FlappingPolicy()
        self._used_until: dict[PeerId, int] = {}

    def is_excess(self, peer: PeerId, now: Micros) -> bool:
        """Counts one admission; whether it is beyond the budget. An excess takes nothing from the budget."""
        policy = self._policy
        used_until = max(now, self._used_until.pop(peer, now)) + policy.refill_us
        is_excess = used_until - now > policy.burst * policy.refill_us
        self._used_until[peer] = used_until - policy.refill_us if is_excess else used_until
        if len(self._used_until) > policy.capacity:
            del self._used_until[next(iter(self._used_until))]
        return is_excess
