"""Measures at load how many rows a call may have without changing a bit, and keeps the answer on disk.

For a few context lengths around the steps of the cache view (256 and 512 cells), with and without an occupied
neighbour: rows one at a time (padded to two with a scratch row) are the reference; then the same rows in wider calls.
R is the widest width whose every output, and that of every narrower width, is equal to the reference bit for bit.
A row alone without padding is compared too. Inputs are pseudo-random, by fixed seeds.
"""

import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2pmesh.adapters.llama.binding import LoadedStage, Rows
from p2pmesh.adapters.llama.steps import PREFILL_ROWS, StageShape, Widths
from p2pmesh.base.errors import EngineError, ErrorCode

MINIMUM_WIDTH = 2
MAXIMUM_WIDTH = 16
_CONTEXTS = ((40, 0), (250, 0), (250, 270), (520, 0))
"""Cells of the sequence itself, and of its neighbour."""

_SEED = 20
_EMBEDDING_SCALE = 4.0
_MAX_CACHE_BYTES = 4096


def measure_widths(stage: LoadedStage, shape: StageShape) -> Widths:
    """Runs the comparison on an idle, empty stage and leaves it empty."""
    bench = _Bench(stage, shape)
    width, single = MAXIMUM_WIDTH, True
    for own, neighbour in _CONTEXTS:
        if own + MAXIMUM_WIDTH > shape.context_tokens or (neighbour and shape.lanes < 2):
            continue
        reference = bench.run(own, neighbour, 1, is_padded=True)
        single = single and _is_equal(reference, bench.run(own, neighbour, 1, is_padded=False))
        while width > MINIMUM_WIDTH and not _is_equal(reference, bench.run(own, neighbour, width, is_padded=True)):
            width = _next_narrower(width)
    stage.clear_cells()
    return Widths(width, single)


def _next_narrower(width: int) -> int:
    return width - 1


def _is_equal(left: list[NDArray[np.float32]], right: list[NDArray[np.float32]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


class _Bench:
    """Runs the same ``MAXIMUM_WIDTH`` rows after the same context in calls of any width."""

    def __init__(self, stage: LoadedStage, shape: StageShape) -> None:
        self._stage = stage
        self._shape = shape
        random = np.random.Generator(np.random.PCG64(_SEED))
        longest = max(own for own, _ in _CONTEXTS) + MAXIMUM_WIDTH
        size = shape.vocabulary_size or 32
        self._tokens = random.integers(0, size, longest).astype(np.int32)
        self._embeddings = (
            None
            if shape.is_first
            else (random.standard_normal((longest, shape.hidden_size)) * _EMBEDDING_SCALE).astype(np.float32)
        )
        self._prepared: tuple[int, int] | None = None

    def run(self, own: int, neighbour: int, width: int, *, is_padded: bool) -> list[NDArray[np.float32]]:
        """Outputs of the rows after the context, in calls of ``width`` rows."""
        self._prepare(own, neighbour)
        outputs: list[NDArray[np.float32]] = []
        for start in range(own, own + MAXIMUM_WIDTH, width):
            end = min(start + width, own + MAXIMUM_WIDTH)
            self._call(start, end, 0, has_scratch=is_padded and end - start == 1)
            for row in range(end - start):
                output = self._stage.logits(row) if self._shape.is_last else self._stage.hidden_rows()[row]
                outputs.append(output.copy())
        return outputs

    def _prepare(self, own: int, neighbour: int) -> None:
        if self._prepared == (own, neighbour):
            self._stage.drop_cells(0, own)
            return
        self._stage.clear_cells()
        for lane, count in ((1, neighbour), (0, own)):
            for start in range(0, count, PREFILL_ROWS):
                self._call(start, min(start + PREFILL_ROWS, count), lane, has_scratch=False)
        self._prepared = (own, neighbour)

    def _call(self, start: int, end: int, lane: int, *, has_scratch: bool) -> None:
        rows = end - start + has_scratch
        positions = np.zeros(rows, dtype=np.int32)
        positions[: end - start] = np.arange(start, end)
        sequences = np.full(rows, lane, dtype=np.int32)
        picks = np.arange(start, end)
        if has_scratch:
            sequences[-1] = self._shape.lanes
            picks = np.append(picks, 0)
        status = self._stage.decode(
            Rows(
                self._tokens[picks] if self._embeddings is None else None,
                None if self._embeddings is None else self._embeddings[picks],
                positions,
                sequences,
                np.ones(rows, dtype=np.int8),
            )
        )
        if has_scratch:
            self._stage.drop_cells(self._shape.lanes, 0)
        if status != 0:
            raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"the first calls of the stage fail with {status}")


def load_widths(folder: Path, key: str) -> Widths | None:
    """Widths measured earlier under the same key; None when there are none that can be read."""
    try:
        text = (folder / f"width-{key}.json").read_bytes()[:_MAX_CACHE_BYTES]
        fields = json.loads(text)
        width, single = fields["exact_width"], fields["single_is_exact"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(width, int) or not MINIMUM_WIDTH <= width <= MAXIMUM_WIDTH or not isinstance(single, bool):
        return None
    return Widths(width, single)


def store_widths(folder: Path, key: str, widths: Widths) -> None:
    """Keeps widths for later loads; a disk that refuses costs only the next measurement."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".width-{key}.{os.getpid()}"
        partial.write_text(json.dumps({"exact_width": widths.exact_width, "single_is_exact": widths.single_is_exact}))
        partial.replace(folder / f"width-{key}.json")
    except OSError:
        return
