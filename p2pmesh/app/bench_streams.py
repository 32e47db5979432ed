"""``p2pmesh bench streams``: so many clients at once on one split model: do all finish, in turn, and how evenly.

Real nodes, each with a home and a process of its own, serve one model in stages. Tokens are counted by the usage that
the API tells, never by chunks. A client waits until others are done where there are more of them than lanes; that is
part of its time. With ``--llama-server`` llama.cpp's own server is asked the same in turn: same file, as many slots,
the same context of each and the same processors, on which it runs one process where we run one for each stage.
"""

import json
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.app.bench_llama_server import cpu_seconds, open_llama_server
from p2pmesh.app.bench_nodes import open_nodes
from p2pmesh.app.bench_options import BenchStreamsOptions
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.ports.models import ModelFile

FAIR_RATIO = 1.5
LEAST_OF_LLAMA_SERVER = 0.8
OURS, THEIRS = "p2pmesh", "llama.cpp"
REQUEST_TIMEOUT_S = 900.0
MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """One answer: seconds from the request to the first and the last token, and the tokens that usage counts."""

    first_s: float
    last_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Server:
    """Who is asked, and the processes that answer."""

    name: str
    url: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamsRow:
    """So many streams at once, asked of ``server``.

    ``fairness`` is the slowest stream's time for a token over the fastest one's, from the request to its end; of more
    streams than lanes it also tells who waited. ``decode_fairness`` counts from the first token on;
    ``cpu_ms_per_token`` is of all processes that answer.
    """

    server: str
    streams: int
    lanes: int
    finished: int
    tokens: int
    seconds: float
    tokens_per_s: float
    fairness: float
    decode_fairness: float
    median_first_s: float
    longest_first_s: float
    cpu_ms_per_token: float

    @property
    def is_good(self) -> bool:
        """Whether all finished, and evenly where all had lanes at once; the other server is not judged."""
        is_even = self.streams > self.lanes or self.fairness <= FAIR_RATIO
        return self.server != OURS or (self.finished == self.streams and is_even)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our tokens a second over the other server's, at so many streams: the median of the rounds, and each."""

    streams: int
    lanes: int
    ratio: float
    ratios: tuple[float, ...]

    @property
    def is_good(self) -> bool:
        """Whether the bar is met; it is one for streams that all have lanes."""
        return self.streams > self.lanes or self.ratio >= LEAST_OF_LLAMA_SERVER


def run_streams(options: BenchStreamsOptions, out: TextIO) -> int:
    """Measures and prints, each row as soon as it is measured; 0, or 1 where a stream was lost or a bar missed."""

    def show(line: str) -> None:
        if not options.is_json:
            out.write(line + "\n")
            out.flush()

    if options.llama_server and shutil.which(options.llama_server) is None:  # known before minutes of measuring
        text = f"--llama-server {options.llama_server}: there is no such program"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    store = open_access(options.home).store
    model = trio.run(store.resolve, options.model or DEMO_MODEL)
    show(f"{model.name} in {options.stages} stages, {options.lanes} lanes; {options.tokens} tokens an answer")
    if options.llama_server:
        show(
            f"on {usable_threads()} processors: so many threads in llama.cpp's server, and in the engine of each stage"
        )
    show(_HEAD)
    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        rows = trio.run(_measure_all, options, model, Path(scratch), lambda row: show(line_of(row)))
    comparisons = compare(rows)
    for comparison in comparisons:
        show(f"{comparison.streams} streams: {comparison.ratio:.2f} of the tokens a second of llama.cpp's server")
    if options.is_json:
        told = {"model": model.name, "rows": [asdict(row) for row in rows]}
        out.write(json.dumps({**told, "comparisons": [asdict(each) for each in comparisons]}, indent=2) + "\n")
    return 0 if all(row.is_good for row in rows) and all(each.is_good for each in comparisons) else 1


_HEAD = (
    f"{'asked':<10}{'streams':>7}{'finished':>10}{'tokens/s':>10}{'seconds':>9}{'slowest/fastest':>17}"
    f"{'without waiting':>17}{'first token':>13}{'last of them':>14}{'CPU ms/token':>14}"
)


def line_of(row: StreamsRow) -> str:
    """For people."""
    return (
        f"{row.server:<10}{row.streams:7}{row.finished:10}{row.tokens_per_s:10.1f}{row.seconds:9.1f}{row.fairness:17.2f}"
        f"{row.decode_fairness:17.2f}{row.median_first_s:12.2f}s{row.longest_first_s:13.2f}s{row.cpu_ms_per_token:14.1f}"
    )


def compare(rows: Sequence[StreamsRow]) -> tuple[Comparison, ...]:
    """Of each number of streams, the rounds in which both were asked, in their order."""
    found = []
    for streams, lanes in dict.fromkeys((row.streams, row.lanes) for row in rows):
        ours, theirs = (
            [row.tokens_per_s for row in rows if (row.server, row.streams) == (name, streams)]
            for name in (OURS, THEIRS)
        )
        ratios = tuple(mine / other for mine, other in zip(ours, theirs, strict=False))
        if ratios:
            found.append(Comparison(streams, lanes, statistics.median(ratios), ratios))
    return tuple(found)


async def _measure_all(
    options: BenchStreamsOptions, model: ModelFile, scratch: Path, show: Callable[[StreamsRow], None]
) -> tuple[StreamsRow, ...]:
    rows: list[StreamsRow] = []
    async with _open_servers(options, model, scratch) as servers:
        for server in servers:
            await _ask(server.url, body_of(model, options, 0))
        asked = 1
        for count in options.streams:
            for number in range(options.rounds):
                for server in servers if number % 2 == 0 else reversed(servers):
                    rows.append(await _measure(server, model, options, range(asked, asked + count)))
                    show(rows[-1])
                asked += count
    return tuple(rows)


@asynccontextmanager
async def _open_servers(
    options: BenchStreamsOptions, model: ModelFile, scratch: Path
) -> AsyncIterator[tuple[Server, ...]]:
    """Ours and, where it is wanted, the other one: both are there all the time, one of them idle."""
    serving = ("--lanes", str(options.lanes), "--ctx-size", str(options.context_tokens))
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(open_nodes(scratch, options.home / "cache" / "engine"))
        founder = await nodes.start(
            "peer-0", "--model", model.path, "--split", str(options.stages), "--replan-after", "0", *serving
        )
        invite = str((await founder.wait_for("invite"))["invite"])
        for number in range(1, options.stages):
            await nodes.start(f"peer-{number}", "--join", invite)
        url = str((await founder.wait_for("listening"))["api_url"])
        await founder.wait_for("pipeline_ready")
        servers = [Server(OURS, url, tuple(node.process.pid for node in nodes.by_name.values()))]
        if options.llama_server:
            opened = open_llama_server(
                options.llama_server,
                model.path,
                slots=options.lanes,
                context_tokens=options.context_tokens,
                threads=usable_threads(),
                scratch=scratch,
            )
            other = await stack.enter_async_context(opened)
            servers.append(Server(THEIRS, other.url, (other.pid,)))
        yield tuple(servers)


def body_of(model: ModelFile, options: BenchStreamsOptions, number: int) -> bytes:
    """Each client has a prompt of its own, so that none profits from another's, and answers of one length."""
    prompt = [100 + number % 1000, 100 + number // 1000 % 1000]
    prompt += [100 + (7 * i + 13 * number) % 1000 for i in range(options.prompt_tokens)]
    body = {
        "model": Path(model.path).stem,
        "prompt": prompt[: options.prompt_tokens],
        "max_tokens": options.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


async def _measure(server: Server, model: ModelFile, options: BenchStreamsOptions, numbers: range) -> StreamsRow:
    answers: list[StreamTimes] = []

    async def ask(number: int) -> None:
        answer = await _ask(server.url, body_of(model, options, number))
        if answer is not None:
            answers.append(answer)

    used, began = cpu_seconds(server.pids), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(ask, number)
    seconds = time.perf_counter() - began
    return row_of(server.name, len(numbers), options.lanes, seconds, cpu_seconds(server.pids) - used, answers)


def row_of(
    server: str, streams: int, lanes: int, seconds: float, cpu_s: float, answers: Sequence[StreamTimes]
) -> StreamsRow:
    """What the answers of one round come to; ``Refused`` where there is none."""
    if not answers:
        raise Refused(ErrorCode.INTERNAL, f"none of {streams} streams finished: see the output of the nodes")
    tokens = sum(answer.tokens for answer in answers)
    whole = [answer.last_s / answer.tokens for answer in answers]
    decoding = [(answer.last_s - answer.first_s) / max(1, answer.tokens - 1) for answer in answers]
    return StreamsRow(
        server,
        streams,
        lanes,
        len(answers),
        tokens,
        seconds,
        tokens / seconds,
        max(whole) / min(whole),
        max(decoding) / max(min(decoding), 1e-9),
        statistics.median(answer.first_s for answer in answers),
        max(answer.first_s for answer in answers),
        1000 * cpu_s / tokens,
    )


async def _ask(url: str, body: bytes) -> StreamTimes | None:
    return await trio.to_thread.run_sync(
        read_stream,
        url,
        body,
        limiter=_own_thread(),
        abandon_on_cancel=True,  # type: ignore[call-arg]
    )


def _own_thread() -> trio.CapacityLimiter:
    """One for each client: none may wait for another's thread."""
    return trio.CapacityLimiter(1)


def read_stream(api_url: str, body: bytes) -> StreamTimes | None:
    """One whole answer; None if it did not come to its end. A bare socket: a library would be measured too."""
    host, port = api_url.removeprefix("http://").rsplit(":", 1)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    began = time.perf_counter()
    first_s, answer = None, bytearray()
    with socket.create_connection((host, int(port)), timeout=REQUEST_TIMEOUT_S) as connection:
        connection.sendall(head.encode() + body)
        while data := connection.recv(65_536):
            answer += data
            if first_s is None and b"data: {" in answer:
                first_s = time.perf_counter() - began
            if len(answer) > MAX_ANSWER_BYTES:
                return None
    return times_of(bytes(answer), first_s, time.perf_counter() - began)


def times_of(answer: bytes, first_s: float | None, last_s: float) -> StreamTimes | None:
    """By the usage that the stream ends with; None for a stream that has no end mark, or no usage."""
    events = [line[6:] for line in answer.decode("utf-8", "replace").splitlines() if line.startswith("data: ")]
    if first_s is None or not events or events[-1].strip() != "[DONE]":
        return None
    usages: list[dict[str, Any]] = [
        event["usage"] for event in map(json.loads, events[:-1]) if isinstance(event, dict) and event.get("usage")
    ]
    tokens = usages[-1]["completion_tokens"] if usages else 0
    return StreamTimes(first_s, last_s, tokens) if tokens else None
