"""Rows tapped out of a graph in this process: found by where they were the last time, and never another tensor's."""

import numpy as np
import pytest
from numpy.typing import NDArray

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from tests.adapters.llama.conftest import CUTS


@pytest.fixture(params=["llama", "gemma3"])
def stage(request, stage_folder):
    """The first stage of a tiny model."""
    path = stage_folder / f"{request.param}-0-{CUTS[request.param]}.gguf"
    loaded = LoadedStage(LoadOptions(str(path), True, False, 2, 64, 1, False))
    yield loaded
    loaded.close()


def rows_of(stage: LoadedStage, count: int) -> NDArray[np.float32] | None:
    """Of ``count`` tokens at the beginning of a sequence; None where the call failed."""
    stage.drop_cells(0, 0)
    stage.rows.tokens[:count] = range(3, 3 + count)
    stage.rows.positions[:count] = range(count)
    stage.rows.sequences[:count] = 0
    return stage.hidden_rows().copy() if stage.decode(count) == 0 else None


def test_calls_of_any_rows_give_what_their_first_one_gave(stage):
    counts = (1, 5, 1, 16, 5, 2, 16, 1)
    first: dict[int, NDArray[np.float32]] = {}
    for count in counts:
        rows = rows_of(stage, count)
        assert rows.shape == (count, stage.hidden_size)
        np.testing.assert_array_equal(rows, first.setdefault(count, rows))


def test_a_tensor_that_comes_later_than_the_last_time_is_still_found(stage):
    expected = rows_of(stage, 3)
    places = stage._tap._places
    for key in places:
        places[key] = 1
    np.testing.assert_array_equal(rows_of(stage, 3), expected)
    assert min(places.values()) > 1


def test_one_that_comes_earlier_fails_its_call_and_no_other(stage):
    expected = rows_of(stage, 3)
    places = stage._tap._places
    for key in places:
        places[key] += 1
    assert rows_of(stage, 3) is None
    np.testing.assert_array_equal(rows_of(stage, 3), expected)
