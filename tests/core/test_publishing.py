"""Who lists a public pool."""

import itertools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.draws import Draws
from p2pmesh.core.publishing import (
    Check,
    Checked,
    CheckFailed,
    DeadlinePassed,
    Dial,
    Dialled,
    Effect,
    Event,
    Leave,
    Lister,
    Phase,
    PoolChanged,
    Publish,
    Published,
    PublishingMachine,
    PublishingPolicy,
    Seen,
    WishChanged,
    Withdraw,
)

SECOND = 1_000_000
MEMBERS = tuple(Lister(index // 4, PeerId(f"peer{index:03}")) for index in range(40))
FOUNDER = MEMBERS[0]
POLICY = PublishingPolicy()


class Member:
    """One machine and its time."""

    def __init__(self, own: Lister = FOUNDER, *, is_eager: bool = False, max_clients: int = 0) -> None:
        self.now = Micros(0)
        self.machine = PublishingMachine(own, Draws(1), self.now, is_eager, max_clients)

    def feed(self, event: Event) -> tuple[Effect, ...]:
        return self.machine.handle(event, self.now)

    def wait(self) -> tuple[Effect, ...]:
        """Until the machine wants to be woken."""
        at = self.machine.deadline()
        assert at is not None
        self.now = max(self.now, at)
        return self.feed(DeadlinePassed())

    def tell(self, *alive: Lister, clients: int = 0, is_serving: bool = True) -> tuple[Effect, ...]:
        return self.feed(PoolChanged(alive, clients, is_serving))

    def publish(self) -> None:
        """A founder that was told to, alone, on its first look."""
        self.tell(FOUNDER)
        assert self.wait() == (Check(),)
        assert self.feed(Checked(())) == ()
        assert self.wait() == (Publish(),)
        self.feed(Published(is_taken=True))


def seen(*listers: Lister, max_clients: int = 0) -> Checked:
    return Checked(tuple(Seen(one, max_clients) for one in listers))


def test_whoever_is_told_to_lists_its_pool_at_once_and_every_minute() -> None:
    founder = Member(is_eager=True)
    founder.publish()
    assert founder.now == 0
    assert founder.machine.phase is Phase.PUBLISHING
    times = []
    while len(times) < 3:
        if Publish() in founder.wait():
            times.append(founder.now)
        founder.feed(Checked(()))
    assert times == [60 * SECOND, 120 * SECOND, 180 * SECOND]


def test_a_pool_that_serves_nothing_is_listed_once_it_does_or_after_a_minute() -> None:
    for serves_at, listed_at in ((25 * SECOND, 25 * SECOND), (10**9, 60 * SECOND)):
        founder = Member(is_eager=True)
        founder.tell(FOUNDER, is_serving=False)
        founder.wait()
        founder.feed(Checked(()))
        while Publish() not in founder.wait():
            founder.feed(Checked(()))
            if founder.now >= serves_at:
                founder.tell(FOUNDER, is_serving=True)
        assert listed_at <= founder.now <= listed_at + 34 * SECOND


def test_at_its_client_cap_a_pool_is_withdrawn_and_listed_again_below_it() -> None:
    founder = Member(is_eager=True, max_clients=2)
    founder.publish()
    assert founder.tell(FOUNDER, clients=1) == ()
    assert founder.tell(FOUNDER, clients=2) == (Withdraw(),)
    assert founder.machine.phase is Phase.FULL
    assert founder.machine.next_publish_at is None
    assert founder.tell(FOUNDER, clients=1) == ()
    assert Publish() in founder.wait()


def test_a_watcher_takes_over_after_two_looks_and_not_before() -> None:
    watcher = Member(MEMBERS[2])
    watcher.tell(FOUNDER, MEMBERS[2])
    assert watcher.wait() == (Check(),)
    assert 10 * SECOND <= watcher.now <= 29 * SECOND
    assert watcher.feed(Checked(())) == ()
    assert watcher.machine.phase is Phase.TAKING_OVER
    missed_at = watcher.now
    assert watcher.wait() == (Check(),)
    assert 3 * SECOND <= watcher.now - missed_at <= 9 * SECOND
    watcher.feed(Checked(()))
    assert watcher.wait() == (Publish(),)


def test_a_listing_that_is_there_on_the_second_look_ends_the_takeover() -> None:
    watcher = Member(MEMBERS[2])
    watcher.tell(FOUNDER, MEMBERS[2])
    watcher.wait()
    watcher.feed(Checked(()))
    watcher.wait()
    assert watcher.feed(seen(FOUNDER)) == ()
    assert watcher.machine.phase is Phase.WATCHING
    assert watcher.machine.publisher == FOUNDER.peer
    looked_at = watcher.now
    watcher.wait()
    assert 20 * SECOND <= watcher.now - looked_at <= 34 * SECOND


def test_relays_that_answer_nothing_are_no_missing_listing() -> None:
    watcher = Member(MEMBERS[2])
    for _ in range(10):
        assert watcher.wait() == (Check(),)
        assert watcher.feed(CheckFailed()) == ()
        assert watcher.machine.phase is Phase.WATCHING


def test_of_many_the_first_eight_look_often_and_the_others_rarely() -> None:
    for index, least_s in ((7, 20), (8, 200)):
        watcher = Member(MEMBERS[index])
        watcher.tell(*MEMBERS)
        watcher.wait()
        watcher.feed(seen(FOUNDER))
        looked_at = watcher.now
        watcher.wait()
        assert least_s * SECOND <= watcher.now - looked_at <= 1.7 * least_s * SECOND


def test_takeovers_have_their_places_within_the_three_to_nine_seconds() -> None:
    waits = []
    for index in (1, 4, 7, 30):
        watcher = Member(MEMBERS[index])
        watcher.tell(*MEMBERS)
        watcher.wait()
        watcher.feed(Checked(()))
        deadline = watcher.machine.deadline()
        assert deadline is not None
        waits.append(deadline - watcher.now)
    assert waits == sorted(waits)
    assert waits[0] >= 3 * SECOND
    assert waits[-1] <= 9 * SECOND
    assert all(later - earlier > SECOND / 4 for earlier, later in itertools.pairwise(waits))


def test_a_publisher_that_the_membership_knows_to_be_gone_is_replaced_before_its_listing_ends() -> None:
    watcher = Member(MEMBERS[2])
    watcher.tell(FOUNDER, MEMBERS[2])
    watcher.wait()
    watcher.feed(seen(FOUNDER))
    watcher.tell(MEMBERS[2])
    deadline = watcher.machine.deadline()
    assert deadline is not None
    assert deadline - watcher.now <= 9 * SECOND
    assert watcher.wait() == (Check(),)
    assert watcher.feed(seen(FOUNDER)) == (Dial(FOUNDER.peer),)  # it may only be cut off from us
    assert watcher.wait() == (Publish(),)


def test_a_publisher_that_nobody_knows_is_dialled_before_it_is_replaced() -> None:
    stranger = MEMBERS[9]
    watcher = Member(MEMBERS[2])
    watcher.tell(MEMBERS[2])
    watcher.wait()
    assert watcher.feed(seen(stranger)) == (Dial(stranger.peer),)
    watcher.feed(Dialled(stranger.peer, is_reached=True))
    watcher.wait()
    assert watcher.feed(seen(stranger)) == ()
    assert (watcher.machine.phase, watcher.machine.publisher) == (Phase.WATCHING, stranger.peer)


def test_one_that_is_not_reached_is_not_dialled_at_each_look_and_is_replaced() -> None:
    stranger = MEMBERS[9]
    watcher = Member(MEMBERS[2])
    watcher.tell(MEMBERS[2])
    watcher.wait()
    watcher.feed(seen(stranger))
    watcher.feed(Dialled(stranger.peer, is_reached=False))
    watcher.wait()
    assert watcher.feed(seen(stranger)) == ()
    assert watcher.machine.phase is Phase.TAKING_OVER
    watcher.wait()
    assert watcher.feed(seen(stranger)) == ()
    assert watcher.wait() == (Publish(),)


def test_of_two_that_list_one_pool_the_later_one_withdraws() -> None:
    for own, other, withdraws in ((FOUNDER, MEMBERS[2], False), (MEMBERS[2], FOUNDER, True)):
        member = Member(own, is_eager=True)
        member.tell(own)
        member.wait()
        member.feed(Checked(()))
        member.wait()
        member.tell(own, other)
        while Check() not in member.wait():
            pass
        assert (Withdraw() in member.feed(seen(own, other))) == withdraws
        assert member.machine.publisher == FOUNDER.peer


def test_a_watcher_keeps_to_the_cap_of_the_listing_it_saw() -> None:
    watcher = Member(MEMBERS[2])
    watcher.tell(FOUNDER, MEMBERS[2], clients=5)
    watcher.wait()
    watcher.feed(seen(FOUNDER, max_clients=5))
    for _ in range(4):
        watcher.wait()
        assert watcher.feed(Checked(())) == ()
    assert watcher.machine.phase is not Phase.PUBLISHING
    assert watcher.machine.next_publish_at is None
    watcher.tell(FOUNDER, MEMBERS[2], clients=4)
    for _ in range(3):
        watcher.wait()
        watcher.feed(Checked(()))
    assert watcher.machine.phase is Phase.PUBLISHING


def test_a_cap_of_a_later_member_takes_away_nobodys_listing() -> None:
    founder = Member(is_eager=True)
    founder.publish()
    founder.tell(FOUNDER, MEMBERS[5], clients=3)
    assert Withdraw() not in founder.feed(seen(MEMBERS[5], max_clients=1))
    assert founder.tell(FOUNDER, MEMBERS[5], clients=4) == ()
    assert founder.machine.phase is Phase.PUBLISHING
    assert founder.machine.learned_cap == 0


def test_a_cap_is_forgotten_some_time_after_the_member_that_had_it_is_gone() -> None:
    watcher = Member(MEMBERS[2])
    watcher.tell(MEMBERS[1], MEMBERS[2], clients=3)
    watcher.wait()
    watcher.feed(seen(MEMBERS[1], max_clients=1))
    seen_at = watcher.now
    watcher.tell(MEMBERS[2], MEMBERS[3], clients=3)
    for _ in range(100):
        if watcher.machine.phase is Phase.PUBLISHING:
            break
        watcher.wait()
        watcher.feed(Checked(()))
    assert watcher.machine.phase is Phase.PUBLISHING
    assert POLICY.cap_kept_us <= watcher.now - seen_at < POLICY.cap_kept_us + 60 * SECOND
    assert watcher.machine.learned_cap == 0


def test_what_no_relay_took_is_given_again_soon() -> None:
    founder = Member(is_eager=True)
    founder.tell(FOUNDER)
    founder.wait()
    founder.feed(Checked(()))
    assert founder.wait() == (Publish(),)
    founder.feed(Published(is_taken=False))
    assert founder.machine.next_publish_at == founder.now + POLICY.retry_us


def test_who_leaves_takes_its_listing_along_and_does_nothing_more() -> None:
    founder = Member(is_eager=True)
    founder.publish()
    assert founder.feed(Leave()) == (Withdraw(),)
    assert founder.feed(Leave()) == ()
    assert founder.machine.deadline() is None
    assert Member().feed(Leave()) == ()


def test_a_pool_that_was_listed_goes_on_without_waiting_for_what_it_serves() -> None:
    watcher = Member(MEMBERS[2])
    watcher.tell(FOUNDER, MEMBERS[2], is_serving=False)
    watcher.wait()
    watcher.feed(seen(FOUNDER))
    watcher.tell(MEMBERS[2], is_serving=False)
    watcher.wait()
    watcher.feed(Checked(()))
    lost_at = watcher.now
    assert Publish() in watcher.wait()
    assert watcher.now == lost_at < POLICY.first_wait_us


def test_an_operator_takes_the_listing_away_and_puts_it_back() -> None:
    founder = Member(is_eager=True)
    founder.publish()
    assert founder.feed(WishChanged(is_listing=False, max_clients=0)) == (Withdraw(),)
    assert founder.machine.phase is Phase.UNLISTED
    assert founder.machine.deadline() is None
    assert founder.tell(FOUNDER, MEMBERS[2]) == founder.feed(DeadlinePassed()) == ()
    founder.tell(FOUNDER)
    assert founder.feed(WishChanged(is_listing=True, max_clients=0)) == ()
    assert founder.wait() == (Check(),)
    founder.feed(Checked(()))
    assert founder.wait() == (Publish(),)


def test_a_new_cap_counts_at_once() -> None:
    founder = Member(is_eager=True)
    founder.publish()
    founder.tell(FOUNDER, clients=3)
    assert founder.feed(WishChanged(is_listing=True, max_clients=3)) == (Withdraw(),)
    assert founder.feed(WishChanged(is_listing=True, max_clients=4)) == ()
    assert Publish() in founder.wait()


class AnyOrder(RuleBasedStateMachine):
    """Whatever members, relays and publishers do: one listing of ours at most, and always a next look."""

    @initialize(own=st.integers(0, 39), is_eager=st.booleans(), cap=st.integers(0, 3))
    def start(self, own: int, is_eager: bool, cap: int) -> None:
        self.own = MEMBERS[own]
        self.member = Member(self.own, is_eager=is_eager, max_clients=cap)
        self.is_checking = self.is_listed = self.has_left = False
        self.dialling: set[PeerId] = set()

    def take(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            assert not self.has_left or isinstance(effect, Withdraw)
            if isinstance(effect, Check):
                assert not self.is_checking
                self.is_checking = True
            elif isinstance(effect, Publish):
                assert self.member.machine.phase is Phase.PUBLISHING
                self.is_listed = True
            elif isinstance(effect, Withdraw):
                self.is_listed = False
            else:
                assert effect.peer != self.own.peer
                self.dialling.add(effect.peer)

    @rule(indexes=st.sets(st.integers(0, 39)), clients=st.integers(0, 4), is_serving=st.booleans())
    def change(self, indexes: set[int], clients: int, is_serving: bool) -> None:
        alive = tuple(sorted({self.own, *(MEMBERS[index] for index in indexes)}))
        self.take(self.member.feed(PoolChanged(alive, clients, is_serving)))

    @precondition(lambda self: self.is_checking)
    @rule(indexes=st.sets(st.integers(0, 39), max_size=4), cap=st.integers(0, 3), has_answered=st.booleans())
    def answer(self, indexes: set[int], cap: int, has_answered: bool) -> None:
        self.is_checking = False
        listed = seen(*(MEMBERS[index] for index in sorted(indexes)), max_clients=cap)
        self.take(self.member.feed(listed if has_answered else CheckFailed()))

    @rule(is_taken=st.booleans())
    def take_listing(self, is_taken: bool) -> None:
        self.take(self.member.feed(Published(is_taken)))

    @precondition(lambda self: self.dialling)
    @rule(is_reached=st.booleans())
    def dialled(self, is_reached: bool) -> None:
        self.take(self.member.feed(Dialled(self.dialling.pop(), is_reached)))

    @precondition(lambda self: not self.has_left)
    @rule()
    def wait(self) -> None:
        if self.member.machine.deadline() is not None:
            self.take(self.member.wait())

    @rule(is_listing=st.booleans(), cap=st.integers(0, 3))
    def wish(self, is_listing: bool, cap: int) -> None:
        self.take(self.member.feed(WishChanged(is_listing, cap)))
        assert is_listing or not self.is_listed

    @rule()
    def leave(self) -> None:
        self.has_left = True
        self.take(self.member.feed(Leave()))
        assert not self.is_listed

    @invariant()
    def it_goes_on(self) -> None:
        machine = self.member.machine
        assert self.has_left == (machine.phase is Phase.OVER)
        is_idle = self.has_left or machine.phase is Phase.UNLISTED
        assert is_idle or self.is_checking or machine.deadline() is not None
        assert not self.is_listed or machine.phase is Phase.PUBLISHING
        assert len(machine._dialled) <= POLICY.max_dialled


TestAnyOrder = AnyOrder.TestCase
