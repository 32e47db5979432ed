"""Blocking file work for models: random access, digests while streaming, files that appear whole or not at all.

Owns bytes on disk and the translation of ``OSError``. Which file is wanted, and threads, are ``model_store``'s.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import Digest
from p2pmesh.base.quantities import MIB, format_size
from p2pmesh.model.stage_file import Copy, Literal, Segment

PIECE_BYTES = MIB
TEMPORARY_SUFFIX = ".tmp"

_PROCESS_MARK = secrets.token_hex(4)
"""Tells this process's temporary files from those of a dead one that had the same pid."""

Checkpoint = Callable[[], None]
"""Called between pieces; raises when the work is no longer wanted."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one content of a path from another without reading it."""

    size_bytes: int
    mtime_ns: int
    inode: int


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb", buffering=0)


def _open_partial(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+b", buffering=0)


def _free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


@dataclass(frozen=True, slots=True)
class Disk:
    """What a test cannot provoke of a disk: failing writes, to new files and partial ones, and how much is free."""

    create: Callable[[Path], BinaryIO] = _create
    free_bytes: Callable[[Path], int] = _free_bytes
    open_partial: Callable[[Path], BinaryIO] = _open_partial


class OpenSource(Protocol):
    """An open model: one file, or several that are read as one (``model_source``)."""

    path: Path
    stamp: FileStamp

    @property
    def size_bytes(self) -> int:
        """Length when it was opened."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end."""

    def has_changed(self) -> bool:
        """Whether it is no longer what it was when it was opened."""


class FileSource:
    """A regular file, open for reading at any offset. What goes wrong is a ``ConfigError`` that names the file."""

    __slots__ = ("_descriptor", "path", "stamp")

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not blocking, so that a pipe given as a model is noticed instead of waited for.
        with _readable(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self.stamp = self._regular_stamp()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> "FileSource":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def size_bytes(self) -> int:
        """Length when it was opened."""
        return self.stamp.size_bytes

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end."""
        with _readable(self.path):
            return os.pread(self._descriptor, count, offset)

    def has_changed(self) -> bool:
        """Whether the open file is no longer what it was when it was opened."""
        return _stamp(os.fstat(self._descriptor)) != self.stamp

    def _regular_stamp(self) -> FileStamp:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(ErrorCode.MODEL_NOT_A_FILE, f"{self.path} is not a file: name a GGUF file")
        return _stamp(status)


def stamp_of(path: Path) -> FileStamp | None:
    """The stamp of a regular file; ``None`` if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return _stamp(status) if stat.S_ISREG(status.st_mode) else None


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, status.st_mtime_ns, status.st_ino)


def read_pieces(source: OpenSource, offset: int, size_bytes: int, checkpoint: Checkpoint) -> Iterator[bytes]:
    """``size_bytes`` from ``offset`` in pieces of at most 1 MiB; ``GGUF_TRUNCATED`` if the file ends before."""
    position, end = offset, offset + size_bytes
    while position < end:
        checkpoint()
        piece = source.read_at(position, min(PIECE_BYTES, end - position))
        if not piece:
            raise ConfigError(
                ErrorCode.GGUF_TRUNCATED,
                f"{source.path} ends at byte {position} by now: leave it unchanged while it is in use",
            )
        yield piece
        position += len(piece)


def segment_pieces(source: OpenSource, segments: Iterable[Segment], checkpoint: Checkpoint) -> Iterator[bytes]:
    """The bytes of a planned file whose copies come from ``source``, in pieces of at most 1 MiB but for literals."""
    for segment in segments:
        if isinstance(segment, Literal):
            yield segment.data
        elif isinstance(segment, Copy):
            yield from read_pieces(source, segment.span.offset, segment.span.size_bytes, checkpoint)
        else:
            for start in range(0, segment.size_bytes, PIECE_BYTES):
                yield bytes(min(PIECE_BYTES, segment.size_bytes - start))


def digest_of(source: OpenSource, checkpoint: Checkpoint) -> Digest:
    """sha256 of the whole file."""
    digest = hashlib.sha256()
    for piece in read_pieces(source, 0, source.size_bytes, checkpoint):
        digest.update(piece)
    return Digest(digest.hexdigest())


class PendingFile:
    """A file being written under a temporary name beside its final one; its digest is kept up while writing."""

    __slots__ = ("_digest", "_file", "_path", "written_bytes")

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path: Path | None = directory / temporary_name()
        self._digest = hashlib.sha256()
        self.written_bytes = 0
        with translated(f"cannot write in {directory}"):
            self._file = disk.create(self._path)

    def write(self, data: bytes) -> None:
        """Appends; ``Refused(DISK_FULL)``."""
        view = memoryview(data)
        with translated("cannot write the file"):
            while view:
                view = view[self._file.write(view) :]
        self._digest.update(data)
        self.written_bytes += len(data)

    @property
    def digest(self) -> Digest:
        """sha256 of what was written so far."""
        return Digest(self._digest.hexdigest())

    def commit(self, path: Path) -> FileStamp:
        """Makes the bytes durable and gives them their name, replacing what had it."""
        if self._path is None:
            raise ValueError("the file was committed or discarded before")
        with translated(f"cannot write {path}"):
            os.fsync(self._file.fileno())
            stamp = _stamp(os.fstat(self._file.fileno()))
            self._file.close()
            os.replace(self._path, path)
        self._path = None
        return stamp

    def discard(self) -> None:
        """Removes the temporary file; nothing after a commit. Never raises."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._path = None


@contextmanager
def pending_file(directory: Path, disk: Disk) -> Iterator[PendingFile]:
    """A ``PendingFile`` that leaves nothing behind unless it is committed inside."""
    pending = PendingFile(directory, disk)
    try:
        yield pending
    finally:
        pending.discard()


def write_whole(path: Path, data: bytes) -> None:
    """Puts ``data`` under ``path``: after a crash the old bytes stand there, or the new."""
    with pending_file(path.parent, Disk()) as pending:
        pending.write(data)
        pending.commit(path)


def temporary_name() -> str:
    """A fresh name that says which process will want it."""
    return f".{os.getpid()}.{_PROCESS_MARK}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"


def remove_leftovers(directory: Path) -> None:
    """Removes temporary files of processes that no longer run."""
    for path in leftovers(directory):
        path.unlink(missing_ok=True)


def leftovers(directory: Path) -> Iterator[Path]:
    """Temporary files and directories of processes that no longer run."""
    for path in directory.glob(f".*{TEMPORARY_SUFFIX}"):
        pid, _, rest = path.name[1:].partition(".")
        if not pid.isascii() or not pid.isdigit() or rest.startswith(_PROCESS_MARK):
            continue
        if int(pid) == os.getpid() or not is_running(int(pid)):  # one with our pid is of another mark: it is gone
            yield path


def is_running(pid: int) -> bool:
    """Whether a process of this id is there."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(ErrorCode.MODEL_NOT_FOUND, f"{path} cannot be read: {reason}") from error


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turns an ``OSError`` of writing into ``Refused(DISK_FULL)`` or ``ConfigError(HOME_UNUSABLE)``."""
    try:
        yield
    except OSError as error:
        raise _translation(action, error) from error


def _translation(action: str, error: OSError) -> P2PMeshError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(
            ErrorCode.DISK_FULL, f"{action}: the disk is full; free some space or use a --home on another disk"
        )
    return ConfigError(
        ErrorCode.HOME_UNUSABLE, f"{action}: {error.strerror or error}; check its owner, or choose another --home"
    )


def require_free(directory: Path, size_bytes: int, disk: Disk) -> None:
    """``Refused(DISK_FULL)`` unless ``size_bytes`` fit, so that a long copy does not fail at its end."""
    with translated(f"cannot use {directory}"):
        free = disk.free_bytes(directory)
    if free < size_bytes:
        raise Refused(
            ErrorCode.DISK_FULL,
            f"{format_size(size_bytes)} are needed in {directory} but {format_size(free)} are free: "
            "free some space or use a --home on another disk",
        )
