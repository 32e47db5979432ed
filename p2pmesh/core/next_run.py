"""After a run of a model: how long its coordinator waits, and whether the next one keeps the stages that are whole.

Owns the pauses. Where the stages of the next run go is ``core.planning``'s, who was at fault ``node.candidates``'.
A run that served and broke is replaced at once. One that came to nothing would probably come to nothing again: the
pause doubles, up to ``longest_us``. One that broke as soon as it served may have been broken by a request.
"""

from dataclasses import dataclass

from p2pmesh.base.quantities import MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class NextRunPolicy:
    """Times in microseconds."""

    unclaimed_us: int = MICROS_PER_SECOND // 2
    first_us: int = MICROS_PER_SECOND
    longest_us: int = 60 * MICROS_PER_SECOND
    hardly_served_us: int = 2 * MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What came of a run. ``is_left``: it goes on under another coordinator, for all that is known."""

    is_claimed: bool
    had_served: bool = False
    is_left: bool = False
    served_us: int = 0


@dataclass(frozen=True, slots=True)
class NextRun:
    """Wait so long, then replace what was lost of the run (``keeps_stages``), or plan anew."""

    wait_us: int
    keeps_stages: bool


class RunPacing:
    """Of one coordinator, over all its runs."""

    def __init__(self, policy: NextRunPolicy | None = None) -> None:
        self._policy = policy or NextRunPolicy()
        self._wait_us = self._policy.first_us

    def after(self, outcome: RunOutcome) -> NextRun:
        """What comes after a run. Who did not get its claim knows better now whom to ask."""
        if not outcome.is_claimed:
            return NextRun(self._policy.unclaimed_us, False)
        if outcome.had_served and not outcome.is_left:
            self._wait_us = self._policy.first_us
            return NextRun(self._wait_us if outcome.served_us < self._policy.hardly_served_us else 0, True)
        self._wait_us = min(2 * self._wait_us, self._policy.longest_us)
        return NextRun(self._wait_us, False)
