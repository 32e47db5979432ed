"""One sequence at its driver: chunks under credit, tokens, ends, deadlines."""

from collections import deque
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.quantities import Micros
from p2pmesh.core.generation import (
    Asking,
    Begin,
    CancelRequested,
    CreditArrived,
    DeadlinePassed,
    Effect,
    Emit,
    Event,
    Fail,
    Finish,
    GenerationMachine,
    GenerationPolicy,
    HeldArrived,
    Reused,
    RunEnded,
    SendBegin,
    SendCancel,
    SendDecode,
    SendEnd,
    SendPrefill,
    SendReplay,
    SequenceFailed,
    TokensArrived,
)
from p2pmesh.core.holding import Held
from p2pmesh.core.text import TextAssembler
from p2pmesh.wire.generation import FinishReason

PIECES = [b"a", b"b", b"c", b"d", b"\xc3", b"\xa9", b"END", b""]
END_TOKEN = 7
POLICY = GenerationPolicy(
    chunk_tokens=4, credits=2, context_tokens=64, replay_rows=3, floor_us=1000, unmeasured_us_per_token=100
)
NOW = Micros(0)


def machine_for(
    prompt: int, max_tokens: int | None = None, stops: tuple[str, ...] = (), policy: GenerationPolicy = POLICY
) -> GenerationMachine:
    return GenerationMachine(
        tuple(range(prompt)), max_tokens, frozenset({END_TOKEN}), TextAssembler(PIECES, stops), policy
    )


def feed(machine: GenerationMachine, *events: Event, at: int = 0) -> list[Effect]:
    return [effect for event in events for effect in machine.handle(event, Micros(at))]


def token(position: int, token_id: int) -> TokensArrived:
    return TokensArrived(position, (token_id,))


def prefill(start: int, end: int, *, is_last: bool = False) -> SendPrefill:
    return SendPrefill(start, tuple(range(start, end)), is_last)


# --- the prompt ---------------------------------------------------------------
def test_a_short_prompt_goes_out_as_one_last_chunk() -> None:
    assert feed(machine_for(3), Begin()) == [SendBegin(), prefill(0, 3, is_last=True)]


def test_a_long_prompt_waits_for_credits_on_a_grid_of_chunks() -> None:
    machine = machine_for(14)
    assert feed(machine, Begin()) == [SendBegin(), prefill(0, 4), prefill(4, 8)]
    assert feed(machine, CreditArrived(4)) == [prefill(8, 12)]
    assert feed(machine, CreditArrived(12)) == [prefill(12, 14, is_last=True)]
    assert feed(machine, CreditArrived(14)) == []


def test_a_prompt_of_whole_chunks_has_no_empty_last_one() -> None:
    assert feed(machine_for(8), Begin())[1:] == [prefill(0, 4), prefill(4, 8, is_last=True)]


def test_a_second_begin_does_nothing() -> None:
    machine = machine_for(3)
    feed(machine, Begin())
    assert feed(machine, Begin()) == []


@pytest.mark.parametrize("credit", [0, 3, 5, 12, 10**9])
def test_a_credit_for_what_was_not_sent_or_not_on_the_grid_fails_the_sequence(credit: int) -> None:
    machine = machine_for(14)
    feed(machine, Begin())
    cancel, fail = feed(machine, CreditArrived(credit))
    assert cancel == SendCancel()
    assert isinstance(fail, Fail)
    assert fail.code is ErrorCode.FRAME_POSITION_INVALID
    assert str(credit) in fail.text


def test_a_credit_that_comes_twice_fails_the_sequence() -> None:
    machine = machine_for(14)
    feed(machine, Begin(), CreditArrived(4))
    assert isinstance(feed(machine, CreditArrived(4))[-1], Fail)


def test_an_empty_prompt_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        machine_for(0)


def test_a_prompt_that_fills_the_context_is_refused_before_a_lane_is_taken() -> None:
    (fail,) = feed(machine_for(64), Begin())
    assert isinstance(fail, Fail)
    assert fail.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert "64" in fail.text


def test_no_tokens_asked_for_ends_at_once() -> None:
    assert feed(machine_for(3, max_tokens=0), Begin()) == [Finish(FinishReason.LENGTH, "", 0)]


# --- tokens -------------------------------------------------------------------
def test_each_token_is_sent_on_and_given_out() -> None:
    machine = machine_for(3)
    feed(machine, Begin(), CreditArrived(3))
    assert feed(machine, token(3, 0), token(4, 1)) == [
        SendDecode(3, 0), Emit((0,), "a"), SendDecode(4, 1), Emit((1,), "b")
    ]  # fmt: skip


def test_a_token_may_overtake_the_last_credit_and_its_deadline_stands() -> None:
    machine = machine_for(3, policy=replace(POLICY, step_us=1000))
    feed(machine, Begin(), token(3, 0))
    assert machine.deadline() == 20_000
    assert feed(machine, CreditArrived(3), at=5) == []
    assert machine.deadline() == 20_000


def test_an_end_token_stops_and_has_no_text() -> None:
    machine = machine_for(3)
    feed(machine, Begin(), token(3, 0))
    assert feed(machine, token(4, END_TOKEN)) == [
        SendEnd(), Emit((END_TOKEN,), ""), Finish(FinishReason.STOP, "", 2)
    ]  # fmt: skip


def test_max_tokens_ends_with_length_and_releases_held_text() -> None:
    machine = machine_for(3, max_tokens=2, stops=("ab!",))
    feed(machine, Begin())
    assert feed(machine, token(3, 0))[1] == Emit((0,), "")
    assert feed(machine, token(4, 1)) == [SendEnd(), Emit((1,), ""), Finish(FinishReason.LENGTH, "ab", 2)]


def test_half_a_character_at_the_end_comes_out_with_the_end() -> None:
    machine = machine_for(3, max_tokens=1)
    feed(machine, Begin())
    assert feed(machine, token(3, 4))[1:] == [Emit((4,), ""), Finish(FinishReason.LENGTH, "\ufffd", 1)]


def test_a_stop_sequence_ends_with_the_text_before_it() -> None:
    machine = machine_for(3, stops=("bc",))
    feed(machine, Begin(), token(3, 0), token(4, 1))
    assert feed(machine, token(5, 2)) == [SendEnd(), Emit((2,), ""), Finish(FinishReason.STOP, "", 3, "bc")]


def test_a_stop_that_the_limit_completes_is_the_end() -> None:
    assembler = TextAssembler([b"a", b"\xf0"], ("\ufffd",))
    machine = GenerationMachine((0, 0, 0), 1, frozenset({END_TOKEN}), assembler, POLICY)
    feed(machine, Begin())
    assert feed(machine, token(3, 1))[-1] == Finish(FinishReason.STOP, "", 1, "\ufffd")


def test_the_context_ends_a_sequence_without_max_tokens() -> None:
    machine = machine_for(62)
    feed(machine, Begin(), *(CreditArrived(at) for at in (*range(4, 64, 4), 62)))
    assert isinstance(feed(machine, token(62, 0))[-1], Emit)
    assert feed(machine, token(63, 0))[-1] == Finish(FinishReason.LENGTH, "", 2)


@pytest.mark.parametrize(
    "arrived",
    [TokensArrived(2, (0,)), TokensArrived(4, (0,)), TokensArrived(3, ()), TokensArrived(3, (0, 1))],
)
def test_tokens_that_were_not_asked_for_fail_the_sequence(arrived: TokensArrived) -> None:
    machine = machine_for(3)
    feed(machine, Begin())
    cancel, fail = feed(machine, arrived)
    assert cancel == SendCancel()
    assert isinstance(fail, Fail)
    assert fail.code is ErrorCode.FRAME_POSITION_INVALID


def test_a_token_before_the_prompt_is_out_fails_the_sequence() -> None:
    machine = machine_for(14)
    feed(machine, Begin())
    assert isinstance(feed(machine, token(14, 0))[-1], Fail)


def test_a_token_that_comes_twice_fails_the_sequence() -> None:
    machine = machine_for(3)
    feed(machine, Begin(), token(3, 0))
    assert isinstance(feed(machine, token(3, 0))[-1], Fail)


# --- going on after a loss ----------------------------------------------------
def resumed(prompt: int, history: tuple[int, ...], max_tokens: int | None = None) -> GenerationMachine:
    return GenerationMachine(
        tuple(range(prompt)), max_tokens, frozenset({END_TOKEN}), TextAssembler(PIECES, ("bc",)), POLICY, history
    )


def test_a_history_is_replayed_behind_the_prompt_and_only_its_last_row_is_sampled() -> None:
    machine = resumed(3, (0, 0, 1, 0, 3))
    assert feed(machine, Begin()) == [SendBegin(), prefill(0, 3), SendReplay(3, (0, 0, 1))]
    assert feed(machine, CreditArrived(3)) == [SendReplay(6, (0,)), SendDecode(7, 3)]
    assert feed(machine, CreditArrived(6), CreditArrived(7)) == []
    assert feed(machine, token(8, 1)) == [SendDecode(8, 1), Emit((1,), "")]


def test_a_history_of_one_token_needs_no_replay() -> None:
    assert feed(resumed(3, (0,)), Begin()) == [SendBegin(), prefill(0, 3), SendDecode(3, 0)]


def test_a_replay_stands_under_the_credits_of_the_prompt() -> None:
    machine = resumed(6, (0,) * 10)
    assert feed(machine, Begin()) == [SendBegin(), prefill(0, 4), prefill(4, 6)]
    assert feed(machine, CreditArrived(4)) == [SendReplay(6, (0, 0, 0))]
    assert feed(machine, CreditArrived(6)) == [SendReplay(9, (0, 0, 0))]
    assert feed(machine, CreditArrived(9)) == [SendReplay(12, (0, 0, 0)), SendDecode(15, 0)]


@pytest.mark.parametrize("credit", [0, 5, 7, 8, 16])
def test_a_credit_within_a_replayed_frame_fails_the_sequence(credit: int) -> None:
    machine = resumed(3, (0,) * 10)
    feed(machine, Begin(), CreditArrived(3))
    assert isinstance(feed(machine, CreditArrived(credit))[-1], Fail)


def test_a_token_before_the_replay_is_out_fails_the_sequence() -> None:
    machine = resumed(6, (0,) * 10)
    feed(machine, Begin())
    assert isinstance(feed(machine, token(16, 0))[-1], Fail)


def test_a_replay_has_a_deadline_of_its_own() -> None:
    policy = replace(POLICY, replay_rows=3, step_us=1000)
    machine = GenerationMachine((1, 2), None, frozenset(), TextAssembler(PIECES), policy, (0,) * 20)
    feed(machine, Begin())
    assert machine.deadline() == 1000 + 3 * 20_000
    feed(machine, CreditArrived(2), at=10)
    assert machine.deadline() == 10 + 1000 + 3 * 20_000


@pytest.mark.parametrize(
    ("history", "max_tokens", "end"),
    [
        ((0, END_TOKEN), None, Finish(FinishReason.STOP, "", 2)),
        ((0, 1, 2), None, Finish(FinishReason.STOP, "", 3, "bc")),
        ((0, 1), 2, Finish(FinishReason.LENGTH, "b", 2)),
    ],
)
def test_a_history_at_its_end_ends_again_and_nothing_is_computed(
    history: tuple[int, ...], max_tokens: int | None, end: Finish
) -> None:
    machine = resumed(3, history, max_tokens)
    assert feed(machine, Begin()) == [end]
    assert machine.is_over


@pytest.mark.parametrize(("history", "max_tokens"), [((END_TOKEN, 0), None), ((1, 2, 0), None), ((0, 0, 0), 2)])
def test_a_history_that_goes_on_after_its_end_is_refused(history: tuple[int, ...], max_tokens: int | None) -> None:
    (fail,) = feed(resumed(3, history, max_tokens), Begin())
    assert isinstance(fail, Fail)
    assert fail.code is ErrorCode.REQUEST_INVALID


# --- other ends ---------------------------------------------------------------
def test_a_client_that_goes_away_cancels_every_stage() -> None:
    machine = machine_for(14)
    feed(machine, Begin())
    cancel, fail = feed(machine, CancelRequested())
    assert cancel == SendCancel()
    assert isinstance(fail, Fail)
    assert fail.code is ErrorCode.CANCELLED


def test_a_stage_that_gives_up_passes_its_code_on() -> None:
    machine = machine_for(3)
    feed(machine, Begin())
    assert feed(machine, SequenceFailed(ErrorCode.ENGINE_CRASHED, "SIGILL")) == [
        SendCancel(), Fail(ErrorCode.ENGINE_CRASHED, "SIGILL")
    ]  # fmt: skip


def test_the_deadline_follows_what_was_measured_with_a_floor() -> None:
    assert POLICY.prefill_wait_us(100) == 10_000
    assert POLICY.prefill_wait_us(1) == 1000
    assert replace(POLICY, prefill_us_per_token=50).prefill_wait_us(10) == 10_000
    assert POLICY.step_wait_us() == 1000
    assert replace(POLICY, step_us=500).step_wait_us() == 10_000


def test_silence_fails_the_sequence_at_its_deadline_and_not_before() -> None:
    machine = machine_for(20)
    assert machine.deadline() is None
    assert feed(machine, DeadlinePassed()) == []
    feed(machine, Begin(), at=500)
    assert machine.deadline() == 1500  # eight tokens are out, the floor is longer
    feed(machine, CreditArrived(4), at=1400)
    assert machine.deadline() == 2400
    assert feed(machine, DeadlinePassed(), at=2399) == []
    cancel, fail = feed(machine, DeadlinePassed(), at=2400)
    assert cancel == SendCancel()
    assert fail == Fail(ErrorCode.DEADLINE_EXCEEDED, "the stages did not answer in time for the prompt")
    assert machine.deadline() is None
    assert machine.is_over


def test_a_late_token_is_named_in_the_failure() -> None:
    machine = machine_for(3)
    feed(machine, Begin(), token(3, 0))
    fail = feed(machine, DeadlinePassed(), at=1000)[-1]
    assert isinstance(fail, Fail)
    assert "token 2" in fail.text


# --- against a simple loop ----------------------------------------------------
@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    max_tokens: int | None
    stops: tuple[str, ...]


CASES = st.builds(
    Case,
    st.lists(st.integers(0, 7), min_size=1, max_size=40).map(tuple),
    st.lists(st.integers(0, 7), min_size=64, max_size=64).map(tuple),
    st.none() | st.integers(1, 30),
    st.lists(st.sampled_from(["END", "ab", "é", "dd", "cEND"]), max_size=3, unique=True).map(tuple),
)


def simple_generation(case: Case) -> tuple[list[int], str, FinishReason]:
    """What one process with one loop would answer; it looks at the whole text after each token."""
    limit = POLICY.context_tokens - len(case.prompt)
    limit = limit if case.max_tokens is None else min(limit, case.max_tokens)
    tokens: list[int] = []
    while True:
        tokens.append(case.sampled[len(tokens)])
        assembler = TextAssembler(PIECES, case.stops)
        steps = [assembler.add(token_id) for token_id in tokens]
        text = "".join(step.text for step in steps)
        if steps[-1].is_stopped:
            return tokens, text, FinishReason.STOP
        if tokens[-1] == END_TOKEN:
            return tokens, text + assembler.finish().text, FinishReason.STOP
        if len(tokens) == limit:
            return tokens, text + assembler.finish().text, FinishReason.LENGTH


class FakePipeline:
    """All stages in one: checks what it is sent, gives credits and scripted tokens back."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.kept: list[int] = []
        self.answers: deque[Event] = deque()
        self.charges: dict[int, int] = {}
        """Of the frames without a credit, by where they end: a chunk counts as a full one, a replayed frame too."""

    def answer(self) -> Event:
        event = self.answers.popleft()
        if isinstance(event, CreditArrived):
            del self.charges[event.position]
        return event

    def _charge(self, rows: int) -> None:
        self.charges[len(self.kept)] = rows
        assert sum(self.charges.values()) <= POLICY.credits * POLICY.chunk_tokens

    def take(self, effect: Effect) -> None:
        match effect:
            case SendPrefill(position, tokens, is_last):
                assert position == len(self.kept)
                self.kept += tokens
                self._charge(POLICY.chunk_tokens)
                self.answers.append(CreditArrived(len(self.kept)))
                if is_last:
                    self._sample()
            case SendReplay(position, tokens):
                assert position == len(self.kept)
                self.kept += tokens
                self._charge(POLICY.replay_rows)
                self.answers.append(CreditArrived(len(self.kept)))
            case SendDecode(position, token_id):
                assert position == len(self.kept)
                self.kept.append(token_id)
                self._sample()
            case _:
                pass

    def _sample(self) -> None:
        number = len(self.kept) - len(self.case.prompt)
        self.answers.append(token(len(self.kept), self.case.sampled[number]))


def run_pipeline(case: Case, history: tuple[int, ...] = ()) -> tuple[list[Effect], FakePipeline]:
    """All that one driver gives rise to, with a pipeline that loses nothing."""
    assembler = TextAssembler(PIECES, case.stops)
    machine = GenerationMachine(case.prompt, case.max_tokens, frozenset({END_TOKEN}), assembler, POLICY, history)
    pipeline = FakePipeline(case)
    effects: list[Effect] = []
    pending = deque(machine.handle(Begin(), NOW))
    while pending or pipeline.answers:
        if not pending:
            pending.extend(machine.handle(pipeline.answer(), NOW))
            continue
        effects.append(pending.popleft())
        pipeline.take(effects[-1])
    return effects, pipeline


@given(CASES, st.integers(0, 64))
def test_a_driver_that_goes_on_gives_what_the_first_one_had_not_given(case: Case, lost_after: int) -> None:
    effects, _ = run_pipeline(case)
    emitted = [effect for effect in effects if isinstance(effect, Emit)]
    given_out, owed = emitted[:lost_after], emitted[lost_after:]
    history = tuple(token_id for emit in given_out for token_id in emit.tokens)
    again, pipeline = run_pipeline(case, history)
    assert [effect for effect in again if isinstance(effect, Emit)] == owed
    assert again[-1] == effects[-1]
    tokens, _, _ = simple_generation(case)
    assert tuple(pipeline.kept) == ((*case.prompt, *tokens[:-1]) if owed else ())


@given(CASES)
def test_the_machine_answers_what_a_simple_loop_answers(case: Case) -> None:
    effects, pipeline = run_pipeline(case)
    tokens, text, reason = simple_generation(case)
    finish = effects[-1]
    emitted = [effect for effect in effects if isinstance(effect, Emit)]
    assert isinstance(finish, Finish)
    assert [token_id for emit in emitted for token_id in emit.tokens] == tokens
    assert "".join(emit.text for emit in emitted) + finish.text == text
    assert (finish.reason, finish.completion_tokens) == (reason, len(tokens))
    assert tuple(pipeline.kept) == (*case.prompt, *tokens[:-1])


# --- stages that hold rows already ------------------------------------------------
class FakeStages:
    """Several stages, each with rows of its own; credits of those between come on another way than the last one's."""

    def __init__(self, case: Case, held: list[Held]) -> None:
        self.case = case
        self.held = held
        self.kept = [one.rows for one in held]
        self.computed = [0] * len(held)
        self.chain: deque[Event] = deque()
        self.direct: deque[Event] = deque()
        self.charges: dict[int, int] = {}

    def take(self, effect: Effect) -> None:
        match effect:
            case SendBegin():
                self.chain.extend(HeldArrived(index, held) for index, held in enumerate(self.held))
            case SendPrefill(position, tokens, is_last, stages):
                assert position % POLICY.chunk_tokens == 0
                self._compute(position, len(tokens), stages)
                self._credit(position + len(tokens), stages, POLICY.chunk_tokens)
                if is_last:
                    self._sample(position + len(tokens))
            case SendReplay(position, tokens, stages):
                self._compute(position, len(tokens), stages)
                self._credit(position + len(tokens), stages, POLICY.replay_rows)
            case SendDecode(position):
                self._compute(position, 1, 0)
                self._sample(position + 1)
            case _:
                pass

    def _compute(self, position: int, count: int, stages: int) -> None:
        for index in range(stages or len(self.kept)):
            assert position <= self.kept[index]
            assert not self.held[index].is_fixed or position in (0, self.kept[index])
            self.kept[index] = position + count
            self.computed[index] += count

    def _credit(self, end: int, stages: int, rows: int) -> None:
        self.charges[end] = rows
        assert sum(self.charges.values()) <= POLICY.credits * POLICY.chunk_tokens
        (self.chain if stages else self.direct).append(CreditArrived(end))

    def _sample(self, position: int) -> None:
        number = position - len(self.case.prompt)
        self.direct.append(token(position, self.case.sampled[number]))

    def answer(self, *, direct_first: bool) -> Event:
        ways = (self.direct, self.chain) if direct_first else (self.chain, self.direct)
        event = next(way for way in ways if way).popleft()
        if isinstance(event, CreditArrived):  # it stands for those before it, too
            self.charges = {end: rows for end, rows in self.charges.items() if end > event.position}
        return event


def go_on(case: Case, history: tuple[int, ...], held: list[Held], order: list[bool]) -> tuple[list[Effect], FakeStages]:
    assembler = TextAssembler(PIECES, case.stops)
    machine = GenerationMachine(
        case.prompt, case.max_tokens, frozenset({END_TOKEN}), assembler, POLICY, history, asks=Asking(len(held))
    )
    stages = FakeStages(case, held)
    effects: list[Effect] = []
    pending = deque(machine.handle(Begin(), NOW))
    while pending or stages.chain or stages.direct:
        if not pending:
            direct_first = order.pop() if order else False
            pending.extend(machine.handle(stages.answer(direct_first=direct_first), NOW))
            continue
        effects.append(pending.popleft())
        stages.take(effects[-1])
    return effects, stages


HELD = st.lists(st.builds(Held, st.integers(0, 64), st.booleans()), min_size=1, max_size=4)


@given(CASES, st.integers(0, 64), HELD, st.lists(st.booleans(), max_size=40))
def test_whatever_stages_hold_the_answer_goes_on_as_it_would_have(
    case: Case, lost_after: int, held: list[Held], order: list[bool]
) -> None:
    effects, _ = run_pipeline(case)
    emitted = [effect for effect in effects if isinstance(effect, Emit)]
    history = tuple(token_id for emit in emitted[:lost_after] for token_id in emit.tokens)
    rows = len(case.prompt) + len(history)
    held = [replace(one, rows=min(one.rows, rows)) for one in held]
    again, stages = go_on(case, history, held, order)
    assert [effect for effect in again if isinstance(effect, Emit)] == emitted[lost_after:]
    assert again[-1] == effects[-1]
    tokens, _, _ = simple_generation(case)
    if emitted[lost_after:]:
        assert stages.kept == [len(case.prompt) + len(tokens) - 1] * len(held)


def test_a_lost_first_stage_computes_alone_what_the_others_hold() -> None:
    case = Case((0,) * 10, (1,) * 64, 9, ())
    effects, stages = go_on(case, (1,) * 6, [Held(0), Held(15), Held(16)], [])
    assert stages.computed == [18, 3, 3]
    sent = [effect for effect in effects if isinstance(effect, SendPrefill | SendReplay)]
    assert {effect.stages for effect in sent} == {1}


def test_what_a_stage_between_credits_may_be_overtaken_by_the_last_one() -> None:
    machine = GenerationMachine((0,) * 8, 9, frozenset(), TextAssembler(PIECES, ()), POLICY, (1,) * 6, asks=Asking(2))
    feed(machine, Begin(), HeldArrived(0, Held(4)), HeldArrived(1, Held(8)))
    assert feed(machine, CreditArrived(11)) == [SendReplay(11, (1, 1)), SendDecode(13, 1)]
    assert feed(machine, CreditArrived(8)) == []
    assert isinstance(feed(machine, CreditArrived(8))[-1], Fail)


@pytest.mark.parametrize("told", [[0, 0], [1, 1], [2], [-1], [0, 1, 1]])
def test_stages_that_tell_what_they_hold_twice_or_are_none_fail_the_sequence(told: list[int]) -> None:
    machine = GenerationMachine((0,) * 8, 9, frozenset(), TextAssembler(PIECES, ()), POLICY, (), asks=Asking(2))
    effects = feed(machine, Begin(), *(HeldArrived(index, Held(0)) for index in told))
    assert isinstance(effects[-1], Fail)
    assert effects[-1].code is ErrorCode.FRAME_POSITION_INVALID


@pytest.mark.parametrize(("told", "first"), [((8, 8), 8), ((8, 0), 0), ((0, 0), 0)])
def test_a_prompt_begins_where_every_stage_has_the_rows_of_another(told: tuple[int, int], first: int) -> None:
    machine = GenerationMachine(
        tuple(range(10)), 9, frozenset(), TextAssembler(PIECES, ()), POLICY, (), Asking(2, shared_rows=8)
    )
    effects = feed(machine, Begin(), *(HeldArrived(index, Held(rows)) for index, rows in enumerate(told)))
    assert effects[:2] == [SendBegin(), Reused(first)]
    assert effects[-1] == (prefill(8, 10, is_last=True) if first else prefill(4, 8))


@pytest.mark.parametrize(
    ("told", "reused", "sent"),
    [
        ((15, 8), 8, [SendPrefill(8, (8, 9), is_last=False), SendReplay(10, (0,) * 3)]),
        ((0, 15), 0, [SendPrefill(0, tuple(range(4)), is_last=False, stages=1)]),
        ((15, 15), 8, [SendDecode(15, 0)]),
    ],
)
def test_what_goes_on_shares_with_another_where_its_own_rows_are_lost(
    told: tuple[int, int], reused: int, sent: list[Effect]
) -> None:
    asks = Asking(2, shared_rows=8, continues=True)
    machine = GenerationMachine(tuple(range(10)), 9, frozenset(), TextAssembler(PIECES, ()), POLICY, (0,) * 6, asks)
    effects = feed(machine, Begin(), *(HeldArrived(index, Held(rows)) for index, rows in enumerate(told)))
    assert effects[: 2 + len(sent)] == [SendBegin(), Reused(reused), *sent]


def test_a_prefix_that_ends_within_a_chunk_goes_on_to_where_that_ends() -> None:
    policy = replace(POLICY, chunk_tokens=4, slice_tokens=2)
    machine = GenerationMachine(
        tuple(range(11)), 9, frozenset(), TextAssembler(PIECES, ()), policy, (), Asking(1, shared_rows=6)
    )
    effects = feed(machine, Begin(), HeldArrived(0, Held(6)))
    assert effects == [SendBegin(), Reused(6), prefill(6, 8), prefill(8, 11, is_last=True)]


@pytest.mark.parametrize("rows", [4, 9, 64])
def test_a_stage_that_holds_what_was_not_asked_for_fails_the_sequence(rows: int) -> None:
    machine = GenerationMachine(
        tuple(range(10)), 9, frozenset(), TextAssembler(PIECES, ()), POLICY, (), Asking(1, shared_rows=8)
    )
    assert isinstance(feed(machine, Begin(), HeldArrived(0, Held(rows)))[-1], Fail)


def test_a_stage_that_never_tells_is_not_waited_for_beyond_a_deadline() -> None:
    machine = GenerationMachine((0,) * 8, 9, frozenset(), TextAssembler(PIECES, ()), POLICY, (), asks=Asking(2))
    feed(machine, Begin(), HeldArrived(0, Held(0)))
    deadline = machine.deadline()
    assert deadline is not None
    cancel, fail = feed(machine, DeadlinePassed(), at=deadline)
    assert (cancel, isinstance(fail, Fail)) == (SendCancel(), True)


def test_a_run_that_ends_leaves_the_rows_to_its_stages() -> None:
    machine = machine_for(3)
    feed(machine, Begin())
    assert feed(machine, RunEnded(ErrorCode.PEER_LOST, "gone")) == [Fail(ErrorCode.PEER_LOST, "gone")]


# --- any order of events ------------------------------------------------------
EVENTS = st.one_of(
    st.builds(Begin),
    st.builds(CreditArrived, st.integers(-1, 40)),
    st.builds(TokensArrived, st.integers(0, 45), st.lists(st.integers(-1, 9), max_size=2).map(tuple)),
    st.builds(HeldArrived, st.integers(-1, 3), st.builds(Held, st.integers(0, 60), st.booleans())),
    st.builds(SequenceFailed, st.just(ErrorCode.PEER_LOST), st.just("gone")),
    st.builds(CancelRequested),
    st.builds(DeadlinePassed),
)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Well-behaved and broken stages mixed: credits hold, the grid holds, there is one end and nothing after it."""

    @initialize(prompt=st.integers(1, 40), max_tokens=st.none() | st.integers(1, 5))
    def start(self, prompt: int, max_tokens: int | None) -> None:
        self.prompt = prompt
        self.machine = machine_for(prompt, max_tokens, ("END",))
        self.now = 0
        self.credited = 0
        self.effects: list[Effect] = []
        self._handle(Begin())

    def _handle(self, event: Event) -> None:
        self.effects += self.machine.handle(event, Micros(self.now))

    def _sent(self) -> int:
        return sum(len(effect.tokens) for effect in self.effects if isinstance(effect, SendPrefill))

    @rule(event=EVENTS, wait=st.integers(0, 600))
    def something_happens(self, event: Event, wait: int) -> None:
        self.now += wait
        if isinstance(event, CreditArrived) and not self.machine.is_over:
            self.credited = max(self.credited, min(event.position, self._sent()))
        self._handle(event)

    @rule()
    def the_next_credit_arrives(self) -> None:
        if self.credited < self._sent():
            self.credited = min(self.credited + POLICY.chunk_tokens, self._sent())
            self._handle(CreditArrived(self.credited))

    @rule(token_id=st.integers(0, 7))
    def the_next_token_arrives(self, token_id: int) -> None:
        if self._sent() == self.prompt:
            decoded = sum(isinstance(effect, SendDecode) for effect in self.effects)
            self._handle(token(self.prompt + decoded, token_id))

    @invariant()
    def no_more_is_out_than_the_credits_cover(self) -> None:
        assert self._sent() - self.credited <= POLICY.credits * POLICY.chunk_tokens

    @invariant()
    def chunks_lie_on_the_absolute_grid(self) -> None:
        position = 0
        for effect in self.effects:
            if isinstance(effect, SendPrefill):
                assert effect.position == position
                assert position % POLICY.chunk_tokens == 0
                position += len(effect.tokens)
                assert effect.is_last == (position == self.prompt)
                assert len(effect.tokens) == POLICY.chunk_tokens or effect.is_last

    @invariant()
    def there_is_one_end_and_nothing_after_it(self) -> None:
        ends = [at for at, effect in enumerate(self.effects) if isinstance(effect, Finish | Fail)]
        assert ends == ([len(self.effects) - 1] if self.machine.is_over else [])

    @invariant()
    def lanes_are_taken_once_and_freed_once(self) -> None:
        assert sum(isinstance(effect, SendBegin) for effect in self.effects) == 1
        freed = sum(isinstance(effect, SendEnd | SendCancel) for effect in self.effects)
        assert freed == int(self.machine.is_over)

    @invariant()
    def every_wait_has_a_deadline(self) -> None:
        assert (self.machine.deadline() is None) == self.machine.is_over


AnyOrderOfEvents.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
