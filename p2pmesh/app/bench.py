"""``p2pmesh bench decode``: tokens per second of a plain loop, of one engine, and of 1, 2, 3 … peers, in one run.

Every row is measured side by side with the plain loop: the machine is shared, so only ratios of neighbours in time
mean something. Peers are real node processes with real libp2p streams between them; a client reads from ``/v1``.
"""

import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TextIO

import trio

from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.adapters.llama.plain_loop import measure_plain_decode
from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_engine import measure_engine_decode, whole_model_spec
from p2pmesh.app.bench_nodes import BenchNodes, ended_by_signals, open_nodes
from p2pmesh.app.bench_options import BenchDecodeOptions
from p2pmesh.app.bench_stream import stream_token_times, tokens_per_s
from p2pmesh.app.model_access import open_access
from p2pmesh.base.limits import DEFAULT_LANES
from p2pmesh.ports.models import ModelFile

REPEATS = 5
FIRST_LOOP_S = 60.0
FIRST_TOKEN_S = 1.0
"""Patience with the first plain loop, and for each token of it: nothing is known of the machine yet."""
LEAST_PATIENCE_S = 30.0
PATIENCE = 10
"""With later ones, times what the one before took."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Rates are medians; ``ratio`` is the median of ratios to the plain loop beside it.

    ``predicted_tpot_ms`` is what the placement said that a token takes, None where there is no placement.
    """

    name: str
    tokens_per_s: float
    plain_tokens_per_s: float
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    predicted_tpot_ms: float | None = None

    @property
    def measured_tpot_ms(self) -> float:
        """Milliseconds a token."""
        return 1000 / self.tokens_per_s


def run_decode(options: BenchDecodeOptions, out: TextIO) -> int:
    """Measures and prints the table, each row as soon as it is measured; 0."""
    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        bench = _DecodeBench(options, Path(scratch))
        if not options.is_json:
            _write(out, f"{bench.model.name}, {options.prompt_tokens} prompt tokens, {options.decode_tokens} decoded")
            heads = f"{'tok/s':>8}{'plain tok/s':>14}{'ratio':>8}{'lowest':>9}{'highest':>9}{'ms':>8}{'predicted':>11}"
            _write(out, 24 * " " + heads)
        show = (lambda _: None) if options.is_json else (lambda row: _write(out, _line_of(row)))
        rows = trio.run(bench.rows, show)
    if options.is_json:
        _write(out, json.dumps({"model": bench.model.name, "rows": [asdict(row) for row in rows]}, indent=2))
    return 0


def _write(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def _line_of(row: Row) -> str:
    return (
        f"{row.name:24}{row.tokens_per_s:8.1f}{row.plain_tokens_per_s:14.1f}"
        f"{row.ratio:8.2f}{row.lowest_ratio:9.2f}{row.highest_ratio:9.2f}"
        f"{row.measured_tpot_ms:8.1f}{'' if row.predicted_tpot_ms is None else f'{row.predicted_tpot_ms:.1f}':>11}"
    )


class _DecodeBench:
    """One run of the benchmark; peers keep their homes in ``scratch``."""

    def __init__(self, options: BenchDecodeOptions, scratch: Path) -> None:
        self._options = options
        self._scratch = scratch
        self._engine_cache = options.home / "cache" / "engine"
        store = open_access(options.home).store
        self.model: ModelFile = trio.run(store.resolve, options.model or DEMO_MODEL)
        # Any tokens do: the loops below decode whatever the model says next. The first ones are control tokens.
        self._prompt = tuple(100 + (7 * i) % 1000 for i in range(options.prompt_tokens))
        self._plain_timeout_s = FIRST_LOOP_S + FIRST_TOKEN_S * (options.prompt_tokens + options.decode_tokens)

    async def rows(self, show: Callable[[Row], None]) -> tuple[Row, ...]:
        """The table's rows, in order; each is shown as soon as it is measured."""
        async with ended_by_signals():
            return await self._rows(show)

    async def _rows(self, show: Callable[[Row], None]) -> tuple[Row, ...]:
        rows: list[Row] = []

        async def add(name: str, measure: Callable[[], Awaitable[float]], predicted_us: int | None = None) -> None:
            row = await self._compare(name, measure)
            rows.append(row if predicted_us is None else replace(row, predicted_tpot_ms=predicted_us / 1000))
            show(rows[-1])

        await add("plain loop, again", self._plain)
        launcher = LlamaEngineLauncher(LauncherOptions(str(self._engine_cache)))
        async with launcher.launch(whole_model_spec(self.model, DEFAULT_LANES)) as engine:
            numbers = count(1)

            async def measure() -> float:
                return await measure_engine_decode(engine, self._prompt, self._options.decode_tokens, next(numbers))

            await add("one engine", measure)
        for peers in self._options.peers:
            async with open_nodes(self._scratch, self._engine_cache) as nodes:
                api_url, predicted_us = await self._start_peers(nodes, peers)
                name = f"{peers} peer{'s' if peers > 1 else ''} over libp2p"
                await add(name, partial(self._measure_api, api_url), predicted_us)
        return tuple(rows)

    async def _compare(self, name: str, measure: Callable[[], Awaitable[float]]) -> Row:
        await measure()  # warms caches on both sides
        pairs = []
        for repeat in range(REPEATS):
            if repeat % 2:
                rate, plain = await measure(), await self._plain()
            else:
                plain, rate = await self._plain(), await measure()
            pairs.append((rate, plain))
        ratios = [rate / plain for rate, plain in pairs]
        return Row(
            name,
            statistics.median(rate for rate, _ in pairs),
            statistics.median(plain for _, plain in pairs),
            statistics.median(ratios),
            min(ratios),
            max(ratios),
        )

    async def _plain(self) -> float:
        options, began_s = self._options, trio.current_time()
        rate = await measure_plain_decode(
            self.model.path, options.prompt_tokens, options.decode_tokens, self._plain_timeout_s
        )
        self._plain_timeout_s = max(LEAST_PATIENCE_S, PATIENCE * (trio.current_time() - began_s))
        return rate

    async def _measure_api(self, api_url: str) -> float:
        return await trio.to_thread.run_sync(self._read_stream, api_url, abandon_on_cancel=True)  # type: ignore[call-arg]

    # --- peers -----------------------------------------------------------------
    async def _start_peers(self, nodes: BenchNodes, peers: int) -> tuple[str, int]:
        """Starts a founder that coordinates and ``peers - 1`` joiners; once all is ready the founder's API URL, and the
        microseconds that it predicts for a token.
        """
        founder = await nodes.start("founder", "--model", self.model.path, "--split", str(peers))
        url = (await founder.wait_for("listening"))["api_url"]
        invite = str((await founder.wait_for("invite"))["invite"])
        for number in range(1, peers):
            await nodes.start(f"joiner{number}", "--join", invite)
        ready = await founder.wait_for("pipeline_ready")
        return str(url), int(ready["predicted_tpot_us"])

    def _read_stream(self, api_url: str) -> float:
        """Tokens per second between the first and the last token of a stream."""
        body = {
            "model": Path(self.model.path).stem,
            "prompt": list(self._prompt),
            "max_tokens": self._options.decode_tokens,
            "temperature": 0,
            "stream": True,
        }
        return tokens_per_s(stream_token_times(api_url, json.dumps(body).encode()), self._options.decode_tokens)
