from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import Micros
from p2pmesh.core.bounded_times import BoundedTimes


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1000))))
def test_the_last_that_were_put_are_kept(capacity: int, puts: list[tuple[int, int]]) -> None:
    times: BoundedTimes[int] = BoundedTimes(capacity)
    kept: dict[int, int] = {}
    for key, moment in puts:
        times.put(key, Micros(moment))
        kept.pop(key, None)
        kept[key] = moment
    kept = dict(list(kept.items())[-capacity:])
    assert len(times) == len(kept)
    for key in range(7):
        assert times.get(key) == kept.get(key, times.get(-1))


def test_what_was_never_put_is_long_past() -> None:
    assert BoundedTimes[str](1).get("nobody") < -(2**60)
