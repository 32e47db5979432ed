from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.rate_cap import RateCap


def test_without_a_cap_nothing_waits() -> None:
    cap = RateCap()
    cap.note(10**9, Micros(0), is_first=False)
    assert cap.wait_us(Micros(0), is_first=False) == 0


def test_files_wait_until_what_went_is_made_up_for() -> None:
    cap = RateCap(1000)
    cap.note(3000, Micros(0), is_first=False)
    assert cap.wait_us(Micros(0), is_first=False) == 2 * MICROS_PER_SECOND
    assert cap.wait_us(Micros(2 * MICROS_PER_SECOND), is_first=False) == 0


def test_activations_wait_for_no_file_and_files_for_both() -> None:
    cap = RateCap(1000)
    cap.note(9000, Micros(0), is_first=False)
    assert cap.wait_us(Micros(0), is_first=True) == 0
    cap.note(3000, Micros(0), is_first=True)
    assert cap.wait_us(Micros(0), is_first=True) == 2 * MICROS_PER_SECOND
    assert cap.wait_us(Micros(0), is_first=False) == 11 * MICROS_PER_SECOND


@given(st.integers(1, 10**6), st.lists(st.tuples(st.integers(1, 10**5), st.booleans()), min_size=1, max_size=50))
def test_in_the_long_run_no_more_goes_than_allowed(rate: int, sent: list[tuple[int, bool]]) -> None:
    """Every sender waits as it is told; a class may be ahead by the burst and its last piece."""
    cap, now, files = RateCap(rate), 0, 0
    for size, is_first in sent:
        now += cap.wait_us(Micros(now), is_first=is_first)
        cap.note(size, Micros(now), is_first=is_first)
        files += 0 if is_first else size
        if not is_first:
            total = sum(one for one, _ in sent)
            assert files <= rate * (now / MICROS_PER_SECOND + 1) + max(one for one, _ in sent) + 1
            assert total >= files
