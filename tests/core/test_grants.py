"""What a peer promises to coordinators."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_CLAIM_PEERS, MAX_TERM, MAX_TERM_STEP
from p2pmesh.base.quantities import Micros
from p2pmesh.core.claims import Claim, ClaimPolicy
from p2pmesh.core.grants import (
    MAX_RUN_MEMBERS,
    ClaimAsked,
    ClaimMoved,
    ClaimReleased,
    DeadlinePassed,
    Deny,
    Grant,
    Grantor,
    KeepGrant,
    KeptGrant,
    RunReleased,
    StageBegun,
    StageEnded,
    SuccessionDue,
)

A, B, C = (PeerId(name) for name in "ABC")
POLICY = ClaimPolicy(1000, 300, 100, 200, 50, 4000, 600, 10, 5000)
RUN, OTHER = b"r" * 16, b"o" * 16
CLAIM = Claim("m", RUN, 5, (A, B, C), 1000)
LATER = Claim("m", OTHER, 6, (C, B), 1000)


def grantor(own: PeerId = B) -> Grantor:
    return Grantor(own, POLICY)


def ask(peer: Grantor, claim: Claim, now: int = 0) -> Grant | Deny:
    answer = peer.handle(ClaimAsked(claim.coordinator, claim), Micros(now))[-1]
    assert isinstance(answer, Grant | Deny)
    return answer


def code_of(answer: Grant | Deny) -> ErrorCode:
    assert isinstance(answer, Deny)
    return answer.code


def test_the_first_claim_is_granted_and_kept() -> None:
    kept = KeptGrant("m", 5, RUN, A, 1000)
    assert grantor().handle(ClaimAsked(A, CLAIM), Micros(0)) == (KeepGrant((kept,)), Grant(5))


def test_a_renewal_is_granted_without_being_kept_again() -> None:
    peer = grantor()
    ask(peer, CLAIM)
    assert peer.handle(ClaimAsked(A, CLAIM), Micros(900)) == (Grant(5),)
    assert peer.leased_to("m", Micros(1899)) == CLAIM
    assert peer.leased_to("m", Micros(1900)) is None


def test_while_a_lease_lives_nobody_else_gets_the_model() -> None:
    peer = grantor()
    ask(peer, CLAIM)
    denied = ask(peer, LATER, 400)
    assert denied == Deny(ErrorCode.MODEL_LEASED, "peer A coordinates this model, for 0 s or more", 5, 600)
    assert ask(peer, LATER, 999) != Grant(6)
    assert ask(peer, LATER, 1000) == Grant(6)


def test_an_old_lease_is_refused_with_the_term_that_is_known() -> None:
    peer = grantor()
    ask(peer, CLAIM)
    ask(peer, LATER, 1000)
    denied = ask(peer, CLAIM, 1001)
    assert denied == Deny(ErrorCode.TERM_STALE, "term 5 is over, this peer has granted term 6", 6, 999)


@pytest.mark.parametrize(
    "other",
    [replace(CLAIM, run_id=OTHER), replace(CLAIM, peers=(C, B)), replace(CLAIM, peers=(A, B))],
    ids=["run", "coordinator", "list"],
)
def test_of_one_term_another_run_is_a_conflict_also_when_the_lease_is_over(other: Claim) -> None:
    peer = grantor()
    ask(peer, CLAIM)
    for now in (1, 5000):
        assert code_of(ask(peer, other, now)) is ErrorCode.TERM_CONFLICT


def test_a_coordinator_replaces_its_own_run_but_not_one_that_serves_without_it() -> None:
    peer = grantor()
    ask(peer, CLAIM)
    newer = replace(CLAIM, run_id=OTHER, term=6)
    assert ask(peer, newer, 1) == Grant(6)
    ask(peer, replace(newer, is_serving=True), 2)
    assert code_of(ask(peer, replace(CLAIM, term=7), 3)) is ErrorCode.MODEL_LEASED
    assert ask(peer, replace(newer, term=7), 4) == Grant(7)  # the run itself it may go on with


def test_a_claim_comes_from_the_first_of_its_list_and_names_who_is_asked() -> None:
    peer = grantor()
    (denied,) = peer.handle(ClaimAsked(C, CLAIM), Micros(0))
    assert isinstance(denied, Deny)
    assert denied.code is ErrorCode.NOT_IN_PLACEMENT
    assert code_of(ask(peer, replace(CLAIM, peers=(A, C)))) is ErrorCode.NOT_IN_PLACEMENT


def test_nobody_uses_up_the_terms() -> None:
    peer = grantor()
    assert code_of(ask(peer, replace(CLAIM, term=MAX_TERM))) is ErrorCode.OVERLOADED
    ask(peer, CLAIM)
    assert code_of(ask(peer, replace(CLAIM, term=6 + MAX_TERM_STEP), 2000)) is ErrorCode.TERM_STALE
    assert ask(peer, replace(CLAIM, term=5 + MAX_TERM_STEP), 2000) == Grant(5 + MAX_TERM_STEP)


def test_one_coordinator_gets_no_more_than_its_share() -> None:
    peer = Grantor(B, POLICY, max_by_a_peer=2)
    assert ask(peer, CLAIM) == Grant(5)
    assert ask(peer, replace(CLAIM, model="n"), 500) == Grant(5)
    assert code_of(ask(peer, replace(CLAIM, model="o"), 600)) is ErrorCode.OVERLOADED
    assert ask(peer, replace(CLAIM, model="n"), 700) == Grant(5)
    other = replace(CLAIM, model="o", peers=(C, B))
    (answer,) = peer.handle(ClaimAsked(C, other), Micros(700))[-1:]
    assert answer == Grant(5)
    assert ask(peer, replace(CLAIM, model="p"), 1600) == Grant(5)  # the first lease is over


def test_promises_are_bounded_and_only_those_that_nobody_holds_make_room() -> None:
    peer = Grantor(B, POLICY, max_models=2)
    ask(peer, CLAIM)
    ask(peer, replace(CLAIM, model="n", is_serving=True), 500)
    assert code_of(ask(peer, replace(CLAIM, model="o"), 999)) is ErrorCode.OVERLOADED
    assert ask(peer, replace(CLAIM, model="o"), 1600) == Grant(5)
    assert peer.promised("m") is None
    assert peer.promised("n") is not None


# --- fencing ------------------------------------------------------------------
def test_only_the_coordinator_of_the_newest_term_acts_while_its_lease_lives() -> None:
    peer = grantor()
    assert peer.why_fenced(A, "m", RUN, 5, Micros(0)) == (
        ErrorCode.TERM_STALE,
        "term 5 was not claimed here; claim it first",
    )
    ask(peer, CLAIM)
    assert peer.why_fenced(A, "m", RUN, 5, Micros(999)) is None
    for source, run_id, term, now, code in [
        (A, RUN, 6, 1, ErrorCode.TERM_STALE),
        (A, RUN, 4, 1, ErrorCode.TERM_STALE),
        (A, OTHER, 5, 1, ErrorCode.TERM_CONFLICT),
        (B, RUN, 5, 1, ErrorCode.TERM_CONFLICT),
        (A, RUN, 5, 1000, ErrorCode.TERM_STALE),
    ]:
        fenced = peer.why_fenced(source, "m", run_id, term, Micros(now))
        assert fenced is not None
        assert fenced[0] is code


def test_after_a_takeover_the_old_coordinator_is_fenced() -> None:
    peer = grantor()
    ask(peer, CLAIM)
    takeover = replace(CLAIM, term=6, peers=(C, B))
    moved = peer.handle(ClaimAsked(C, takeover), Micros(1000))
    assert moved[0] == ClaimMoved(CLAIM, takeover)
    fenced = peer.why_fenced(A, "m", RUN, 5, Micros(1001))
    assert fenced is not None
    assert fenced[0] is ErrorCode.TERM_STALE


# --- succession ---------------------------------------------------------------
def test_the_peers_of_a_list_succeed_in_its_order_once_the_lease_is_over() -> None:
    serving = replace(CLAIM, is_serving=True)
    first, second = grantor(B), grantor(C)
    for peer in (first, second):
        ask(peer, CLAIM)
        assert peer.deadline() is None  # a run that does not serve has no successor
        ask(peer, serving, 100)
    assert first.deadline() == 1100
    assert second.deadline() == 1110
    assert first.handle(DeadlinePassed(), Micros(1099)) == ()
    assert first.handle(DeadlinePassed(), Micros(1100)) == (SuccessionDue(serving),)
    assert first.deadline() == 2100  # once more, if it fails


def test_who_is_asked_by_a_successor_waits_with_its_own_turn() -> None:
    peer = grantor(B)
    serving = replace(CLAIM, is_serving=True)
    ask(peer, serving)
    assert peer.deadline() == 1000
    ahead = replace(serving, term=6, peers=(C, B))
    assert code_of(ask(peer, ahead, 950)) is ErrorCode.MODEL_LEASED
    assert peer.deadline() == 1950
    assert ask(peer, ahead, 1001) == Grant(6)


def test_a_renewal_keeps_successors_waiting() -> None:
    peer = grantor()
    serving = replace(CLAIM, is_serving=True)
    ask(peer, serving)
    ask(peer, serving, 900)
    assert peer.handle(DeadlinePassed(), Micros(1000)) == ()
    assert peer.deadline() == 1900


def test_a_coordinator_that_leaves_hands_over_at_once() -> None:
    peer = grantor()
    ask(peer, replace(CLAIM, is_serving=True))
    for stranger in (
        ClaimReleased(B, "m", RUN, 5, True),
        ClaimReleased(A, "m", OTHER, 5, True),
        ClaimReleased(A, "m", RUN, 4, True),
        ClaimReleased(A, "n", RUN, 5, True),
    ):
        peer.handle(stranger, Micros(10))
    assert peer.deadline() == 1000
    peer.handle(ClaimReleased(A, "m", RUN, 5, False), Micros(10))
    assert peer.handle(DeadlinePassed(), Micros(10)) == (SuccessionDue(replace(CLAIM, is_serving=True)),)
    assert code_of(ask(peer, LATER, 11)) is ErrorCode.MODEL_LEASED  # another run; this one still serves
    assert ask(peer, replace(CLAIM, term=6, peers=(C, B)), 12) == Grant(6)


def test_a_run_that_is_over_is_nobodys_at_once() -> None:
    peer = grantor()
    serving = replace(CLAIM, is_serving=True)
    ask(peer, serving)
    assert peer.is_kept("m", RUN)
    (_, over) = peer.handle(ClaimReleased(A, "m", RUN, 5, True), Micros(10))
    assert over == RunReleased(serving)
    assert not peer.is_kept("m", RUN)
    assert peer.deadline() is None
    assert ask(peer, LATER, 11) == Grant(6)


def test_a_run_that_serves_is_replaced_only_by_itself_until_it_has_ended_here() -> None:
    peer = grantor()
    ask(peer, replace(CLAIM, is_serving=True))
    assert code_of(ask(peer, LATER, 3000)) is ErrorCode.MODEL_LEASED  # the lease is long over
    stranger = Claim("m", RUN, 6, (PeerId("D"), B), 1000)
    assert code_of(ask(peer, stranger, 3000)) is ErrorCode.MODEL_LEASED
    peer.handle(StageEnded("m", OTHER), Micros(3001))
    assert peer.is_kept("m", RUN)
    peer.handle(StageEnded("m", RUN), Micros(3001))
    assert peer.deadline() is None
    assert ask(peer, LATER, 3002) == Grant(6)


def test_a_stage_that_ends_leaves_its_coordinator_the_lease() -> None:
    peer = grantor()
    ask(peer, replace(CLAIM, is_serving=True))
    peer.handle(StageEnded("m", RUN), Micros(1))
    assert code_of(ask(peer, LATER, 2)) is ErrorCode.MODEL_LEASED
    assert ask(peer, replace(CLAIM, run_id=OTHER, term=6), 3) == Grant(6)


def test_a_run_that_nobody_takes_over_ends() -> None:
    peer = grantor()
    serving = replace(CLAIM, is_serving=True)
    ask(peer, serving)
    told = []
    while (deadline := peer.deadline()) is not None:
        told += peer.handle(DeadlinePassed(), deadline)
    assert told == [SuccessionDue(serving)] * 5 + [RunReleased(serving)]


def test_successors_that_never_renew_do_not_keep_a_run_for_ever() -> None:
    peer = grantor()
    ask(peer, replace(CLAIM, is_serving=True))
    told, term, now = [], 5, 0
    while (deadline := peer.deadline()) is not None:
        now = deadline
        told = list(peer.handle(DeadlinePassed(), Micros(now)))
        if isinstance(told[0], SuccessionDue):
            term += 1
            takeover = replace(CLAIM, term=term, peers=(C, B), is_serving=True)
            if isinstance(ask(peer, takeover, now), Grant):
                peer.handle(ClaimReleased(C, "m", RUN, term, False), Micros(now + 1))
    assert isinstance(told[0], RunReleased)
    assert now == 6000
    assert term > 8


def test_the_coordinator_itself_comes_last() -> None:
    """It lost its claim to nobody, or gave up taking the run over while others did too."""
    peer = grantor(A)
    serving = replace(CLAIM, is_serving=True)
    ask(peer, serving)
    assert peer.deadline() == 1020
    assert peer.handle(DeadlinePassed(), Micros(1020)) == (SuccessionDue(serving),)


def test_how_long_a_promise_is_in_the_way_depends_on_who_asks() -> None:
    peer = grantor(B)
    serving = replace(CLAIM, is_serving=True)
    ask(peer, serving)
    of_the_run, another = ask(peer, replace(serving, term=6, peers=(C, B)), 400), ask(peer, LATER, 400)
    assert isinstance(of_the_run, Deny)
    assert isinstance(another, Deny)
    assert (of_the_run.wait_us, another.wait_us) == (600, 5600)


# --- restarts -----------------------------------------------------------------
def test_a_restart_forgets_no_promise() -> None:
    restarted = Grantor(B, POLICY, (KeptGrant("m", 5, RUN, A, 1000),), Micros(50))
    assert code_of(ask(restarted, replace(LATER, term=5), 60)) is ErrorCode.TERM_CONFLICT
    assert code_of(ask(restarted, LATER, 1049)) is ErrorCode.MODEL_LEASED
    assert code_of(ask(restarted, replace(LATER, term=4), 5000)) is ErrorCode.TERM_STALE
    assert restarted.deadline() is None  # the stage that it held is gone with the process
    assert ask(restarted, CLAIM, 1049) == Grant(5)
    assert ask(restarted, LATER, 2049) == Grant(6)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_claim_that_was_given_back_is_not_waited_for_after_a_restart(is_over: bool) -> None:
    peer = grantor()
    ask(peer, replace(CLAIM, is_serving=True))
    released = ClaimReleased(A, "m", RUN, 5, is_over)
    kept = KeptGrant("m", 5, RUN, A, 0)
    assert peer.handle(released, Micros(10))[0] == KeepGrant((kept,))
    assert not any(isinstance(effect, KeepGrant) for effect in peer.handle(released, Micros(11)))  # once
    restarted = Grantor(B, POLICY, (kept,), Micros(20))
    assert restarted.leased_to("m", Micros(20)) is None
    assert code_of(ask(restarted, replace(LATER, term=5), 20)) is ErrorCode.TERM_CONFLICT
    assert code_of(ask(restarted, replace(LATER, term=4), 20)) is ErrorCode.TERM_STALE
    assert ask(restarted, LATER, 20) == Grant(6)


def test_a_late_question_after_the_release_is_kept_before_it_is_granted() -> None:
    peer = grantor()
    ask(peer, CLAIM)
    peer.handle(ClaimReleased(A, "m", RUN, 5, True), Micros(10))
    kept = KeptGrant("m", 5, RUN, A, 1000)
    assert peer.handle(ClaimAsked(A, CLAIM), Micros(11)) == (KeepGrant((kept,)), Grant(5))
    assert peer.handle(ClaimAsked(A, CLAIM), Micros(12)) == (Grant(5),)
    restarted = Grantor(B, POLICY, (KeptGrant("m", 5, RUN, A, 0),), Micros(20))
    assert restarted.handle(ClaimAsked(A, CLAIM), Micros(21)) == (KeepGrant((kept,)), Grant(5))


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from("AC"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("release"), st.booleans(), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 1200)),
    st.tuples(st.just("restart")),
)


class Lives:
    """A peer over its restarts, held against what it has answered; a release may be lost with a crash."""

    def __init__(self) -> None:
        self.peer = grantor()
        self.kept: tuple[KeptGrant, ...] = ()
        self.newest: tuple[KeptGrant, ...] = ()
        self.now = self.term = self.until = 0
        self.holder = ""
        self.is_given_back = True

    def ask(self, name: str, more: int, is_serving: bool) -> None:
        claim = Claim("m", name.encode() * 16, self.term + more, (PeerId(name), B), 1000, is_serving)
        for effect in self.peer.handle(ClaimAsked(claim.coordinator, claim), Micros(self.now)):
            if isinstance(effect, KeepGrant):
                self.kept = self.newest = effect.grants
            elif isinstance(effect, Grant):
                assert claim.term >= self.term
                assert name == self.holder or self.now >= self.until
                self.term, self.holder, self.until = claim.term, name, self.now + 1000
                self.is_given_back = False

    def release(self, is_over: bool, is_saved: bool) -> None:
        released = ClaimReleased(PeerId(self.holder), "m", self.holder.encode() * 16, self.term, is_over)
        for effect in self.peer.handle(released, Micros(self.now)):
            self.newest = effect.grants if isinstance(effect, KeepGrant) else self.newest
        if is_saved:
            self.kept, self.is_given_back = self.newest, True
        self.until = min(self.until, self.now)

    def wait(self, micros: int) -> None:
        self.now += micros

    def restart(self) -> None:
        self.peer, self.newest = Grantor(B, POLICY, self.kept, Micros(self.now)), self.kept
        promised = self.peer.promised("m")
        assert (promised.term if promised else 0) == self.term
        assert (self.peer.leased_to("m", Micros(self.now)) is None) == self.is_given_back


@given(st.lists(STEPS, max_size=40))
def test_over_restarts_terms_never_go_back_and_live_leases_are_honoured(steps: list[tuple[str, Any]]) -> None:
    lives = Lives()
    for name, *given_with in [("ask", "A", 1, False), *steps]:
        getattr(lives, name)(*given_with)


def test_one_peer_cannot_name_members_of_a_run_without_end() -> None:
    peer = grantor()
    for number in range(50):
        others = (PeerId(f"{number}-{index}") for index in range(MAX_CLAIM_PEERS - 2))
        assert ask(peer, Claim("m", RUN, 5 + number, (A, B, *others), 1000)) == Grant(5 + number)
    assert len(peer._promises["m"].members) <= MAX_RUN_MEMBERS + MAX_CLAIM_PEERS


# --- memory
def want(peer: Grantor, claim: Claim, needed: int, room: int = 100, now: int = 0) -> Grant | Deny:
    answer = peer.handle(ClaimAsked(claim.coordinator, claim, needed, room), Micros(now))[-1]
    assert isinstance(answer, Grant | Deny)
    return answer


OF_ANOTHER_MODEL = Claim("n", OTHER, 1, (C, B), 1000)


def test_memory_is_promised_once() -> None:
    peer = grantor()
    assert want(peer, CLAIM, 60) == Grant(5)
    assert peer.reserved_bytes(Micros(0)) == 60
    assert code_of(want(peer, OF_ANOTHER_MODEL, 60)) is ErrorCode.PLACEMENT_REFUSED
    assert peer.promised("n") is None
    assert want(peer, OF_ANOTHER_MODEL, 40) == Grant(1)


def test_what_is_promised_is_kept_until_the_stage_begins_or_the_lease_ends() -> None:
    begun, over = grantor(), grantor()
    for peer in (begun, over):
        want(peer, CLAIM, 60)
    begun.handle(StageBegun("m", OTHER), Micros(1))
    assert begun.reserved_bytes(Micros(1)) == 60
    begun.handle(StageBegun("m", RUN), Micros(1))
    assert begun.reserved_bytes(Micros(1)) == 0
    want(begun, CLAIM, 60, now=2)  # a renewal reserves nothing anew
    assert begun.reserved_bytes(Micros(2)) == 0
    assert over.reserved_bytes(Micros(999)) == 60
    assert over.reserved_bytes(Micros(1000)) == 0
    assert want(over, OF_ANOTHER_MODEL, 60, now=1000) == Grant(1)


def test_a_release_frees_what_was_promised() -> None:
    peer = grantor()
    want(peer, CLAIM, 60)
    peer.handle(ClaimReleased(A, "m", RUN, 5, True), Micros(1))
    assert peer.reserved_bytes(Micros(1)) == 0


def test_a_new_run_of_the_same_coordinator_may_take_what_the_one_before_had_promised() -> None:
    peer = grantor()
    want(peer, CLAIM, 60)
    assert want(peer, replace(CLAIM, run_id=OTHER, term=6), 90, now=1) == Grant(6)
    assert peer.reserved_bytes(Micros(1)) == 90
