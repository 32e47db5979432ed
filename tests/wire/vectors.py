"""Vector files: JSON <-> bytes and records. The format is described in ``protocols/README.md``."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_UNADMITTED_MESSAGE_BYTES, MAX_VARINT_BYTES
from p2pmesh.wire import control, stage
from p2pmesh.wire.schema import Bytes, ListOf, OpenRow, Optional, Record, Row, Shape
from p2pmesh.wire.varint import decode_varint, encode_varint

DIRECTORY = Path(__file__).parents[2] / "protocols" / "vectors"


def load(name: str) -> dict[str, Any]:
    """A vector file by its name without ending."""
    document: dict[str, Any] = json.loads((DIRECTORY / f"{name}.json").read_text())
    return document


def case_bytes(case: dict[str, Any]) -> bytes:
    """``bytes`` is hex; ``parts`` is a list of [hex, times] for what would be too long to write out."""
    if "parts" in case:
        return b"".join(bytes.fromhex(part) * times for part, times in case["parts"])
    return bytes.fromhex(case["bytes"])


def to_json(value: Any) -> Any:
    """A record as JSON: bytes are hex, tuples are lists."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type, value: dict[str, Any]) -> Any:
    """The record of its JSON form; shapes say which text is hex."""
    return cls(**{f.name: _plain(f.metadata["shape"], value[f.name]) for f in fields(cls)})


def _plain(shape: Shape, value: Any) -> Any:
    if value is None:
        return None
    match shape:
        case Bytes():
            return bytes.fromhex(value)
        case ListOf(item=item):
            return tuple(_plain(item, part) for part in value)
        case Optional(inner=inner):
            return _plain(inner, value)
        case Record(cls=cls) | Row(cls=cls) | OpenRow(cls=cls):
            return from_json(cls, value)
    return value


def frame_to_json(frame: stage.StageFrame) -> dict[str, Any]:
    """A frame's header by name, its body as hex."""
    return {
        "kind": frame.kind.name,
        "request_id": frame.request_id.hex(),
        "run_id": frame.run_id.hex(),
        "sequence": frame.sequence,
        "position": frame.position,
        "tokens": list(frame.tokens),
        "hidden_size": frame.hidden_size,
        "dtype": frame.dtype.name,
        "flags": int(frame.flags),
        "body": bytes(frame.body).hex(),
        "stages": frame.stages,
    }


def frame_from_json(value: dict[str, Any]) -> stage.StageFrame:
    """The inverse of ``frame_to_json``."""
    return stage.StageFrame(
        stage.FrameKind[value["kind"]],
        bytes.fromhex(value["request_id"]),
        bytes.fromhex(value["run_id"]),
        value["sequence"],
        value["position"],
        tuple(value["tokens"]),
        value["hidden_size"],
        stage.WireDtype[value["dtype"]],
        stage.FrameFlag(value["flags"]),
        bytes.fromhex(value["body"]),
        value["stages"],
    )


def read_control(data: bytes, *, admitted: bool = True) -> Any:
    """What a reader makes of bytes on a stream: the prefix is checked before the body is looked at."""
    limit = MAX_CONTROL_MESSAGE_BYTES if admitted else MAX_UNADMITTED_MESSAGE_BYTES
    size = decode_varint(data[:MAX_VARINT_BYTES], limit)
    if size is None:
        raise EOFError("the stream ends inside the prefix")
    start = len(encode_varint(size))
    if len(data) < start + size:
        raise EOFError("the stream ends inside the message")
    return control.decode_control(data[start : start + size])


def read_frame(data: bytes) -> stage.StageFrame:
    """What a reader makes of bytes on a stage stream."""
    if len(data) < stage.LENGTH_BYTES:
        raise EOFError("the stream ends inside the prefix")
    size = stage.decode_length(data[: stage.LENGTH_BYTES])
    if len(data) < stage.LENGTH_BYTES + size:
        raise EOFError("the stream ends inside the frame")
    return stage.decode_frame(data[stage.LENGTH_BYTES : stage.LENGTH_BYTES + size])
