"""``p2pmesh bench tpot``: what a token was predicted to take, and what it then took, for stages behind slow links.

Real nodes, each with a home and a process of its own, serve one model in so many stages; every connection between them
goes through links with a delay (``app.delay_links``). Once the links are measured the coordinator is asked for its
prediction, and only then are tokens generated and timed, as a client sees them.
"""

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, TextIO

import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_nodes import BenchNodes, NodeProcess, open_nodes
from p2pmesh.app.bench_options import BenchTpotOptions
from p2pmesh.app.bench_stream import stream_token_times, tokens_per_s
from p2pmesh.app.client import ask_console
from p2pmesh.app.delay_links import free_ports, measure_excess_us, open_delayed_fronts
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.core.planning.bytes import PREDICTED_POSITION
from p2pmesh.ports.models import ModelFile

BAR_PERCENT = 15
LINKS_TIMEOUT_S = 240.0
LOOK_AGAIN_S = 1.0
SETTLE_S = 50.0
"""From the first sample of each link to the prediction: by then the coordinator has learned what its hops take."""


@dataclass(frozen=True, slots=True)
class TpotRow:
    """One combination; milliseconds.

    ``planned_ms`` was predicted before anything was loaded; ``replanned_ms`` is what a plan of the same stages predicts
    once the peers know their speeds and their links, and ``predicted_ms`` what is predicted of this very run.
    ``parts_ms`` are those of the prediction. ``estimated_network_ms`` is upstream's rougher figure for the links.
    ``efficiency`` is the measured rate over what the links alone would allow; None without a delay.
    """

    stages: int
    delay_ms: int
    planned_ms: float
    replanned_ms: float
    predicted_ms: float
    measured_ms: float
    lowest_ms: float
    highest_ms: float
    estimated_network_ms: float
    is_target_met: bool
    efficiency: float | None
    parts_ms: Mapping[str, float]

    @property
    def error_percent(self) -> float:
        """By how much the prediction was above what was measured."""
        return 100 * (self.predicted_ms / self.measured_ms - 1)

    @property
    def is_within_bar(self) -> bool:
        """Whether that was little enough."""
        return abs(self.error_percent) <= BAR_PERCENT


def run_tpot(options: BenchTpotOptions, out: TextIO) -> int:
    """Measures and prints, each row as soon as it is measured; 0, or 1 where a prediction was beyond the bar."""

    def show(line: str) -> None:
        if not options.is_json:
            _write(out, line)

    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        bench = _TpotBench(options, Path(scratch))
        excess_us = {delay_ms: measure_excess_us(1000 * delay_ms) for delay_ms in options.delays_ms}
        told = ", ".join(f"{excess / 1000:+.2f} ms at {delay_ms} ms" for delay_ms, excess in excess_us.items())
        show(f"{bench.model.name}; {options.tokens} tokens, {options.requests} times; the links themselves add {told}")
        show(_HEAD)
        rows = trio.run(bench.rows, lambda row: show(line_of(row)))
    if options.is_json:
        facts = {
            "model": bench.model.name,
            "links_add_us": excess_us,
            "rows": [asdict(row) | {"error_percent": round(row.error_percent, 1)} for row in rows],
        }
        _write(out, json.dumps(facts, indent=2))
    within = sum(row.is_within_bar for row in rows)
    show(f"{within} of {len(rows)} predictions within {BAR_PERCENT} %")
    return 0 if within == len(rows) else 1


def _write(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


_HEAD = (
    f"{'stages':>6}{'hop ms':>8}{'planned':>9}{'replanned':>11}{'predicted':>11}{'measured':>10}{'lowest':>8}"
    f"{'highest':>9}{'error':>8}{'network':>9}{'target':>8}{'efficiency':>12}  parts of the prediction"
)


def line_of(row: TpotRow) -> str:
    efficiency = "" if row.efficiency is None else f"{row.efficiency:.2f}"
    parts = ", ".join(f"{name} {value:.1f}" for name, value in row.parts_ms.items())
    return (
        f"{row.stages:6}{row.delay_ms:8}{row.planned_ms:9.1f}{row.replanned_ms:11.1f}{row.predicted_ms:11.1f}{row.measured_ms:10.1f}"
        f"{row.lowest_ms:8.1f}{row.highest_ms:9.1f}{row.error_percent:+7.1f}%{row.estimated_network_ms:9.1f}"
        f"{'met' if row.is_target_met else 'missed':>8}{efficiency:>12}  {parts}"
    )


class _TpotBench:
    """One run of the benchmark; nodes keep their homes in ``scratch``."""

    def __init__(self, options: BenchTpotOptions, scratch: Path) -> None:
        self._options = options
        self._scratch = scratch
        self._engine_cache = options.home / "cache" / "engine"
        store = open_access(options.home).store
        self.model: ModelFile = trio.run(store.resolve, options.model or DEMO_MODEL)
        # Any tokens do; the first ones of a vocabulary are control tokens.
        self._prompt = [100 + (7 * i) % 1000 for i in range(options.prompt_tokens)]

    async def rows(self, show: Callable[[TpotRow], None]) -> tuple[TpotRow, ...]:
        """Every combination, in order."""
        rows = []
        for number, (stages, delay_ms) in enumerate(product(self._options.stages, self._options.delays_ms)):
            row = await self._measure(self._scratch / str(number), stages, delay_ms)
            rows.append(row)
            show(row)
        return tuple(rows)

    async def _measure(self, scratch: Path, stages: int, delay_ms: int) -> TpotRow:
        ports = free_ports(stages)
        with ExitStack() as links:
            fronts = links.enter_context(open_delayed_fronts(1000 * delay_ms, ports))
            async with open_nodes(scratch, self._engine_cache) as nodes:
                founder = await self._start(nodes, ports, fronts)
                planned = await founder.wait_for("placement")
                url = str((await founder.wait_for("listening"))["api_url"])
                await founder.wait_for("pipeline_ready")
                predicted = await self._predict(nodes, stages)
                times_ms = [1000 / await self._read_stream(url) for _ in range(self._options.requests + 1)][1:]
        position = self._options.prompt_tokens + self._options.tokens // 2
        return row_of((stages, delay_ms), planned, at_position(predicted, position), times_ms)

    async def _start(self, nodes: BenchNodes, ports: Sequence[int], fronts: Sequence[int]) -> NodeProcess:
        """A founder that coordinates, and a peer for each further stage."""

        async def start(at: int, *arguments: str) -> NodeProcess:
            listen, told = (f"/ip4/127.0.0.1/tcp/{port}" for port in (ports[at], fronts[at]))
            return await nodes.start(f"peer-{at}", "--announce", told, *arguments, listen=listen)

        founder = await start(0, "--model", self.model.path, "--split", str(len(ports)))
        invite = str((await founder.wait_for("invite"))["invite"])
        for at in range(1, len(ports)):
            await start(at, "--join", invite)
        return founder

    # --- the prediction
    async def _predict(self, nodes: BenchNodes, stages: int) -> Mapping[str, Any]:
        """What the coordinator predicts once it knows the links for a while."""
        home = nodes.home_of("peer-0")
        with trio.move_on_after(LINKS_TIMEOUT_S):
            while True:
                ring = ring_of(await _ask(home, "/api/status"))
                known = {frozenset(link["between"]) for link in (await _ask(home, "/api/peers"))["links"]}
                if ring <= known:
                    await trio.sleep(SETTLE_S if stages > 1 else LOOK_AGAIN_S)
                    break
                await trio.sleep(LOOK_AGAIN_S)
            predicted: Mapping[str, Any] = (await _ask(home, "/api/status"))["placements"][0]
            return predicted
        raise Refused(ErrorCode.INTERNAL, f"the links were not measured within {LINKS_TIMEOUT_S:.0f} s")

    async def _read_stream(self, api_url: str) -> float:
        """Tokens per second of one answer."""
        body = {
            "model": Path(self.model.path).stem,
            "prompt": self._prompt,
            "max_tokens": self._options.tokens,
            "temperature": 0,
            "stream": True,
        }
        times = await trio.to_thread.run_sync(
            stream_token_times,
            api_url,
            json.dumps(body).encode(),
            abandon_on_cancel=True,  # type: ignore[call-arg]
        )
        return tokens_per_s(times, self._options.tokens)


async def _ask(home: Path, path: str) -> dict[str, Any]:
    return await trio.to_thread.run_sync(ask_console, home, "GET", path)


def ring_of(status: Mapping[str, Any]) -> set[frozenset[str]]:
    """The pairs of neighbours of the placement."""
    peers = [stage["peer_id"] for stage in status["placements"][0]["stages"]]
    return {frozenset(pair) for pair in zip(peers, [*peers[1:], *peers[:1]], strict=True) if pair[0] != pair[1]}


def at_position(predicted: Mapping[str, Any], position: int) -> dict[str, Any]:
    """A prediction, whose read of the KV cache is that of ``PREDICTED_POSITION``, for a token at another."""
    cache_us = predicted["cache_us"] * position // PREDICTED_POSITION
    more_us = cache_us - predicted["cache_us"]
    changed = {name: predicted[name] + more_us for name in ("predicted_tpot_us", "planned_tpot_us", "compute_us")}
    return {**predicted, **changed, "cache_us": cache_us}


def row_of(
    combination: tuple[int, int], planned: Mapping[str, Any], predicted: Mapping[str, Any], times_ms: Sequence[float]
) -> TpotRow:
    stages, delay_ms = combination
    measured_ms = statistics.median(times_ms)
    parts = ("compute_us", "network_us", "transfer_us", "overhead_us")
    return TpotRow(
        stages=stages,
        delay_ms=delay_ms,
        planned_ms=planned["predicted_tpot_us"] / 1000,
        replanned_ms=predicted["planned_tpot_us"] / 1000,
        predicted_ms=predicted["predicted_tpot_us"] / 1000,
        measured_ms=measured_ms,
        lowest_ms=min(times_ms),
        highest_ms=max(times_ms),
        estimated_network_ms=predicted["estimated_decode_network_ms_per_token"],
        is_target_met=predicted["decode_tpot_target_met"],
        efficiency=stages * delay_ms / measured_ms if delay_ms and stages > 1 else None,
        parts_ms={name.removesuffix("_us"): predicted[name] / 1000 for name in parts},
    )
