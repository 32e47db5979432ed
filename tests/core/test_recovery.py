"""What a failure means for a request on its way, and how patient the ingress is."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.quantities import Micros
from p2pmesh.core.recovery import (
    Attempt,
    AttemptFailed,
    DeadlinePassed,
    Effect,
    Event,
    GiveUp,
    Outlook,
    Reached,
    RecoveryMachine,
    RecoveryPolicy,
    RoutesChanged,
    TokenGiven,
    outlook_of,
)

POLICY = RecoveryPolicy(
    least_wait_us=1000, longest_wait_us=5000, first_pause_us=100, longest_pause_us=300, losses_without_token=3
)
LOST = AttemptFailed(ErrorCode.PEER_LOST, "it is gone")
NOBODY = AttemptFailed(ErrorCode.MODEL_NOT_READY, "nobody drives it", Reached.NOBODY)

FINAL = {
    code
    for code in ErrorCode
    if code.value.startswith(
        ("gguf_", "invite_", "passphrase_", "owner_key_", "home_", "hub_", "pass_", "artifact_", "grammar_")
    )
} | {
    ErrorCode.CONFIG_INVALID, ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_A_FILE,
    ErrorCode.ARCHITECTURE_UNSUPPORTED, ErrorCode.CUT_UNSUPPORTED, ErrorCode.PORT_IN_USE, ErrorCode.ADDRESS_INVALID,
    ErrorCode.NODE_NOT_RUNNING, ErrorCode.NODE_UNRESPONSIVE, ErrorCode.IDENTITY_DUPLICATED, ErrorCode.CLAIM_INVALID,
    ErrorCode.PACKAGE_INVALID,
    ErrorCode.PEER_REMOVED, ErrorCode.VERSION_UNSUPPORTED, ErrorCode.GENERATION_UNSUPPORTED,
    ErrorCode.OWNERSHIP_REFUSED, ErrorCode.PLACEMENT_REFUSED, ErrorCode.DISK_FULL, ErrorCode.CANCELLED,
    ErrorCode.REQUEST_INVALID, ErrorCode.REQUEST_TOO_LARGE, ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.PARAMETER_UNSUPPORTED, ErrorCode.LOGIT_BIAS_INVALID, ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    ErrorCode.UNAUTHORIZED, ErrorCode.ROUTE_UNKNOWN, ErrorCode.SITE_REFUSED, ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.SIGNATURE_INVALID,
}  # fmt: skip


def machine(started_at: int = 0) -> RecoveryMachine:
    return RecoveryMachine(Micros(started_at), POLICY)


@pytest.mark.parametrize("code", [ErrorCode.MODEL_NOT_READY, ErrorCode.MODEL_UNKNOWN])
def test_a_model_that_is_awaited_is_waited_for_within_a_deadline(code: ErrorCode) -> None:
    one = RecoveryMachine(Micros(0), POLICY, is_awaited=True)
    absent = AttemptFailed(code, "nobody drives it", Reached.NOBODY)
    assert feed(one, absent, 0) == ()
    assert feed(one, RoutesChanged(), 10) == (Attempt(may_repeat=False),)
    assert feed(one, absent, 20) == ()
    assert feed(one, DeadlinePassed(), 1000) == (GiveUp(code, "nobody drives it; nobody took over in time"),)


def test_a_driver_that_has_just_lost_its_run_is_waited_for_and_one_without_room_is_not() -> None:
    gone = AttemptFailed(ErrorCode.MODEL_NOT_READY, "not driven here", Reached.DRIVER)
    assert feed(machine(), gone, 0) == ()
    full = AttemptFailed(ErrorCode.OVERLOADED, "no lane", Reached.DRIVER)
    one = RecoveryMachine(Micros(0), POLICY, is_awaited=True)
    assert feed(one, full, 0) == (GiveUp(ErrorCode.OVERLOADED, "no lane"),)


def feed(one: RecoveryMachine, event: Event, at: int) -> tuple[Effect, ...]:
    return one.handle(event, Micros(at))


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_is_decided(code: ErrorCode) -> None:
    assert (outlook_of(code) is Outlook.FINAL) == (code in FINAL)


@pytest.mark.parametrize("code", sorted(FINAL))
def test_what_would_be_the_same_anywhere_ends_the_request(code: ErrorCode) -> None:
    assert feed(machine(), AttemptFailed(code, "no"), 5) == (GiveUp(code, "no"),)


@pytest.mark.parametrize(
    ("reached", "code"),
    [
        (Reached.NOBODY, ErrorCode.MODEL_NOT_READY),
        (Reached.NOBODY, ErrorCode.MODEL_UNKNOWN),
        (Reached.NOBODY, ErrorCode.OVERLOADED),
        (Reached.DRIVER, ErrorCode.MODEL_UNKNOWN),
        (Reached.DRIVER, ErrorCode.OVERLOADED),
    ],
)
def test_a_request_that_finds_no_room_at_first_is_refused_at_once(code: ErrorCode, reached: Reached) -> None:
    assert feed(machine(), AttemptFailed(code, "no", reached), 5) == (GiveUp(code, "no"),)


def test_a_driver_that_had_admitted_a_request_and_is_not_ready_any_more_has_lost_it() -> None:
    assert feed(machine(), replace(NOBODY, reached=Reached.ADMISSION), 5) == (Attempt(may_repeat=False),)


def test_after_a_loss_another_run_is_tried_at_once_and_then_whenever_routes_change() -> None:
    one = machine()
    assert feed(one, LOST, 10) == (Attempt(may_repeat=False),)
    assert feed(one, NOBODY, 10) == ()
    assert feed(one, RoutesChanged(), 20) == (Attempt(may_repeat=False),)
    assert one.deadline() is None
    assert feed(one, RoutesChanged(), 21) == ()  # an attempt is under way


def test_the_lost_run_is_tried_again_after_pauses_that_grow() -> None:
    one, at = machine(), 0
    feed(one, LOST, at)
    pauses = []
    for _ in range(4):
        feed(one, NOBODY, at)
        deadline = one.deadline()
        assert deadline is not None
        pauses.append(deadline - at)
        at = deadline
        assert feed(one, DeadlinePassed(), at - 1) == ()
        assert feed(one, DeadlinePassed(), at) == (Attempt(may_repeat=True),)
    assert pauses == [100, 200, 300, 300]


def test_a_stall_ends_with_its_first_cause_when_its_time_is_over() -> None:
    one = machine()
    feed(one, LOST, 10)
    feed(one, NOBODY, 20)
    give_up = feed(one, DeadlinePassed(), 1010)
    assert give_up == (GiveUp(ErrorCode.PEER_LOST, "it is gone; nobody took over in time"),)


@pytest.mark.parametrize(("ran_us", "waits_us"), [(10, 1000), (3000, 3000), (9000, 5000)])
def test_a_stall_may_last_as_long_as_the_request_has_run_within_bounds(ran_us: int, waits_us: int) -> None:
    one = machine()
    feed(one, LOST, ran_us)
    feed(one, NOBODY, ran_us + waits_us - 1)
    assert one.deadline() == ran_us + waits_us
    assert isinstance(feed(one, DeadlinePassed(), ran_us + waits_us)[0], GiveUp)


def test_a_request_that_breaks_one_placement_after_another_ends_with_its_error() -> None:
    one = machine()
    crash = AttemptFailed(ErrorCode.ENGINE_CRASHED, "SIGSEGV")
    assert feed(one, crash, 1) == (Attempt(may_repeat=False),)
    assert feed(one, crash, 2) == (Attempt(may_repeat=False),)
    assert feed(one, crash, 3) == (GiveUp(ErrorCode.ENGINE_CRASHED, "SIGSEGV"),)


def test_a_loss_within_a_stall_grants_the_next_run_its_time_too() -> None:
    one = machine()
    assert feed(one, LOST, 500) == (Attempt(may_repeat=False),)
    assert feed(one, LOST, 1400) == (Attempt(may_repeat=False),)
    assert feed(one, NOBODY, 1401) == ()
    feed(one, DeadlinePassed(), 1600)
    assert feed(one, NOBODY, 1601) == ()  # the first stall alone would be over at 1500
    assert feed(one, RoutesChanged(), 2399) == (Attempt(may_repeat=False),)
    (ended,) = feed(one, NOBODY, 2400)
    assert isinstance(ended, GiveUp)


def test_a_new_token_makes_good_all_losses_before_it() -> None:
    one = machine()
    for at in range(20):
        assert feed(one, LOST, at) == (Attempt(may_repeat=False),)
        assert one.is_stalled
        feed(one, TokenGiven(), at)
        assert not one.is_stalled


def test_drivers_that_cannot_be_reached_are_no_placements_that_broke() -> None:
    one = machine()
    feed(one, LOST, 0)
    for at in range(1, 900):
        effects = feed(one, AttemptFailed(ErrorCode.PEER_UNREACHABLE, "no way", Reached.DRIVER), at)
        assert not any(isinstance(effect, GiveUp) for effect in effects)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: one attempt at a time, never silence for ever, and an end that is the last word."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.one = machine()
        self.is_attempting = True
        self.stalled_at: int | None = None
        self.is_over = False

    def take(self, event: Event) -> None:
        for effect in feed(self.one, event, self.now):
            if isinstance(effect, GiveUp):
                self.is_over = True
            else:
                assert not self.is_attempting
                self.is_attempting = True

    @precondition(lambda self: self.is_attempting and not self.is_over)
    @rule(code=st.sampled_from(list(ErrorCode)), reached=st.sampled_from(list(Reached)), later=st.integers(0, 400))
    def fail(self, code: ErrorCode, reached: Reached, later: int) -> None:
        self.now += later
        self.is_attempting = False
        if self.stalled_at is None:
            self.stalled_at = self.now
        self.take(AttemptFailed(code, "why", reached))

    @precondition(lambda self: self.is_attempting and not self.is_over)
    @rule()
    def give_a_token(self) -> None:
        self.take(TokenGiven())
        self.stalled_at = None

    @rule()
    def change_routes(self) -> None:
        was_over = self.is_over
        if was_over:
            assert feed(self.one, RoutesChanged(), self.now) == ()
        else:
            self.take(RoutesChanged())

    @precondition(lambda self: not self.is_over and not self.is_attempting)
    @rule()
    def wait(self) -> None:
        deadline = self.one.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.take(DeadlinePassed())
        assert self.is_attempting or self.is_over

    @invariant()
    def a_wait_has_an_end(self) -> None:
        if self.is_over or self.is_attempting:
            return
        deadline = self.one.deadline()
        assert deadline is not None
        assert self.stalled_at is not None
        assert deadline <= self.stalled_at + POLICY.longest_wait_us


TestAnyOrder = AnyOrder.TestCase
