"""Scores, throttles and bans: weights, half-lives, doubling, bounds, and who may crowd out whom."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.conduct import (
    WEIGHTS,
    Admitted,
    Ban,
    ConductMachine,
    ConductPolicy,
    DeadlinePassed,
    Effect,
    Event,
    Forgiven,
    Offence,
    Offended,
    Throttle,
    Unban,
    decayed,
    offence_of,
)

A, B, C = (PeerId(name) for name in "abc")
POLICY = ConductPolicy(half_life_us=1600, first_ban_us=10_000, longest_ban_us=45_000, reform_us=200_000, capacity=3)
FORGED = Offence.SIGNATURE_INVALID
BAD = Offence.MESSAGE_MALFORMED


def feed(machine: ConductMachine, *events: Event, at: int = 0) -> list[Effect]:
    return [effect for event in events for effect in machine.handle(event, Micros(at))]


def ban(machine: ConductMachine, peer: PeerId, at: int = 0) -> Ban:
    effects = [effect for effect in feed(machine, *[Offended(peer, FORGED)] * 2, at=at) if isinstance(effect, Ban)]
    assert len(effects) == 1
    return effects[0]


def test_every_offence_has_a_weight_and_garbage_weighs_more_than_a_persons_mistake() -> None:
    assert set(WEIGHTS) == set(Offence)
    assert min(WEIGHTS.values()) > 0
    assert WEIGHTS[BAD] >= 10 * WEIGHTS[Offence.PROOF_REFUSED]


def test_codes_that_are_nobodys_fault_are_no_offences() -> None:
    for code in (ErrorCode.INTERNAL, ErrorCode.PEER_LOST, ErrorCode.OVERLOADED, ErrorCode.INVITE_EXPIRED):
        assert offence_of(code) is None
    assert offence_of(ErrorCode.SIGNATURE_INVALID) is FORGED
    assert offence_of(ErrorCode.FRAME_KIND_UNKNOWN) is Offence.FRAME_INVALID
    assert offence_of(ErrorCode.FRAME_VALUE_INVALID) is None


def test_a_single_mistake_has_no_consequence() -> None:
    machine = ConductMachine(POLICY)
    assert feed(machine, Offended(A, BAD)) == []
    assert machine.points(A, Micros(0)) == 20
    assert machine.points(B, Micros(0)) == 0


def test_points_are_halved_every_half_life_however_often_one_looks() -> None:
    machine = ConductMachine(POLICY)
    feed(machine, Offended(A, BAD))
    assert machine.points(A, Micros(1600)) == 10
    for at in range(0, 1600, 100):
        feed(machine, Admitted(A), at=at)
    assert machine.points(A, Micros(1600)) in (9, 10)
    assert machine.points(A, Micros(1600 * 20)) == 0


def test_throttled_first_then_banned() -> None:
    machine = ConductMachine(POLICY)
    effects = feed(machine, *[Offended(A, BAD)] * 5)
    throttle, banned = effects
    assert isinstance(throttle, Throttle)
    assert (throttle.peer, throttle.reason) == (A, BAD)
    assert banned == Ban(A, Micros(10_000), BAD)
    assert machine.is_banned(A)
    assert not machine.is_throttled(A, Micros(0))
    assert not machine.is_banned(B)


def test_a_throttle_lasts_until_the_points_are_below_its_threshold() -> None:
    machine = ConductMachine(POLICY)
    (throttle,) = feed(machine, Offended(A, Offence.FLOOD), *[Offended(A, BAD)] * 2)
    assert isinstance(throttle, Throttle)
    assert machine.is_throttled(A, Micros(throttle.until - 1))
    assert not machine.is_throttled(A, throttle.until)
    assert machine.points(A, Micros(throttle.until - 100)) >= 40 > machine.points(A, throttle.until)


def test_a_throttle_that_gets_longer_is_said_once() -> None:
    machine = ConductMachine(POLICY)
    (first,) = feed(machine, *[Offended(A, BAD)] * 2)
    assert isinstance(first, Throttle)
    assert feed(machine, Offended(A, BAD), at=first.until - 1) == []
    assert machine.is_throttled(A, first.until)


def test_bans_double_up_to_a_cap_and_a_long_good_time_makes_the_next_a_first_one() -> None:
    machine = ConductMachine(POLICY)
    at, lengths = 0, []
    for _ in range(4):
        stands = ban(machine, A, at)
        lengths.append(stands.until - at)
        at = stands.until
        assert machine.deadline() == at
        assert feed(machine, DeadlinePassed(), at=at - 1) == []
        assert feed(machine, DeadlinePassed(), at=at) == [Unban(A)]
    assert lengths == [10_000, 20_000, 40_000, 45_000]
    assert machine.deadline() is None
    later = at + POLICY.reform_us
    assert ban(machine, A, later).until - later == 10_000


def test_what_was_on_its_way_when_a_ban_came_does_not_lengthen_it() -> None:
    machine = ConductMachine(POLICY)
    stands = ban(machine, A)
    assert feed(machine, *[Offended(A, FORGED)] * 50, Admitted(A), at=5) == []
    assert machine.bans() == (stands,)
    feed(machine, DeadlinePassed(), at=stands.until)
    assert machine.points(A, stands.until) == 0


def test_an_accepted_proof_makes_up_for_refused_ones_and_for_nothing_else() -> None:
    machine = ConductMachine(POLICY)
    feed(machine, *[Offended(A, Offence.PROOF_REFUSED)] * 25, Offended(A, BAD))
    assert machine.is_throttled(A, Micros(0))
    feed(machine, Admitted(A))
    assert machine.points(A, Micros(0)) == 20
    assert not machine.is_throttled(A, Micros(0))
    feed(machine, *[Offended(A, BAD)] * 2, Admitted(A))
    assert machine.is_throttled(A, Micros(0))


def test_an_expired_invite_shown_every_minute_for_ever_is_never_throttled() -> None:
    machine = ConductMachine()
    for minute in range(2000):
        at = Micros(minute * 60 * MICROS_PER_SECOND)
        assert machine.handle(Offended(A, Offence.PROOF_REFUSED), at) == ()


def test_forgiving_ends_a_ban_at_once() -> None:
    machine = ConductMachine(POLICY)
    ban(machine, A)
    assert feed(machine, Forgiven(A)) == [Unban(A)]
    assert feed(machine, Forgiven(A)) == []
    assert machine.deadline() is None
    assert machine.known_count == 0


def test_a_flood_of_fresh_identities_evicts_the_least_bad_and_nobody_who_is_banned() -> None:
    machine = ConductMachine(POLICY)
    ban(machine, A)
    feed(machine, *[Offended(B, BAD)] * 3)
    for n in range(500):
        feed(machine, Offended(PeerId(f"fresh {n:03}"), BAD))
    assert machine.known_count == POLICY.capacity
    assert machine.is_banned(A)
    assert machine.points(B, Micros(0)) == 60


def test_strangers_that_are_banned_by_the_thousand_leave_room_for_members() -> None:
    machine = ConductMachine(POLICY)
    for n in range(POLICY.capacity):
        ban(machine, PeerId(f"sybil {n}"))
    assert feed(machine, *[Offended(C, FORGED)] * 5) == []
    feed(machine, Forgiven(PeerId("sybil 0")), Offended(C, BAD), Admitted(C))
    ban(machine, PeerId("sybil 0"))
    assert feed(machine, *[Offended(C, FORGED)] * 2)[-1] == Ban(C, Micros(10_000), FORGED)
    assert len(machine.bans()) == POLICY.capacity + 1


def test_decay_is_monotonic_and_ends_at_nothing() -> None:
    values = [decayed(100_000, steps) for steps in range(400)]
    assert values[0] == 100_000
    assert values == sorted(values, reverse=True)
    assert values[16] == 50_000
    assert values[-1] == 0


class Conduct(RuleBasedStateMachine):
    """Any offences at any times: bounded, bans end on time, members and the banned are never crowded out."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = ConductMachine(POLICY)
        self.now = 0
        self.banned: dict[PeerId, int] = {}

    def feed(self, event: Event) -> tuple[Effect, ...]:
        effects = self.machine.handle(event, Micros(self.now))
        for effect in effects:
            match effect:
                case Ban(peer, until):
                    assert peer not in self.banned
                    assert POLICY.first_ban_us <= until - self.now <= POLICY.longest_ban_us
                    self.banned[peer] = until
                case Unban(peer):
                    del self.banned[peer]
                case Throttle(peer, until):
                    assert peer not in self.banned
                    assert until > self.now
        return effects

    peers = st.sampled_from([PeerId(name) for name in "abcdefgh"])

    @rule(peer=peers, offence=st.sampled_from(Offence), times=st.integers(1, 8))
    def offend(self, peer: PeerId, offence: Offence, times: int) -> None:
        was_banned = peer in self.banned
        for _ in range(times):
            effects = self.feed(Offended(peer, offence))
            assert not (was_banned and effects)

    @rule(peer=peers)
    def admit(self, peer: PeerId) -> None:
        assert self.feed(Admitted(peer)) == ()

    @rule(peer=peers)
    def forgive(self, peer: PeerId) -> None:
        self.feed(Forgiven(peer))
        assert peer not in self.banned

    @rule(elapsed=st.integers(0, 30_000))
    def wait(self, elapsed: int) -> None:
        end = self.now + elapsed
        while (deadline := self.machine.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            assert self.feed(DeadlinePassed())
        self.now = end

    @invariant()
    def the_bans_are_those_told_and_the_deadline_is_the_first(self) -> None:
        assert {ban.peer: ban.until for ban in self.machine.bans()} == self.banned
        assert self.machine.deadline() == (min(self.banned.values()) if self.banned else None)
        for peer in "abcdefgh":
            assert self.machine.is_banned(PeerId(peer)) == (peer in self.banned)

    @invariant()
    def nothing_grows_beyond_its_bound(self) -> None:
        assert self.machine.known_count <= 2 * POLICY.capacity
        assert all(self.machine.points(PeerId(peer), Micros(self.now)) < POLICY.ban_points for peer in "abcdefgh")


TestConduct = Conduct.TestCase
TestConduct.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
