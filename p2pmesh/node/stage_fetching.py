"""How a stage's file comes here: whole, or as fragments of the coordinator's layer package that are assembled here.

Fragments are files of their own: they come from different peers at once, and stay for ranges of later runs. How one
file comes is ``node.artifacts``'.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.core.coordination import StageState
from p2pmesh.node.artifact_sources import FileOrigin, WantedFile
from p2pmesh.node.artifacts import TELL_AGAIN_S, Artifacts
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.transfer import TransferCounts
from p2pmesh.ports.models import ModelStore, StageArtifact
from p2pmesh.wire.messages.runs import FileEntry, LoadStage, StageStatus

FRAGMENTS_AT_ONCE = 3
FRAGMENTS_COST_PERCENT = 110
"""Of the stage's file: a middle stage needs no tokenizer, but the fragment that it shares with all others holds one."""

ReportStatus = Callable[[StageStatus], Awaitable[None]]


class StageFetching:
    """Fetches the files of stages that other peers coordinate."""

    def __init__(self, artifacts: Artifacts, store: ModelStore) -> None:
        self._artifacts = artifacts
        self._store = store

    async def fetch(
        self, load: LoadStage, source: PeerId, report_status: ReportStatus
    ) -> tuple[StageArtifact, TransferCounts]:
        """The stage's file, held once, and what it cost."""
        counts = TransferCounts()
        if await self._is_worth_assembling(load):
            try:
                artifact = await _Assembly(self._artifacts, self._store, load, source, report_status, counts).run()
            except (ConfigError, PeerUnavailable, RemoteProtocolError) as error:
                if error.code is ErrorCode.HOME_UNUSABLE:
                    raise
            else:
                if artifact is not None:
                    return artifact, counts
        artifact, last = await self._fetch_whole(load, source, report_status)
        counts.add(last)
        counts.sources.update({peer: counts.sources.get(peer, 0) + size for peer, size in last.sources.items()})
        return artifact, counts

    async def _is_worth_assembling(self, load: LoadStage) -> bool:
        """Whether what is missing of the fragments is no more than the stage's own file, or hardly."""
        if len({entry.digest for entry in load.fragments}) < max(2, len(load.fragments)):
            return False
        missing_bytes = 0
        for entry in load.fragments:
            if await self._store.find_artifact(Digest(entry.digest)) is None:
                missing_bytes += entry.size_bytes
            else:
                self._store.release(Digest(entry.digest))
        return missing_bytes * 100 <= load.artifact_bytes * FRAGMENTS_COST_PERCENT

    async def _fetch_whole(
        self, load: LoadStage, source: PeerId, report_status: ReportStatus
    ) -> tuple[StageArtifact, TransferCounts]:
        if load.pieces_digest is None:
            raise Refused(
                ErrorCode.ARTIFACT_UNKNOWN, "the stage file is not here, and its coordinator does not give it"
            )

        async def progress(done_bytes: int) -> None:
            await report_status(_downloading(load, done_bytes, load.artifact_bytes))

        wanted = WantedFile(Digest(load.artifact_digest), load.artifact_bytes, Digest(load.pieces_digest))
        origin = FileOrigin(source, _addresses(load, source), Digest(load.model_digest), load.layers)
        return await self._artifacts.obtain(wanted, origin, progress)


async def telling(
    report_status: ReportStatus, obtain: Callable[[ReportStatus], Awaitable[StageArtifact]], store: ModelStore
) -> StageArtifact:
    """What ``obtain`` gives, held once; the coordinator hears of us also while nothing new comes."""
    told = _Repeated(report_status)
    obtained: list[StageArtifact] = []
    try:
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(told.run)
                obtained.append(await obtain(told.report))
                nursery.cancel_scope.cancel()
    except BaseException:
        for artifact in obtained:  # it came, and the caller is cancelled before it hears of it
            store.release(artifact.digest)
        raise
    return obtained[0]


class _Repeated:
    """Passes statuses on, and says the last one again: to read, wait for or assemble a large file takes minutes."""

    def __init__(self, report_status: ReportStatus) -> None:
        self._report_status = report_status
        self._last: StageStatus | None = None

    async def report(self, status: StageStatus) -> None:
        """In place of what it passes on to."""
        self._last = status
        await self._report_status(status)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(TELL_AGAIN_S)
            if self._last is not None:
                await self._report_status(self._last)


@dataclass
class _Assembly:
    """One stage out of fragments."""

    artifacts: Artifacts
    store: ModelStore
    load: LoadStage
    source: PeerId
    report_status: ReportStatus
    counts: TransferCounts
    held: list[StageArtifact] = field(default_factory=list)
    done_bytes: dict[str, int] = field(default_factory=dict)

    async def run(self) -> StageArtifact | None:
        """The stage; None if what was assembled is another file than the one that is wanted."""
        try:
            await self._fetch_all()
            by_digest = {artifact.digest: artifact for artifact in self.held}
            fragments = tuple(by_digest[Digest(entry.digest)] for entry in self.load.fragments)
            layers = self.load.layers
            artifact = await self.store.assemble(fragments, Digest(self.load.model_digest), layers)
        finally:
            for fragment in self.held:
                self.store.release(fragment.digest)
        if artifact.digest == self.load.artifact_digest:
            return artifact
        self.store.release(artifact.digest)
        return None

    async def _fetch_all(self) -> None:
        """The manifest first: whoever has it is likely to have fragments."""
        manifest, *fragments = self.load.fragments
        origin = FileOrigin(self.source, _addresses(self.load, self.source))
        await self._fetch(manifest, origin)
        others = tuple(
            one for one in await self.artifacts.holders_of(Digest(manifest.digest)) if one.peer != self.source
        )
        origin = FileOrigin(self.source, origin.addresses, others=others, is_fragment=True)
        room = trio.CapacityLimiter(FRAGMENTS_AT_ONCE)

        async def fetch(entry: FileEntry) -> None:
            async with room:
                await self._fetch(entry, origin)

        with unwrapped():
            async with trio.open_nursery() as nursery:
                for entry in fragments:
                    nursery.start_soon(fetch, entry)

    async def _fetch(self, entry: FileEntry, origin: FileOrigin) -> None:
        async def progress(done_bytes: int) -> None:
            self.done_bytes[entry.digest] = done_bytes
            total_bytes = sum(one.size_bytes for one in self.load.fragments)
            await self.report_status(_downloading(self.load, sum(self.done_bytes.values()), total_bytes))

        wanted = WantedFile(Digest(entry.digest), entry.size_bytes, Digest(entry.pieces_digest))
        artifact, counts = await self.artifacts.obtain(wanted, origin, progress)
        self.held.append(artifact)
        self.done_bytes[entry.digest] = entry.size_bytes
        self.counts.add(counts)
        if not counts.fetched_bytes:
            self.counts.resumed_bytes += entry.size_bytes
        for peer, size_bytes in counts.sources.items():
            self.counts.sources[peer] = self.counts.sources.get(peer, 0) + size_bytes


def _downloading(load: LoadStage, done_bytes: int, total_bytes: int) -> StageStatus:
    return StageStatus(load.run_id, StageState.DOWNLOADING.value, min(done_bytes, total_bytes), total_bytes)


def _addresses(load: LoadStage, source: PeerId) -> tuple[str, ...]:
    return next((stage.addresses for stage in load.stages if stage.peer_id == source), ())
