"""A run that another loaded and that was taken over here: watched, minded, and ended when a stage of it is lost.

Owns the streams that follow its stages, its publication, and whom it is minded by. Who may take it over is
``node.succession``'s; spare engines, better placements and what follows its end are ``node.coordinator``'s.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.core.coordination import RunPhase, StageState
from p2pmesh.core.planning.outcome import MeasuredRun, Placement, StepEstimate
from p2pmesh.node.claims import Claims, HeldClaim
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.driver import Drivers
from p2pmesh.node.overlay import Overlay
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
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.runs import FollowStage, LoadStage, PublishRun, StageEntry, StageStatus
from p2pmesh.wire.stage import WireDtype

ORDER_TIMEOUT_S = 15.0
MIND_AGAIN_S = 5.0
"""Whoever minds a run may have to open the model's file first, or to meet its peers."""


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
        return None if minder is None or placement is None else minder.plans.estimate(placement, measured)

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
        return minder.plans.of_stages(self._known.stages) if minder is not None and self._known.is_whole else None

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
        if not is_ours or load.stage.peer_id != peer:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "the order of another stage", culprit=peer)
        self._known.note(load)


def _stages_of(load: LoadStage) -> list[tuple[PeerId, LayerRange]]:
    """Peers and layers, without the addresses, which each order has as they were then."""
    return [(PeerId(stage.peer_id), stage.layers) for stage in load.stages]
