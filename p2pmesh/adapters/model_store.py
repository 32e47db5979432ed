"""Models on this machine's disk: reading them, cutting stages, keeping received ones (``ports.models.ModelStore``).

Owns the layout of the home's cache, who may write it at the same time, and its quota. The bytes of a stage are
``model.stage_file``'s, which model a name means ``model_names``', a model in several files ``model_source``'s, file
primitives ``model_files``', what is remembered between runs ``model_ledger``'s.

Layout::

    HOME/models/**/*.gguf           models the operator put there; served under the file's stem
    HOME/models/*/model-package.json  layer packages (``package_files``); served under their model id
    HOME/cache/hub/…                files fetched from the hub (``hub_cache``)
    HOME/cache/models/<name>.gguf   models joined from the parts that pip installs
    HOME/cache/stages/<digest>.gguf stages cut here or received, and fragments of layer packages with their manifests,
                                    all named by their sha256
    HOME/cache/packages/…           layer packages out of fetched fragments, while a stage is cut from them
    HOME/cache/partial/…            stages that are being received (``partial_files``)
    HOME/cache/pieces/<digest>      hashes of their pieces (``piece_lists``)
    HOME/cache/quarantine/…         damaged files that were put aside (``quarantine``)
    HOME/cache/ledger.json          digests and cuts remembered

Quota: before a stage is written, what broken transfers left goes, then the least recently used stages, until the new
one fits into ``quota_bytes`` and onto the disk. A stage handed out stays until each of its holders has called
``release``; while all are held the cache may be larger than its quota.
"""

import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.file_claims import claim, end_claim
from p2pmesh.adapters.hub_cache import HubCache
from p2pmesh.adapters.model_ledger import ModelLedger
from p2pmesh.adapters.model_names import PIP_SOURCE, ModelNames, NamedModel, shown
from p2pmesh.adapters.model_packages import PackagedModel, installed_models
from p2pmesh.adapters.model_source import PartsSource, open_model, paths_of_model, stamp_of_model
from p2pmesh.adapters.package_files import (
    PackageSource,
    assembled_package,
    fragments_of_range,
    is_package,
    remove_assembled,
    usable_manifest,
)
from p2pmesh.adapters.partial_files import PartialEntry, PartialFile, PartialFiles
from p2pmesh.adapters.piece_lists import PieceLists
from p2pmesh.adapters.quarantine import put_aside
from p2pmesh.base import limits
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange, is_digest
from p2pmesh.base.quantities import GIB, KIB, format_size
from p2pmesh.model.cost import decode_reads, sequence_bytes
from p2pmesh.model.families import check_model
from p2pmesh.model.gguf import GgufIndex, read_index
from p2pmesh.model.reference import HUB_HOSTS, HubReference
from p2pmesh.model.shards import check_not_a_part
from p2pmesh.model.stage_file import STAGE_FORMAT, StageFilePlan, plan_stage_file
from p2pmesh.ports.models import ArtifactReception, ModelFile, StageArtifact, StageReads
from p2pmesh.wire.pieces import PieceHasher, PieceList

DEFAULT_QUOTA_BYTES = 64 * GIB

_MAX_INDEXES = 16
_MAX_MODELS = 64
_MAX_FRAGMENTS = 4 * limits.MAX_STAGE_FRAGMENTS
_WORKERS = 2
_QUICK_WORKERS = 4
"""For what a peer waits for piece by piece: it must not stand behind a cut, or a digest of a large file."""
_PORTION_BYTES = 256 * KIB
"""What is read at a time to be sent: little enough that a slow link takes it within any deadline."""

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


class _KeyedLocks:
    """One lock per key, kept only while somebody holds it or waits for it."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[str, tuple[trio.Lock, int]] = {}

    @asynccontextmanager
    async def holding(self, key: str) -> AsyncIterator[None]:
        """Alone with ``key``."""
        lock, users = self._locks.get(key, (trio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


class _Holds:
    """How many holders each file has. Taken in worker threads, dropped on the event loop, which never waits here.

    What is held is also claimed, so that no command of another process removes it.
    """

    __slots__ = ("_claims", "_counts", "_lock")

    def __init__(self) -> None:
        self._counts: dict[Digest, int] = {}
        self._claims: dict[Digest, list[int]] = {}
        self._lock = threading.Lock()

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._counts

    def take(self, digest: Digest, *paths: Path) -> None:
        """One holder more of the files at ``paths``. Waits for the disk, so not with the lock that ``drop`` takes."""
        claimed = claim(paths)
        with self._lock:
            self._counts[digest] = self._counts.get(digest, 0) + 1
            if not self._claims.get(digest):
                self._claims[digest], claimed = claimed, []
        end_claim(claimed)

    def drop(self, digest: Digest) -> None:
        """One holder less; nothing happens where there is none."""
        with self._lock:
            count = self._counts.pop(digest, 0)
            if count > 1:
                self._counts[digest] = count - 1
            else:
                end_claim(self._claims.pop(digest, ()))


class DiskModelStore:
    """The store of one home. Construct it once per process and home; construction removes what dead processes left.

    Raises ``ConfigError(HOME_UNUSABLE)`` when the directories cannot be made.
    """

    def __init__(
        self,
        models_directory: Path,
        cache_directory: Path,
        *,
        quota_bytes: int = DEFAULT_QUOTA_BYTES,
        packages: Callable[[], tuple[PackagedModel, ...]] = installed_models,
        disk: files.Disk | None = None,
        hub_cache: HubCache | None = None,
        hub_hosts: tuple[str, ...] = HUB_HOSTS,
    ) -> None:
        joined = cache_directory / "models"
        self.hub_cache = hub_cache if hub_cache is not None else HubCache(cache_directory / "hub")
        self._names = ModelNames(models_directory, joined, packages, self.hub_cache, hub_hosts)
        self._cache = cache_directory
        self._stages = cache_directory / "stages"
        partial, pieces = cache_directory / "partial", cache_directory / "pieces"
        self._quota_bytes = quota_bytes
        self._disk = disk if disk is not None else files.Disk()
        with files.translated(f"cannot use {cache_directory}"):
            for directory in (models_directory, cache_directory, joined, self._stages, partial, pieces):
                directory.mkdir(parents=True, exist_ok=True)
                files.remove_leftovers(directory)
            packages_directory = cache_directory / "packages"
            packages_directory.mkdir(exist_ok=True)
            remove_assembled(packages_directory)
        self._pieces = PieceLists(pieces)
        self._partial = PartialFiles(partial, self._disk)
        self._partial.tidy()
        self._ledger = ModelLedger(cache_directory / "ledger.json")
        self._indexes: dict[tuple[Path, files.FileStamp], GgufIndex] = {}
        self._models: dict[Digest, ModelFile] = {}
        self._fragments: dict[Digest, Path] = {}
        self._holds = _Holds()
        self._room = threading.Lock()
        self._locks = _KeyedLocks()
        self._limiter = trio.CapacityLimiter(_WORKERS)
        self._quick_limiter = trio.CapacityLimiter(_QUICK_WORKERS)

    # --- whole models

    def find(self, reference: str) -> NamedModel | HubReference:
        """What a reference means, without opening a file: a model here, or what is to be fetched from the hub.

        Blocking. Raises ``ConfigError``: ``CONFIG_INVALID``, ``MODEL_NOT_FOUND``, ``MODEL_NOT_A_FILE``.
        """
        return self._names.find(reference)

    def find_on_hub(self, reference: str) -> HubReference | None:
        """The part of the hub that a reference means, also where it was fetched before; ``None`` for other models."""
        return self._names.find_on_hub(reference)

    async def resolve(self, reference: str) -> ModelFile:
        """A path, a name, a model that was fetched from the hub before; ``ConfigError`` says what is wrong."""
        named = await self._run(lambda: self.find(reference))
        if isinstance(named, HubReference):
            raise ConfigError(
                ErrorCode.MODEL_NOT_FOUND, f"{named} is not on this machine: fetch it with p2pmesh models pull {named}"
            )
        return await self.load(named)

    async def list_models(self) -> tuple[ModelFile, ...]:
        """All that ``resolve`` finds by name and can be served; sorted by name. Joins packaged parts the first time."""
        models: list[ModelFile] = []
        for named in await self._run(self._names.all):
            with contextlib.suppress(ConfigError):
                models.append(await self.load(named))
        return tuple(sorted(models, key=lambda model: (model.name, model.path)))

    async def survey(self, *, with_packages: bool = True) -> tuple[tuple[NamedModel, GgufIndex], ...]:
        """As ``list_models``, from headers alone: no digest is made, which would read every file whole.

        Without ``with_packages`` what pip installed is left out, and none of its parts are joined.
        """
        found: list[tuple[NamedModel, GgufIndex]] = []
        for named in await self._run(self._names.all):
            if named.source == PIP_SOURCE and not with_packages:
                continue
            with contextlib.suppress(ConfigError):
                found.append((named, await self._run(partial(self._survey_blocking, named))))
        return tuple(sorted(found, key=lambda entry: (entry[0].name, str(entry[0].path))))

    async def find_by_digest(self, digest: Digest, size_bytes: int) -> ModelFile | None:
        """A local whole model with this digest, if any. Only files of the right size are read."""
        known = await self._run(lambda: self._unchanged_model(digest))
        if known is not None:
            return known
        for named in await self._run(self._names.all):
            if not await self._run(partial(_may_be, named, digest, size_bytes)):
                continue
            with contextlib.suppress(ConfigError):
                model = await self.load(named)
                if model.digest == digest:
                    return model
        return None

    # --- stages

    async def cut(self, model: ModelFile, layers: LayerRange) -> StageArtifact:
        """The stage GGUF of a range; from the cache if it was cut before, the model itself for the whole range.

        Of a layer package only the fragments of the range are read; for the whole range the model's file is written.
        Raises ``ConfigError`` (``CUT_UNSUPPORTED``, ``GGUF_INVALID`` for a model file that changed),
        ``Refused(DISK_FULL)``.
        """
        if len(layers) == model.index.layer_count and layers.is_first():
            if is_package(Path(model.path)):
                async with self._locks.holding(model.digest):
                    return await self._run(lambda: self._kept_artifact(model.digest) or self._write_model(model))
            await self.keep(model)
            return StageArtifact(model.path, model.digest, model.size_bytes)
        key = f"{model.digest}:{layers.start}:{layers.end}:{STAGE_FORMAT}"
        async with self._locks.holding(key):
            return await self._run(lambda: self._cut_or_recall(key, model, layers))

    async def fragments_of(self, model: ModelFile, layers: LayerRange) -> tuple[StageArtifact, ...]:
        """Of a layer package, its manifest and the files that the stage is cut from, found by digest from then on.

        None for the whole range, whose file is the model's own.
        """
        path = Path(model.path)
        if len(layers) == model.index.layer_count or not is_package(path):
            return ()
        found = await self._run(lambda: fragments_of_range(path, model.index, layers, self._digest_of))
        for artifact in found:
            self._fragments[artifact.digest] = Path(artifact.path)
        _drop_oldest(self._fragments, _MAX_FRAGMENTS)
        return found

    async def assemble(
        self, fragments: tuple[StageArtifact, ...], model_digest: Digest, layers: LayerRange
    ) -> StageArtifact:
        """The stage GGUF of a range out of fetched fragments, the manifest first, all of them held.

        Takes a hold. Raises ``ConfigError``: ``PACKAGE_INVALID`` for fragments that are not what the manifest says, or
        of another model, ``CUT_UNSUPPORTED``, ``ARCHITECTURE_UNSUPPORTED``; ``Refused(DISK_FULL)``.
        """
        return await self._run(lambda: self._assemble(fragments, model_digest, layers))

    async def find_artifact(self, digest: Digest) -> StageArtifact | None:
        """A cut or received stage, or a resolved whole model, by its digest; checked once per change of the file."""
        if not is_digest(digest):
            return None
        async with self._locks.holding(digest):
            return await self._run_quick(lambda: self._artifact_or_model(digest))

    async def keep(self, model: ModelFile) -> None:
        """Takes a hold on a whole model, to be given back with ``release``."""
        await self._run(lambda: self._hold_model(model))

    def release(self, digest: Digest) -> None:
        """Gives back one hold; without any left the quota may take the file."""
        self._holds.drop(digest)

    async def stage_reads(self, artifact: StageArtifact, *, is_last: bool) -> StageReads:
        """See ``ports.models``."""
        return await self._run(lambda: _stage_reads(Path(artifact.path), is_last=is_last))

    async def stage_memory_bytes(self, artifact: StageArtifact, context_tokens: int, lanes: int) -> int:
        """The file's tensors, and what its own layers keep of all sequences."""
        return await self._run(lambda: _stage_memory_bytes(Path(artifact.path), context_tokens, lanes))

    async def piece_list(self, artifact: StageArtifact) -> PieceList:
        """The hashes of an artifact's pieces; reads the whole file unless it was cut or received here.

        Raises ``Refused(ARTIFACT_UNKNOWN)`` if the file is gone or another one.
        """
        known = await self._run_quick(lambda: self._pieces.find(artifact.digest, artifact.size_bytes))
        if known is not None:
            return known
        async with self._locks.holding(f"pieces:{artifact.digest}"):
            return await self._run(lambda: self._make_piece_list(artifact))

    def receive_artifact(self, digest: Digest, pieces: PieceList) -> AbstractAsyncContextManager[ArtifactReception]:
        """Receives a file in pieces; at a clean exit it is checked, kept and held once, otherwise its pieces stay.

        Raises ``RemoteProtocolError(ARTIFACT_CORRUPT)`` for impossible announcements, missing pieces and a whole of
        another digest, ``Refused(DISK_FULL)``.
        """
        return self._receiving(digest, pieces)

    async def read_artifact(
        self, artifact: StageArtifact, offset: int, size_bytes: int, sink: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Streams ``size_bytes`` of an artifact from ``offset`` into ``sink``, in portions of at most 256 KiB.

        Raises ``Refused(ARTIFACT_UNKNOWN)`` if the file is gone or another one.
        """
        end = offset + size_bytes
        if not 0 <= offset <= end <= artifact.size_bytes:
            text = f"the file has {artifact.size_bytes} bytes, so not {size_bytes} from {offset} on"
            raise Refused(ErrorCode.REQUEST_INVALID, text)
        try:
            source = await self._run_quick(lambda: open_model(Path(artifact.path)))
        except ConfigError as error:
            raise _gone(artifact) from error
        with source:
            if source.size_bytes != artifact.size_bytes:
                raise _gone(artifact)
            while offset < end:
                count = min(_PORTION_BYTES, end - offset)
                portion = await self._run_quick(partial(source.read_at, offset, count))
                if not portion:
                    raise _gone(artifact)
                await sink(portion)
                offset += len(portion)

    # --- blocking parts of resolve

    async def _run(self, work: Callable[[], _T]) -> _T:
        """``work`` in a thread; where it calls ``check_cancelled`` it ends early once we are cancelled."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    async def _run_quick(self, work: Callable[[], _T]) -> _T:
        """As ``_run``, beside work that takes long."""
        return await trio.to_thread.run_sync(work, limiter=self._quick_limiter)

    async def has_digest(self, path: Path, digest: Digest) -> bool:
        """Whether a file has this digest; read whole unless it is unchanged since that was last found out."""

        def compare() -> bool:
            with files.FileSource(path) as source:
                return self._digest_of(source) == digest

        return await self._run(compare)

    def note_digest(self, path: Path, digest: Digest) -> None:
        """Somebody has just read the whole file, and this is its digest. Blocking."""
        stamp = files.stamp_of(path)
        if stamp is not None:
            self._ledger.remember_digest(path, stamp, digest)

    def check(self, named: NamedModel) -> None:
        """Reads the head of a model that ``find`` found, blocking; raises as ``load``. Joins no packaged parts."""
        if named.package is None:
            with self._open(named.path) as source:
                self._index_of(source)

    async def load(self, named: NamedModel) -> ModelFile:
        """Reads a model that ``find`` found; ``ConfigError`` says what is wrong with its files."""
        async with self._locks.holding(str(named.path)):
            return await self._run(lambda: self._load_blocking(named))

    def _survey_blocking(self, named: NamedModel) -> GgufIndex:
        if named.package is not None:
            self._join(named.package, named.path)
        with self._open(named.path) as source:
            return self._index_of(source)

    def _load_blocking(self, named: NamedModel) -> ModelFile:
        if named.package is not None:
            self._join(named.package, named.path)
        with self._open(named.path) as source:
            index = self._index_of(source)
            digest = self._digest_of_model(source)
            has_changed = source.has_changed()
        if has_changed:
            raise ConfigError(
                ErrorCode.GGUF_INVALID,
                f"{named.path} changed while it was read: wait until it is complete, then try again",
            )
        model = ModelFile(named.name, str(named.path), digest, index.size_bytes, index, named.source)
        self._models[digest] = model
        _drop_oldest(self._models, _MAX_MODELS)
        return model

    def _open(self, path: Path) -> files.FileSource | PartsSource | PackageSource:
        return PackageSource(path, self._digest_of) if is_package(path) else open_model(path)

    def _digest_of_model(self, source: files.OpenSource) -> Digest:
        """Of a layer package what its manifest says, whose fragments are checked as they are read."""
        return source.digest if isinstance(source, PackageSource) else self._digest_of(source)

    def _index_of(self, source: files.OpenSource) -> GgufIndex:
        key = (source.path, source.stamp)
        index = self._indexes.get(key)
        if index is None:
            index = _read_model(source)
            self._indexes[key] = index
            _drop_oldest(self._indexes, _MAX_INDEXES)
        return index

    def _digest_of(self, source: files.OpenSource) -> Digest:
        known = self._ledger.digest(source.path, source.stamp)
        if known is not None:
            return known
        digest = files.digest_of(source, _checkpoint)
        if not source.has_changed():
            self._ledger.remember_digest(source.path, source.stamp, digest)
        return digest

    def _join(self, package: PackagedModel, path: Path) -> None:
        """Joins a packaged model's parts at ``path``, unless that was done before."""
        wanted = sum(part.stat().st_size for part in package.parts)
        stamp = files.stamp_of(path)
        if stamp is not None and stamp.size_bytes == wanted:
            return
        files.require_free(path.parent, wanted, self._disk)
        with files.pending_file(path.parent, self._disk) as pending:
            for part in package.parts:
                with files.FileSource(part) as source:
                    for piece in files.read_pieces(source, 0, source.size_bytes, trio.from_thread.check_cancelled):
                        pending.write(piece)
            if package.digest is not None and pending.digest != package.digest:
                raise ConfigError(
                    ErrorCode.GGUF_INVALID,
                    f"the installed parts of {package.name} are damaged: reinstall them with pip",
                )
            digest = pending.digest
            self._ledger.remember_digest(path, pending.commit(path), digest)

    def _unchanged_model(self, digest: Digest) -> ModelFile | None:
        """A model resolved before, if its file is still the same."""
        model = self._models.get(digest)
        if model is None:
            return None
        path = Path(model.path)
        if is_package(path):
            return model if _packages(path, digest) else None
        stamp = stamp_of_model(path)
        if stamp is not None and self._ledger.digest(path, stamp) == digest:
            return model
        return None

    # --- blocking parts of stages

    def _hold_model(self, model: ModelFile) -> None:
        self._holds.take(model.digest, *paths_of_model(Path(model.path)))

    def _cut_or_recall(self, key: str, model: ModelFile, layers: LayerRange) -> StageArtifact:
        digest = self._ledger.cut(key)
        kept = self._kept_artifact(digest) if digest is not None else None
        return kept if kept is not None else self._write_cut(key, model, layers)

    def _write_cut(self, key: str, model: ModelFile, layers: LayerRange) -> StageArtifact:
        with self._open(Path(model.path)) as source:
            self._require_same(source, model)
            artifact = self._write_stage(source, plan_stage_file(model.index, layers))
        self._ledger.remember_cut(key, artifact.digest)
        return artifact

    def _write_stage(self, source: files.OpenSource, plan: StageFilePlan) -> StageArtifact:
        self._make_room(plan.size_bytes)
        hasher = PieceHasher(plan.size_bytes)
        with files.pending_file(self._stages, self._disk) as pending:
            for portion in files.segment_pieces(source, plan.segments, trio.from_thread.check_cancelled):
                pending.write(portion)
                hasher.update(portion)
            if source.has_changed():
                raise _changed(str(source.path))
            artifact = self._keep(pending)
        self._pieces.keep(artifact.digest, hasher.finish())
        return artifact

    def _assemble(
        self, fragments: tuple[StageArtifact, ...], model_digest: Digest, layers: LayerRange
    ) -> StageArtifact:
        """That a manifest names this model is its word only, so the cut is not remembered as one of the model."""
        with assembled_package(self._cache / "packages", fragments) as source:
            if source.digest != model_digest:
                raise ConfigError(ErrorCode.PACKAGE_INVALID, "the package that was fetched is of another model")
            return self._write_stage(source, plan_stage_file(source.index, layers))

    def _write_model(self, model: ModelFile) -> StageArtifact:
        """The file of a model that is a layer package."""
        with self._open(Path(model.path)) as source:
            self._require_same(source, model)
            self._make_room(model.size_bytes)
            with files.pending_file(self._stages, self._disk) as pending:
                for piece in files.read_pieces(source, 0, model.size_bytes, trio.from_thread.check_cancelled):
                    pending.write(piece)
                if pending.digest != model.digest:
                    text = f"{model.path} does not give back the model that it names; see p2pmesh package verify"
                    raise ConfigError(ErrorCode.PACKAGE_INVALID, text)
                return self._keep(pending)

    def _require_same(self, source: files.OpenSource, model: ModelFile) -> None:
        """The file must still be what its index says; a stamp seen before answers without reading it."""
        if source.size_bytes != model.size_bytes or self._digest_of_model(source) != model.digest:
            raise _changed(model.path)

    def _keep(self, pending: files.PendingFile) -> StageArtifact:
        """Gives a whole stage its name, and its cutter a hold on it."""
        return self._keep_as(pending.digest, pending)

    def _keep_as(self, digest: Digest, written: files.PendingFile | PartialFile) -> StageArtifact:
        path = self._stages / f"{digest}.gguf"
        with self._room:
            stamp = written.commit(path)
            self._holds.take(digest, path)
        self._ledger.remember_digest(path, stamp, digest)
        return StageArtifact(str(path), digest, stamp.size_bytes)

    def _kept_artifact(self, digest: Digest) -> StageArtifact | None:
        """The stage of this digest, held, if it stands in the cache undamaged; a damaged one is put aside."""
        path = self._stages / f"{digest}.gguf"
        was_there, stamp = path.exists(), files.stamp_of(path)
        with self._room:
            self._holds.take(digest, path)  # first, so that it is not evicted while it is checked
        artifact = None
        try:
            artifact = self._checked_artifact(digest, path)
        finally:
            if artifact is None:
                self._holds.drop(digest)
        if artifact is None and was_there and files.stamp_of(path) == stamp:  # not one that was just written
            self._put_aside(path)
        return artifact

    def _checked_artifact(self, digest: Digest, path: Path) -> StageArtifact | None:
        try:
            with files.FileSource(path) as source:
                if self._digest_of(source) == digest:
                    return StageArtifact(str(path), digest, source.size_bytes)
        except ConfigError:
            pass  # it is not there, or cannot be read
        return None

    def _put_aside(self, path: Path) -> None:
        """A damaged file is for people to look at; where it cannot be moved it is of no use where it is."""
        self._ledger.forget(path)
        with contextlib.suppress(ConfigError, Refused):
            if put_aside(path, self._cache) is not None:
                return
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _make_piece_list(self, artifact: StageArtifact) -> PieceList:
        known = self._pieces.find(artifact.digest, artifact.size_bytes)
        if known is not None:
            return known
        hasher, digest = PieceHasher(artifact.size_bytes), hashlib.sha256()
        try:
            with open_model(Path(artifact.path)) as source:
                for portion in files.read_pieces(source, 0, artifact.size_bytes, trio.from_thread.check_cancelled):
                    hasher.update(portion)
                    digest.update(portion)
        except ConfigError as error:
            raise _gone(artifact) from error
        if digest.hexdigest() != artifact.digest:
            raise _gone(artifact)
        pieces = hasher.finish()
        self._pieces.keep(artifact.digest, pieces)
        return pieces

    def _artifact_or_model(self, digest: Digest) -> StageArtifact | None:
        model = self._unchanged_model(digest)
        if model is not None and not is_package(Path(model.path)):
            self._hold_model(model)
            return StageArtifact(model.path, model.digest, model.size_bytes)
        return self._kept_artifact(digest) or self._unchanged_fragment(digest)

    def _unchanged_fragment(self, digest: Digest) -> StageArtifact | None:
        """A file of a layer package of the operator's, as long as it is what it was."""
        path = self._fragments.get(digest)
        if path is None:
            return None
        with contextlib.suppress(ConfigError), files.FileSource(path) as source:
            if self._digest_of(source) == digest:
                self._holds.take(digest, path)
                return StageArtifact(str(path), digest, source.size_bytes)
        return None

    def _make_room(self, size_bytes: int, receiving: Digest | None = None) -> None:
        """Removes what is in nobody's use until ``size_bytes`` more fit; ``Refused(DISK_FULL)`` if they never can.

        They are what is missing of ``receiving``; what is still to come of others that are received counts as here.
        What broken transfers left goes first, then stages by their last use. Where all of it would not do, all stays.
        """
        with self._room, files.translated(f"cannot use {self._stages}"):
            partial_files = self._partial.entries()
            stages = self._ledger.by_use(list(self._stages.glob("*.gguf")))
            sizes = {path: _size_of(path) for path in stages}
            loose = [(path, size) for path, size in sizes.items() if Digest(path.stem) not in self._holds]
            reclaimable_bytes = sum(entry.size_bytes for entry in partial_files) + sum(size for _, size in loose)
            if self._disk.free_bytes(self._stages) + reclaimable_bytes >= size_bytes:
                used_bytes = self._partial.size_bytes(besides=receiving) + sum(sizes.values())
                self._reclaim(partial_files, loose, used_bytes, size_bytes)
        files.require_free(self._stages, size_bytes, self._disk)

    def _reclaim(
        self, partial_files: list[PartialEntry], loose: list[tuple[Path, int]], used_bytes: int, size_bytes: int
    ) -> None:
        for entry in partial_files:
            if self._fits(used_bytes, size_bytes):
                return
            used_bytes -= entry.size_bytes
            self._partial.remove(entry.digest)
        for path, path_bytes in loose:
            if self._fits(used_bytes, size_bytes):
                return
            used_bytes -= path_bytes
            path.unlink(missing_ok=True)
            self._ledger.forget(path)

    def _fits(self, used_bytes: int, size_bytes: int) -> bool:
        fits_quota = used_bytes + size_bytes <= self._quota_bytes
        return fits_quota and self._disk.free_bytes(self._stages) >= size_bytes

    # --- receiving

    @asynccontextmanager
    async def _receiving(self, digest: Digest, pieces: PieceList) -> AsyncIterator[ArtifactReception]:
        size_bytes = pieces.size_bytes
        if not is_digest(digest) or not 0 < size_bytes <= limits.MAX_ARTIFACT_BYTES:
            raise RemoteProtocolError(
                ErrorCode.ARTIFACT_CORRUPT, f"no stage has {size_bytes} bytes and the digest {digest[:64]!r}"
            )
        if size_bytes > self._quota_bytes:
            text = f"the file has {format_size(size_bytes)}, {format_size(self._quota_bytes)} are for files of peers"
            raise Refused(ErrorCode.DISK_FULL, f"{text}: start the node with a larger --cache-quota")
        async with self._locks.holding(f"receive:{digest}"):
            received = await self._run(lambda: self._start_receiving(digest, pieces))
            try:
                yield _Reception(received, self._run_quick)
                await self._run(lambda: self._keep_received(digest, pieces, received))
            finally:
                received.close()

    def _start_receiving(self, digest: Digest, pieces: PieceList) -> PartialFile:
        self._partial.tidy()
        received = self._partial.open(digest, pieces, trio.from_thread.check_cancelled)
        try:
            self._make_room(received.missing_bytes, digest)  # once it is open: what is open stays
        except BaseException:
            received.close()
            raise
        return received

    def _keep_received(self, digest: Digest, pieces: PieceList, received: PartialFile) -> None:
        self._keep_as(digest, received)
        self._pieces.keep(digest, pieces)


class _Reception:
    """``ArtifactReception`` over a partial file; one piece is written at a time."""

    __slots__ = ("_lock", "_received", "_run")

    def __init__(self, received: PartialFile, run: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        self._received = received
        self._run = run
        self._lock = trio.Lock()

    @property
    def have(self) -> tuple[int, ...]:
        """Pieces that are here already."""
        return self._received.have

    async def write_piece(self, piece: int, data: bytes) -> None:
        """Keeps a piece whose hash is right; nothing for one that is here. ``Refused(DISK_FULL)``."""
        async with self._lock:
            await self._run(lambda: self._received.write(piece, data))


def _checkpoint() -> None:
    """Ends the work of a cancelled task; a command that has no tasks yet goes on."""
    with contextlib.suppress(RuntimeError):  # said of a thread that is none of trio's
        trio.from_thread.check_cancelled()


def _stage_memory_bytes(path: Path, context_tokens: int, lanes: int) -> int:
    def needed(index: GgufIndex) -> int:
        return sum(tensor.size_bytes for tensor in index.tensors) + sequence_bytes(index, context_tokens, lanes)

    return _of_stage_file(path, needed)


def _stage_reads(path: Path, *, is_last: bool) -> StageReads:
    def reads_of(index: GgufIndex) -> StageReads:
        layers, output = decode_reads(index)
        return StageReads(index.architecture, sum(layers) + output * is_last)

    return _of_stage_file(path, reads_of)


def _of_stage_file(path: Path, compute: Callable[[GgufIndex], _T]) -> _T:
    with open_model(path) as source:
        try:
            return compute(read_index(source))
        except RemoteProtocolError as error:
            raise ConfigError(error.code, f"a stage file cannot be used: {error.message}") from error


def _read_model(source: files.OpenSource) -> GgufIndex:
    try:
        index = source.index if isinstance(source, PackageSource) else read_index(source)
        check_not_a_part(index)
        check_model(index)
    except (RemoteProtocolError, ConfigError) as error:
        raise ConfigError(error.code, f"{shown(str(source.path))}: {error.message}") from error
    return index


def _may_be(named: NamedModel, digest: Digest, size_bytes: int) -> bool:
    """Whether it is worth reading ``named`` in search of ``digest``."""
    if is_package(named.path):
        return _packages(named.path, digest)
    if named.package is None:
        return _has_size(named.path, size_bytes)
    if named.package.digest not in (None, digest):
        return False
    return sum(part.stat().st_size for part in named.package.parts) == size_bytes


def _packages(path: Path, digest: Digest) -> bool:
    """Whether the layer package at ``path`` is of the model of this digest."""
    with contextlib.suppress(ConfigError):
        return usable_manifest(path).source.sha256 == digest
    return False


def _size_of(path: Path) -> int:
    """0 for a file that a command has removed meanwhile."""
    stamp = files.stamp_of(path)
    return 0 if stamp is None else stamp.size_bytes


def _has_size(path: Path, size_bytes: int) -> bool:
    stamp = stamp_of_model(path)
    if stamp is None or len(paths_of_model(path)) == 1:
        return stamp is not None and stamp.size_bytes == size_bytes
    try:
        with open_model(path) as source:  # only the parts' headers tell how long the joined file is
            return source.size_bytes == size_bytes
    except ConfigError:
        return False


def _gone(artifact: StageArtifact) -> Refused:
    return Refused(ErrorCode.ARTIFACT_UNKNOWN, f"the stage {artifact.digest[:12]} is no longer on this disk")


def _changed(path: str) -> ConfigError:
    return ConfigError(ErrorCode.GGUF_INVALID, f"{path} changed since it was opened: start the node again")


def _drop_oldest(entries: dict[_K, _V], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]
