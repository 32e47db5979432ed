"""Who may coordinate a model: the claimant's side."""

from dataclasses import replace

import pytest

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_TERM, MAX_TERM_STEP
from p2pmesh.base.quantities import Micros
from p2pmesh.core.claims import (
    AskClaim,
    Claim,
    Claimant,
    ClaimHeld,
    ClaimLost,
    ClaimPhase,
    ClaimPolicy,
    ClaimWanted,
    ClaimWithdrawn,
    DeadlinePassed,
    PeerDenied,
    PeerGranted,
    PeerSilent,
    ReleaseClaim,
    RunServes,
    quorum,
)

A, B, C = (PeerId(name) for name in "ABC")
POLICY = ClaimPolicy(1000, 300, 100, 200, 50, 4000, 600, 10, 5000)
CLAIM = Claim("m", b"r" * 16, 5, (A, B, C), 1000)


def asking(claim: Claim = CLAIM, now: int = 0) -> Claimant:
    claimant = Claimant(claim, POLICY)
    asked = claimant.handle(ClaimWanted(), Micros(now))
    assert asked == tuple(AskClaim(peer, claim, 1) for peer in claim.peers)
    return claimant


def held(now: int = 0) -> Claimant:
    claimant = asking(now=now)
    for peer in (A, B, C):
        claimant.handle(PeerGranted(peer, 1), Micros(now + 10))
    assert claimant.is_valid(Micros(now + 10))
    return claimant


@pytest.mark.parametrize(("peers", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (64, 33)])
def test_a_quorum_is_more_than_half(peers: int, needed: int) -> None:
    assert quorum(peers) == needed


def test_a_claim_is_held_once_everybody_has_answered_and_says_who_is_absent() -> None:
    claimant = asking()
    assert claimant.handle(PeerGranted(A, 1), Micros(1)) == ()
    assert claimant.handle(PeerGranted(B, 1), Micros(2)) == ()
    assert claimant.handle(PeerSilent(C, 1), Micros(3)) == (ClaimHeld(CLAIM, (C,)),)
    assert claimant.is_valid(Micros(899))
    assert not claimant.is_valid(Micros(900))  # of the lease since it was asked for, a tenth is given to drift


def test_who_does_not_answer_is_not_waited_for_longer_than_a_round() -> None:
    claimant = asking()
    claimant.handle(PeerGranted(A, 1), Micros(1))
    claimant.handle(PeerGranted(C, 1), Micros(2))
    assert claimant.deadline() == 200
    assert claimant.handle(DeadlinePassed(), Micros(199)) == ()
    assert claimant.handle(DeadlinePassed(), Micros(200)) == (ClaimHeld(CLAIM, (B,)),)


def test_one_peer_alone_is_a_quorum_of_itself() -> None:
    alone = Claim("m", b"r" * 16, 1, (A,), 1000)
    assert asking(alone).handle(PeerGranted(A, 1), Micros(0)) == (ClaimHeld(alone, ()),)


def test_without_a_quorum_everything_is_given_back_and_a_higher_term_tried_later() -> None:
    claimant = asking()
    claimant.handle(PeerGranted(A, 1), Micros(1))
    claimant.handle(PeerDenied(B, 1, ErrorCode.MODEL_LEASED, 9, 400), Micros(2))
    released = claimant.handle(PeerDenied(C, 1, ErrorCode.TERM_CONFLICT, 7, 0), Micros(3))
    assert released == tuple(ReleaseClaim(peer, CLAIM) for peer in (A, B, C))
    assert claimant.phase is ClaimPhase.WAITING
    assert claimant.deadline() == 3 + 50
    asked = claimant.handle(DeadlinePassed(), Micros(53))
    assert [effect.claim.term for effect in asked if isinstance(effect, AskClaim)] == [10, 10, 10]


def test_a_claimant_that_is_behind_follows_at_once_and_keeps_what_it_has() -> None:
    claimant = asking()
    claimant.handle(PeerGranted(A, 1), Micros(1))
    claimant.handle(PeerGranted(B, 1), Micros(2))
    asked = claimant.handle(PeerDenied(C, 1, ErrorCode.TERM_STALE, 30, 0), Micros(3))
    later = replace(CLAIM, term=31)
    assert asked == tuple(AskClaim(peer, later, 2) for peer in (A, B, C))
    for peer in (A, B):
        claimant.handle(PeerGranted(peer, 2), Micros(4))
    assert claimant.handle(PeerGranted(C, 2), Micros(4)) == (ClaimHeld(later, ()),)


def test_terms_that_only_grow_are_not_followed_for_ever() -> None:
    claimant = asking()
    for number in range(1, 6):
        for peer in (A, B, C):
            denied = PeerDenied(peer, number, ErrorCode.TERM_STALE, 100 * number, 0)
            effects = claimant.handle(denied, Micros(number))
    assert claimant.phase is ClaimPhase.WAITING
    assert all(isinstance(effect, ReleaseClaim) for effect in effects)


def test_two_that_want_the_same_peers_try_again_at_different_times() -> None:
    waits = []
    for peers in ((A, B), (B, A)):
        claimant = asking(Claim("m", b"r" * 16, 1, peers, 1000))
        claimant.handle(PeerGranted(peers[0], 1), Micros(0))
        claimant.handle(PeerDenied(peers[1], 1, ErrorCode.TERM_CONFLICT, 1, 0), Micros(0))
        waits.append(claimant.deadline())
    assert waits == [50, 100]


def test_a_claim_that_is_not_granted_in_time_is_given_up_with_its_reason() -> None:
    claimant = asking()
    now = 0
    while claimant.phase is not ClaimPhase.OVER:
        effects = ()
        for peer, wait_us in ((A, 0), (B, 900), (C, 900)):
            denied = PeerDenied(peer, now_round(claimant), ErrorCode.MODEL_LEASED, 9, wait_us)
            effects = claimant.handle(denied, Micros(now)) or effects
        now = claimant.deadline() or now
        claimant.handle(DeadlinePassed(), Micros(now))
    lost = effects[0]
    assert isinstance(lost, ClaimLost)
    assert lost.code is ErrorCode.MODEL_LEASED
    assert lost.text == "3 of 3 peers have promised it to a run of another coordinator, which may be serving it"
    assert lost.ungranted == lost.leased == (A, B, C)
    assert now < 4000


def test_a_term_that_is_a_serving_runs_own_counts_as_promised_to_that_run_and_silence_does_not() -> None:
    claimant = asking()
    claimant.handle(PeerGranted(A, 1), Micros(1))
    claimant.handle(PeerDenied(B, 1, ErrorCode.TERM_CONFLICT, 5, 9000), Micros(2))
    lost = claimant.handle(PeerSilent(C, 1), Micros(3))[0]
    assert isinstance(lost, ClaimLost)
    assert (lost.leased, lost.ungranted) == ((B,), (B, C))


def now_round(claimant: Claimant) -> int:
    return claimant._round  # the test answers for the peers


def test_a_claim_is_renewed_and_lives_from_when_it_was_asked_for() -> None:
    claimant = held()
    assert claimant.deadline() == 300
    asked = claimant.handle(DeadlinePassed(), Micros(300))
    assert asked == tuple(AskClaim(peer, CLAIM, 2) for peer in (A, B, C))
    claimant.handle(PeerGranted(A, 1), Micros(301))  # late, of the first round
    claimant.handle(PeerGranted(B, 2), Micros(302))
    assert not claimant.is_valid(Micros(900))
    claimant.handle(PeerGranted(C, 2), Micros(899))
    assert claimant.is_valid(Micros(1199))
    assert not claimant.is_valid(Micros(1200))


def test_a_coordinator_that_cannot_renew_steps_down_before_the_lease_is_over() -> None:
    claimant = held()
    for now in (300, 600):
        claimant.handle(DeadlinePassed(), Micros(now))
        claimant.handle(PeerGranted(A, now_round(claimant)), Micros(now))
    assert claimant.deadline() == 900
    effects = claimant.handle(DeadlinePassed(), Micros(900))
    assert effects[0] == ClaimLost(ErrorCode.QUORUM_LOST, "too few peers renewed the claim within its lease", (B, C))
    assert claimant.handle(PeerGranted(B, 4), Micros(901)) == ()


def test_a_late_event_finds_the_lease_over() -> None:
    effects = held().handle(PeerGranted(B, 1), Micros(5000))
    assert isinstance(effects[0], ClaimLost)


def test_a_coordinator_steps_down_at_once_when_a_quorum_went_elsewhere() -> None:
    claimant = held()
    claimant.handle(DeadlinePassed(), Micros(300))
    assert claimant.handle(PeerDenied(B, 2, ErrorCode.TERM_STALE, 6, 0), Micros(301)) == ()
    effects = claimant.handle(PeerDenied(C, 2, ErrorCode.TERM_CONFLICT, 5, 0), Micros(302))
    assert effects[0] == ClaimLost(ErrorCode.TERM_STALE, "2 of 3 peers have granted a later claim", (A, B, C))


def test_that_a_run_serves_is_told_at_once() -> None:
    claimant = held()
    asked = claimant.handle(RunServes(), Micros(20))
    assert all(isinstance(effect, AskClaim) and effect.claim.is_serving for effect in asked)
    assert len(asked) == 3


def test_who_takes_a_run_over_asks_itself_last_and_only_if_all_others_have_granted() -> None:
    for is_granted in (True, False):
        claimant = Claimant(CLAIM, POLICY, is_takeover=True)
        assert claimant.handle(ClaimWanted(), Micros(0)) == (AskClaim(B, CLAIM, 1), AskClaim(C, CLAIM, 1))
        claimant.handle(PeerGranted(B, 1), Micros(1))
        if is_granted:
            assert claimant.handle(PeerGranted(C, 1), Micros(2)) == (AskClaim(A, CLAIM, 1),)
            assert claimant.handle(PeerGranted(A, 1), Micros(3)) == (ClaimHeld(CLAIM, ()),)
        else:
            denied = PeerDenied(C, 1, ErrorCode.MODEL_LEASED, 4, 10)
            assert claimant.handle(denied, Micros(2)) == tuple(ReleaseClaim(peer, CLAIM) for peer in (A, B, C))


def test_a_coordinator_that_serves_catches_up_with_a_peer_that_tried_to_take_over() -> None:
    serving = replace(CLAIM, is_serving=True)
    claimant = held()
    claimant.handle(RunServes(), Micros(20))
    claimant.handle(PeerGranted(A, 2), Micros(21))
    claimant.handle(PeerGranted(B, 2), Micros(21))
    assert claimant.handle(PeerDenied(C, 2, ErrorCode.TERM_STALE, 9, 0), Micros(21)) == ()
    asked = claimant.handle(DeadlinePassed(), Micros(320))
    assert asked == tuple(AskClaim(peer, replace(serving, term=10), 3) for peer in (A, B, C))


def test_a_withdrawn_claim_is_released_everywhere_and_over() -> None:
    claimant = held()
    assert claimant.handle(ClaimWithdrawn(True), Micros(20)) == tuple(
        ReleaseClaim(peer, CLAIM, True) for peer in (A, B, C)
    )
    assert claimant.deadline() is None
    assert claimant.handle(ClaimWanted(), Micros(21)) == ()
    assert Claimant(CLAIM, POLICY).handle(ClaimWithdrawn(False), Micros(0)) == ()


def test_who_was_not_asked_has_no_say() -> None:
    claimant = asking()
    assert claimant.handle(PeerGranted(PeerId("D"), 1), Micros(0)) == ()
    for _ in range(2):
        assert claimant.handle(PeerGranted(A, 1), Micros(0)) == ()
    assert claimant.phase is ClaimPhase.ASKING


def test_a_list_names_each_peer_once() -> None:
    for peers in ((), (A, A)):
        with pytest.raises(ValueError, match="once"):
            Claimant(Claim("m", b"r" * 16, 1, peers, 1000))


def test_terms_that_a_peer_makes_up_lead_no_further_than_others_follow() -> None:
    claimant = held()
    claimant.handle(RunServes(), Micros(20))
    claimant.handle(PeerDenied(C, 2, ErrorCode.TERM_STALE, MAX_TERM, 0), Micros(30))
    for peer in (A, B):
        claimant.handle(PeerGranted(peer, 2), Micros(30))
    claimant.handle(DeadlinePassed(), Micros(320))
    assert claimant.claim.term == CLAIM.term + MAX_TERM_STEP


def test_no_term_is_above_the_highest() -> None:
    claimant = asking(replace(CLAIM, term=MAX_TERM))
    for number in range(1, 4):
        for peer in (A, B, C):
            claimant.handle(PeerDenied(peer, number, ErrorCode.TERM_STALE, MAX_TERM, 0), Micros(number))
        assert claimant.claim.term == MAX_TERM


# --- others would do better
@pytest.mark.parametrize("code", [ErrorCode.PLACEMENT_REFUSED, ErrorCode.OVERLOADED])
def test_a_peer_without_room_ends_the_attempt_at_once(code: ErrorCode) -> None:
    claimant = asking(replace(CLAIM, peers=(A, B)))
    claimant.handle(PeerGranted(A, 1), Micros(1))
    lost, *released = claimant.handle(PeerDenied(B, 1, code, 0, 0), Micros(2))
    assert isinstance(lost, ClaimLost)
    assert (lost.code, lost.ungranted) == (code, (B,))
    assert len(released) == 2


def test_a_silent_peer_ends_the_attempt_unless_the_run_is_to_be_taken_over() -> None:
    claim = replace(CLAIM, peers=(A, B))
    claimant = asking(claim)
    claimant.handle(PeerGranted(A, 1), Micros(1))
    lost, *_ = claimant.handle(PeerSilent(B, 1), Micros(2))
    assert isinstance(lost, ClaimLost)
    assert (lost.code, lost.ungranted) == (ErrorCode.QUORUM_LOST, (B,))
    successor = Claimant(claim, POLICY, is_takeover=True)
    successor.handle(ClaimWanted(), Micros(0))
    successor.handle(PeerSilent(B, 1), Micros(2))
    assert successor.phase is ClaimPhase.WAITING


def test_who_does_not_answer_within_a_round_ends_it_too() -> None:
    claimant = asking(replace(CLAIM, peers=(A, B)))
    claimant.handle(PeerGranted(A, 1), Micros(1))
    assert isinstance(claimant.handle(DeadlinePassed(), Micros(200))[0], ClaimLost)
