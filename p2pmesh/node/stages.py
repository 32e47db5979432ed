"""Stages on this node: loading one, holding it as long as its run is anybody's, and the memory they take.

A stage that loads lives as long as its coordinator follows it: by a task on the coordinator's own node, by the stream
of ``LoadStage`` on any other. Once its run serves it lives as long as the claim on the run (``node.claims``), whoever
coordinates it: a coordinator's death ends no request. The engine of a stage that ended whole may wait for another
(``node.engine_shelf``).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from p2pmesh.base.errors import (
    ConfigError,
    ErrorCode,
    P2PMeshError,
    PeerUnavailable,
    Refused,
    RemoteProtocolError,
)
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.base.quantities import format_size
from p2pmesh.core.coordination import StageState
from p2pmesh.core.owner_wishes import ANYTHING, OwnerWishes
from p2pmesh.node.artifacts import TELL_AGAIN_S, Artifacts
from p2pmesh.node.changes import Changes
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.claims import Claims
from p2pmesh.node.driver import Drivers
from p2pmesh.node.engine_shelf import MAX_WAITING, EngineShelf
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.run_table import MAX_RUNS, RunTable
from p2pmesh.node.speeds import Speeds
from p2pmesh.node.stage_fetching import StageFetching, telling
from p2pmesh.node.stage_run import StageRun
from p2pmesh.node.standby_room import StandbyRoom
from p2pmesh.node.vigil import Vigils
from p2pmesh.ports.engine import EngineFacts, EngineLauncher, EngineSpec
from p2pmesh.ports.models import ModelStore, StageArtifact
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.runs import FollowStage, LoadStage, StageStatus
from p2pmesh.wire.stage import WireDtype

ReportStatus = Callable[[StageStatus], Awaitable[None]]
MAX_LOADING = 4
RELEASE_S = 3.0
"""A stage that is ending gives its memory and its engine back within this time."""
IDLE_FOREVER_S = 365 * 24 * 3600.0
"""The coordinator says nothing more on a load stream; only its end means something."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """What stages are made with."""

    store: ModelStore
    artifacts: Artifacts
    launcher: EngineLauncher
    table: RunTable
    drivers: Drivers
    claims: Claims
    speeds: Speeds
    vigils: Vigils


class HeldStage:
    """One stage here; any number of followers hear its states, the last one first heard."""

    def __init__(self, load: LoadStage, source: PeerId) -> None:
        self.load = load
        self.source = source
        self.scope = trio.CancelScope()
        self.followers = 0
        self.has_served = False
        self._is_let_go = False
        self.is_leaving = False
        """Whether its coordinator is being asked to load it elsewhere."""
        self.cause: P2PMeshError | None = None
        self._states: list[tuple[int, StageStatus]] = []
        self._noted = 0
        self._is_over = False
        self._changes = Changes()

    @property
    def layers(self) -> LayerRange:
        """Of the model."""
        return self.load.layers

    @property
    def is_ready(self) -> bool:
        """Whether frames are taken."""
        ready = (StageState.READY, StageState.LEAVING)
        return not self._is_over and bool(self._states) and self._states[-1][1].state in ready

    async def note(self, status: StageStatus) -> None:
        """A state holds from now on; of the progress of a download only the newest is kept."""
        if self._states and self._states[-1][1].state == status.state:
            self._states.pop()
        self._noted += 1
        self._states.append((self._noted, status))
        self._changes.mark()

    def let_go(self) -> None:
        """Its coordinator has nobody who takes it over."""
        self._is_let_go = True
        self._changes.mark()

    async def hand_over(self, leaving: StageStatus) -> None:
        """Says that this peer is about to go; until the stage is over, or its coordinator lets it go."""
        self.is_leaving = True
        try:
            await self.note(leaving)
            while not self._is_over and not self._is_let_go and self.followers:
                await self._changes.wait_beyond(self._changes.count)
        finally:
            self.is_leaving = False

    def stay(self) -> None:
        """Nobody takes it over, and it does not go after all: whoever follows it from now on hears no word of that."""
        self._is_let_go = False
        if self._states and self._states[-1][1].state == StageState.LEAVING:
            self._states.pop()

    def end(self) -> None:
        """No state follows."""
        self._is_over = True
        self._changes.mark()

    async def follow(self, report_status: ReportStatus) -> None:
        """Every state since the order, then each new one; raises why the stage ended."""
        told = 0
        while True:
            seen = self._changes.count
            for number, status in tuple(self._states):
                if number > told:
                    told = number
                    await report_status(status)
            if self._is_over:
                raise self.cause or Refused(ErrorCode.MODEL_NOT_READY, "the stage was stopped; try again")
            await self._changes.wait_beyond(seen)


class Stages:
    """Loads and holds stages within ``memory_bytes``."""

    def __init__(
        self,
        overlay: Overlay,
        parts: StageParts,
        memory_bytes: int,
        report: Report,
        wishes: OwnerWishes = ANYTHING,
    ) -> None:
        self._overlay = overlay
        self.wishes = wishes
        self._parts = parts
        self._memory_bytes = memory_bytes
        self._closed = ""
        self._reserved_bytes = 0
        self._released = Changes()
        self._shelf = EngineShelf(parts.launcher, lambda: self.free_bytes)
        self._standbys = StandbyRoom(MAX_WAITING, MAX_LOADING)
        self._holds = 0
        self._held: dict[bytes, HeldStage] = {}
        self._nursery: trio.Nursery | None = None
        self.used: Callable[[str, str, int], None] = lambda peer, model, tokens: None
        """Told of tokens that passed a stage here that is not the first: whose run, of which model, how many."""
        self.takes_spares: Callable[[], bool] = lambda: True
        """Asked before an engine may wait here in case."""
        self.takes_stage: Callable[[str], bool] = lambda model: True
        """Asked before another coordinator's stage of a model is loaded here."""
        self._is_going = False
        self._report = report
        self._fetching = StageFetching(parts.artifacts, parts.store)
        parts.claims.room_for = self._room_for
        overlay.serve_exchange(LoadStage, self._serve_load)
        overlay.serve_exchange(FollowStage, self._serve_follow)

    @property
    def decode_bytes_per_s(self) -> int:
        """Weights that an engine here reads in a second of decoding, as measured at a load; 0 before."""
        return self._parts.speeds.headline

    @property
    def is_leaving(self) -> bool:
        """Whether stages here are handed over, and none is taken: the node stops, or its owner takes it back."""
        return self._is_going or bool(self._closed)

    @property
    def memory_bytes(self) -> int:
        """What is offered now."""
        return self._memory_bytes

    @property
    def reserved_bytes(self) -> int:
        """What stages here take, or are about to."""
        return self._reserved_bytes

    @property
    def held_layers(self) -> int:
        """Layers of all stages here, loading ones included."""
        return sum(len(held.layers) for held in self._held.values())

    @property
    def is_holding(self) -> bool:
        """Whether any stage is here, or loads."""
        return bool(self._held)

    @property
    def released(self) -> Changes:
        """Marked when a stage has gone."""
        return self._released

    async def offer(self, memory_bytes: int, closed: str = "") -> None:
        """Offers so much from now on, and says so; ``closed`` is why nothing is taken. Stages that are here stay."""
        self._memory_bytes, self._closed = memory_bytes, closed
        self._overlay.board.offer(memory_bytes, self.free_bytes, self.wishes.max_layers or 0)
        await self._shelf.make_room(0)

    def unwanted(self) -> tuple[HeldStage, ...]:
        """Stages that the owner allows no more: those of no wish, and the largest until the others fit the offer."""
        found: list[HeldStage] = []
        over_bytes = self._reserved_bytes - self._memory_bytes
        for held in sorted(self._held.values(), key=lambda one: (-one.load.reserved_bytes, one.load.run_id)):
            is_refused = self._closed or self.wishes.refusal(held.load.model, held.load.model_digest, held.layers)
            if is_refused or over_bytes > 0:
                found.append(held)
                over_bytes -= held.load.reserved_bytes
        return tuple(found)

    def end_unwanted(self, cause: P2PMeshError) -> None:
        """They end now, whoever uses them."""
        for held in self.unwanted():
            held.cause = held.cause or cause
            held.scope.cancel()

    async def hand_over_unwanted(self) -> None:
        """Returns when they are over, or nobody takes them over; its caller sets the deadline."""
        await self._hand_over(self.unwanted())

    @property
    def free_bytes(self) -> int:
        """Memory that no stage has reserved, and no promise keeps for one."""
        if self.is_leaving:
            return 0
        return self._memory_bytes - self._reserved_bytes - self._parts.claims.reserved_bytes

    def _room_for(self, model: str) -> int:
        """What a stage of a model may take; that of the run before it will have ended by then."""
        if self.is_leaving:
            return 0
        own_bytes = (held.load.reserved_bytes for held in self._held.values() if held.load.model_digest == model)
        return self._memory_bytes - self._reserved_bytes + sum(own_bytes)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Holds stages until cancelled, and stops those that are nobody's any more."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._shelf.run)
            task_status.started()
            try:
                await self._keep_stopping()
            finally:
                self._nursery = None  # whoever asks a node that ends is refused

    async def _keep_stopping(self) -> None:
        while True:
            seen = self._parts.claims.changes.count
            for held in tuple(self._held.values()):
                self._stop_if_nobodys(held)
            await self._parts.claims.changes.wait_beyond(seen)

    @property
    def spare_bytes(self) -> int:
        """What engines take that wait for stages which may come."""
        return self._shelf.waiting_bytes

    async def drop_waiting_engines(self, ended_model: str = "") -> None:
        """Memory is low: no engine is kept for a stage that may come, that of a model whose run is ending included."""
        with trio.move_on_after(RELEASE_S):
            while self.has_stage_of(ended_model):
                await self._released.wait_beyond(self._released.count)
        await self._shelf.make_room(self._memory_bytes + 1)

    async def hand_over(self) -> None:
        """Takes no stage any more; returns when those here are over, or nobody takes them over.

        Their coordinators load them elsewhere first where they can. Its caller sets the deadline.
        """
        self._is_going = True
        self._overlay.board.change_own(free_bytes=self.free_bytes)
        await self._hand_over(tuple(self._held.values()))

    def lent(self) -> tuple[HeldStage, ...]:
        """Stages that are up, of runs that other peers coordinate."""
        claims, own = self._parts.claims, self._overlay.own_peer
        coordinators = (
            (held, claims.coordinator_of(held.load.model_digest, held.load.run_id))
            for held in self._held.values()
            if held.is_ready
        )
        return tuple(held for held, coordinator in coordinators if coordinator not in (None, own))

    async def hand_over_one(self, held: HeldStage) -> bool:
        """Whether its coordinator has loaded it elsewhere; otherwise it stays. Its caller sets the deadline."""
        try:
            await self._hand_over((held,))
        finally:
            if not self.is_leaving:
                held.stay()
        return self._held.get(held.load.run_id) is not held

    async def _hand_over(self, stages: tuple[HeldStage, ...]) -> None:
        async with trio.open_nursery() as nursery:
            for held in stages:
                nursery.start_soon(held.hand_over, _status(held.load, StageState.LEAVING))

    def begin(self, load: LoadStage, source: PeerId) -> HeldStage:
        """Starts to load a stage; raises why it may not be. Whoever began it follows it, or it ends."""
        self._check_order(load)
        self._parts.claims.check(source, load.model_digest, load.run_id, load.term)
        if source != self._overlay.own_peer and not self.takes_stage(load.model):
            text = "little memory is left on this peer, and the model has just had to leave it; place it on another"
            raise Refused(ErrorCode.PLACEMENT_REFUSED, text)
        if load.run_id in self._held:
            raise Refused(ErrorCode.NOT_IN_PLACEMENT, "this peer holds a stage of that run already")
        if self._nursery is None:
            raise Refused(ErrorCode.MODEL_NOT_READY, "this peer takes no stages yet; try again")
        held = self._held[load.run_id] = HeldStage(load, source)
        self._nursery.start_soon(self._keep, held)
        return held

    def _check_order(self, load: LoadStage) -> None:
        """It is for this peer, which stays, and within what our owner gives."""
        if load.stage.peer_id != self._overlay.own_peer:
            raise RemoteProtocolError(ErrorCode.NOT_IN_PLACEMENT, "the stage to load is another peer's")
        if self._closed:
            raise Refused(ErrorCode.PLACEMENT_REFUSED, self._closed)
        if self.is_leaving:
            raise Refused(ErrorCode.SHUTTING_DOWN, "this peer is leaving; place the stage on another")
        refusal = self.wishes.refusal(load.model, load.model_digest, load.layers)
        if refusal is not None:
            raise Refused(ErrorCode.PLACEMENT_REFUSED, refusal)

    def has_stage_of(self, model: str) -> bool:
        """Whether some run of a model has a stage here, whoever coordinates it."""
        return any(held.load.model == model for held in self._held.values())

    def find(self, run_id: bytes) -> HeldStage | None:
        """The stage of a run here."""
        return self._held.get(run_id)

    async def follow(self, held: HeldStage, report_status: ReportStatus) -> None:
        """Reports the states of a stage until it ends, and raises why; leaving earlier may leave it to nobody."""
        held.followers += 1
        try:
            with unwrapped():
                await held.follow(report_status)
        finally:
            held.followers -= 1
            self._stop_if_nobodys(held)

    def _stop_if_nobodys(self, held: HeldStage) -> None:
        """A run that serves is its claim's; another is its coordinator's, as long as that follows it."""
        claims, load = self._parts.claims, held.load
        if claims.is_kept(load.model_digest, load.run_id):
            held.has_served = True
            return
        coordinator = claims.coordinator_of(load.model_digest, load.run_id)
        if held.has_served or not held.followers or coordinator is None:
            held.scope.cancel()

    async def _keep(self, held: HeldStage) -> None:
        """One stage, from its order to its end. Its errors are told, and are its followers'."""
        try:
            with held.scope, unwrapped():
                await self._hold(held)
        except P2PMeshError as error:
            held.cause = held.cause or error
            fields = _stage_fields(held.load) | {"code": error.code.value, "message": error.message}
            self._report("stage_failed", fields)
        finally:
            del self._held[held.load.run_id]
            self._released.mark()
            held.end()
            self._parts.claims.note_stage_ended(held.load.model_digest, held.load.run_id)

    async def _hold(self, held: HeldStage) -> None:
        load, source, report_status = held.load, held.source, held.note
        with self._counted():
            await self._wait_for_run_before(load)
            self._parts.claims.note_stage_begun(load.model_digest, load.run_id)
            async with self._reserve(load.reserved_bytes):
                artifact = await self._obtain(load, source, report_status)
                try:
                    await self._check_memory(load, artifact)
                    await report_status(_status(load, StageState.LOADING))
                    with self._loading(load, report_status) as loaded:
                        await self._run(held, artifact, loaded)
                finally:
                    self._parts.store.release(artifact.digest)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Holds are counted from the first moment; of those that are not up yet only a few may go on at a time."""
        up = len(self._parts.table.runs())
        if self._holds >= MAX_RUNS or self._holds - up >= MAX_LOADING:
            text = f"this peer holds {up} stages and loads {self._holds - up}; try again later"
            raise Refused(ErrorCode.OVERLOADED, text)
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    async def _wait_for_run_before(self, load: LoadStage) -> None:
        """The stage of a run that this one replaces gives its engine back first."""
        with trio.move_on_after(RELEASE_S):
            while any(
                held.load.model_digest == load.model_digest and held.load.run_id != load.run_id
                for held in self._held.values()
            ):
                await self._released.wait_beyond(self._released.count)

    async def _check_memory(self, load: LoadStage, artifact: StageArtifact) -> None:
        """What a coordinator says a stage needs is not believed: the file itself tells."""
        needed = await self._parts.store.stage_memory_bytes(artifact, load.context_tokens, load.lanes)
        reserved = load.reserved_bytes
        if needed > reserved:
            text = f"the stage needs {format_size(needed)}, its coordinator asked for {format_size(reserved)}"
            raise Refused(ErrorCode.PLACEMENT_REFUSED, text)

    @contextmanager
    def _loading(self, load: LoadStage, report_status: ReportStatus) -> Iterator[trio.CancelScope]:
        """Says from time to time that the stage still loads, until what it gives is cancelled."""
        assert self._nursery is not None
        scope = trio.CancelScope()

        async def tell() -> None:
            with scope:
                while True:
                    await trio.sleep(TELL_AGAIN_S)
                    if scope.cancel_called:  # in the very moment in which the time was up
                        return
                    await report_status(_status(load, StageState.LOADING))

        self._nursery.start_soon(tell)
        try:
            yield scope
        finally:
            scope.cancel()

    async def _run(self, held: HeldStage, artifact: StageArtifact, loaded: trio.CancelScope) -> None:
        load = held.load
        spec, size_bytes = _spec_of(load, artifact), load.reserved_bytes
        if not self._shelf.has(spec):
            await self._shelf.make_room(0)
        async with self._shelf.borrow(spec, size_bytes) as engine:
            loaded.cancel()
            await self._note_speed(artifact, load, engine.facts)
            driver = await self._parts.drivers.prepare(load, engine)
            deliver = driver.deliver if driver else _drop
            run = StageRun(load, engine, self._overlay, deliver, self._report, self._parts.vigils)

            if driver is None:
                run.used = partial(self.used, load.stages[0].peer_id, load.model)

            async def ready() -> None:
                if driver is not None:
                    driver.attach(run)
                facts = engine.facts
                self._report(
                    "stage_ready", _stage_fields(load) | {"exact_width": facts.exact_width, "notes": facts.notes}
                )
                await held.note(_ready_status(load, facts))

            cause: P2PMeshError = Refused(ErrorCode.MODEL_NOT_READY, "the stage was stopped; try again")
            self._parts.table.add(run)
            try:
                await run.run(ready)
            except P2PMeshError as error:
                cause = held.cause = error
                held.end()  # before the engine is ended: who lost only its neighbour must not be heard first
                raise
            finally:
                self._parts.table.remove(run)
                if driver is not None:
                    self._parts.drivers.remove(driver, cause)

    async def _stand_by(self, load: LoadStage, source: PeerId, report_status: ReportStatus) -> None:
        """An engine that waits for the stage, should its peer be lost; only where there is room that nobody wants."""
        self._check_order(load)
        size_bytes = load.reserved_bytes
        if not self.takes_spares():
            raise Refused(
                ErrorCode.PLACEMENT_REFUSED, "little memory is left on this peer: it keeps no spare engine; ask another"
            )
        if self._shelf.waiting_bytes + size_bytes > self.free_bytes:
            raise Refused(ErrorCode.PLACEMENT_REFUSED, "there is no room for a spare engine here")

        with self._standbys.taken_for(source) as is_up:

            async def ready() -> None:
                is_up.set()
                await report_status(_status(load, StageState.READY))

            artifact = await self._obtain(load, source, report_status)
            try:
                await self._check_memory(load, artifact)
                await self._shelf.keep_ready(_spec_of(load, artifact), size_bytes, ready)
            finally:
                self._parts.store.release(artifact.digest)

    async def _obtain(self, load: LoadStage, source: PeerId, report_status: ReportStatus) -> StageArtifact:
        """The stage file: cut from a local model of the same digest, from the cache, or from peers."""

        async def obtain(report: ReportStatus) -> StageArtifact:
            await report(_status(load, StageState.ASSIGNED))
            return await self._find_or_fetch(load, source, report)

        return await telling(report_status, obtain, self._parts.store)

    async def _find_or_fetch(self, load: LoadStage, source: PeerId, report_status: ReportStatus) -> StageArtifact:
        store = self._parts.store
        why_not: P2PMeshError = Refused(
            ErrorCode.ARTIFACT_UNKNOWN, "the stage file is not here, and its coordinator does not give it"
        )
        try:
            cut = await self._cut_here(load)
        except (ConfigError, Refused) as error:  # a file that changed, a full disk: what peers give may yet do
            cut, why_not = None, error
        if cut is not None:
            return cut
        cached = await store.find_artifact(Digest(load.artifact_digest))
        if cached is not None:
            return cached
        if load.pieces_digest is None:
            raise why_not
        self._report("stage_loading", _stage_fields(load) | {"bytes": load.artifact_bytes, "source": source})
        artifact, counts = await self._fetching.fetch(load, source, report_status)
        self._report("stage_fetched", _stage_fields(load) | counts.as_fields())
        return artifact

    async def _cut_here(self, load: LoadStage) -> StageArtifact | None:
        """The stage file out of a model of this machine, if there is one and it gives that file."""
        store = self._parts.store
        model = await store.find_by_digest(Digest(load.model_digest), load.model_bytes)
        if model is None:
            return None
        artifact = await store.cut(model, load.layers)
        if artifact.digest == load.artifact_digest:
            return artifact
        store.release(artifact.digest)
        return None

    async def _note_speed(self, artifact: StageArtifact, load: LoadStage, facts: EngineFacts) -> None:
        """What a stage's engine took says how fast this peer is with models of that kind."""
        if facts.decode_us:
            is_last = load.index == len(load.stages) - 1
            reads = await self._parts.store.stage_reads(artifact, is_last=is_last)
            self._parts.speeds.note(reads, facts)

    @asynccontextmanager
    async def _reserve(self, needed_bytes: int) -> AsyncIterator[None]:
        with trio.move_on_after(RELEASE_S):
            while needed_bytes > self.free_bytes and self._reserved_bytes:
                await self._released.wait_beyond(self._released.count)
        if needed_bytes > self.free_bytes:
            text = f"the stage needs {format_size(needed_bytes)}, {format_size(self.free_bytes)} are free on this peer"
            raise Refused(ErrorCode.PLACEMENT_REFUSED, text)
        self._reserved_bytes += needed_bytes
        self._overlay.board.change_own(free_bytes=self.free_bytes)
        try:
            yield
        finally:
            self._reserved_bytes -= needed_bytes
            self._released.mark()
            self._overlay.board.change_own(free_bytes=self.free_bytes)

    async def _serve_load(self, stream: MessageStream, load: LoadStage) -> None:
        """Another coordinator's stage, or an engine that it wants ready here."""
        if load.is_standby:
            with unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_at_end, stream, nursery.cancel_scope)
                    await self._stand_by(load, stream.remote_peer, stream.send)
                    nursery.cancel_scope.cancel()
            await stream.finish()
            return
        await self._serve_followed(stream, self.begin(load, stream.remote_peer))

    async def _serve_follow(self, stream: MessageStream, asked: FollowStage) -> None:
        """The stage of a run that another coordinator loaded, for the one that took it over."""
        self._parts.claims.check(stream.remote_peer, asked.model_digest, asked.run_id, asked.term)
        held = self._held.get(asked.run_id)
        if held is None or held.load.model_digest != asked.model_digest:
            raise Refused(ErrorCode.STAGE_UNKNOWN, "this peer holds no stage of that run")
        await stream.send(held.load)  # without the model's file a successor can order the stage again by nothing else
        await self._serve_followed(stream, held)

    async def _serve_followed(self, stream: MessageStream, held: HeldStage) -> None:
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_heed_coordinator, stream, held, nursery.cancel_scope)
                await self.follow(held, stream.send)
                nursery.cancel_scope.cancel()


async def _heed_coordinator(stream: MessageStream, held: HeldStage, scope: trio.CancelScope) -> None:
    """It follows until it ends the stream, or says anything but that a stage which is about to go may."""
    try:
        while True:
            await stream.expect(Done, IDLE_FOREVER_S)
            held.let_go()
    except P2PMeshError:
        scope.cancel()


async def _cancel_at_end(stream: MessageStream, scope: trio.CancelScope) -> None:
    """The coordinator follows until it ends the stream, or says anything more on it."""
    try:
        await stream.receive(IDLE_FOREVER_S)
    except (PeerUnavailable, RemoteProtocolError):
        pass
    finally:
        scope.cancel()


async def _drop(_: object) -> None:
    """A stage that is no driver has nobody here to deliver to."""


def _spec_of(load: LoadStage, artifact: StageArtifact) -> EngineSpec:
    return EngineSpec(
        artifact_path=artifact.path,
        artifact_digest=artifact.digest,
        layers=load.layers,
        layer_count=load.layer_count,
        context_tokens=load.context_tokens,
        lanes=load.lanes,
        wire_dtype=WireDtype(load.wire_dtype),
        model_digest=load.model_digest,
    )


def _status(load: LoadStage, state: StageState) -> StageStatus:
    return StageStatus(load.run_id, state.value)


def _ready_status(load: LoadStage, facts: EngineFacts) -> StageStatus:
    return StageStatus(
        load.run_id,
        StageState.READY.value,
        fingerprint=facts.fingerprint,
        exact_width=facts.exact_width,
        decode_us=facts.decode_us,
    )


def _stage_fields(load: LoadStage) -> dict[str, object]:
    layers = load.layers
    return {"model": load.model, "run_id": load.run_id.hex(), "stage": load.index, "layers": [layers.start, layers.end]}
