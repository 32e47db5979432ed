"""A rate with bursts, as one moment: when what was spent is made up for again (the generic cell rate algorithm).

Owns the sum; its users keep the moment, one a peer or one for all, and say what an excess means.
"""

from p2pmesh.base.quantities import Micros


def spend(full_at: Micros, now: Micros, each_us: int, burst: int) -> Micros | None:
    """When the allowance is whole again after one more use, ``full_at`` before it; None, and nothing spent, if that is
    more than ``burst`` uses of ``each_us`` away."""
    later = max(now, full_at) + each_us
    return Micros(later) if later - now <= burst * each_us else None
