"""One peer id, two live nodes: the later one gives way, a quick restart never does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.identity_watch import (
    DeadlinePassed,
    Effect,
    GiveWay,
    IdentityWatch,
    OwnAnnouncementHeard,
    TwinBook,
    TwinFound,
    TwinGone,
    WatchPolicy,
)

START_MS = 1_700_000_000_000
EARLIER, OURS, LATER = START_MS - 500_000, START_MS, START_MS + 60_000
PEER = PeerId("peer")


def at(seconds: float) -> Micros:
    return Micros(int(seconds * MICROS_PER_SECOND))


def watch() -> IdentityWatch:
    return IdentityWatch(OURS, START_MS)


def heard(made: IdentityWatch, incarnation: int, sequence: int, seconds: float, issued_s: float) -> tuple[Effect, ...]:
    """An announcement issued ``issued_s`` after our start, heard at ``seconds`` after it."""
    event = OwnAnnouncementHeard(incarnation, sequence, START_MS + int(issued_s * 1000))
    return made.handle(event, at(seconds))


def test_our_own_words_are_no_twin() -> None:
    made = watch()
    assert heard(made, OURS, 5, 40, 40) == ()
    made.raised_to(LATER)
    assert heard(made, LATER, 6, 80, 80) == ()
    assert made.twin_count == 0


def test_the_later_node_gives_way_once_it_sees_the_earlier_one_go_on() -> None:
    made = watch()
    assert heard(made, EARLIER, 7, 0, -10) == ()
    assert heard(made, EARLIER, 8, 20, 10) == ()  # within the skew of clocks
    assert heard(made, EARLIER, 9, 40, 31) == (GiveWay(EARLIER),)
    assert heard(made, EARLIER, 10, 60, 51) == ()  # said once


def test_one_word_of_the_earlier_node_alone_is_not_enough() -> None:
    made = watch()
    assert heard(made, EARLIER, 9, 40, 35) == ()
    assert heard(made, EARLIER, 9, 50, 35) == ()
    assert heard(made, EARLIER, 10, 60, 55) == (GiveWay(EARLIER),)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 90)), max_size=40))
def test_a_quick_restart_is_never_taken_for_a_twin(echoes: list[tuple[int, float]]) -> None:
    """All that a dead process said was issued before we started; clocks of one machine, and 30 s of a clock set."""
    made = watch()
    for sequence, seconds in sorted(echoes, key=lambda echo: echo[1]):
        assert heard(made, EARLIER, sequence, seconds, min(30, sequence - 20)) == ()


def test_two_echoes_that_a_wrong_clock_dated_ahead_are_no_twin() -> None:
    made = watch()
    assert heard(made, EARLIER, 9, 1, 3600) == ()
    assert heard(made, EARLIER, 10, 1.5, 3620) == ()


def test_the_earlier_node_tells_and_goes_on_until_the_later_one_is_silent() -> None:
    made = watch()
    assert heard(made, LATER, 1, 60, 60) == (TwinFound(LATER),)
    assert heard(made, LATER, 2, 80, 80) == ()
    assert made.deadline() == at(110)
    assert made.handle(DeadlinePassed(), at(109)) == ()
    assert made.handle(DeadlinePassed(), at(110)) == (TwinGone(LATER),)
    assert made.deadline() is None


def test_an_echo_of_a_twin_that_is_gone_is_no_news_but_its_next_word_is() -> None:
    made = watch()
    heard(made, LATER, 1, 60, 60)
    made.handle(DeadlinePassed(), at(120))
    made.raised_to(LATER + 100_000)
    assert heard(made, LATER, 1, 130, 60) == ()
    assert made.deadline() is None
    assert heard(made, LATER, 2, 700, 700) == (TwinFound(LATER),)
    assert made.deadline() == at(730)


def test_a_twin_that_stays_is_told_again_after_ten_minutes() -> None:
    made = watch()
    told = [s for s in range(60, 2000, 20) if heard(made, LATER, s, s, s)]
    assert told == [60, 660, 1260, 1860]


def test_after_a_raise_the_later_node_still_gives_way_to_us_and_we_not_to_it() -> None:
    earlier = watch()
    heard(earlier, LATER, 1, 60, 60)
    earlier.handle(DeadlinePassed(), at(120))
    raised = LATER + 100_000
    earlier.raised_to(raised)
    for second in range(130, 400, 20):
        assert not [e for e in heard(earlier, LATER, second, second, second) if isinstance(e, GiveWay)]


def test_the_number_of_twins_and_of_raises_is_bounded() -> None:
    made = IdentityWatch(OURS, START_MS, WatchPolicy(capacity=3))
    for number in range(50):
        heard(made, EARLIER + number, 1, 0, 0)
        made.raised_to(LATER + number)
    assert made.twin_count == 3
    assert heard(made, OURS, 3, 1, 1) == ()


class Twins(RuleBasedStateMachine):
    """Two watches of one id that hear each other through lossy, late, repeating gossip, and true clocks."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0
        self.later_started_s: int | None = None
        self.is_later_over = False
        self.said: list[tuple[int, int, int]] = []
        self.earlier = IdentityWatch(START_MS, START_MS)
        self.later: IdentityWatch | None = None

    def announce(self) -> None:
        self.said.append((START_MS, self.now_s + 1, self.now_s))
        if self.later_started_s is not None and not self.is_later_over:
            self.said.append((START_MS + self.later_started_s * 1000, self.now_s + 1, self.now_s))

    @rule(wait_s=st.integers(1, 40))
    def wait(self, wait_s: int) -> None:
        self.now_s += wait_s
        self.announce()

    @precondition(lambda self: self.later is None and self.now_s > 0)
    @rule()
    def start_copy(self) -> None:
        self.later_started_s = self.now_s
        began = START_MS + self.now_s * 1000
        self.later = IdentityWatch(began, began)

    @precondition(lambda self: self.said)
    @rule(data=st.data(), to_later=st.booleans())
    def hear(self, data: st.DataObject, to_later: bool) -> None:
        incarnation, sequence, issued_s = data.draw(st.sampled_from(self.said))
        event = OwnAnnouncementHeard(incarnation, sequence, START_MS + issued_s * 1000)
        if not to_later:
            effects = self.earlier.handle(event, at(self.now_s))
            assert not any(isinstance(effect, GiveWay) for effect in effects)
            return
        if self.later is not None and not self.is_later_over:
            effects = self.later.handle(event, at(self.now_s))
            assert not any(isinstance(effect, TwinFound) for effect in effects)
            if effects:
                assert self.later_started_s is not None
                assert self.now_s > self.later_started_s + 30
                self.is_later_over = True

    @rule()
    def deadlines(self) -> None:
        for effect in self.earlier.handle(DeadlinePassed(), at(self.now_s)):
            assert isinstance(effect, TwinGone)
            assert self.later_started_s is not None

    @invariant()
    def bounded(self) -> None:
        assert self.earlier.twin_count <= 1


TestTwins = Twins.TestCase


# --- the book of a witness --------------------------------------------------------
def test_a_book_keeps_the_freshest_for_five_minutes() -> None:
    book = TwinBook()
    book.keep(PEER, (1, 5), b"five", at(0))
    book.keep(PEER, (1, 4), b"four", at(1))
    assert book.find(PEER, at(2)) == b"five"
    book.keep(PEER, (1, 6), b"six", at(10))
    assert book.find(PEER, at(310)) == b"six"
    assert book.find(PEER, at(310.1)) is None
    assert book.find(PeerId("other"), at(2)) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=80))
def test_a_book_is_bounded_and_keeps_those_heard_last(heard_of: list[tuple[int, int]]) -> None:
    book = TwinBook(capacity=4)
    for second, (peer, sequence) in enumerate(heard_of):
        book.keep(PeerId(f"p{peer}"), (1, second * 10 + sequence), b"x", at(second))
        assert len(book) <= 4
    latest = list(dict.fromkeys(reversed([peer for peer, _ in heard_of])))[:4]
    assert all(book.find(PeerId(f"p{peer}"), at(len(heard_of))) == b"x" for peer in latest)


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_small_watch_lets_go_of_the_lowest(capacity: int) -> None:
    made = IdentityWatch(OURS, START_MS, WatchPolicy(capacity=capacity))
    for number in range(5):
        assert heard(made, LATER + number, 1, number, number) == (TwinFound(LATER + number),)
    assert made.twin_count == capacity
