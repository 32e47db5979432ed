from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.share_hours import (
    MINUTES_PER_DAY,
    MINUTES_PER_WEEK,
    LocalTime,
    ShareHours,
    parse_share_hours,
)

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> LocalTime:
    day, time = text.split()
    hour, minute = map(int, time.split(":"))
    return LocalTime(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].index(day), 60 * hour + minute)


def local(moment: datetime) -> LocalTime:
    shown = moment.astimezone(BERLIN)
    return LocalTime(shown.weekday(), 60 * shown.hour + shown.minute)


def test_a_window_over_midnight() -> None:
    hours = parse_share_hours(["22:00-07:00"])
    assert hours.is_open(at("Sun 22:00"))
    assert hours.is_open(at("Mon 06:59"))
    assert not hours.is_open(at("Mon 07:00"))
    assert not hours.is_open(at("Sun 21:59"))


def test_a_window_belongs_to_the_day_on_which_it_begins() -> None:
    hours = parse_share_hours(["Fri-Sun 22:00-07:00"])
    assert hours.is_open(at("Mon 06:00"))
    assert not hours.is_open(at("Fri 06:00"))
    assert hours.is_open(at("Fri 23:00"))


def test_several_windows_and_days() -> None:
    hours = parse_share_hours(["Mon,Wed 08:00-12:00,13:00-17:00", "saturday 00:00-24:00", "Sun-Mon 23:00-01:00"])
    assert [hours.is_open(at(text)) for text in ("Mon 08:00", "Mon 12:30", "Wed 16:59", "Tue 09:00")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert hours.is_open(at("Sat 00:00"))
    assert hours.is_open(at("Sat 23:59"))
    assert not hours.is_open(at("Sun 00:00"))
    assert hours.is_open(at("Tue 00:30"))


def test_no_window_is_always() -> None:
    assert parse_share_hours([]).is_open(at("Mon 00:00"))
    assert parse_share_hours([]).next_change(at("Mon 00:00")) is None
    assert parse_share_hours(["00:00-24:00"]).next_change(at("Mon 00:00")) is None


def test_the_next_change_is_told() -> None:
    hours = parse_share_hours(["22:00-07:00"])
    assert str(hours.next_change(at("Sun 23:00"))) == "Mon 07:00"
    assert str(hours.next_change(at("Mon 07:00"))) == "Mon 22:00"
    assert str(parse_share_hours(["Mon 00:00-01:00"]).next_change(at("Mon 02:00"))) == "Mon 00:00"


@pytest.mark.parametrize(
    "text",
    ["", " ", "22-7", "25:00-26:00", "24:00-01:00", "10:00-10:00", "10:00-24:30", "Xyz 10:00-11:00", "Mon-Fri",
     "10:00-11:00 Mon", "Mo 10:00-11:00", "10:00", "\u0661\u0660:00-11:00", "Mon- 10:00-11:00", "10:00-11:00,"],
)  # fmt: skip
def test_what_are_no_hours_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"hours|day|time") as raised:
        parse_share_hours([text])
    assert "\n" not in str(raised.value)


def test_too_many_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="windows"):
        parse_share_hours([f"{hour:02}:{minute:02}-23:59" for hour in range(20) for minute in range(60)])


_TIMES = st.integers(0, MINUTES_PER_DAY - 1)
_WINDOWS = st.lists(st.tuples(_TIMES, _TIMES).filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=4)


def _text(start: int, end: int) -> str:
    return f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"


@given(_WINDOWS, st.integers(0, MINUTES_PER_WEEK - 1))
def test_it_is_open_exactly_where_a_window_says_so(windows: list[tuple[int, int]], minute_of_week: int) -> None:
    hours = parse_share_hours([_text(*window) for window in windows])
    minute = minute_of_week % MINUTES_PER_DAY
    is_open = any(start <= minute < end if start < end else minute >= start or minute < end for start, end in windows)
    assert hours.is_open(LocalTime(*divmod(minute_of_week, MINUTES_PER_DAY))) is is_open


@given(_WINDOWS, st.integers(0, MINUTES_PER_WEEK - 1))
def test_nothing_changes_before_the_next_change(windows: list[tuple[int, int]], minute_of_week: int) -> None:
    hours = parse_share_hours([_text(*window) for window in windows])
    now = LocalTime(*divmod(minute_of_week, MINUTES_PER_DAY))
    change = hours.next_change(now)
    until = MINUTES_PER_WEEK if change is None else (change.minute_of_week - minute_of_week) % MINUTES_PER_WEEK
    answers = {
        hours.is_open(LocalTime(*divmod((minute_of_week + passed) % MINUTES_PER_WEEK, MINUTES_PER_DAY)))
        for passed in range(0, until or 1, 7)
    }
    assert answers == {hours.is_open(now)}
    if change is not None:
        assert hours.is_open(change) is not hours.is_open(now)


@pytest.mark.parametrize(("day", "minutes"), [("2026-03-29", 60), ("2026-10-25", 180), ("2026-06-01", 120)])
def test_days_of_23_and_25_hours_follow_the_clock_on_the_wall(day: str, minutes: int) -> None:
    """A window from 01:00 to 03:00: in spring the hour from 2 is left out, in autumn it comes twice."""
    hours = parse_share_hours(["01:00-03:00"])
    midnight = datetime.fromisoformat(day).replace(tzinfo=BERLIN).astimezone(UTC)
    moments = [midnight + timedelta(minutes=passed) for passed in range(12 * 60)]
    assert sum(hours.is_open(local(moment)) for moment in moments) == minutes


def test_a_window_that_ends_within_the_missing_hour_ends_with_it() -> None:
    hours = parse_share_hours(["22:00-02:30"])
    before = datetime(2026, 3, 29, 0, 59, tzinfo=UTC)
    assert hours.is_open(local(before))
    assert not hours.is_open(local(before + timedelta(minutes=1)))  # the clock shows 03:00


def test_spans_are_apart_and_within_the_week() -> None:
    assert parse_share_hours(["Sun 22:00-02:00", "Sun 23:00-03:00"]) == ShareHours(
        ((0, 180), (MINUTES_PER_WEEK - 120, MINUTES_PER_WEEK))
    )
