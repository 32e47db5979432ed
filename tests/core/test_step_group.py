"""Rows of several sequences go round together, nobody is forgotten, and nobody waits for ever."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pmesh.base.quantities import Micros
from p2pmesh.core.batching import SequenceKey
from p2pmesh.core.step_group import FIRST_STEP_US, MOST_WAIT_US, StepGroup, share_machine
from p2pmesh.wire.stage import FrameKind, StageFrame


def key(number: int) -> SequenceKey:
    return (number.to_bytes(16, "big"), 0)


def row(number: int, position: int = 0) -> StageFrame:
    return StageFrame(FrameKind.DECODE, key(number)[0], bytes(16), 0, position, (1,))


def gone(frames: tuple[StageFrame, ...]) -> list[int]:
    return [int.from_bytes(frame.request_id, "big") for frame in frames]


def test_a_sequence_alone_waits_for_nobody() -> None:
    group = StepGroup()
    for step in range(5):
        assert gone(group.take(row(1, step), Micros(step))) == [1]
        assert group.deadline() is None


def test_those_that_went_together_go_together_again() -> None:
    group = StepGroup()
    group.take(row(1), Micros(0))
    assert group.take(row(2), Micros(10)) == ()  # the first one is on its way
    assert gone(group.take(row(1), Micros(20))) == [2, 1]
    assert group.take(row(1), Micros(30)) == ()
    assert gone(group.take(row(2), Micros(31))) == [1, 2]


def test_whoever_is_over_is_waited_for_no_more() -> None:
    group = StepGroup()
    group.take(row(1), Micros(0))
    group.take(row(2), Micros(1))
    group.take(row(3), Micros(2))
    assert gone(group.leave(key(1), Micros(3))) == [2, 3]
    assert group.leave(key(2), Micros(4)) == ()
    assert group.leave(key(3), Micros(5)) == ()
    assert gone(group.take(row(4), Micros(6))) == [4]
    assert group.leave(key(9), Micros(7)) == ()


def test_a_row_of_a_sequence_that_is_over_goes_nowhere() -> None:
    group = StepGroup()
    group.take(row(1), Micros(0))
    group.take(row(2), Micros(1))
    group.leave(key(2), Micros(2))
    assert gone(group.take(row(1), Micros(3))) == [1]


@pytest.mark.parametrize("step_us", [1_000, 10_000_000])
def test_a_sequence_that_does_not_come_back_is_waited_for_twice_a_step_at_most(step_us: int) -> None:
    group, now = StepGroup(), 0
    for _ in range(40):
        group.take(row(1), Micros(now))
        now += step_us
    assert gone(group.take(row(1), Micros(now))) == [1]
    assert group.take(row(2), Micros(now)) == ()
    due = group.deadline()
    assert due is not None
    assert due - now <= min(MOST_WAIT_US, 2 * step_us + 2)
    assert group.expire(Micros(due - 1)) == ()
    assert gone(group.expire(due)) == [2]
    assert group.expire(due) == ()


def test_of_the_first_steps_nothing_is_known() -> None:
    group = StepGroup()
    group.take(row(1), Micros(0))
    group.take(row(2), Micros(7))
    assert group.deadline() == 7 + 2 * FIRST_STEP_US


@pytest.mark.parametrize(
    ("each", "is_one"),
    [
        ([["/ip4/127.0.0.1/tcp/1"], ["/ip4/127.0.0.1/tcp/2/p2p/x"]], True),
        ([["/ip6/::1/tcp/1", "/ip4/10.0.0.1/tcp/1"], ["/ip4/10.0.0.1/tcp/2", "/ip6/::1/tcp/1"]], True),
        ([["/ip4/10.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1"], ["/ip4/10.0.0.1/tcp/1"]], False),
        ([["/ip4/10.0.0.1/tcp/1"], ["/dns4/10.0.0.1/tcp/1"]], False),
        ([["/ip4/127.0.0.1/tcp/1"], []], False),
        ([[], []], False),
        ([], False),
    ],
)
def test_one_machine_has_the_same_hosts(each: list[list[str]], is_one: bool) -> None:
    assert share_machine(each) is is_one


class AnyOrder(RuleBasedStateMachine):
    """Each sequence has one row, which waits or travels; the stages answer in any order, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.group = StepGroup()
        self.now = 0
        self.waiting: set[int] = set()
        self.travelling: set[int] = set()

    def _note(self, frames: tuple[StageFrame, ...]) -> None:
        numbers = gone(frames)
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) == (self.waiting if numbers else set())
        self.travelling |= set(numbers)
        self.waiting -= set(numbers)

    @rule(number=st.integers(0, 5), passed=st.integers(0, 100_000))
    def a_row_is_due(self, number: int, passed: int) -> None:
        if number in self.waiting:
            return
        self.now += passed
        self.travelling.discard(number)
        self.waiting.add(number)
        self._note(self.group.take(row(number), Micros(self.now)))

    @rule(number=st.integers(0, 5))
    def one_is_over(self, number: int) -> None:
        self.travelling.discard(number)
        self.waiting.discard(number)
        self._note(self.group.leave(key(number), Micros(self.now)))

    @precondition(lambda self: self.group.deadline() is not None)
    @rule()
    def time_passes(self) -> None:
        due = self.group.deadline()
        assert due is not None
        self.now = max(self.now, due)
        self._note(self.group.expire(Micros(self.now)))
        assert not self.waiting

    @invariant()
    def who_waits_waits_for_somebody_and_not_for_ever(self) -> None:
        assert not self.waiting or self.travelling
        assert bool(self.waiting) == (self.group.deadline() is not None)
        assert self.waiting.isdisjoint(self.travelling)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
