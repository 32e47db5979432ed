"""Which of many equal happenings are told."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import Micros
from p2pmesh.core.folding import FoldingMachine, FoldingPolicy

POLICY = FoldingPolicy(window_us=60, shown=3, capacity=4)


def test_a_few_are_shown_and_the_rest_are_counted_when_the_window_ends() -> None:
    machine: FoldingMachine[str] = FoldingMachine(POLICY)
    assert [machine.is_shown("a", Micros(now)) for now in range(10)] == [True] * 3 + [False] * 7
    assert machine.is_shown("b", Micros(5))
    assert machine.deadline() == 60
    assert machine.take_due(Micros(59)) == []
    assert machine.take_due(Micros(60)) == [("a", 7)]
    assert machine.deadline() == 65
    assert machine.take_due(Micros(65)) == []
    assert machine.deadline() is None
    assert machine.is_shown("a", Micros(66))


def test_a_full_table_has_room_only_for_what_it_counts() -> None:
    machine: FoldingMachine[int] = FoldingMachine(POLICY)
    for key in range(4):
        machine.is_shown(key, Micros(0))
    assert machine.has_room_for(3)
    assert not machine.has_room_for(4)
    machine.take_due(Micros(60))
    assert machine.has_room_for(4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=60))
def test_nothing_is_lost_told_or_counted_it_is_there(steps: list[tuple[str, int]]) -> None:
    machine: FoldingMachine[str] = FoldingMachine(POLICY)
    now, told = 0, 0
    for key, later in steps:
        now += later
        told += sum(count for _, count in machine.take_due(Micros(now)))
        told += machine.is_shown(key, Micros(now))
        assert machine.deadline() is not None
    told += sum(count for _, count in machine.take_due(Micros(now + POLICY.window_us)))
    assert told == len(steps)
    assert machine.deadline() is None
