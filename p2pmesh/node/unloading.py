"""How models leave a node: runs that nobody uses, or that memory has no room for, and stages that are handed over.

Owns the drains, and how it is known since when a run is idle: by its driver here, or by the word of another's. Whether
any of it is due is ``core.serving``'s, what is loaded ``node.on_demand``'s. No request is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, format_size
from p2pmesh.core.coordination import RunPhase
from p2pmesh.core.serving import UnloadReason
from p2pmesh.node.changes import Changes
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.demand import ModelDemand
from p2pmesh.node.driver import Driver, Drivers
from p2pmesh.node.moving import held_driver
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.run import Run
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.node.stages import HeldStage, Stages
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.models import ModelFile

LINGER_S = 2.0
"""A run that is to end takes requests of those who have not heard of it yet for so long after its last one."""
DRAIN_S = 30.0
HAND_OVER_S = 60.0
"""To load a stage elsewhere, perhaps to fetch it there."""
QUIET_USED_S = 15.0
"""So long another peer's driver that nobody asks for anything is kept from beginning: a look decides, then it ends."""
ASK_AGAIN_S = 5.0


@dataclass(slots=True, eq=False)
class HeldModel:
    """A model that is loaded by this node, or was and may be again."""

    model: ModelFile
    options: ServingOptions
    needed_bytes: int
    is_given: bool
    """Whether the operator named it, so that it stays known when it is unloaded."""
    coordinator: Coordinator | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_draining: bool = False
    is_loading: bool = False
    """Whether the machine asked for it and does not know yet what came of that."""
    seen_run_at: Micros = field(default=Micros(0))
    is_wanted: trio.Event = field(default_factory=trio.Event)
    quiet_since: Micros | None = None
    """Since when nobody has asked its driver for anything, if that is another peer, which begins nothing meanwhile."""

    @property
    def run(self) -> Run | None:
        """What its coordinator has under way."""
        return None if self.coordinator is None else self.coordinator.run

    @property
    def serving_run(self) -> Run | None:
        """The run, if it serves."""
        run = self.run
        return run if run is not None and run.phase is RunPhase.SERVING else None

    @property
    def is_serving(self) -> bool:
        """Whether requests are routed to it."""
        return self.serving_run is not None

    def wake(self) -> None:
        """It was unloaded, and is asked for."""
        self.is_loading = True
        self.is_wanted.set()


@dataclass(frozen=True, slots=True)
class UnloadingParts:
    """What unloading stands on. ``changes`` are marked for a new look, ``postponed`` hears of models that stay."""

    overlay: Overlay
    drivers: Drivers
    stages: Stages
    demand: ModelDemand
    clock: Clock
    memory_left: Callable[[], int | None]
    changes: Changes
    postponed: Callable[[bytes], None]


class Unloading:
    """Ends what a node loaded, and gives away what others loaded here; models by ``model_hash_of`` their names."""

    def __init__(self, parts: UnloadingParts, idle_unload_s: float | None, report: Report) -> None:
        self._parts = parts
        self._idle_unload_s = idle_unload_s
        self._report = report

    # --- what is known of a run ---------------------------------------------------------
    def idle_since(self, held: HeldModel) -> tuple[Micros | None, bool]:
        """Since when nobody uses it (None: somebody does), and whether all its requests are known."""
        driver = self._driver_of(held)
        if driver is None:
            return held.quiet_since, held.quiet_since is not None
        return None if driver.open_requests else driver.idle_since, True

    def own_bytes(self, held: HeldModel) -> int:
        """What the run that serves takes here; all of the model, where none does yet."""
        run, own = held.serving_run, self._parts.overlay.own_peer
        if run is None:
            return held.needed_bytes
        return sum(stage.needed_bytes for stage in run.placement.stages if stage.peer_id == own)

    def _driver_of(self, held: HeldModel) -> Driver | None:
        """Of the run that this node coordinates and drives."""
        run = held.serving_run
        if run is None:
            return None
        return next((d for d in self._parts.drivers.all() if d.load.run_id == run.run_id and d.is_published), None)

    async def watch_driver(self, held: HeldModel) -> None:
        """Learns whether nobody uses a run that another peer drives, for each of them in turn, until cancelled."""
        changes = self._parts.changes
        while self._idle_unload_s is not None:
            run = held.serving_run
            if run is None or run.placement.stages[0].peer_id == self._parts.overlay.own_peer:
                await changes.wait_beyond(changes.count)
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_with_run, held, run, nursery.cancel_scope)
                await self._await_quiet(held, run, self._idle_unload_s)
                nursery.cancel_scope.cancel()

    async def _await_quiet(self, held: HeldModel, run: Run, idle_s: float) -> None:
        try:
            async with held_driver(self._parts.overlay, self._parts.drivers, run, idle_s):
                held.quiet_since = Micros(self._parts.clock.now() - int(idle_s * MICROS_PER_SECOND))
                self._parts.changes.mark()
                await trio.sleep(QUIET_USED_S)
        except P2PMeshError:  # it was busy all the time, or its driver is gone
            await trio.sleep(ASK_AGAIN_S)
        finally:
            held.quiet_since = None

    async def _end_with_run(self, held: HeldModel, run: Run, scope: trio.CancelScope) -> None:
        while held.run is run:
            await self._parts.changes.wait_beyond(self._parts.changes.count)
        scope.cancel()

    # --- ends ---------------------------------------------------------------------------------
    async def unload(self, model: bytes, held: HeldModel, reason: UnloadReason) -> None:
        """No run is ended while a request is under way: it is announced no more, and ends once it is quiet."""
        driver, run = self._driver_of(held), held.run
        is_quiet = False
        if driver is not None and run is not None:
            self._parts.drivers.note_leaving(driver, is_leaving=True)
            with trio.move_on_after(DRAIN_S):
                is_quiet = await self._is_quiet(driver, model, may_wait=reason is UnloadReason.MEMORY_LOW)
        elif held.quiet_since is not None:  # it begins nothing, and whoever asks it now waits
            is_quiet = not self._parts.demand.is_awaited_here(model)
        if not is_quiet or run is None or self._driver_of(held) is not driver:
            self._keep(model, held, driver, reason)
            return
        held.scope.cancel()
        facts = {"model": held.model.name, "run_id": run.run_id.hex(), "reason": reason.value}
        self._report("model_unloaded", {**facts, "message": self._why(reason)})
        if reason is UnloadReason.MEMORY_LOW:
            await self._parts.stages.drop_waiting_engines(held.model.name)

    def _keep(self, model: bytes, held: HeldModel, driver: Driver | None, reason: UnloadReason) -> None:
        held.is_draining = False
        if driver is not None:
            self._parts.drivers.note_leaving(driver, is_leaving=False)
        self._postpone(model)
        if reason is UnloadReason.MEMORY_LOW:
            self._tell_postponed(held.model.name, f"requests went on for {DRAIN_S:.0f} s; it serves on")

    async def _is_quiet(self, driver: Driver, model: bytes, *, may_wait: bool) -> bool:
        """Whether nothing came for a while; where it ``may_wait``, after what is under way."""
        while True:
            seen = driver.traffic.count
            if driver.open_requests == 0:
                with trio.move_on_after(LINGER_S) as lingering:
                    await driver.traffic.wait_beyond(seen)
                if lingering.cancelled_caught:
                    return not self._parts.demand.is_awaited_here(model)
            if not may_wait:
                return False
            await driver.traffic.wait_beyond(seen)

    async def hand_over(self, model: bytes, lent: HeldStage) -> None:
        """Its coordinator has it loaded elsewhere first; where that cannot be it stays."""
        load, layers = lent.load, lent.layers
        has_gone = False
        with trio.move_on_after(HAND_OVER_S):
            has_gone = await self._parts.stages.hand_over_one(lent)
        if not has_gone:
            self._postpone(model)
            self._tell_postponed(load.model, "no other peer takes over what it holds here; it serves on")
            return
        facts = {"model": load.model, "run_id": load.run_id.hex(), "stage": load.index}
        text = self._why(UnloadReason.MEMORY_LOW)
        self._report("stage_handed_over", {**facts, "layers": [layers.start, layers.end], "message": text})
        await self._parts.stages.drop_waiting_engines(load.model)

    def _postpone(self, model: bytes) -> None:
        self._parts.postponed(model)
        self._parts.changes.mark()

    def _tell_postponed(self, name: str, text: str) -> None:
        reason = UnloadReason.MEMORY_LOW.value
        self._report("unload_postponed", {"model": name, "reason": reason, "message": text})

    def _why(self, reason: UnloadReason) -> str:
        match reason:
            case UnloadReason.IDLE:
                return f"no request for {self._idle_unload_s or 0:g} s; a request loads it again"
            case UnloadReason.MEMORY_LOW:
                left = self._parts.memory_left()
                return f"{format_size(left or 0)} of memory are left; it was the least asked for here"
            case UnloadReason.ROOM_WANTED:
                return "another model is asked for and needs its room"
