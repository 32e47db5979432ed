"""``p2pmesh bench overlay``: how soon announcements arrive everywhere, and what an idle node costs, with real nodes.

Every peer is a real node process on this machine, without a model, in a home of its own. They tell of their gossip
(``up --trace-gossip``) with times of one clock, so nothing is polled; memory and CPU are read from ``/proc`` once a
minute. At the end one node is killed and started again under its id.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import trio

from p2pmesh.app.bench_nodes import BenchNodes, Event, NodeProcess, open_nodes
from p2pmesh.app.bench_options import BenchOverlayOptions
from p2pmesh.app.claims import now_unix_ms
from p2pmesh.base.errors import Refused
from p2pmesh.base.quantities import KIB

SETTLE_S = 30.0
"""After the last peer has joined, before anything counts."""
GRACE_S = 10.0
"""A message published later than this before the end is not counted: it had no time to arrive."""
SAMPLE_S = 60.0
STARTING_AT_ONCE = 2
MAX_TRACED = 500_000
"""Gossip events that are kept, over all nodes."""
MEDIAN_BAR_MS = 2000
CPU_BAR = 0.02


def run_overlay(options: BenchOverlayOptions, out: TextIO) -> int:
    """Measures and prints; 0."""
    scratch = Path(tempfile.mkdtemp(prefix="p2pmesh-bench-"))
    try:
        show = (lambda _: None) if options.is_json else (lambda line: _write(out, line))
        report = trio.run(_OverlayBench(options, scratch, show).run)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if options.is_json:
        _write(out, json.dumps(report, indent=2))
    else:
        for line in describe_overlay(report):
            _write(out, line)
    return 0


def _write(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


# --- gossip, put together ------------------------------------------------------
class GossipLedger:
    """Which message was published when and where, and when it arrived at each node; bounded, the oldest go first."""

    def __init__(self, capacity: int = MAX_TRACED) -> None:
        self._capacity = capacity
        self._events: deque[tuple[str, bool, str, int, int]] = deque(maxlen=capacity)

    def add(self, node: str, event: Event) -> None:
        """A ``gossip_published`` or ``gossip_delivered`` of a node."""
        is_publishing = event["event"] == "gossip_published"
        self._events.append((node, is_publishing, event["message_id"], event["unix_ms"], event["size_bytes"]))

    def deliveries(self, nodes: Sequence[str], start_ms: int, end_ms: int) -> dict[str, Any]:
        """Figures of the messages that ``nodes`` published within ``[start_ms, end_ms)``, in milliseconds."""
        published: dict[str, tuple[str, int]] = {}
        delivered: dict[str, dict[str, int]] = {}
        sizes: list[int] = []
        for node, is_publishing, message_id, unix_ms, size_bytes in self._events:
            if not is_publishing:
                delivered.setdefault(message_id, {}).setdefault(node, unix_ms)
            elif node in nodes and start_ms <= unix_ms < end_ms:
                published.setdefault(message_id, (node, unix_ms))
                sizes.append(size_bytes)
        one, everywhere, missing = [], [], 0
        for message_id, (publisher, sent_ms) in published.items():
            arrived = delivered.get(message_id, {})
            waits = [arrived[node] - sent_ms for node in nodes if node in arrived and node != publisher]
            one += waits
            missing += len(nodes) - 1 - len(waits)
            if len(waits) == len(nodes) - 1 and waits:
                everywhere.append(max(waits))
        return {
            "messages": len(published),
            "message_bytes_median": int(statistics.median(sizes)) if sizes else 0,
            "to_one_peer_ms": quantiles(one),
            "to_all_peers_ms": quantiles(everywhere),
            "complete_messages": len(everywhere),
            "missing_deliveries": missing,
        }

    def first_after(self, start_ms: int, accepts: Callable[[str, bool, str], bool]) -> int | None:
        """When the first event after ``start_ms`` happened that ``accepts(node, is_publishing, message id)``."""
        found = (
            at
            for node, is_publishing, one, at, _ in self._events
            if at >= start_ms and accepts(node, is_publishing, one)
        )
        return next(found, None)

    def published_by(self, node: str, start_ms: int) -> list[str]:
        """Ids of what a node published since, in order."""
        return [
            one for name, is_publishing, one, at, _ in self._events if name == node and is_publishing and at >= start_ms
        ]


def quantiles(values: Sequence[int]) -> dict[str, int] | None:
    """Median, 95th percentile and maximum."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "median": ordered[(len(ordered) - 1) // 2],
        "p95": ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
        "max": ordered[-1],
    }


def slope_per_minute(values: Sequence[float]) -> float:
    """Least squares over values a minute apart; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    fit = statistics.linear_regression(range(len(values)), values)
    return fit.slope


# --- the run -------------------------------------------------------------------
class _OverlayBench:
    """One run; homes lie in ``scratch``."""

    def __init__(self, options: BenchOverlayOptions, scratch: Path, show: Callable[[str], None]) -> None:
        self._options = options
        self._scratch = scratch
        self._show = show
        self._ledger = GossipLedger()
        self._cpu: dict[str, list[float]] = {}
        self._resident: dict[str, list[int]] = {}

    async def run(self) -> dict[str, Any]:
        """The report; whatever happens, no process is left."""
        async with open_nodes(self._scratch) as nodes:
            return await self._measure(nodes)

    async def _measure(self, nodes: BenchNodes) -> dict[str, Any]:
        began = time.monotonic()
        founder = await self._start(nodes, "peer-0")
        invite = str((await founder.wait_for("invite"))["invite"])
        await self._start_joiners(nodes, invite)
        joining_s = time.monotonic() - began
        self._show(f"{len(nodes.by_name)} peers joined in {joining_s:.0f} s")
        await trio.sleep(SETTLE_S)
        start_ms = now_unix_ms()
        await self._sample_for(nodes, self._options.minutes)
        names = tuple(nodes.by_name)
        deliveries = self._ledger.deliveries(names, start_ms, now_unix_ms() - int(GRACE_S * 1000))
        restart = await self._restart(nodes, names[-1], invite) if len(names) > 1 else None
        return {
            "peers": len(names),
            "minutes": self._options.minutes,
            "joining_s": round(joining_s, 1),
            "announcements": deliveries,
            "idle": {"founder": self._idle(names[:1]), "joiners": self._idle(names[1:])},
            "restart": restart,
            "bars": _bars(deliveries, self._idle(names)),
        }

    # --- starting and stopping
    async def _start_joiners(self, nodes: BenchNodes, invite: str) -> None:
        """A few at a time: starting costs seconds of CPU each."""
        limiter = trio.CapacityLimiter(STARTING_AT_ONCE)

        async def join(name: str) -> None:
            async with limiter:
                await (await self._start(nodes, name, "--join", invite)).wait_for("joined")

        async with trio.open_nursery() as joining:
            for number in range(1, self._options.peers):
                joining.start_soon(join, f"peer-{number}")

    async def _start(self, nodes: BenchNodes, name: str, *arguments: str) -> NodeProcess:
        return await nodes.start(
            name, "--max-memory", "0", "--trace-gossip", *arguments, keeps=partial(self._sort, name)
        )

    def _sort(self, name: str, event: Event) -> bool:
        """Gossip goes into the ledger; whatever else a node tells is kept."""
        is_gossip = event["event"].startswith("gossip_")
        if is_gossip:
            self._ledger.add(name, event)
        return not is_gossip

    # --- what an idle node costs
    async def _sample_for(self, nodes: BenchNodes, minutes: int) -> None:
        last = {name: node.usage() for name, node in nodes.by_name.items()}
        looked_at = time.monotonic()
        for minute in range(1, minutes + 1):
            await trio.sleep(SAMPLE_S)
            elapsed_s, looked_at = time.monotonic() - looked_at, time.monotonic()
            now = {name: node.usage() for name, node in nodes.by_name.items()}
            for name, used in now.items():
                before = last[name]
                if used is not None and before is not None:
                    self._cpu.setdefault(name, []).append((used[0] - before[0]) / elapsed_s)
                    self._resident.setdefault(name, []).append(used[1])
            last = now
            self._show(f"minute {minute}: {_shown_idle(self._idle(tuple(nodes.by_name)))}")

    def _idle(self, names: Sequence[str]) -> dict[str, Any] | None:
        """CPU as a share of a core and memory in KiB, per minute: the median over these nodes, and the worst one."""
        cpu = [self._cpu[name] for name in names if name in self._cpu]
        resident = [self._resident[name] for name in names if name in self._resident]
        if not cpu:
            return None
        medians = [statistics.median(minute) for minute in zip(*cpu, strict=False)]
        kib = [statistics.median(minute) / KIB for minute in zip(*resident, strict=False)]
        return {
            "cpu_share": round(statistics.median(medians), 4),
            "cpu_share_worst_node": round(max(statistics.mean(series) for series in cpu), 4),
            "cpu_share_per_minute": [round(value, 4) for value in medians],
            "cpu_slope_per_minute": round(slope_per_minute(medians), 6),
            "rss_kib_per_minute": [round(value) for value in kib],
            "rss_slope_kib_per_minute": round(slope_per_minute(kib), 1),
            "rss_kib_worst_node": round(max(series[-1] for series in resident) / KIB),
        }

    # --- a restart under the same id
    async def _restart(self, nodes: BenchNodes, name: str, invite: str) -> dict[str, Any]:
        """Kills a node and starts it again at once: when it has joined, is heard by all others, and hears."""
        nodes.by_name[name].process.kill()
        await nodes.by_name[name].process.wait()
        killed_ms = now_unix_ms()
        node = await self._start(nodes, name, "--join", invite)
        try:
            await node.wait_for("joined")
        except Refused as error:  # a figure like any other: what was measured before must not be lost with it
            return {"error": error.message, "output": list(node.events)[-10:]}
        joined_ms = now_unix_ms()
        await trio.sleep(max(SETTLE_S, 3 * GRACE_S))
        others = [other for other in nodes.by_name if other != name]
        ours = set(self._ledger.published_by(name, killed_ms))

        def heard_at(other: str) -> int | None:
            return self._ledger.first_after(
                killed_ms, lambda where, is_publishing, one: where == other and not is_publishing and one in ours
            )

        heard = [at for at in (heard_at(other) for other in others) if at is not None]
        hears = self._ledger.first_after(joined_ms, lambda where, is_publishing, _: where == name and not is_publishing)
        return {
            "joined_ms": joined_ms - killed_ms,
            "heard_by": len(heard),
            "of": len(others),
            "heard_by_all_after_joining_ms": max(heard) - joined_ms if len(heard) == len(others) else None,
            "hears_after_joining_ms": None if hears is None else hears - joined_ms,
        }


def _bars(deliveries: Mapping[str, Any], idle: Mapping[str, Any] | None) -> dict[str, bool]:
    """What is promised, and whether this run kept it."""
    everywhere = deliveries["to_all_peers_ms"]
    return {
        "announcement_at_all_peers_within_2_s_at_the_median": everywhere is not None
        and everywhere["median"] <= MEDIAN_BAR_MS,
        "every_announcement_delivered": deliveries["missing_deliveries"] == 0,
        "idle_cpu_under_2_percent": idle is not None and idle["cpu_share"] < CPU_BAR,
    }


def describe_overlay(report: Mapping[str, Any]) -> list[str]:
    """The report for people."""
    told = report["announcements"]
    lines = [
        f"{told['messages']} announcements of about {told['message_bytes_median']} B; "
        f"{told['complete_messages']} arrived at all other peers, {told['missing_deliveries']} deliveries are missing",
        f"at one peer   {_shown(told['to_one_peer_ms'])}",
        f"at all peers  {_shown(told['to_all_peers_ms'])}",
        f"founder, idle {_shown_idle(report['idle']['founder'])}",
        f"others, idle  {_shown_idle(report['idle']['joiners'])}",
    ]
    if report["restart"] is not None:
        lines.append("killed and started again: " + ", ".join(f"{k} {v}" for k, v in report["restart"].items()))
    return [*lines, *(f"{'kept  ' if kept else 'BROKEN'} {name}" for name, kept in report["bars"].items())]


def _shown(figures: Mapping[str, int] | None) -> str:
    return "none" if figures is None else ", ".join(f"{name} {value} ms" for name, value in figures.items())


def _shown_idle(idle: Mapping[str, Any] | None) -> str:
    if idle is None:
        return "not measured"
    return (
        f"CPU {idle['cpu_share']:.2%} of a core (worst node {idle['cpu_share_worst_node']:.2%}), "
        f"RSS {idle['rss_kib_per_minute'][-1] / KIB:.1f} MiB, {idle['rss_slope_kib_per_minute']:+.1f} KiB a minute"
    )
