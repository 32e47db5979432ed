"""``p2pmesh bench prefix``: the time to the first token of a prompt whose beginning is new, and of one that repeats it.

Real nodes, each with a home and a process of its own, serve one model in so many stages. Each round asks for a prompt
that was never there, then for one with the same beginning and another end, so that load changes both alike.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_nodes import BenchNodes, open_nodes
from p2pmesh.app.bench_options import BenchPrefixOptions
from p2pmesh.app.bench_stream import stream_token_times
from p2pmesh.app.model_access import open_access
from p2pmesh.ports.models import ModelFile

BAR = 0.2
"""Of the time without the cache, that a prefix of a thousand tokens may take with it."""
END_TOKENS = 8
"""Behind the prefix, other ones in each prompt."""


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """One round; milliseconds to the first token."""

    cold_ms: float
    warm_ms: float

    @property
    def ratio(self) -> float:
        """Of the time that a new prompt takes."""
        return self.warm_ms / self.cold_ms


def run_prefix(options: BenchPrefixOptions, out: TextIO) -> int:
    """Measures and prints, each round as soon as it is measured; 0, or 1 where the median is above the bar."""

    def show(line: str) -> None:
        if not options.is_json:
            out.write(line + "\n")
            out.flush()

    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        bench = _PrefixBench(options, Path(scratch))
        show(f"{bench.model.name}; {options.stages} stages, {options.prefix_tokens} tokens and {END_TOKENS} more")
        show(f"{'new ms':>9}{'again ms':>10}{'ratio':>7}")
        rows = trio.run(bench.rows, lambda row: show(f"{row.cold_ms:9.1f}{row.warm_ms:10.1f}{row.ratio:7.3f}"))
    ratio = statistics.median(row.ratio for row in rows)
    if options.is_json:
        facts: dict[str, Any] = {"model": bench.model.name, "ratio": ratio, "rows": [asdict(row) for row in rows]}
        out.write(json.dumps(facts, indent=2) + "\n")
    show(f"median ratio {ratio:.3f}, at most {BAR} is the bar")
    return 0 if ratio <= BAR else 1


class _PrefixBench:
    """One run of the benchmark; nodes keep their homes in ``scratch``."""

    def __init__(self, options: BenchPrefixOptions, scratch: Path) -> None:
        self._options = options
        self._scratch = scratch
        self._engine_cache = options.home / "cache" / "engine"
        store = open_access(options.home).store
        self.model: ModelFile = trio.run(store.resolve, options.model or DEMO_MODEL)

    async def rows(self, show: Callable[[PrefixRow], None]) -> tuple[PrefixRow, ...]:
        """Every round, after one that warms what is not the cache of prefixes."""
        async with open_nodes(self._scratch, self._engine_cache) as nodes:
            url = await self._start(nodes)
            await self._round(url, 0)
            rows = []
            for number in range(self._options.rounds):
                rows.append(await self._round(url, number + 1))
                show(rows[-1])
            return tuple(rows)

    async def _start(self, nodes: BenchNodes) -> str:
        founder = await nodes.start("founder", "--model", self.model.path, "--split", str(self._options.stages))
        url = str((await founder.wait_for("listening"))["api_url"])
        invite = str((await founder.wait_for("invite"))["invite"])
        for number in range(1, self._options.stages):
            await nodes.start(f"joiner{number}", "--join", invite)
        await founder.wait_for("pipeline_ready")
        return url

    async def _round(self, url: str, number: int) -> PrefixRow:
        # Any tokens do; the first ones of a vocabulary are control tokens.
        prefix = [100 + (7 * index + 13 * number) % 1000 for index in range(self._options.prefix_tokens)]
        cold_ms = await self._first_token_ms(url, [*prefix, *range(2000, 2000 + END_TOKENS)])
        warm_ms = await self._first_token_ms(url, [*prefix, *range(3000, 3000 + END_TOKENS)])
        return PrefixRow(cold_ms, warm_ms)

    async def _first_token_ms(self, url: str, prompt: list[int]) -> float:
        body = {"model": Path(self.model.path).stem, "prompt": prompt, "max_tokens": 2, "temperature": 0}
        encoded = json.dumps(body | {"stream": True}).encode()
        began = time.perf_counter()
        times = await trio.to_thread.run_sync(stream_token_times, url, encoded, abandon_on_cancel=True)  # type: ignore[call-arg]
        return 1000 * (times[0] - began)
