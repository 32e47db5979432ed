"""A model on disk as one source of bytes, whether it is one file or several parts beside each other.

Owns opening and what tells that a model's files have changed. How parts become one file is ``model.shards``'; bytes
and errors of a single file are ``model_files``'.
"""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

from p2pmesh.adapters import model_files as files
from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.model.gguf import read_index
from p2pmesh.model.shards import JoinedSource, files_of_model, join_parts


class PartsSource:
    """The joined file of a model in several parts; ``path`` is that of the first, which llama.cpp is given."""

    __slots__ = ("_joined", "_parts", "_stack", "path", "stamp")

    def __init__(self, paths: Sequence[Path]) -> None:
        self.path = paths[0]
        with ExitStack() as stack:
            self._parts = [stack.enter_context(_open_part(path, number, paths)) for number, path in enumerate(paths)]
            self._joined = _join(self._parts)
            self.stamp = _joined_stamp([part.stamp for part in self._parts])
            self._stack = stack.pop_all()

    def __enter__(self) -> "PartsSource":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def size_bytes(self) -> int:
        """Length of the joined file."""
        return self._joined.size_bytes

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes of the joined file; fewer only at the end."""
        return self._joined.read_at(offset, count)

    def has_changed(self) -> bool:
        """Whether one of the open parts is no longer what it was."""
        return any(part.has_changed() for part in self._parts)


class ChunkedSource:
    """A file that was cut into chunks without regard to what is in it, as pip brings them; ``path`` is the first's."""

    __slots__ = ("_chunks", "_ends", "_stack", "path", "stamp")

    def __init__(self, paths: Sequence[Path]) -> None:
        self.path = paths[0]
        with ExitStack() as stack:
            self._chunks = [stack.enter_context(files.FileSource(path)) for path in paths]
            self._ends = tuple(accumulate(chunk.size_bytes for chunk in self._chunks))
            self.stamp = _joined_stamp([chunk.stamp for chunk in self._chunks])
            self._stack = stack.pop_all()

    def __enter__(self) -> "ChunkedSource":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def size_bytes(self) -> int:
        """Length of the whole file."""
        return self._ends[-1]

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes of the whole file; fewer only at the end."""
        data = bytearray()
        for chunk, end in zip(self._chunks, self._ends, strict=True):
            if len(data) < count and offset + len(data) < end:
                start = end - chunk.size_bytes
                data += chunk.read_at(offset + len(data) - start, count - len(data))
        return bytes(data)

    def has_changed(self) -> bool:
        """Whether one of the open chunks is no longer what it was."""
        return any(chunk.has_changed() for chunk in self._chunks)


def open_model(path: Path) -> files.FileSource | PartsSource:
    """The model that ``path`` is, or is a part of.

    Raises ``ConfigError``: as ``FileSource``, ``MODEL_NOT_FOUND`` naming a part that is missing, ``GGUF_…`` naming one
    that is damaged.
    """
    paths = paths_of_model(path)
    return files.FileSource(path) if len(paths) == 1 else PartsSource(paths)


def paths_of_model(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` belongs to, the first part first; whether they exist is not looked up."""
    return tuple(path.with_name(name) for name in files_of_model(path.name))


def stamp_of_model(path: Path) -> files.FileStamp | None:
    """What tells one content of a model's files from another; ``None`` if one of them is not there.

    ``size_bytes`` is that of all files together: of a model in parts, not that of the joined file.
    """
    stamps = [files.stamp_of(part) for part in paths_of_model(path)]
    present = [stamp for stamp in stamps if stamp is not None]
    if len(present) < len(stamps):
        return None
    return present[0] if len(present) == 1 else _joined_stamp(present)


def _open_part(path: Path, number: int, paths: Sequence[Path]) -> files.FileSource:
    if not path.exists():
        raise ConfigError(
            ErrorCode.MODEL_NOT_FOUND,
            f"part {number + 1} of {len(paths)} is missing: put {path.name} beside the others in {path.parent}",
        )
    return files.FileSource(path)


def _join(parts: list[files.FileSource]) -> JoinedSource:
    indexes = []
    for part in parts:
        try:
            indexes.append(read_index(part))
        except RemoteProtocolError as error:
            raise ConfigError(error.code, f"{part.path}: {error.message}") from error
    try:
        return join_parts(parts, indexes)
    except RemoteProtocolError as error:
        raise ConfigError(error.code, f"{parts[0].path}: {error.message}") from error


def _joined_stamp(stamps: Sequence[files.FileStamp]) -> files.FileStamp:
    digest = hashlib.sha256(repr(stamps).encode()).digest()
    size_bytes = sum(stamp.size_bytes for stamp in stamps)
    return files.FileStamp(size_bytes, int.from_bytes(digest[:7], "big"), int.from_bytes(digest[7:14], "big"))
