"""Where a given order of peers is cut: dynamic programming over (stage, layer reached), exact, in whole numbers.

Tables over all ranges between permitted cuts are arrays, since a plan for many peers tries some hundred orders.
Which orders is ``search``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.planning.request import PlanningModel, ShapeBytes

NEVER = 1 << 56
"""A cost beyond all costs; as many of them as there are stages still fit into 64 bits."""
FULL = 1000
"""A peer whose usable bytes are all taken. Balance is compared by the thousandth."""

Table = NDArray[np.int64]
"""By the end of a range (row, an index of the boundaries) and how many boundaries before it the range starts, less one
(column). There are as many columns as the longest range has that fits on any seat: with many stages that is few.
"""


@dataclass(frozen=True, slots=True)
class Seat:
    """What of a peer decides its cuts: bytes that a stage may take, layers at most, bytes read in a second."""

    usable_bytes: int
    most_layers: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Cutting:
    """Ends of the stages as layers, and what the cutting was chosen by; ``fullest`` is in thousandths."""

    ends: tuple[int, ...]
    compute_us: int
    fullest: int

    def ranges(self) -> tuple[LayerRange, ...]:
        """The layer ranges."""
        return tuple(LayerRange(start, end) for start, end in pairwise((0, *self.ends)))


class CutTables:
    """All ranges of a model in one shape, and what each costs on each of ``seats``, which are named by their places."""

    def __init__(self, model: PlanningModel, shape: ShapeBytes, seats: Sequence[Seat]) -> None:
        self.boundaries = (0, *model.cuts, model.layer_count)
        self.whole_bytes = shape.bytes_of(LayerRange(0, model.layer_count))
        self.whole_reads = sum(model.reads) + model.output_reads
        self._seats = tuple(seats)
        self._starts = _starts(len(self.boundaries), len(self.boundaries) - 1)
        self._needed = self._bytes(shape)
        self._is_allowed = self._allowed(model)
        self._narrow(max((seat.usable_bytes for seat in seats), default=0))
        self._layers = self._spans(np.ones(model.layer_count, dtype=np.int64))
        self._reads = self._spans(model.reads)
        self._reads[-1, :] += model.output_reads
        self._times: dict[int, Table] = {}
        self._fills: dict[int, Table] = {}

    def _bytes(self, shape: ShapeBytes) -> Table:
        needed = self._spans(shape.layer_bytes) + shape.stage_bytes
        needed[self._starts == 0] += shape.first_bytes
        needed[-1, :] += shape.last_bytes
        needed[-1, -1] -= shape.whole_saves_bytes
        return needed

    def _allowed(self, model: PlanningModel) -> NDArray[np.bool_]:
        is_allowed = self._starts >= 0
        for banned in model.forbidden:
            if banned.start in self.boundaries and banned.end in self.boundaries:
                end = self.boundaries.index(banned.end)
                is_allowed[end, end - 1 - self.boundaries.index(banned.start)] = False
        return is_allowed

    def _narrow(self, most_bytes: int) -> None:
        """Leaves out columns of ranges that fit nowhere."""
        self.least_needed = int(self._needed[self._is_allowed].min(initial=NEVER))
        fitting = np.flatnonzero((self._is_allowed & (self._needed <= most_bytes)).any(axis=0))
        width = int(fitting[-1]) + 1 if len(fitting) else 1
        self._starts, self._needed = self._starts[:, :width], self._needed[:, :width]
        self._is_allowed = self._is_allowed[:, :width]

    def _spans(self, values: Sequence[int] | NDArray[np.int64]) -> Table:
        """Sums of ``values``, one a layer, over each range."""
        sums = np.concatenate(([0], np.cumsum(np.asarray(values, dtype=np.int64))))[np.array(self.boundaries)]
        spans: Table = sums[:, None] - sums[np.maximum(self._starts, 0)]
        return spans

    # --- whether
    def feasible_counts(self, places: Sequence[int]) -> tuple[bool, ...]:
        """For the first seat, the first two and so on, in this order: whether the model fits on all of them."""
        tables = [self._time(place) for place in places]
        reached, found = _first_column(tables[0]), []
        for table in (*tables[1:], None):
            found.append(bool(reached[-1] < NEVER))
            if table is not None:
                reached = np.minimum((table + self._before(reached)).min(axis=1), NEVER)
        return tuple(found)

    def _before(self, reached: Table) -> Table:
        """What has been reached at the start of each range. Negative starts wrap round to where nothing is allowed."""
        before: Table = reached[self._starts]
        return before

    # --- where
    def fastest(self, places: Sequence[int]) -> Cutting | None:
        """The cutting of least compute, each seat holding a stage, in this order."""
        found = self._least_sum([self._time(place) for place in places])
        return None if found is None else self._cutting(places, found[1])

    def emptiest(self, places: Sequence[int], most_us: int, at_most: int = FULL) -> Cutting | None:
        """The cutting within ``most_us`` of compute whose fullest seat is least full; None beyond ``at_most``.

        Of those the one that spreads most evenly, as far as it stays within the time.
        """
        low = self._least_maximum(places)
        if low > at_most:
            return None
        best = self._within(places, most_us, low)
        if best is None:
            best = self._least_full_within(places, most_us, low + 1, at_most)
        if best is None:
            return None
        even = self._evenly(places, best.fullest)
        return even if even is not None and even.compute_us <= most_us else best

    def _least_full_within(self, places: Sequence[int], most_us: int, low: int, high: int) -> Cutting | None:
        """By halving: the fuller the fullest may be, the less compute there need be."""
        best = self._within(places, most_us, high)
        while best is not None and low < best.fullest:
            middle = (low + best.fullest) // 2
            found = self._within(places, most_us, middle)
            if found is None:
                low = middle + 1
            else:
                best = found
        return best

    def _within(self, places: Sequence[int], most_us: int, at_most: int) -> Cutting | None:
        masked = [np.where(self._fill(place) <= at_most, self._time(place), NEVER) for place in places]
        found = self._least_sum(masked)
        return None if found is None or found[0] > most_us else self._cutting(places, found[1])

    def _evenly(self, places: Sequence[int], at_most: int) -> Cutting | None:
        fills = [self._fill(place) for place in places]
        found = self._least_sum([np.where(fill <= at_most, fill * fill, NEVER) for fill in fills])
        return None if found is None else self._cutting(places, found[1])

    def _cutting(self, places: Sequence[int], path: tuple[int, ...]) -> Cutting:
        spans = [(place, (end, end - 1 - start)) for place, end, start in zip(places, path, (0, *path), strict=False)]
        return Cutting(
            tuple(self.boundaries[end] for end in path),
            sum(int(self._time(place)[span]) for place, span in spans),
            max(int(self._fill(place)[span]) for place, span in spans),
        )

    # --- paths: one range per table, each beginning where the one before ends, that cover everything
    def _least_maximum(self, places: Sequence[int]) -> int:
        """The fill of the fullest seat, as low as can be."""
        reached = _first_column(self._fill(places[0]))
        for place in places[1:]:
            reached = np.maximum(self._fill(place), self._before(reached)).min(axis=1)
        return int(reached[-1])

    def _least_sum(self, tables: Sequence[Table]) -> tuple[int, tuple[int, ...]] | None:
        """The least sum, and the ends as indices of boundaries. Of equal ones, that which begins its last stage latest,
        then the one before it, and so on.
        """
        rows = np.arange(len(self.boundaries))
        reached, came_from = _first_column(tables[0]), []
        for table in tables[1:]:
            sums = table + self._before(reached)
            best = sums.argmin(axis=1)
            came_from.append(best)
            reached = sums[rows, best]
        place = len(rows) - 1
        if reached[place] >= NEVER:
            return None
        cost, path = int(reached[place]), [place]
        for best in reversed(came_from):
            place -= 1 + int(best[place])
            path.append(place)
        return cost, tuple(reversed(path))

    # --- tables of a seat
    def _time(self, place: int) -> Table:
        """Compute of each range, ``NEVER`` where it does not fit."""
        if place not in self._times:
            seat = self._seats[place]
            fits = self._is_allowed & (self._needed <= seat.usable_bytes) & (self._layers <= seat.most_layers)
            self._times[place] = np.where(fits, self._reads * MICROS_PER_SECOND // seat.bytes_per_s, NEVER)
        return self._times[place]

    def _fill(self, place: int) -> Table:
        """How full each range makes it, ``NEVER`` where it does not fit."""
        if place not in self._fills:
            share = self._needed * FULL // max(1, self._seats[place].usable_bytes)
            self._fills[place] = np.where(self._time(place) < NEVER, share, NEVER)
        return self._fills[place]


def _starts(boundaries: int, width: int) -> NDArray[np.intp]:
    """Where the ranges of a table start; negative where there is no such range."""
    starts: NDArray[np.intp] = np.arange(boundaries)[:, None] - 1 - np.arange(width)[None, :]
    return starts


def _first_column(table: Table) -> Table:
    """The costs of the ranges that start at the first layer, by their ends."""
    rows, width = table.shape
    first = np.full(rows, NEVER, dtype=np.int64)
    ends = np.arange(1, min(rows, width + 1))
    first[ends] = table[ends, ends - 1]
    return first


def could_be_cut(model: PlanningModel, counts: Sequence[int]) -> bool:
    """Whether peers without bounds could hold the model in one of these numbers of stages (at least 1)."""
    most_bytes = model.least.bytes_of(LayerRange(0, model.layer_count)) + model.least.whole_saves_bytes
    unbounded = Seat(most_bytes, model.layer_count, most_bytes + 1)
    tables = CutTables(model, model.least, [unbounded])
    found = tables.feasible_counts([0] * max(counts))
    return any(found[count - 1] for count in counts)
