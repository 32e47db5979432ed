"""What the model cache remembers between runs: digests of files, and which cut gave which file.

A bounded JSON file, written atomically. Everything in it can be found out again, so a damaged one is forgotten and a
failed write is no error.
"""

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TypeVar

from p2pmesh.adapters.model_files import FileStamp, temporary_name
from p2pmesh.base.ids import Digest, is_digest
from p2pmesh.base.quantities import MIB

MAX_DIGESTS = 1024
MAX_CUTS = 4096
_MAX_FILE_BYTES = 8 * MIB
_VERSION = 1
_V = TypeVar("_V")


class ModelLedger:
    """Both maps, the least recently used entry first. Safe to use from several threads."""

    __slots__ = ("_cuts", "_digests", "_lock", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._digests: dict[str, tuple[FileStamp, Digest]] = {}
        self._cuts: dict[str, Digest] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            self._load()

    def digest(self, path: Path, stamp: FileStamp) -> Digest | None:
        """The digest of ``path`` while its stamp is the one remembered; counts as a use."""
        with self._lock:
            known = self._digests.get(str(path))
            if known is None or known[0] != stamp:
                return None
            self._digests[str(path)] = self._digests.pop(str(path))
            return known[1]

    def remember_digest(self, path: Path, stamp: FileStamp, digest: Digest) -> None:
        """Notes the digest of ``path`` as it is now."""
        with self._lock:
            self._digests.pop(str(path), None)
            self._digests[str(path)] = (stamp, digest)
            _drop_oldest(self._digests, MAX_DIGESTS)
            self._save()

    def forget(self, path: Path) -> None:
        """Drops what is known of ``path``."""
        with self._lock:
            if self._digests.pop(str(path), None) is not None:
                self._save()

    def cut(self, key: str) -> Digest | None:
        """The digest that a cut gave before; counts as a use."""
        with self._lock:
            digest = self._cuts.pop(key, None)
            if digest is not None:
                self._cuts[key] = digest
            return digest

    def remember_cut(self, key: str, digest: Digest) -> None:
        """Notes what a cut gave."""
        with self._lock:
            self._cuts.pop(key, None)
            self._cuts[key] = digest
            _drop_oldest(self._cuts, MAX_CUTS)
            self._save()

    def by_use(self, paths: list[Path]) -> list[Path]:
        """``paths``, the least recently used first; those it does not know before all others."""
        with self._lock:
            order = {text: number for number, text in enumerate(self._digests)}
        return sorted(paths, key=lambda path: (order.get(str(path), -1), str(path)))

    def _load(self) -> None:
        with self._path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            return
        content = json.loads(raw)
        if content["version"] != _VERSION:
            return
        digests = dict(_parse_digest(entry) for entry in content["digests"][-MAX_DIGESTS:])
        cuts = dict(_parse_cut(entry) for entry in content["cuts"][-MAX_CUTS:])
        self._digests, self._cuts = digests, cuts

    def _save(self) -> None:
        content = {
            "version": _VERSION,
            "digests": [
                [path, stamp.size_bytes, stamp.mtime_ns, stamp.inode, digest]
                for path, (stamp, digest) in self._digests.items()
            ],
            "cuts": [[key, digest] for key, digest in self._cuts.items()],
        }
        temporary = self._path.with_name(temporary_name())
        try:
            temporary.write_text(json.dumps(content), encoding="utf-8")
            os.replace(temporary, self._path)
        except OSError:
            # Costs a digest or a cut at the next start, nothing now.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _drop_oldest(entries: dict[str, _V], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]


def _parse_digest(entry: list[object]) -> tuple[str, tuple[FileStamp, Digest]]:
    path, size_bytes, mtime_ns, inode, digest = entry
    if not isinstance(path, str) or not isinstance(digest, str) or not is_digest(digest):
        raise ValueError("malformed entry")
    if not isinstance(size_bytes, int) or not isinstance(mtime_ns, int) or not isinstance(inode, int):
        raise ValueError("malformed entry")  # noqa: TRY004 - one kind of damage, one exception
    return path, (FileStamp(size_bytes, mtime_ns, inode), Digest(digest))


def _parse_cut(entry: list[object]) -> tuple[str, Digest]:
    key, digest = entry
    if not isinstance(key, str) or not isinstance(digest, str) or not is_digest(digest):
        raise ValueError("malformed entry")
    return key, Digest(digest)
