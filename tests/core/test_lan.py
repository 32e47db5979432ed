"""Whom a node meets of those it sees on its link."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, micros
from p2pmesh.core.lan import DeadlinePassed, Gone, LanMachine, LanPolicy, Meet, Met, Missed, Sighted

A, B = PeerId("a"), PeerId("b")
HERE, THERE = ("/ip4/10.0.0.1/tcp/1",), ("/ip4/10.0.0.2/tcp/1",)


def test_who_is_sighted_is_met_at_once_and_once() -> None:
    machine = LanMachine()
    assert machine.handle(Sighted(A, HERE), micros(0)) == (Meet(A, HERE),)
    assert machine.handle(Sighted(A, HERE), micros(1)) == ()


def test_who_does_not_answer_is_tried_ever_more_rarely() -> None:
    machine = LanMachine()
    now = micros(0)
    machine.handle(Sighted(A, HERE), now)
    pauses = []
    for _ in range(8):
        machine.handle(Missed(A), now)
        deadline = machine.deadline()
        assert deadline is not None
        pauses.append((deadline - now) // MICROS_PER_SECOND)
        now = deadline
        assert machine.handle(DeadlinePassed(), now) == (Meet(A, HERE),)
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_met_peer_is_looked_at_again_at_its_newest_address() -> None:
    machine = LanMachine()
    machine.handle(Sighted(A, HERE), micros(0))
    machine.handle(Met(A), micros(1))
    assert machine.handle(Sighted(A, THERE), micros(2)) == ()
    assert machine.deadline() == micros(31)
    assert machine.handle(DeadlinePassed(), micros(31)) == (Meet(A, THERE),)


def test_who_left_is_forgotten() -> None:
    machine = LanMachine()
    machine.handle(Sighted(A, HERE), micros(0))
    machine.handle(Gone(A), micros(1))
    assert machine.handle(Missed(A), micros(2)) == ()
    assert (machine.deadline(), machine.size) == (None, 0)


def test_only_so_many_at_once() -> None:
    machine = LanMachine(LanPolicy(at_once=1))
    machine.handle(Sighted(A, HERE), micros(0))
    assert machine.handle(Sighted(B, HERE), micros(0)) == ()
    assert machine.deadline() is None
    assert machine.handle(Met(A), micros(1)) == (Meet(B, HERE),)


POLICY = LanPolicy(capacity=5, at_once=2, first_pause_us=10, longest_pause_us=40, look_again_us=30)
PEERS = st.sampled_from([PeerId(f"p{n}") for n in range(8)])


class AnyOrder(RuleBasedStateMachine):
    """Sightings and outcomes in any order, at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = LanMachine(POLICY)
        self.now = 0
        self.meeting: set[PeerId] = set()
        self.last: dict[PeerId, int] = {}
        self.gone_since: set[PeerId] = set()

    def handle(self, event: Sighted | Gone | Met | Missed | DeadlinePassed) -> None:
        for effect in self.machine.handle(event, Micros(self.now)):
            assert effect.peer not in self.meeting
            if effect.peer in self.last and effect.peer not in self.gone_since:
                assert self.now - self.last[effect.peer] >= POLICY.first_pause_us
            self.meeting.add(effect.peer)
            self.last[effect.peer] = self.now
            self.gone_since.discard(effect.peer)

    @rule(peer=PEERS, address=st.sampled_from([HERE, THERE]))
    def sight(self, peer: PeerId, address: tuple[str, ...]) -> None:
        self.handle(Sighted(peer, address))

    @rule(peer=PEERS)
    def go(self, peer: PeerId) -> None:
        self.meeting.discard(peer)
        self.gone_since.add(peer)
        self.handle(Gone(peer))

    @rule(peer=PEERS, is_met=st.booleans())
    def end(self, peer: PeerId, is_met: bool) -> None:
        if peer in self.meeting:
            self.meeting.discard(peer)
            self.last[peer] = self.now
            self.handle(Met(peer) if is_met else Missed(peer))

    @rule(time=st.integers(0, 50))
    def wait(self, time: int) -> None:
        self.now += time
        self.handle(DeadlinePassed())

    @rule()
    def wake(self) -> None:
        deadline = self.machine.deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)
            before = len(self.meeting)
            self.handle(DeadlinePassed())
            assert len(self.meeting) > before

    @invariant()
    def is_bounded(self) -> None:
        assert self.machine.size <= POLICY.capacity
        assert len(self.meeting) <= POLICY.at_once


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
