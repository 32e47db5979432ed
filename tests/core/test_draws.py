"""Draws: equal for equal seeds, within bounds, spread evenly."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.draws import Draws


@given(seed=st.integers(), bounds=st.lists(st.integers(1, 2**32), max_size=20))
def test_equal_seeds_draw_the_same_within_their_bounds(seed: int, bounds: list[int]) -> None:
    one, other = Draws(seed), Draws(seed)
    for bound in bounds:
        drawn = one.below(bound)
        assert 0 <= drawn < bound
        assert other.below(bound) == drawn


def test_draws_are_those_of_the_published_generator() -> None:
    draws = Draws(1234567)  # the first outputs of SplitMix64 for this seed, modulo 2^32
    assert [draws.below(2**32) for _ in range(3)] == [out % 2**32 for out in SPLITMIX64_OF_1234567]


def test_draws_spread_over_every_value() -> None:
    draws = Draws(7)
    counts = [0] * 10
    for _ in range(10_000):
        counts[draws.below(10)] += 1
    assert min(counts) > 900
    assert max(counts) < 1100


SPLITMIX64_OF_1234567 = (6457827717110365317, 3203168211198807973, 9817491932198370423)
