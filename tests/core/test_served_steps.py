"""Predicted and measured time per token."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.served_steps import COMPARED_TOKENS, Comparison, ServedSteps


def test_nothing_is_compared_before_the_first_step() -> None:
    steps = ServedSteps()
    steps.expect(10_000)
    assert steps.comparison() is None


def test_the_comparison_is_told_once_when_enough_tokens_were_served() -> None:
    steps = ServedSteps()
    steps.expect(9_000)
    told = [steps.note(10_000, 1) for _ in range(3 * COMPARED_TOKENS)]
    assert [at for at, one in enumerate(told) if one is not None] == [COMPARED_TOKENS - 1]
    found = told[COMPARED_TOKENS - 1]
    assert found == Comparison(9_000, 10_000, COMPARED_TOKENS)
    assert found.error_percent == -10.0


def test_tokens_that_come_together_share_their_step() -> None:
    steps = ServedSteps()
    steps.note(30_000, 3)
    assert steps.comparison() == Comparison(0, 10_000, 3)


def test_without_a_prediction_there_is_no_error() -> None:
    assert Comparison(0, 10_000, 64).error_percent is None


def test_a_new_prediction_is_compared_with_what_comes_after_it() -> None:
    steps = ServedSteps()
    steps.note(50_000, 1)
    steps.expect(9_000)
    assert steps.comparison() is None
    steps.note(10_000, 1)
    assert steps.comparison() == Comparison(9_000, 10_000, 1)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 8)), max_size=200))
def test_the_mean_lies_between_the_fastest_and_the_slowest(noted: list[tuple[int, int]]) -> None:
    steps = ServedSteps()
    told = [steps.note(*one) for one in noted]
    assert sum(one is not None for one in told) == (sum(tokens for _, tokens in noted) >= COMPARED_TOKENS)
    found = steps.comparison()
    tokens = sum(tokens for _, tokens in noted)
    assert (found is None) == (tokens == 0)
    if found is not None:
        assert found.measured_us == max(1, sum(us for us, _ in noted) // tokens)
