"""Measures at load how many rows a call may have without changing a bit, and keeps the answer on disk.

Rows one at a time, each padded to two with a scratch row, are the reference. Compared with it, bit for bit: rows alone
(plain, and with the CPU backend's reference attention), and calls of growing width until one differs. Each width runs
all rows, call after call: where kernels differ, a row's bits still come out equal in about one case of three, and a few
rows alone once let a width of 7 pass for a model that keeps its bits up to 3. That happens in
three views of the cache: a small one, and two larger ones (512 and 768 cells) that copies of the sequence's own cells
fill up, so that an occupied neighbour lies between its first and its last cells. Inputs are pseudo-random, by a fixed
seed. Widths between the candidates are taken to behave like the next one below: kernels change at multiples of four.

The fewer layers a stage has, the seldomer another kernel shows: after the last three layers of Gemma-3-270M one row in
thirty has other bits in calls of four, and sixteen rows let 7 pass where 3 is right. So such stages run more rows.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2pmesh.adapters.llama.binding import LoadedStage
from p2pmesh.adapters.llama.findings import load_findings, store_findings
from p2pmesh.adapters.llama.steps import PREFILL_ROWS, SingleRow, StageShape, Widths
from p2pmesh.base.errors import EngineError, ErrorCode

MINIMUM_WIDTH = 2
CANDIDATES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
MAXIMUM_WIDTH = CANDIDATES[-1]
_OWN_CELLS = 2 * PREFILL_ROWS
_COPIES = (0, 2, 5)
_SEED = 20
_BOUNDARIES = (4, 8, 12, 16)
_ROUND_LAYERS = 48
"""So many layers are run in further rounds, of sixteen other rows each, or one round."""
_MOST_ROUNDS_S = 10.0
"""Too short for all rounds only where layers are large, which have many more values to differ in."""
_PROCEDURE = 3
"""Names what is kept on disk: findings of another procedure are not read."""
_EMBEDDING_SCALE = 4.0

_Outputs = list[NDArray[np.float32]]


@dataclass(slots=True)
class _Findings:
    """What still holds: the largest width, and the ways to treat a row alone, cheapest first."""

    width: int
    singles: list[SingleRow]


def measure_widths(stage: LoadedStage, shape: StageShape) -> Widths:
    """Runs the comparison on an idle, empty stage and leaves it empty."""
    bench = _Bench(stage, shape)
    cells = shape.context_tokens * shape.lanes
    small = large = SingleRow.PADDED
    width = MINIMUM_WIDTH
    if cells >= _OWN_CELLS + MAXIMUM_WIDTH:
        found = _Findings(MAXIMUM_WIDTH, _ways(stage))
        _compare(bench, found, CANDIDATES)
        _compare_more_rows(bench, found, max(1, _ROUND_LAYERS // max(1, stage.layer_count)))
        small, width = found.singles[0], found.width
        beyond = _Findings(width, _ways(stage))
        for copies in _COPIES[1:]:
            if cells >= _OWN_CELLS * (1 + copies) + MAXIMUM_WIDTH and bench.add_neighbours(copies):
                _compare(bench, beyond, (max(MINIMUM_WIDTH, width // 2), width))
                large, width = beyond.singles[0], beyond.width
    stage.clear_cells()
    return Widths(width, small, large)


def _ways(stage: LoadedStage) -> list[SingleRow]:
    ways = [SingleRow.PLAIN, SingleRow.REFERENCE, SingleRow.PADDED]
    return ways if stage.has_reference_attention else [SingleRow.PLAIN, SingleRow.PADDED]


def _compare(bench: "_Bench", found: _Findings, widths: Sequence[int]) -> None:
    """Narrows the findings by what holds in the cache as it is now."""
    reference = bench.run_singles(SingleRow.PADDED)
    while found.singles[0] is not SingleRow.PADDED and not _is_equal(reference, bench.run_singles(found.singles[0])):
        del found.singles[0]
    for width in widths:
        together = bench.run_together(width)
        if not _is_equal(reference[: len(together)], together):
            found.width = max((narrower for narrower in CANDIDATES if narrower < width), default=MINIMUM_WIDTH)
            return


def _compare_more_rows(bench: "_Bench", found: _Findings, rounds: int) -> None:
    """Narrows the findings by other rows after the same context, at the widths where kernels change."""
    deadline_s = time.monotonic() + _MOST_ROUNDS_S
    for number in range(rounds):
        if found.width < _BOUNDARIES[0] or time.monotonic() > deadline_s:
            return
        bench.draw_rows(number)
        _compare(bench, found, [width for width in _BOUNDARIES if width <= found.width])


def _is_equal(left: _Outputs, right: _Outputs) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


class _Bench:
    """The same rows after the same context, alone or together."""

    def __init__(self, stage: LoadedStage, shape: StageShape) -> None:
        self._stage = stage
        self._shape = shape
        random = np.random.Generator(np.random.PCG64(_SEED))
        count = _OWN_CELLS + MAXIMUM_WIDTH
        self._tokens = random.integers(0, shape.vocabulary_size or 32, count).astype(np.int32)
        self._embeddings: NDArray[np.float32] | None = None
        if not shape.is_first:
            scaled = random.standard_normal((count, shape.hidden_size)) * _EMBEDDING_SCALE
            self._embeddings = scaled.astype(np.float32)
        self._scratch = shape.lanes
        stage.clear_cells()
        for start in range(0, _OWN_CELLS, PREFILL_ROWS):
            self._call(start, start + PREFILL_ROWS, is_padded=False)
        self._own = stage.save_cells(0)

    def draw_rows(self, number: int) -> None:
        """Other inputs for the rows after the context."""
        random = np.random.Generator(np.random.PCG64((_SEED, number)))
        tokens = random.integers(0, self._shape.vocabulary_size or 32, MAXIMUM_WIDTH)
        self._tokens[_OWN_CELLS:] = tokens.astype(np.int32)
        if self._embeddings is not None:
            scaled = random.standard_normal((MAXIMUM_WIDTH, self._shape.hidden_size)) * _EMBEDDING_SCALE
            self._embeddings[_OWN_CELLS:] = scaled.astype(np.float32)

    def add_neighbours(self, count: int) -> bool:
        """Starts over with the context and then ``count`` copies of its cells; false if the copying fails."""
        self._stage.clear_cells()
        if self._own is None or not self._stage.restore_cells(0, self._own):
            return False
        for _ in range(count):
            if not self._stage.restore_cells(self._scratch, self._own):
                return False
            self._stage.share_cells(self._scratch, self._scratch + 1, 0)
            self._stage.drop_cells(self._scratch, 0)
        return True

    def run_singles(self, way: SingleRow) -> _Outputs:
        """Outputs of the rows after the context, one a call."""
        outputs: _Outputs = []
        self._stage.use_reference_attention(way is SingleRow.REFERENCE)
        for row in range(_OWN_CELLS, _OWN_CELLS + MAXIMUM_WIDTH):
            self._call(row, row + 1, is_padded=way is SingleRow.PADDED)
            outputs += self._outputs(1)
        self._stage.use_reference_attention(False)
        self._stage.drop_cells(0, _OWN_CELLS)
        return outputs

    def run_together(self, width: int) -> _Outputs:
        """Outputs of the rows after the context, in as many full calls of ``width`` as they make."""
        outputs: _Outputs = []
        for start in range(_OWN_CELLS, _OWN_CELLS + MAXIMUM_WIDTH - width + 1, width):
            self._call(start, start + width, is_padded=False)
            outputs += self._outputs(width)
        self._stage.drop_cells(0, _OWN_CELLS)
        return outputs

    def _outputs(self, count: int) -> _Outputs:
        if self._shape.is_last:
            return [self._stage.logits(row).copy() for row in range(count)]
        return list(self._stage.hidden_rows()[:count].copy())

    def _call(self, start: int, end: int, *, is_padded: bool) -> None:
        rows = self._stage.rows
        count = end - start
        picks = np.arange(start, end + is_padded)
        picks[count:] = 0
        rows.positions[: len(picks)] = picks
        rows.sequences[:count] = 0
        rows.sequences[count : len(picks)] = self._scratch
        if self._stage.takes_tokens:
            rows.tokens[: len(picks)] = self._tokens[picks]
        if self._embeddings is not None:
            rows.embeddings[: len(picks)] = self._embeddings[picks]
        rows.outputs[: len(picks)] = 1
        status = self._stage.decode(len(picks))
        if is_padded:
            self._stage.drop_cells(self._scratch, 0)
        if status != 0:
            raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"the first calls of the stage fail with {status}")


def load_widths(folder: Path, key: str) -> Widths | None:
    """Widths measured earlier under the same key; None when there are none that can be read."""
    fields = load_findings(folder, f"width-{_PROCEDURE}-{key}")
    if fields is None or fields.get("exact_width") not in CANDIDATES:
        return None
    try:
        small, large = SingleRow(fields["single_small"]), SingleRow(fields["single_large"])
        return Widths(fields["exact_width"], small, large)
    except (ValueError, KeyError, TypeError):
        return None


def store_widths(folder: Path, key: str, widths: Widths) -> None:
    """Keeps widths for later loads."""
    fields = {
        "exact_width": widths.exact_width,
        "single_small": widths.single_small.value,
        "single_large": widths.single_large.value,
    }
    store_findings(folder, f"width-{_PROCEDURE}-{key}", fields)
