"""One run of a placement under way: what ``core.coordination.RunMachine`` decides is carried out here.

Owns the load streams of the stages, the probe, the publication, and the watch over a run that serves. Which placement
is tried next when a run ends is ``node.coordinator``'s. Stages of this node are held as those of any other peer, only
without a stream in between.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import coordination
from p2pmesh.core.coordination import StageState
from p2pmesh.core.planning.outcome import MeasuredRun, Placement, StepEstimate
from p2pmesh.node.artifacts import TELL_AGAIN_S
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.claims import Claims, HeldClaim
from p2pmesh.node.driver import Drivers
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.hop_costs import HopCosts
from p2pmesh.node.links import Links
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.predictions import describe_sum
from p2pmesh.node.profiles import Profiles
from p2pmesh.node.reporting import Report
from p2pmesh.node.runner import MachineRunner
from p2pmesh.node.stage_orders import Orders, stage_addresses
from p2pmesh.node.stages import Stages
from p2pmesh.node.vigil import Vigils, Watch
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.models import ModelStore
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.runs import LoadStage, ProbeResult, ProbeRun, PublishRun, StageStatus
from p2pmesh.wire.stage import WireDtype

STATUS_TIMEOUT_S = 150.0
"""Above the run machine's own patience, which ends a silent load first."""
SERVING_SILENCE_S = 365 * 24 * 3600.0
PROBE_TIMEOUT_S = 130.0
PUBLISH_TIMEOUT_S = 15.0
SYMPTOM_WAIT_S = 0.3
"""A stage that only lost its neighbour waits this long with saying so, because the neighbour itself may know why."""
WATCH_AGAIN_S = 2.0
LET_GO_S = 2.0
SETTLE_S = 45.0
"""From then on links between other peers have been announced twice."""
_Answer = TypeVar("_Answer", ProbeResult, Done)


@dataclass(frozen=True, slots=True)
class CoordinatorParts:
    """What a coordinator and its runs stand on."""

    overlay: Overlay
    store: ModelStore
    stages: Stages
    drivers: Drivers
    clock: Clock
    entropy: Entropy
    links: Links
    claims: Claims
    vigils: Vigils
    profiles: Profiles
    hop_costs: HopCosts


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


class StagesTold:
    """What the peers of a run's stages measured and told when these were up."""

    def __init__(self, ranges: Sequence[LayerRange]) -> None:
        self._ranges = ranges
        self._fingerprints: dict[int, str] = {}
        self._decode_us: dict[int, int] = {}
        self.ring_us = 0
        """A step through all of them; 0 where none was timed."""

    def note(self, index: int, status: StageStatus) -> None:
        """A stage reported."""
        if status.fingerprint:
            self._fingerprints[index] = status.fingerprint
        if status.decode_us:
            self._decode_us[index] = status.decode_us

    @property
    def measured(self) -> MeasuredRun | None:
        """What a token takes; None where not all engines measured it."""
        if len(self._decode_us) < len(self._ranges):
            return None
        return MeasuredRun(tuple(self._decode_us[index] for index in sorted(self._decode_us)), self.ring_us)

    def fingerprint(self, dtype: WireDtype) -> str:
        """Of the run, whose activations travel as ``dtype``."""
        engines = [(layers, self._fingerprints.get(index, "")) for index, layers in enumerate(self._ranges)]
        return coordination.run_fingerprint(engines, dtype.label, is_lossless=dtype is WireDtype.F32)


class LeavingStages:
    """Stages of a run that serves whose peers are about to go, each with what lets its peer go."""

    def __init__(self) -> None:
        self._let_go: dict[int, Callable[[], Awaitable[None]]] = {}

    def note(self, index: int, let_go: Callable[[], Awaitable[None]]) -> None:
        """A peer says that it leaves, and waits for somebody to take over."""
        self._let_go[index] = let_go

    async def let_go(self) -> None:
        """Nobody takes over: they need not wait for that."""
        leaving, self._let_go = self._let_go, {}
        for let_go in leaving.values():
            with trio.move_on_after(LET_GO_S), suppress(P2PMeshError):
                await let_go()


class Run:
    """One attempt at one placement."""

    def __init__(
        self, parts: CoordinatorParts, orders: Orders, placement: Placement, report: Report, held: HeldClaim
    ) -> None:
        self.placement = placement
        self.serves: Callable[[Placement], None] = lambda placement: None
        """Told once requests are routed to it."""
        self.estimate: Callable[[MeasuredRun | None], StepEstimate] = lambda measured: placement.estimate
        """What a token takes by what is known now, and by what was measured of this run."""
        self.settled: Callable[[StepEstimate], None] = lambda predicted: None
        """Told some time later what a token is predicted to take, if its steps were timed: by then links are known."""
        self.leaves: Callable[[PeerId], None] = lambda peer: None
        """Told, while it serves, that the peer of a stage is about to go."""
        self._leaving = LeavingStages()
        self.probe_steps = 0
        """How many tokens are timed before anybody is served."""
        self._held = held
        self._parts = parts
        self._orders = orders
        self._report = report
        self._machine = coordination.RunMachine(
            len(placement.stages), stage_bytes=[stage.needed_bytes for stage in placement.stages]
        )
        self._runner: MachineRunner[coordination.Event, coordination.Effect] = MachineRunner(
            self._machine, parts.clock, self._perform, coordination.DeadlinePassed()
        )
        self._nursery: trio.Nursery | None = None
        self._ending: RunEnding | None = None
        self._serving_since: Micros | None = None
        self._watch: Watch | None = None
        self._told = StagesTold([stage.layers for stage in placement.stages])

    @property
    def run_id(self) -> bytes:
        """128 random bits."""
        return self._held.claim.run_id

    @property
    def phase(self) -> coordination.RunPhase:
        """Where the run stands."""
        return self._machine.phase

    @property
    def predicted(self) -> StepEstimate:
        """What a token is predicted to take."""
        return self.estimate(self._told.measured)

    @property
    def planned(self) -> StepEstimate:
        """What a plan that is made now would predict for these stages."""
        return self.estimate(None)

    async def _settle(self) -> None:
        await trio.sleep(SETTLE_S)
        if self._told.ring_us:
            self.settled(self.predicted)

    @property
    def _had_served(self) -> bool:
        return self._serving_since is not None

    def described_stages(self) -> list[dict[str, object]]:
        """Peers and layer ranges, as plain values."""
        return ranges_of(self.placement)

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether the peer needs this file for its stage."""
        return self._orders.gives(digest) and any(stage.peer_id == peer for stage in self.placement.stages)

    async def serve(self) -> RunEnding:
        """Loads, proves, publishes, watches; returns once the run is over and its stages are told."""
        silent: tuple[PeerId, ...] = ()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._runner.post(coordination.RunStarted())
                nursery.start_soon(self._follow_claim)
                await self._runner.run(lambda: self._ending is not None)
                silent = await self._give_back()
                nursery.cancel_scope.cancel()
        finally:
            self._orders.release()
        assert self._ending is not None
        now = self._parts.clock.now()
        served_us = now - self._serving_since if self._serving_since is not None else 0
        return replace(self._ending, served_s=served_us / MICROS_PER_SECOND, silent=silent)

    async def _give_back(self) -> tuple[PeerId, ...]:
        """Frees what is whole of a run that served, at once: the next one is about to ask for it. Who is silent."""
        if self._watch is not None:
            self._watch.end()
        if not self._had_served or self._ending is None or self._ending.is_left:
            return ()
        silent = await self._find_silent()
        await self._held.withdraw(silent)
        return silent

    def _keep_watch(self) -> None:
        """A peer that froze ends no stream, and whoever waits for it may know nobody who replaces it."""

        def lost(peer: PeerId, error: P2PMeshError) -> None:
            index = next(i for i, stage in enumerate(self.placement.stages) if stage.peer_id == peer)
            self._runner.post(coordination.StageFailed(index, error.code, error.message))

        stages = stage_addresses(self._parts.overlay, self.placement)
        self._watch = self._parts.vigils.watch(stages, lost, WATCH_AGAIN_S)

    async def _find_silent(self) -> tuple[PeerId, ...]:
        """Which of the peers are gone; their connections end, so that nothing is placed there again."""
        overlay = self._parts.overlay
        silent = await self._parts.vigils.find_silent(stage_addresses(overlay, self.placement))
        for peer in silent:
            await overlay.give_up(peer)
        return silent

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self._orders.name

    def give_up(self, code: ErrorCode, text: str) -> None:
        """Ends the run by no fault of its stages."""
        self._runner.post(coordination.RunGivenUp(code, text))

    async def let_go(self) -> None:
        """Nobody takes over from the peers that are about to go: they need not wait for that."""
        await self._leaving.let_go()

    @property
    def is_here(self) -> bool:
        """Whether a stage of it is on this node."""
        return any(stage.peer_id == self._parts.overlay.own_peer for stage in self.placement.stages)

    async def leave(self) -> None:
        """Gives the run to its other peers, if it serves and none of its stages is here."""
        if self._had_served and not self.is_here:
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
                facts = {
                    "model": self._orders.name,
                    "run_id": self.run_id.hex(),
                    "stages": self.described_stages(),
                }
                self._nursery.start_soon(self._settle)
                self._report("pipeline_ready", facts | describe_sum(self.predicted))
            case coordination.EndRun(code, text, index):
                self._parts.drivers.fail_run(self.run_id, PeerUnavailable(code, f"{text}; try again"))
                self._ending = RunEnding(code, text, index, self._had_served)
            case coordination.LeaveRun(code, text):
                self._held.is_run_over = False
                self._ending = RunEnding(code, text, None, self._had_served, is_left=True)

    # --- effects, each a task that posts its outcome ---------------------------------
    async def _hold(self, index: int) -> None:
        try:
            load = await self._made_load_of(index)
            if load.stages[index].peer_id == (own := self._parts.overlay.own_peer):
                held = self._parts.stages.begin(load, own)

                async def let_go() -> None:
                    held.let_go()

                await self._parts.stages.follow(held, partial(self._note_status, index, let_go))
            else:
                await self._hold_remote(load)
        except P2PMeshError as error:
            if error.code is ErrorCode.PEER_LOST:
                await trio.sleep(SYMPTOM_WAIT_S)
            text = f"stage {index} on peer {self.placement.stages[index].peer_id}: {error.message}"
            await self._runner.put(coordination.StageFailed(index, error.code, text))

    async def _note_status(self, index: int, let_go: Callable[[], Awaitable[None]], status: StageStatus) -> None:
        self._told.note(index, status)
        state = _state_of(status)
        if state is StageState.LEAVING and self.phase is coordination.RunPhase.SERVING:
            self._leaving.note(index, let_go)
            self.leaves(self.placement.stages[index].peer_id)
        await self._runner.put(coordination.StageReported(index, state))

    async def _hold_remote(self, load: LoadStage) -> None:
        entry = load.stage
        stream = await self._parts.overlay.open_exchange(PeerId(entry.peer_id), load, entry.addresses)
        try:
            await follow_statuses(stream, partial(self._note_status, load.index, partial(stream.send, Done())))
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
                made.append(await self._orders.make(self.placement, index, (self.run_id, self._held.claim.term)))
                nursery.cancel_scope.cancel()
        return made[0]

    async def _probe(self) -> None:
        try:
            await self._probe_driver(ProbeRun(self.run_id, self.probe_steps))
        except P2PMeshError as error:
            await trio.sleep(SYMPTOM_WAIT_S)  # the stage that broke says so itself, and why
            await self._runner.put(coordination.ProbeFailed(error.code, error.message))
        else:
            await self._runner.put(coordination.ProbeSucceeded())

    async def _publish(self) -> None:
        try:
            await self._held.note_serving()
            if self._held.is_lost:
                return  # the run is another's, or ends by that
            fingerprint = self._told.fingerprint(self._orders.options.wire_dtype)
            predicted_us = self.predicted.tpot_us if self._told.measured is not None else 0
            await self._publish_driver(PublishRun(self.run_id, fingerprint, predicted_us))
        except P2PMeshError as error:
            await self._runner.put(coordination.PublishFailed(error.code, error.message))
        else:
            self._serving_since = self._parts.clock.now()
            await self._runner.put(coordination.PublishSucceeded())

    async def _probe_driver(self, question: ProbeRun) -> None:
        if self._is_driver_here:
            result = await self._parts.drivers.probe(question.run_id, question.steps)
        else:
            result = await self._ask_driver(question, ProbeResult, PROBE_TIMEOUT_S)
        self._told.ring_us = result.step_us

    async def _publish_driver(self, question: PublishRun) -> None:
        if self._is_driver_here:
            self._parts.drivers.publish(question)
        else:
            await self._ask_driver(question, Done, PUBLISH_TIMEOUT_S)

    @property
    def _is_driver_here(self) -> bool:
        return self.placement.stages[0].peer_id == self._parts.overlay.own_peer

    async def _ask_driver(self, question: ProbeRun | PublishRun, answer: type[_Answer], timeout_s: float) -> _Answer:
        stream = await self._parts.overlay.open_exchange(self.placement.stages[0].peer_id, question)
        try:
            return await stream.expect(answer, timeout_s)
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


def _state_of(status: StageStatus) -> StageState:
    with suppress(ValueError):
        return StageState(status.state)
    return StageState.FAILED


def ranges_of(placement: Placement) -> list[dict[str, object]]:
    """Peers and layer ranges, as event fields."""
    return [{"peer_id": stage.peer_id, "layers": [stage.layers.start, stage.layers.end]} for stage in placement.stages]
