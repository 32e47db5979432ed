"""``p2pmesh bench streams``: so many clients at once on one split model: do all finish, in turn, and how evenly.

Real nodes, each with a home and a process of its own, serve one model in stages. Tokens are counted by the usage that
the API tells, never by chunks. A client waits until others are done where there are more of them than lanes; that is
part of its time.
"""

import json
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_nodes import open_nodes
from p2pmesh.app.config import BenchStreamsOptions
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.ports.models import ModelFile

FAIR_RATIO = 1.5
REQUEST_TIMEOUT_S = 900.0
MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """One answer: seconds from the request to the first and the last token, and the tokens that usage counts."""

    first_s: float
    last_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class StreamsRow:
    """So many streams at once.

    ``fairness`` is the slowest stream's time for a token over the fastest one's, from the request to its end; of more
    streams than lanes it also tells who waited. ``decode_fairness`` counts from the first token on.
    """

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

    @property
    def is_good(self) -> bool:
        """Whether all finished, and evenly where all had lanes at once."""
        return self.finished == self.streams and (self.streams > self.lanes or self.fairness <= FAIR_RATIO)


def run_streams(options: BenchStreamsOptions, out: TextIO) -> int:
    """Measures and prints, each row as soon as it is measured; 0, or 1 where a stream was lost or the bar missed."""

    def show(line: str) -> None:
        if not options.is_json:
            out.write(line + "\n")
            out.flush()

    store = open_access(options.home).store
    model = trio.run(store.resolve, options.model or DEMO_MODEL)
    show(f"{model.name} in {options.stages} stages, {options.lanes} lanes; {options.tokens} tokens an answer")
    show(_HEAD)
    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        rows = trio.run(_measure_all, options, model, Path(scratch), lambda row: show(line_of(row)))
    if options.is_json:
        out.write(json.dumps({"model": model.name, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


_HEAD = (
    f"{'streams':>7}{'finished':>10}{'tokens/s':>10}{'seconds':>9}{'slowest/fastest':>17}{'without waiting':>17}"
    f"{'first token':>13}{'last of them':>14}"
)


def line_of(row: StreamsRow) -> str:
    """For people."""
    return (
        f"{row.streams:7}{row.finished:10}{row.tokens_per_s:10.1f}{row.seconds:9.1f}{row.fairness:17.2f}"
        f"{row.decode_fairness:17.2f}{row.median_first_s:12.2f}s{row.longest_first_s:13.2f}s"
    )


async def _measure_all(
    options: BenchStreamsOptions, model: ModelFile, scratch: Path, show: Callable[[StreamsRow], None]
) -> tuple[StreamsRow, ...]:
    rows = []
    serving = ("--lanes", str(options.lanes), "--ctx-size", str(options.context_tokens))
    async with open_nodes(scratch, options.home / "cache" / "engine") as nodes:
        founder = await nodes.start(
            "peer-0", "--model", model.path, "--split", str(options.stages), "--replan-after", "0", *serving
        )
        invite = str((await founder.wait_for("invite"))["invite"])
        for number in range(1, options.stages):
            await nodes.start(f"peer-{number}", "--join", invite)
        url = str((await founder.wait_for("listening"))["api_url"])
        await founder.wait_for("pipeline_ready")
        await _ask(url, body_of(model, options, 0))
        for count in options.streams:
            rows.append(await _measure(url, model, options, count))
            show(rows[-1])
    return tuple(rows)


def body_of(model: ModelFile, options: BenchStreamsOptions, number: int) -> bytes:
    """Each client has a prompt of its own, so that none profits from another's, and answers of one length."""
    prompt = [100 + (7 * i + 13 * number) % 1000 for i in range(options.prompt_tokens)]
    body = {
        "model": Path(model.path).stem,
        "prompt": prompt,
        "max_tokens": options.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


async def _measure(url: str, model: ModelFile, options: BenchStreamsOptions, count: int) -> StreamsRow:
    answers: list[StreamTimes] = []

    async def ask(number: int) -> None:
        answer = await _ask(url, body_of(model, options, number))
        if answer is not None:
            answers.append(answer)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)
    return row_of(count, options.lanes, time.perf_counter() - began, answers)


def row_of(streams: int, lanes: int, seconds: float, answers: Sequence[StreamTimes]) -> StreamsRow:
    """What the answers of one round come to; ``Refused`` where there is none."""
    if not answers:
        raise Refused(ErrorCode.INTERNAL, f"none of {streams} streams finished: see the output of the nodes")
    tokens = sum(answer.tokens for answer in answers)
    whole = [answer.last_s / answer.tokens for answer in answers]
    decoding = [(answer.last_s - answer.first_s) / max(1, answer.tokens - 1) for answer in answers]
    return StreamsRow(
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
