"""Pieces of an artifact, and the list of their hashes by which each is checked on its own.

Owns how a file is cut into pieces, and the list's bytes. Which piece is asked of whom is ``core.transfer``'s.
Normative: ``protocols/artifacts.md``.
"""

import hashlib
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import Digest
from p2pmesh.base.limits import MAX_PIECE_BYTES, MIN_PIECE_BYTES

HASH_BYTES = 32
FEW_PIECES = 2048
"""Pieces grow from the smallest size until a file has no more than so many of them: a transfer that is broken off
loses what it has of the pieces under way, and that shall be little of a small file; the list of a large one short."""


def piece_bytes_of(size_bytes: int) -> int:
    """Length of every piece but the last of a file: a power of two, 256 KiB to 4 MiB."""
    piece_bytes = MIN_PIECE_BYTES
    while piece_bytes < MAX_PIECE_BYTES and size_bytes > FEW_PIECES * piece_bytes:
        piece_bytes *= 2
    return piece_bytes


def piece_count_of(size_bytes: int) -> int:
    """How many pieces a file has."""
    return -(-size_bytes // piece_bytes_of(size_bytes))


@dataclass(frozen=True, slots=True)
class PieceList:
    """The hashes of the pieces of a file of ``size_bytes``, one after another."""

    size_bytes: int
    hashes: bytes

    @property
    def piece_bytes(self) -> int:
        """Length of every piece but the last."""
        return piece_bytes_of(self.size_bytes)

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.hashes) // HASH_BYTES

    @property
    def digest(self) -> Digest:
        """sha256 of the list: what names it."""
        return Digest(hashlib.sha256(self.hashes).hexdigest())

    def length_of(self, piece: int) -> int:
        """Bytes of one piece."""
        return min(self.piece_bytes, self.size_bytes - piece * self.piece_bytes)

    def hash_of(self, piece: int) -> bytes:
        """sha256 of one piece."""
        return self.hashes[piece * HASH_BYTES : (piece + 1) * HASH_BYTES]

    def is_piece(self, piece: int, data: bytes) -> bool:
        """Whether ``data`` is that piece."""
        return hashlib.sha256(data).digest() == self.hash_of(piece)


def single_piece_list(digest: Digest, size_bytes: int) -> PieceList | None:
    """The list of a file of one piece, whose hash is the file's; None for a longer one."""
    return PieceList(size_bytes, bytes.fromhex(digest)) if piece_count_of(size_bytes) == 1 else None


def checked_piece_list(hashes: bytes, size_bytes: int, wanted: Digest) -> PieceList:
    """The list that ``wanted`` names; ``ARTIFACT_CORRUPT`` for any other bytes."""
    pieces = PieceList(size_bytes, hashes)
    if len(hashes) != HASH_BYTES * piece_count_of(size_bytes) or pieces.digest != wanted:
        raise RemoteProtocolError(ErrorCode.ARTIFACT_CORRUPT, f"the bytes are not the piece list {wanted[:12]}")
    return pieces


class PieceHasher:
    """Makes the list of a file whose length is known while its bytes go by, in any portions."""

    __slots__ = ("_hashes", "_left", "_piece", "_piece_bytes", "_size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._piece_bytes = piece_bytes_of(size_bytes)
        self._piece = hashlib.sha256()
        self._left = self._piece_bytes
        self._hashes: list[bytes] = []

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        view = memoryview(data)
        while view:
            part, view = view[: self._left], view[self._left :]
            self._piece.update(part)
            self._left -= len(part)
            if not self._left:
                self._end_piece()

    def finish(self) -> PieceList:
        """The list; ``ValueError`` unless as many bytes went by as were announced."""
        if self._left < self._piece_bytes:
            self._end_piece()
        if len(self._hashes) != piece_count_of(self._size_bytes):
            raise ValueError(f"{len(self._hashes)} pieces of a file of {self._size_bytes} bytes")
        return PieceList(self._size_bytes, b"".join(self._hashes))

    def _end_piece(self) -> None:
        self._hashes.append(self._piece.digest())
        self._piece = hashlib.sha256()
        self._left = self._piece_bytes
