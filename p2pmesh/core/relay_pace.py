"""When a relay is tried again: a pause that doubles with each failure, or a long one after a refusal that means it.

One pace for the way to a relay, another for what it takes of ours: who refuses our listing can still be read.
"""

from dataclasses import dataclass

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

CHANCES = 1000
"""``chance`` is a whole number below it, drawn by the caller."""


@dataclass(frozen=True, slots=True)
class PacePolicy:
    """Pauses in microseconds."""

    first_us: int = MICROS_PER_SECOND
    longest_us: int = 300 * MICROS_PER_SECOND


class RelayPace:
    """The pause of one relay in one respect."""

    __slots__ = ("_policy", "_until", "detail", "failures", "is_refusing")

    def __init__(self, policy: PacePolicy | None = None) -> None:
        self._policy = policy or PacePolicy()
        self._until: Micros | None = None
        self.failures = 0
        """One after another, until now."""
        self.is_refusing = False
        """The last failure was a refusal that saying it again does not change."""
        self.detail = ""

    def succeed(self) -> None:
        """It worked: the next failure begins anew."""
        self._until, self.failures, self.is_refusing, self.detail = None, 0, False, ""

    def fail(self, detail: str, now: Micros, chance: int, *, is_refusal: bool = False) -> None:
        """It did not work. Half of the doubling pause is by ``chance``, so that not all come back at once."""
        whole_us = min(self._policy.first_us << min(self.failures, 30), self._policy.longest_us)
        least_us = self._policy.longest_us if is_refusal else whole_us // 2
        self._until = Micros(now + least_us + whole_us // 2 * (chance % CHANCES) // CHANCES)
        self.failures += 1
        self.is_refusing = is_refusal
        self.detail = detail

    def wait_us(self, now: Micros) -> int:
        """How long not to try it; 0 for at once."""
        return 0 if self._until is None else max(0, self._until - now)
