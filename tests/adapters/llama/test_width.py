"""How many rows a call may have, of stages where other kernels show seldom."""

import numpy as np
import pytest

from p2pmesh.adapters.llama.steps import StageShape
from p2pmesh.adapters.llama.width import measure_widths
from p2pmesh.wire.stage import WireDtype

LANES, CONTEXT = 4, 128
SHAPE = StageShape(True, True, 1, 1000, CONTEXT, LANES, WireDtype.F32)


class Rows:
    """Inputs of a call."""

    def __init__(self) -> None:
        self.tokens, self.positions, self.sequences, self.outputs = (np.zeros(64, np.int32) for _ in range(4))


class SeldomStage:
    """Rows whose token is a multiple of ``seldom`` have other bits in calls of four and more."""

    takes_tokens = True
    has_reference_attention = False

    def __init__(self, layer_count: int, seldom: int) -> None:
        self.rows = Rows()
        self.layer_count = layer_count
        self._seldom = seldom
        self._count = 0

    def decode(self, count: int) -> int:
        self._count = count
        return 0

    def logits(self, row: int) -> np.ndarray:
        token = int(self.rows.tokens[row])
        return np.array([token + (self._count >= 4 and token % self._seldom == 0)], np.float32)

    def use_reference_attention(self, is_on: bool) -> None: ...

    def clear_cells(self) -> None: ...

    def drop_cells(self, sequence: int, start: int) -> None: ...

    def save_cells(self, sequence: int) -> None: ...


@pytest.mark.parametrize("seldom", [1, 5, 30, 60])
def test_a_kernel_that_shows_in_few_rows_is_found(seldom: int) -> None:
    assert measure_widths(SeldomStage(3, seldom), SHAPE).exact_width == 3


def test_widths_that_change_no_row_are_kept() -> None:
    assert measure_widths(SeldomStage(3, 10**6), SHAPE).exact_width >= 12
