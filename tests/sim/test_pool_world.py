"""The world ``pool``: a pool stays listed by one member, and machines that err are caught."""

import dataclasses

import pytest

from p2pmesh.core.publishing import PublishingMachine
from p2pmesh.sim.pool_scenario import KillPublisher, PoolScenario
from p2pmesh.sim.pool_world import PoolReport, simulate_pool
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.scenario_file import builtin_scenario

CALM = PoolScenario("mine", 600 * SECOND_US)
DEATHS = (KillPublisher(120 * SECOND_US, 60 * SECOND_US),)


def builtin(name: str, peers: int, seed: int) -> PoolReport:
    scenario = builtin_scenario(name)
    assert isinstance(scenario, PoolScenario)
    return simulate_pool(scenario, peers, seed)


def test_two_hundred_members_replace_a_dead_publisher_by_few_and_soon() -> None:
    report = builtin("pool-takeover", 200, 1)
    assert report.violations == ()
    assert report.deaths == 12
    assert report.most_listers <= 4
    assert report.longest_unlisted_us <= 30 * SECOND_US


@pytest.mark.parametrize("name", ["pool-unnoticed", "pool-partition"])
def test_what_must_hold_holds(name: str) -> None:
    assert builtin(name, 60, 1).violations == ()


def test_a_calm_pool_has_one_listing_a_minute_and_few_questions() -> None:
    report = simulate_pool(CALM, 200, 1)
    assert report.violations == ()
    assert (report.most_listers, report.publishes, report.unlisted_us, report.twice_listed_us) == (1, 10, 0, 0)
    assert report.checks < 1000  # two hundred that look every 27 s would ask 4,400 times


def test_equal_seeds_are_equal_runs_and_others_are_not() -> None:
    scenario = dataclasses.replace(CALM, faults=DEATHS)
    digests = [simulate_pool(scenario, 40, seed).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_members_that_yield_to_nobody_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublishingMachine, "_yield_to", lambda machine, known: [])
    assert any("more than one member lists the pool" in text for text in builtin("pool-partition", 60, 1).violations)


def test_members_that_take_over_at_once_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublishingMachine, "_takeover_at", lambda machine, now: now)
    report = simulate_pool(dataclasses.replace(CALM, detect_us=1000, faults=DEATHS), 200, 1)
    assert any("members began to list the pool after one death" in text for text in report.violations)
