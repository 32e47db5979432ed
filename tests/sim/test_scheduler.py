"""Simulated time."""

from functools import partial

import pytest

from p2pmesh.base.quantities import Micros
from p2pmesh.sim.calendar import RunawayError
from p2pmesh.sim.scheduler import Scheduler


def test_actions_run_by_time_and_then_in_the_order_of_their_scheduling() -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    for when, name in ((20, "c"), (10, "a"), (20, "d"), (10, "b")):
        scheduler.at(Micros(when), partial(ran.append, name))
    scheduler.run_until(Micros(20))
    assert ran == ["a", "b", "c", "d"]


def test_time_is_that_of_the_action_while_it_runs_and_the_end_afterwards() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    scheduler.after(5, lambda: scheduler.after(5, lambda: seen.append(scheduler.now)))
    scheduler.run_until(Micros(100))
    assert (seen, scheduler.now, scheduler.steps) == ([10], 100, 2)


def test_what_is_due_later_waits() -> None:
    scheduler = Scheduler()
    scheduler.at(Micros(11), lambda: None)
    scheduler.run_until(Micros(10))
    assert (scheduler.waiting_count, scheduler.steps) == (1, 0)


def test_the_past_means_now() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    scheduler.run_until(Micros(50))
    scheduler.at(Micros(1), lambda: seen.append(scheduler.now))
    scheduler.run_until(Micros(50))
    assert seen == [50]


def test_a_scenario_that_runs_away_is_stopped() -> None:
    scheduler = Scheduler(max_steps=100, max_waiting=3)

    def again() -> None:
        scheduler.after(0, again)

    again()
    with pytest.raises(RunawayError, match="100 steps"):
        scheduler.run_until(Micros(1))
    scheduler = Scheduler(max_waiting=3)
    for _ in range(3):
        scheduler.after(1, lambda: None)
    with pytest.raises(RunawayError, match="3 actions wait"):
        scheduler.after(1, lambda: None)
