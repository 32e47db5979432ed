"""Which relays keep a place for us."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.reservations import (
    Candidate,
    CandidatesChanged,
    DeadlinePassed,
    Effect,
    NeedChanged,
    RelayLost,
    RelaysChanged,
    ReservationPolicy,
    ReservationsMachine,
    Reserve,
    Reserved,
    ReserveFailed,
)

A, B, C = (PeerId(name) for name in "abc")
POLICY = ReservationPolicy(
    kept=2, retry_first_us=10, retry_longest_us=1000, retry_lost_longest_us=40, remembered_us=5000
)
ALL = (Candidate(A, "n1"), Candidate(B, "n1", is_announced=True), Candidate(C, "n2"))
LIFE = 1_000_000


def needing(*candidates: Candidate) -> tuple[ReservationsMachine, tuple[Effect, ...]]:
    machine = ReservationsMachine(1, POLICY)
    machine.handle(CandidatesChanged(candidates), Micros(0))
    return machine, machine.handle(NeedChanged(is_needed=True), Micros(0))


def test_nothing_is_reserved_where_it_is_not_needed() -> None:
    machine = ReservationsMachine(1, POLICY)
    assert machine.handle(CandidatesChanged(ALL), Micros(0)) == ()
    assert machine.deadline() is None


def test_several_are_kept_those_that_say_they_relay_first_and_of_different_networks() -> None:
    machine, effects = needing(*ALL)
    assert effects == (Reserve(B), Reserve(C))
    assert machine.handle(Reserved(B, LIFE), Micros(1)) == (RelaysChanged(),)
    assert machine.handle(Reserved(C, LIFE), Micros(1)) == (RelaysChanged(),)
    assert machine.held == (B, C)
    assert machine.left_us(B, Micros(1)) == LIFE


def test_the_operators_relay_comes_before_all() -> None:
    _, effects = needing(*ALL[:2], Candidate(C, "n1", is_told=True))
    assert effects == (Reserve(C), Reserve(B))


def test_a_reservation_is_renewed_at_half_of_its_life_and_kept_meanwhile() -> None:
    machine, _ = needing(ALL[0])
    machine.handle(Reserved(A, LIFE), Micros(0))
    deadline = machine.deadline()
    assert deadline is not None
    assert LIFE * 3 // 8 <= deadline <= LIFE // 2
    assert machine.handle(DeadlinePassed(), deadline) == (Reserve(A),)
    assert machine.held == (A,)
    assert machine.handle(Reserved(A, LIFE), Micros(deadline + 1)) == ()
    assert machine.left_us(A, Micros(deadline + 1)) == LIFE


def test_one_that_is_not_renewed_is_given_up_at_its_end() -> None:
    machine, _ = needing(ALL[0])
    machine.handle(Reserved(A, 100), Micros(0))
    machine.handle(DeadlinePassed(), Micros(50))
    assert machine.handle(DeadlinePassed(), Micros(100)) == (RelaysChanged((A,)),)
    assert machine.held == ()
    machine.handle(ReserveFailed(A), Micros(100))
    deadline = machine.deadline()
    assert deadline is not None
    assert machine.handle(DeadlinePassed(), deadline) == (Reserve(A),)


def test_another_takes_the_place_of_one_that_refuses() -> None:
    machine, _ = needing(*ALL)
    assert machine.handle(ReserveFailed(B), Micros(1)) == (Reserve(A),)


def test_the_only_relay_is_tried_again_soon_after_it_was_lost_though_nobody_sees_it() -> None:
    machine, _ = needing(ALL[0])
    machine.handle(Reserved(A, LIFE), Micros(0))
    assert machine.handle(RelayLost(A), Micros(100)) == (RelaysChanged((A,)),)
    machine.handle(CandidatesChanged(()), Micros(101))
    assert machine.is_relay(A)
    now = Micros(101)
    waits = []
    for _ in range(8):
        deadline = machine.deadline()
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert machine.handle(DeadlinePassed(), now) == (Reserve(A),)
        machine.handle(ReserveFailed(A), now)
    assert waits[0] <= 10
    assert max(waits) <= 40
    machine.handle(DeadlinePassed(), deadline := machine.deadline() or now)
    machine.handle(Reserved(A, LIFE), Micros(deadline + 1))
    assert machine.held == (A,)


def test_one_that_was_lost_long_ago_is_forgotten() -> None:
    machine, _ = needing(ALL[0])
    machine.handle(Reserved(A, LIFE), Micros(0))
    machine.handle(RelayLost(A), Micros(1))
    machine.handle(CandidatesChanged(()), Micros(6000))
    assert not machine.is_relay(A)
    assert machine.deadline() is None


def test_an_answer_that_nobody_waits_for_counts_for_nothing() -> None:
    machine, _ = needing(ALL[0])
    assert machine.handle(Reserved(B, LIFE), Micros(1)) == ()
    assert machine.held == ()
    machine.handle(Reserved(A, 0), Micros(1))
    assert machine.held == ()


def test_what_is_not_needed_any_more_lapses() -> None:
    machine, _ = needing(ALL[0])
    machine.handle(Reserved(A, 100), Micros(0))
    machine.handle(NeedChanged(is_needed=False), Micros(1))
    assert machine.deadline() == 100
    assert machine.handle(DeadlinePassed(), Micros(100)) == (RelaysChanged((A,)),)
    assert machine.deadline() is None


PEERS = [PeerId(f"p{number}") for number in range(6)]


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = ReservationsMachine(
            3, ReservationPolicy(kept=2, retry_first_us=10, capacity=4, remembered_us=500)
        )
        self.now = Micros(0)
        self.asked: set[PeerId] = set()

    def tell(self, event: object) -> None:
        before = self.machine.held
        effects = self.machine.handle(event, self.now)  # type: ignore[arg-type]
        changes = [effect for effect in effects if isinstance(effect, RelaysChanged)]
        lost = tuple(peer for peer in before if peer not in self.machine.held)
        assert changes == ([RelaysChanged(lost)] if before != self.machine.held else [])
        for effect in effects:
            if isinstance(effect, Reserve):
                assert effect.peer not in self.asked, "asked twice at once"
                self.asked.add(effect.peer)

    @rule(chosen=st.sets(st.sampled_from(PEERS)), told=st.booleans())
    def candidates(self, chosen: set[PeerId], told: bool) -> None:
        self.tell(CandidatesChanged(tuple(Candidate(peer, peer[-1], is_told=told) for peer in sorted(chosen))))

    @rule(is_needed=st.booleans())
    def need(self, is_needed: bool) -> None:
        self.tell(NeedChanged(is_needed))

    @rule(passed=st.integers(0, 300))
    def wait(self, passed: int) -> None:
        self.now = Micros(self.now + passed)
        self.tell(DeadlinePassed())

    @rule(peer=st.sampled_from(PEERS), life=st.integers(-5, 400))
    def grant(self, peer: PeerId, life: int) -> None:
        self.asked.discard(peer)
        self.tell(Reserved(peer, life))

    @rule(peer=st.sampled_from(PEERS))
    def fail(self, peer: PeerId) -> None:
        self.asked.discard(peer)
        self.tell(ReserveFailed(peer))

    @rule(peer=st.sampled_from(PEERS))
    def lose(self, peer: PeerId) -> None:
        self.tell(RelayLost(peer))

    @invariant()
    def holds(self) -> None:
        assert len(self.machine.held) <= 2
        assert len(self.machine._relays) <= 12
        assert all(self.machine.left_us(peer, self.now) > 0 for peer in self.machine.held)
        deadline = self.machine.deadline()
        assert deadline is None or deadline > self.now


TestAnyOrder = AnyOrder.TestCase
