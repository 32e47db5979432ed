"""The calendar takes in the order of a plain sorted list, however long its days are."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.sim.calendar import CALL, Calendar


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 200))),
    st.integers(1, 600),
    st.integers(0, 600),
)
def test_entries_come_by_time_and_then_by_the_order_of_their_entry(
    entries: list[tuple[int, int]], day_us: int, end_us: int
) -> None:
    """Each entry enters a second one when it is taken, often for the day that is being taken."""
    calendar = Calendar(day_us)
    for number, (when_us, delay_us) in enumerate(entries):
        calendar.put(when_us, CALL, number, delay_us)
    expected = [(when_us, number, delay_us) for number, (when_us, delay_us) in enumerate(entries)]
    taken = []
    order = len(expected)
    while (entry := calendar.take(end_us)) is not None:
        expected.sort()
        assert (entry[0], entry[3]) == (expected[0][0], expected[0][1] if entry[4] is not None else entry[3])
        expected.pop(0)
        taken.append(entry[0])
        assert calendar.now_us == entry[0]
        if entry[4] is not None:
            calendar.put(entry[0] + entry[4], CALL, -1, None)
            expected.append((entry[0] + entry[4], order, 0))
            order += 1
    assert taken == sorted(taken)
    assert all(when_us > end_us for when_us, _, _ in expected)
    assert len(calendar) == len(expected)
    assert calendar.taken == len(taken)


def test_a_time_that_has_passed_means_now() -> None:
    calendar = Calendar(10)
    calendar.put(100, CALL, 1)
    assert calendar.take(200) is not None
    calendar.put(5, CALL, 2)
    entry = calendar.take(200)
    assert entry is not None
    assert entry[0] == 100


def test_what_is_entered_between_two_looks_is_not_lost() -> None:
    calendar = Calendar(10)
    calendar.put(95, CALL, 1)
    assert calendar.take(91) is None
    calendar.put(93, CALL, 2)
    calendar.put(200, CALL, 3)
    assert [entry[3] for entry in iter(lambda: calendar.take(300), None) if entry is not None] == [2, 1, 3]
