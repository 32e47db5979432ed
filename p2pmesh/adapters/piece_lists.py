"""Piece lists of files on this disk, kept beside their digests, since to make one reads the whole file.

One small file each, a bounded number of them; every one can be made again, so a damaged one is not there. Blocking.
"""

import contextlib
import hashlib
from pathlib import Path

from p2pmesh.adapters import model_files as files
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import Digest
from p2pmesh.wire.pieces import HASH_BYTES, PieceList, piece_count_of, single_piece_list

MAX_LISTS = 2048
_TRIMMED_TO = 1536


class PieceLists:
    """The lists of one home."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, digest: Digest, size_bytes: int) -> PieceList | None:
        """The list of a file, if it is known; a file of one piece needs none."""
        single = single_piece_list(digest, size_bytes)
        if single is not None:
            return single
        length = HASH_BYTES * piece_count_of(size_bytes)
        try:
            with (self._directory / digest).open("rb") as file:
                raw = file.read(length + HASH_BYTES + 1)
        except OSError:
            return None
        hashes, check = raw[:length], raw[length:]
        return PieceList(size_bytes, hashes) if check == hashlib.sha256(hashes).digest() else None

    def keep(self, digest: Digest, pieces: PieceList) -> None:
        """Remembers a list; a disk that has no room for it is no error."""
        if pieces.count == 1:
            return
        with contextlib.suppress(P2PMeshError, OSError):
            files.write_whole(self._directory / digest, pieces.hashes + hashlib.sha256(pieces.hashes).digest())
            self._trim()

    def _trim(self) -> None:
        paths = list(self._directory.iterdir())
        if len(paths) <= MAX_LISTS:
            return
        by_age = sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in by_age[: len(by_age) - _TRIMMED_TO]:
            path.unlink(missing_ok=True)
