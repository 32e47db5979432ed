"""Writing a planned stage file in memory."""

from p2pmesh.base.ids import LayerRange
from p2pmesh.model.gguf import read_index
from p2pmesh.model.stage_file import Copy, Literal, plan_stage_file
from tests.fakes.memory_source import MemorySource


def stage_of(model: bytes, start: int, end: int) -> bytes:
    """The bytes of the stage ``[start, end)`` of a model."""
    parts: list[bytes] = []
    for segment in plan_stage_file(read_index(MemorySource(model)), LayerRange(start, end)).segments:
        if isinstance(segment, Literal):
            parts.append(segment.data)
        elif isinstance(segment, Copy):
            parts.append(model[segment.span.offset : segment.span.offset + segment.span.size_bytes])
        else:
            parts.append(bytes(segment.size_bytes))
    return b"".join(parts)
