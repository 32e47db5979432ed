"""Quarantine, admission, loss."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.admission import (
    AdmissionMachine,
    AdmissionPolicy,
    Admit,
    Connected,
    DeadlinePassed,
    Disconnected,
    Drop,
    Effect,
    Event,
    HelloAccepted,
    HelloRefused,
    Lose,
    PutOut,
)

POLICY = AdmissionPolicy(hello_us=100, max_unadmitted=3, max_admitted=4)
A, B, C, D, E, F = (PeerId(letter) for letter in "abcdef")
FOREIGN = ErrorCode.INVITE_FOREIGN


def feed(machine: AdmissionMachine, *events: Event, at: int = 0) -> list[Effect]:
    return [effect for event in events for effect in machine.handle(event, Micros(at))]


def test_a_peer_is_admitted_by_an_accepted_hello_and_not_by_a_connection() -> None:
    machine = AdmissionMachine(POLICY)
    assert feed(machine, Connected(A)) == []
    assert not machine.is_admitted(A)
    assert feed(machine, HelloAccepted(A)) == [Admit(A)]
    assert machine.is_admitted(A)
    assert machine.deadline() is None


def test_a_hello_may_be_checked_before_the_connection_is_reported() -> None:
    machine = AdmissionMachine(POLICY)
    assert feed(machine, HelloAccepted(A), Connected(A)) == [Admit(A)]
    assert machine.deadline() is None


def test_a_refused_hello_costs_the_connection() -> None:
    machine = AdmissionMachine(POLICY)
    assert feed(machine, Connected(A), HelloRefused(A, FOREIGN)) == [Drop(A, FOREIGN)]
    assert machine.deadline() is None


def test_whoever_is_put_out_is_lost_and_dropped_and_may_come_again() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, Connected(A), HelloAccepted(A))
    assert feed(machine, PutOut(A, FOREIGN)) == [Lose(A), Drop(A, FOREIGN)]
    assert not machine.is_admitted(A)
    assert feed(machine, PutOut(B, FOREIGN)) == [Drop(B, FOREIGN)]
    assert feed(machine, Disconnected(A), Connected(A), HelloAccepted(A)) == [Admit(A)]


def test_a_refused_second_hello_does_not_evict() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, Connected(A), HelloAccepted(A))
    assert feed(machine, HelloRefused(A, FOREIGN)) == []
    assert machine.is_admitted(A)


def test_a_second_hello_and_a_second_connection_say_nothing_new() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, Connected(A), HelloAccepted(A))
    assert feed(machine, HelloAccepted(A), Connected(A)) == []


def test_a_silent_peer_is_dropped_at_its_own_deadline() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, Connected(B), at=10)
    feed(machine, Connected(A), Connected(C), at=20)
    feed(machine, Connected(B), at=50)  # does not buy time
    assert machine.deadline() == 110
    assert feed(machine, DeadlinePassed(), at=109) == []
    assert feed(machine, DeadlinePassed(), at=110) == [Drop(B, ErrorCode.DEADLINE_EXCEEDED)]
    assert machine.deadline() == 120
    late = ErrorCode.DEADLINE_EXCEEDED
    assert feed(machine, DeadlinePassed(), at=500) == [Drop(A, late), Drop(C, late)]


def test_silent_peers_are_bounded_and_admitted_ones_do_not_count_among_them() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, Connected(A), HelloAccepted(A), Connected(B), Connected(C), Connected(D))
    assert feed(machine, Connected(E)) == [Drop(B, ErrorCode.OVERLOADED)]
    assert machine.waiting_count == POLICY.max_unadmitted
    feed(machine, Disconnected(C))
    assert feed(machine, Connected(B)) == []


def test_silent_strangers_cannot_keep_a_member_out() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, Connected(B), Connected(C), Connected(D), Connected(E))
    assert feed(machine, HelloAccepted(E)) == [Admit(E)]


def test_admitted_peers_are_bounded() -> None:
    machine = AdmissionMachine(POLICY)
    feed(machine, *(HelloAccepted(peer) for peer in (D, B, C, A)))
    assert machine.admitted() == (D, B, C, A)
    assert feed(machine, HelloAccepted(E)) == [Drop(E, ErrorCode.OVERLOADED)]
    assert feed(machine, Disconnected(B), HelloAccepted(E)) == [Lose(B), Admit(E)]


def test_only_an_admitted_peer_is_lost() -> None:
    machine = AdmissionMachine(POLICY)
    assert feed(machine, Connected(A), Disconnected(A), Disconnected(A)) == []
    assert feed(machine, HelloAccepted(A), Disconnected(A), Disconnected(A)) == [Admit(A), Lose(A)]


PEERS = st.sampled_from([A, B, C, D, E, F])
EVENTS = st.one_of(
    st.builds(Connected, PEERS),
    st.builds(HelloAccepted, PEERS),
    st.builds(HelloRefused, PEERS, st.just(FOREIGN)),
    st.builds(PutOut, PEERS, st.just(FOREIGN)),
    st.builds(Disconnected, PEERS),
    st.builds(DeadlinePassed),
)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Held against a reference that knows only the effects."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = AdmissionMachine(POLICY)
        self.now = 0
        self.admitted: list[PeerId] = []

    @rule(event=EVENTS, wait=st.integers(0, 60))
    def something_happens(self, event: Event, wait: int) -> None:
        self.now += wait
        for effect in self.machine.handle(event, Micros(self.now)):
            match effect:
                case Admit(peer):
                    assert event == HelloAccepted(peer)
                    assert peer not in self.admitted
                    self.admitted.append(peer)
                case Lose(peer):
                    assert event in (Disconnected(peer), PutOut(peer, FOREIGN))
                    self.admitted.remove(peer)
                case Drop(peer):
                    assert peer not in self.admitted

    @invariant()
    def effects_tell_all_there_is_to_know(self) -> None:
        assert self.machine.admitted() == tuple(self.admitted)
        assert [peer for peer in (A, B, C, D, E, F) if self.machine.is_admitted(peer)] == sorted(self.admitted)
        assert len(self.admitted) <= POLICY.max_admitted
        assert self.machine.waiting_count <= POLICY.max_unadmitted
        assert (self.machine.waiting_count == 0) == (self.machine.deadline() is None)

    @invariant()
    def no_quarantine_outlives_its_deadline(self) -> None:
        due = self.machine.deadline()
        assert due is None or due <= self.now + POLICY.hello_us


AnyOrderOfEvents.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
