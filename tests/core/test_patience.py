"""Whoever answers fast is waited for less long, and never less than half a second."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.core.patience import ENOUGH, LEAST_US, MAX_PEERS, MOST_US, RECENT, Patience

PEER = PeerId("a")


def told(*took_us: int) -> Patience:
    patience = Patience()
    for us in took_us:
        patience.note_answer(PEER, us)
    return patience


def test_of_a_stranger_nothing_is_expected() -> None:
    assert Patience().of(PEER) == MOST_US
    assert told(*[1000] * (ENOUGH - 1)).of(PEER) == MOST_US


def test_the_slowest_recent_answer_counts_four_times() -> None:
    assert told(*[1000] * ENOUGH).of(PEER) == LEAST_US
    assert told(1000, 200_000, 1000, 1000).of(PEER) == 800_000
    assert told(1000, 900_000, 1000, 1000).of(PEER) == MOST_US
    assert told(900_000, *[1000] * RECENT).of(PEER) == LEAST_US  # that was long ago


def test_who_was_silent_once_gets_all_the_time_again() -> None:
    patience = told(*[1000] * RECENT)
    patience.note_silence(PEER)
    assert patience.of(PEER) == MOST_US
    patience.note_silence(PeerId("nobody"))


def test_whoever_was_heard_of_longest_ago_makes_room() -> None:
    patience = Patience()
    for number in range(2 * MAX_PEERS):
        for _ in range(ENOUGH):
            patience.note_answer(PeerId(str(number)), 1)
        for _ in range(ENOUGH):
            patience.note_answer(PEER, 1)
    assert patience.of(PEER) == LEAST_US
    assert patience.of(PeerId(str(2 * MAX_PEERS - 1))) == LEAST_US
    assert patience.of(PeerId(str(MAX_PEERS))) == MOST_US


@given(st.lists(st.integers(0, 10**9)))
def test_it_lies_between_half_a_second_and_one(answers: list[int]) -> None:
    patience = told(*answers).of(PEER)
    assert LEAST_US <= patience <= MOST_US
    if len(answers) >= ENOUGH:
        assert patience >= min(MOST_US, 4 * max(answers[-RECENT:]))
