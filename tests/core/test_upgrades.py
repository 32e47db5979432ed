"""Which relayed peers are tried directly, and when."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.upgrades import (
    DeadlinePassed,
    DirectFound,
    PathUpgraded,
    PeerGone,
    Punch,
    PunchFailed,
    RelayedFound,
    UpgradeMachine,
    UpgradePolicy,
)

A, B = PeerId("a"), PeerId("b")
POLICY = UpgradePolicy(waits_us=(10, 100), rare_us=1000, at_once=1, capacity=3)


def test_the_end_that_was_dialled_tries_and_the_other_waits() -> None:
    machine = UpgradeMachine(POLICY)
    machine.handle(RelayedFound(A, is_ours=True), Micros(0))
    machine.handle(RelayedFound(B, is_ours=False), Micros(0))
    assert machine.deadline() == 10
    assert machine.handle(DeadlinePassed(), Micros(10)) == (Punch(A),)
    assert machine.deadline() is None
    assert machine.handle(DirectFound(A), Micros(15)) == (PathUpgraded(A, 15, 1),)
    assert machine.handle(DirectFound(B), Micros(20)) == (PathUpgraded(B, 20, 0),)
    assert machine.relayed == ()


def test_tries_become_rare_and_never_end() -> None:
    machine = UpgradeMachine(POLICY)
    machine.handle(RelayedFound(A, is_ours=True), Micros(0))
    now = Micros(0)
    waits = []
    for _ in range(4):
        deadline = machine.deadline()
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert machine.handle(DeadlinePassed(), now) == (Punch(A),)
        machine.handle(PunchFailed(A), now)
    assert waits == [10, 100, 1000, 1000]


def test_one_at_a_time_the_longest_waiting_first() -> None:
    machine = UpgradeMachine(POLICY)
    machine.handle(RelayedFound(B, is_ours=True), Micros(0))
    machine.handle(RelayedFound(A, is_ours=True), Micros(1))
    assert machine.handle(DeadlinePassed(), Micros(50)) == (Punch(B),)
    assert machine.handle(PunchFailed(B), Micros(60)) == (Punch(A),)


def test_whoever_is_gone_is_forgotten_also_while_it_is_tried() -> None:
    machine = UpgradeMachine(POLICY)
    machine.handle(RelayedFound(A, is_ours=True), Micros(0))
    machine.handle(DeadlinePassed(), Micros(10))
    assert machine.handle(PeerGone(A), Micros(11)) == ()
    assert machine.handle(PunchFailed(A), Micros(12)) == ()
    assert machine.deadline() is None


def test_a_peer_that_was_direct_from_the_first_is_no_news() -> None:
    assert UpgradeMachine(POLICY).handle(DirectFound(A), Micros(0)) == ()


PEERS = [PeerId(f"p{number}") for number in range(5)]


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = UpgradeMachine(UpgradePolicy(waits_us=(10, 50), rare_us=200, at_once=2, capacity=3))
        self.now = Micros(0)
        self.tried: set[PeerId] = set()

    def tell(self, event: object) -> None:
        for effect in self.machine.handle(event, self.now):  # type: ignore[arg-type]
            if isinstance(effect, Punch):
                assert effect.peer not in self.tried
                self.tried.add(effect.peer)
        assert len(self.tried) <= 2

    @rule(peer=st.sampled_from(PEERS), is_ours=st.booleans())
    def relayed(self, peer: PeerId, is_ours: bool) -> None:
        self.tell(RelayedFound(peer, is_ours))

    @rule(peer=st.sampled_from(PEERS))
    def direct(self, peer: PeerId) -> None:
        self.tried.discard(peer)
        self.tell(DirectFound(peer))

    @rule(peer=st.sampled_from(PEERS))
    def gone(self, peer: PeerId) -> None:
        self.tried.discard(peer)
        self.tell(PeerGone(peer))

    @rule(peer=st.sampled_from(PEERS))
    def failed(self, peer: PeerId) -> None:
        self.tried.discard(peer)
        self.tell(PunchFailed(peer))

    @rule(passed=st.integers(0, 300))
    def wait(self, passed: int) -> None:
        self.now = Micros(self.now + passed)
        self.tell(DeadlinePassed())

    @invariant()
    def holds(self) -> None:
        assert len(self.machine.relayed) <= 3
        deadline = self.machine.deadline()
        assert deadline is None or deadline > self.now


TestAnyOrder = AnyOrder.TestCase
