"""A rate with bursts."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import Micros
from p2pmesh.core.allowance import spend


def test_a_burst_is_had_at_once_and_then_one_each_interval() -> None:
    full_at, had = Micros(0), []
    for now in (0, 0, 0, 9, 10, 11, 100, 100, 100):
        spent = spend(full_at, Micros(now), 10, 2)
        had.append(spent is not None)
        full_at = full_at if spent is None else spent
    assert had == [True, True, False, False, True, False, True, True, False]


@given(st.lists(st.integers(0, 40), max_size=50), st.integers(1, 20), st.integers(1, 5))
def test_no_span_has_more_than_a_burst_and_its_share(waits: list[int], each_us: int, burst: int) -> None:
    now, full_at = 0, Micros(0)
    times: list[int] = []
    for wait in waits:
        now += wait
        spent = spend(full_at, Micros(now), each_us, burst)
        if spent is not None:
            full_at = spent
            times.append(now)
    for index, first in enumerate(times):
        for count, last in enumerate(times[index:], 1):
            assert count <= burst + (last - first) // each_us
