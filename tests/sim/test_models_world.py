"""The world ``models``: what could be served is, nobody acts twice, runs move seldom; what errs is caught."""

import dataclasses

import pytest

from p2pmesh.core import replanning
from p2pmesh.core.grants import Grantor
from p2pmesh.core.planning.outcome import PlacementReason, PlacementRefusal
from p2pmesh.sim import models_coordinator
from p2pmesh.sim.models_scenario import HostMix, Join, Leave, ModelsScenario
from p2pmesh.sim.models_world import ModelsWorld, simulate_models
from p2pmesh.sim.scenario import SECOND_US, Churn, Crash, Partition
from p2pmesh.sim.scenario_file import builtin_scenario

SMALL = ((2, 26), (8, 36), (18, 60))
CALM = ModelsScenario("mine", 120 * SECOND_US, models=6, models_gib=SMALL)
ROUGH = dataclasses.replace(
    CALM,
    duration_us=300 * SECOND_US,
    holders=2,
    faults=(
        Churn(3 * SECOND_US, 30 * SECOND_US),
        Leave(20 * SECOND_US),
        Join(20 * SECOND_US),
        Partition(120 * SECOND_US, 180 * SECOND_US, 40),
    ),
)


def test_a_calm_world_serves_every_model_once_a_holder_and_moves_nothing() -> None:
    report = simulate_models(dataclasses.replace(CALM, holders=1), 60, 1)
    assert report.violations == ()
    assert (report.published, report.takeovers, report.moves) == (6, 0, 0)
    assert report.longest_unserved_us < 30 * SECOND_US


@pytest.mark.parametrize("seed", [1, 2])
def test_what_must_hold_holds_while_peers_come_go_crash_and_part(seed: int) -> None:
    report = simulate_models(ROUGH, 120, seed)
    assert report.violations == ()
    assert report.published > 12
    assert report.served_per_million > 850_000


def test_equal_seeds_are_equal_runs_and_others_are_not() -> None:
    scenario = dataclasses.replace(ROUGH, duration_us=60 * SECOND_US)
    digests = [simulate_models(scenario, 50, seed).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_a_run_moves_to_a_much_faster_peer_once_and_stays_there() -> None:
    """The only fast peers join late; what is measured wavers all the time."""
    slow = HostMix(rows=((16, 8, 1),), nat=0, lying=0)
    scenario = dataclasses.replace(
        CALM,
        duration_us=3600 * SECOND_US,
        models=3,
        holders=1,
        hosts=slow,
        models_gib=((8, 36),),
        longest_request_us=20 * SECOND_US,
    )
    world = ModelsWorld(scenario, 12, 1)

    def join() -> None:
        world._join()
        host = world.hosts.all[-1]
        host.total_bytes, host.bytes_per_s = 64 * 2**30, 400_000_000_000

    world._later(300 * SECOND_US, join)
    report = world.run()
    assert report.violations == ()
    assert report.moves == 3
    assert sum(len(host.used) for host in world.hosts.all[-1:]) == 3
    assert report.longest_unserved_us < 30 * SECOND_US


def test_measurements_that_waver_move_nothing_among_equals() -> None:
    even = HostMix(rows=((24, 100, 1),), nat=0, lying=0)
    scenario = dataclasses.replace(CALM, duration_us=3600 * SECOND_US, models=3, hosts=even, noise_percent=8)
    assert simulate_models(scenario, 20, 1).moves <= 1


def test_a_coordinator_that_is_gone_for_good_is_succeeded() -> None:
    scenario = dataclasses.replace(CALM, holders=1, models=1, models_gib=((8, 36),))
    holder = ModelsWorld(scenario, 60, 1)._models[0].holders[0]
    report = simulate_models(dataclasses.replace(scenario, faults=(Crash(60 * SECOND_US, holder),)), 60, 1)
    assert report.violations == ()
    assert report.served_per_million > 800_000


def test_peers_that_forget_their_promises_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Grantor.__init__

    def forgetful(self: Grantor, own: str, policy: object = None, restored: object = (), **rest: object) -> None:
        first(self, own, policy)  # type: ignore[arg-type]

    monkeypatch.setattr(Grantor, "__init__", forgetful)
    scenario = dataclasses.replace(ROUGH, faults=(Churn(SECOND_US // 5, SECOND_US // 10),))
    assert any("without a quorum" in text for text in simulate_models(scenario, 12, 1).violations)


def test_a_model_that_is_not_planned_though_it_fits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = PlacementRefusal(PlacementReason.MEMORY_SHORT, "", True)
    monkeypatch.setattr(models_coordinator, "plan_placement", lambda request: refusal)
    report = simulate_models(CALM, 30, 1)
    assert any("could be served and was not" in text for text in report.violations)


def test_without_hysteresis_runs_flap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the policy is for: the world can tell one without it."""
    scenario = dataclasses.replace(CALM, models=2, duration_us=300 * SECOND_US, longest_request_us=SECOND_US)
    assert simulate_models(scenario, 30, 1).moves <= 1
    eager = replanning.ReplanPolicy(0, 0, 0, 10, 1, SECOND_US, 1, 1, 1)
    first = replanning.Replanner.__init__
    monkeypatch.setattr(replanning.Replanner, "__init__", lambda self, policy, jitter: first(self, eager, jitter))
    assert simulate_models(scenario, 30, 1).moves > 5


def test_the_scenario_of_the_package_is_the_one_that_is_promised() -> None:
    scenario = builtin_scenario("models-churn")
    assert isinstance(scenario, ModelsScenario)
    assert (scenario.peers, scenario.models) == (2000, 50)
