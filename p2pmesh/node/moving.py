"""A run that serves gives way to a better placement: what ``core.replanning`` wants done for one model.

Owns the engines that are loaded beside the run, and the hold on its driver. What a placement is worth is that
machine's, how the run ends and the next one begins ``node.coordinator``'s.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import replanning
from p2pmesh.core.coordination import StageState
from p2pmesh.core.planning.outcome import Placement, PlacementRefusal
from p2pmesh.core.planning.request import PlanRequest
from p2pmesh.node.driver import HELD_S, Drivers
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.run import ranges_of
from p2pmesh.node.runner import MachineRunner
from p2pmesh.node.standby import LOAD_S, Order
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.runs import HoldRun, StageStatus

MEET_S = 4.0
"""Within the machine's patience with a look for a peer that leaves."""


@dataclass(frozen=True, slots=True)
class Planning:
    """``request`` is what a plan is made of now, ``plan`` makes it, ``order`` loads an engine that waits.

    ``without_leaving`` is a placement with the stages of peers that leave elsewhere, and the others where they are;
    ``spare_for`` tells which peer has an engine ready for a stage by now, and ``meet`` says hello to peers that a plan
    may use, too.
    """

    request: Callable[[], PlanRequest]
    plan: Callable[[PlanRequest], Placement | PlacementRefusal]
    order: Order
    without_leaving: Callable[[Placement], Placement | None]
    spare_for: Callable[[LayerRange], PeerId | None]
    meet: Callable[[], Awaitable[bool]]
    is_by_orders: bool = False
    """The model's file is not here: nothing is ended before all that follows it stands ready, since what is missing may
    be nowhere else."""


class MovableRun(Protocol):
    """A run that serves, and is ended by whoever moves it."""

    @property
    def placement(self) -> Placement:
        """Its stages."""

    @property
    def run_id(self) -> bytes:
        """Its name."""

    @property
    def model_name(self) -> str:
        """What clients call its model."""

    def give_up(self, code: ErrorCode, text: str) -> None:
        """Ends it by no fault of its stages."""

    async def let_go(self) -> None:
        """Nobody takes over from its peers that are about to go."""


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
        self._planning = planning
        self._overlay = overlay
        self._drivers = drivers
        self._report = report
        self._runner: MachineRunner[replanning.Event, replanning.Effect] = MachineRunner(
            *machine, self._perform, replanning.DeadlinePassed()
        )
        self._run: MovableRun | None = None
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

    @property
    def standing(self) -> Placement | None:
        """What serves now."""
        return None if self._run is None else self._run.placement

    def note_serving(self, run: MovableRun) -> None:
        """A run serves; engines that waited for it have been taken up."""
        self._run = run
        self._beside.cancel()
        self._runner.post(replanning.RunServes())

    def note_ended(self) -> None:
        """It is over."""
        self._run = None
        self._hold.cancel()
        self._runner.post(replanning.RunEnded())

    def note_leaving(self) -> None:
        """The peer of a stage is about to go, and plans count on it no more."""
        self._runner.post(replanning.PeerLeaves())

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
            case replanning.Look(candidate, is_for_leaving):
                if is_for_leaving:
                    nursery.start_soon(self._look_for_leaving, run)
                else:
                    self._look(run.placement, candidate, self._planning.plan)
            case replanning.Prepare(placement, attempt):
                self._beside = trio.CancelScope()
                nursery.start_soon(self._prepare, run.placement, placement, attempt, self._beside)
            case replanning.Drain(_, attempt, quiet_us):
                self._hold = trio.CancelScope()
                nursery.start_soon(self._drain, run, attempt, quiet_us, self._hold)
            case replanning.Move():
                self._move(run, effect)
            case replanning.LetGo():
                await run.let_go()

    async def _look_for_leaving(self, run: MovableRun) -> None:
        """Peers that are known by gossip alone are met first where those at hand do not suffice."""
        with trio.move_on_after(MEET_S):
            while self._without_leaving(run.placement) is None and await self._planning.meet():
                pass
        if run is self._run:
            self._look(run.placement, None, lambda request: self._without_leaving(run.placement))

    def _without_leaving(self, standing: Placement) -> Placement | None:
        replacing = self._planning.without_leaving(standing)
        if replacing is not None:
            return replacing
        best = self._planning.plan(replanning.request_without_run(self._planning.request(), standing))
        return best if isinstance(best, Placement) else None

    def _look(
        self,
        standing: Placement,
        candidate: Placement | None,
        plan: Callable[[PlanRequest], Placement | PlacementRefusal | None],
    ) -> None:
        request = replanning.request_without_run(self._planning.request(), standing)
        now = replanning.assess_standing(request, standing)
        if now is None:
            return
        best, offered = plan(request), None
        if isinstance(best, Placement) and not replanning.is_same_placement(best, standing):
            assessed = replanning.assess_candidate(request, best)
            offered = (best, assessed) if assessed is not None else None
        kept = replanning.assess_candidate(request, candidate) if candidate is not None else None
        self._runner.post(replanning.Looked(now, offered, kept))

    def _move(self, run: MovableRun, move: replanning.Move) -> None:
        self.next = move.placement
        facts = {"model": run.model_name, "run_id": run.run_id.hex(), "reason": move.reason.value}
        times = {"old_tpot_us": move.old.tpot_us, "new_tpot_us": move.new.tpot_us}
        self._report("replanned", {**facts, "stages": ranges_of(move.placement), **times})
        is_for_leaving = move.reason is replanning.ReplanReason.PEER_LEAVES
        text = "a peer of it leaves" if is_for_leaving else "it moves to a better placement"
        run.give_up(ErrorCode.MODEL_NOT_READY, text)

    # --- engines beside the run -------------------------------------------------------
    async def _prepare(self, standing: Placement, wanted: Placement, attempt: int, scope: trio.CancelScope) -> None:
        stages = wanted.stages
        spare_for = self._planning.spare_for
        new = [
            index
            for index in replanning.new_stages(standing, wanted)
            if spare_for(stages[index].layers) != stages[index].peer_id
        ]
        own, peers = self._overlay.own_peer, [stages[index].peer_id for index in new]
        if own in peers or replanning.peers_without_room_beside(self._planning.request(), standing, wanted):
            is_not_beside = replanning.Prepared(attempt, is_beside=False)
            failed = replanning.AttemptFailed(attempt)
            await self._runner.put(failed if self._planning.is_by_orders else is_not_beside)
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
            async with self._planning.order(wanted, index) as load:
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
    async def _drain(self, run: MovableRun, attempt: int, quiet_us: int, scope: trio.CancelScope) -> None:
        """Holds the driver until the scope ends: when the run is over, or nothing comes of the move."""
        with scope:
            try:
                async with held_driver(self._overlay, self._drivers, run, quiet_us / MICROS_PER_SECOND):
                    await self._runner.put(replanning.Drained(attempt))
                    await trio.sleep(HELD_S)
            except P2PMeshError:
                await self._runner.put(replanning.AttemptFailed(attempt))


@asynccontextmanager
async def held_driver(overlay: Overlay, drivers: Drivers, run: MovableRun, quiet_s: float) -> AsyncIterator[None]:
    """Once nobody has asked a run for anything for so long: its driver, here or elsewhere, has no sequence left and
    begins none, for at most ``HELD_S``. Raises ``P2PMeshError``."""
    peer = run.placement.stages[0].peer_id
    if peer == overlay.own_peer:
        async with drivers.held(run.run_id, quiet_s):
            yield
        return
    stream = await overlay.open_exchange(peer, HoldRun(run.run_id, int(quiet_s * 1000)))
    try:
        await stream.expect(Done, quiet_s + LOAD_S)
        yield
    finally:
        await stream.reset()
