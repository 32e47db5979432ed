"""Which answer is the client's, and when waiting is over."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.quantities import Micros
from p2pmesh.core.mixture.drafts import Call, Draft
from p2pmesh.core.mixture.machine import (
    MAX_REDUCERS,
    Answered,
    Ask,
    Begin,
    Begun,
    DeadlinePassed,
    Decision,
    Drop,
    Effect,
    Event,
    Failed,
    Follow,
    Give,
    GiveUp,
    MixtureMachine,
    Phase,
)
from p2pmesh.core.mixture.roles import MixturePolicy, Role, Worker

POLICY = MixturePolicy()
WORKERS = (
    Worker("big", Role.STRONG),
    Worker("mid", Role.SPECIALIST),
    Worker("odd", Role.SPECIALIST),
    Worker("tiny", Role.FAST),
)
SECOND = 1_000_000
SURE, UNSURE = 900, 100


def of(count: int) -> tuple[Worker, ...]:
    return (*WORKERS[: count - 1], WORKERS[-1])


class Asked:
    """A machine that has begun, and what it did."""

    def __init__(self, count: int = 2, *, has_tools: bool = False, is_continuing: bool = False) -> None:
        self.machine = MixtureMachine(of(count), POLICY, has_tools=has_tools, is_continuing=is_continuing)
        self.done: list[Effect] = []
        self.hear(Begin())

    def hear(self, event: Event, at_s: float = 0) -> tuple[Effect, ...]:
        effects = self.machine.handle(event, Micros(round(at_s * SECOND)))
        self.done += effects
        return effects

    def say(self, index: int, text: str, sure: int = SURE, at_s: float = 0, *, is_whole: bool = True) -> None:
        self.hear(Answered(index, Draft(text, (), sure, is_whole)), at_s)

    def fail(self, index: int, at_s: float = 0, code: ErrorCode = ErrorCode.PEER_LOST) -> None:
        self.hear(Failed(index, code, f"{index} is gone"), at_s)

    def wait(self) -> float:
        """To the deadline."""
        deadline = self.machine.deadline()
        assert deadline is not None
        self.hear(DeadlinePassed(), deadline / SECOND)
        return deadline / SECOND

    @property
    def end(self) -> Effect:
        return self.done[-1]


def test_all_are_asked_at_once() -> None:
    assert Asked(3).done == [Ask(0, "big", Role.STRONG), Ask(1, "mid", Role.SPECIALIST), Ask(2, "tiny", Role.FAST)]


def test_two_who_agree_answer_at_once() -> None:
    asked = Asked(2)
    asked.say(1, "Paris.", UNSURE)
    assert not isinstance(asked.end, Give)
    asked.say(0, "paris", UNSURE)
    assert asked.end == Give(0, Decision.AGREEMENT)


def test_most_of_three_need_not_wait_for_the_third() -> None:
    asked = Asked(3)
    asked.say(1, "Paris")
    asked.say(2, "paris!")
    assert asked.done[-2:] == [Drop(0), Give(1, Decision.AGREEMENT)]


def test_half_of_four_must_wait_for_the_others() -> None:
    asked = Asked(4)
    asked.say(1, "a")
    asked.say(2, "a")
    assert asked.machine.phase is Phase.DRAFTING
    asked.fail(0)
    assert asked.end == Give(1, Decision.AGREEMENT)


def test_who_agrees_early_would_have_had_most_votes_later() -> None:
    """Whatever order drafts come in, the words of the answer are the same."""
    words = {0: "a", 1: "b", 2: "b", 3: "b"}
    given = set()
    for order in permutations(words):
        asked = Asked(4)
        for index in order:
            asked.say(index, words[index])
        assert isinstance(asked.end, Give)
        given.add((words[asked.end.index], asked.end.decision))
    assert given == {("b", Decision.AGREEMENT)}


def test_of_drafts_that_differ_the_strongest_that_is_sure_is_the_answer() -> None:
    for drafts, winner in (
        ([("a", SURE), ("b", SURE), ("c", SURE)], 0),
        ([("a", 499), ("b", 500), ("c", SURE)], 1),
        ([("a", UNSURE), ("b", UNSURE), ("c", SURE)], 2),
    ):
        for order in permutations(range(3)):
            asked = Asked(3)
            for index in order:
                asked.say(index, *drafts[index])
            assert asked.end == Give(winner, Decision.ARBITRATED)


def test_two_votes_of_four_count_more_than_a_sure_model() -> None:
    asked = Asked(4)
    for index, (text, sure) in enumerate((("a", SURE), ("b", UNSURE), ("c", SURE), ("b", UNSURE))):
        asked.say(index, text, sure)
    assert asked.end == Give(1, Decision.ARBITRATED)


def test_drafts_of_unsure_models_are_reduced_by_the_strongest() -> None:
    asked = Asked(3)
    for index in range(3):
        asked.say(index, str(index), UNSURE)
    assert asked.end == Ask(3, "big", None)
    asked.hear(Begun(3))
    assert asked.end == Follow(3, Decision.REDUCED)


def test_with_tools_more_certainty_is_needed() -> None:
    chat, tools = Asked(2), Asked(2, has_tools=True)
    for asked in (chat, tools):
        asked.say(0, "a", 550)
        asked.say(1, "b", 550)
    assert chat.end == Give(0, Decision.ARBITRATED)
    assert tools.end == Ask(2, "big", None)


@pytest.mark.parametrize(
    ("other", "end"),
    [
        (Draft("", (Call("look", '{"at": 2}'),), SURE), Give(0, Decision.ARBITRATED)),
        (Draft("", (Call("look", '{ "at":1 }'),), UNSURE), Give(0, Decision.AGREEMENT)),
        (Draft("", (Call("find", '{"at": 1}'),), SURE), Ask(2, "big", None)),
        (Draft("It is blue.", (), SURE), Ask(2, "big", None)),
        (Draft("", (Call("look", '{"at": '),), SURE), Give(0, Decision.ARBITRATED)),
    ],
)
def test_who_calls_and_who_talks_is_not_arbitrated(other: Draft, end: Effect) -> None:
    asked = Asked(2, has_tools=True)
    asked.hear(Answered(0, Draft("", (Call("look", '{"at": 1}'),), SURE)))
    asked.hear(Answered(1, other))
    assert asked.end == end


def test_a_draft_that_was_cut_off_is_no_answer_while_there_is_a_way() -> None:
    asked = Asked(2)
    asked.say(0, "a", SURE, is_whole=False)
    asked.say(1, "b", UNSURE, is_whole=False)
    assert asked.end == Ask(2, "big", None)
    asked.fail(2)
    asked.fail(3)
    assert asked.end == Give(0, Decision.FALLBACK)


def test_cut_drafts_that_begin_alike_do_not_agree() -> None:
    asked = Asked(2)
    asked.say(0, "a", is_whole=False)
    asked.say(1, "a", is_whole=False)
    assert asked.end == Ask(2, "big", None)


def test_the_only_one_that_did_not_fail_answers_however_unsure() -> None:
    asked = Asked(3)
    asked.fail(0)
    asked.say(2, "a", UNSURE)
    asked.fail(1)
    assert asked.end == Give(2, Decision.ONLY)


def test_when_all_fail_the_strongest_ones_error_is_the_answer() -> None:
    asked = Asked(2)
    asked.fail(1, code=ErrorCode.OVERLOADED)
    asked.fail(0, code=ErrorCode.CONTEXT_LENGTH_EXCEEDED)
    assert asked.end == GiveUp(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "0 is gone")


def test_others_get_a_moment_after_the_first_and_the_strong_one_its_patience() -> None:
    asked = Asked(3)
    asked.say(2, "a", SURE, at_s=1)
    assert asked.machine.deadline() == 20 * SECOND
    asked.say(0, "b", SURE, at_s=2)
    assert asked.wait() == 4
    assert asked.done[-2:] == [Drop(1), Give(0, Decision.ARBITRATED)]


def test_a_strong_model_that_is_too_slow_is_dropped() -> None:
    asked = Asked(2)
    asked.say(1, "a", SURE, at_s=1)
    assert asked.wait() == 20
    assert asked.done[-2:] == [Drop(0), Give(1, Decision.ARBITRATED)]


def test_the_moment_of_grace_may_come_late() -> None:
    asked = Asked(2)
    asked.say(1, "a", SURE, at_s=30)
    assert asked.wait() == 33
    late = Asked(2)
    late.say(1, "a", SURE, at_s=59)
    assert late.wait() == 60


def test_with_tools_all_are_waited_for() -> None:
    asked = Asked(2, has_tools=True)
    asked.say(1, "a", SURE, at_s=1)
    assert asked.wait() == 60
    assert asked.end == Give(1, Decision.ARBITRATED)


def test_a_draft_that_cannot_be_given_starts_no_clock() -> None:
    asked = Asked(2)
    asked.say(1, "a", is_whole=False, at_s=1)
    assert asked.wait() == 60
    assert asked.end == Ask(2, "big", None)


def test_a_slow_reducer_gets_one_beside_it_and_the_first_to_begin_answers() -> None:
    asked = Asked(3)
    for index in range(3):
        asked.say(index, str(index), UNSURE)
    assert asked.wait() == 5
    assert asked.end == Ask(4, "mid", None)
    assert asked.machine.deadline() == 60 * SECOND
    asked.hear(Begun(4), 7)
    assert asked.done[-2:] == [Drop(3), Follow(4, Decision.REDUCED)]


def test_a_reducer_that_fails_is_followed_by_the_next_at_once() -> None:
    asked = Asked(3)
    asked.fail(0)
    asked.say(1, "a", UNSURE)
    asked.say(2, "b", UNSURE)
    models = [asked.end]
    for index in (3, 4):
        asked.fail(index, at_s=1)
        models.append(asked.end)
    assert models == [Ask(3, "mid", None), Ask(4, "tiny", None), Ask(5, "big", None)]
    asked.fail(5)
    assert asked.end == Give(1, Decision.FALLBACK)


def test_when_nobody_begins_in_time_the_best_draft_is_the_answer() -> None:
    asked = Asked(2)
    asked.say(0, "a", UNSURE, at_s=2)
    asked.say(1, "b", UNSURE, at_s=2)
    asked.wait()
    assert asked.wait() == 62
    assert asked.done[-3:] == [Drop(2), Drop(3), Give(0, Decision.FALLBACK)]


def test_when_nobody_says_anything_in_time_that_is_said() -> None:
    asked = Asked(2)
    assert asked.wait() == 60
    asked.wait()
    asked.wait()
    assert isinstance(asked.end, GiveUp)
    assert asked.end.code is ErrorCode.DEADLINE_EXCEEDED


def test_a_turn_that_answers_calls_goes_to_the_strong_model_alone() -> None:
    asked = Asked(3, has_tools=True, is_continuing=True)
    assert asked.done == [Ask(0, "big", None)]
    asked.hear(Begun(0), 1)
    assert asked.end == Follow(0, Decision.CONTINUED)
    alone = Asked(2, is_continuing=True)
    alone.fail(0)
    alone.fail(1, code=ErrorCode.OVERLOADED)
    assert alone.end == GiveUp(ErrorCode.PEER_LOST, "0 is gone")


DRAFTS = st.builds(
    Draft,
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from([(), (Call("look", "{}"),), (Call("look", "{"),)]),
    st.sampled_from([0, 499, 500, 599, 600, 1000]),
    st.booleans(),
)


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes, in whatever order: it ends once, with something that was asked and is there."""

    @initialize(count=st.integers(2, 4), has_tools=st.booleans(), is_continuing=st.booleans())
    def begin(self, count: int, has_tools: bool, is_continuing: bool) -> None:
        self.workers = of(count)
        self.machine = MixtureMachine(self.workers, POLICY, has_tools=has_tools, is_continuing=is_continuing)
        self.now = 0
        self.out: dict[int, Ask] = {}
        self.drafts: dict[int, Draft] = {}
        self.failed: set[int] = set()
        self.end: Effect | None = None
        self.asked = 0
        self.run(Begin())

    def run(self, event: Event) -> None:
        if isinstance(event, Answered | Failed | Begun) and event.index in self.out:
            if isinstance(event, Answered):
                self.drafts[event.index] = event.draft
            if not isinstance(event, Begun):
                self.failed |= {event.index} if isinstance(event, Failed) else set()
                del self.out[event.index]
        for effect in self.machine.handle(event, Micros(self.now)):
            self.note(effect, event)

    def note(self, effect: Effect, event: Event) -> None:
        assert self.end is None, "nothing follows the end"
        match effect:
            case Ask(index):
                assert index not in self.out
                assert index == self.asked
                self.asked += 1
                self.out[index] = effect
            case Drop(index):
                del self.out[index]
            case Give(index):
                assert index in self.drafts
                self.end = effect
            case Follow(index):
                assert isinstance(event, Begun)
                assert event.index == index
                del self.out[index]
                self.end = effect
            case GiveUp():
                assert not any(draft.is_usable for draft in self.drafts.values())
                self.end = effect

    @rule(index=st.integers(0, 9), draft=DRAFTS)
    def answer(self, index: int, draft: Draft) -> None:
        if index in self.out and self.out[index].role is not None:
            self.run(Answered(index, draft))

    @rule(index=st.integers(0, 9))
    def fail(self, index: int) -> None:
        self.run(Failed(index, ErrorCode.PEER_LOST, "gone"))

    @rule(index=st.integers(0, 9))
    def start_answering(self, index: int) -> None:
        if index in self.out and self.out[index].role is None:
            self.run(Begun(index))

    @rule(us=st.integers(0, 25 * SECOND))
    def pass_time(self, us: int) -> None:
        deadline = self.machine.deadline()
        self.now += us if deadline is None else min(us, max(0, deadline - self.now))
        self.run(DeadlinePassed())

    @precondition(lambda self: self.machine.deadline() is not None)
    @rule()
    def reach_deadline(self) -> None:
        self.now = max(self.now, int(self.machine.deadline() or 0))
        self.run(DeadlinePassed())

    @invariant()
    def someone_is_out_and_watched_until_the_end(self) -> None:
        assert (self.end is None) == (self.machine.phase is not Phase.OVER)
        assert (self.end is None) == (self.machine.deadline() is not None)
        if self.end is None:
            assert self.out
            assert set(self.machine.pending) == set(self.out)
        else:
            assert not self.out, "whoever is not the answer was dropped"

    @invariant()
    def few_are_out(self) -> None:
        reducers = [ask for ask in self.out.values() if ask.role is None]
        assert len(reducers) <= MAX_REDUCERS
        assert len(reducers) in (0, len(self.out)), "drafts are over before they are reduced"
        assert self.asked <= 3 * len(self.workers)

    @invariant()
    def nobody_waits_longer_than_both_times(self) -> None:
        assert self.end is not None or self.now <= POLICY.worker_us + POLICY.reducer_us

    def teardown(self) -> None:
        """Time alone ends it."""
        if not hasattr(self, "machine"):
            return
        for _ in range(2 * len(self.workers) + 4):
            if self.end is not None:
                return
            self.reach_deadline()
        raise AssertionError("it never ends")


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def decided(drafts: Sequence[Draft], order: Sequence[int]) -> tuple[object, ...]:
    asked = Asked(len(drafts))
    for index in order:
        asked.hear(Answered(index, drafts[index]))
    end = asked.end
    if isinstance(end, Give):
        return end.decision, drafts[end.index].meaning
    return (end,)


@pytest.mark.parametrize("seed", range(60))
def test_the_same_drafts_decide_the_same_in_any_order(seed: int) -> None:
    """All combinations of what four models may say are too many: each seed takes others."""
    texts, sures = ("a", "b", "", "c"), (100, 500, 900)
    drafts = [Draft(texts[(seed + place * 7) % 4], (), sures[(seed * 5 + place) % 3]) for place in range(2 + seed % 3)]
    outcomes = {decided(drafts, order) for order in permutations(range(len(drafts)))}
    assert len(outcomes) == 1
