"""Who connects again too often."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.flapping import FlappingMachine, FlappingPolicy

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_beyond_the_burst_each_admission_is_an_excess_until_time_refills() -> None:
    machine = FlappingMachine(FlappingPolicy(burst=3, refill_us=10))
    assert [machine.is_excess(A, Micros(0)) for _ in range(6)] == [False] * 3 + [True] * 3
    assert not machine.is_excess(B, Micros(0))
    assert not machine.is_excess(A, Micros(10))
    assert machine.is_excess(A, Micros(10))


def test_whoever_was_counted_longest_ago_makes_room() -> None:
    machine = FlappingMachine(FlappingPolicy(burst=1, refill_us=10, capacity=2))
    for peer in (A, B, C):
        machine.is_excess(peer, Micros(0))
    assert machine.is_excess(C, Micros(0))
    assert not machine.is_excess(A, Micros(0))


@given(st.lists(st.integers(10, 100), max_size=50))
def test_a_slow_one_is_never_an_excess(waits: list[int]) -> None:
    machine = FlappingMachine(FlappingPolicy(burst=2, refill_us=10))
    now = 0
    for wait in waits:
        now += wait
        assert not machine.is_excess(A, Micros(now))
