"""When records are told."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.quantities import Micros
from p2pmesh.core.records import (
    DeadlinePassed,
    Effect,
    KeysChanged,
    Provide,
    RecordsMachine,
    RecordsPolicy,
    StopProviding,
    Told,
    is_dialable,
)
from p2pmesh.wire.records import RecordKey

A, B, C = (RecordKey(name * 32) for name in (b"a", b"b", b"c"))
POLICY = RecordsPolicy(repeat_us=1000, jitter_percent=10, retry_us=100, spacing_us=10, at_once=2, max_keys=3)


def machine() -> RecordsMachine:
    return RecordsMachine(1, POLICY)


def test_what_is_new_is_told_at_once_one_after_the_other() -> None:
    records = machine()
    assert records.handle(KeysChanged((A, B, C)), Micros(0)) == (Provide(A),)
    assert records.deadline() == 10
    assert records.handle(DeadlinePassed(), Micros(9)) == ()
    assert records.handle(DeadlinePassed(), Micros(10)) == (Provide(B),)
    assert records.deadline() is None  # two are on their way
    assert records.handle(Told(A, 1), Micros(11)) == ()
    assert records.deadline() == 20
    assert records.handle(DeadlinePassed(), Micros(20)) == (Provide(C),)


def test_a_record_is_told_again_before_it_ends_and_soon_if_nobody_took_it() -> None:
    records = machine()
    records.handle(KeysChanged((A,)), Micros(0))
    records.handle(Told(A, 0), Micros(5))
    assert records.deadline() == 105
    assert records.handle(DeadlinePassed(), Micros(105)) == (Provide(A),)
    records.handle(Told(A, 2), Micros(110))
    deadline = records.deadline()
    assert deadline is not None
    assert 1010 <= deadline <= 1110


def test_repeats_of_different_nodes_drift_apart() -> None:
    deadlines = set()
    for seed in range(20):
        records = RecordsMachine(seed, POLICY)
        records.handle(KeysChanged((A,)), Micros(0))
        records.handle(Told(A, 1), Micros(0))
        deadlines.add(records.deadline())
    assert len(deadlines) > 4


def test_what_is_gone_is_taken_back_also_while_it_is_told() -> None:
    records = machine()
    records.handle(KeysChanged((A, B)), Micros(0))
    assert records.handle(KeysChanged((B,)), Micros(1)) == (StopProviding(A),)
    assert records.handle(Told(A, 3), Micros(2)) == ()
    assert records.keys == (B,)
    assert records.handle(DeadlinePassed(), Micros(10)) == (Provide(B),)


def test_the_least_useful_beyond_the_bound_are_left_out() -> None:
    records = machine()
    records.handle(KeysChanged((A, B, A, C, RecordKey(b"d" * 32))), Micros(0))
    assert records.keys == (A, B, C)


def test_nothing_to_provide_needs_no_deadline() -> None:
    records = machine()
    assert records.deadline() is None
    assert records.handle(KeysChanged(()), Micros(0)) == ()
    assert records.handle(Told(A, 1), Micros(0)) == ()


@pytest.mark.parametrize(
    ("dialled_by", "admitted", "is_so"),
    [
        (0, 0, False),
        (0, 3, False),
        (1, 1, True),
        (1, 3, True),
        (1, 4, False),
        (2, 7, True),
        (2, 9, False),
        (3, 99, True),
    ],
)
def test_a_node_is_dialable_when_three_have_dialled_it_or_one_of_a_few(
    dialled_by: int, admitted: int, *, is_so: bool
) -> None:
    assert is_dialable(dialled_by, admitted) is is_so


class Records(RuleBasedStateMachine):
    """Any changes, answers in any order, waits of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.records = machine()
        self.now = 0
        self.wanted: tuple[RecordKey, ...] = ()
        self.telling: list[RecordKey] = []
        self.told_at: list[int] = []

    def apply(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Provide):
                assert effect.key in self.wanted
                assert effect.key not in self.telling
                self.telling.append(effect.key)
                self.told_at.append(self.now)
            else:
                assert effect.key not in self.wanted

    @rule(names=st.lists(st.integers(0, 6), max_size=5))
    def change(self, names: list[int]) -> None:
        keys = tuple(dict.fromkeys(RecordKey(bytes([name]) * 32) for name in names))
        self.wanted = keys[: POLICY.max_keys]
        self.apply(self.records.handle(KeysChanged(keys), Micros(self.now)))

    @rule(index=st.integers(0, 5), taken=st.integers(0, 2))
    def answer(self, index: int, taken: int) -> None:
        if self.telling:
            key = self.telling.pop(index % len(self.telling))
            self.apply(self.records.handle(Told(key, taken), Micros(self.now)))

    @rule(us=st.integers(0, 400))
    def wait(self, us: int) -> None:
        self.now += us
        self.apply(self.records.handle(DeadlinePassed(), Micros(self.now)))

    @invariant()
    def bounds_hold(self) -> None:
        assert self.records.keys == self.wanted
        assert len(self.telling) <= POLICY.at_once
        assert all(b - a >= POLICY.spacing_us for a, b in zip(self.told_at, self.told_at[1:], strict=False))
        deadline = self.records.deadline()
        assert deadline is None or deadline > self.now - 1


TestRecords = Records.TestCase
