import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.share_hours import LocalTime, parse_share_hours
from p2pmesh.core.sharing import (
    DeadlinePassed,
    Effect,
    EndStages,
    Event,
    Give,
    Leave,
    Looked,
    OwnerSigns,
    Rest,
    RestReason,
    RulesChanged,
    SharingMachine,
    SharingPhase,
    SharingRules,
)

SECOND = MICROS_PER_SECOND
NIGHT, DAY = LocalTime(0, 60), LocalTime(0, 720)
NIGHTS = SharingRules(parse_share_hours(["22:00-07:00"]))
IDLE = SharingRules(is_only_idle=True)


def at(seconds: float) -> Micros:
    return Micros(int(seconds * SECOND))


def test_a_machine_without_rules_gives_from_the_first_moment() -> None:
    machine = SharingMachine(SharingRules())
    assert machine.phase is SharingPhase.GIVING
    assert machine.handle(Looked(DAY, is_owner_here=True, is_holding=True), at(0)) == ()


def test_nothing_is_given_before_the_first_look() -> None:
    machine = SharingMachine(NIGHTS)
    assert machine.phase is SharingPhase.RESTING
    assert machine.handle(DeadlinePassed(), at(0)) == ()
    assert machine.handle(Looked(DAY), at(1)) == (Rest(RestReason.HOURS),)
    assert machine.handle(Looked(DAY), at(1)) == ()
    assert machine.reason is RestReason.HOURS
    assert machine.handle(Looked(NIGHT), at(2)) == (Give(),)
    assert str(machine.next_change()) == "Mon 07:00"


def test_the_end_of_the_hours_lets_running_answers_finish() -> None:
    machine = SharingMachine(NIGHTS)
    machine.handle(Looked(NIGHT), at(0))
    busy = Looked(DAY, is_holding=True, is_working=True)
    assert machine.handle(busy, at(10)) == (Leave(RestReason.HOURS, at(130)),)
    assert machine.deadline() == at(130)
    assert machine.handle(busy, at(100)) == ()
    assert machine.handle(Looked(DAY, is_holding=False), at(110)) == (Rest(RestReason.HOURS),)
    assert machine.deadline() is None


def test_what_is_left_at_the_deadline_is_ended() -> None:
    machine = SharingMachine(NIGHTS)
    machine.handle(Looked(NIGHT), at(0))
    machine.handle(Looked(DAY, is_holding=True, is_working=True), at(10))
    assert machine.handle(DeadlinePassed(), at(129)) == ()
    assert machine.handle(DeadlinePassed(), at(130)) == (EndStages(RestReason.HOURS), Rest(RestReason.HOURS))
    assert machine.phase is SharingPhase.RESTING


def test_what_nobody_uses_is_ended_soon() -> None:
    machine = SharingMachine(NIGHTS)
    machine.handle(Looked(NIGHT), at(0))
    machine.handle(Looked(DAY, is_holding=True), at(10))
    assert machine.handle(Looked(DAY, is_holding=True), at(15)) == ()
    assert machine.handle(Looked(DAY, is_holding=True), at(20))[0] == EndStages(RestReason.HOURS)


def test_an_owner_who_goes_again_changes_nothing_for_whoever_is_still_here() -> None:
    machine = SharingMachine(IDLE)
    machine.handle(Looked(DAY), at(0))
    here = Looked(DAY, is_owner_here=True, is_holding=True, is_working=True)
    assert machine.handle(here, at(5)) == (Leave(RestReason.OWNER, at(125)),)
    assert machine.handle(Looked(DAY, is_holding=True, is_working=True), at(50)) == (Give(),)
    assert machine.deadline() is None


def test_rules_that_change_count_at_once() -> None:
    machine = SharingMachine(SharingRules())
    busy = Looked(DAY, is_holding=True, is_working=True)
    machine.handle(busy, at(0))
    assert machine.handle(RulesChanged(NIGHTS, busy), at(5)) == (Leave(RestReason.HOURS, at(125)),)
    assert machine.handle(RulesChanged(SharingRules(), busy), at(6)) == (Give(),)
    assert machine.handle(RulesChanged(SharingRules(NIGHTS.hours, leave_us=SECOND), busy), at(7)) == (
        Leave(RestReason.HOURS, at(8)),
    )


@pytest.mark.parametrize(
    ("idle_s", "is_busy", "is_here"),
    [(None, False, False), (None, True, True), (299, False, True), (300, False, False)],
)
def test_keys_and_other_programs_tell_that_the_owner_is_here(idle_s: int | None, is_busy: bool, is_here: bool) -> None:
    assert OwnerSigns(idle_s).is_owner_here(IDLE, is_busy=is_busy) is is_here


class AnyOrder(RuleBasedStateMachine):
    """Owners who come and go, clocks, rules and requests, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = at(0)
        self.rules = IDLE
        self.machine = SharingMachine(IDLE)
        self.local, self.is_owner_here = DAY, False
        self.stages = 0
        self.is_working = False
        self.is_offering = False
        self.left_at: Micros | None = None

    def feed(self, event: Event) -> None:
        for effect in self.machine.handle(event, self.now):
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case Give():
                assert not self.is_offering
                self.is_offering, self.left_at = True, None
            case Leave(_, until):
                assert self.is_offering
                assert until == self.now + self.rules.leave_us
                self.is_offering, self.left_at = False, self.now
            case EndStages():
                assert self.left_at is not None
                waited = self.now - self.left_at
                assert waited >= self.rules.leave_us or (not self.is_working and waited >= self.rules.quiet_us)
                self.stages, self.is_working = 0, False
            case Rest():
                assert not self.is_offering
                assert not self.stages

    @property
    def seen(self) -> Looked:
        return Looked(self.local, self.is_owner_here, bool(self.stages), self.is_working)

    @rule(gone_s=st.integers(1, 200))
    def time_passes(self, gone_s: int) -> None:
        until = Micros(self.now + gone_s * SECOND)
        deadline = self.machine.deadline()
        if deadline is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.feed(DeadlinePassed())
        self.now = until

    @rule(is_owner_here=st.booleans(), local=st.sampled_from([NIGHT, DAY]))
    def somebody_looks(self, is_owner_here: bool, local: LocalTime) -> None:
        self.is_owner_here, self.local = is_owner_here, local
        self.feed(self.seen)

    @rule(is_working=st.booleans())
    def a_stage_comes_where_it_may(self, is_working: bool) -> None:
        if self.is_offering:
            self.stages += 1
        self.is_working = is_working and self.stages > 0

    @rule()
    def others_take_the_stages_over(self) -> None:
        self.stages, self.is_working = 0, False

    @rule(rules=st.sampled_from([IDLE, NIGHTS, SharingRules(NIGHTS.hours, True, leave_us=30 * SECOND), SharingRules()]))
    def the_owner_wants_otherwise(self, rules: SharingRules) -> None:
        self.rules = rules
        self.feed(RulesChanged(rules, self.seen))

    @rule()
    def a_late_deadline_changes_nothing(self) -> None:
        deadline = self.machine.deadline()
        if deadline is None or deadline > self.now:
            assert self.machine.handle(DeadlinePassed(), self.now) == ()

    @invariant()
    def it_offers_exactly_while_it_gives(self) -> None:
        assert self.is_offering is (self.machine.phase is SharingPhase.GIVING)
        assert (self.machine.reason is None) is (
            self.machine.phase is SharingPhase.GIVING
        ) or self.machine._seen is None

    @invariant()
    def it_has_a_deadline_exactly_while_it_leaves(self) -> None:
        assert (self.machine.deadline() is not None) is (self.machine.phase is SharingPhase.LEAVING)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
