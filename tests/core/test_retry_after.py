"""When a refused request is worth sending again: sooner with more lanes, never beyond the bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.retry_after import LEAST_S, MOST_S, pending_retry_after_s, queue_retry_after_s

COUNTS = st.integers(0, 10_000)
TIMES = st.integers(0, 10**12)


@pytest.mark.parametrize(
    ("waiting", "lanes", "held_s", "expected"), [(1, 4, 2.0, 1), (8, 4, 2.0, 4), (9, 4, 2.0, 5), (256, 4, 2.0, 60)]
)
def test_a_queue_takes_as_long_as_its_requests_hold_their_lanes(
    waiting: int, lanes: int, held_s: float, expected: int
) -> None:
    assert queue_retry_after_s(waiting, lanes, round(held_s * MICROS_PER_SECOND)) == expected


@pytest.mark.parametrize(("elapsed_s", "expected"), [(0, 1), (0.2, 1), (7, 7), (3600, 60)])
def test_what_lasts_lasts_as_long_again(elapsed_s: float, expected: int) -> None:
    assert pending_retry_after_s(round(elapsed_s * MICROS_PER_SECOND)) == expected


@given(COUNTS, st.integers(0, 64), TIMES)
def test_estimates_are_bounded_and_grow_with_the_queue(waiting: int, lanes: int, held_us: int) -> None:
    estimate = queue_retry_after_s(waiting, lanes, held_us)
    assert LEAST_S <= estimate <= queue_retry_after_s(waiting + 1, lanes, held_us) <= MOST_S
    assert queue_retry_after_s(waiting, lanes + 1, held_us) <= max(estimate, LEAST_S)
    assert LEAST_S <= pending_retry_after_s(held_us) <= MOST_S
