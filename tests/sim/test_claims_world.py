"""The world ``claims``: models stay served, and nobody acts twice; machines that err are caught."""

import dataclasses

import pytest

from p2pmesh.core import claims
from p2pmesh.core.grants import Grantor
from p2pmesh.sim import claims_world
from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.claims_world import ClaimsReport, simulate_claims
from p2pmesh.sim.scenario import SECOND_US, Churn, Crash, Partition
from p2pmesh.sim.scenario_file import builtin_scenario

CALM = ClaimsScenario("mine", 120 * SECOND_US, models=5)


def builtin(name: str, peers: int, seed: int, seconds: int | None = None) -> ClaimsReport:
    scenario = builtin_scenario(name)
    assert isinstance(scenario, ClaimsScenario)
    if seconds is not None:
        scenario = dataclasses.replace(scenario, duration_us=seconds * SECOND_US)
    return simulate_claims(scenario, peers, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_must_hold_holds_in_partitions(seed: int) -> None:
    report = builtin("claims-partition", 60, seed)
    assert report.violations == ()
    assert report.takeovers > 10
    assert report.served_per_million > 950_000


def test_two_thousand_peers_that_churn_keep_fifty_models_served() -> None:
    report = builtin("claims-churn", 2000, 1, seconds=300)
    assert report.violations == ()
    assert report.longest_unserved_us <= 60 * SECOND_US
    assert report.served_per_million > 980_000


def test_a_calm_world_has_one_claim_for_each_model() -> None:
    report = simulate_claims(dataclasses.replace(CALM, pool=3, holders=1), 100, 1)
    assert report.violations == ()
    assert (report.claims_held, report.takeovers, report.step_downs) == (5, 0, 0)


def test_equal_seeds_are_equal_runs_and_others_are_not() -> None:
    scenario = dataclasses.replace(CALM, faults=(Churn(5 * SECOND_US, 10 * SECOND_US),))
    digests = [simulate_claims(scenario, 50, seed).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_claims_without_a_quorum_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "quorum", lambda count: 1)
    monkeypatch.setattr(claims_world, "CUT_OFF_US", 10**12)
    scenario = dataclasses.replace(CALM, faults=(Partition(30 * SECOND_US, 90 * SECOND_US, 50),))
    assert any("without a quorum" in text for text in simulate_claims(scenario, 20, 1).violations)


def test_peers_that_forget_their_promises_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Grantor.__init__

    def forgetful(self: Grantor, own: str, policy: object = None, restored: object = (), **rest: object) -> None:
        first(self, own, policy)  # type: ignore[arg-type]

    monkeypatch.setattr(Grantor, "__init__", forgetful)
    scenario = dataclasses.replace(CALM, faults=(Churn(SECOND_US // 5, SECOND_US // 10),))
    assert simulate_claims(scenario, 12, 1).violations


def test_a_coordinator_that_is_gone_for_good_is_succeeded() -> None:
    faults = tuple(Crash(30 * SECOND_US, number) for number in (29,))  # the holder of model 4
    report = simulate_claims(dataclasses.replace(CALM, holders=1, faults=faults), 100, 1)
    assert report.violations == ()
    assert report.takeovers == 1
    assert report.served_per_million > 900_000
