"""Who connects again too often: a budget of admissions per peer, which time refills.

That an excess is an offence, and what follows, is ``core.conduct``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.allowance import spend


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
        self._used_until: dict[PeerId, Micros] = {}

    def is_excess(self, peer: PeerId, now: Micros) -> bool:
        """Counts one admission; whether it is beyond the budget. An excess takes nothing from the budget."""
        used_until = self._used_until.pop(peer, now)
        spent = spend(used_until, now, self._policy.refill_us, self._policy.burst)
        self._used_until[peer] = used_until if spent is None else spent
        if len(self._used_until) > self._policy.capacity:
            del self._used_until[next(iter(self._used_until))]
        return spent is None
