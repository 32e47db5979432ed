"""What is believed of other peers: announcements, probes, suspicion, reports, tombstones."""

from dataclasses import dataclass, replace

import pytest

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.membership import (
    AnnouncementReceived,
    AsymmetryFound,
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
    PeerChanged,
    PeerExcluded,
    PeerFailed,
    PeerForgotten,
    PeerJoined,
    PeerLeft,
    PeerRecovered,
    PeerSuspected,
    ProbeAnswered,
    ProbeUnanswered,
    RefuteSelf,
    ReportDown,
    ReporterMuted,
    SendIndirectProbe,
    SendProbe,
)

ME, A, B, C, D, E = (PeerId(name) for name in ("me", "a", "b", "c", "d", "e"))
S = 1_000_000
LONG_US = 10_000 * S
POLICY = MembershipPolicy()


@dataclass(frozen=True, slots=True)
class Said:
    """All that the machine reads of an announcement, and something it does not."""

    peer_id: str
    incarnation: int = 1
    sequence: int = 1
    models: int = 0


def said(peer: PeerId, sequence: int = 1, incarnation: int = 1, lives_us: int = LONG_US, models: int = 0) -> Event:
    return AnnouncementReceived(Said(peer, incarnation, sequence, models), lives_us)


def new_machine(policy: MembershipPolicy = POLICY) -> MembershipMachine[Said]:
    return MembershipMachine(ME, policy, seed=3, is_change=lambda before, after: before.models != after.models)


class Life:
    """A machine with a clock: deadlines come by themselves, as a runner would have them."""

    def __init__(self, *peers: PeerId, policy: MembershipPolicy = POLICY) -> None:
        self.machine = new_machine(policy)
        self.now = 0
        self.log: list[tuple[int, Effect]] = []
        for peer in peers:
            self.tell(said(peer))
        self.log.clear()

    def tell(self, *events: Event) -> list[Effect]:
        effects = [effect for event in events for effect in self.machine.handle(event, Micros(self.now))]
        self.log += [(self.now, effect) for effect in effects]
        return effects

    def wait(self, seconds: float, answering: tuple[PeerId, ...] = ()) -> list[Effect]:
        """Effects until then; ``answering`` peers answer each probe at once."""
        until = self.now + round(seconds * S)
        effects: list[Effect] = []
        while (due := self.machine.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            before = self.machine.deadline()
            for effect in self.tell(DeadlinePassed()):
                effects.append(effect)
                if isinstance(effect, SendProbe) and effect.peer in answering:
                    effects += self.tell(ProbeAnswered(effect.peer, effect.ticket, 500))
            assert (after := self.machine.deadline()) is None or after > self.now, (before, after)
        self.now = until
        return effects

    def ticket(self, peer: PeerId) -> int:
        """Of the newest probe of a peer."""
        return next(e.ticket for _, e in reversed(self.log) if isinstance(e, SendProbe) and e.peer == peer)

    def until_probed(self, peer: PeerId, answering: tuple[PeerId, ...] = ()) -> int:
        """Lets rounds pass until a peer is probed; its ticket."""
        for _ in range(100):
            due = self.machine.deadline()
            assert due is not None
            for effect in self.wait((due - self.now) / S, tuple(p for p in answering if p != peer)):
                if isinstance(effect, SendProbe) and effect.peer == peer:
                    return effect.ticket
        raise AssertionError(f"{peer} is never probed")

    def times(self, kind: type) -> list[int]:
        """When effects of a kind came."""
        return [when for when, effect in self.log if isinstance(effect, kind)]

    def state(self, peer: PeerId) -> MemberState | None:
        return self.machine.state_of(peer)


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


# --- announcements ------------------------------------------------------------
def test_a_peer_joins_with_its_first_announcement_and_the_machine_keeps_that_object() -> None:
    life = Life()
    announcement = Said(B)
    assert life.tell(AnnouncementReceived(announcement, LONG_US), said(A)) == [PeerJoined(B), PeerJoined(A)]
    assert [known.peer_id for known in life.machine.announcements()] == [A, B]
    assert life.machine.find(B) is announcement
    assert life.machine.find(C) is None
    assert (life.machine.live_count, life.machine.known_count) == (2, 2)
    assert (life.state(A), life.state(C)) == (MemberState.ALIVE, None)


def test_a_node_learns_nothing_of_itself() -> None:
    life = Life()
    assert life.tell(said(ME), ConnectionOpened(ME), ConnectionLost(ME), LeavingHeard(ME, 9)) == []
    assert life.machine.known_count == 0
    assert life.machine.deadline() is None


def test_an_announcement_that_has_expired_on_its_way_says_nothing() -> None:
    life = Life(A)
    assert life.tell(said(B, lives_us=0), said(B, lives_us=-5), said(A, 2, models=1, lives_us=0)) == []
    assert life.machine.find(A) == Said(A)


def test_only_fresher_announcements_count_and_an_incarnation_outranks_any_sequence() -> None:
    life = Life()
    life.tell(said(A, sequence=7))
    assert life.tell(said(A, 7, models=1), said(A, 6, models=1)) == []
    assert life.tell(said(A, sequence=0, incarnation=2)) == [PeerChanged(A)]
    assert life.tell(said(A, sequence=99, incarnation=1, models=1)) == []
    assert life.machine.find(A) == Said(A, 2, 0)


def test_a_repetition_is_no_change_and_what_others_act_on_is_one() -> None:
    life = Life(A)
    assert life.tell(said(A, 2)) == []
    assert life.tell(said(A, 3, models=1)) == [PeerChanged(A)]


def test_without_a_rule_only_a_new_incarnation_is_a_change() -> None:
    machine = MembershipMachine[Said](ME)
    assert machine.handle(said(A), Micros(0)) == (PeerJoined(A),)
    assert machine.handle(said(A, 2, models=5), Micros(0)) == ()
    assert machine.handle(said(A, 1, incarnation=2), Micros(0)) == (PeerChanged(A),)


def test_an_announcement_that_expires_is_forgotten_unless_its_peer_is_connected() -> None:
    life = Life()
    life.tell(said(A, lives_us=30 * S), ConnectionOpened(B), said(B, lives_us=30 * S), said(C))
    told = life.wait(45, answering=(A, B, C))
    assert PeerForgotten(A) in told
    assert PeerForgotten(B) not in told
    assert (life.state(A), life.state(B)) == (None, MemberState.ALIVE)
    assert life.tell(said(A, 1, lives_us=5)) == [PeerJoined(A)]


# --- rounds ---------------------------------------------------------------------
def test_each_pass_probes_every_member_once_in_an_order_that_is_drawn() -> None:
    peers = tuple(PeerId(f"p{n}") for n in range(8))
    life = Life(*peers)
    orders = []
    life.wait(life.machine.deadline() / S - 0.000001)  # type: ignore[operator]
    for _ in range(3):
        probed = [e.peer for e in life.wait(80, peers) if isinstance(e, SendProbe)]
        assert sorted(probed) == sorted(peers)
        orders.append(probed)
    assert orders[0] != orders[1]
    assert life.log[0][0] <= POLICY.probe_interval_us
    assert set(kinds([effect for _, effect in life.log])) == {SendProbe}


def test_rounds_differ_between_seeds_and_repeat_for_one() -> None:
    def first_round(seed: int) -> int | None:
        machine = MembershipMachine[Said](ME, seed=seed)
        machine.handle(said(A), Micros(0))
        return machine.deadline()

    assert first_round(1) == first_round(1)
    assert len({first_round(seed) for seed in range(10)}) > 5


def test_an_answer_is_heard_and_measured() -> None:
    life = Life(A)
    ticket = life.until_probed(A)
    life.now += 1000
    assert life.tell(ProbeAnswered(A, ticket, 900)) == []
    (view,) = life.machine.views()
    assert (view.heard_at, view.rtt_us, view.witness, view.is_connected) == (life.now, 900, None, False)
    assert life.tell(ProbeAnswered(A, ticket, 5), ProbeAnswered(B, 1, 5), ProbeUnanswered(A, ticket)) == []
    assert life.machine.views()[0].rtt_us == 900


# --- suspicion and failure --------------------------------------------------------
def test_a_peer_that_nobody_reaches_is_suspected_reported_probed_again_and_fails() -> None:
    life = Life(A, B, C, D, E)
    others = (B, C, D, E)
    ticket = life.until_probed(A, others)
    start = life.now
    asked = [e for e in life.wait(3, others) if isinstance(e, SendIndirectProbe)]
    assert [(e.peer, e.ticket) for e in asked] == [(A, ticket)] * 3
    assert len({e.helper for e in asked} & set(others)) == 3
    assert life.tell(*(IndirectAnswered(e.helper, A, ticket, False) for e in asked)) == [
        PeerSuspected(A),
        ReportDown(A, 1),
    ]
    assert (life.state(A), life.machine.find(A)) == (MemberState.SUSPECT, Said(A))
    told = [e for e in life.wait(10, others) if e.peer == A]  # type: ignore[union-attr]
    assert told == [SendProbe(A, ticket), PeerFailed(A), ReportDown(A, 1)]  # said again: gossip loses some
    assert life.now - start == 13 * S
    assert (life.state(A), life.machine.find(A)) == (MemberState.FAILED, None)
    assert (life.machine.live_count, life.machine.known_count) == (4, 5)


def test_silence_of_helpers_takes_as_long_as_the_policy_says_and_no_longer() -> None:
    life = Life(A, B)
    life.until_probed(A, (B,))
    start = life.now
    life.wait(18, (B,))
    assert [when - start for when in life.times(PeerFailed)] == [18 * S]
    assert [when - start for when in life.times(PeerSuspected)] == [8 * S]


def test_a_refused_dial_asks_others_at_once() -> None:
    life = Life(A, B)
    ticket = life.until_probed(A, (B,))
    assert life.tell(ProbeUnanswered(A, ticket)) == [SendIndirectProbe(B, A, ticket)]
    assert life.tell(ProbeUnanswered(A, ticket)) == []


def test_with_nobody_to_ask_the_peer_is_suspected_and_nobody_is_told() -> None:
    life = Life(A)
    ticket = life.until_probed(A)
    assert life.tell(ProbeUnanswered(A, ticket)) == [PeerSuspected(A)]


def test_who_hears_nobody_reports_nobody() -> None:
    life = Life(A, B, C)
    life.wait(200)
    assert life.machine.live_count == 0
    assert life.times(ReportDown) == []


def test_any_answer_of_a_suspect_recovers_it_even_a_late_one() -> None:
    life = Life(A, B)
    ticket = life.until_probed(A, (B,))
    life.wait(9, (B,))
    assert life.state(A) is MemberState.SUSPECT
    assert life.tell(ProbeAnswered(A, ticket, 9 * S)) == [PeerRecovered(A)]
    assert PeerFailed not in kinds(life.wait(60, (A, B)))


def test_a_slow_answer_within_the_second_opinion_is_not_even_a_suspicion() -> None:
    life = Life(A, B)
    ticket = life.until_probed(A, (B,))
    life.wait(5, (B,))
    assert life.tell(ProbeAnswered(A, ticket, 5 * S)) == []
    assert life.times(PeerSuspected) == []


# --- connections --------------------------------------------------------------------
def test_a_lost_connection_is_a_suspicion_and_a_probe_at_once() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A))
    told = life.tell(ConnectionLost(A))
    assert told == [PeerSuspected(A), SendProbe(A, life.ticket(A))]
    assert life.tell(ConnectionLost(A)) == []
    life.tell(ProbeUnanswered(A, life.ticket(A)), IndirectAnswered(B, A, life.ticket(A), False))
    life.wait(10, (B,))
    assert life.times(PeerFailed) == [10 * S]


def test_a_peer_that_reconnects_within_moments_never_stops_counting() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A), ConnectionLost(A))
    life.wait(2)
    assert life.machine.find(A) is not None
    assert life.tell(ConnectionOpened(A)) == [PeerRecovered(A)]
    assert life.tell(ProbeUnanswered(A, life.ticket(A))) == []
    assert life.state(A) is MemberState.ALIVE


def test_the_loss_of_a_connection_that_was_not_told_of_says_nothing() -> None:
    assert Life(A).tell(ConnectionLost(A), ConnectionLost(B)) == []


def test_a_connection_lost_while_a_probe_is_out_sends_no_second_one() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A))
    life.until_probed(A, (B,))
    start = life.now
    assert life.tell(ConnectionLost(A)) == [PeerSuspected(A)]
    life.wait(10, (B,))
    assert [when - start for when in life.times(PeerFailed)] == [10 * S]


def test_a_connection_that_ends_as_agreed_is_no_loss_and_shields_from_nothing() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A))
    life.now += 5 * S
    assert life.tell(ConnectionParted(A), ConnectionParted(A), ConnectionLost(A), ConnectionParted(C)) == []
    assert life.state(A) is MemberState.ALIVE
    assert next(view.heard_at for view in life.machine.views() if view.peer == A) == 5 * S
    assert life.tell(OutOfEarshot(A)) == [PeerForgotten(A)]


def test_a_connection_that_breaks_again_at_once_makes_others_be_asked_and_no_probe() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A), ConnectionLost(A))
    for _ in range(100):
        assert life.tell(ConnectionOpened(A), ConnectionLost(A)) == [PeerRecovered(A), PeerSuspected(A)]
    start = life.now
    life.log.clear()
    (asked,) = life.wait(3)
    assert isinstance(asked, SendIndirectProbe)
    assert life.now - start == POLICY.probe_timeout_us
    life.wait(10, (B,))
    assert [when - start for when in life.times(PeerFailed)] == [10 * S]


def test_a_connection_that_breaks_now_and_then_is_asked_about_each_time() -> None:
    life = Life(A, B)
    for _ in range(3):
        life.tell(ConnectionOpened(A))
        assert kinds(life.tell(ConnectionLost(A))) == [PeerSuspected, SendProbe]
        life.tell(ProbeAnswered(A, life.ticket(A), 5))
        life.now += POLICY.probe_timeout_us


# --- a restart, and what a suspect says -----------------------------------------------
def test_a_new_incarnation_has_to_answer_and_blames_no_reporter() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A), ConnectionLost(A), DownReported(B, A, 1))
    assert life.tell(said(A, 1, incarnation=2)) == [PeerChanged(A)]
    assert life.state(A) is MemberState.SUSPECT
    assert life.tell(ProbeAnswered(A, life.ticket(A), 5)) == [PeerRecovered(A)]
    assert not life.machine.is_muted(B, Micros(life.now))  # the report was true of the life before


@pytest.mark.parametrize("is_always_new", [False, True])
def test_a_peer_that_speaks_and_never_answers_fails_and_stays_failed(is_always_new: bool) -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A))
    for word in range(2, 40):
        incarnation, sequence = (word, 0) if is_always_new else (1, word)
        life.tell(said(A, sequence, incarnation=incarnation))
        life.wait(5, (B,))
    assert life.times(PeerFailed)
    assert life.times(PeerFailed)[0] <= 80 * S
    assert life.times(PeerJoined)[1:] == []
    assert life.state(A) is MemberState.FAILED


def test_word_of_a_suspect_earns_another_probe_but_no_belief() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A), ConnectionLost(A))
    first = life.ticket(A)
    life.tell(ProbeUnanswered(A, first), IndirectAnswered(B, A, first, False))
    life.now += 2 * S
    assert life.tell(said(A, 2)) == [SendProbe(A, first)]
    assert life.state(A) is MemberState.SUSPECT
    assert life.tell(said(A, 3)) == []  # a probe is out
    life.wait(11, (B,))
    assert life.times(PeerFailed) == [12 * S]
    assert life.times(ReportDown) == [0, 12 * S]


# --- tombstones --------------------------------------------------------------------
def failed_life() -> Life:
    life = Life(A, B)
    life.tell(said(A, 5))
    life.tell(ConnectionOpened(A), ConnectionLost(A))
    life.wait(11, (B,))
    assert life.state(A) is MemberState.FAILED
    return life


def test_echoes_do_not_bring_a_failed_peer_back() -> None:
    life = failed_life()
    assert life.tell(said(A, 5), said(A, 4)) == []
    assert life.state(A) is MemberState.FAILED


def test_a_fresher_announcement_of_a_failed_peer_counts_once_it_has_answered() -> None:
    life = failed_life()
    (probe,) = life.tell(said(A, 6))
    assert isinstance(probe, SendProbe)
    assert life.machine.candidate(A) == Said(A, 1, 6)
    assert life.tell(said(A, 7), said(A, 6)) == []
    assert life.state(A) is MemberState.FAILED
    assert (life.machine.candidate(A), life.machine.candidate(B)) == (Said(A, 1, 7), None)
    assert life.tell(ProbeAnswered(A, probe.ticket, 5)) == [PeerJoined(A)]
    assert life.machine.find(A) == Said(A, 1, 7)


def test_what_does_not_prove_itself_must_be_followed_by_something_fresher() -> None:
    life = failed_life()
    (probe,) = life.tell(said(A, 6))
    assert isinstance(probe, SendProbe)
    life.tell(ProbeUnanswered(A, probe.ticket))
    assert life.tell(IndirectAnswered(B, A, probe.ticket, False)) == []
    assert life.tell(said(A, 6)) == []
    assert kinds(life.tell(said(A, 7))) == [SendProbe]
    assert life.tell(IndirectAnswered(B, A, life.ticket(A), True)) == []  # nobody has been asked yet
    life.tell(ProbeUnanswered(A, life.ticket(A)))
    assert life.tell(IndirectAnswered(B, A, life.ticket(A), True)) == [PeerJoined(A), AsymmetryFound(A, B)]


def test_a_failed_peer_is_believed_once_it_connects_or_answers() -> None:
    life = failed_life()
    life.tell(ConnectionOpened(A))
    assert life.tell(said(A, 6)) == [PeerJoined(A)]
    life = failed_life()
    (probe,) = life.tell(said(A, 0, incarnation=2))
    assert isinstance(probe, SendProbe)
    assert life.tell(ProbeAnswered(A, probe.ticket, 5)) == [PeerJoined(A)]


def test_a_tombstone_outlives_what_the_peer_said() -> None:
    life = Life(B)
    life.tell(ConnectionOpened(A), said(A, lives_us=900 * S), ConnectionLost(A))
    life.wait(889, (B,))
    assert life.tell(said(A, lives_us=11 * S)) == []
    assert PeerForgotten(A) in life.wait(30, (B,))
    assert life.state(A) is None


def test_a_short_lived_word_has_a_tombstone_of_the_whole_length() -> None:
    life = Life()
    life.tell(said(A, lives_us=60 * S), ConnectionOpened(A), ConnectionLost(A))
    life.wait(12)
    assert PeerFailed(A) in [effect for _, effect in life.log]
    assert life.wait(295) == []
    assert PeerForgotten(A) in life.wait(15)
    assert life.machine.deadline() is None


# --- leaving --------------------------------------------------------------------
def test_a_peer_that_says_that_it_goes_is_gone_at_once_and_only_a_restart_brings_it_back() -> None:
    life = Life(A, B)
    assert life.tell(LeavingHeard(A, 1)) == [PeerLeft(A)]
    assert life.tell(LeavingHeard(A, 1)) == []
    assert (life.state(A), life.machine.find(A)) == (MemberState.LEFT, None)
    assert life.tell(ConnectionOpened(A), said(A, 99), ConnectionLost(A)) == []
    assert life.tell(said(A, 1, incarnation=2)) == [PeerJoined(A)]
    assert life.tell(LeavingHeard(A, 1)) == []
    assert life.state(A) is MemberState.ALIVE


def test_leaving_is_believed_of_a_peer_that_is_not_in_view_yet() -> None:
    life = Life()
    assert life.tell(LeavingHeard(A, 3)) == []
    assert life.tell(said(A, 9, incarnation=3)) == []
    assert life.tell(LeavingHeard(A, 2)) == []
    assert life.tell(said(A, 1, incarnation=4)) == [PeerJoined(A)]


# --- exclusion ------------------------------------------------------------------
def test_an_excluded_peer_is_gone_at_once_and_only_its_own_connection_brings_it_back() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A))
    assert life.tell(PeerExcluded(A), PeerExcluded(A), PeerExcluded(C), ConnectionLost(A)) == [PeerForgotten(A)]
    assert life.state(A) is MemberState.EXCLUDED
    assert life.tell(said(A, 1)) == []
    (probe,) = life.tell(said(A, 2))  # what else it says must be proven, and a peer that is kept out proves nothing
    assert isinstance(probe, SendProbe)
    life.tell(ProbeUnanswered(A, probe.ticket), IndirectAnswered(B, A, probe.ticket, False))
    assert kinds(life.tell(said(A, 1, incarnation=2))) == [SendProbe]  # a restart is nothing but another word
    assert life.tell(ConnectionOpened(A), said(A, 2, incarnation=2)) == [PeerJoined(A)]


def test_an_excluded_peer_does_not_come_back_by_leaving_and_a_new_life() -> None:
    life = Life(A, B)
    life.tell(PeerExcluded(A), LeavingHeard(A, 1))
    assert life.state(A) is MemberState.EXCLUDED
    assert kinds(life.tell(said(A, 1, incarnation=2))) == [SendProbe]
    assert life.state(A) is MemberState.EXCLUDED
    assert life.tell(ConnectionOpened(A), said(A, 2, incarnation=2)) == [PeerJoined(A)]


def test_a_peer_that_is_excluded_while_it_is_asked_does_not_come_back_by_its_answer() -> None:
    life = Life(A, B)
    (probe,) = life.tell(DownReported(B, A, 1))
    life.tell(ProbeUnanswered(A, probe.ticket), IndirectAnswered(B, A, probe.ticket, False))
    life.wait(60, (B,))
    assert life.state(A) is MemberState.FAILED
    (again,) = life.tell(said(A, 2))
    assert isinstance(again, SendProbe)
    assert life.tell(PeerExcluded(A), ProbeAnswered(A, again.ticket, 1)) == []
    assert life.state(A) is MemberState.EXCLUDED


# --- reports --------------------------------------------------------------------
def test_a_report_is_verified_and_a_false_one_mutes_its_reporter() -> None:
    life = Life(A, B, C)
    (probe,) = life.tell(DownReported(B, A, 1))
    assert probe == SendProbe(A, life.ticket(A))
    assert life.state(A) is MemberState.ALIVE
    assert life.tell(ProbeAnswered(A, life.ticket(A), 5)) == [ReporterMuted(B)]
    assert life.tell(DownReported(B, A, 1), DownReported(B, C, 1)) == []
    life.now += POLICY.mute_us
    assert kinds(life.tell(DownReported(B, C, 1))) == [SendProbe]


def test_a_handshake_alone_convicts_no_reporter_for_it_may_be_that_of_the_next_life() -> None:
    life = Life(A, B, C)
    life.tell(DownReported(B, A, 1))
    assert life.tell(ProbeAnswered(A, life.ticket(A), 0)) == []
    assert life.state(A) is MemberState.ALIVE


def test_a_reporter_of_many_falsehoods_is_muted_once() -> None:
    life = Life(A, B, C)
    life.tell(DownReported(B, A, 1), DownReported(B, C, 1))
    assert life.tell(ProbeAnswered(A, life.ticket(A), 5), ProbeAnswered(C, life.ticket(C), 5)) == [ReporterMuted(B)]


def test_a_true_report_spreads_no_further_and_leads_to_the_same_end() -> None:
    life = Life(A, B, C)
    life.tell(DownReported(B, A, 1))
    ticket = life.ticket(A)
    asked = life.tell(ProbeUnanswered(A, ticket))
    assert PeerSuspected(A) in life.tell(*(IndirectAnswered(e.helper, A, ticket, False) for e in asked))  # type: ignore[union-attr]
    told = life.wait(10, (B, C))
    assert PeerFailed(A) in told
    assert life.times(ReportDown) == []


def test_all_who_report_the_same_falsehood_are_muted_but_not_for_a_peer_that_was_slow() -> None:
    life = Life(A, B, C, D)
    life.tell(DownReported(B, A, 1), DownReported(C, A, 1), DownReported(B, A, 1))
    assert life.tell(ProbeAnswered(A, life.ticket(A), 5)) == [ReporterMuted(B), ReporterMuted(C)]
    life.tell(DownReported(D, A, 1))
    life.wait(4, (B, C, D))
    assert life.tell(ProbeAnswered(A, life.ticket(A), 4 * S)) == []


@pytest.mark.parametrize(
    "report",
    [
        DownReported(E, A, 1),  # a stranger
        DownReported(A, A, 1),  # of itself
        DownReported(B, E, 1),  # of a stranger
        DownReported(B, A, 0),  # of a life that is over
        DownReported(B, A, 2),  # of one that we know nothing of
        DownReported(ME, A, 1),
    ],
)
def test_a_report_that_cannot_matter_starts_nothing(report: DownReported) -> None:
    assert Life(A, B).tell(report) == []


def test_an_answer_to_what_was_asked_before_a_report_refutes_it_not() -> None:
    life = Life(A, B)
    ticket = life.until_probed(A, (B,))
    (probe,) = life.tell(DownReported(B, A, 1))
    assert isinstance(probe, SendProbe)
    assert life.tell(ProbeAnswered(A, ticket, 1)) == []
    assert life.tell(ProbeAnswered(A, probe.ticket, 1)) == [ReporterMuted(B)]


def test_whom_a_stranger_reports_is_probed_next_but_not_oftener_than_every_second_round() -> None:
    peers = tuple(PeerId(f"p{number}") for number in range(40))
    life = Life(*peers)
    probed: list[PeerId] = []
    for _ in range(6):
        assert life.tell(DownReported(E, peers[30], 1), DownReported(E, peers[31], 1)) == []
        probed += [effect.peer for effect in life.wait(10, peers) if isinstance(effect, SendProbe)]
    assert len(probed) == 6
    assert probed[0] == peers[30]
    assert probed.count(peers[30]) + probed.count(peers[31]) == 3


def test_reports_start_a_bounded_number_of_probes() -> None:
    peers = tuple(PeerId(f"p{n}") for n in range(20))
    life = Life(*peers, policy=replace(POLICY, max_verifications=4))
    reports = [DownReported(reporter, peer, 1) for reporter, peer in zip(peers, peers[::-1], strict=True)]
    assert len(life.tell(*reports)) == 4


def test_a_report_of_ourselves_is_refuted_and_its_reporter_muted_but_not_without_end() -> None:
    life = Life(A, B)
    assert life.tell(DownReported(A, ME, 7)) == [ReporterMuted(A), RefuteSelf(A)]
    assert life.tell(DownReported(A, ME, 7)) == []
    assert life.tell(DownReported(B, ME, 7)) == [ReporterMuted(B)]


# --- asymmetric visibility --------------------------------------------------------
def test_a_peer_that_only_a_helper_reaches_counts_and_the_asymmetry_is_told_once_an_hour() -> None:
    life = Life(A, B)

    def reach_by_helper() -> list[Effect]:
        ticket = life.until_probed(A, (B,))
        life.tell(ProbeUnanswered(A, ticket))
        return life.tell(IndirectAnswered(B, A, ticket, True), IndirectAnswered(B, A, ticket, True))

    assert reach_by_helper() == [AsymmetryFound(A, B)]
    assert life.machine.views()[0].witness == B
    assert reach_by_helper() == []
    life.now += POLICY.asymmetry_repeat_us
    assert reach_by_helper() == [AsymmetryFound(A, B)]
    assert life.state(A) is MemberState.ALIVE


def test_a_helper_recovers_a_suspect_and_its_reporters_are_not_blamed() -> None:
    life = Life(A, B, C)
    life.tell(ConnectionOpened(A), ConnectionLost(A), DownReported(B, A, 1))
    life.tell(ProbeUnanswered(A, life.ticket(A)))
    told = life.tell(IndirectAnswered(C, A, life.ticket(A), True))
    assert told == [PeerRecovered(A), AsymmetryFound(A, C)]


def test_connected_peers_are_asked_first() -> None:
    peers = tuple(PeerId(f"p{n}") for n in range(20))
    life = Life(A, *peers)
    life.tell(*(ConnectionOpened(peer) for peer in peers[:3]))
    asked = life.tell(ProbeUnanswered(A, life.until_probed(A, peers)))
    assert {e.helper for e in asked} == set(peers[:3])  # type: ignore[union-attr]


def test_a_word_from_somebody_who_was_not_asked_is_nothing() -> None:
    life = Life(A, B, C)
    ticket = life.until_probed(A, (B, C))
    assert life.tell(IndirectAnswered(B, A, ticket, True)) == []
    life.tell(ProbeUnanswered(A, ticket))
    assert life.tell(IndirectAnswered(D, A, ticket, True), IndirectAnswered(B, A, ticket + 1, True)) == []


# --- bounds -----------------------------------------------------------------------
def test_a_full_view_takes_no_rumours_but_makes_room_for_who_is_connected() -> None:
    life = Life(A, B, policy=replace(POLICY, capacity=2))
    assert life.tell(said(C), said(B, 2, models=1)) == [PeerChanged(B)]
    life.tell(ConnectionOpened(A))
    life.tell(ConnectionOpened(C))
    assert life.tell(said(C)) == [PeerForgotten(B), PeerJoined(C)]
    life.tell(ConnectionOpened(D))
    assert life.tell(said(D)) == []
    assert life.machine.live_count == 2


def test_tombstones_are_bounded_and_the_oldest_makes_room_and_says_so() -> None:
    life = Life(policy=replace(POLICY, capacity=2))
    for peer in (C, A):
        life.tell(said(peer), LeavingHeard(peer, 1))
    assert life.tell(said(B), LeavingHeard(B, 1)) == [PeerJoined(B), PeerForgotten(C), PeerLeft(B)]
    assert life.tell(said(A), said(B)) == []
    assert life.tell(said(C)) == [PeerJoined(C)]
    assert life.tell(PeerExcluded(C)) == [PeerForgotten(A), PeerForgotten(C)]


def test_what_is_asked_under_a_tombstone_that_makes_room_is_not_waited_for() -> None:
    life = Life(A, B, policy=replace(POLICY, capacity=1))
    life.tell(PeerExcluded(A))
    (probe,) = life.tell(said(A, 2))
    assert isinstance(probe, SendProbe)
    life.tell(said(B), LeavingHeard(B, 1))
    assert life.tell(ProbeAnswered(A, probe.ticket, 1)) == []


def test_a_tombstone_may_make_room_while_its_own_probe_runs_out() -> None:
    life = Life(policy=replace(POLICY, capacity=1))
    life.tell(said(A), PeerExcluded(A), said(B), ConnectionOpened(B), ConnectionLost(B))
    life.now = 60 * S
    life.tell(DeadlinePassed(), said(A, 2))
    life.now = 120 * S  # a clock that is late: both inquiries are due in one call, that of B first
    told = life.tell(DeadlinePassed())
    assert PeerForgotten(A) in told
    assert PeerFailed(B) in told


def test_made_up_peers_that_say_that_they_go_displace_no_tombstones() -> None:
    life = Life(A, policy=replace(POLICY, capacity=3))
    life.tell(LeavingHeard(A, 1))
    assert life.tell(*(LeavingHeard(peer, 1) for peer in (B, C, D, E))) == []
    assert life.state(A) is MemberState.LEFT
    assert life.machine.known_count == 3
    assert life.tell(LeavingHeard(A, 2), said(A, 1, incarnation=2)) == []


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(TypeError, match="PeerJoined"):
        new_machine().handle(PeerJoined(A), Micros(0))  # type: ignore[arg-type]


def test_a_peer_out_of_earshot_is_forgotten_without_a_tombstone_but_not_while_it_is_connected() -> None:
    life = Life(A, B)
    life.tell(ConnectionOpened(A))
    assert life.tell(OutOfEarshot(A), OutOfEarshot(ME), OutOfEarshot(C)) == []
    assert life.tell(OutOfEarshot(B)) == [PeerForgotten(B)]
    assert (life.machine.state_of(B), life.machine.known_count) == (None, 1)
    assert life.tell(said(B)) == [PeerJoined(B)]  # the very word that was known before


def test_a_suspect_or_one_that_is_being_asked_is_in_doubt() -> None:
    life = Life(A, B)
    assert not life.machine.is_in_doubt(A)
    ticket = life.until_probed(A, (B,))
    assert life.machine.is_in_doubt(A)
    life.tell(ProbeAnswered(A, ticket, 1))
    assert not life.machine.is_in_doubt(A)
    life.tell(ConnectionOpened(A), ConnectionLost(A))
    assert life.machine.is_in_doubt(A)
    assert not life.machine.is_in_doubt(C)
