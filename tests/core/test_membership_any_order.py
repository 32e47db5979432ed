"""The membership machine under any order of events, held against what its effects tell and its rules promise."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.membership import (
    AnnouncementReceived,
    ConnectionLost,
    ConnectionOpened,
    ConnectionParted,
    DeadlinePassed,
    DownReported,
    Effect,
    Event,
    IndirectAnswered,
    LeavingHeard,
    MembershipMachine,
    MembershipPolicy,
    MemberState,
    OutOfEarshot,
    PeerExcluded,
    PeerFailed,
    PeerForgotten,
    PeerJoined,
    PeerLeft,
    PeerRecovered,
    PeerSuspected,
    ProbeAnswered,
    ProbeUnanswered,
    ReportDown,
    SendIndirectProbe,
    SendProbe,
)
from tests.core.test_membership import ME, Said

S = 1_000_000
POLICY = MembershipPolicy(capacity=4, tombstone_us=40 * S, mute_us=60 * S, max_verifications=3)
PEERS = st.sampled_from([PeerId(name) for name in (ME, "a", "b", "c", "d", "e", "f")])
Freshness = tuple[int, int]


class AnyOrderOfEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = MembershipMachine[Said](ME, POLICY, seed=5)
        self.now = 0
        self.live: set[PeerId] = set()
        self.suspects: dict[PeerId, int] = {}
        """When each was last suspected or gave word."""
        self.ended: dict[PeerId, Freshness] = {}
        """How fresh the last word of peers with a tombstone was."""
        self.left: dict[PeerId, int] = {}
        self.probes: list[SendProbe] = []
        self.requests: list[SendIndirectProbe] = []

    def tell(self, event: Event) -> tuple[Effect, ...]:
        before = {peer: self.machine.find(peer) for peer in self.live}
        effects = self.machine.handle(event, Micros(self.now))
        for effect in effects:
            self.note(effect, before)
        return effects

    def note(self, effect: Effect, before: dict[PeerId, Said | None]) -> None:
        match effect:
            case PeerJoined(peer):
                assert peer not in self.live
                self.live.add(peer)
            case PeerFailed(peer) | PeerLeft(peer):
                assert isinstance(effect, PeerLeft) or peer in self.suspects
                self.live.remove(peer)
                self.suspects.pop(peer, None)
                said = before[peer]
                assert said is not None
                self.ended[peer] = (said.incarnation, said.sequence)
            case PeerForgotten(peer):
                self.live.discard(peer)
                self.suspects.pop(peer, None)
                self.ended.pop(peer, None)
                self.left.pop(peer, None)
            case PeerSuspected(peer):
                assert peer in self.live
                assert peer not in self.suspects
                self.suspects[peer] = self.now
            case PeerRecovered(peer):
                del self.suspects[peer]
            case SendProbe():
                self.probes = [*self.probes[-20:], effect]
            case SendIndirectProbe(helper, peer):
                assert helper in before  # it may expire in the same breath
                assert helper not in (ME, peer)
                self.requests = [*self.requests[-20:], effect]
            case ReportDown(peer):
                assert peer in self.suspects or self.machine.state_of(peer) is MemberState.FAILED

    @rule(
        peer=PEERS, incarnation=st.integers(1, 2), sequence=st.integers(1, 9),
        lives_us=st.sampled_from([-1, 5 * S, 100 * S]),
    )  # fmt: skip
    def an_announcement_arrives(self, peer: PeerId, incarnation: int, sequence: int, lives_us: int) -> None:
        held = self.machine.find(peer)
        announcement = Said(peer, incarnation, sequence)
        left = self.left.get(peer, -1)
        ended = self.ended.get(peer)
        effects = self.tell(AnnouncementReceived(announcement, lives_us))
        if self.machine.find(peer) is announcement:
            assert lives_us > 0
            assert held is None or (incarnation, sequence) > (held.incarnation, held.sequence)
            assert ended is None or (incarnation, sequence) > ended
            assert incarnation > left
            self.left.pop(peer, None)
        if peer in self.suspects and self.machine.find(peer) is announcement:
            self.suspects[peer] = self.now
        assert not [e for e in effects if isinstance(e, PeerFailed | PeerLeft | ReportDown)]

    @rule(peer=PEERS)
    def a_connection_opens(self, peer: PeerId) -> None:
        self.tell(ConnectionOpened(peer))
        assert peer not in self.suspects

    @rule(peer=PEERS)
    def a_connection_is_lost(self, peer: PeerId) -> None:
        self.tell(ConnectionLost(peer))

    @rule(peer=PEERS)
    def a_connection_ends_as_agreed(self, peer: PeerId) -> None:
        assert self.tell(ConnectionParted(peer)) == ()

    @rule(data=st.data(), delay=st.integers(0, 2 * S))
    def a_probe_is_answered(self, data: st.DataObject, delay: int) -> None:
        if self.probes:
            probe = data.draw(st.sampled_from(self.probes))
            self.pass_time(delay)
            self.tell(ProbeAnswered(probe.peer, probe.ticket, delay))

    @rule(data=st.data())
    def a_probe_cannot_be_answered(self, data: st.DataObject) -> None:
        if self.probes:
            probe = data.draw(st.sampled_from(self.probes))
            self.tell(ProbeUnanswered(probe.peer, probe.ticket))

    @rule(data=st.data(), is_alive=st.booleans())
    def a_helper_answers(self, data: st.DataObject, is_alive: bool) -> None:
        if self.requests:
            asked = data.draw(st.sampled_from(self.requests))
            self.tell(IndirectAnswered(asked.helper, asked.peer, asked.ticket, is_alive))

    @rule(reporter=PEERS, peer=PEERS, incarnation=st.integers(1, 2))
    def a_report_comes(self, reporter: PeerId, peer: PeerId, incarnation: int) -> None:
        is_muted = self.machine.is_muted(reporter, Micros(self.now))
        state = self.machine.state_of(peer)
        effects = self.tell(DownReported(reporter, peer, incarnation))
        assert self.machine.state_of(peer) is state, "a report is never believed by itself"
        assert not (is_muted and effects)

    @rule(peer=PEERS, incarnation=st.integers(1, 2))
    def a_peer_says_that_it_goes(self, peer: PeerId, incarnation: int) -> None:
        self.tell(LeavingHeard(peer, incarnation))
        if self.machine.state_of(peer) is MemberState.LEFT:
            self.left[peer] = max(incarnation, self.left.get(peer, 0))

    @rule(peer=PEERS)
    def a_peer_is_excluded(self, peer: PeerId) -> None:
        was_live = peer in self.live
        assert (PeerForgotten(peer) in self.tell(PeerExcluded(peer))) == was_live
        assert self.machine.find(peer) is None

    @rule(peer=PEERS)
    def a_peer_is_out_of_earshot(self, peer: PeerId) -> None:
        effects = self.tell(OutOfEarshot(peer))
        assert effects in ((), (PeerForgotten(peer),))

    @rule(wait_us=st.integers(0, 30 * S))
    def time_passes(self, wait_us: int) -> None:
        self.pass_time(wait_us)

    @rule(wait_us=st.integers(0, 30 * S))
    def the_runner_wakes_too_early_or_too_late(self, wait_us: int) -> None:
        self.now += wait_us
        self.tell(DeadlinePassed())
        deadline = self.machine.deadline()
        assert deadline is None or deadline > self.now

    def pass_time(self, wait_us: int) -> None:
        until = self.now + wait_us
        while (due := self.machine.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.tell(DeadlinePassed())
        self.now = until

    @invariant()
    def memory_of_the_gone_is_bounded_so_the_oldest_are_forgotten_without_a_word(self) -> None:
        states = {view.peer: view.state for view in self.machine.views()}
        gone = (MemberState.FAILED, MemberState.LEFT)
        self.ended = {peer: fresh for peer, fresh in self.ended.items() if states.get(peer) in gone}
        self.left = {peer: life for peer, life in self.left.items() if states.get(peer) is MemberState.LEFT}

    @invariant()
    def the_view_is_what_the_effects_tell(self) -> None:
        assert [said.peer_id for said in self.machine.announcements()] == sorted(self.live)
        assert self.machine.live_count == len(self.live) <= POLICY.capacity
        assert self.machine.known_count <= 2 * POLICY.capacity
        assert ME not in self.live
        states = {view.peer: view.state for view in self.machine.views()}
        assert {p for p, state in states.items() if state is MemberState.SUSPECT} == set(self.suspects)
        assert {p for p, state in states.items() if state in (MemberState.ALIVE, MemberState.SUSPECT)} == self.live

    @invariant()
    def a_suspect_fails_in_time_and_something_is_due_while_anybody_is_known(self) -> None:
        deadline = self.machine.deadline()
        assert deadline is not None or self.machine.known_count == 0
        for since in self.suspects.values():
            assert deadline is not None
            # a runner that was itself late still grants a second opinion and its length
            assert deadline <= max(self.now + POLICY.indirect_timeout_us, since + POLICY.suspect_us)


AnyOrderOfEvents.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
