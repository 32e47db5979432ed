"""A run that serves gives way to a better placement: what ``core.replanning`` wants done for one model.

Owns the engines that are loaded beside the run, and the hold on its driver. What a placement is worth is that
machine's, how the run ends and the next one begins ``node.coordinator``'s.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import replanning
from p2pmesh.core.coordination import StageState
from p2pmesh.core.planning.outcome import Placement, PlacementRefusal
from p2pmesh.core.planning.request import PlanRequest
from p2pmesh.node.driver import HELD_S, Drivers
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.run import Run, ranges_of
from p2pmesh.node.runner import MachineRunner
from p2pmesh.node.standby import LOAD_S, Order
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.control import Done, HoldRun, StageStatus


@dataclass(frozen=True, slots=True)
class Planning:
    """``request`` is what a plan is made of now, ``plan`` makes it, ``order`` loads an engine that waits."""

    request: Callable[[], PlanRequest]
    plan: Callable[[PlanRequest], Placement | PlacementRefusal]
    order: Order


class Mover:
    """Of one coordinator, over all its runs; ``next`` is what follows the present run when it has ended."""

    def __init__(
        self,
        overlay: Overlay,
        drivers: Drivers,
        machine: tuple[replanning.Replanner, Clock],
        planning: Planning,
        report: Report,
    ) -> None:
        self.next: Placement | None = None
        self._request, self._plan, self._order = planning.request, planning.plan, planning.order
        self._overlay = overlay
        self._drivers = drivers
        self._report = report
        self._runner: MachineRunner[replanning.Event, replanning.Effect] = MachineRunner(
            *machine, self._perform, replanning.DeadlinePassed()
        )
        self._run: Run | None = None
        self._nursery: trio.Nursery | None = None
        self._beside = trio.CancelScope()
        """Engines that wait beside the run."""
        self._files: dict[PeerId, set[str]] = {}
        self._hold = trio.CancelScope()

    async def keep(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await self._runner.run()
            finally:
                self._nursery = None

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether the peer needs this file for an engine."""
        return digest in self._files.get(peer, ())

    def note_serving(self, run: Run) -> None:
        """A run serves; engines that waited for it have been taken up."""
        self._run = run
        self._beside.cancel()
        self._runner.post(replanning.RunServes())

    def note_ended(self) -> None:
        """It is over."""
        self._run = None
        self._hold.cancel()
        self._runner.post(replanning.RunEnded())

    def take_next(self) -> Placement | None:
        """The placement that the run gave way to; once."""
        placement, self.next = self.next, None
        return placement

    async def _perform(self, effect: replanning.Effect) -> None:
        run, nursery = self._run, self._nursery
        if isinstance(effect, replanning.Abandon):
            self._beside.cancel()
            self._hold.cancel()
        if run is None or nursery is None:
            return
        match effect:
            case replanning.Look(candidate):
                self._look(run.placement, candidate)
            case replanning.Prepare(placement, attempt):
                self._beside = trio.CancelScope()
                nursery.start_soon(self._prepare, run.placement, placement, attempt, self._beside)
            case replanning.Drain(_, attempt, quiet_us):
                self._hold = trio.CancelScope()
                nursery.start_soon(self._drain, run, attempt, quiet_us, self._hold)
            case replanning.Move():
                self._move(run, effect)

    def _look(self, standing: Placement, candidate: Placement | None) -> None:
        request = replanning.request_without_run(self._request(), standing)
        now = replanning.assess_standing(request, standing)
        if now is None:
            return
        best, offered = self._plan(request), None
        if isinstance(best, Placement) and not replanning.is_same_placement(best, standing):
            assessed = replanning.assess_candidate(request, best)
            offered = (best, assessed) if assessed is not None else None
        kept = replanning.assess_candidate(request, candidate) if candidate is not None else None
        self._runner.post(replanning.Looked(now, offered, kept))

    def _move(self, run: Run, move: replanning.Move) -> None:
        self.next = move.placement
        facts = {"model": run.model_name, "run_id": run.run_id.hex(), "reason": move.reason.value}
        times = {"old_tpot_us": move.old.tpot_us, "new_tpot_us": move.new.tpot_us}
        self._report("replanned", {**facts, "stages": ranges_of(move.placement), **times})
        run.give_up(ErrorCode.MODEL_NOT_READY, "it moves to a better placement")

    # --- engines beside the run -------------------------------------------------------
    async def _prepare(self, standing: Placement, wanted: Placement, attempt: int, scope: trio.CancelScope) -> None:
        new = replanning.new_stages(standing, wanted)
        own, peers = self._overlay.own_peer, [wanted.stages[index].peer_id for index in new]
        if own in peers or replanning.peers_without_room_beside(self._request(), standing, wanted):
            await self._runner.put(replanning.Prepared(attempt, is_beside=False))
            return
        missing = set(new)

        async def ready(index: int) -> None:
            missing.discard(index)
            if not missing:
                await self._runner.put(replanning.Prepared(attempt, is_beside=True))

        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for index in new:
                        nursery.start_soon(self._keep_engine, wanted, index, partial(ready, index), attempt)
                    if not new:
                        await self._runner.put(replanning.Prepared(attempt, is_beside=True))
        finally:
            self._files.clear()

    async def _keep_engine(
        self, wanted: Placement, index: int, ready: Callable[[], Awaitable[None]], attempt: int
    ) -> None:
        """Until the scope around it ends, or the run that it is for takes the engine up."""
        peer = wanted.stages[index].peer_id
        try:
            async with self._order(wanted, index) as load:
                self._files[peer] = {load.artifact_digest, *(file.digest for file in load.fragments)}
                stream = await self._overlay.open_exchange(peer, load, load.stages[index].addresses)
                try:
                    while (await stream.expect(StageStatus, LOAD_S)).state != StageState.READY:
                        pass
                    await ready()
                    await stream.expect(StageStatus, LOAD_S)
                finally:
                    await stream.reset()
        except P2PMeshError:
            await self._runner.put(replanning.AttemptFailed(attempt))

    # --- the driver ---------------------------------------------------------------------
    async def _drain(self, run: Run, attempt: int, quiet_us: int, scope: trio.CancelScope) -> None:
        """Holds the driver until the scope ends: when the run is over, or nothing comes of the move."""
        with scope:
            try:
                async with self._held(run, quiet_us):
                    await self._runner.put(replanning.Drained(attempt))
                    await trio.sleep(HELD_S)
            except P2PMeshError:
                await self._runner.put(replanning.AttemptFailed(attempt))

    @asynccontextmanager
    async def _held(self, run: Run, quiet_us: int) -> AsyncIterator[None]:
        peer = run.placement.stages[0].peer_id
        if peer == self._overlay.own_peer:
            async with self._drivers.held(run.run_id, quiet_us / MICROS_PER_SECOND):
                yield
            return
        stream = await self._overlay.open_exchange(peer, HoldRun(run.run_id, quiet_us // 1000))
        try:
            await stream.expect(Done, quiet_us / MICROS_PER_SECOND + LOAD_S)
            yield
        finally:
            await stream.reset()
