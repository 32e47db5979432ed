"""``p2pmesh bench api``: what a streamed token costs a node beyond its driver, and what it costs over another peer.

Three ways to the same driver take turns, each with a whole answer: its bare loop, inside the node (``bench_driver``);
``/v1`` of that node; ``/v1`` of another one that holds no stage. Counted is the CPU time of the node processes, engines
not among them: it hardly depends on what else the machine does. What the second node uses while it only idles is taken
off.
"""

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TextIO

import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_driver import ANSWER, cpu_line, drive_line
from p2pmesh.app.bench_nodes import BenchNodes, Event, NodeProcess, open_nodes
from p2pmesh.app.bench_options import BenchApiOptions
from p2pmesh.app.bench_stream import stream_token_times
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.ports.models import ModelFile

BAR_MS = 0.5
"""Added CPU per token that the driver's own ``/v1`` may take."""
BARE, HERE, THERE = "bare driver loop", "/v1 of the driver", "/v1 of another peer"


@dataclass(frozen=True, slots=True)
class Spent:
    """By one answer: CPU milliseconds of the driver's node and of the other, and milliseconds of time, all a token."""

    driver_ms: float
    other_ms: float
    wall_ms: float


@dataclass(frozen=True, slots=True)
class ApiRow:
    """One way. Medians over the rounds.

    ``added_ms`` is what the nodes on the way spent beyond the bare loop of the same round.
    """

    name: str
    driver_ms: float
    other_ms: float
    added_ms: float
    lowest_ms: float
    highest_ms: float
    wall_ms: float


def run_api(options: BenchApiOptions, out: TextIO) -> int:
    """Measures and prints; 0, or 1 where the bar is missed."""
    store = open_access(options.home).store
    model = trio.run(store.resolve, options.model or DEMO_MODEL)
    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        rounds = trio.run(_ApiBench(options, model, Path(scratch)).rounds)
    rows = rows_of(rounds)
    if options.is_json:
        out.write(json.dumps({"model": model.name, "bar_ms": BAR_MS, "rows": [asdict(row) for row in rows]}, indent=2))
        out.write("\n")
    else:
        out.write(f"{model.name} in {options.stages} stages; {options.rounds} rounds of {options.tokens} tokens each\n")
        out.write("".join(line + "\n" for line in (_HEAD, *map(line_of, rows))))
    added_ms = next(row.added_ms for row in rows if row.name == HERE)
    return 0 if added_ms < BAR_MS else 1


_HEAD = (
    f"{'milliseconds a token':24}{'driver CPU':>12}{'other CPU':>11}{'added CPU':>11}{'lowest':>9}{'highest':>9}"
    f"{'time':>9}"
)


def line_of(row: ApiRow) -> str:
    """For people."""
    return (
        f"{row.name:24}{row.driver_ms:12.3f}{row.other_ms:11.3f}{row.added_ms:11.3f}{row.lowest_ms:9.3f}"
        f"{row.highest_ms:9.3f}{row.wall_ms:9.2f}"
    )


def rows_of(rounds: Sequence[dict[str, Spent]]) -> tuple[ApiRow, ...]:
    """The table of rounds in each of which every way had its turn."""
    rows = []
    for name in (BARE, HERE, THERE):
        added = [_added_ms(one[name], one[BARE], is_elsewhere=name == THERE) for one in rounds]
        spent = [one[name] for one in rounds]
        rows.append(
            ApiRow(
                name,
                statistics.median(one.driver_ms for one in spent),
                statistics.median(one.other_ms for one in spent),
                statistics.median(added),
                min(added),
                max(added),
                statistics.median(one.wall_ms for one in spent),
            )
        )
    return tuple(rows)


def _added_ms(spent: Spent, bare: Spent, *, is_elsewhere: bool) -> float:
    at_driver = spent.driver_ms - bare.driver_ms
    return at_driver + spent.other_ms - bare.other_ms if is_elsewhere else at_driver


class _ApiBench:
    """One run of the benchmark."""

    def __init__(self, options: BenchApiOptions, model: ModelFile, scratch: Path) -> None:
        self._options = options
        self._model = model
        self._scratch = scratch
        self._prompt = [100 + (7 * i) % 1000 for i in range(options.prompt_tokens)]
        self._numbers = count(1)

    async def rounds(self) -> list[dict[str, Spent]]:
        """What each way spent, round by round; the first one warms caches and is left out."""
        async with open_nodes(self._scratch, self._options.home / "cache" / "engine") as nodes:
            driver, other = await self._start(nodes)
            urls = {HERE: await _url_of(driver), THERE: await _url_of(other)}
            rounds = []
            for number in range(self._options.rounds + 1):
                ways = [BARE, HERE, THERE]
                if number % 2:
                    ways.reverse()
                rounds.append({way: await self._spend(driver, other, urls.get(way)) for way in ways})
            return rounds[1:]

    async def _start(self, nodes: BenchNodes) -> tuple[NodeProcess, NodeProcess]:
        async def start(name: str, *arguments: str) -> NodeProcess:
            return await nodes.start(name, *arguments, program="p2pmesh.cli.bench_node", stdin=subprocess.PIPE)

        stages = self._options.stages
        driver = await start("driver", "--model", self._model.path, "--split", str(stages), "--replan-after", "0")
        invite = str((await driver.wait_for("invite"))["invite"])
        for number in range(1, stages):
            await start(f"stage-{number}", "--join", invite)
        await driver.wait_for("pipeline_ready")
        other = await start("other", "--join", invite, "--max-memory", "0")
        await other.wait_for("ready")
        return driver, other

    async def _spend(self, driver: NodeProcess, other: NodeProcess, url: str | None) -> Spent:
        """One answer over ``url``, or by the bare loop."""
        tokens = self._options.tokens
        began = [await self._ask(node, cpu_line) for node in (driver, other)]
        if url is None:
            told = await self._ask(
                driver, lambda number: drive_line(number, Path(self._model.path).stem, tokens, self._prompt)
            )
            given, seconds = int(told["tokens"]), float(told["seconds"])
        else:
            given, seconds = await self._stream(url)
        if given < tokens // 2:
            text = f"the model stopped after {given} tokens; take another --model or fewer --tokens"
            raise Refused(ErrorCode.INTERNAL, text)
        ended = [await self._ask(node, cpu_line) for node in (driver, other)]
        at_driver, at_other = (
            1000 * (after["cpu_s"] - before["cpu_s"]) for before, after in zip(began, ended, strict=True)
        )
        return Spent(at_driver / given, at_other / given, 1000 * seconds / given)

    async def _stream(self, url: str) -> tuple[int, float]:
        body = {
            "model": Path(self._model.path).stem,
            "prompt": self._prompt,
            "max_tokens": self._options.tokens,
            "temperature": 0,
            "stream": True,
        }
        encoded = json.dumps(body).encode()
        began_s = trio.current_time()
        times = await trio.to_thread.run_sync(stream_token_times, url, encoded, abandon_on_cancel=True)  # type: ignore[call-arg]
        return len(times), trio.current_time() - began_s

    async def _ask(self, node: NodeProcess, line: Callable[[int], str]) -> Event:
        number = next(self._numbers)
        assert node.process.stdin is not None
        await node.process.stdin.send_all(line(number).encode())
        return await node.wait_for(f"{ANSWER}{number}")


async def _url_of(node: NodeProcess) -> str:
    return str((await node.wait_for("listening"))["api_url"])
