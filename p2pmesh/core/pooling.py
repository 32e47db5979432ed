"""Rows of a prompt -> one vector, as the model was trained to be read.

Which rows there are, and that they are those after the last norm, is the engine's; unit length is the API's.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Pooling(IntEnum):
    """How a model is read; the numbers are llama.cpp's, which stand in a model's metadata as ``pooling_type``."""

    NONE = 0
    MEAN = 1
    FIRST = 2
    LAST = 3
    RANK = 4


def choose_pooling(written: str) -> Pooling | None:
    """By the metadata's text: what it says, the mean where it says nothing; None for what gives no vector.

    A model that was made to answer was not trained to be read at all; the mean of its rows tells texts apart best.
    """
    if not written or written == str(int(Pooling.NONE)):
        return Pooling.MEAN
    known = {str(int(kind)): kind for kind in (Pooling.MEAN, Pooling.FIRST, Pooling.LAST)}
    return known.get(written)


class RowPool:
    """Takes the rows of one prompt as they are computed."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._pooled: NDArray[np.float64] | None = None
        self.count = 0
        """Rows so far: the position of the next one."""

    def add(self, rows: NDArray[np.float32]) -> None:
        """Rows in order, shape ``(rows, hidden)``."""
        wide = rows.astype(np.float64)
        if self._pooled is None:
            self._pooled = wide.sum(axis=0) if self._pooling is Pooling.MEAN else wide[0]
        elif self._pooling is Pooling.MEAN:
            self._pooled = self._pooled + wide.sum(axis=0)
        if self._pooling is Pooling.LAST:
            self._pooled = wide[-1]
        self.count += len(rows)

    def vector(self) -> NDArray[np.float32]:
        """Of all rows so far; there must be one."""
        if self._pooled is None:
            raise ValueError("no rows to pool")
        divisor = self.count if self._pooling is Pooling.MEAN else 1
        return (self._pooled / divisor).astype(np.float32)
