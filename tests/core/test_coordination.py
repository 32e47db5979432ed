"""A run: from the last stage to the first, one token, published, serving; or over."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import Micros
from p2pmesh.core.coordination import (
    ClaimWasLost,
    DeadlinePassed,
    Effect,
    EndRun,
    Event,
    LeaveRun,
    ProbeFailed,
    ProbeSucceeded,
    PublishFailed,
    PublishSucceeded,
    ReportServing,
    RunGivenUp,
    RunMachine,
    RunPhase,
    RunPolicy,
    RunStarted,
    StageFailed,
    StageReported,
    StageState,
    StartLoad,
    StartProbe,
    StartPublish,
    accused_stage,
    run_fingerprint,
)


def test_garbage_is_the_work_of_whoever_sent_it() -> None:
    """Rows come from the stage before, tokens from the last."""
    for code in (ErrorCode.FRAME_VALUE_INVALID, ErrorCode.FRAME_COUNT_INVALID, ErrorCode.CREDIT_EXCEEDED):
        assert [accused_stage(index, code, 3) for index in range(3)] == [2, 0, 1]
    assert accused_stage(0, ErrorCode.FRAME_POSITION_INVALID, 1) == 0
    for code in (ErrorCode.PEER_LOST, ErrorCode.ENGINE_CRASHED, ErrorCode.MESSAGE_MALFORMED, ErrorCode.INTERNAL):
        assert accused_stage(1, code, 3) is None


POLICY = RunPolicy(
    progress_us=100, probe_us=50, publish_us=20, fetch_us=200, slowest_bytes_per_s=1_000_000, load_us=150
)
LOST = ErrorCode.PEER_LOST


def ready(index: int) -> StageReported:
    return StageReported(index, StageState.READY)


def feed(machine: RunMachine, *events: Event, at: int = 0) -> list[Effect]:
    return [effect for event in events for effect in machine.handle(event, Micros(at))]


def serving_machine() -> RunMachine:
    machine = RunMachine(2, POLICY)
    feed(machine, RunStarted(), ready(1), ready(0), ProbeSucceeded(), PublishSucceeded())
    return machine


def test_stages_load_downstream_first_then_one_probe_then_publish_then_serve() -> None:
    machine = RunMachine(3, POLICY)
    effects = feed(
        machine, RunStarted(), ready(2), ready(1), ready(0), ProbeSucceeded(), PublishSucceeded()
    )  # fmt: skip
    assert effects == [StartLoad(2), StartLoad(1), StartLoad(0), StartProbe(), StartPublish(), ReportServing()]
    assert machine.phase is RunPhase.SERVING
    assert machine.deadline() is None


def test_a_stage_is_asked_to_load_only_when_those_after_it_are_ready() -> None:
    machine = RunMachine(2, POLICY)
    feed(machine, RunStarted())
    assert feed(machine, ready(0), StageReported(1, StageState.LOADING)) == []
    assert feed(machine, ready(1)) == [StartLoad(0)]


def test_late_and_foreign_reports_are_ignored() -> None:
    machine = RunMachine(2, POLICY)
    assert feed(machine, ready(1)) == []  # not started
    feed(machine, RunStarted(), ready(1))
    late: tuple[Event, ...] = (
        RunStarted(), ready(1), ready(7), ready(-1), StageFailed(2, LOST, ""), StageReported(9, StageState.FAILED),
        ProbeSucceeded(), ProbeFailed(LOST, ""), PublishSucceeded(), DeadlinePassed(),
    )  # fmt: skip
    assert feed(machine, *late) == []
    assert machine.phase is RunPhase.LOADING


def test_a_probe_that_fails_twice_does_not_end_a_run_that_serves() -> None:
    machine = serving_machine()
    assert feed(machine, ProbeFailed(LOST, "late"), ProbeSucceeded(), PublishSucceeded(), ready(0)) == []
    assert machine.phase is RunPhase.SERVING


@pytest.mark.parametrize(
    "before",
    [(RunStarted(),), (RunStarted(), ready(1)), (RunStarted(), ready(1), ready(0)),
     (RunStarted(), ready(1), ready(0), ProbeSucceeded()),
     (RunStarted(), ready(1), ready(0), ProbeSucceeded(), PublishSucceeded())],
)  # fmt: skip
@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_stage_ends_the_run_in_every_phase(before: tuple[Event, ...], index: int) -> None:
    machine = RunMachine(2, POLICY)
    feed(machine, *before)
    assert feed(machine, StageFailed(index, LOST, "gone")) == [EndRun(LOST, "gone", index)]
    assert machine.phase is RunPhase.OVER


@pytest.mark.parametrize("state", [StageState.FAILED, StageState.STOPPED])
def test_a_stage_that_reports_its_end_ends_the_run_and_is_named(state: StageState) -> None:
    (effect,) = feed(serving_machine(), StageReported(1, state))
    assert isinstance(effect, EndRun)
    assert (effect.index, effect.code) == (1, LOST)
    assert state.value in effect.text


def test_a_failed_probe_ends_the_run_and_blames_no_stage() -> None:
    machine = RunMachine(1, POLICY)
    feed(machine, RunStarted(), ready(0))
    (effect,) = feed(machine, ProbeFailed(ErrorCode.DEADLINE_EXCEEDED, "silence"))
    assert effect == EndRun(ErrorCode.DEADLINE_EXCEEDED, "no token came through: silence", None)


def test_a_failed_publication_ends_the_run_and_only_while_it_publishes() -> None:
    machine = RunMachine(1, POLICY)
    failed = PublishFailed(LOST, "no answer")
    feed(machine, RunStarted(), ready(0))
    assert feed(machine, failed) == []
    feed(machine, ProbeSucceeded())
    assert feed(machine, ProbeFailed(LOST, "late")) == []
    assert feed(machine, failed) == [EndRun(LOST, "the model was not published: no answer", None)]
    assert feed(serving_machine(), failed) == []


def test_progress_moves_the_deadline_and_silence_ends_the_run() -> None:
    machine = RunMachine(2, POLICY)
    feed(machine, RunStarted(), at=1000)
    assert machine.deadline() == 1100
    feed(machine, StageReported(1, StageState.DOWNLOADING), at=1090)
    assert machine.deadline() == 1190
    feed(machine, StageReported(0, StageState.DOWNLOADING), at=1100)
    assert machine.deadline() == 1190  # another stage's progress is not the progress that is waited for
    assert feed(machine, DeadlinePassed(), at=1189) == []
    assert feed(machine, DeadlinePassed(), at=1190) == [
        EndRun(ErrorCode.DEADLINE_EXCEEDED, "no progress while loading", 1)
    ]
    assert machine.deadline() is None


def keep_reporting(machine: RunMachine, state: StageState, start: int) -> tuple[int, list[Effect]]:
    """A peer that reports a state of stage 1 again and again: when that leads to anything, and to what."""
    now, effects = start, feed(machine, StageReported(1, state), at=start)
    while not effects and now < 10_000:
        deadline = machine.deadline()
        assert deadline is not None
        now = min(now + 30, deadline)
        effects = feed(machine, DeadlinePassed(), StageReported(1, state), at=now)
    return now, effects


def test_a_peer_that_only_ever_says_that_it_loads_is_given_up() -> None:
    machine = RunMachine(2, POLICY, stage_bytes=(0, 300))
    feed(machine, RunStarted(), at=1000)
    feed(machine, StageReported(1, StageState.DOWNLOADING), at=1050)
    now, effects = keep_reporting(machine, StageState.LOADING, 1100)
    text = "stage 1 is not ready after 0 s, whatever its peer reports"
    assert (now, effects) == (1250, [EndRun(ErrorCode.DEADLINE_EXCEEDED, text, 1)])


def test_a_fetch_has_the_time_that_its_bytes_may_take_and_no_more() -> None:
    machine = RunMachine(2, POLICY, stage_bytes=(0, 300))
    feed(machine, RunStarted(), at=1000)
    now, effects = keep_reporting(machine, StageState.DOWNLOADING, 1050)
    assert now == 1000 + 200 + 300
    assert [effect.index for effect in effects if isinstance(effect, EndRun)] == [1]


def test_a_peer_that_goes_back_to_fetching_gains_nothing_by_that() -> None:
    machine = RunMachine(2, POLICY, stage_bytes=(0, 10_000))
    feed(machine, RunStarted(), StageReported(1, StageState.LOADING), at=1000)
    feed(machine, StageReported(1, StageState.DOWNLOADING), StageReported(1, StageState.LOADING), at=1050)
    assert keep_reporting(machine, StageState.LOADING, 1100)[0] == 1150


def test_each_stage_has_its_own_time() -> None:
    machine = RunMachine(2, POLICY, stage_bytes=(500, 0))
    feed(machine, RunStarted(), at=0)
    feed(machine, StageReported(1, StageState.DOWNLOADING), at=90)
    assert feed(machine, ready(1), at=180) == [StartLoad(0)]
    feed(machine, StageReported(0, StageState.DOWNLOADING), at=270)
    assert machine.deadline() == 370


def test_by_default_the_smallest_stage_has_ten_minutes_for_its_file_and_a_large_one_hours() -> None:
    minute_us = 60_000_000
    assert RunPolicy().longest_fetch_us(0) == 10 * minute_us
    assert RunPolicy().longest_fetch_us(10 * 2**30) == 10 * minute_us + 40_960 * 1_000_000


def test_probe_and_publication_have_deadlines_of_their_own() -> None:
    machine = RunMachine(1, POLICY)
    feed(machine, RunStarted(), ready(0), at=10)
    assert machine.deadline() == 60
    feed(machine, ProbeSucceeded(), at=20)
    assert machine.deadline() == 40
    (effect,) = feed(machine, DeadlinePassed(), at=40)
    assert effect == EndRun(ErrorCode.DEADLINE_EXCEEDED, "no progress while publishing", None)


def test_a_run_without_stages_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        RunMachine(0)


STAGES = 3
EVENTS = st.one_of(
    st.builds(RunStarted),
    st.builds(StageReported, st.integers(-1, STAGES), st.sampled_from(list(StageState))),
    st.builds(ready, st.integers(0, STAGES - 1)),
    st.builds(StageFailed, st.integers(-1, STAGES), st.just(LOST), st.just("")),
    st.builds(ProbeSucceeded),
    st.builds(ProbeFailed, st.just(LOST), st.just("")),
    st.builds(PublishSucceeded),
    st.builds(PublishFailed, st.just(LOST), st.just("")),
    st.builds(ClaimWasLost, st.just(ErrorCode.QUORUM_LOST), st.just("")),
    st.builds(RunGivenUp, st.just(ErrorCode.MODEL_NOT_READY), st.just("")),
    st.builds(DeadlinePassed),
)


def test_a_run_that_its_coordinator_gives_up_ends_by_no_fault_of_a_stage() -> None:
    machine = serving_machine()
    assert feed(machine, RunGivenUp(ErrorCode.MODEL_NOT_READY, "moves")) == [
        EndRun(ErrorCode.MODEL_NOT_READY, "moves", None)
    ]
    assert machine.phase is RunPhase.OVER


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Whatever comes in whatever order, a run goes through its phases once, in order, and ends at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = RunMachine(STAGES, POLICY)
        self.now = 0
        self.effects: list[Effect] = []

    @rule(event=EVENTS, wait=st.integers(0, 120))
    def something_happens(self, event: Event, wait: int) -> None:
        self.now += wait
        self.effects += self.machine.handle(event, Micros(self.now))

    @precondition(lambda self: self.machine.phase is RunPhase.LOADING)
    @rule(index=st.integers(0, STAGES - 1))
    def a_stage_gets_ready(self, index: int) -> None:
        self.effects += self.machine.handle(ready(index), Micros(self.now))

    @invariant()
    def phases_come_once_and_in_order(self) -> None:
        course = [StartLoad(2), StartLoad(1), StartLoad(0), StartProbe(), StartPublish(), ReportServing()]
        done = [effect for effect in self.effects if not isinstance(effect, EndRun | LeaveRun)]
        assert done == course[: len(done)]

    @invariant()
    def the_end_is_the_last_effect_and_the_only_end(self) -> None:
        assert not any(isinstance(effect, EndRun | LeaveRun) for effect in self.effects[:-1])
        ended = bool(self.effects) and isinstance(self.effects[-1], EndRun | LeaveRun)
        assert ended == (self.machine.phase is RunPhase.OVER)

    @invariant()
    def every_wait_has_a_deadline(self) -> None:
        is_waiting = bool(self.effects) and self.machine.phase not in (RunPhase.SERVING, RunPhase.OVER)
        assert (self.machine.deadline() is not None) == is_waiting


AnyOrderOfEvents.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase


def test_whoever_loses_its_claim_leaves_the_run_and_stops_nothing() -> None:
    for machine in (RunMachine(2, POLICY), serving_machine()):
        lost = ClaimWasLost(ErrorCode.QUORUM_LOST, "too few peers renewed")
        assert feed(machine, lost, lost) == [LeaveRun(ErrorCode.QUORUM_LOST, "too few peers renewed")]
        assert machine.phase is RunPhase.OVER


# --- fingerprints -------------------------------------------------------------
HALVES = [(LayerRange(0, 3), "a"), (LayerRange(3, 6), "a")]
OTHER_HALVES = [(LayerRange(0, 2), "a"), (LayerRange(2, 6), "a")]


def test_equal_engines_that_lose_nothing_give_equal_bits_wherever_the_cut_is() -> None:
    assert run_fingerprint(HALVES, "f32", is_lossless=True) == "a"
    assert run_fingerprint(OTHER_HALVES, "f32", is_lossless=True) == "a"
    assert run_fingerprint([(LayerRange(0, 6), "a")], "f16", is_lossless=False) == "a"


def test_other_engines_or_what_a_dtype_loses_at_another_cut_make_another_fingerprint() -> None:
    mixed = [(LayerRange(0, 3), "a"), (LayerRange(3, 6), "b")]
    found = [
        run_fingerprint(mixed, "f32", is_lossless=True),
        run_fingerprint([(LayerRange(0, 3), "b"), (LayerRange(3, 6), "a")], "f32", is_lossless=True),
        run_fingerprint(HALVES, "f16", is_lossless=False),
        run_fingerprint(HALVES, "bf16", is_lossless=False),
        run_fingerprint(OTHER_HALVES, "f16", is_lossless=False),
    ]
    assert len(set(found)) == len(found)
    assert "a" not in found
    assert run_fingerprint(HALVES, "f16", is_lossless=False) == found[2]
