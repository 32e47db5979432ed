"""Pins the digests of all scenarios anew: ``python -m tests.sim.regenerate``.

A digest changes with every decision of a machine. Look at why it did before pinning it.
"""

import dataclasses
import json
from pathlib import Path

from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.claims_world import simulate_claims
from p2pmesh.sim.models_scenario import ModelsScenario
from p2pmesh.sim.models_world import simulate_models
from p2pmesh.sim.overlay_report import simulate_overlay
from p2pmesh.sim.overlay_scenario import OverlayScenario
from p2pmesh.sim.pool_scenario import PoolScenario
from p2pmesh.sim.pool_world import simulate_pool
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.scenario_file import builtin_names, builtin_scenario
from p2pmesh.sim.world import simulate

DIGESTS = Path(__file__).parent / "digests.json"
PEERS = {"runs": 30, "overlay": 40, "claims": 40, "models": 60, "pool": 60}
SEED = 5


def digest_of(name: str) -> str:
    """The digest of a scenario of the package, small."""
    scenario = builtin_scenario(name)
    if isinstance(scenario, OverlayScenario):
        return simulate_overlay(scenario, PEERS["overlay"], SEED).digest
    if isinstance(scenario, ClaimsScenario):
        return simulate_claims(scenario, PEERS["claims"], SEED).digest
    if isinstance(scenario, PoolScenario):
        return simulate_pool(scenario, PEERS["pool"], SEED).digest
    if isinstance(scenario, ModelsScenario):
        brief = dataclasses.replace(scenario, duration_us=120 * SECOND_US, models=8)
        return simulate_models(brief, PEERS["models"], SEED).digest
    return simulate(scenario, PEERS["runs"], SEED).digest


def digests() -> dict[str, str]:
    """All of them."""
    return {name: digest_of(name) for name in builtin_names()}


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps(digests(), indent=2) + "\n", encoding="utf-8")
