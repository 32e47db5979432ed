"""What is known of other peers: freshness, expiry, capacity, echoes of the lost."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.membership import (
    AnnouncementReceived,
    DeadlinePassed,
    Effect,
    Event,
    MembershipMachine,
    PeerChanged,
    PeerForgotten,
    PeerJoined,
    PeerLost,
)
from p2pmesh.wire.announcement import Announcement, ServedModel

ME, A, B, C, D = (PeerId(name) for name in ("me", "a", "b", "c", "d"))
MODEL = ServedModel("m", "0" * 64, bytes(16), 1, 4096)


def said(
    peer: PeerId, sequence: int = 1, incarnation: int = 1, free: int = 5, lives_us: int = 100, models: int = 0
) -> AnnouncementReceived:
    announcement = Announcement(
        peer, "0" * 32, "name", "1", incarnation, sequence, 0, (), 10, free, (MODEL,) * models
    )  # fmt: skip
    return AnnouncementReceived(announcement, lives_us)


def feed(machine: MembershipMachine, *events: Event, at: int = 0) -> list[Effect]:
    return [effect for event in events for effect in machine.handle(event, Micros(at))]


def test_a_peer_joins_with_its_first_announcement() -> None:
    machine = MembershipMachine(ME)
    assert feed(machine, said(B), said(A)) == [PeerJoined(B), PeerJoined(A)]
    assert [known.peer_id for known in machine.announcements()] == [A, B]
    assert machine.find(A) == said(A).announcement
    assert machine.find(C) is None


def test_a_node_learns_nothing_of_itself() -> None:
    assert feed(MembershipMachine(ME), said(ME)) == []


def test_an_announcement_that_has_expired_on_its_way_says_nothing() -> None:
    machine = MembershipMachine(ME)
    assert feed(machine, said(A, lives_us=0), said(B, lives_us=-5)) == []
    assert machine.announcements() == ()


def test_only_fresher_announcements_count_and_an_incarnation_outranks_any_sequence() -> None:
    machine = MembershipMachine(ME)
    feed(machine, said(A, sequence=7))
    assert feed(machine, said(A, sequence=7, free=1), said(A, sequence=6, free=1)) == []
    assert feed(machine, said(A, sequence=0, incarnation=2)) == [PeerChanged(A)]
    assert feed(machine, said(A, sequence=99, incarnation=1, free=1)) == []


def test_a_repetition_lives_on_but_is_no_change() -> None:
    machine = MembershipMachine(ME)
    feed(machine, said(A))
    assert feed(machine, said(A, sequence=2), at=50) == []
    assert feed(machine, DeadlinePassed(), at=100) == []
    assert machine.deadline() == 150
    assert feed(machine, DeadlinePassed(), at=150) == [PeerForgotten(A)]


def test_models_memory_and_addresses_are_changes() -> None:
    machine = MembershipMachine(ME)
    feed(machine, said(A))
    assert feed(machine, said(A, sequence=2, models=1), said(A, sequence=3, free=4, models=1)) == [PeerChanged(A)] * 2
    moved = said(A, sequence=4, free=4, models=1)
    moved = replace(moved, announcement=replace(moved.announcement, addresses=("/ip4/1.2.3.4",)))
    assert feed(machine, moved) == [PeerChanged(A)]


def test_silence_until_the_expiry_forgets_a_peer() -> None:
    machine = MembershipMachine(ME)
    assert machine.deadline() is None
    feed(machine, said(B, lives_us=300), said(A, lives_us=100))
    assert machine.deadline() == 100
    assert feed(machine, DeadlinePassed(), at=99) == []
    assert feed(machine, DeadlinePassed(), at=100) == [PeerForgotten(A)]
    assert machine.deadline() == 300
    assert feed(machine, DeadlinePassed(), at=300) == [PeerForgotten(B)]
    assert machine.deadline() is None


def test_a_full_table_takes_no_new_peers_but_keeps_up_with_those_it_has() -> None:
    machine = MembershipMachine(ME, capacity=2)
    feed(machine, said(A), said(B))
    assert feed(machine, said(C), said(B, sequence=2, free=1)) == [PeerChanged(B)]
    feed(machine, PeerLost(A))
    assert feed(machine, said(C)) == [PeerJoined(C)]


def test_a_lost_peer_is_forgotten_and_its_echoes_do_not_bring_it_back() -> None:
    machine = MembershipMachine(ME)
    feed(machine, said(A, sequence=5))
    assert feed(machine, PeerLost(A), PeerLost(A), PeerLost(B)) == [PeerForgotten(A)]
    assert feed(machine, said(A, sequence=5), said(A, sequence=4)) == []
    assert feed(machine, said(A, sequence=6)) == [PeerJoined(A)]
    feed(machine, PeerLost(A))
    assert feed(machine, said(A, sequence=0, incarnation=2)) == [PeerJoined(A)]


def test_memory_of_lost_peers_is_bounded_and_gives_up_the_oldest() -> None:
    machine = MembershipMachine(ME, capacity=2)
    for peer in (C, A, B):
        feed(machine, said(peer), PeerLost(peer))
    assert feed(machine, said(A), said(B)) == []
    assert feed(machine, said(C)) == [PeerJoined(C)]


PEERS = (ME, A, B, C, D)
CAPACITY = 3


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Held against what the effects tell."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = MembershipMachine(ME, CAPACITY)
        self.now = 0
        self.known: set[str] = set()
        self.freshest: dict[str, tuple[int, int]] = {}
        self.due: dict[str, int] = {}
        self.losses: list[str] = []

    @rule(
        peer=st.sampled_from(PEERS), incarnation=st.integers(1, 2), sequence=st.integers(1, 9),
        lives_us=st.integers(-1, 200), free=st.integers(0, 1), wait=st.integers(0, 50),
    )  # fmt: skip
    def an_announcement_arrives(
        self, peer: PeerId, incarnation: int, sequence: int, lives_us: int, free: int, wait: int
    ) -> None:
        self.now += wait
        event = said(peer, sequence, incarnation, free, lives_us)
        effects = self.machine.handle(event, Micros(self.now))
        assert all(effect.peer == peer for effect in effects)
        if PeerJoined(peer) in effects:
            assert peer not in self.known
            self.known.add(peer)
        held = self.machine.find(peer)
        if held is not None and held is event.announcement:
            assert (incarnation, sequence) > self.freshest.get(peer, (0, 0))
            self.freshest[peer] = (incarnation, sequence)
            self.due[peer] = self.now + lives_us

    @rule(peer=st.sampled_from(PEERS))
    def a_peer_is_lost(self, peer: PeerId) -> None:
        effects = self.machine.handle(PeerLost(peer), Micros(self.now))
        assert effects == ((PeerForgotten(peer),) if peer in self.known else ())
        self.known.discard(peer)
        if effects:
            self.losses.append(peer)
        for old in self.losses[:-CAPACITY]:  # the memory of losses is bounded: older ones may come back as echoes
            if old not in self.losses[-CAPACITY:] and old not in self.known:
                self.freshest.pop(old, None)

    @rule(wait=st.integers(0, 150))
    def the_deadline_comes(self, wait: int) -> None:
        self.now += wait
        effects = self.machine.handle(DeadlinePassed(), Micros(self.now))
        late = [peer for peer in sorted(self.known) if self.due[peer] <= self.now]
        assert [effect.peer for effect in effects] == late
        for peer in late:
            self.known.discard(peer)
            del self.freshest[peer]

    @invariant()
    def the_table_is_bounded_and_is_what_the_effects_tell(self) -> None:
        assert self.machine.known_count == len(self.known) <= CAPACITY
        assert [known.peer_id for known in self.machine.announcements()] == sorted(self.known)
        assert ME not in self.known

    @invariant()
    def the_deadline_is_never_after_the_earliest_expiry(self) -> None:
        deadline = self.machine.deadline()
        if self.known:
            assert deadline is not None
            assert deadline <= min(self.due[peer] for peer in self.known)


AnyOrderOfEvents.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
