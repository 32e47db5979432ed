"""``p2pmesh simulate``: runs a scenario of the simulator and says what came of it, and how fast it ran."""

import dataclasses
import gc
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.quantities import KIB, format_size
from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.claims_world import ClaimsReport, simulate_claims
from p2pmesh.sim.models_scenario import ModelsScenario
from p2pmesh.sim.models_world import ModelsReport, simulate_models
from p2pmesh.sim.overlay_report import OverlayReport, describe_overlay, simulate_overlay
from p2pmesh.sim.overlay_scenario import OverlayScenario
from p2pmesh.sim.pool_scenario import PoolScenario
from p2pmesh.sim.pool_world import PoolReport, simulate_pool
from p2pmesh.sim.recorder import Recorder, replay_recording
from p2pmesh.sim.scenario import MAX_SIMULATED_PEERS, Scenario
from p2pmesh.sim.scenario_file import MAX_FILE_CHARACTERS, AnyScenario, builtin_scenario, decode_scenario
from p2pmesh.sim.world import Report, simulate

DEFAULT_PEERS = 100
"""Where the scenario does not say."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What the operator asks for."""

    scenario: str = "calm"
    """A name of one that comes with the package, or the path of a file that ends in ``.toml``."""

    peers: int | None = None
    """Simulated peers, 1 to ``MAX_SIMULATED_PEERS``; None: what the scenario says."""

    seed: int = 0
    """Equal seeds, equal runs."""

    record: tuple[int, Path] | None = None
    """A peer whose membership events go to a file, which ``--replay`` runs."""


def load_scenario(name: str) -> AnyScenario:
    """The scenario of a name or of a file; ``ConfigError`` with what is wrong."""
    if not name.endswith(".toml"):
        return builtin_scenario(name)
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARACTERS + 1)
    except (OSError, ValueError) as cause:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"cannot read {name}: {cause}") from None
    return decode_scenario(text, name)


def run_simulation(options: SimulateOptions) -> dict[str, Any]:
    """The report as a map that JSON can hold, with ``elapsed_s``, ``cpu_s``, ``peak_rss_bytes`` and ``events_per_s``
    measured here.

    ``violations`` is empty exactly if every invariant held. Raises ``ConfigError`` for options that cannot be.
    """
    scenario = load_scenario(options.scenario)
    peers = _count_peers(scenario, options.peers)
    started, cpu_started = time.perf_counter(), time.process_time()
    report = _run(scenario, peers, options)
    elapsed_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        **dataclasses.asdict(report),
        "violations": list(report.violations),
        "elapsed_s": round(elapsed_s, 3),
        "cpu_s": round(cpu_s, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        "events_per_s": round(report.events / elapsed_s),
    }


def _count_peers(scenario: AnyScenario, wanted: int | None) -> int:
    low, high = (1, MAX_SIMULATED_PEERS) if isinstance(scenario, Scenario) else (2, MAX_SIMULATED_PEERS // 2)
    if isinstance(scenario, ClaimsScenario | ModelsScenario):
        low = max(low, scenario.holders)
    peers = wanted if wanted is not None else DEFAULT_PEERS if isinstance(scenario, Scenario) else scenario.peers
    if not low <= peers <= high:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"--peers {peers} is not within {low} to {high}")
    return peers


def _run(
    scenario: AnyScenario, peers: int, options: SimulateOptions
) -> Report | OverlayReport | ClaimsReport | ModelsReport | PoolReport:
    if not isinstance(scenario, OverlayScenario):
        if options.record is not None:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "--record is for scenarios of the world 'overlay'")
        if isinstance(scenario, ClaimsScenario):
            return simulate_claims(scenario, peers, options.seed)
        if isinstance(scenario, ModelsScenario):
            return simulate_models(scenario, peers, options.seed)
        if isinstance(scenario, PoolScenario):
            return simulate_pool(scenario, peers, options.seed)
        return simulate(scenario, peers, options.seed)
    # Millions of small objects that live to the end: looking at them again and again finds no garbage.
    gc.disable()
    try:
        recorder = Recorder(options.record[0]) if options.record is not None else None
        report = simulate_overlay(scenario, peers, options.seed, recorder)
        if recorder is not None and options.record is not None:
            options.record[1].write_text(recorder.text(), encoding="utf-8")
        return report
    finally:
        gc.enable()


def replay_file(path: Path) -> dict[str, Any]:
    """The effects of a recorded machine, as a map that JSON can hold."""
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"{path} is no file; give one that simulate --record wrote")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as cause:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"cannot read {path}: {cause}") from None
    machine, effects = replay_recording(text)
    return {"machine": machine, "effects": [{"now": now, "effect": repr(effect)} for now, effect in effects]}


def describe_replay(report: dict[str, Any]) -> str:
    """A report of ``replay_file`` for a person."""
    lines = [f"{item['now'] / 1e6:12.6f} s  {item['effect']}" for item in report["effects"]]
    return "\n".join([f"{len(lines)} effects of {report['machine']}", *lines])


def describe_simulation(report: dict[str, Any]) -> str:
    """A report of ``run_simulation`` for a person, in lines."""
    held = "all invariants held" if not report["violations"] else "INVARIANTS BROKEN:"
    return "\n".join(
        [
            f"{report['scenario']}: {report['peers']} peers, seed {report['seed']}, "
            f"{report['simulated_us'] / 1e6:.0f} s simulated in {report['elapsed_s']} s "
            f"({report['cpu_s']} s of one core, {format_size(report['peak_rss_bytes'])})",
            f"{report['events']} events, {report['events_per_s']} a second, digest {report['digest']}",
            *_describe_world(report),
            held,
            *report["violations"],
        ]
    )


def _describe_world(report: dict[str, Any]) -> list[str]:
    if "bars" in report:
        return describe_overlay(report)
    if "most_listers" in report:
        return _describe_pool(report)
    if "moves" in report:
        return _describe_models(report)
    return _describe_claims(report) if "takeovers" in report else _describe_runs(report)


def _describe_claims(report: dict[str, Any]) -> list[str]:
    return [
        f"{report['claims_held']} claims held, {report['takeovers']} runs taken over, "
        f"{report['step_downs']} coordinators of serving runs stepped down",
        f"models were served {report['served_per_million'] / 10_000:.2f} % of the time in which they could be, "
        f"at most {report['longest_unserved_us'] / 1e6:.0f} s not",
    ]


def _describe_pool(report: dict[str, Any]) -> list[str]:
    minutes = report["simulated_us"] / 6e7
    return [
        f"{report['deaths']} deaths; after one at most {report['most_listers']} members began to list the pool",
        f"unlisted at most {report['longest_unlisted_us'] / 1e6:.1f} s at a time, "
        f"{report['unlisted_us'] / 1e6:.1f} s in all; listed twice for {report['twice_listed_us'] / 1e6:.1f} s",
        f"relays were asked {report['checks'] / minutes:.1f} times a minute and given "
        f"{report['publishes'] / minutes:.1f} listings",
    ]


def _describe_models(report: dict[str, Any]) -> list[str]:
    worst = sorted(report["longest_by_model_us"], reverse=True)[:5]
    return [
        f"{report['models']} models: {report['claims_held']} claims held, {report['published']} of {report['runs']} "
        f"runs served, {report['takeovers']} were taken over; {report['plans']} plans, {report['refused_loads']} loads "
        "refused",
        f"{report['moves']} runs moved to better placements, "
        f"{report['moves_per_model_hour_milli'] / 1000:.2f} per model and hour",
        f"models were served {report['served_per_million'] / 10_000:.2f} % of the time in which they could be; longest "
        f"without, by model: {', '.join(f'{us / 1e6:.0f}' for us in worst)} s",
    ]


def _describe_runs(report: dict[str, Any]) -> list[str]:
    requests = ", ".join(f"{count} {outcome}" for outcome, count in report["requests"].items()) or "none"
    return [
        f"{report['runs']} runs, {report['tokens']} tokens; requests: {requests}",
        f"a peer knows {report['known_percent']} % of the others",
    ]
