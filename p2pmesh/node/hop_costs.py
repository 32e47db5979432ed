"""What hops were found to take beside their links, in all runs that this node coordinated: plans made here count on it.

How much one run teaches is ``core.planning.pricing``'s.
"""

from p2pmesh.core.planning.outcome import StepEstimate
from p2pmesh.core.planning.pricing import learn_overhead
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningPolicy


class HopCosts:
    """Of one node, for as long as it runs."""

    def __init__(self) -> None:
        self.policy: PlanningPolicy = DEFAULT_POLICY

    def note(self, timed: StepEstimate) -> None:
        """Steps of a run were timed, whose links are known."""
        self.policy = learn_overhead(self.policy, timed)
