"""One large file fetched over several connections at once, so that a kill costs next to nothing.

Owns the half-fetched file and its journal, which says how far each connection got; both stay until the file is whole
and its digest is right. What a connection is, and whether an error may pass by itself, is the caller's. Blocking; for a
process of its own.

The journal is written after the bytes that it counts. A process that is killed therefore never counts too much; after a
power cut it might, which the digest finds out, and the file is fetched anew. What a kill loses is what was sent and not
yet read, which is megabytes in the kernels where the server is the faster; connections therefore ask for a little of
their range at once.
"""

import fcntl
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from p2pmesh.base.quantities import KIB, MIB

PIECE_BYTES = 256 * KIB
LEAST_RANGE_BYTES = 16 * MIB
MAX_CONNECTIONS = 16
LEAST_ASKED_BYTES = 256 * KIB
_REQUESTS = 100
PARTIAL_SUFFIX = ".incomplete"
JOURNAL_SUFFIX = ".progress"
LOCK_RETRY_S = 1.0
_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"p2d1"
_COUNT = struct.Struct("<Q")


class Passing(Exception):
    """The connection failed in a way that another attempt may cure."""


class DigestMismatch(Exception):
    """The whole file has another sha256 than it should; it was removed."""


class RangeResponse(Protocol):
    """An answer: where its bytes begin, and the bytes."""

    @property
    def start(self) -> int:
        """Offset in the file of the first byte that comes."""

    def pieces(self) -> Iterator[bytes]:
        """The bytes in pieces; raises ``Passing`` where the connection breaks."""


OpenRange = Callable[[int, int], AbstractContextManager[RangeResponse]]
"""Asks for bytes ``[start, end)`` of the file. A server that knows no ranges answers from 0."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a connection that brings nothing is tried again, and how long after."""

    attempts: int = 5
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0

    def wait_s(self, failures: int) -> float:
        """Before the next attempt, after ``failures`` that brought nothing."""
        return min(self.longest_wait_s, self.first_wait_s * float(2 ** max(0, failures - 1)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The file: where it goes, its length, its sha256 where that is known."""

    path: Path
    size_bytes: int
    digest: str | None = None


def asked_bytes(size_bytes: int, connections: int) -> int:
    """How much each connection asks for at once: all of them together for 1/100 of the file.

    That is what a kill loses at most, wherever the bytes were. The price are a hundred round trips for each connection.
    """
    return max(LEAST_ASKED_BYTES, -(-size_bytes // (_REQUESTS * _number_of_ranges(size_bytes, connections))))


def _number_of_ranges(size_bytes: int, connections: int) -> int:
    return max(1, min(connections, MAX_CONNECTIONS, size_bytes // LEAST_RANGE_BYTES))


def fetched_bytes(path: Path, size_bytes: int) -> int:
    """How much of a file is here already: whole, or by the journal of a half one."""
    if path.exists():
        return size_bytes
    try:
        with path.with_name(path.name + JOURNAL_SUFFIX).open("rb") as file:
            journal = file.read(_HEAD.size + MAX_CONNECTIONS * _COUNT.size)
    except OSError:
        return 0
    counts = _parse_journal(journal, size_bytes)
    return sum(counts) if counts is not None else 0


def download(
    wanted: Wanted, connections: int, open_range: OpenRange, patience: Patience, note: Callable[[int], None]
) -> None:
    """Fetches what is missing of the file and gives it its name once it is whole and right.

    ``note`` hears of each number of bytes that were written (from several threads), negative where bytes were thrown
    away, 0 as a sign of life while the file is read for its digest or another process holds it. Raises ``Passing`` when
    patience is over, ``DigestMismatch``, ``OSError`` of the disk, and whatever else ``open_range`` raises.
    """
    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    with _Partial.alone(wanted, connections, note) as partial:
        if wanted.path.exists():
            return  # another process fetched it while we waited for the lock
        was_resumed = partial.written_bytes > 0
        if not _fill(partial, open_range, patience, note) or not partial.is_right(note):
            note(-partial.written_bytes)
            partial.start_over(connections=1 if partial.has_no_ranges else connections)
            if not (was_resumed or partial.has_no_ranges):
                partial.remove()
                raise DigestMismatch
            _fill(partial, open_range, patience, note)
            if not partial.is_right(note):
                partial.remove()
                raise DigestMismatch
        partial.finish()


class _Partial:
    """The half-fetched file and its journal, held by this process alone."""

    def __init__(self, wanted: Wanted, journal: int, connections: int) -> None:
        self._wanted = wanted
        self._journal = journal
        self._data_path = wanted.path.with_name(wanted.path.name + PARTIAL_SUFFIX)
        self._journal_path = wanted.path.with_name(wanted.path.name + JOURNAL_SUFFIX)
        self.has_no_ranges = False
        self.counts: list[int] = []
        known = _parse_journal(os.pread(journal, 4096, 0), wanted.size_bytes)
        self._data = os.open(self._data_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # the journal's lock is what counts; this one is seen by who removes files
            fcntl.flock(self._data, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if known is None or os.fstat(self._data).st_size != wanted.size_bytes:
            self.start_over(connections)
        else:
            self.counts = list(known)

    @classmethod
    @contextmanager
    def alone(cls, wanted: Wanted, connections: int, note: Callable[[int], None]) -> "Iterator[_Partial]":
        """Waits until no other process fetches the same file."""
        path = wanted.path.with_name(wanted.path.name + JOURNAL_SUFFIX)
        journal = _open_locked(path, note)
        try:
            partial = cls(wanted, journal, connections)
            try:
                yield partial
            finally:
                os.close(partial._data)
        finally:
            os.close(journal)

    @property
    def written_bytes(self) -> int:
        """All connections together."""
        return sum(self.counts)

    def bounds(self) -> list[tuple[int, int]]:
        """The range of each connection."""
        number, size_bytes = len(self.counts), self._wanted.size_bytes
        return [(i * size_bytes // number, (i + 1) * size_bytes // number) for i in range(number)]

    def start_over(self, connections: int) -> None:
        """Forgets what was fetched."""
        number = _number_of_ranges(self._wanted.size_bytes, connections)
        self.counts = [0] * number
        os.ftruncate(self._data, 0)
        os.ftruncate(self._data, self._wanted.size_bytes)
        head = _HEAD.pack(_MAGIC, number, self._wanted.size_bytes)
        os.ftruncate(self._journal, 0)
        os.pwrite(self._journal, head + bytes(_COUNT.size * number), 0)

    @property
    def asked_bytes(self) -> int:
        """What a connection asks for at once."""
        return asked_bytes(self._wanted.size_bytes, len(self.counts))

    def write(self, number: int, data: bytes) -> None:
        """The next bytes of one connection; the journal follows."""
        offset = self.bounds()[number][0] + self.counts[number]
        view = memoryview(data)
        while view:
            done = os.pwrite(self._data, view, offset)
            view, offset = view[done:], offset + done
        self.counts[number] += len(data)
        os.pwrite(self._journal, _COUNT.pack(self.counts[number]), _HEAD.size + _COUNT.size * number)

    def is_right(self, note: Callable[[int], None]) -> bool:
        """Whether every byte is here and their sha256 is the wanted one."""
        if self.written_bytes != self._wanted.size_bytes:
            return False
        if self._wanted.digest is None:
            return True
        digest, offset = hashlib.sha256(), 0
        while offset < self._wanted.size_bytes:
            piece = os.pread(self._data, PIECE_BYTES, offset)
            if not piece:
                return False
            digest.update(piece)
            offset += len(piece)
            note(0)
        return digest.hexdigest() == self._wanted.digest

    def finish(self) -> None:
        """The file gets its name; the journal goes."""
        os.fsync(self._data)
        os.replace(self._data_path, self._wanted.path)
        self._journal_path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Nothing stays."""
        self._data_path.unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)


def _open_locked(path: Path, note: Callable[[int], None]) -> int:
    """The journal, locked. The one who held it before may have removed it meanwhile: then a fresh one."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor, note)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, note: Callable[[int], None]) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(0)
            time.sleep(LOCK_RETRY_S)
        else:
            return


def _parse_journal(data: bytes, size_bytes: int) -> tuple[int, ...] | None:
    """Bytes that each connection wrote; ``None`` for a journal that is not of a file of this length."""
    if len(data) < _HEAD.size:
        return None
    magic, number, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or length != size_bytes or not 1 <= number <= MAX_CONNECTIONS:
        return None
    if len(data) < _HEAD.size + number * _COUNT.size:
        return None
    counts = struct.unpack_from(f"<{number}Q", data, _HEAD.size)
    limits = [(i + 1) * size_bytes // number - i * size_bytes // number for i in range(number)]
    return counts if all(count <= limit for count, limit in zip(counts, limits, strict=True)) else None


def _fill(partial: _Partial, open_range: OpenRange, patience: Patience, note: Callable[[int], None]) -> bool:
    """Fetches every range; ``False`` where the server knows no ranges and several were asked for."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            _fill_range(partial, number, open_range, patience, note, stop)
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: raised again in the caller's
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(partial.counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(isinstance(error, _NoRanges) for error in errors):
        partial.has_no_ranges = True
        return False
    if errors:
        raise errors[0]
    return True


class _NoRanges(Exception):
    """The server sends whole files only."""


def _fill_range(
    partial: _Partial,
    number: int,
    open_range: OpenRange,
    patience: Patience,
    note: Callable[[int], None],
    stop: threading.Event,
) -> None:
    start, end = partial.bounds()[number]
    failures = 0
    while start + partial.counts[number] < end and not stop.is_set():
        before = partial.counts[number]
        try:
            _read_some(partial, number, open_range, note, stop)
        except Passing:
            failures = 1 if partial.counts[number] > before and not partial.has_no_ranges else failures + 1
            if failures >= patience.attempts:
                raise
            stop.wait(patience.wait_s(failures))
        else:
            failures = 0


def _read_some(
    partial: _Partial, number: int, open_range: OpenRange, note: Callable[[int], None], stop: threading.Event
) -> None:
    """One request. A server without ranges sends all that follows too, which is taken."""
    end = partial.bounds()[number][1]
    position = partial.bounds()[number][0] + partial.counts[number]
    asked_end = end if partial.has_no_ranges else min(end, position + partial.asked_bytes)
    with open_range(position, asked_end) as response:
        if response.start != position:
            if response.start != 0 or len(partial.counts) > 1 or not partial.has_no_ranges:
                raise _NoRanges
            note(-partial.counts[number])
            partial.start_over(1)
            position = 0
        for piece in response.pieces():  # to its end, which leaves the connection to the next request
            if stop.is_set() or position == end:
                return
            piece = piece[: end - position]
            partial.write(number, piece)
            note(len(piece))
            position += len(piece)
    if position < asked_end:
        raise Passing("the connection ended early")
