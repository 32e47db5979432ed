"""Runs that go on without the coordinator that loaded them: claimed anew by the next peer of their list.

A run that serves needs nobody for its requests. Its successor watches its stages, and ends it when one is lost. What
any run of a coordinator has, spare engines, a better placement, another peer for one that leaves, and what follows when
it ends, it has from ``node.coordinator``: with the model's own file as any model here, else with the same stages by
their orders, whose files are had from whoever has them. Leases and turns are ``core.grants``'.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.core.claims import Claim, ClaimHeld
from p2pmesh.core.coordination import RunPhase, StageState
from p2pmesh.core.planning.outcome import MeasuredRun, Placement, StepEstimate
from p2pmesh.node.claims import Claims, HeldClaim
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.driver import Drivers
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.run import (
    PUBLISH_TIMEOUT_S,
    SYMPTOM_WAIT_S,
    WATCH_AGAIN_S,
    LeavingStages,
    RunEnding,
    StagesTold,
    follow_statuses,
)
from p2pmesh.node.servable import ServableRun
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.node.stages import HeldStage, Stages
from p2pmesh.node.vigil import Vigils
from p2pmesh.ports.models import ModelFile, ModelStore
from p2pmesh.wire.control import Done, FollowStage, LoadStage, PublishRun, StageEntry, StageStatus
from p2pmesh.wire.stage import WireDtype

ORDER_TIMEOUT_S = 15.0
LOOK_AGAIN_S = 30.0
MIND_AGAIN_S = 5.0
"""Whoever minds a run may have to open the model's file first, or to meet its peers."""
PLACED_AGAIN_S = 600.0
"""A model whose file nobody here has is tried to be placed for so long."""


@dataclass(frozen=True, slots=True)
class SuccessionParts:
    """What successors stand on. ``serve_model`` coordinates a model from now on, unless that is done already;
    ``find_coordinator`` tells by whom. ``make_coordinator`` makes one of a model whose file is not here, None where
    somebody here has it.
    """

    overlay: Overlay
    store: ModelStore
    stages: Stages
    drivers: Drivers
    claims: Claims
    vigils: Vigils
    serve_model: Callable[[ModelFile, ServingOptions], Awaitable[None]]
    find_coordinator: Callable[[Digest], Coordinator | None]
    make_coordinator: Callable[[ServableRun], Awaitable[Coordinator | None]]


class Successions:
    """The runs that this node took over."""

    def __init__(self, parts: SuccessionParts, report: Report) -> None:
        self._parts = parts
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._attempted: set[bytes] = set()
        self.runs: list[AdoptedRun] = []
        self.coordinators: list[Coordinator] = []
        """Of models whose files are not here."""
        parts.claims.on_succession_due = self._note_due

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Takes runs over until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _note_due(self, claim: Claim) -> None:
        held = self._parts.stages.find(claim.run_id)
        if held is None or not held.is_ready:
            self._parts.claims.note_stage_ended(claim.model, claim.run_id)
        elif self._nursery is not None and claim.run_id not in self._attempted:
            self._nursery.start_soon(self._attempt, claim, held)

    async def _attempt(self, silent: Claim, held: HeldStage) -> None:
        """One at a time of a run; if it fails, a later turn brings another."""
        self._attempted.add(silent.run_id)
        try:
            await self._take_over(silent, held)
        finally:
            self._attempted.discard(silent.run_id)

    async def _take_over(self, silent: Claim, held: HeldStage) -> None:
        known = ServableRun(self._parts.overlay, held.load)
        coordinator = await self._parts.make_coordinator(known)
        async with trio.open_nursery() as nursery:
            if coordinator is not None:
                self.coordinators.append(coordinator)
                nursery.start_soon(coordinator.mind)
            run = AdoptedRun(self._parts, held, known, coordinator)
            if coordinator is None:
                run.begun = partial(nursery.start_soon, self._place_anew, held.load)
            try:
                is_over = await self._adopt(silent, run)
                if is_over and coordinator is not None:
                    await self._place_again(coordinator, known)
            finally:
                if coordinator is not None:
                    self.coordinators.remove(coordinator)
            if coordinator is not None or not is_over:
                nursery.cancel_scope.cancel()

    async def _adopt(self, silent: Claim, run: "AdoptedRun") -> bool:
        """Whether a run ended under our claim; otherwise it is not ours, or goes on under another's."""
        claims, own, load = self._parts.claims, self._parts.overlay.own_peer, run.load
        others = (PeerId(stage.peer_id) for stage in load.stages if stage.peer_id != own)
        claim = Claim(
            silent.model, silent.run_id, claims.next_term(silent.model), (own, *others), claims.policy.lease_us,
            is_serving=True,
        )  # fmt: skip
        async with claims.claiming(claim, is_takeover=True) as holder:
            holder.is_run_over = False
            outcome = await holder.settled()
            if not isinstance(outcome, ClaimHeld) or outcome.absent:
                return False
            facts = {"model": load.model, "run_id": load.run_id.hex()}
            # the term that was granted: a higher one than was asked for first where others were further
            self._report("run_taken_over", {**facts, "term": holder.claim.term, "from": silent.coordinator})
            self.runs.append(run)
            try:
                ending = await run.serve(holder)
            finally:
                self.runs.remove(run)
            self._report("model_withdrawn", {**facts, **ending.fields()})
        return holder.is_run_over

    async def _place_again(self, coordinator: Coordinator, known: ServableRun) -> None:
        """The same stages, by their orders, until another coordinates the model or no placement is found."""
        if not known.is_whole:
            text = "not every stage has told its order: a peer that has the model's file must place it anew"
            self._report("waiting_for_peers", {"model": known.name, "message": text})
            return
        with trio.CancelScope() as scope, unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._give_way, coordinator, scope)
                try:
                    await coordinator.go_on()
                except P2PMeshError as error:  # nobody gave this node the model: that it cannot be placed ends nothing
                    self._report("waiting_for_peers", {"model": known.name, "message": error.message})
                nursery.cancel_scope.cancel()

    async def _give_way(self, coordinator: Coordinator, scope: trio.CancelScope) -> None:
        """Nobody asked this node to serve the model: whoever else does comes first, and it is not tried for ever."""
        claims, own = self._parts.claims, self._parts.overlay.own_peer
        served_at = trio.current_time()
        while trio.current_time() - served_at < PLACED_AGAIN_S:
            seen = claims.changes.count
            claim = claims.leased(coordinator.digest)
            if claim is not None and claim.coordinator != own:
                break
            if coordinator.run is not None and coordinator.run.phase is RunPhase.SERVING:
                served_at = trio.current_time()
            with trio.move_on_after(LOOK_AGAIN_S):
                await claims.changes.wait_beyond(seen)
        scope.cancel()

    async def _place_anew(self, load: LoadStage) -> None:
        """As any model of this node, by a coordinator that stands by while the run is up, and minds it."""
        model = await self._parts.store.find_by_digest(Digest(load.model_digest), load.model_bytes)
        if model is None:
            text = "its file is not on this peer: one that has it, or is started with --model, must place it anew"
            self._report("waiting_for_peers", {"model": load.model, "message": text})
            return
        options = ServingOptions(None, load.context_tokens, load.lanes, WireDtype(load.wire_dtype))
        try:
            await self._parts.serve_model(replace(model, name=load.model), options)
        except P2PMeshError as error:  # nobody gave this node the model: that it cannot be placed ends nothing here
            self._report("waiting_for_peers", {"model": load.model, "message": error.message})


class AdoptedRun:
    """A run that another loaded, watched from here until it ends or is another's."""

    def __init__(
        self, parts: SuccessionParts, held: HeldStage, known: ServableRun, coordinator: Coordinator | None
    ) -> None:
        self._parts = parts
        self._held = held
        self._known = known
        self._coordinator = coordinator
        """Minds the run; None: whoever has the model's file here does, if that serves it alike."""
        self._minder: Coordinator | None = None
        self._placement: Placement | None = None
        """Its stages, from when it is minded."""
        self._leaving = LeavingStages()
        self.begun: Callable[[], None] = lambda: None
        """Told once the run is ours."""
        self._holder: HeldClaim | None = None
        self._ending: RunEnding | None = None
        self._over = trio.Event()
        self._all_ready = trio.Event()
        self._told = StagesTold([layers for _, layers in _stages_of(held.load)])
        self._ready: set[int] = set()

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self._held.load.model

    @property
    def run(self) -> "AdoptedRun":
        """Itself, as a coordinator shows its run."""
        return self

    @property
    def run_id(self) -> bytes:
        """The run's own, which stays."""
        return self._held.load.run_id

    @property
    def phase(self) -> RunPhase:
        """Where the run stands."""
        return RunPhase.OVER if self._ending is not None else RunPhase.SERVING

    @property
    def placement(self) -> Placement:
        """Its stages, while it is minded."""
        assert self._placement is not None
        return self._placement

    @property
    def predicted(self) -> StepEstimate | None:
        """What a token is predicted to take, by what its engines measured; None while nobody minds it."""
        return self._estimate(self._told.measured)

    @property
    def planned(self) -> StepEstimate | None:
        """What a plan that is made now would predict for its stages."""
        return self._estimate(None)

    def _estimate(self, measured: MeasuredRun | None) -> StepEstimate | None:
        minder, placement = self._minder, self._placement
        return None if minder is None or placement is None else minder.estimate(placement, measured)

    def described_standbys(self) -> list[dict[str, object]]:
        """As ``Coordinator``'s, where engines can be kept ready."""
        return [] if self._minder is None else self._minder.described_standbys()

    def described_stages(self) -> list[dict[str, object]]:
        """Peers and layer ranges, as plain values."""
        return [{"peer_id": s.peer_id, "layers": [s.layer_start, s.layer_end]} for s in self._held.load.stages]

    @property
    def load(self) -> LoadStage:
        """The order of our own stage."""
        return self._held.load

    async def serve(self, holder: HeldClaim) -> RunEnding:
        """Until a stage ends, the peer of one does not answer, or the claim ends."""
        self._holder = holder
        self.begun()
        stages = tuple((PeerId(stage.peer_id), stage.addresses) for stage in self._held.load.stages)
        watch = self._parts.vigils.watch(stages, self._note_silent, WATCH_AGAIN_S)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publish)
                for index in range(len(self._held.load.stages)):
                    nursery.start_soon(self._follow, index)
                nursery.start_soon(self._follow_claim)
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            if watch is not None:
                watch.end()
        assert self._ending is not None
        if not holder.is_run_over:
            self._note_over(self._ending)
            return self._ending
        silent = await self._parts.vigils.find_silent(stages)
        for peer in silent:  # nothing is placed there again
            await self._parts.overlay.give_up(peer)
        ending = replace(self._ending, silent=silent)
        self._note_over(ending)
        await holder.withdraw(silent)
        return ending

    def _find_minder(self) -> Coordinator | None:
        """Never a coordinator that would serve it otherwise: requests count on how it is served."""
        if self._coordinator is not None:
            return self._coordinator
        found, options = self._parts.find_coordinator(self._known.digest), self._known.options
        if found is None or found.model_name != self.model_name:
            return None
        theirs = found.options
        is_alike = (theirs.context_tokens, theirs.lanes) == (options.context_tokens, options.lanes)
        return found if is_alike and theirs.wire_dtype is options.wire_dtype else None

    def _begin_minding(self) -> None:
        minder = self._find_minder()
        self._placement = self._placed_by(minder)
        if minder is not None and self._placement is not None:
            self._minder = minder
            minder.adopt(self)

    def _placed_by(self, minder: Coordinator | None) -> Placement | None:
        return minder.placed(self._known.stages) if minder is not None and self._known.is_whole else None

    def _note_over(self, ending: RunEnding) -> None:
        minder = self._find_minder()
        if minder is not None:
            minder.note_adopted_over(self._placement or self._placed_by(minder), ending)

    def give_up(self, code: ErrorCode, text: str) -> None:
        """Ends the run by no fault of its stages."""
        self._end(RunEnding(code, text, None, True), is_over=True)

    async def let_go(self) -> None:
        """Nobody takes over from the peers that are about to go."""
        await self._leaving.let_go()

    def _note_silent(self, peer: PeerId, error: P2PMeshError) -> None:
        index = next(i for i, stage in enumerate(self._held.load.stages) if stage.peer_id == peer)
        self._end(RunEnding(error.code, f"stage {index}: {error.message}", index, True), is_over=True)

    def _end(self, ending: RunEnding, *, is_over: bool) -> None:
        if self._ending is not None:
            return
        assert self._holder is not None
        self._ending = replace(ending, is_left=not is_over)
        self._holder.is_run_over = is_over
        if is_over:
            self._parts.drivers.fail_run(self.run_id, PeerUnavailable(ending.code, f"{ending.text}; try again"))
        self._over.set()

    async def _publish(self) -> None:
        """Once all stages were heard of: its coordinator may have died on the point of it."""
        await self._all_ready.wait()
        load = self._held.load
        driver, asked = load.stages[0], PublishRun(self.run_id, self._told.fingerprint(WireDtype(load.wire_dtype)))
        try:
            if driver.peer_id == self._parts.overlay.own_peer:
                self._parts.drivers.publish(asked)
            else:
                await self._publish_remotely(driver, asked)
        except P2PMeshError as error:
            self._end(RunEnding(error.code, f"the model was not published: {error.message}", 0, True), is_over=True)
            return
        while self._placement is None:
            self._begin_minding()
            await trio.sleep(MIND_AGAIN_S)

    async def _publish_remotely(self, driver: StageEntry, asked: PublishRun) -> None:
        stream = await self._parts.overlay.open_exchange(PeerId(driver.peer_id), asked, driver.addresses)
        try:
            await stream.expect(Done, PUBLISH_TIMEOUT_S)
        finally:
            await stream.reset()

    async def _follow_claim(self) -> None:
        assert self._holder is not None
        loss = await self._holder.lost()
        self._end(RunEnding(loss.code, loss.text, None, True), is_over=False)

    async def _follow(self, index: int) -> None:
        entry = self._held.load.stages[index]

        async def let_go() -> None:
            self._held.let_go()

        try:
            if entry.peer_id == self._parts.overlay.own_peer:
                await self._parts.stages.follow(self._held, partial(self._note_status, index, let_go))
            else:
                await self._follow_remote(PeerId(entry.peer_id), entry.addresses, index)
        except P2PMeshError as error:
            if error.code is ErrorCode.PEER_LOST:
                await trio.sleep(SYMPTOM_WAIT_S)
            text = f"stage {index} on peer {entry.peer_id}: {error.message}"
            self._end(RunEnding(error.code, text, index, True), is_over=True)

    async def _note_status(self, index: int, let_go: Callable[[], Awaitable[None]], status: StageStatus) -> None:
        self._told.note(index, status)
        if status.state == StageState.READY:
            self._ready.add(index)
        if status.state == StageState.LEAVING:
            await self._note_leaving(index, let_go)
        if len(self._ready) == len(self._held.load.stages):
            self._all_ready.set()

    async def _note_leaving(self, index: int, let_go: Callable[[], Awaitable[None]]) -> None:
        if self._minder is None or self._minder is not self._find_minder():
            await let_go()
            return
        self._leaving.note(index, let_go)
        self._minder.note_leaving(self.placement.stages[index].peer_id)

    async def _follow_remote(self, peer: PeerId, addresses: tuple[str, ...], index: int) -> None:
        assert self._holder is not None
        claim = self._holder.claim
        stream = await self._parts.overlay.open_exchange(
            peer, FollowStage(claim.model, claim.run_id, claim.term), addresses
        )
        try:
            self._note_order(peer, await stream.expect(LoadStage, ORDER_TIMEOUT_S))
            await follow_statuses(stream, partial(self._note_status, index, partial(stream.send, Done())))
        finally:
            await stream.reset()

    def _note_order(self, peer: PeerId, load: LoadStage) -> None:
        own = self._held.load
        is_of_run = (load.run_id, load.model_digest) == (own.run_id, own.model_digest)
        is_ours = is_of_run and _stages_of(load) == _stages_of(own)
        if not is_ours or load.stages[load.index].peer_id != peer:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "the order of another stage", culprit=peer)
        self._known.note(load)


def _stages_of(load: LoadStage) -> list[tuple[PeerId, LayerRange]]:
    """Peers and layers, without the addresses, which each order has as they were then."""
    return [(PeerId(stage.peer_id), LayerRange(stage.layer_start, stage.layer_end)) for stage in load.stages]
