"""What came of a simulation of the overlay: figures, the bars they are held to, and a table for people."""

from dataclasses import dataclass
from typing import Any

from p2pmesh.base.quantities import KIB
from p2pmesh.sim.finding import BOUND_US
from p2pmesh.sim.overlay import Overlay
from p2pmesh.sim.overlay_faults import schedule_faults
from p2pmesh.sim.overlay_scenario import OverlayScenario
from p2pmesh.sim.recorder import Recorder
from p2pmesh.sim.scenario import MINUTE_US, SECOND_US

LONG_UP_US = 10 * MINUTE_US
"""A peer's rate counts if it ran at least as long, over all of its runs."""
TRAFFIC_BOUND = 2 * KIB
MADE_UP_BOUND_PERCENT = 15
"""Of the largest share of any honest view."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in whole numbers; all 0 if there was nothing."""

    count: int
    mean: int
    p50: int
    p99: int
    most: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound and what was measured; ``measured`` is as ``bound`` in its unit."""

    name: str
    measured: int
    bound: int
    unit: str
    is_met: bool


@dataclass(frozen=True, slots=True)
class OverlayReport:
    """Bytes a second, microseconds, and counts. ``traffic_by_cause`` is in plus out, mean per live second of a peer."""

    scenario: str
    peers: int
    seed: int
    simulated_us: int
    events: int
    entries: int
    receipts: int
    probes: int
    digest: str
    live: int
    depths: dict[str, int]
    view: Spread
    sent_bytes_per_s: Spread
    received_bytes_per_s: Spread
    traffic_by_cause: dict[str, int]
    crashes: int
    leaves: int
    detection_us: Spread
    leaving_us: Spread
    believed_late: int
    searches: int
    found_us: Spread
    found_in_time_per_million: int
    beliefs: dict[str, int]
    most_sybil_share_percent: int
    victim_sybil_share_percent: int
    bars: tuple[Bar, ...]
    violations: tuple[str, ...]


def spread_of(values: list[int]) -> Spread:
    """Mean and percentiles."""
    if not values:
        return Spread(0, 0, 0, 0, 0)
    ordered = sorted(values)
    count = len(ordered)
    p99 = ordered[min(count - 1, count * 99 // 100)]
    return Spread(count, sum(ordered) // count, ordered[count // 2], p99, ordered[-1])


def simulate_overlay(
    scenario: OverlayScenario, peers: int, seed: int, recorder: Recorder | None = None
) -> OverlayReport:
    """Runs a scenario with so many peers at first."""
    world = Overlay(scenario, peers, seed, recorder)
    schedule_faults(world)
    world.run()
    return make_report(world)


def make_report(world: Overlay) -> OverlayReport:
    """All figures of a world whose scenario is over."""
    audit, searches = world.audit, world.finding.searches
    sent, received = _rates(world)
    found = [found_us for search in searches for found_us in search.found_us]
    seekers = sum(search.seekers for search in searches)
    in_time = sum(found_us <= BOUND_US for found_us in found)
    in_time_per_million = 1_000_000 * in_time // seekers if seekers else 1_000_000
    detection = spread_of(audit.detected_us)
    bars: tuple[Bar, ...] = (
        _at_most("control traffic out, mean", sent.mean, TRAFFIC_BOUND, "B/s"),
        _at_most("control traffic in, mean", received.mean, TRAFFIC_BOUND, "B/s"),
        _at_most("control traffic out, p99", sent.p99, TRAFFIC_BOUND, "B/s"),
        _at_most("control traffic in, p99", received.p99, TRAFFIC_BOUND, "B/s"),
        Bar("new model found in 60 s", in_time_per_million, 990_000, "per million", in_time_per_million >= 990_000),
        _at_most("believed alive 300 s after the end", audit.believed_late, 0, "beliefs"),
    )
    if any(traits.host != traits.number for traits in world.traits):
        most = max(audit.most_sybil_share, audit.victim_sybil_share)
        bars += (_at_most("made-up identities in a view", most, MADE_UP_BOUND_PERCENT, "%"),)
    return OverlayReport(
        world.scenario.name, world.first_peers, world.seed, world.now_us, world.events, world.calendar.taken,
        world.gossip.receipts, world.probing.sent, world.fold.digest(), len(world.live), _depths(world),
        spread_of([member.machine.live_count for member in world.live]), sent, received, _by_cause(world),
        audit.crashes, audit.leaves, detection, spread_of(audit.left_us), audit.believed_late, len(searches),
        spread_of(found), in_time_per_million, dict(audit.counts), audit.most_sybil_share,
        audit.victim_sybil_share, bars, tuple(audit.violations),
    )  # fmt: skip


def _at_most(name: str, measured: int, bound: int, unit: str) -> Bar:
    return Bar(name, measured, bound, unit, measured <= bound)


def _rates(world: Overlay) -> tuple[Spread, Spread]:
    sent, received = [], []
    hosts = {traits.host for traits in world.traits if traits.host != traits.number}
    for traits in world.traits:
        if traits.up_us >= LONG_UP_US and traits.number not in hosts:
            out_bytes, in_bytes = world.ledger.totals(traits.number)
            sent.append(out_bytes * SECOND_US // traits.up_us)
            received.append(in_bytes * SECOND_US // traits.up_us)
    return spread_of(sent), spread_of(received)


def _by_cause(world: Overlay) -> dict[str, int]:
    up_s = max(1, sum(traits.up_us for traits in world.traits) // SECOND_US)
    return {cause: total // up_s for cause, total in world.ledger.by_cause().items()}


def _depths(world: Overlay) -> dict[str, int]:
    found: dict[int, int] = {}
    for member in world.live:
        found[member.shards.depth] = found.get(member.shards.depth, 0) + 1
    return {str(depth): found[depth] for depth in sorted(found)}


# --- for people ----------------------------------------------------------------------
def describe_overlay(report: dict[str, Any]) -> list[str]:
    """Lines out of a report that ``dataclasses.asdict`` made."""
    detection, found, view = report["detection_us"], report["found_us"], report["view"]
    rows = [
        (bar["name"], f"{bar['measured']} {bar['unit']}", f"{bar['bound']}", "met" if bar["is_met"] else "MISSED")
        for bar in report["bars"]
    ]
    width = max(len(row[0]) for row in rows)
    return [
        f"live at the end {report['live']}; a view holds {view['mean']} peers, at most {view['most']}; "
        f"shards by depth: {', '.join(f'{depth}: {count}' for depth, count in report['depths'].items())}",
        f"traffic by cause, B/s in and out: {', '.join(f'{k} {v}' for k, v in report['traffic_by_cause'].items())}",
        f"{report['crashes']} crashes, noticed after {detection['p50'] / 1e6:.1f} s (median), "
        f"{detection['p99'] / 1e6:.1f} s (p99), {detection['most'] / 1e6:.1f} s (most); {report['leaves']} left",
        f"{report['searches']} new models, found after {found['p50'] / 1e6:.1f} s (median), "
        f"{found['p99'] / 1e6:.1f} s (p99)",
        f"beliefs: {', '.join(f'{name} {count}' for name, count in report['beliefs'].items())}",
        *(f"  {name:<{width}}  {measured:>20}  {bound:>8}  {verdict}" for name, measured, bound, verdict in rows),
    ]
