"""A run that serves is moved for a clear and lasting gain, seldom, and never while a request would be cut."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.planning.outcome import Placement, PlannedStage, StepEstimate
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest, ShapeBytes
from p2pmesh.core.replanning import (
    MAX_JITTER,
    Abandon,
    Assessment,
    AttemptFailed,
    DeadlinePassed,
    Drain,
    Drained,
    Effect,
    LetGo,
    Look,
    Looked,
    Move,
    PeerLeaves,
    Prepare,
    Prepared,
    Replanner,
    ReplanPhase,
    ReplanPolicy,
    ReplanReason,
    RunEnded,
    RunServes,
    assess_candidate,
    assess_standing,
    is_same_placement,
    new_stages,
    peers_without_room_beside,
    request_without_run,
    why_better,
)

POLICY = ReplanPolicy()
SECOND = 1_000_000
GIB = 1 << 30
ESTIMATE = StepEstimate(0, 0, 0, 0, 0, 1, 1)


def peer(name: str, free_gib: int, speed: int = 10, **more: object) -> PlanningPeer:
    offer = PlanningPeer(PeerId(name), free_gib * GIB, decode_bytes_per_s=speed * 1_000_000_000)
    return replace(offer, **more)  # type: ignore[arg-type]


def asked(*peers: PlanningPeer, is_sticky: bool = False) -> PlanRequest:
    shape = ShapeBytes((GIB,) * 8)
    model = PlanningModel((shape,), tuple(range(1, 8)), is_sticky=is_sticky)
    return PlanRequest(model, peers)


def planned(request: PlanRequest) -> Placement:
    plan = plan_placement(request)
    assert isinstance(plan, Placement)
    return plan


def placed(*stages: tuple[str, int, int]) -> Placement:
    held = (PlannedStage(PeerId(name), LayerRange(start, end), (end - start) * GIB, 0) for name, start, end in stages)
    return Placement(tuple(held), 4096, 1, ESTIMATE)


def one(tpot_ms: int, stages: int = 2, unwanted: int = 0) -> Assessment:
    return Assessment(stages, tpot_ms * 1000, unwanted)


# --- what is better -------------------------------------------------------------
def better(standing: Assessment, other: Assessment) -> ReplanReason | None:
    return why_better(standing, other, POLICY, POLICY.gain_percent)


def test_a_fifth_less_time_per_token_is_better_and_less_is_not() -> None:
    assert better(one(100), one(80)) is ReplanReason.FASTER
    assert better(one(100), one(81)) is None
    assert better(one(5), one(4)) is None  # a fifth, but of nothing


def test_fewer_peers_are_better_unless_that_is_slower_by_more_than_a_tenth() -> None:
    assert better(one(100), one(110, 1)) is ReplanReason.FEWER_PEERS
    assert better(one(100), one(111, 1)) is None


def test_an_owners_wish_counts_for_more_than_speed() -> None:
    assert better(one(100, unwanted=1), one(300)) is ReplanReason.OWNERS_WISH
    assert better(one(100), one(10, unwanted=1)) is None


@given(st.builds(Assessment, st.integers(1, 4), st.integers(1, 10**6), st.integers(0, 2)), st.data())
def test_of_two_placements_never_each_is_better_than_the_other(standing: Assessment, data: st.DataObject) -> None:
    other = data.draw(st.builds(Assessment, st.integers(1, 4), st.integers(1, 10**6), st.integers(0, 2)))
    if better(standing, other) is not None:
        assert better(other, standing) is None


def test_the_memory_of_the_standing_run_is_free_for_the_next() -> None:
    request = asked(peer("a", 1), peer("b", 1))
    standing = placed(("a", 0, 4), ("b", 4, 8))
    without = request_without_run(request, standing)
    assert [p.free_bytes for p in without.peers] == [5 * GIB, 5 * GIB]
    assert is_same_placement(planned(without), standing)


def test_stages_of_a_sticky_family_stay_unless_their_owner_wants_them_no_more() -> None:
    standing = placed(("a", 0, 4), ("b", 4, 8))
    request = asked(peer("a", 1), peer("b", 1), peer("c", 40, 99), is_sticky=True)
    assert is_same_placement(planned(request_without_run(request, standing)), standing)
    unwilling = replace(request, peers=(*request.peers[:1], peer("b", 1, most_bytes=GIB), *request.peers[2:]))
    assert is_same_placement(planned(request_without_run(unwilling, standing)), placed(("a", 0, 4), ("c", 4, 8)))


def test_a_standing_run_is_assessed_by_what_its_peers_are_known_for_now() -> None:
    standing = placed(("a", 0, 4), ("b", 4, 8))
    found = assess_standing(asked(peer("a", 1), peer("b", 1, is_excluded=True)), standing)
    assert found is not None
    assert (found.stage_count, found.unwanted) == (2, 1)
    assert assess_standing(asked(peer("a", 1)), standing) is None


def test_a_candidate_counts_only_while_it_has_room() -> None:
    candidate = placed(("c", 0, 8))
    assert assess_candidate(asked(peer("c", 9)), candidate) is not None
    assert assess_candidate(asked(peer("c", 8)), candidate) is None
    assert assess_candidate(asked(peer("c", 9, most_layers=7)), candidate) is None
    assert assess_candidate(asked(peer("d", 9)), candidate) is None


def test_only_stages_that_are_new_need_room_beside() -> None:
    standing = placed(("a", 0, 4), ("b", 4, 8))
    assert new_stages(standing, placed(("a", 0, 4), ("c", 4, 8))) == (1,)
    request = asked(peer("a", 1), peer("b", 1), peer("c", 5))
    assert peers_without_room_beside(request, standing, placed(("a", 0, 4), ("c", 4, 8))) == ()
    assert peers_without_room_beside(request, standing, placed(("c", 0, 4), ("a", 4, 8))) == ("a",)


# --- when -----------------------------------------------------------------------
BEST = placed(("c", 0, 8))


class Runner:
    """What a coordinator does: carries effects out at once, as ``found`` says."""

    def __init__(self, policy: ReplanPolicy = POLICY, jitter: int = 0) -> None:
        self.machine = Replanner(policy, jitter)
        self.now = 0
        self.found: Looked = Looked(one(100), None, None)
        self.is_beside = True
        self.told: list[Effect] = []

    def feed(self, event: object) -> None:
        for effect in self.machine.handle(event, Micros(self.now)):  # type: ignore[arg-type]
            self.told.append(effect)
            if isinstance(effect, Look):
                looked = self.found
                self.feed(looked if effect.candidate is not None else replace(looked, candidate=None))

    def pass_time(self, until: int) -> None:
        while (due := self.machine.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.feed(DeadlinePassed())
        self.now = until

    def last(self, kind: type) -> object:
        return next(effect for effect in reversed(self.told) if isinstance(effect, kind))

    def moves(self) -> int:
        return sum(isinstance(effect, Move) for effect in self.told)


def faster(standing_ms: int = 100, best_ms: int = 50) -> Looked:
    return Looked(one(standing_ms), (BEST, one(best_ms)), one(best_ms))


def prepared(runner: Runner, *, is_beside: bool = True) -> int:
    """Until the stages stand ready."""
    runner.found = faster()
    runner.feed(RunServes())
    runner.pass_time(400 * SECOND)
    attempt = runner.last(Prepare).attempt  # type: ignore[attr-defined]
    runner.feed(Prepared(attempt, is_beside))
    return int(attempt)


def test_a_run_moves_when_the_gain_has_lasted_and_its_driver_is_drained() -> None:
    runner = Runner()
    attempt = prepared(runner)
    assert runner.last(Drain) == Drain(BEST, attempt, 0)
    runner.feed(Drained(attempt))
    assert runner.told[-1] == Move(BEST, ReplanReason.FASTER, one(100), one(50))
    assert runner.machine.phase is ReplanPhase.IDLE


def test_a_gain_that_does_not_last_moves_nothing() -> None:
    runner = Runner()
    runner.found = faster()
    runner.feed(RunServes())
    runner.pass_time(179 * SECOND)  # looked at 60 s, and 120 s
    runner.found = faster(100, 95)
    runner.pass_time(241 * SECOND)
    runner.found = faster()
    runner.pass_time(400 * SECOND)
    assert not any(isinstance(effect, Prepare) for effect in runner.told)


def test_what_was_once_clearly_better_may_waver_a_little() -> None:
    runner = Runner()
    runner.found = faster(100, 79)
    runner.feed(RunServes())
    runner.pass_time(70 * SECOND)
    runner.found = faster(100, 88)
    runner.pass_time(200 * SECOND)
    assert any(isinstance(effect, Prepare) for effect in runner.told)


def test_without_room_beside_nobody_must_have_asked_for_anything_for_a_while() -> None:
    runner = Runner()
    attempt = prepared(runner, is_beside=False)
    assert runner.last(Drain) == Drain(BEST, attempt, POLICY.quiet_us)


def test_a_driver_that_is_not_drained_in_time_takes_requests_again_and_the_next_try_waits() -> None:
    runner = Runner()
    attempt = prepared(runner)
    asked_at = runner.now
    runner.pass_time(asked_at + POLICY.drain_us)
    assert runner.told[-1] == Abandon(attempt)
    runner.feed(Drained(attempt))  # too late
    runner.pass_time(asked_at + POLICY.rest_us)
    assert runner.moves() == 0
    assert sum(isinstance(effect, Prepare) for effect in runner.told) == 1
    runner.pass_time(asked_at + 2 * POLICY.rest_us)
    assert sum(isinstance(effect, Prepare) for effect in runner.told) == 2


def test_a_run_that_ends_meanwhile_ends_the_attempt() -> None:
    runner = Runner()
    attempt = prepared(runner)
    runner.feed(RunEnded())
    assert runner.told[-1] == Abandon(attempt)
    runner.feed(Drained(attempt))
    assert runner.moves() == 0
    assert runner.machine.deadline() is None


def test_moves_become_rarer() -> None:
    runner, moved_at = Runner(), []
    runner.found = faster()
    runner.feed(RunServes())
    while runner.now < 24 * 3600 * SECOND:
        runner.pass_time(runner.now + 10 * SECOND)
        if runner.machine.phase is ReplanPhase.PREPARING:
            attempt = runner.last(Prepare).attempt  # type: ignore[attr-defined]
            runner.feed(Prepared(attempt, True))
            runner.feed(Drained(attempt))
            moved_at.append(runner.now)
            runner.feed(RunServes())
    gaps = [later - earlier for earlier, later in itertools.pairwise(moved_at)]
    assert gaps[0] >= POLICY.rest_us
    assert gaps[1] >= 2 * POLICY.rest_us
    assert max(gaps) <= 2 * POLICY.most_rest_us
    assert len(moved_at) < 20


def test_coordinators_with_other_jitter_look_at_other_times() -> None:
    deadlines = set()
    for jitter in (0, MAX_JITTER // 3, MAX_JITTER - 1):
        runner = Runner(jitter=jitter)
        runner.feed(RunServes())
        deadlines.add(runner.machine.deadline())
    assert len(deadlines) == 3
    assert max(deadlines) < 1.5 * POLICY.settle_us  # type: ignore[type-var, operator]
    with pytest.raises(ValueError, match="jitter"):
        Replanner(jitter=MAX_JITTER)


@given(st.lists(st.tuples(st.integers(92, 108), st.integers(92, 108)), min_size=200, max_size=200))
@settings(max_examples=25)
def test_noise_of_a_twelfth_never_moves_a_run_to_its_equal(noise: list[tuple[int, int]]) -> None:
    runner = Runner()
    runner.feed(RunServes())
    for standing, best in noise:
        runner.found = faster(standing, best)
        runner.pass_time(runner.now + POLICY.look_us)
    assert not any(isinstance(effect, Prepare) for effect in runner.told)


# --- a peer that leaves ------------------------------------------------------------
def unwanted(best: tuple[Placement, Assessment] | None = (BEST, one(300))) -> Looked:
    return Looked(one(100, unwanted=1), best, None)


def leaving(policy: ReplanPolicy = POLICY, found: Looked | None = None) -> Runner:
    """A run that has just begun to serve, one of whose peers is about to go."""
    runner = Runner(policy)
    runner.feed(RunServes())
    runner.found = found or unwanted()
    runner.feed(PeerLeaves())
    return runner


@pytest.mark.parametrize("policy", [POLICY, ReplanPolicy.after(0)])
def test_a_peer_that_leaves_moves_the_run_at_once_even_to_a_slower_place(policy: ReplanPolicy) -> None:
    runner = leaving(policy)
    assert runner.last(Prepare) == Prepare(BEST, 1)
    runner.feed(Prepared(1, True))
    assert runner.last(Drain) == Drain(BEST, 1, 0)
    runner.feed(Drained(1))
    assert runner.told[-1] == Move(BEST, ReplanReason.PEER_LEAVES, one(100, unwanted=1), one(300))
    assert runner.now == 0


@pytest.mark.parametrize("is_beside", [True, False])
def test_requests_that_go_on_do_not_keep_a_peer_that_leaves(is_beside: bool) -> None:
    runner = leaving()
    runner.feed(Prepared(1, is_beside))
    runner.pass_time(POLICY.leave_drain_us - 1)
    assert runner.moves() == 0
    runner.pass_time(POLICY.leave_drain_us)
    assert isinstance(runner.told[-1], Move)


def test_a_driver_that_does_not_answer_keeps_no_peer_that_leaves() -> None:
    runner = leaving()
    runner.feed(Prepared(1, True))
    runner.feed(AttemptFailed(1))
    assert isinstance(runner.told[-1], Move)


@pytest.mark.parametrize("found", [unwanted(None), unwanted((BEST, one(50, unwanted=1)))])
def test_where_nobody_takes_over_the_peer_is_let_go_at_once(found: Looked) -> None:
    runner = leaving(found=found)
    assert runner.told[-1] == LetGo()
    assert runner.machine.phase is ReplanPhase.WATCHING


def test_a_stage_that_does_not_load_elsewhere_lets_the_peer_go() -> None:
    runner = leaving()
    runner.feed(AttemptFailed(1))
    assert runner.told[-2:] == [Abandon(1), LetGo()]
    runner = leaving()
    runner.pass_time(POLICY.prepare_us)
    assert runner.told[-2:] == [Abandon(1), LetGo()]


def test_a_look_that_finds_out_nothing_lets_the_peer_go() -> None:
    machine = Replanner()
    machine.handle(RunServes(), Micros(0))
    assert machine.handle(PeerLeaves(), Micros(0)) == (Look(None, is_for_leaving=True),)
    assert machine.deadline() == POLICY.leave_look_us
    assert machine.handle(DeadlinePassed(), Micros(POLICY.leave_look_us)) == (LetGo(),)


def test_a_move_that_was_under_way_gives_way_to_that_of_a_peer_that_leaves() -> None:
    runner = Runner()
    attempt = prepared(runner)
    runner.found = unwanted()
    runner.feed(PeerLeaves())
    assert runner.told[-3:] == [Abandon(attempt), Look(None, is_for_leaving=True), Prepare(BEST, attempt + 1)]
    runner.feed(Drained(attempt))
    assert runner.moves() == 0


def test_a_peer_that_leaves_where_nothing_serves_is_the_runs_own_matter() -> None:
    assert Replanner().handle(PeerLeaves(), Micros(0)) == ()


def test_with_watching_switched_off_only_a_leave_looks() -> None:
    runner = Runner(ReplanPolicy.after(0))
    runner.found = faster()
    runner.feed(RunServes())
    assert runner.machine.deadline() is None
    runner.found = unwanted(None)
    runner.feed(PeerLeaves())
    assert runner.machine.deadline() is None


def test_a_move_off_a_peer_that_leaves_makes_others_no_rarer() -> None:
    runner = leaving()
    runner.feed(Prepared(1, True))
    runner.feed(Drained(1))
    runner.found = faster()
    runner.feed(RunServes())
    runner.pass_time(400 * SECOND)
    assert sum(isinstance(effect, Prepare) for effect in runner.told) == 2


class AnyOrder(RuleBasedStateMachine):
    """Two placements whose true times differ or do not, measurements that waver by a twelfth, attempts that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = Runner(ReplanPolicy.after(10))
        self.runner.feed(RunServes())
        self.true_ms = [100, 100]
        self.is_moved = False
        self.is_drained = False
        self.moves: list[tuple[int, float]] = []

    def _measure(self, noise: tuple[int, int]) -> None:
        here, there = self.true_ms[self.is_moved], self.true_ms[not self.is_moved]
        standing, best = one(max(1, here * noise[0] // 100)), one(max(1, there * noise[1] // 100))
        self.runner.found = Looked(standing, (BEST, best), best)

    @rule(gone_s=st.integers(1, 30), noise=st.tuples(st.integers(92, 108), st.integers(92, 108)))
    def time_passes(self, gone_s: int, noise: tuple[int, int]) -> None:
        self._measure(noise)
        self.runner.pass_time(self.runner.now + gone_s * SECOND)

    @precondition(lambda self: self.runner.machine.phase is ReplanPhase.PREPARING)
    @rule(is_beside=st.booleans())
    def stages_stand_ready(self, is_beside: bool) -> None:
        self.runner.feed(Prepared(self._attempt(), is_beside))

    @precondition(lambda self: self.runner.machine.phase is ReplanPhase.DRAINING)
    @rule()
    def the_driver_is_drained(self) -> None:
        before = self.runner.moves()
        self.is_drained = True
        self.runner.feed(Drained(self._attempt()))
        self.is_drained = False
        assert self.runner.moves() == before + 1
        gain = self.true_ms[not self.is_moved] / self.true_ms[self.is_moved]
        self.moves.append((self.runner.now, gain))
        self.is_moved = not self.is_moved
        self.runner.feed(RunServes())

    @precondition(lambda self: self.runner.machine.phase in (ReplanPhase.PREPARING, ReplanPhase.DRAINING))
    @rule()
    def the_attempt_fails(self) -> None:
        self.runner.feed(AttemptFailed(self._attempt()))
        assert self.runner.machine.phase is ReplanPhase.WATCHING

    @rule(late=st.integers(0, 3), kind=st.sampled_from([Drained, AttemptFailed]))
    def a_late_word_of_an_earlier_attempt_changes_nothing(self, late: int, kind: type) -> None:
        attempt = self.runner.machine._attempt - 1 - late
        told, phase = len(self.runner.told), self.runner.machine.phase
        self.runner.feed(kind(attempt))
        assert (len(self.runner.told), self.runner.machine.phase) == (told, phase)

    @rule(found=st.sampled_from([unwanted(), unwanted(None)]), is_beside=st.booleans(), waits_s=st.integers(0, 5))
    def a_peer_leaves(self, found: Looked, is_beside: bool, waits_s: int) -> None:
        """Whatever was under way, it is moved off or let go, within the time that a drain may take."""
        self.runner.told.clear()
        self.runner.found = found
        self.runner.feed(PeerLeaves())
        if self.runner.machine.phase is ReplanPhase.PREPARING:
            self.runner.feed(Prepared(self._attempt(), is_beside))
            self.runner.pass_time(self.runner.now + waits_s * SECOND)
            self.runner.feed(Drained(self._attempt()))
        assert isinstance(self.runner.told[-1], Move if found.best is not None else LetGo)
        self.runner.feed(RunEnded())
        self.runner.feed(RunServes())

    @rule()
    def the_run_ends_and_another_serves(self) -> None:
        self.runner.feed(RunEnded())
        self.runner.feed(RunServes())

    @precondition(lambda self: self.runner.machine.phase is ReplanPhase.WATCHING)
    @rule(other_ms=st.sampled_from([40, 90, 100, 110, 250]))
    def the_other_placement_becomes_another(self, other_ms: int) -> None:
        self.true_ms[not self.is_moved] = other_ms

    def _attempt(self) -> int:
        return self.runner.machine._attempt

    @invariant()
    def moves_lie_apart(self) -> None:
        rest_us = ReplanPolicy.after(10).rest_us
        times = [at for at, _ in self.moves]
        assert all(later - earlier >= rest_us for earlier, later in itertools.pairwise(times))

    @invariant()
    def a_run_moved_only_for_what_noise_alone_cannot_show(self) -> None:
        assert all(gain < 1 for _, gain in self.moves)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
