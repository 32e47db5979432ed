"""Whoever answers fast is waited for less long, and whoever lately took long is for longer."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.core.patience import ENOUGH, FACTOR, LEAST_US, MAX_PEERS, MOST_US, RECENT, STRANGER_US, Patience

PEER = PeerId("a")


def told(*took_us: int) -> Patience:
    patience = Patience()
    for us in took_us:
        patience.note_answer(PEER, us)
    return patience


def test_of_a_stranger_nothing_is_expected() -> None:
    assert Patience().of(PEER) == STRANGER_US
    assert told(*[1000] * (ENOUGH - 1)).of(PEER) == STRANGER_US


def test_the_slowest_recent_answer_counts_eight_times() -> None:
    assert told(*[1000] * ENOUGH).of(PEER) == LEAST_US
    assert told(1000, 100_000, 1000, 1000).of(PEER) == 800_000
    assert told(1000, 250_000, 1000, 1000).of(PEER) == 2_000_000  # a busy machine is given more than a stranger
    assert told(1000, 900_000, 1000, 1000).of(PEER) == MOST_US
    assert told(900_000, *[1000] * RECENT).of(PEER) == LEAST_US  # that was long ago


def test_pings_say_as_much_where_too_few_questions_were_put() -> None:
    assert Patience().of(PEER, 1000) == LEAST_US
    assert Patience().of(PEER, 150_000) == 1_200_000
    assert told(200_000).of(PEER, 1000) == 1_600_000
    assert told(*[1000] * RECENT).of(PEER, 100_000) == 800_000


def test_who_was_silent_once_gets_all_the_time_again() -> None:
    patience = told(*[1000] * RECENT)
    patience.note_silence(PEER)
    assert patience.of(PEER) == patience.of(PEER, 1000) == STRANGER_US
    for _ in range(ENOUGH - 1):
        patience.note_answer(PEER, 1000)
    assert patience.of(PEER, 1000) == STRANGER_US
    patience.note_answer(PEER, 1000)
    assert patience.of(PEER) == LEAST_US
    patience.note_silence(PeerId("b"))
    assert patience.of(PeerId("b"), 1000) == STRANGER_US


def test_whoever_was_heard_of_longest_ago_makes_room() -> None:
    patience = Patience()
    for number in range(2 * MAX_PEERS):
        for _ in range(ENOUGH):
            patience.note_answer(PeerId(str(number)), 1)
        for _ in range(ENOUGH):
            patience.note_answer(PEER, 1)
    assert patience.of(PEER) == LEAST_US
    assert patience.of(PeerId(str(2 * MAX_PEERS - 1))) == LEAST_US
    assert patience.of(PeerId(str(MAX_PEERS))) == STRANGER_US


@given(st.lists(st.integers(0, 10**9)))
def test_it_lies_between_its_bounds(answers: list[int]) -> None:
    patience = told(*answers).of(PEER)
    assert LEAST_US <= patience <= MOST_US
    if len(answers) >= ENOUGH:
        assert patience >= min(MOST_US, FACTOR * max(answers[-RECENT:]))
