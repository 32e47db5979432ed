"""How fast a run is, measured as it serves; deadlines derive from it."""

from p2pmesh.base.quantities import Micros

_WEIGHT = 8
"""Each new measurement counts one part in eight."""


class Pace:
    """Smoothed times of one run; 0 until measured."""

    def __init__(self) -> None:
        self.prefill_us_per_token = 0
        self.step_us = 0

    def meter(self, now: Micros, prompt_tokens: int) -> "PaceMeter":
        """A meter for a sequence that starts now; 0 ``prompt_tokens``: what comes first tells nothing of a prefill."""
        return PaceMeter(self, now, prompt_tokens)

    def note_prefill(self, us_per_token: int) -> None:
        """One measured prompt."""
        self.prefill_us_per_token = _smooth(self.prefill_us_per_token, max(1, us_per_token))

    def note_step(self, step_us: int) -> None:
        """One measured step."""
        self.step_us = _smooth(self.step_us, max(1, step_us))


class PaceMeter:
    """Times of one sequence."""

    def __init__(self, pace: Pace, started: Micros, prompt_tokens: int) -> None:
        self._pace = pace
        self._last = started
        self._prompt_tokens = prompt_tokens
        self._is_first = True
        self._was_behind = False

    def note_token(self, now: Micros, *, is_behind: bool = False) -> int | None:
        """A token is here; how long after the one before it.

        ``is_behind``: more are waiting to be read. Such a time, and the next, is that of a slow reader: None.
        """
        elapsed, self._last = now - self._last, now
        is_telling = not (is_behind or self._was_behind)
        self._was_behind = is_behind
        if self._is_first:
            if self._prompt_tokens and is_telling:
                self._pace.note_prefill(elapsed // self._prompt_tokens)
            self._is_first = False
            return None
        if not is_telling:
            return None
        self._pace.note_step(elapsed)
        return elapsed


def _smooth(before: int, sample: int) -> int:
    return sample if before == 0 else before + (sample - before) // _WEIGHT
