"""Models on this machine's disk: reading them, cutting stages, keeping received ones (``ports.models.ModelStore``).

Owns the layout of the home's cache and who may work on a file at the same time. Reading models is ``model_reader``'s,
the files of stages and their quota ``stage_cache``'s, the bytes of a stage ``model.stage_file``'s, which model a name
means ``model_names``', what is remembered between runs ``model_ledger``'s.

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

A stage handed out stays until each of its holders has called ``release``.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.hub_cache import HubCache
from p2pmesh.adapters.model_ledger import ModelLedger
from p2pmesh.adapters.model_names import PIP_SOURCE, ModelNames, NamedModel
from p2pmesh.adapters.model_packages import PackagedModel, installed_models
from p2pmesh.adapters.model_reader import ModelReader
from p2pmesh.adapters.model_source import open_model, paths_of_model, stamp_of_model
from p2pmesh.adapters.package_files import (
    assembled_package,
    fragments_of_range,
    is_package,
    remove_assembled,
    usable_manifest,
)
from p2pmesh.adapters.partial_files import PartialFile
from p2pmesh.adapters.stage_cache import StageCache, gone
from p2pmesh.base import limits
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange, is_digest
from p2pmesh.base.quantities import GIB, KIB, format_size
from p2pmesh.model.cost import decode_reads, sequence_bytes
from p2pmesh.model.gguf import GgufIndex, read_index
from p2pmesh.model.reference import HUB_HOSTS, HubReference
from p2pmesh.model.stage_file import STAGE_FORMAT, StageFilePlan, plan_stage_file
from p2pmesh.ports.models import ArtifactReception, ModelFile, StageArtifact, StageReads
from p2pmesh.wire.pieces import PieceHasher, PieceList

DEFAULT_QUOTA_BYTES = 64 * GIB

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


class DiskModelStore:
    """The store of one home. Construct it once per process and home; construction removes what dead processes left.

    With a ``hub_cache`` that is only read it only looks, too: no directory is made, nothing removed, and a home that
    nobody may write, or that is not there, is as good as any. Otherwise raises ``ConfigError(HOME_UNUSABLE)`` when the
    directories cannot be made, ``Refused(DISK_FULL)``.
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
        disk = disk if disk is not None else files.Disk()
        joined, assembled = cache_directory / "models", cache_directory / "packages"
        self._packages = assembled
        self.hub_cache = hub_cache if hub_cache is not None else HubCache(cache_directory / "hub")
        self._ledger = ModelLedger(cache_directory / "ledger.json")
        self._reader = ModelReader(self._ledger, disk)
        self._stages = StageCache(cache_directory, quota_bytes, disk, self._ledger, self._reader.digest_of)
        if not self.hub_cache.is_reading:
            with files.translated(f"cannot use {cache_directory}"):
                for directory in (models_directory, cache_directory, joined):
                    directory.mkdir(parents=True, exist_ok=True)
                    files.remove_leftovers(directory)
                assembled.mkdir(exist_ok=True)
                remove_assembled(assembled)
                self._stages.open()
        self._names = ModelNames(models_directory, joined, packages, self.hub_cache, hub_hosts)
        self._models: dict[Digest, ModelFile] = {}
        self._fragments: dict[Digest, Path] = {}
        self._locks = _KeyedLocks()
        self._limiter = trio.CapacityLimiter(_WORKERS)
        self._quick_limiter = trio.CapacityLimiter(_QUICK_WORKERS)

    async def change_quota(self, quota_bytes: int) -> None:
        """Files of stages and of broken transfers are held to so much from now on; what is in use stays."""
        self._stages.quota_bytes = quota_bytes
        with contextlib.suppress(Refused):  # a disk that is full is told to whoever wants to write
            await self._run(lambda: self._stages.make_room(0))

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
        """As ``list_models``, from headers alone: no digest is made, which would read every file whole, and no packaged
        parts are joined. Without ``with_packages`` what pip installed is left out.
        """
        found: list[tuple[NamedModel, GgufIndex]] = []
        for named in await self._run(self._names.all):
            if named.source == PIP_SOURCE and not with_packages:
                continue
            with contextlib.suppress(ConfigError):
                found.append((named, await self._run(partial(self._reader.index_of_named, named))))
        return tuple(sorted(found, key=lambda entry: (entry[0].name, str(entry[0].path))))

    async def unusable(self) -> tuple[tuple[Path, str], ...]:
        """What lies among the home's models under a model's name and cannot be read as one, and why; by path."""
        return await self._run(self._find_unusable)

    def _find_unusable(self) -> tuple[tuple[Path, str], ...]:
        found = [(path, f"{', '.join(missing[:3])} is missing") for path, missing in self._names.incomplete()]
        for named in self._names.in_home():
            try:
                self._reader.index_of_named(named)
            except ConfigError as error:
                found.append((named.path, error.message.removeprefix(f"{named.path}").lstrip(": ")))
        return tuple(sorted(found))

    async def find_by_digest(self, digest: Digest, size_bytes: int) -> ModelFile | None:
        """A local whole model with this digest, if any. Only files of the right size are read."""
        known = await self._run(lambda: self._unchanged_model(digest))
        if known is not None:
            return known
        for named in await self._run(self._names.all):
            if not await self._run(partial(_may_be, named, digest, size_bytes)):
                continue
            with contextlib.suppress(ConfigError, Refused):  # packaged parts that no disk has room to join
                model = await self.load(named)
                if model.digest == digest:
                    return model
        return None

    async def adopt(self, name: str, artifact: StageArtifact) -> ModelFile:
        """A whole model that came from peers and lies among their files; its holder keeps it there."""
        model = await self.load(NamedModel(name, Path(artifact.path)))
        if model.digest != artifact.digest:
            raise _changed(artifact.path)
        return model

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
                    return await self._run(lambda: self._stages.find(model.digest) or self._write_model(model))
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
        found = await self._run(lambda: fragments_of_range(path, model.index, layers, self._reader.digest_of))
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
        self._stages.holds.drop(digest)

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
        known = await self._run_quick(lambda: self._stages.pieces.find(artifact.digest, artifact.size_bytes))
        if known is not None:
            return known
        async with self._locks.holding(f"pieces:{artifact.digest}"):
            return await self._run(lambda: self._stages.make_piece_list(artifact))

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
            raise gone(artifact) from error
        with source:
            if source.size_bytes != artifact.size_bytes:
                raise gone(artifact)
            while offset < end:
                count = min(_PORTION_BYTES, end - offset)
                portion = await self._run_quick(partial(source.read_at, offset, count))
                if not portion:
                    raise gone(artifact)
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
                return self._reader.digest_of(source) == digest

        return await self._run(compare)

    def note_digest(self, path: Path, digest: Digest) -> None:
        """Somebody has just read the whole file, and this is its digest. Blocking."""
        stamp = files.stamp_of(path)
        if stamp is not None:
            self._ledger.remember_digest(path, stamp, digest)

    def check(self, named: NamedModel) -> None:
        """Reads the head of a model that ``find`` found, blocking; raises as ``load``. Joins no packaged parts."""
        if named.package is None:
            with self._reader.open(named.path) as source:
                self._reader.index_of(source)

    async def load(self, named: NamedModel) -> ModelFile:
        """Reads a model that ``find`` found; ``ConfigError`` says what is wrong with its files."""
        async with self._locks.holding(str(named.path)):
            read = self._reader.inspect if self.hub_cache.is_reading else self._reader.load
            model = await self._run(lambda: read(named))
        self._models[model.digest] = model
        _drop_oldest(self._models, _MAX_MODELS)
        return model

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
        self._stages.holds.take(model.digest, *paths_of_model(Path(model.path)))

    def _cut_or_recall(self, key: str, model: ModelFile, layers: LayerRange) -> StageArtifact:
        digest = self._ledger.cut(key)
        kept = self._stages.find(digest) if digest is not None else None
        return kept if kept is not None else self._write_cut(key, model, layers)

    def _write_cut(self, key: str, model: ModelFile, layers: LayerRange) -> StageArtifact:
        with self._reader.open(Path(model.path)) as source:
            self._require_same(source, model)
            artifact = self._write_stage(source, plan_stage_file(model.index, layers))
        self._ledger.remember_cut(key, artifact.digest)
        return artifact

    def _write_stage(self, source: files.OpenSource, plan: StageFilePlan) -> StageArtifact:
        hasher = PieceHasher(plan.size_bytes)
        with self._stages.pending(plan.size_bytes) as pending:
            for portion in files.segment_pieces(source, plan.segments, trio.from_thread.check_cancelled):
                pending.write(portion)
                hasher.update(portion)
            if source.has_changed():
                raise _changed(str(source.path))
            artifact = self._stages.keep(pending)
        self._stages.pieces.keep(artifact.digest, hasher.finish())
        return artifact

    def _assemble(
        self, fragments: tuple[StageArtifact, ...], model_digest: Digest, layers: LayerRange
    ) -> StageArtifact:
        """That a manifest names this model is its word only, so the cut is not remembered as one of the model."""
        with assembled_package(self._packages, fragments) as source:
            if source.digest != model_digest:
                raise ConfigError(ErrorCode.PACKAGE_INVALID, "the package that was fetched is of another model")
            return self._write_stage(source, plan_stage_file(source.index, layers))

    def _write_model(self, model: ModelFile) -> StageArtifact:
        """The file of a model that is a layer package."""
        with self._reader.open(Path(model.path)) as source:
            self._require_same(source, model)
            with self._stages.pending(model.size_bytes) as pending:
                for piece in files.read_pieces(source, 0, model.size_bytes, trio.from_thread.check_cancelled):
                    pending.write(piece)
                if pending.digest != model.digest:
                    text = f"{model.path} does not give back the model that it names; see p2pmesh package verify"
                    raise ConfigError(ErrorCode.PACKAGE_INVALID, text)
                return self._stages.keep(pending)

    def _require_same(self, source: files.OpenSource, model: ModelFile) -> None:
        """The file must still be what its index says; a stamp seen before answers without reading it."""
        if source.size_bytes != model.size_bytes or self._reader.digest_of_model(source) != model.digest:
            raise _changed(model.path)

    def _artifact_or_model(self, digest: Digest) -> StageArtifact | None:
        model = self._unchanged_model(digest)
        if model is not None and not is_package(Path(model.path)):
            self._hold_model(model)
            return StageArtifact(model.path, model.digest, model.size_bytes)
        return self._stages.find(digest) or self._unchanged_fragment(digest)

    def _unchanged_fragment(self, digest: Digest) -> StageArtifact | None:
        """A file of a layer package of the operator's, as long as it is what it was."""
        path = self._fragments.get(digest)
        if path is None:
            return None
        with contextlib.suppress(ConfigError), files.FileSource(path) as source:
            if self._reader.digest_of(source) == digest:
                self._stages.holds.take(digest, path)
                return StageArtifact(str(path), digest, source.size_bytes)
        return None

    # --- receiving

    @asynccontextmanager
    async def _receiving(self, digest: Digest, pieces: PieceList) -> AsyncIterator[ArtifactReception]:
        size_bytes = pieces.size_bytes
        if not is_digest(digest) or not 0 < size_bytes <= limits.MAX_ARTIFACT_BYTES:
            raise RemoteProtocolError(
                ErrorCode.ARTIFACT_CORRUPT, f"no stage has {size_bytes} bytes and the digest {digest[:64]!r}"
            )
        quota_bytes = self._stages.quota_bytes
        if size_bytes > quota_bytes:
            text = f"the file has {format_size(size_bytes)}, {format_size(quota_bytes)} are for files of peers"
            raise Refused(ErrorCode.DISK_FULL, f"{text}: start the node with a larger --cache-quota")
        async with self._locks.holding(f"receive:{digest}"):
            received = await self._run(lambda: self._stages.start_receiving(digest, pieces))
            try:
                yield _Reception(received, self._run_quick)
                await self._run(lambda: self._stages.keep_received(digest, pieces, received))
            finally:
                received.close()


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


def _stage_memory_bytes(path: Path, context_tokens: int, lanes: int) -> int:
    def needed(index: GgufIndex) -> int:
        return sum(tensor.size_bytes for tensor in index.tensors) + sequence_bytes(index, context_tokens, lanes)

    return _of_stage_file(path, needed)


def _stage_reads(path: Path, *, is_last: bool) -> StageReads:
    def reads_of(index: GgufIndex) -> StageReads:
        layers, output = decode_reads(index)
        return StageReads(index.architecture, sum(layers) + output * is_last, output * is_last)

    return _of_stage_file(path, reads_of)


def _of_stage_file(path: Path, compute: Callable[[GgufIndex], _T]) -> _T:
    with open_model(path) as source:
        try:
            return compute(read_index(source))
        except RemoteProtocolError as error:
            raise ConfigError(error.code, f"a stage file cannot be used: {error.message}") from error


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


def _has_size(path: Path, size_bytes: int) -> bool:
    stamp = stamp_of_model(path)
    if stamp is None or len(paths_of_model(path)) == 1:
        return stamp is not None and stamp.size_bytes == size_bytes
    try:
        with open_model(path) as source:  # only the parts' headers tell how long the joined file is
            return source.size_bytes == size_bytes
    except ConfigError:
        return False


def _changed(path: str) -> ConfigError:
    return ConfigError(ErrorCode.GGUF_INVALID, f"{path} changed since it was opened: start the node again")


def _drop_oldest(entries: dict[_K, _V], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]
