"""GGUF: bytes -> index (metadata, tensor directory, exact byte sizes).

Pure: reads from a ``Source`` that the caller opened; never touches a file system. Every count and length from the file
is checked against a limit before memory is spent on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Source(Protocol):
    """Random access to the bytes of one file."""

    @property
    def size_bytes(self) -> int:
        """Length of the file."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its dimensions in ggml order (fastest first), ggml type number, and place in the file (absolute)."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """A metadata value with its GGUF type; ``element_type`` is set for arrays, whose value is a tuple."""

    value_type: int
    value: object
    element_type: int | None = None


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """All of a GGUF but the tensor data."""

    version: int
    alignment: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorEntry, ...]
    data_offset: int
    size_bytes: int

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        raise NotImplementedError

    @property
    def layer_count(self) -> int:
        """``<arch>.block_count``."""
        raise NotImplementedError

    @property
    def hidden_size(self) -> int:
        """``<arch>.embedding_length``."""
        raise NotImplementedError
