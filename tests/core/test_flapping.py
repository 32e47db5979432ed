"""Who connects again too often."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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


class FlappingInAnyOrder(RuleBasedStateMachine):
    """Against buckets of tokens, which say the same by other means: full at first, one token an admission."""

    policy = FlappingPolicy(burst=3, refill_us=10, capacity=3)

    def __init__(self) -> None:
        super().__init__()
        self.machine = FlappingMachine(self.policy)
        self.now = 0
        self.whole = self.policy.burst * self.policy.refill_us
        self.buckets: dict[str, tuple[int, int]] = {}
        """What was in it at a time; ``refill_us`` of it is a token."""
        self.counted: list[str] = []

    def bucket_of(self, peer: str) -> int:
        """What is in it now; whole where so many others came since that the peer is forgotten."""
        turns = [turn for turn, other in enumerate(self.counted) if other == peer]
        if not turns or len({*self.counted[turns[-1] + 1 :]}) >= self.policy.capacity:
            return self.whole
        held, since = self.buckets[peer]
        return min(self.whole, held + self.now - since)

    @rule(later=st.integers(0, 25))
    def time_passes(self, later: int) -> None:
        self.now += later

    @rule(peer=st.sampled_from("abcde"), times=st.integers(1, 5))
    def one_is_admitted(self, peer: str, times: int) -> None:
        for _ in range(times):
            held = self.bucket_of(peer)
            is_excess = held < self.policy.refill_us
            assert self.machine.is_excess(PeerId(peer), Micros(self.now)) == is_excess
            self.buckets[peer] = (held if is_excess else held - self.policy.refill_us, self.now)
            self.counted.append(peer)

    @invariant()
    def no_more_are_kept_than_there_is_room_for(self) -> None:
        assert len(self.machine._used_until) <= self.policy.capacity


TestFlappingInAnyOrder = FlappingInAnyOrder.TestCase
