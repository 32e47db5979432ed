"""Stages on this disk, cut or received, under their digests; what is being received; and the quota over both.

All of it blocks and runs in worker threads, but for ``release``. Before a stage is written, what broken transfers left
goes, then the least recently used stages, until the new one fits into ``quota_bytes`` and onto the disk. A stage stays
as long as somebody holds it; while all are held the cache may be larger than its quota. Whence a stage comes is
``model_store``'s.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import trio

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.file_holds import FileHolds
from p2pmesh.adapters.model_ledger import ModelLedger
from p2pmesh.adapters.model_source import open_model
from p2pmesh.adapters.partial_files import PartialEntry, PartialFile, PartialFiles
from p2pmesh.adapters.piece_lists import PieceLists
from p2pmesh.adapters.quarantine import put_aside
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.ids import Digest
from p2pmesh.ports.models import StageArtifact
from p2pmesh.wire.pieces import PieceHasher, PieceList

DigestOf = Callable[[files.OpenSource], Digest]


class StageCache:
    """The stages of one home's cache, to be opened before one is written or received."""

    def __init__(
        self, cache_directory: Path, quota_bytes: int, disk: files.Disk, ledger: ModelLedger, digest_of: DigestOf
    ) -> None:
        self.quota_bytes = quota_bytes
        self._cache = cache_directory
        self._directory = cache_directory / "stages"
        self._disk = disk
        self._ledger = ledger
        self._digest_of = digest_of
        self.pieces = PieceLists(cache_directory / "pieces")
        self._partial = PartialFiles(cache_directory / "partial", disk)
        self.holds = FileHolds()
        self._room = threading.Lock()

    def open(self) -> None:
        """Makes the directories and removes what dead processes left; raises ``OSError``."""
        for name in ("stages", "partial", "pieces"):
            directory = self._cache / name
            directory.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(directory)
        self._partial.tidy()

    def pending(self, size_bytes: int) -> AbstractContextManager[files.PendingFile]:
        """A stage to be written, with room made for it; ``Refused(DISK_FULL)``."""
        self.make_room(size_bytes)
        return files.pending_file(self._directory, self._disk)

    def keep(self, pending: files.PendingFile) -> StageArtifact:
        """Gives a whole stage its name, and its writer a hold on it."""
        return self._keep_as(pending.digest, pending)

    def _keep_as(self, digest: Digest, written: files.PendingFile | PartialFile) -> StageArtifact:
        path = self._directory / f"{digest}.gguf"
        with self._room:
            stamp = written.commit(path)
            self.holds.take(digest, path)
        self._ledger.remember_digest(path, stamp, digest)
        return StageArtifact(str(path), digest, stamp.size_bytes)

    def find(self, digest: Digest) -> StageArtifact | None:
        """The stage of this digest, held, if it stands in the cache undamaged; a damaged one is put aside."""
        path = self._directory / f"{digest}.gguf"
        was_there, stamp = path.exists(), files.stamp_of(path)
        with self._room:
            self.holds.take(digest, path)  # first, so that it is not evicted while it is checked
        artifact = None
        try:
            artifact = self._checked_artifact(digest, path)
        finally:
            if artifact is None:
                self.holds.drop(digest)
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

    # --- pieces
    def make_piece_list(self, artifact: StageArtifact) -> PieceList:
        """The hashes of an artifact's pieces, remembered or out of the file, which must be what its digest says."""
        known = self.pieces.find(artifact.digest, artifact.size_bytes)
        if known is not None:
            return known
        hasher, digest = PieceHasher(artifact.size_bytes), hashlib.sha256()
        try:
            with open_model(Path(artifact.path)) as source:
                for portion in files.read_pieces(source, 0, artifact.size_bytes, trio.from_thread.check_cancelled):
                    hasher.update(portion)
                    digest.update(portion)
        except ConfigError as error:
            raise gone(artifact) from error
        if digest.hexdigest() != artifact.digest:
            raise gone(artifact)
        pieces = hasher.finish()
        self.pieces.keep(artifact.digest, pieces)
        return pieces

    # --- receiving
    def start_receiving(self, digest: Digest, pieces: PieceList) -> PartialFile:
        """A file to be received, with what an earlier try left of it; ``Refused(DISK_FULL)``."""
        self._partial.tidy()
        received = self._partial.open(digest, pieces, trio.from_thread.check_cancelled)
        try:
            self.make_room(received.missing_bytes, digest)  # once it is open: what is open stays
        except BaseException:
            received.close()
            raise
        return received

    def keep_received(self, digest: Digest, pieces: PieceList, received: PartialFile) -> None:
        """Checks what has come whole, keeps it and holds it once."""
        self._keep_as(digest, received)
        self.pieces.keep(digest, pieces)

    # --- quota
    def make_room(self, size_bytes: int, receiving: Digest | None = None) -> None:
        """Removes what is in nobody's use until ``size_bytes`` more fit; ``Refused(DISK_FULL)`` if they never can.

        They are what is missing of ``receiving``; what is still to come of others that are received counts as here.
        What broken transfers left goes first, then stages by their last use. Where all of it would not do, all stays.
        """
        with self._room, files.translated(f"cannot use {self._directory}"):
            partial_files = self._partial.entries()
            stages = self._ledger.by_use(list(self._directory.glob("*.gguf")))
            sizes = {path: _size_of(path) for path in stages}
            loose = [(path, size) for path, size in sizes.items() if Digest(path.stem) not in self.holds]
            reclaimable_bytes = sum(entry.size_bytes for entry in partial_files) + sum(size for _, size in loose)
            if self._disk.free_bytes(self._directory) + reclaimable_bytes >= size_bytes:
                used_bytes = self._partial.size_bytes(besides=receiving) + sum(sizes.values())
                self._reclaim(partial_files, loose, used_bytes, size_bytes)
        files.require_free(self._directory, size_bytes, self._disk)

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
        fits_quota = used_bytes + size_bytes <= self.quota_bytes
        return fits_quota and self._disk.free_bytes(self._directory) >= size_bytes


def _size_of(path: Path) -> int:
    """0 for a file that a command has removed meanwhile."""
    stamp = files.stamp_of(path)
    return 0 if stamp is None else stamp.size_bytes


def gone(artifact: StageArtifact) -> Refused:
    """For an artifact that is not what it was."""
    return Refused(ErrorCode.ARTIFACT_UNKNOWN, f"the stage {artifact.digest[:12]} is no longer on this disk")
