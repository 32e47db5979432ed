"""When a request that is refused for now is worth sending again, in whole seconds: an estimate, never a promise.

Owns the two estimates and their bounds. What was measured comes from elsewhere (``core.lane_queue``, ``node.router``).
"""

from p2pmesh.base.quantities import MICROS_PER_SECOND

LEAST_S = 1
MOST_S = 60
"""Whoever comes back later than this has given up; whoever is told more would, and things change by then."""


def queue_retry_after_s(waiting: int, lanes: int, held_us: int) -> int:
    """Until a lane comes to whoever waits last: ``waiting`` requests, each of which holds one of ``lanes`` so long."""
    return _bounded(-(-waiting * held_us // max(1, lanes)))


def pending_retry_after_s(elapsed_us: int) -> int:
    """What lasts and is not measured is expected to last as long again as it has (Gott's rule, its median)."""
    return _bounded(elapsed_us)


def bounded_retry_after_s(seconds: int) -> int:
    """Another's estimate, within the bounds."""
    return min(MOST_S, max(LEAST_S, seconds))


def _bounded(wait_us: int) -> int:
    return bounded_retry_after_s(-(-wait_us // MICROS_PER_SECOND))
