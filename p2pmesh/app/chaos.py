"""``p2pmesh chaos``: a local overlay of real nodes serves a real model while stages are killed, frozen and slowed.

A coordinator without memory is the ingress; peers hold the stages, and spare ones wait. Each answer is compared with an
undisturbed one to the same question, byte for byte but for its id and its date. What is done when, and how, is
``app.chaos_faults``'.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx
import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_nodes import BenchNodes, Event, NodeProcess, open_nodes
from p2pmesh.app.bench_overlay import quantiles
from p2pmesh.app.chaos_faults import FaultKind, inflict, plan_faults
from p2pmesh.app.config import ChaosOptions

ANSWER_S = 300.0
"""Above every deadline of the nodes: what takes longer hangs."""
REFUSED_AGAIN_S = 1.0
MOST_REFUSALS = 120
SETTLE_S = 8.0
"""Spare engines are ready by then, on a machine that has measured its models before."""
QUESTIONS = 4
PEER_MEMORY = "4GiB"
_PROMPT = "Write down, in your own words, what happened on the {n}th day of the voyage: "


def run_chaos(options: ChaosOptions, out: TextIO) -> int:
    """Runs and prints; 1 if any answer was lost, differed or hung, otherwise 0."""
    scratch = Path(tempfile.mkdtemp(prefix="p2pmesh-chaos-"))
    try:
        show = (lambda _: None) if options.is_json else (lambda line: _write(out, line))
        report = trio.run(_Chaos(options, scratch, show).run)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines = [json.dumps(report, indent=2)] if options.is_json else describe_chaos(report)
    for line in lines:
        _write(out, line)
    return 0 if report["requests"] == report["outcomes"].get("identical", 0) else 1


def _write(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


# --- one answer ----------------------------------------------------------------
@dataclass(slots=True)
class Answer:
    """What a client got: its data without id and date, the longest pause, and how it ended."""

    outcome: str = "hung"
    detail: str = ""
    data: list[str] = field(default_factory=list)
    longest_pause_ms: int = 0
    refusals: int = 0


def undated(line: str) -> str:
    """A ``data:`` line without what belongs to one request alone."""
    if line == "data: [DONE]":
        return line
    value = json.loads(line.removeprefix("data: "))
    return json.dumps({name: part for name, part in value.items() if name not in ("id", "created")}, sort_keys=True)


def question(number: int, model: str, tokens: int) -> dict[str, Any]:
    """One of a few bodies: with a short and a long prompt, greedy and sampled."""
    prompt = _PROMPT.format(n=number % QUESTIONS) * (1 + 6 * (number % 2))
    sampling = {"temperature": 0} if number % 4 < 2 else {"temperature": 0.8, "top_p": 0.95, "seed": number % QUESTIONS}
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": True,
        "return_token_ids": True,
        **sampling,
    }


async def ask(
    client: httpx.AsyncClient, body: Mapping[str, Any], note: Callable[[int], None] = lambda _: None
) -> Answer:
    """One streamed completion; a refusal before it began is repeated. ``note`` hears how many pieces have come."""
    answer = Answer()
    with trio.move_on_after(ANSWER_S):
        while answer.refusals < MOST_REFUSALS:
            try:
                async with client.stream("POST", "/v1/completions", json=dict(body)) as response:
                    if response.status_code != 503:
                        await _read(response, answer, note)
                        return answer
            except httpx.HTTPError as error:
                answer.outcome, answer.detail = "failed", repr(error)
                return answer
            answer.refusals += 1
            await trio.sleep(REFUSED_AGAIN_S)
        answer.outcome = "refused"
    return answer


async def _read(response: httpx.Response, answer: Answer, note: Callable[[int], None]) -> None:
    if response.status_code != 200:
        answer.outcome, answer.detail = "failed", (await response.aread()).decode(errors="replace")[:500]
        return
    last_s = time.monotonic()
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        answer.longest_pause_ms = max(answer.longest_pause_ms, round(1000 * (time.monotonic() - last_s)))
        last_s = time.monotonic()
        answer.data.append(undated(line))
        note(len(answer.data))
    is_whole = bool(answer.data) and answer.data[-1] == "data: [DONE]"
    answer.outcome = "finished" if is_whole else "failed"
    answer.detail = "" if is_whole else "".join(answer.data[-1:])[:500]


# --- the overlay -----------------------------------------------------------------
class _Chaos:
    """One run; homes lie in ``scratch``."""

    def __init__(self, options: ChaosOptions, scratch: Path, show: Callable[[str], None]) -> None:
        self._options = options
        self._scratch = scratch
        self._show = show
        self._invite = ""
        self._model = ""
        self._stages: list[str] = []
        self._ready = 0
        self._recovered: list[Event] = []
        self._outcomes: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._refusals = 0
        self._pauses_ms: list[int] = []
        self._details: list[str] = []

    async def run(self) -> dict[str, Any]:
        """The report; whatever happens, no process is left."""
        cache = self._options.home / "cache" / "engine"
        async with open_nodes(self._scratch, cache) as nodes:
            coordinator = await nodes.start(
                "coordinator", "--model", self._options.model or DEMO_MODEL, "--split", str(self._options.stages),
                "--max-memory", "0", keeps=self._note_event,
            )  # fmt: skip
            self._invite = str((await coordinator.wait_for("invite"))["invite"])
            for number in range(self._options.stages + self._options.spares):
                await self._start_peer(nodes, f"peer-{number}")
            await coordinator.wait_for("pipeline_ready")
            await coordinator.wait_for("ready")
            url = str((await coordinator.wait_for("listening"))["api_url"])
            async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, trust_env=False) as client:
                await self._measure(nodes, client)
        return self._report()

    async def _start_peer(self, nodes: BenchNodes, name: str) -> None:
        await nodes.start(name, "--join", self._invite, "--max-memory", PEER_MEMORY)

    def _note_event(self, event: Event) -> bool:
        if event["event"] == "pipeline_ready":
            self._stages = [stage["peer_id"] for stage in event["stages"]]
            self._model = event["model"]
            self._ready += 1
        elif event["event"] == "request_recovered":
            self._recovered.append(event)
        return event["event"] in ("listening", "invite", "pipeline_ready", "ready", "error")

    async def _measure(self, nodes: BenchNodes, client: httpx.AsyncClient) -> None:
        bodies = [question(number, self._model, self._options.tokens) for number in range(QUESTIONS)]
        expected = [(await ask(client, body)).data for body in bodies]
        self._show(f"{len(bodies)} undisturbed answers; {self._options.stages} stages, {self._options.spares} spare")
        await trio.sleep(SETTLE_S)
        if self._options.is_matrix:
            await self._strike_everywhere(nodes, client, bodies, expected)
        else:
            await self._strike_by_schedule(nodes, client, bodies, expected)

    def _count(self, answer: Answer, expected: list[str]) -> None:
        if answer.outcome == "finished":
            answer.outcome = "identical" if answer.data == expected else "differs"
        self._outcomes[answer.outcome] += 1
        self._refusals += answer.refusals
        self._pauses_ms.append(answer.longest_pause_ms)
        if answer.outcome != "identical":
            self._details.append(f"{answer.outcome} after {len(answer.data)} pieces: {answer.detail}"[:300])
            self._show(self._details[-1])

    # --- faults by time, under load ----------------------------------------------------
    async def _strike_by_schedule(
        self, nodes: BenchNodes, client: httpx.AsyncClient, bodies: list[dict[str, Any]], expected: list[list[str]]
    ) -> None:
        numbers = iter(range(self._options.requests))

        async def work() -> None:
            for number in numbers:
                self._count(await ask(client, bodies[number % QUESTIONS]), expected[number % QUESTIONS])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._strike, nodes, nursery)
            async with trio.open_nursery() as working:
                for _ in range(self._options.parallel):
                    working.start_soon(work)
            nursery.cancel_scope.cancel()

    async def _strike(self, nodes: BenchNodes, nursery: trio.Nursery) -> None:
        options, began = self._options, trio.current_time()
        kinds = tuple(FaultKind(name) for name in options.faults)
        for fault in plan_faults(options.seed, kinds, options.every_s, options.stages, 100_000):
            await trio.sleep_until(began + fault.at_s)
            nursery.start_soon(self._inflict, nodes, fault.kind, fault.stage)

    async def _inflict(self, nodes: BenchNodes, kind: FaultKind, stage: int) -> None:
        node = self._holder(nodes, stage)
        if node is None:
            return
        self._faults[kind.value] += 1
        self._show(f"{kind.value} {node.name}, stage {stage}")
        await inflict(kind, node.process)
        if kind is FaultKind.KILL_NODE:
            await self._start_peer(nodes, node.name)

    def _holder(self, nodes: BenchNodes, stage: int) -> NodeProcess | None:
        """Who holds a stage of the newest run, if it lives."""
        for node in nodes.by_name.values():
            told = (event for event in node.events if event["event"] == "listening")
            if node.process.poll() is None and any(event["peer_id"] == self._stages[stage] for event in told):
                return node
        return None

    # --- each stage at each position ---------------------------------------------------
    async def _strike_everywhere(
        self, nodes: BenchNodes, client: httpx.AsyncClient, bodies: list[dict[str, Any]], expected: list[list[str]]
    ) -> None:
        """One kill a request; the first one falls into the prefill."""
        for stage in range(self._options.stages):
            for turn in range(self._options.positions):
                position = turn * (self._options.tokens - 1) // max(1, self._options.positions)
                for number in (turn % 2, 2 + turn % 2):  # greedy, sampled
                    await self._strike_at(nodes, client, stage, position, bodies[number], expected[number])

    async def _strike_at(
        self,
        nodes: BenchNodes,
        client: httpx.AsyncClient,
        stage: int,
        position: int,
        body: dict[str, Any],
        expected: list[str],
    ) -> None:
        is_due, ready = trio.Event(), self._ready

        async def strike() -> None:
            await is_due.wait()
            await self._inflict(nodes, FaultKind(self._options.faults[0]), stage)

        def note(pieces: int) -> None:
            if pieces > position:
                is_due.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(strike)
            if position == 0:
                nursery.start_soon(_set_soon, is_due)
            answer = await ask(client, body, note)
            is_due.set()
        self._count(answer, expected)
        self._show(f"stage {stage}, position {position}: {answer.outcome}, pause {answer.longest_pause_ms} ms")
        with trio.move_on_after(ANSWER_S):
            while self._ready == ready:  # noqa: ASYNC110 - the events come from another task's pipe
                await trio.sleep(0.2)
        await trio.sleep(SETTLE_S)

    # --- what came of it -----------------------------------------------------------------
    def _report(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "stages": self._options.stages,
            "spares": self._options.spares,
            "seed": self._options.seed,
            "requests": sum(self._outcomes.values()),
            "outcomes": dict(sorted(self._outcomes.items())),
            "faults": dict(sorted(self._faults.items())),
            "refused_and_repeated": self._refusals,
            "recoveries": len(self._recovered),
            "inexact_recoveries": sum(not event["is_exact"] for event in self._recovered),
            "stall_ms": quantiles([event["stall_ms"] for event in self._recovered]),
            "longest_pause_ms": quantiles(self._pauses_ms),
            "mean_pause_ms": round(statistics.mean(self._pauses_ms)) if self._pauses_ms else 0,
            "details": self._details[:20],
        }


async def _set_soon(is_due: trio.Event) -> None:
    """While the prompt is on its way."""
    await trio.sleep(0.05)
    is_due.set()


def describe_chaos(report: Mapping[str, Any]) -> list[str]:
    """The report for people."""
    outcomes = ", ".join(f"{count} {name}" for name, count in report["outcomes"].items()) or "none"
    faults = ", ".join(f"{count} {name}" for name, count in report["faults"].items()) or "none"
    stalls = report["stall_ms"]
    shown = "none" if stalls is None else ", ".join(f"{name} {value} ms" for name, value in stalls.items())
    return [
        f"{report['requests']} requests of {report['model']}: {outcomes}",
        f"faults: {faults}; {report['refused_and_repeated']} refusals before a start were repeated",
        f"recoveries: {report['recoveries']}, of which {report['inexact_recoveries']} inexact; stalls: {shown}",
        *report["details"],
    ]
