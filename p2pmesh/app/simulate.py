"""``p2pmesh simulate``: runs a scenario of the simulator and says what came of it, and how fast it ran."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.sim.scenario import SCENARIOS
from p2pmesh.sim.world import MAX_SIMULATED_PEERS, simulate


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What the operator asks for."""

    peers: int = 100
    """Simulated peers, 1 to ``MAX_SIMULATED_PEERS``."""

    seed: int = 0
    """Equal seeds, equal runs."""

    scenario: str = "calm"
    """A name out of ``SCENARIOS``."""


def run_simulation(options: SimulateOptions) -> dict[str, Any]:
    """The report as a map that JSON can hold, with ``elapsed_s`` and ``events_per_s`` measured here.

    ``violations`` is empty exactly if every invariant held. Raises ``ConfigError`` for options that cannot be.
    """
    scenario = SCENARIOS.get(options.scenario)
    if scenario is None:
        raise ConfigError(
            ErrorCode.CONFIG_INVALID, f"no scenario is called {options.scenario!r}; there are {', '.join(SCENARIOS)}"
        )
    if not 1 <= options.peers <= MAX_SIMULATED_PEERS:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"--peers {options.peers} is not within 1 to {MAX_SIMULATED_PEERS}")
    started = time.perf_counter()
    report = simulate(scenario, options.peers, options.seed)
    elapsed_s = time.perf_counter() - started
    return {
        **dataclasses.asdict(report),
        "violations": list(report.violations),
        "elapsed_s": round(elapsed_s, 3),
        "events_per_s": round(report.events / elapsed_s),
    }


def describe_simulation(report: dict[str, Any]) -> str:
    """A report of ``run_simulation`` for a person, in lines."""
    requests = ", ".join(f"{count} {outcome}" for outcome, count in report["requests"].items()) or "none"
    held = "all invariants held" if not report["violations"] else "INVARIANTS BROKEN:"
    return "\n".join(
        [
            f"{report['scenario']}: {report['peers']} peers, seed {report['seed']}, "
            f"{report['simulated_us'] / 1e6:.0f} s simulated in {report['elapsed_s']} s",
            f"{report['events']} events, {report['events_per_s']} a second, digest {report['digest']}",
            f"{report['runs']} runs, {report['tokens']} tokens; requests: {requests}",
            f"a peer knows {report['known_percent']} % of the others; {held}",
            *report["violations"],
        ]
    )
