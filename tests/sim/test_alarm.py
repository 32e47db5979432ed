"""An alarm rings once, at the time that it was last set to."""

from p2pmesh.sim.alarm import NEVER, Alarm
from p2pmesh.sim.calendar import Calendar


def run(calendar: Calendar, end_us: int) -> None:
    while (entry := calendar.take(end_us)) is not None:
        entry[4]()
    calendar.now_us = end_us


def test_only_the_last_time_counts_and_a_later_deadline_changes_nothing() -> None:
    calendar, alarm, rung = Calendar(), Alarm(), list[int]()
    alarm.set_at(calendar, 50, lambda: rung.append(calendar.now_us))
    alarm.set_at(calendar, 70, lambda: rung.append(calendar.now_us))
    alarm.set_by(calendar, 90, lambda: rung.append(-1))
    alarm.set_by(calendar, None, lambda: rung.append(-1))
    run(calendar, 60)
    assert rung == []
    alarm.set_by(calendar, 65, lambda: rung.append(calendar.now_us))
    run(calendar, 100)
    assert rung == [65]
    assert alarm.due_us == NEVER


def test_a_deadline_that_has_passed_rings_now() -> None:
    calendar, alarm, rung = Calendar(), Alarm(), list[int]()
    run(calendar, 40)
    alarm.set_by(calendar, 5, lambda: rung.append(calendar.now_us))
    run(calendar, 100)
    assert rung == [40]
