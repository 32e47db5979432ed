"""Which of many equal happenings are told."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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


class FoldingInAnyOrder(RuleBasedStateMachine):
    """Happenings of a few subjects and of more than there is room for, with what is due taken out now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.machine: FoldingMachine[str] = FoldingMachine(POLICY)
        self.now = 0
        self.shown: dict[str, list[int]] = {}
        self.hidden: dict[str, list[int]] = {}
        """When those came that are neither shown nor told."""

    @rule(later=st.integers(0, 50))
    def time_passes(self, later: int) -> None:
        self.now += later
        told = dict(self.machine.take_due(Micros(self.now)))
        for key, count in told.items():
            assert count == len(self.hidden.pop(key)), "all of a window are told at once, and each once"
        assert all(self.now - times[0] < POLICY.window_us for times in self.hidden.values()), "none is told late"

    @rule(key=st.sampled_from("abcdef"))
    def something_happens(self, key: str) -> None:
        if not self.machine.has_room_for(key):
            return
        if self.machine.is_shown(key, Micros(self.now)):
            assert key not in self.hidden, "what comes after a hidden one is hidden"
            self.shown.setdefault(key, []).append(self.now)
        else:
            self.hidden.setdefault(key, []).append(self.now)
            shown = [when for when in self.shown[key] if self.now - when < POLICY.window_us]
            assert len(shown) >= POLICY.shown, "nothing is hidden before enough were shown"

    @invariant()
    def few_of_a_subject_are_shown(self) -> None:
        for times in self.shown.values():
            late = [when for when in times if self.now - when < POLICY.window_us]
            assert len(late) <= 2 * POLICY.shown  # of one window that ends, and of the next

    @invariant()
    def what_is_counted_has_an_end_and_a_bound(self) -> None:
        deadline = self.machine.deadline()
        assert deadline is not None or not self.hidden
        assert deadline is None or self.now < deadline <= self.now + POLICY.window_us
        counted = [key for key in "abcdef" if self.machine.has_room_for(key)]
        assert len(counted) in (6, POLICY.capacity)

    def teardown(self) -> None:
        told = self.machine.take_due(Micros(self.now + POLICY.window_us))
        assert {key: len(times) for key, times in self.hidden.items()} == dict(told)
        assert self.machine.deadline() is None


TestFoldingInAnyOrder = FoldingInAnyOrder.TestCase
