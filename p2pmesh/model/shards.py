"""A GGUF model in several files: which files belong together, and the one file that they stand for.

Owns the naming rule of llama.cpp (``NAME-00001-of-00005.gguf``) and the layout of the joined file: the first part's
metadata without its ``split.*`` keys, the tensors of all parts in order. That is the file that was split, byte for
byte where llama.cpp wrote it, so that digests and stages do not depend on how a model was cut into files. Opening
files is ``adapters.model_source``'s; what is in one part is ``gguf``'s.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from p2pmesh.base import limits
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.model.gguf import GgufIndex, Source, Span, padded
from p2pmesh.model.gguf_writer import encode_directory, encode_head

MAX_PARTS = 1024
SPLIT_PREFIX = "split."
_SPLIT_COUNT = "split.count"
_SPLIT_NUMBER = "split.no"
_PART = re.compile(r"(?P<base>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_GGUF_SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class PartName:
    """What the name of one part says: ``number`` counts from 1. ``base`` may hold folders."""

    base: str
    number: int
    count: int

    def sibling(self, number: int) -> str:
        """The name of another part of the same model."""
        return f"{self.base}-{number:05}-of-{self.count:05}{_GGUF_SUFFIX}"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model among files: its name (with folders, without part numbers and suffix), its files in order.

    ``missing`` names parts that are not there; a model with any cannot be used.
    """

    name: str
    files: tuple[str, ...]
    missing: tuple[str, ...] = ()


def parse_part_name(name: str) -> PartName | None:
    """The parts of a part's name; ``None`` for a file that is a model by itself or whose numbers make no sense."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    return PartName(match["base"], number, count) if 1 <= number <= count <= MAX_PARTS else None


def group_files(names: Iterable[str]) -> tuple[ModelFiles, ...]:
    """The models among GGUF files' names, sorted by name; whatever does not end in ``.gguf`` is passed over."""
    singles: list[ModelFiles] = []
    parts: dict[tuple[str, int], set[str]] = {}
    for name in sorted(set(names)):
        if not name.lower().endswith(_GGUF_SUFFIX) or len(name) == len(_GGUF_SUFFIX):
            continue
        part = parse_part_name(name)
        if part is None:
            singles.append(ModelFiles(name[: -len(_GGUF_SUFFIX)], (name,)))
        else:
            parts.setdefault((part.base, part.count), set()).add(name)
    groups = [_group(base, count, present) for (base, count), present in parts.items()]
    return tuple(sorted((*singles, *groups), key=lambda group: (group.name, group.files)))


def files_of_model(name: str) -> tuple[str, ...]:
    """All files of the model that file ``name`` belongs to, in order; itself alone where it is whole."""
    part = parse_part_name(name)
    return (name,) if part is None else tuple(part.sibling(number) for number in range(1, part.count + 1))


def _group(base: str, count: int, present: set[str]) -> ModelFiles:
    whole = files_of_model(PartName(base, 1, count).sibling(1))
    return ModelFiles(base, whole, tuple(name for name in whole if name not in present))


# --- the joined file


@dataclass(frozen=True, slots=True)
class PartCopy:
    """Bytes of one part, counted from 0."""

    part: int
    span: Span


_Piece = bytes | PartCopy | int
"""Bytes as they are, bytes of a part, or a number of zeros."""


class JoinedSource:
    """The joined file of several parts, read at any offset; implements ``gguf.Source``. Keeps only its header."""

    __slots__ = ("_pieces", "_sources", "_starts", "size_bytes")

    def __init__(self, sources: Sequence[Source], pieces: Iterable[_Piece]) -> None:
        self._sources = tuple(sources)
        self._pieces: list[_Piece] = []
        self._starts: list[int] = []
        self.size_bytes = 0
        for piece in pieces:
            size_bytes = _size_of(piece)
            if size_bytes:
                self._starts.append(self.size_bytes)
                self._pieces.append(piece)
                self.size_bytes += size_bytes

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end."""
        taken: list[bytes] = []
        end = min(offset + count, self.size_bytes)
        number = bisect_right(self._starts, offset) - 1
        while offset < end:
            inside = offset - self._starts[number]
            wanted = min(end - offset, _size_of(self._pieces[number]) - inside)
            data = self._read_piece(self._pieces[number], inside, wanted)
            taken.append(data)
            if len(data) < wanted:
                break  # a part became shorter: whoever reads notices
            offset, number = offset + wanted, number + 1
        return b"".join(taken)

    def _read_piece(self, piece: _Piece, inside: int, count: int) -> bytes:
        match piece:
            case bytes():
                return piece[inside : inside + count]
            case PartCopy(part, span):
                return self._sources[part].read_at(span.offset + inside, count)
            case _:
                return bytes(count)


def join_parts(sources: Sequence[Source], indexes: Sequence[GgufIndex]) -> JoinedSource:
    """The file that these parts stand for, in order; ``GGUF_INVALID`` where they are not the parts of one model.

    What the joined header says is not checked here; ``gguf.read_index`` of the result does it.
    """
    for number, index in enumerate(indexes):
        _check_part(index, number, len(indexes))
    if sum(len(index.tensors) for index in indexes) > limits.MAX_GGUF_TENSORS:
        raise _invalid(f"its parts hold more than {limits.MAX_GGUF_TENSORS} tensors together")
    return JoinedSource(sources, _pieces(indexes))


def check_not_a_part(index: GgufIndex) -> None:
    """``GGUF_INVALID`` for a file that is one of several, but is not named as llama.cpp names them."""
    count = _number(index, _SPLIT_COUNT)
    if count is not None and count > 1:
        raise _invalid(f"it is one part of {count} of a model: give all their own names, NAME-00001-of-{count:05}.gguf")


def _check_part(index: GgufIndex, number: int, count: int) -> None:
    said = _number(index, _SPLIT_NUMBER), _number(index, _SPLIT_COUNT)
    if said != (number, count):
        claims = "no part" if None in said else f"part {(said[0] or 0) + 1} of {said[1]}"
        raise _invalid(f"part {number + 1} of {count} says that it is {claims}: download it again")


def _number(index: GgufIndex, key: str) -> int | None:
    entry = index.metadata.get(key)
    value = None if entry is None else entry.value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _pieces(indexes: Sequence[GgufIndex]) -> Iterator[_Piece]:
    first = indexes[0]
    records = [entry.record for key, entry in first.metadata.items() if not key.startswith(SPLIT_PREFIX)]
    tensors = [(number, tensor) for number, index in enumerate(indexes) for tensor in index.tensors]
    head = encode_head(len(tensors), len(records), first.version)
    directory = encode_directory((tensor for _, tensor in tensors), first.alignment)
    header_bytes = len(head) + sum(record.size_bytes for record in records) + len(directory)
    yield head
    yield from (PartCopy(0, record) for record in records)
    yield directory
    yield padded(header_bytes, first.alignment) - header_bytes
    for number, tensor in tensors:
        yield PartCopy(number, Span(tensor.offset, tensor.size_bytes))
        yield padded(tensor.size_bytes, first.alignment) - tensor.size_bytes


def _size_of(piece: _Piece) -> int:
    match piece:
        case bytes():
            return len(piece)
        case PartCopy(_, span):
            return span.size_bytes
        case _:
            return piece


def _invalid(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.GGUF_INVALID, message)
