"""Splits a GGUF in memory into parts as ``llama-gguf-split`` does, for tests of models in several files."""

import struct
from collections.abc import Sequence
from pathlib import Path

from p2pmesh.model.gguf import MAGIC, GgufIndex, TensorEntry, ValueType, padded, read_index
from p2pmesh.model.shards import PartName
from tests.fakes.memory_source import MemorySource


def split_gguf(data: bytes, tensors_per_part: Sequence[int]) -> list[bytes]:
    """One part per number, which is how many tensors it holds; 0 first is ``--no-tensor-first-split``."""
    index = read_index(MemorySource(data))
    assert sum(tensors_per_part) == len(index.tensors)
    parts: list[bytes] = []
    start = 0
    for number, count in enumerate(tensors_per_part):
        records = _split_records(number, len(tensors_per_part), len(index.tensors))
        if number == 0:
            records = [*_own_records(data, index), *records]
        parts.append(_part(data, index, records, index.tensors[start : start + count]))
        start += count
    return parts


def write_parts(folder: Path, base: str, parts: Sequence[bytes]) -> list[Path]:
    """The parts under the names that llama.cpp wants."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / PartName(base, number, len(parts)).sibling(number) for number in range(1, len(parts) + 1)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    return paths


def _own_records(data: bytes, index: GgufIndex) -> list[bytes]:
    spans = [entry.record for entry in index.metadata.values()]
    return [data[span.offset : span.offset + span.size_bytes] for span in spans]


def _split_records(number: int, count: int, tensors: int) -> list[bytes]:
    return [
        _text("split.no") + struct.pack("<IH", ValueType.UINT16, number),
        _text("split.count") + struct.pack("<IH", ValueType.UINT16, count),
        _text("split.tensors.count") + struct.pack("<Ii", ValueType.INT32, tensors),
    ]


def _part(data: bytes, index: GgufIndex, records: list[bytes], tensors: Sequence[TensorEntry]) -> bytes:
    head = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(records)) + b"".join(records)
    body = b""
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += _text(tensor.name) + shape + struct.pack("<IQ", tensor.ggml_type, len(body))
        weights = data[tensor.offset : tensor.offset + tensor.size_bytes]
        body += weights.ljust(padded(len(weights), index.alignment), b"\0")
    return head.ljust(padded(len(head), index.alignment), b"\0") + body


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw
