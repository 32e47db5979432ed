"""What of one speaker passes a topic."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.origin_gate import OriginGate, OriginPolicy

A, B, C = (PeerId(name) for name in "abc")
POLICY = OriginPolicy(burst=3, us_per_message=10, capacity=2)


def test_a_replay_and_an_older_word_do_not_pass() -> None:
    gate = OriginGate(POLICY)
    assert gate.admit(A, (1, 5), Micros(0))
    assert not gate.admit(A, (1, 5), Micros(1))
    assert not gate.admit(A, (1, 4), Micros(2))
    assert gate.admit(A, (2, 0), Micros(3))
    assert gate.admit(B, (1, 4), Micros(4))


def test_a_burst_passes_then_one_in_each_interval() -> None:
    gate = OriginGate(POLICY)
    passed = [gate.admit(A, (1, n), Micros(0)) for n in range(5)]
    assert passed == [True, True, True, False, False]
    assert not gate.admit(A, (1, 9), Micros(9))
    assert gate.admit(A, (1, 9), Micros(10))
    assert not gate.admit(A, (1, 10), Micros(11))
    assert [gate.admit(A, (2, n), Micros(1000)) for n in range(4)] == [True, True, True, False]


def test_what_did_not_pass_costs_no_allowance_and_may_come_again() -> None:
    gate = OriginGate(POLICY)
    for n in range(3):
        gate.admit(A, (1, n), Micros(0))
    assert not gate.admit(A, (1, 3), Micros(0))
    assert gate.admit(A, (1, 3), Micros(10))


def test_the_speaker_heard_longest_ago_is_forgotten() -> None:
    gate = OriginGate(POLICY)
    for origin in (A, B, A, C):
        gate.admit(origin, (1, 1), Micros(0))
    assert not gate.admit(A, (1, 1), Micros(0))
    assert gate.admit(B, (1, 1), Micros(0))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 40)), max_size=80))
def test_whatever_comes_freshness_rises_and_the_rate_holds(said: list[tuple[str, int, int]]) -> None:
    gate = OriginGate(OriginPolicy(burst=3, us_per_message=10, capacity=3))
    now, passed = 0, {}
    for name, sequence, wait in said:
        now += wait
        if gate.admit(PeerId(name), (1, sequence), Micros(now)):
            passed.setdefault(name, []).append((now, sequence))
    for heard in passed.values():
        sequences = [sequence for _, sequence in heard]
        assert sequences == sorted(set(sequences))
        for index, (first, _) in enumerate(heard):
            within = [when for when, _ in heard[index:] if when - first < 100]
            assert len(within) <= 3 + 10
