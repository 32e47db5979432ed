"""``p2pmesh bench overlay``: how soon announcements arrive everywhere, and what an idle node costs, with real nodes.

Every peer is a real node process on this machine, without a model, in a home of its own. They tell of their gossip
(``up --trace-gossip``) with times of one clock, so nothing is polled; memory and CPU are read from ``/proc`` once a
minute. At the end one node is killed and started again under its id.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import trio

from p2pmesh.app.config import BenchOverlayOptions
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.quantities import KIB
from p2pmesh.node.failures import unwrapped

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
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

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
Event = Mapping[str, Any]


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


# --- a node -------------------------------------------------------------------
@dataclass
class _NodeProcess:
    """One node, its events but for gossip's, and what it used when it was last looked at."""

    name: str
    home: Path
    process: trio.Process
    events: list[Event] = field(default_factory=list)
    has_ended: bool = False
    _changed: trio.Event = field(default_factory=trio.Event)

    def add(self, event: Event) -> None:
        """Keeps an event and wakes whoever waits for it."""
        self.events.append(event)
        self._wake()

    def end(self) -> None:
        """Its output is over."""
        self.has_ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for(self, name: str) -> Event:
        """The first event of a name; ``Refused`` if the node ends or is too slow."""
        with trio.move_on_after(START_TIMEOUT_S):
            while True:
                found = next((event for event in self.events if event["event"] == name), None)
                if found is not None:
                    return found
                if self.has_ended:
                    break
                await self._changed.wait()
        told = [event.get("message") for event in self.events if event["event"] == "error"]
        raise Refused(ErrorCode.INTERNAL, f"{self.name} gave no {name} event: {told or 'see its output above'}")

    def usage(self) -> tuple[float, int] | None:
        """CPU seconds so far and resident bytes; None when it is gone."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            resident = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            return None
        return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S, resident


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
        self._nodes: dict[str, _NodeProcess] = {}
        self._ledger = GossipLedger()
        self._cpu: dict[str, list[float]] = {}
        self._resident: dict[str, list[int]] = {}

    async def run(self) -> dict[str, Any]:
        """The report; whatever happens, no process is left."""
        with unwrapped():
            return await self._run()

    async def _run(self) -> dict[str, Any]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_at_signal)
            try:
                report = await self._measure(nursery)
            finally:
                with trio.CancelScope(shield=True):
                    await self._stop_all()
            nursery.cancel_scope.cancel()
        return report

    async def _measure(self, nursery: trio.Nursery) -> dict[str, Any]:
        began = time.monotonic()
        founder = await self._start(nursery, "peer-0", ())
        invite = str((await founder.wait_for("invite"))["invite"])
        await self._start_joiners(nursery, invite)
        joining_s = time.monotonic() - began
        self._show(f"{len(self._nodes)} peers joined in {joining_s:.0f} s")
        await trio.sleep(SETTLE_S)
        start_ms = _now_ms()
        await self._sample_for(self._options.minutes)
        names = tuple(self._nodes)
        deliveries = self._ledger.deliveries(names, start_ms, _now_ms() - int(GRACE_S * 1000))
        restart = await self._restart(nursery, names[-1], invite) if len(names) > 1 else None
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
    async def _start_joiners(self, nursery: trio.Nursery, invite: str) -> None:
        """A few at a time: starting costs seconds of CPU each."""
        limiter = trio.CapacityLimiter(STARTING_AT_ONCE)

        async def join(name: str) -> None:
            async with limiter:
                await (await self._start(nursery, name, ("--join", invite))).wait_for("joined")

        async with trio.open_nursery() as joining:
            for number in range(1, self._options.peers):
                joining.start_soon(join, f"peer-{number}")

    async def _start(self, nursery: trio.Nursery, name: str, arguments: Sequence[str]) -> _NodeProcess:
        home = self._scratch / name
        command = [
            sys.executable, "-m", "p2pmesh", "up", "--home", str(home), "--name", name, "--port", "0",
            "--console-port", "0", "--listen", "/ip4/127.0.0.1/tcp/0", "--log-format", "json", "--max-memory", "0",
            "--trace-gossip", *arguments,
        ]  # fmt: skip
        process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        node = self._nodes[name] = _NodeProcess(name, home, process)
        nursery.start_soon(self._follow, node)
        return node

    async def _follow(self, node: _NodeProcess) -> None:
        assert node.process.stdout is not None
        rest = b""
        async for data in node.process.stdout:
            *lines, rest = (rest + bytes(data)).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["event"].startswith("gossip_"):
                    self._ledger.add(node.name, event)
                else:
                    node.add(event)
        node.end()

    async def _stop_all(self) -> None:
        for node in self._nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT_S):
            for node in self._nodes.values():
                await node.process.wait()
        for node in self._nodes.values():
            if node.process.poll() is None:
                node.process.kill()
                await node.process.wait()

    # --- what an idle node costs
    async def _sample_for(self, minutes: int) -> None:
        last = {name: node.usage() for name, node in self._nodes.items()}
        looked_at = time.monotonic()
        for minute in range(1, minutes + 1):
            await trio.sleep(SAMPLE_S)
            elapsed_s, looked_at = time.monotonic() - looked_at, time.monotonic()
            now = {name: node.usage() for name, node in self._nodes.items()}
            for name, used in now.items():
                before = last[name]
                if used is not None and before is not None:
                    self._cpu.setdefault(name, []).append((used[0] - before[0]) / elapsed_s)
                    self._resident.setdefault(name, []).append(used[1])
            last = now
            self._show(f"minute {minute}: {_shown_idle(self._idle(tuple(self._nodes)))}")

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
    async def _restart(self, nursery: trio.Nursery, name: str, invite: str) -> dict[str, Any]:
        """Kills a node and starts it again at once: when it has joined, is heard by all others, and hears."""
        self._nodes[name].process.kill()
        await self._nodes[name].process.wait()
        killed_ms = _now_ms()
        node = await self._start(nursery, name, ("--join", invite))
        try:
            await node.wait_for("joined")
        except Refused as error:  # a figure like any other: what was measured before must not be lost with it
            return {"error": error.message, "output": list(node.events)[-10:]}
        joined_ms = _now_ms()
        await trio.sleep(max(SETTLE_S, 3 * GRACE_S))
        others = [other for other in self._nodes if other != name]
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


async def _end_at_signal() -> None:
    """A benchmark that is told to stop leaves no node behind either."""
    with trio.open_signal_receiver(signal.SIGTERM) as received:
        async for _ in received:
            raise Refused(ErrorCode.CANCELLED, "the benchmark was told to stop; its nodes have ended")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
