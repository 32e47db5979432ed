"""Files that are being received in pieces: what came of them outlives a broken transfer and a killed process.

Owns the two files of each, beside each other::

    <digest>.part      the file, as long as it is to be, with holes
    <digest>.journal   the digest of its piece list, then the number of each piece that was written (u32)

A number is appended after its piece was written, so after a kill the journal names no piece that is not there. After a
power cut it may: a piece found counts only once its hash was checked again, which costs no network. Blocking.
"""

import contextlib
import errno
import hashlib
import os
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.file_claims import claim, claim_open, claimed_alone, end_claim
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import Digest, is_digest
from p2pmesh.wire.pieces import PieceList

MAX_PARTIAL_FILES = 16
MAX_AGE_S = 7 * 24 * 3600.0
PART_SUFFIX = ".part"
JOURNAL_SUFFIX = ".journal"
_CLAIM_ATTEMPTS = 100
_CLAIM_RETRY_S = 0.01
_HEAD_BYTES = 64
_ENTRY = struct.Struct("<I")
_UNUSABLE_PIECES = 4
"""A journal is read up to so many times as many entries as there are pieces."""


@dataclass(frozen=True, slots=True)
class PartialEntry:
    """What a broken transfer left; ``size_bytes`` on the disk, without the holes."""

    digest: Digest
    size_bytes: int
    changed_at_s: float


class PartialFiles:
    """All of one directory. What is open here is claimed, so that no other process removes it."""

    def __init__(self, directory: Path, disk: files.Disk) -> None:
        self._directory = directory
        self._disk = disk

    def entries(self) -> list[PartialEntry]:
        """Those that nobody is receiving, the oldest first."""
        found = []
        for path in self._directory.glob(f"*{PART_SUFFIX}"):
            with contextlib.suppress(OSError), claimed_alone(path) as is_free:
                status = path.stat()
                if is_free and is_digest(path.stem):
                    found.append(PartialEntry(Digest(path.stem), status.st_blocks * 512, status.st_mtime))
        return sorted(found, key=lambda entry: (entry.changed_at_s, entry.digest))

    def size_bytes(self, besides: Digest | None = None) -> int:
        """What all take on the disk; those that are being received, but for ``besides``, as if they were whole."""
        total = 0
        for path in self._directory.glob(f"*{PART_SUFFIX}"):
            with contextlib.suppress(OSError), claimed_alone(path) as is_free:
                status = path.stat()
                total += status.st_blocks * 512 if is_free or path.stem == besides else status.st_size
        return total

    def remove(self, digest: Digest) -> None:
        """Both files of one; nothing where somebody is receiving it."""
        part, journal = self._paths(digest)
        with claimed_alone(part) as is_free:
            if is_free:
                with files.translated(f"cannot remove {part}"):
                    journal.unlink(missing_ok=True)
                    part.unlink(missing_ok=True)

    def tidy(self, now_s: float | None = None) -> None:
        """Removes the old, and the oldest of too many."""
        entries = self.entries()
        oldest_s = (time.time() if now_s is None else now_s) - MAX_AGE_S
        for number, entry in enumerate(entries):
            if entry.changed_at_s < oldest_s or number < len(entries) - MAX_PARTIAL_FILES:
                self.remove(entry.digest)
        for path in self._directory.glob(f"*{JOURNAL_SUFFIX}"):
            if not path.with_suffix(PART_SUFFIX).exists():
                _unlink(path)

    def open(self, digest: Digest, pieces: PieceList, checkpoint: files.Checkpoint) -> "PartialFile":
        """The file of this digest, with what is there of it; ``ConfigError(HOME_UNUSABLE)``, ``Refused(DISK_FULL)``."""
        part, journal = self._paths(digest)
        claimed: list[int] = []
        try:
            with files.translated(f"cannot write {part}"):
                return PartialFile(part, journal, digest, pieces, self._disk, claimed, checkpoint)
        except BaseException:
            end_claim(claimed)
            raise

    def _paths(self, digest: Digest) -> tuple[Path, Path]:
        return self._directory / f"{digest}{PART_SUFFIX}", self._directory / f"{digest}{JOURNAL_SUFFIX}"


class PartialFile:
    """One file under way. Not for two threads at a time."""

    def __init__(
        self,
        part: Path,
        journal: Path,
        digest: Digest,
        pieces: PieceList,
        disk: files.Disk,
        claimed: list[int],
        checkpoint: files.Checkpoint,
    ) -> None:
        self._part, self._journal = part, journal
        self._wanted = digest
        self._pieces = pieces
        self._whole = hashlib.sha256()
        self._hashed = 0
        """Pieces from the first on that are in ``_whole``."""
        self._have: set[int] = set()
        listed = _read_journal(journal, pieces)
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(_open_claimed(part, disk))
            self._claimed = claimed
            os.ftruncate(self._file.fileno(), pieces.size_bytes)
            self._take_listed(listed, checkpoint)
            self._log = stack.enter_context(_rewritten_journal(journal, pieces, sorted(self._have)))
            claimed += claim((journal,))
            self._stack = stack.pop_all()

    @property
    def have(self) -> tuple[int, ...]:
        """Pieces that are there and were checked, in order."""
        return tuple(sorted(self._have))

    @property
    def missing_bytes(self) -> int:
        """What is still to come."""
        return self._pieces.size_bytes - sum(self._pieces.length_of(piece) for piece in self._have)

    def write(self, piece: int, data: bytes) -> None:
        """Puts a checked piece where it belongs; nothing for one that is there. ``Refused(DISK_FULL)``."""
        if piece in self._have:
            return
        with files.translated(f"cannot write {self._part}"):
            self._file.seek(piece * self._pieces.piece_bytes)
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            self._log.write(_ENTRY.pack(piece))
        self._have.add(piece)
        if piece == self._hashed:
            self._add_to_whole(data)

    def commit(self, path: Path) -> files.FileStamp:
        """Checks the whole and gives it its name; ``ARTIFACT_CORRUPT`` for another digest, and then nothing stays."""
        if len(self._have) < self._pieces.count:
            raise RemoteProtocolError(
                ErrorCode.ARTIFACT_CORRUPT, f"{len(self._have)} of {self._pieces.count} pieces came: fetch the rest"
            )
        if self._whole.hexdigest() != self._wanted:
            self.discard()
            raise RemoteProtocolError(
                ErrorCode.ARTIFACT_CORRUPT,
                f"its pieces fit their list, but make the digest {self._whole.hexdigest()[:12]} instead of "
                f"{self._wanted[:12]}: whoever named the file named another list",
            )
        with files.translated(f"cannot write {path}"):
            os.fsync(self._file.fileno())
            os.replace(self._part, path)
        self.close()
        self._journal.unlink(missing_ok=True)
        stamp = files.stamp_of(path)
        assert stamp is not None
        return stamp

    def close(self) -> None:
        """Keeps what is there for another time; without a piece nothing is kept. Never raises."""
        if not self._have:
            _unlink(self._part, self._journal)
        with contextlib.suppress(OSError):
            self._stack.close()
        end_claim(self._claimed)
        self._claimed = []

    def discard(self) -> None:
        """Keeps nothing."""
        self._have.clear()
        self.close()

    def _take_listed(self, listed: Iterable[int], checkpoint: files.Checkpoint) -> None:
        for piece in listed:
            checkpoint()
            data = self._read(piece)
            if self._pieces.is_piece(piece, data):
                self._have.add(piece)
                if piece == self._hashed:
                    self._add_to_whole(data)

    def _add_to_whole(self, data: bytes) -> None:
        """The next piece, and those after it that came before."""
        self._whole.update(data)
        self._hashed += 1
        while self._hashed in self._have:
            self._whole.update(self._read(self._hashed))
            self._hashed += 1

    def _read(self, piece: int) -> bytes:
        length = self._pieces.length_of(piece)
        return os.pread(self._file.fileno(), length, piece * self._pieces.piece_bytes)


def _open_claimed(part: Path, disk: files.Disk) -> BinaryIO:
    """The file, claimed under its name. Whoever looks for what to remove has it alone for a moment, or removes it."""
    for _ in range(_CLAIM_ATTEMPTS):
        file = disk.open_partial(part)
        if claim_open(file.fileno(), part):
            return file
        file.close()
        time.sleep(_CLAIM_RETRY_S)
    raise OSError(errno.EBUSY, "another process has it for itself")


def _unlink(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _read_journal(path: Path, pieces: PieceList) -> list[int]:
    """Pieces that are said to be there; none if the journal is of another list, or damaged at its head."""
    most = _HEAD_BYTES + _UNUSABLE_PIECES * pieces.count * _ENTRY.size
    try:
        with path.open("rb") as file:
            raw = file.read(most)
    except OSError:
        return []
    if raw[:_HEAD_BYTES] != pieces.digest.encode():
        return []
    whole = len(raw) - (len(raw) - _HEAD_BYTES) % _ENTRY.size  # a kill may have cut the last entry
    numbers = {number for (number,) in _ENTRY.iter_unpack(raw[_HEAD_BYTES:whole])}
    return sorted(number for number in numbers if number < pieces.count)


@contextlib.contextmanager
def _rewritten_journal(path: Path, pieces: PieceList, have: list[int]) -> Iterator["_Appender"]:
    """The journal with what was found to be there, open at its end."""
    files.write_whole(path, pieces.digest.encode() + b"".join(_ENTRY.pack(piece) for piece in have))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        yield _Appender(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Appender:
    """One write, one entry: whole after a kill, or not there."""

    descriptor: int

    def write(self, entry: bytes) -> None:
        os.write(self.descriptor, entry)
