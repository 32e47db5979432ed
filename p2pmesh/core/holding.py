"""Which rows of a sequence that goes on after a loss are computed where: as few as make every stage whole again.

Owns the meaning of what the stages say that they hold. A row must go through every stage up to the last one that lacks
it, since each takes what the one before gives; a stage that holds it but stands before one that lacks it computes it
again. When frames are sent, and under which credits, is ``core.generation``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Held:
    """Rows that a stage holds of a sequence, from position 0 on. ``is_fixed``: it can go on only exactly there."""

    rows: int
    is_fixed: bool = False

    def usable(self, grid_tokens: int, prompt_rows: int, last_row: int) -> "Held":
        """What of it counts: no row whose token is not known, the last one never, and whole calls of the prompt.

        ``last_row`` is sampled, so that it always goes to the last stage; without a history the call that it ends.
        """
        rows = min(self.rows, last_row)
        if rows < prompt_rows:
            rows -= rows % grid_tokens
        return replace(self, rows=0 if self.is_fixed and rows != self.rows else rows)


class Reach:
    """How far rows must go, by what each stage of a run holds, the first stage first; without any, all the way."""

    def __init__(self, held: Sequence[Held]) -> None:
        needed: list[int] = []
        lowest: int | None = None
        for stage in reversed(held):
            rows = stage.rows if lowest is None else min(stage.rows, lowest)
            if stage.is_fixed and rows < stage.rows:
                rows = 0
            needed.append(rows)
            lowest = rows
        self._needed = tuple(reversed(needed))
        """From which row on each stage is given rows; never less at a later stage."""

    @property
    def first(self) -> int:
        """The lowest row that any stage needs."""
        return self._needed[0] if self._needed else 0

    def stages(self, row: int) -> int:
        """How many stages take a row; 0 where all do."""
        count = sum(needed <= row for needed in self._needed)
        return 0 if count == len(self._needed) else count

    def next_edge(self, row: int) -> int:
        """The next row after ``row`` that goes further than it; beyond all positions where none does."""
        return min((needed for needed in self._needed if needed > row), default=2**31)
