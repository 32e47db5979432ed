"""Stages on this node: loading one, holding it as long as its coordinator wants it, and the memory they take.

A stage lives exactly as long as the call of ``hold``: for the coordinator's own node that is a task, for any other the
stream of its ``LoadStage``. When either ends, the engine ends.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange, PeerId, ranges_tile
from p2pmesh.base.quantities import format_size
from p2pmesh.core.coordination import StageState
from p2pmesh.node.artifacts import Artifacts
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.driver import Drivers
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.run_table import MAX_RUNS, RunTable
from p2pmesh.node.stage_fetching import StageFetching
from p2pmesh.node.stage_run import StageRun
from p2pmesh.node.transfer import TransferCounts
from p2pmesh.ports.engine import EngineLauncher, EngineSpec
from p2pmesh.ports.models import ModelStore, StageArtifact
from p2pmesh.wire.control import LoadStage, StageStatus
from p2pmesh.wire.stage import WireDtype

ReportStatus = Callable[[StageStatus], Awaitable[None]]
MAX_LOADING = 4
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


class Stages:
    """Loads and holds stages within ``memory_bytes``."""

    def __init__(self, overlay: Overlay, parts: StageParts, memory_bytes: int, report: Report) -> None:
        self._overlay = overlay
        self._parts = parts
        self._memory_bytes = memory_bytes
        self._reserved_bytes = 0
        self._holds = 0
        self._report = report
        self._fetching = StageFetching(parts.artifacts, parts.store)
        overlay.serve_exchange(LoadStage, self._serve_load)

    @property
    def free_bytes(self) -> int:
        """Memory that no stage has reserved."""
        return self._memory_bytes - self._reserved_bytes

    async def hold(self, load: LoadStage, source: PeerId, report_status: ReportStatus) -> None:
        """Loads a stage and keeps it until cancelled; raises why it could not be, or why it ended."""
        _check_load(load, self._overlay.own_peer)
        try:
            with unwrapped():
                await self._hold(load, source, report_status)
        except P2PMeshError as error:
            self._report("stage_failed", _stage_fields(load) | {"code": error.code.value, "message": error.message})
            raise

    async def _hold(self, load: LoadStage, source: PeerId, report_status: ReportStatus) -> None:
        with self._counted():
            async with self._reserve(max(load.needed_bytes, load.artifact_bytes)):
                await report_status(_status(load, StageState.ASSIGNED))
                artifact = await self._obtain(load, source, report_status)
                try:
                    await self._check_memory(load, artifact)
                    await report_status(_status(load, StageState.LOADING))
                    await self._run(load, artifact, report_status)
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

    async def _check_memory(self, load: LoadStage, artifact: StageArtifact) -> None:
        """What a coordinator says a stage needs is not believed: the file itself tells."""
        needed = await self._parts.store.stage_memory_bytes(artifact, load.context_tokens, load.lanes)
        reserved = max(load.needed_bytes, load.artifact_bytes)
        if needed > reserved:
            text = f"the stage needs {format_size(needed)}, its coordinator asked for {format_size(reserved)}"
            raise Refused(ErrorCode.PLACEMENT_REFUSED, text)

    async def _run(self, load: LoadStage, artifact: StageArtifact, report_status: ReportStatus) -> None:
        async with self._parts.launcher.launch(_spec_of(load, artifact)) as engine:
            driver = await self._parts.drivers.prepare(load, engine)
            run = StageRun(load, engine, self._overlay, driver.deliver if driver else _drop, self._report)

            async def ready() -> None:
                if driver is not None:
                    driver.attach(run)
                facts = engine.facts
                self._report(
                    "stage_ready", _stage_fields(load) | {"exact_width": facts.exact_width, "notes": facts.notes}
                )
                await report_status(_status(load, StageState.READY, facts.fingerprint, facts.exact_width))

            cause: P2PMeshError = Refused(ErrorCode.MODEL_NOT_READY, "the stage was stopped; try again")
            self._parts.table.add(run)
            try:
                await run.run(ready)
            except P2PMeshError as error:
                cause = error
                raise
            finally:
                self._parts.table.remove(run)
                if driver is not None:
                    self._parts.drivers.remove(driver, cause)

    async def _obtain(self, load: LoadStage, source: PeerId, report_status: ReportStatus) -> StageArtifact:
        """The stage file: cut from a local model of the same digest, from the cache, or from peers."""
        store = self._parts.store
        layers = _layers_of(load)
        model = await store.find_by_digest(Digest(load.model_digest), load.model_bytes)
        if model is not None:
            artifact = await store.cut(model, layers)
            if artifact.digest == load.artifact_digest:
                return artifact
            store.release(artifact.digest)
        cached = await store.find_artifact(Digest(load.artifact_digest))
        if cached is not None:
            return cached
        if load.pieces_digest is None:
            raise Refused(
                ErrorCode.ARTIFACT_UNKNOWN, "the stage file is not here, and its coordinator does not give it"
            )
        self._report("stage_loading", _stage_fields(load) | {"bytes": load.artifact_bytes, "source": source})
        artifact, counts = await self._fetching.fetch(load, source, report_status)
        self._report("stage_fetched", _stage_fields(load) | _cost_of(counts))
        return artifact

    @asynccontextmanager
    async def _reserve(self, needed_bytes: int) -> AsyncIterator[None]:
        if needed_bytes > self.free_bytes:
            text = f"the stage needs {format_size(needed_bytes)}, {format_size(self.free_bytes)} are free on this peer"
            raise Refused(ErrorCode.PLACEMENT_REFUSED, text)
        self._reserved_bytes += needed_bytes
        self._overlay.board.change_own(free_bytes=self.free_bytes)
        try:
            yield
        finally:
            self._reserved_bytes -= needed_bytes
            self._overlay.board.change_own(free_bytes=self.free_bytes)

    async def _serve_load(self, stream: MessageStream, load: LoadStage) -> None:
        """Another coordinator's stage; its stream is the stage's life."""
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_end, stream, nursery.cancel_scope)
                await self.hold(load, stream.remote_peer, stream.send)
                nursery.cancel_scope.cancel()


async def _cancel_at_end(stream: MessageStream, scope: trio.CancelScope) -> None:
    """Ends the stage when its coordinator ends the stream, or says anything more on it."""
    try:
        await stream.receive(IDLE_FOREVER_S)
    except (PeerUnavailable, RemoteProtocolError):
        pass
    finally:
        scope.cancel()


async def _drop(_: object) -> None:
    """A stage that is no driver has nobody here to deliver to."""


def _check_load(load: LoadStage, own_peer: PeerId) -> None:
    ranges = tuple(LayerRange(s.layer_start, s.layer_end) for s in load.stages if s.layer_start < s.layer_end)
    if len(ranges) != len(load.stages) or not ranges_tile(ranges, load.layer_count):
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "the stages do not tile the model's layers")
    if load.index >= len(load.stages) or load.stages[load.index].peer_id != own_peer:
        raise RemoteProtocolError(ErrorCode.NOT_IN_PLACEMENT, "the stage to load is another peer's")


def _layers_of(load: LoadStage) -> LayerRange:
    entry = load.stages[load.index]
    return LayerRange(entry.layer_start, entry.layer_end)


def _spec_of(load: LoadStage, artifact: StageArtifact) -> EngineSpec:
    return EngineSpec(
        artifact_path=artifact.path,
        artifact_digest=artifact.digest,
        layers=_layers_of(load),
        layer_count=load.layer_count,
        context_tokens=load.context_tokens,
        lanes=load.lanes,
        wire_dtype=WireDtype(load.wire_dtype),
        model_digest=load.model_digest,
    )


def _status(load: LoadStage, state: StageState, fingerprint: str = "", exact_width: int = 0) -> StageStatus:
    return StageStatus(load.run_id, state.value, fingerprint=fingerprint, exact_width=exact_width)


def _cost_of(counts: TransferCounts) -> dict[str, object]:
    return {
        "fetched_bytes": counts.fetched_bytes,
        "resumed_bytes": counts.resumed_bytes,
        "wasted_bytes": counts.wasted_bytes,
        "sources": [{"peer_id": peer, "bytes": size_bytes} for peer, size_bytes in counts.sources.items()],
    }


def _stage_fields(load: LoadStage) -> dict[str, object]:
    layers = _layers_of(load)
    return {"model": load.model, "run_id": load.run_id.hex(), "stage": load.index, "layers": [layers.start, layers.end]}
