"""Rows of a prompt as one vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pmesh.core.pooling import Pooling, RowPool, choose_pooling

ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-9, 9, width=32))


@pytest.mark.parametrize(
    ("written", "pooling"),
    [("", Pooling.MEAN), ("0", Pooling.MEAN), ("1", Pooling.MEAN), ("2", Pooling.FIRST), ("3", Pooling.LAST),
     ("4", None), ("9", None), ("last", None)],
)  # fmt: skip
def test_the_metadata_says_how_a_model_is_read(written, pooling):
    assert choose_pooling(written) is pooling


@given(ROWS, st.sampled_from([Pooling.MEAN, Pooling.FIRST, Pooling.LAST]), st.data())
def test_calls_make_no_difference(rows, pooling, data):
    whole, parts = RowPool(pooling), RowPool(pooling)
    whole.add(rows)
    cut = data.draw(st.integers(1, len(rows)))
    parts.add(rows[:cut])
    if cut < len(rows):
        parts.add(rows[cut:])
    assert parts.count == whole.count == len(rows)
    assert parts.vector() == pytest.approx(whole.vector(), abs=1e-6)
    expected = {Pooling.MEAN: rows.mean(axis=0), Pooling.FIRST: rows[0], Pooling.LAST: rows[-1]}[pooling]
    assert whole.vector() == pytest.approx(expected, abs=1e-5)


def test_nothing_is_no_vector():
    with pytest.raises(ValueError, match="no rows"):
        RowPool(Pooling.LAST).vector()
