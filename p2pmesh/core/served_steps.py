"""What tokens of one run took while it served, beside what was predicted.

Only steps of a sequence that had the run to itself count: several share the stages, and each waits for the others.
"""

from dataclasses import dataclass

COMPARED_TOKENS = 64
"""After so many the comparison is told."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Microseconds per token, predicted (0: not known) and measured over so many."""

    predicted_us: int
    measured_us: int
    tokens: int

    @property
    def error_percent(self) -> float | None:
        """By how much the prediction was above what was measured; None where nothing was predicted."""
        return round(100 * (self.predicted_us / self.measured_us - 1), 1) if self.predicted_us else None


class ServedSteps:
    """The steps of one run."""

    __slots__ = ("_elapsed_us", "_predicted_us", "_tokens")

    def __init__(self) -> None:
        self._predicted_us = 0
        self._elapsed_us = 0
        self._tokens = 0

    def expect(self, predicted_us: int) -> None:
        """What a token is predicted to take from now on; what was measured before does not count."""
        self._predicted_us, self._elapsed_us, self._tokens = predicted_us, 0, 0

    def note(self, elapsed_us: int, tokens: int) -> Comparison | None:
        """A step; the comparison where it has just become worth telling."""
        before = self._tokens
        self._elapsed_us += max(0, elapsed_us)
        self._tokens += tokens
        return self.comparison() if before < COMPARED_TOKENS <= self._tokens else None

    def comparison(self) -> Comparison | None:
        """Over all steps so far; None before the first."""
        if not self._tokens:
            return None
        return Comparison(self._predicted_us, max(1, self._elapsed_us // self._tokens), self._tokens)
