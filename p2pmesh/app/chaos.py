"""``p2pmesh chaos``: a local overlay of real nodes serves a real model while stages are killed, frozen and cut off.

Each answer is compared with an undisturbed one to the same question. What is done when, and how, is
``app.chaos_faults``'; the nodes are ``app.chaos_overlay``'s, counting ``app.chaos_report``'s.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import httpx
import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.bench_nodes import open_nodes
from p2pmesh.app.chaos_faults import ENDS_NODE, Case, Fault, FaultKind, choose_cases, inflict, plan_cases, plan_faults
from p2pmesh.app.chaos_memory import MemoryWatch
from p2pmesh.app.chaos_options import ChaosOptions
from p2pmesh.app.chaos_overlay import ChaosOverlay
from p2pmesh.app.chaos_report import Struck, Tally, describe_chaos, describe_memory
from p2pmesh.app.chaos_requests import ANSWER_S, QUESTIONS, ask, ask_undisturbed, question
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES
from p2pmesh.base.quantities import format_size
from p2pmesh.core.planning.outcome import PlacementRefusal
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningPeer, PlanRequest
from p2pmesh.node.serving_options import ServingOptions, check_split, planning_model_of
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.dtype import WireDtype

SETTLE_S = 8.0
"""Spare engines are ready by then, on a machine that has measured its models before."""
SPARE_S = 90.0
"""A peer that came back is a spare again within it, or the matrix strikes without one."""
READY_S = 300.0
"""Within this another run serves, or the matrix goes on without it."""
MOST_FAULTS = 100_000


def run_chaos(options: ChaosOptions, out: TextIO) -> int:
    """Runs and prints; 1 if any answer was lost, differed or hung, or a run was replaced needlessly, otherwise 0.

    A run that is stopped tells what it has counted until then.
    """
    model = trio.run(open_access(options.home).store.resolve, options.model or DEMO_MODEL)
    check_fits(model, options)
    scratch = Path(tempfile.mkdtemp(prefix="p2pmesh-chaos-"))
    tally, is_whole = Tally(), False
    show = (lambda _: None) if options.is_json else (lambda line: _write(out, line))
    chaos = _Chaos(options, tally, show)
    try:
        trio.run(chaos.run, model, scratch)
        is_whole = True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if tally.requests:
            report = chaos.report() | {"is_whole": is_whole}
            for line in [json.dumps(report, indent=2)] if options.is_json else describe_chaos(report):
                _write(out, line)
    return 0 if tally.is_good else 1


def check_fits(model: ModelFile, options: ChaosOptions) -> None:
    """Raises in one line, before anything is started, if the peers could never hold the model in so many stages."""
    wanted = ServingOptions(options.stages, DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES, WireDtype.F32)
    check_split(model, wanted)
    names = [PeerId(f"peer-{number}") for number in range(options.stages + options.spares)]
    peers = tuple(PlanningPeer(name, options.peer_memory_bytes) for name in names)
    plan = plan_placement(PlanRequest(planning_model_of(model, wanted), peers, names[0], options.stages))
    if isinstance(plan, PlacementRefusal):
        what = f"{len(peers)} peers of {format_size(options.peer_memory_bytes)}"
        text = f"{model.name} does not go on {what} in {options.stages} stages: {plan.text}"
        raise Refused(ErrorCode.PLACEMENT_REFUSED, text)


def _write(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


class _Chaos:
    """One run."""

    def __init__(self, options: ChaosOptions, tally: Tally, show: Callable[[str], None]) -> None:
        self._options = options
        self._tally = tally
        self._show = show
        self._memory: MemoryWatch | None = None
        self._model = ""

    async def run(self, model: ModelFile, scratch: Path) -> None:
        """Whatever happens, no process is left; homes lie in ``scratch``."""
        options = self._options
        self._show(f"starting {1 + options.stages + options.spares} nodes with {model.name}; this may take minutes")
        cache = options.home / "cache" / "engine"
        async with open_nodes(scratch, cache) as nodes, trio.open_nursery() as nursery:
            overlay = ChaosOverlay(options, nodes, nursery, self._tally, self._show)
            url = await overlay.start(model.path)
            self._model = overlay.model
            self._memory = MemoryWatch(overlay.processes)
            nursery.start_soon(self._memory.run)
            async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, trust_env=False) as client:
                await _Load(options, self._tally, self._show, overlay, client).run()
            overlay.is_ending = True
            self._memory.sample(trio.current_time())
            nursery.cancel_scope.cancel()

    def report(self) -> dict[str, Any]:
        """What came of it."""
        options = self._options
        return {
            "model": self._model,
            "stages": options.stages,
            "spares": options.spares,
            "seed": options.seed,
            **self._tally.described(),
            "memory": describe_memory(() if self._memory is None else self._memory.lives()),
        }


class _Load:
    """Requests, and faults under them."""

    def __init__(
        self,
        options: ChaosOptions,
        tally: Tally,
        show: Callable[[str], None],
        overlay: ChaosOverlay,
        client: httpx.AsyncClient,
    ) -> None:
        self._options = options
        self._tally = tally
        self._show = show
        self._overlay = overlay
        self._client = client
        self._bodies = [question(number, overlay.model, options.tokens) for number in range(QUESTIONS)]
        self._expected: list[list[str]] = []

    async def run(self) -> None:
        """Asks undisturbed first."""
        self._expected = [await ask_undisturbed(self._client, body) for body in self._bodies]
        stages, spares = self._options.stages, self._options.spares
        self._show(
            f"{len(self._bodies)} undisturbed answers; {stages} stages, {spares} spare, seed {self._options.seed}"
        )
        await trio.sleep(SETTLE_S)
        await (self._strike_everywhere() if self._options.is_matrix else self._strike_by_schedule())

    # --- faults by time, under load ----------------------------------------------------
    async def _strike_by_schedule(self) -> None:
        numbers = iter(range(self._options.requests))

        async def work() -> None:
            for number in numbers:
                answer = await ask(self._client, self._bodies[number % QUESTIONS])
                self._tally.count(answer, self._expected[number % QUESTIONS])
                if answer.outcome != "identical":
                    self._show(f"request {number}: {answer.outcome} {answer.detail}"[:300])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._strike, nursery)
            async with trio.open_nursery() as working:
                for _ in range(self._options.parallel):
                    working.start_soon(work)
            nursery.cancel_scope.cancel()

    async def _strike(self, nursery: trio.Nursery) -> None:
        options, began = self._options, trio.current_time()
        kinds = tuple(FaultKind(name) for name in options.faults)
        for fault in plan_faults(options.seed, kinds, options.every_s, options.stages, MOST_FAULTS):
            await trio.sleep_until(began + fault.at_s)
            nursery.start_soon(self._inflict, fault)

    async def _inflict(self, fault: Fault) -> None:
        victim = self._overlay.victim(fault.stage)
        if victim is None or not self._overlay.is_serving:
            self._show(f"{fault.at_s:.1f} s: {fault.kind.value} of stage {fault.stage} left out, no run serves")
            return
        what = f"{fault.kind.value} {fault.lie.value}" if fault.kind is FaultKind.LIE else fault.kind.value
        self._show(f"{fault.at_s:.1f} s: {what} {victim.name}, stage {fault.stage}")
        self._tally.struck.append(Struck(fault, victim.name, time.monotonic()))
        await inflict(fault, victim, self._overlay.links)
        if fault.kind in ENDS_NODE:
            await self._overlay.bring_back(victim)

    # --- each stage at each position ---------------------------------------------------
    async def _strike_everywhere(self) -> None:
        """One fault a request."""
        options = self._options
        cases = plan_cases(options.stages, options.positions, options.tokens)
        for case in cases if options.cases is None else choose_cases(cases, options.cases, options.seed):
            await self._strike_at(case)

    async def _wait_for_spares(self) -> None:
        """A loss that finds no engine ready says nothing of recovery with one."""
        with trio.move_on_after(SPARE_S) as scope:
            while not await self._overlay.are_spares_ready():  # noqa: ASYNC110 - the state is another process's
                await trio.sleep(0.5)
        if scope.cancelled_caught:
            self._tally.without_spare += 1
            self._show(f"within {SPARE_S:.0f} s no spare had an engine ready for every stage")

    async def _strike_at(self, case: Case) -> None:
        await self._wait_for_spares()
        is_due, runs = trio.Event(), self._overlay.runs
        fault = Fault(0.0, FaultKind(self._options.faults[0]), case.stage)

        async def strike() -> None:
            await is_due.wait()
            await self._inflict(fault)

        def note(pieces: int) -> None:
            if pieces > case.position:
                is_due.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(strike)
            if case.position == 0:
                nursery.start_soon(_set_soon, is_due)
            answer = await ask(self._client, self._bodies[case.question], note)
            is_due.set()
        self._tally.count(answer, self._expected[case.question])
        told = f"stage {case.stage}, position {case.position}, question {case.question}"
        self._show(f"{told}: {answer.outcome} {answer.detail}, pause {answer.longest_pause_ms} ms")
        with trio.move_on_after(READY_S):
            while self._overlay.runs == runs:  # noqa: ASYNC110 - the events come from another task's pipe
                await trio.sleep(0.2)
        await trio.sleep(SETTLE_S)


async def _set_soon(is_due: trio.Event) -> None:
    """While the prompt is on its way."""
    await trio.sleep(0.05)
    is_due.set()
