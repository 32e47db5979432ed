"""What is remembered of drivers: health, speed, requests on their way."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.driver_records import Driver, DriverRecords, DriverView, RecordPolicy, counts_against

A: Driver = (PeerId("a"), b"run")
SECOND = 1_000_000


def at(seconds: float) -> Micros:
    return Micros(round(seconds * SECOND))


def cooling_s(records: DriverRecords, since_s: int) -> int:
    """So many whole seconds from ``since_s`` on the driver is cooling."""
    return next(s for s in range(1000) if not records.view(A, at(since_s + s)).is_cooling)


def test_a_driver_cools_for_thirty_seconds_that_double_to_five_minutes() -> None:
    records = DriverRecords()
    found = []
    for turn in range(6):
        now = turn * 400
        records.note_failed(A, ErrorCode.PEER_LOST, at(now))
        found.append(cooling_s(records, now))
    assert found == [30, 60, 120, 240, 300, 300]


def test_two_successes_take_one_failure_back() -> None:
    records = DriverRecords()
    for turn in range(3):
        records.note_failed(A, ErrorCode.PEER_UNREACHABLE, at(turn))
    for turn in range(4):
        records.note_answered(A, 10, SECOND, at(200 + turn))
    records.note_failed(A, ErrorCode.PEER_LOST, at(300))
    assert cooling_s(records, 300) == 60  # the second in a row again


def test_a_failure_between_two_successes_makes_the_first_count_for_nothing() -> None:
    records = DriverRecords()
    records.note_failed(A, ErrorCode.PEER_LOST, at(0))
    records.note_answered(A, 10, SECOND, at(40))
    records.note_failed(A, ErrorCode.PEER_LOST, at(50))
    records.note_answered(A, 10, SECOND, at(120))
    records.note_failed(A, ErrorCode.PEER_LOST, at(200))
    assert cooling_s(records, 200) == 120


def test_what_is_refused_for_its_own_sake_counts_against_nobody() -> None:
    for code in ErrorCode:
        records = DriverRecords()
        records.note_failed(A, code, at(0))
        assert records.view(A, at(0)).is_cooling == counts_against(code)
    kept = (ErrorCode.OVERLOADED, ErrorCode.REQUEST_INVALID, ErrorCode.CONTEXT_LENGTH_EXCEEDED, ErrorCode.CANCELLED)
    assert not any(map(counts_against, kept))
    assert counts_against(ErrorCode.DEADLINE_EXCEEDED)


def test_means_follow_what_is_measured_and_short_answers_say_nothing_of_speed() -> None:
    records = DriverRecords()
    records.note_started(A, 100, at(0))
    records.note_started(A, 200, at(0))
    records.note_answered(A, 11, 10 * 5000, at(1))
    records.note_answered(A, 3, 999, at(1))
    assert records.view(A, at(1)) == DriverView(False, 0, 2, 130, 5000)


def test_what_was_not_touched_for_twenty_minutes_is_forgotten_unless_it_is_asked_now() -> None:
    records = DriverRecords()
    records.note_answered(A, 11, SECOND, at(0))
    assert records.view(A, at(1199)).answers == 1
    assert records.view(A, at(1200)) == DriverView()
    records.begin(A, at(1300))
    assert records.view(A, at(9999)).in_flight == 1
    records.end(A, at(9999))
    assert records.view(A, at(9999)).in_flight == 0
    records.end(A, at(9999))
    assert records.view(A, at(9999)).in_flight == 0


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 5))
def test_those_not_touched_for_longest_make_room(touched: list[int], capacity: int) -> None:
    records = DriverRecords(RecordPolicy(capacity=capacity))
    for number in touched:
        records.note_started((PeerId(str(number)), b""), 5, at(0))
    expected = list(dict.fromkeys(reversed(touched)))[:capacity]
    assert len(records) == len(expected)
    assert all(records.view((PeerId(str(number)), b""), at(0)).start_us == 5 for number in expected)
