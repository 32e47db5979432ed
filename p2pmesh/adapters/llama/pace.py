"""How long an engine takes for a token of one sequence, measured at load: what placements are predicted by.

A few rows one at a time after a short context, made as the stepper makes them, and a few chunks of a prompt. What a
longer cache adds, and what other work on the machine takes away, is not in it.
"""

import statistics
import time

import numpy as np

from p2pmesh.adapters.llama.binding import LoadedStage
from p2pmesh.adapters.llama.steps import PREFILL_ROWS, SingleRow, StageShape, Widths
from p2pmesh.base.errors import EngineError, ErrorCode

CONTEXT_ROWS = 16
TIMED_CALLS = 9
MOST_TIMED_S = 1.0
"""After so long no further call is timed: one of a large model says enough."""
TIMED_CHUNKS = 3
MOST_CHUNKS_S = 0.5
_EMBEDDING = 1.0


def measure_decode_us(stage: LoadedStage, shape: StageShape, widths: Widths) -> int:
    """Median time of a call of one row, at least 1; 0 for a stage without room for it. Leaves an empty stage empty."""
    if shape.context_tokens * shape.lanes < CONTEXT_ROWS + TIMED_CALLS:
        return 0
    way = widths.single(CONTEXT_ROWS)
    stage.clear_cells()
    stage.use_reference_attention(way is SingleRow.REFERENCE)
    times_s: list[float] = []
    try:
        _run(stage, shape, 0, CONTEXT_ROWS, is_padded=False)
        while len(times_s) < TIMED_CALLS and sum(times_s) < MOST_TIMED_S:
            started = time.perf_counter()
            _run(stage, shape, CONTEXT_ROWS + len(times_s), 1, is_padded=way is SingleRow.PADDED)
            times_s.append(time.perf_counter() - started)
    finally:
        stage.use_reference_attention(False)
        stage.clear_cells()
    return max(1, round(statistics.median(times_s) * 1_000_000))


def measure_prefill_us(stage: LoadedStage, shape: StageShape) -> int:
    """Time of a token of a prompt, at least 1; 0 for a stage without room for a chunk. Leaves an empty stage empty.

    Of a prompt only the last row gives out logits, and so does one of the rows here. Other stages give out all rows.
    """
    if shape.context_tokens * shape.lanes < PREFILL_ROWS:
        return 0
    silent_rows = PREFILL_ROWS - 1 if shape.is_last else 0
    times_s: list[float] = []
    try:
        while len(times_s) < TIMED_CHUNKS and sum(times_s) < MOST_CHUNKS_S:
            stage.clear_cells()
            started = time.perf_counter()
            _run(stage, shape, 0, PREFILL_ROWS, is_padded=False, silent_rows=silent_rows)
            times_s.append(time.perf_counter() - started)
    finally:
        stage.clear_cells()
    return max(1, round(statistics.median(times_s) * 1_000_000 / PREFILL_ROWS))


def _run(
    stage: LoadedStage, shape: StageShape, start: int, count: int, *, is_padded: bool, silent_rows: int = 0
) -> None:
    rows, scratch = stage.rows, shape.lanes
    total = count + is_padded
    rows.positions[:count] = np.arange(start, start + count)
    rows.positions[count:total] = 0
    rows.sequences[:count] = 0
    rows.sequences[count:total] = scratch
    if shape.is_first:
        rows.tokens[:total] = np.arange(start, start + total) % (shape.vocabulary_size or 32)
    else:
        rows.embeddings[:total] = _EMBEDDING
    rows.outputs[:silent_rows] = 0
    rows.outputs[silent_rows:total] = 1
    status = stage.decode(total)
    if is_padded:
        stage.drop_cells(scratch, 0)
    if status != 0:
        raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"the first calls of the stage fail with {status}")
    if shape.is_last:
        stage.logits(silent_rows)
    else:
        stage.hidden_rows()
