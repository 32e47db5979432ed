"""Holds on files of this home: as long as there is one, neither the quota nor another process takes the file."""

import threading
from pathlib import Path

from p2pmesh.adapters.file_claims import claim, end_claim
from p2pmesh.base.ids import Digest


class FileHolds:
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
