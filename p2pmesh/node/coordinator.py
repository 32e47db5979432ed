"""The coordinator of one model: waits for peers, plans, claims, puts a run into effect, and replaces it when it breaks.

While another peer coordinates the model with this one's help, it stands by (``node.succession`` takes serving runs
over). One run's life is ``core.coordination.RunMachine``; the decision where layers go is ``core.planning``'s. The
stages of this node are held as those of any other peer, only without a stream in between.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable, Refused
from p2pmesh.base.ids import ID_BYTES, Digest, LayerRange, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import coordination
from p2pmesh.core.claims import Claim, ClaimHeld, ClaimLost
from p2pmesh.core.coordination import StageState
from p2pmesh.core.planning.bytes import planning_model
from p2pmesh.core.planning.kept import plan_kept
from p2pmesh.core.planning.outcome import Placement, PlacementRefusal, PlannedStage, StepEstimate
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.pricing import Prices
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest
from p2pmesh.core.wire_certificate import WireClearance
from p2pmesh.model.families import check_range, permitted_cuts
from p2pmesh.node.artifacts import TELL_AGAIN_S
from p2pmesh.node.candidates import MEET_AGAIN_S, Candidates
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.claims import Claims, HeldClaim
from p2pmesh.node.driver import Drivers
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.links import Links
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.runner import MachineRunner
from p2pmesh.node.stages import Stages
from p2pmesh.node.standby import Standbys
from p2pmesh.node.vigil import Vigils, Watch
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.models import ModelFile, ModelStore, StageArtifact
from p2pmesh.wire.control import Done, FileEntry, LoadStage, ProbeResult, ProbeRun, PublishRun, StageEntry, StageStatus
from p2pmesh.wire.stage import WireDtype

RETRY_FIRST_S = 1.0
RETRY_LONGEST_S = 60.0
STATUS_TIMEOUT_S = 150.0
"""Above the run machine's own patience, which ends a silent load first."""
SERVING_SILENCE_S = 365 * 24 * 3600.0
PROBE_TIMEOUT_S = 130.0
PUBLISH_TIMEOUT_S = 15.0
SYMPTOM_WAIT_S = 0.3
"""A stage that only lost its neighbour waits this long with saying so, because the neighbour itself may know why."""
REPLACED_AFTER_S = 2.0
"""After a run that served for less a pause is made: requests hardly reached it, and one of them may have broken it."""
WATCH_AGAIN_S = 2.0
_ENGINE_DEATHS = frozenset({ErrorCode.ENGINE_CRASHED, ErrorCode.ENGINE_UNRESPONSIVE})
_SYMPTOMS = frozenset({ErrorCode.PEER_LOST, ErrorCode.PEER_UNREACHABLE})
FAILED_S = 120.0
"""A peer whose stage did not load, or broke, is passed over for so long where others can hold the model."""
PEERS_SETTLE_S = 0.5
"""Peers that start together are waited for this long before a plan, so that the first does not get all."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How a model is to be served. ``stage_count`` None is automatic; ``cuts`` not empty are the only ones to use.

    ``clearance`` says where the model may be cut with ``wire_dtype``.
    """

    stage_count: int | None
    context_tokens: int
    lanes: int
    wire_dtype: WireDtype
    cuts: tuple[int, ...] = ()
    clearance: WireClearance = field(default_factory=lambda: WireClearance(None, ""))


@dataclass(frozen=True, slots=True)
class CoordinatorParts:
    """What a coordinator stands on."""

    overlay: Overlay
    store: ModelStore
    stages: Stages
    drivers: Drivers
    clock: Clock
    entropy: Entropy
    links: Links
    claims: Claims
    vigils: Vigils


@dataclass(frozen=True, slots=True)
class RunEnding:
    """Why a run ended."""

    code: ErrorCode
    text: str
    index: int | None
    had_served: bool
    is_left: bool = False
    """Whether the run goes on under another coordinator, for all that is known."""
    served_s: float = 0.0
    silent: tuple[PeerId, ...] = ()
    """Peers of its stages that do not answer any more."""

    def fields(self) -> dict[str, object]:
        """As event fields."""
        return {"code": self.code.value, "message": self.text, "stage": self.index}


class Coordinator:
    """Serves one model for as long as it runs."""

    def __init__(self, parts: CoordinatorParts, model: ModelFile, options: ServingOptions, report: Report) -> None:
        self._parts = parts
        self._model = model
        self._options = options
        self._report = report
        self._planning_model = _planning_model(model, options)
        self._candidates = Candidates(parts.overlay, parts.clock)
        self._standbys = Standbys(parts.overlay, self._request, self._standby_order)
        self.run: Run | None = None

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self._model.name

    @property
    def digest(self) -> Digest:
        """Of the whole model."""
        return self._model.digest

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether the peer needs this file for a stage, now or in case."""
        is_of_run = self.run is not None and self.run.gives(digest, peer)
        return is_of_run or self._standbys.gives(digest, peer)

    @asynccontextmanager
    async def _standby_order(self, placement: Placement, index: int) -> AsyncIterator[LoadStage]:
        """For an engine that shall wait, under an id of no run."""
        planned = placement.stages[index]
        artifact = await self._parts.store.cut(self._model, planned.layers)
        try:
            transport = await _transport(self._parts, self._model, planned, artifact)
            ids = (self._parts.entropy.random_bytes(ID_BYTES), 1)
            order = _order(self._parts, self._model, self._options, ids, placement, index, artifact)
            yield replace(order, is_standby=True, **transport)
        finally:
            self._parts.store.release(artifact.digest)

    async def serve(self) -> None:
        """Until cancelled; raises ``Refused`` only when no further peer could ever help."""
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._standbys.keep)
                await self._serve()

    async def _serve(self) -> None:
        wait_s = RETRY_FIRST_S
        placement: Placement | None = None
        while True:
            placement = placement or await self._place()
            ending = await self._claim_and_serve(placement)
            if ending is None or ending.is_left or not ending.had_served:
                wait_s = min(2 * wait_s, RETRY_LONGEST_S)
                if ending is not None:
                    await trio.sleep(wait_s)
                placement = None
                continue
            wait_s = RETRY_FIRST_S
            if ending.served_s < REPLACED_AFTER_S:
                await trio.sleep(wait_s)
            placement = self._replace(placement, ending)

    def _replace(self, broken: Placement, ending: RunEnding) -> Placement | None:
        """The stages that are whole where they were, the lost one where an engine waits or a peer is spare.

        None where that cannot be, and all must be planned anew.
        """
        request = self._request()
        peers = tuple(peer for peer in request.peers if peer.peer_id not in ending.silent)
        kept, used = [], {stage.peer_id for stage in broken.stages}
        for index, stage in enumerate(broken.stages):
            spare = self._standbys.peer_for(stage.layers)
            is_broken = stage.peer_id in ending.silent or (index == ending.index and ending.code in _ENGINE_DEATHS)
            if is_broken and spare is not None and spare not in used:
                used.add(spare)
                kept.append(replace(stage, peer_id=spare))
            elif stage.peer_id not in ending.silent:
                kept.append(stage)
        planned = plan_kept(replace(request, peers=peers, kept=tuple(kept)))
        if not isinstance(planned, Placement):
            return None
        self._report("placement", describe_placement(self._model.name, planned))
        return planned

    async def leave_run(self) -> None:
        """This node goes: a run that serves without it is left to its other peers."""
        if self.run is not None:
            await self.run.leave()

    async def _claim_and_serve(self, placement: Placement) -> RunEnding | None:
        """One run from its claim to its end; None if it could not be claimed, and a new plan is due."""
        own, claims, digest = self._parts.overlay.own_peer, self._parts.claims, self._model.digest
        peers = (own, *(stage.peer_id for stage in placement.stages if stage.peer_id != own))
        run_id = self._parts.entropy.random_bytes(16)
        claim = Claim(digest, run_id, claims.next_term(digest), peers, claims.policy.lease_us)
        async with claims.claiming(claim) as held:
            outcome = await held.settled()
            if not self._is_claimed(outcome):
                return None
            run = self.run = Run(self._parts, self._model, self._options, placement, self._report, held)
            run.estimate = partial(self._estimate, placement)
            run.serves = self._standbys.want
            ending = await run.serve()
            self.run = None
            self._report("model_withdrawn", {"model": self._model.name, "run_id": run_id.hex(), **ending.fields()})
        self._blame(placement, ending)
        return ending

    def _blame(self, placement: Placement, ending: RunEnding) -> None:
        """Who only lost its neighbours is as good as before; those that are silent are out by that alone."""
        if ending.index is None or (ending.had_served and ending.code in _SYMPTOMS):
            return
        failed = placement.stages[ending.index].peer_id
        if failed != self._parts.overlay.own_peer:
            self._candidates.note_failed(failed, FAILED_S)

    def _is_claimed(self, outcome: ClaimHeld | ClaimLost) -> bool:
        """Whether every peer of the placement granted; those that did not are left out of the next plan."""
        own, lease_s = self._parts.overlay.own_peer, self._parts.claims.policy.lease_us / MICROS_PER_SECOND
        missing = outcome.absent if isinstance(outcome, ClaimHeld) else outcome.ungranted
        for peer in missing:
            if peer != own:
                self._candidates.note_taken(peer, lease_s)
        if isinstance(outcome, ClaimLost):
            self._report("waiting_for_peers", {"model": self._model.name, "message": outcome.text})
        return not missing and isinstance(outcome, ClaimHeld)

    async def _stand_by(self) -> None:
        """As long as this peer has promised the model to another's run, or to one that was taken over here."""
        told = ""
        while True:
            seen = self._parts.claims.changes.count
            claim = self._parts.claims.leased(self._model.digest)
            if claim is None:
                return
            self._standbys.forget()  # whoever coordinates it keeps its own
            text = f"peer {claim.coordinator} coordinates it, and this node stands by"
            if text != told:
                self._report("waiting_for_peers", {"model": self._model.name, "message": text})
            told = text
            with trio.move_on_after(claim.lease_us / MICROS_PER_SECOND):
                await self._parts.claims.changes.wait_beyond(seen)

    async def _place(self) -> Placement:
        """A placement, waiting for peers as long as they could help."""
        told = ""
        while True:
            await self._stand_by()
            seen = self._parts.overlay.board.changes.count
            planned = self._plan()
            if isinstance(planned, Placement):
                self._report("placement", describe_placement(self._model.name, planned))
                return planned
            self._standbys.forget()
            if not planned.could_peers_help:
                raise _refused(self._model, planned)
            if await self._candidates.meet():
                continue
            if planned.text != told:
                told = planned.text
                self._report("waiting_for_peers", {"model": self._model.name, "message": planned.text})
            with trio.move_on_after(min(MEET_AGAIN_S, self._candidates.next_free_s())):
                await self._parts.overlay.board.changes.wait_beyond(seen)
            await trio.sleep(PEERS_SETTLE_S)

    def _plan(self) -> Placement | PlacementRefusal:
        """Over peers whose stages did not fail lately, where those suffice."""
        if self._candidates.has_failed:
            planned = plan_placement(self._request(with_failed=False))
            if isinstance(planned, Placement):
                return planned
        return plan_placement(self._request())

    def _estimate(self, placement: Placement) -> StepEstimate:
        """Of a placement that stands, by what is known of links and speeds now."""
        return Prices(self._request()).estimate(placement.stages)

    def _request(self, *, with_failed: bool = True) -> PlanRequest:
        own_peer = self._parts.overlay.own_peer
        stages = self._parts.stages
        own = PlanningPeer(own_peer, stages.free_bytes, has_model=True, decode_bytes_per_s=stages.decode_bytes_per_s)
        peers = (own, *self._candidates.admitted(self._model.digest, with_failed=with_failed))
        links = self._parts.links.matrix()
        return PlanRequest(self._planning_model, peers, own_peer, self._options.stage_count, links)


class Run:
    """One attempt at one placement."""

    def __init__(
        self,
        parts: CoordinatorParts,
        model: ModelFile,
        options: ServingOptions,
        placement: Placement,
        report: Report,
        held: HeldClaim,
    ) -> None:
        self.run_id = held.claim.run_id
        self.placement = placement
        self.serves: Callable[[Placement], None] = lambda placement: None
        """Told once requests are routed to it."""
        self._held = held
        self._parts = parts
        self._model = model
        self._options = options
        self._report = report
        self._machine = coordination.RunMachine(len(placement.stages))
        self._runner: MachineRunner[coordination.Event, coordination.Effect] = MachineRunner(
            self._machine, parts.clock, self._perform, coordination.DeadlinePassed()
        )
        self._nursery: trio.Nursery | None = None
        self._ending: RunEnding | None = None
        self._had_served = False
        self._serving_since = Micros(0)
        self._silent: tuple[PeerId, ...] = ()
        self._watch: Watch | None = None
        self._cut_digests: list[Digest] = []
        self._given: set[Digest] = set()
        """Fragments that the peers of the placement may fetch, besides the stages that are cut from them."""
        self._fingerprints: dict[int, str] = {}
        self._decode_us: dict[int, int] = {}
        self.estimate: Callable[[], StepEstimate] = lambda: placement.estimate
        """What a token takes by what is known now."""

    @property
    def phase(self) -> coordination.RunPhase:
        """Where the run stands."""
        return self._machine.phase

    @property
    def predicted_tpot_us(self) -> int:
        """What a token is predicted to take, by what the engines of its stages measured at load, where all did."""
        estimate = self.estimate()
        if len(self._decode_us) == len(self.placement.stages):
            estimate = replace(estimate, compute_us=sum(self._decode_us.values()))
        return estimate.tpot_us

    def described_stages(self) -> list[dict[str, object]]:
        """Peers and layer ranges, as plain values."""
        return _ranges(self.placement)

    async def serve(self) -> RunEnding:
        """Loads, proves, publishes, watches; returns once the run is over and its stages are told."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._runner.post(coordination.RunStarted())
                nursery.start_soon(self._follow_claim)
                await self._runner.run(lambda: self._ending is not None)
                await self._give_back()
                nursery.cancel_scope.cancel()
        finally:
            for digest in self._cut_digests:
                self._parts.store.release(digest)
        assert self._ending is not None
        served_us = self._parts.clock.now() - self._serving_since if self._had_served else 0
        return replace(self._ending, served_s=served_us / MICROS_PER_SECOND, silent=self._silent)

    async def _give_back(self) -> None:
        """Frees what is whole of a run that served, at once: the next one is about to ask for it."""
        if self._watch is not None:
            self._watch.end()
        if self._had_served and self._ending is not None and not self._ending.is_left:
            await self._find_silent()
            await self._held.withdraw(self._silent)

    def _keep_watch(self) -> None:
        """A peer that froze ends no stream, and whoever waits for it may know nobody who replaces it."""

        def lost(peer: PeerId, error: P2PMeshError) -> None:
            index = next(i for i, stage in enumerate(self.placement.stages) if stage.peer_id == peer)
            self._runner.post(coordination.StageFailed(index, error.code, error.message))

        stages = (_entry(self._parts.overlay, stage) for stage in self.placement.stages)
        peers = ((PeerId(entry.peer_id), entry.addresses) for entry in stages)
        self._watch = self._parts.vigils.watch(peers, lost, WATCH_AGAIN_S)

    async def _find_silent(self) -> None:
        """Which of the peers are gone; their connections end, so that nothing is placed there again."""
        stages = (_entry(self._parts.overlay, stage) for stage in self.placement.stages)
        self._silent = await self._parts.vigils.find_silent((PeerId(e.peer_id), e.addresses) for e in stages)
        for peer in self._silent:
            await self._parts.overlay.give_up(peer)

    async def leave(self) -> None:
        """Gives the run to its other peers, if it serves and none of its stages is here."""
        is_here = any(stage.peer_id == self._parts.overlay.own_peer for stage in self.placement.stages)
        if self._had_served and not is_here:
            self._held.is_run_over = False
            await self._held.withdraw()

    async def _follow_claim(self) -> None:
        loss = await self._held.lost()
        await self._runner.put(coordination.ClaimWasLost(loss.code, loss.text))

    async def _perform(self, effect: coordination.Effect) -> None:
        assert self._nursery is not None
        match effect:
            case coordination.StartLoad(index):
                self._nursery.start_soon(self._hold, index)
            case coordination.StartProbe():
                self._nursery.start_soon(self._probe)
            case coordination.StartPublish():
                self._nursery.start_soon(self._publish)
            case coordination.ReportServing():
                self.serves(self.placement)
                self._keep_watch()
                stages = [
                    {"peer_id": s.peer_id, "layers": [s.layers.start, s.layers.end]} for s in self.placement.stages
                ]
                facts = {"model": self._model.name, "run_id": self.run_id.hex(), "stages": stages}
                self._report("pipeline_ready", facts | {"predicted_tpot_us": self.predicted_tpot_us})
            case coordination.EndRun(code, text, index):
                self._parts.drivers.fail_run(self.run_id, PeerUnavailable(code, f"{text}; try again"))
                self._ending = RunEnding(code, text, index, self._had_served)
            case coordination.LeaveRun(code, text):
                self._held.is_run_over = False
                self._ending = RunEnding(code, text, None, self._had_served, is_left=True)

    # --- effects, each a task that posts its outcome ---------------------------------
    async def _hold(self, index: int) -> None:
        async def reported(status: StageStatus) -> None:
            if status.fingerprint:
                self._fingerprints[index] = status.fingerprint
            if status.decode_us:
                self._decode_us[index] = status.decode_us
            await self._runner.put(coordination.StageReported(index, _state_of(status)))

        try:
            load = await self._made_load_of(index)
            if load.stages[index].peer_id == (own := self._parts.overlay.own_peer):
                await self._parts.stages.follow(self._parts.stages.begin(load, own), reported)
            else:
                await self._hold_remote(load, reported)
        except P2PMeshError as error:
            if error.code is ErrorCode.PEER_LOST:
                await trio.sleep(SYMPTOM_WAIT_S)
            text = f"stage {index} on peer {self.placement.stages[index].peer_id}: {error.message}"
            await self._runner.put(coordination.StageFailed(index, error.code, text))

    async def _hold_remote(self, load: LoadStage, reported: Callable[[StageStatus], Awaitable[None]]) -> None:
        entry = load.stages[load.index]
        stream = await self._parts.overlay.open_exchange(PeerId(entry.peer_id), load, entry.addresses)
        try:
            await follow_statuses(stream, reported)
        finally:
            await stream.reset()

    async def _made_load_of(self, index: int) -> LoadStage:
        """The order; that it is still being made is progress, too: to cut a stage of a large model takes minutes."""

        async def tell() -> None:
            while True:
                await trio.sleep(TELL_AGAIN_S)
                await self._runner.put(coordination.StageReported(index, coordination.StageState.ASSIGNED))

        made: list[LoadStage] = []
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell)
                made.append(await self._load_of(index))
                nursery.cancel_scope.cancel()
        return made[0]

    async def _load_of(self, index: int) -> LoadStage:
        """The order to load a stage; its file is cut here first, so that a peer without the model can fetch it."""
        planned = self.placement.stages[index]
        artifact = await self._parts.store.cut(self._model, planned.layers)
        self._cut_digests.append(artifact.digest)
        transport = await _transport(self._parts, self._model, planned, artifact)
        self._given.update(Digest(fragment.digest) for fragment in transport.get("fragments", ()))
        ids = (self.run_id, self._held.claim.term)
        order = _order(self._parts, self._model, self._options, ids, self.placement, index, artifact)
        return replace(order, **transport)

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether the peer needs this file for its stage."""
        is_ours = digest in self._cut_digests or digest in self._given
        return is_ours and any(stage.peer_id == peer for stage in self.placement.stages)

    def _fingerprint(self) -> str:
        """Of the run, from what its stages told when they were up."""
        engines = [(s.layers, self._fingerprints.get(index, "")) for index, s in enumerate(self.placement.stages)]
        dtype = self._options.wire_dtype
        return coordination.run_fingerprint(engines, dtype.label, is_lossless=dtype is WireDtype.F32)

    async def _probe(self) -> None:
        try:
            await self._ask_driver(ProbeRun(self.run_id), ProbeResult, PROBE_TIMEOUT_S)
        except P2PMeshError as error:
            await self._runner.put(coordination.ProbeFailed(error.code, error.message))
        else:
            await self._runner.put(coordination.ProbeSucceeded())

    async def _publish(self) -> None:
        try:
            await self._held.note_serving()
            if self._held.is_lost:
                return  # the run is another's, or ends by that
            await self._ask_driver(PublishRun(self.run_id, self._fingerprint()), Done, PUBLISH_TIMEOUT_S)
        except P2PMeshError as error:
            await self._runner.put(coordination.PublishFailed(error.code, error.message))
        else:
            self._had_served = True
            self._serving_since = self._parts.clock.now()
            await self._runner.put(coordination.PublishSucceeded())

    async def _ask_driver(self, question: ProbeRun | PublishRun, answer: type, timeout_s: float) -> None:
        driver = self.placement.stages[0].peer_id
        if driver == self._parts.overlay.own_peer:
            if isinstance(question, ProbeRun):
                await self._parts.drivers.probe(question.run_id)
            else:
                self._parts.drivers.publish(question.run_id, question.fingerprint)
            return
        stream = await self._parts.overlay.open_exchange(driver, question)
        try:
            await stream.expect(answer, timeout_s)
        finally:
            await stream.reset()


async def follow_statuses(stream: MessageStream, reported: Callable[[StageStatus], Awaitable[None]]) -> None:
    """Hands on the states that a peer reports of its stage; raises why that ended."""
    timeout_s = STATUS_TIMEOUT_S
    while True:
        status = await stream.expect(StageStatus, timeout_s)
        await reported(status)
        if _state_of(status) is StageState.READY:
            timeout_s = SERVING_SILENCE_S


def _order(
    parts: CoordinatorParts,
    model: ModelFile,
    options: ServingOptions,
    ids: tuple[bytes, int],
    placement: Placement,
    index: int,
    artifact: StageArtifact,
) -> LoadStage:
    """``ids`` are those of the run and its term."""
    return LoadStage(
        run_id=ids[0],
        term=ids[1],
        model=model.name,
        model_digest=model.digest,
        model_bytes=model.size_bytes,
        layer_count=model.index.layer_count,
        index=index,
        stages=tuple(_entry(parts.overlay, stage) for stage in placement.stages),
        artifact_digest=artifact.digest,
        artifact_bytes=artifact.size_bytes,
        needed_bytes=placement.stages[index].needed_bytes,
        context_tokens=options.context_tokens,
        lanes=options.lanes,
        wire_dtype=options.wire_dtype,
    )


async def _transport(
    parts: CoordinatorParts, model: ModelFile, planned: PlannedStage, artifact: StageArtifact
) -> dict[str, Any]:
    """How the stage's file can be fetched; our own is not, and may be a whole model that would be read for it."""
    if planned.peer_id == parts.overlay.own_peer:
        return {}
    store = parts.store
    fragments = tuple(dict.fromkeys(await store.fragments_of(model, planned.layers)))
    entries = [FileEntry(f.digest, f.size_bytes, (await store.piece_list(f)).digest) for f in fragments]
    return {"pieces_digest": (await store.piece_list(artifact)).digest, "fragments": tuple(entries)}


def _entry(overlay: Overlay, stage: PlannedStage) -> StageEntry:
    known = overlay.board.own() if stage.peer_id == overlay.own_peer else overlay.board.find(stage.peer_id)
    return StageEntry(stage.peer_id, stage.layers.start, stage.layers.end, known.addresses if known else ())


def _state_of(status: StageStatus) -> StageState:
    with suppress(ValueError):
        return StageState(status.state)
    return StageState.FAILED


def _ranges(placement: Placement) -> list[dict[str, object]]:
    return [{"peer_id": stage.peer_id, "layers": [stage.layers.start, stage.layers.end]} for stage in placement.stages]


def describe_placement(model: str, placement: Placement) -> dict[str, object]:
    """As event fields: the stages, and what a step is predicted to take."""
    stages = [
        {**ranges, "needed_bytes": stage.needed_bytes, "free_bytes": stage.free_bytes}
        for ranges, stage in zip(_ranges(placement), placement.stages, strict=True)
    ]
    estimate = placement.estimate
    return {
        "model": model,
        "stages": stages,
        "predicted_tpot_us": estimate.tpot_us,
        "estimated_decode_network_ms_per_token": estimate.estimated_decode_network_ms_per_token,
        "decode_tpot_target_met": estimate.decode_tpot_target_met,
    }


def _refused(model: ModelFile, refusal: PlacementRefusal) -> P2PMeshError:
    return Refused(ErrorCode.PLACEMENT_REFUSED, f"{model.name} cannot be placed: {refusal.text}")


def _planning_model(model: ModelFile, options: ServingOptions) -> PlanningModel:
    """The planner's view of a model at this context and these lanes; explicit cuts leave it no others."""
    shape = (options.context_tokens, options.lanes)
    return planning_model(model.index, [shape], options.cuts, options.wire_dtype, options.clearance)


def check_split(model: ModelFile, options: ServingOptions) -> None:
    """Raises early, with the family's reason, if a wanted split can never be."""
    permitted = permitted_cuts(model.index)
    for start, end in pairwise((0, *options.cuts, model.index.layer_count)):
        if not start < end <= model.index.layer_count:
            last = model.index.layer_count - 1
            text = f"--cuts {','.join(map(str, options.cuts))}: give layers of 1 to {last}, each above the one before"
            raise ConfigError(ErrorCode.CUT_UNSUPPORTED, text)
        check_range(model.index, LayerRange(start, end))
    if options.stage_count not in (None, 1) and not permitted:
        check_range(model.index, LayerRange(0, 1))
        raise ConfigError(ErrorCode.CUT_UNSUPPORTED, f"{model.name} must stay whole; leave --split at auto")
