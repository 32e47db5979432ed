"""Whole simulations: invariants under every fault, equal digests, and the faults do bite."""

from dataclasses import replace

import pytest

from p2pmesh.base.quantities import Micros
from p2pmesh.core.coordination import Event, RunMachine, StageFailed
from p2pmesh.core.generation import Effect, GenerationMachine
from p2pmesh.sim.peer import number_of, peer_id_of
from p2pmesh.sim.scenario import SECOND_US, ModelLoad, PopulationModel
from p2pmesh.sim.scenario_file import builtin_runs
from p2pmesh.sim.world import Report, simulate

SCENARIOS = builtin_runs()


def run(name: str, peers: int = 30, seed: int = 1) -> Report:
    return simulate(SCENARIOS[name], peers, seed)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seed", range(5))
def test_every_invariant_holds_under_every_fault(name: str, seed: int) -> None:
    report = run(name, 60, seed)
    assert report.violations == ()
    assert report.runs >= 1
    assert report.tokens > 0


def test_a_machine_that_goes_on_after_its_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_without_an_end(machine: GenerationMachine, *effects: Effect) -> tuple[Effect, ...]:
        machine._deadline = None
        return effects

    monkeypatch.setattr(GenerationMachine, "_end", end_without_an_end)
    assert any("ends while" in text for text in run("calm").violations)


def test_a_run_that_outlives_its_stage_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = RunMachine.handle

    def deaf_to_losses(machine: RunMachine, event: Event, now: Micros) -> tuple[object, ...]:
        return () if isinstance(event, StageFailed) else handle(machine, event, now)

    monkeypatch.setattr(RunMachine, "handle", deaf_to_losses)
    assert any("to a lost peer" in text for text in run("stage-loss").violations)


def test_the_seed_and_the_number_of_peers_make_another_run() -> None:
    assert run("lossy") == run("lossy")
    assert len({run("lossy").digest, run("lossy", seed=2).digest, run("lossy", peers=31).digest}) == 3


def test_peers_come_to_know_each_other() -> None:
    assert run("calm").known_percent == 100
    assert run("partition").known_percent == 100


def test_a_lost_stage_ends_its_run_fails_its_requests_and_another_run_takes_over() -> None:
    report = run("stage-loss")
    assert report.runs == 3
    assert report.requests["peer_lost"] > 0
    assert report.requests["stop"] + report.requests["length"] > report.requests["peer_lost"]


def test_a_lost_coordinator_comes_back_and_serves_again() -> None:
    report = run("coordinator-loss")
    assert report.runs == 2
    assert report.requests["driver_lost"] > 0


def test_a_peer_that_lies_about_its_memory_is_not_asked_twice() -> None:
    population = PopulationModel(lying=500_000)
    report = simulate(replace(SCENARIOS["calm"], population=population, duration_us=90 * SECOND_US), 12, 1)
    assert report.runs > 1
    assert report.tokens > 0


def test_a_foreign_or_silent_peer_never_becomes_known() -> None:
    population = PopulationModel(foreign=300_000, silent=300_000)
    report = simulate(replace(SCENARIOS["calm"], population=population, model=ModelLoad(layers=0)), 40, 1)
    assert 10 < report.known_percent < 70


def test_an_overlay_of_one_peer_serves_what_fits() -> None:
    model = ModelLoad(layers=4, stage_count=None)
    report = simulate(replace(SCENARIOS["churn"], model=model), 1, 1)
    assert report.runs == 1
    assert report.tokens > 0


def test_a_simulation_has_at_least_one_peer() -> None:
    with pytest.raises(ValueError, match="0 peers"):
        run("calm", peers=0)


def test_peer_ids_are_ordered_as_their_numbers_are() -> None:
    ids = [peer_id_of(number) for number in (0, 1, 9, 10, 99, 12345)]
    assert ids == sorted(ids)
    assert [number_of(peer_id) for peer_id in ids] == [0, 1, 9, 10, 99, 12345]
