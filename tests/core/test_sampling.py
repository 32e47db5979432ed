"""Sampling as a pure function."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.sampling import draw_uniform, rank_logprobs, sample
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.token_report import LEAST_LOGPROB

# first outputs of numpy's Philox for the keys and counters below
PHILOX_ZERO = 0.011546754286331562
PHILOX_OTHER = 0.3979666096686759
GREEDY = SamplingParameters(temperature=0.0)


def logits_of(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def reference(logits: np.ndarray, parameters: SamplingParameters, sequence: int, position: int) -> int:
    """The order of operations written out over the whole, sorted vocabulary."""
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    if parameters.temperature == 0.0:
        return order[0]
    largest = float(logits[order[0]])
    pairs = [(t, float(np.exp((float(logits[t]) - largest) / parameters.temperature))) for t in order]
    if parameters.top_k:
        pairs = pairs[: parameters.top_k]
    total, kept, mass = sum(weight for _, weight in pairs), [], 0.0
    for token, weight in pairs:
        kept.append((token, weight))
        mass += weight
        if mass >= parameters.top_p * total and parameters.top_p < 1.0:
            break
    kept = [(token, weight) for token, weight in kept if weight >= parameters.min_p]
    target = draw_uniform(parameters.seed, sequence, position) * sum(weight for _, weight in kept)
    reached = 0.0
    for token, weight in kept:
        reached += weight
        if reached > target:
            return token
    return kept[-1][0]


def test_greedy_takes_the_largest_and_the_lowest_id_among_equals():
    assert sample(logits_of(0, 3, 1, 3), [], 0, GREEDY, 0, 0) == 1


def test_the_uniform_numbers_are_fixed():
    assert draw_uniform(0, 0, 0) == pytest.approx(PHILOX_ZERO, abs=0)
    assert draw_uniform(2**64 - 1, 3, 70_000) == pytest.approx(PHILOX_OTHER, abs=0)


def test_seed_choice_and_position_each_change_the_draw():
    draws = {draw_uniform(*key) for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}
    assert len(draws) == 4


def test_neighbouring_positions_share_no_output():
    assert len({draw_uniform(7, 0, position) for position in range(2000)}) == 2000


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.floats(0.1, 2.0),
    st.integers(0, 12),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.9),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_the_fast_way_is_the_written_out_way(values, temperature, top_k, top_p, min_p, seed, position):
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    logits = np.array(values, dtype=np.float32)
    assert sample(logits, [], 0, parameters, 2, position) == reference(logits, parameters, 2, position)


def test_a_draw_follows_the_distribution():
    logits = np.log(np.array((0.5, 0.3, 0.15, 0.05))).astype(np.float32)
    parameters = SamplingParameters(temperature=1.0, seed=11)
    counts = Counter(sample(logits, [], 0, parameters, 0, position) for position in range(4000))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(counts[token] / 4000 - share) < 0.03


def test_top_k_and_min_p_cut():
    logits = logits_of(5, 4.9, 4.8, 0)
    for position in range(200):
        assert sample(logits, [], 0, SamplingParameters(top_k=2), 0, position) in (0, 1)
        assert sample(logits, [], 0, SamplingParameters(min_p=0.5), 0, position) in (0, 1, 2)


def test_top_k_among_equals_keeps_the_lowest_ids():
    logits = np.zeros(1000, dtype=np.float32)
    drawn = {sample(logits, [], 0, SamplingParameters(top_k=3), 0, position) for position in range(100)}
    assert drawn == {0, 1, 2}


def test_a_tiny_top_p_is_greedy():
    logits = logits_of(1, 2, 3, 2)
    assert {sample(logits, [], 0, SamplingParameters(top_p=1e-6), 0, p) for p in range(50)} == {2}


def test_penalties_count_generated_tokens_only():
    logits = logits_of(2.0, 1.9, 0.0)
    parameters = SamplingParameters(temperature=0.0, presence_penalty=0.5)
    assert sample(logits, [0, 0, 0], 3, parameters, 0, 3) == 0
    assert sample(logits, [2, 0], 1, parameters, 0, 2) == 1


def test_frequency_grows_with_the_count_and_presence_does_not():
    logits = logits_of(2.0, 1.0)
    frequency = SamplingParameters(temperature=0.0, frequency_penalty=0.4)
    presence = SamplingParameters(temperature=0.0, presence_penalty=0.4)
    assert sample(logits, [1, 0, 0, 0], 1, frequency, 0, 4) == 1
    assert sample(logits, [1, 0, 0, 0], 1, presence, 0, 4) == 0


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits():
    parameters = SamplingParameters(temperature=0.0, repeat_penalty=2.0)
    assert sample(logits_of(2.0, 1.5), [0], 0, parameters, 0, 1) == 1
    assert sample(logits_of(-1.0, -1.5), [0], 0, parameters, 0, 1) == 1


def test_the_logits_are_left_alone():
    logits = logits_of(2.0, 1.5)
    sample(logits, [0], 0, SamplingParameters(repeat_penalty=2.0, presence_penalty=1.0), 0, 1)
    assert logits.tolist() == [2.0, 1.5]


def test_forbidden_tokens_are_never_drawn():
    logits = logits_of(-np.inf, 0.0, -np.inf)
    assert {sample(logits, [], 0, SamplingParameters(temperature=2.0), 0, p) for p in range(50)} == {1}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_engine_is_told(bad):
    with pytest.raises(ValueError, match="largest logit"):
        sample(logits_of(0.0, bad), [], 0, GREEDY, 0, 0)


def test_a_flat_vocabulary_is_drawn_from_whole():
    logits = np.zeros(5000, dtype=np.float32)
    drawn = [sample(logits, [], 0, SamplingParameters(seed=1), 0, position) for position in range(60)]
    assert max(drawn) > 4000
    assert min(drawn) < 1000


def test_a_bias_forces_and_forbids_a_token_and_leaves_the_logits_alone():
    logits = logits_of(0, 3, 1, 2)
    assert sample(logits, [], 0, SamplingParameters(temperature=0.0, logit_bias=((2, 100.0),)), 0, 0) == 2
    assert sample(logits, [], 0, SamplingParameters(temperature=0.0, logit_bias=((1, -100.0),)), 0, 0) == 3
    assert logits.tolist() == [0, 3, 1, 2]


def test_a_bias_beyond_the_vocabulary_changes_nothing():
    logits = logits_of(0, 3, 1)
    assert sample(logits, [], 0, SamplingParameters(temperature=0.0, logit_bias=((7, 100.0),)), 0, 0) == 1


def test_penalties_apply_to_the_biased_logits():
    parameters = SamplingParameters(temperature=0.0, presence_penalty=1.0, logit_bias=((0, 3.5),))
    assert sample(logits_of(0, 3, 1), [0], 0, parameters, 0, 1) == 1
    assert sample(logits_of(0, 3, 1), [0], 1, parameters, 0, 1) == 0


@given(st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=40), st.integers(0, 20), st.data())
def test_log_probabilities_are_those_of_a_softmax(values, count, data):
    token = data.draw(st.integers(0, len(values) - 1))
    report = rank_logprobs(np.array(values, np.float32), token, count)
    weights = np.exp(np.array(values, np.float64))
    expected = np.log(weights / weights.sum())
    assert report.logprob == pytest.approx(expected[token], abs=1e-9)
    order = sorted(range(len(values)), key=lambda one: (-values[one], one))[:count]
    assert [one for one, _ in report.top] == order
    assert [logprob for _, logprob in report.top] == pytest.approx(list(expected[order]), abs=1e-9)
    assert all(LEAST_LOGPROB <= logprob <= 0 for _, logprob in report.top)


def test_a_forbidden_token_has_the_least_log_probability():
    assert rank_logprobs(logits_of(0, -np.inf), 1, 2).top == ((0, 0.0), (1, LEAST_LOGPROB))
