"""Pauses of a relay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import Micros
from p2pmesh.core.relay_pace import CHANCES, RelayPace

SECOND = 1_000_000
NOW = Micros(7 * SECOND)


def test_the_pause_doubles_from_a_second_to_five_minutes() -> None:
    pace = RelayPace()
    waits = []
    for _ in range(12):
        pace.fail("dead", NOW, 0)
        waits.append(pace.wait_us(NOW) * 2 // SECOND)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert (pace.failures, pace.detail, pace.is_refusing) == (12, "dead", False)


def test_chance_spreads_the_second_half() -> None:
    waits = []
    for chance in (0, CHANCES // 2, CHANCES - 1):
        pace = RelayPace()
        pace.fail("dead", NOW, chance)
        waits.append(pace.wait_us(NOW))
    assert waits == [500_000, 750_000, 999_500]


@pytest.mark.parametrize("failures", [0, 1, 20])
def test_a_refusal_that_means_it_is_not_asked_again_for_five_minutes(failures: int) -> None:
    pace = RelayPace()
    for _ in range(failures):
        pace.fail("slow", NOW, 0)
    pace.fail("blocked", NOW, 0, is_refusal=True)
    assert pace.wait_us(NOW) == 300 * SECOND
    assert pace.is_refusing


def test_success_forgets_the_failures() -> None:
    pace = RelayPace()
    pace.fail("dead", NOW, 999)
    pace.fail("blocked", NOW, 999, is_refusal=True)
    pace.succeed()
    assert (pace.wait_us(NOW), pace.failures, pace.detail, pace.is_refusing) == (0, 0, "", False)
    pace.fail("dead", NOW, 0)
    assert pace.wait_us(NOW) == SECOND // 2


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), min_size=1, max_size=50))
def test_a_pause_is_positive_and_bounded_and_passes(failures: list[tuple[int, bool]]) -> None:
    pace = RelayPace()
    for chance, is_refusal in failures:
        pace.fail("x", NOW, chance, is_refusal=is_refusal)
    wait = pace.wait_us(NOW)
    assert SECOND // 2 <= wait < 450 * SECOND
    assert pace.wait_us(Micros(NOW + wait)) == 0
