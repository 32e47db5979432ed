"""What is mutated and who must survive it: every vector, and every decoder of ``p2pmesh.wire``, found by themselves.

A function ``decode_*`` of a module of ``p2pmesh.wire`` is a decoder. What it takes beside the bytes is filled in by the
parameter's name from ``_GIVEN``; a name that is not there fails the test, so a new kind cannot be left out in silence.
Vector files are read by their common format (``protocols/README.md``), the bytes of every group in each.
"""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import p2pmesh.wire
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.model.package import PackageManifest, check_manifest, read_manifest
from p2pmesh.wire import begin, control, engine, lan_record, listing, stage
from p2pmesh.wire.varint import decode_varint, encode_varint
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, peer_id_of, verify

Read = Callable[[bytes], object]

_INPUTS = ("data", "body", "text", "prefix", "message", "payload", "frame")
_DONE_ELSEWHERE = frozenset(
    # Parts of what the readers of streams below do as a whole.
    {
        "decode_length",
        "decode_varint",
        "decode_kind",
        "decode_fields",
        "decode_activation",
        "decode_rows",
        "decode_error",
        "decode_event",
        "decode_listing",
        "decode_txt",
    }
)


def _accept(key: bytes, message: bytes, signature: bytes) -> bool:
    """Takes every signature for good: most mutations would get no further than the check."""
    return True


_GIVEN: dict[str, Any] = {
    "verify": _accept,
    "peer_id_of": peer_id_of,
    "founder_key": FOUNDER.public_key,
    "mesh_id": FOUNDER.mesh_id,
    "peer": FOUNDER.peer_id,
    "holder": JOINER.peer_id,
    "nonce": bytes(16),
    "limit": MAX_CONTROL_MESSAGE_BYTES,
    "tokens": 2,
    "top_logprobs": 3,
}


_LISTING_RULES = listing.ReadingRules(UnixMillis(vectors.load("listings")["now_unix_ms"]), _accept, takes_private=True)


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that bytes from outside reach first."""

    name: str
    read: Read
    is_text: bool = False


def readers() -> tuple[Reader, ...]:
    """All, by name. ``AssertionError`` for a decoder whose parameters are unknown here."""
    found = [
        Reader("stream of control messages", _read_control),
        Reader("stream of stage frames", _read_frames),
        Reader("socket of an engine", _read_engine),
        Reader("manifest of a layer package", _read_package),
        Reader("listing of a relay", _read_listing),
        Reader("TXT fields of the local network", _read_txt),
    ]
    for module, name, function in _decoders():
        parameters = list(inspect.signature(function).parameters)
        assert parameters[0] in _INPUTS, f"{module}.{name}({parameters[0]}, …): tell tests.fuzz.corpus what that is"
        unknown = [parameter for parameter in parameters[1:] if parameter not in _GIVEN]
        assert not unknown, f"{module}.{name} takes {unknown}: tell tests.fuzz.corpus what to give"
        given = {parameter: _GIVEN[parameter] for parameter in parameters[1:]}
        is_text = parameters[0] == "text"
        found.append(Reader(f"{module}.{name}", _bound(function, given, is_text=is_text), is_text))
        if "verify" in given:
            strict = _bound(function, given | {"verify": verify}, is_text=is_text)
            found.append(Reader(f"{module}.{name}, signatures checked", strict, is_text))
    return tuple(sorted(found, key=lambda reader: reader.name))


def _decoders() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    for info in pkgutil.iter_modules(p2pmesh.wire.__path__):
        module = importlib.import_module(f"p2pmesh.wire.{info.name}")
        for name, function in vars(module).items():
            is_own = inspect.isfunction(function) and function.__module__ == module.__name__
            if is_own and name.startswith("decode_") and name not in _DONE_ELSEWHERE:
                yield info.name, name, function


def _bound(function: Callable[..., Any], given: dict[str, Any], *, is_text: bool) -> Read:
    if is_text:
        return lambda data: function(data.decode("utf-8", "surrogateescape"), **given)
    return lambda data: function(data, **given)


def _read_control(data: bytes) -> None:
    """All messages of a stream, as ``node.channels`` reads them."""
    at = 0
    while at < len(data):
        length = None
        end = at
        while length is None:
            end += 1
            if end > len(data):
                return
            length = decode_varint(data[at:end], MAX_CONTROL_MESSAGE_BYTES)
        if end + length > len(data):
            return
        control.decode_control(data[end : end + length])
        at = end + length


def _read_frames(data: bytes) -> None:
    """All frames of a stream, with what their bodies hold."""
    at = 0
    while at + stage.LENGTH_BYTES <= len(data):
        start = at + stage.LENGTH_BYTES
        at = start + stage.decode_length(data[at:start])
        if at > len(data):
            return
        frame = stage.decode_frame(data[start:at])
        if frame.kind is stage.FrameKind.BEGIN:
            begin.decode_begin(frame.body)
        if frame.dtype is not stage.WireDtype.NONE:
            stage.decode_activation(frame)
        if frame.kind is stage.FrameKind.ERROR:
            stage.decode_error(frame)


def _read_engine(data: bytes) -> None:
    """All messages of an engine's socket."""
    at = 0
    while at + engine.LENGTH_BYTES <= len(data):
        start = at + engine.LENGTH_BYTES
        at = start + engine.decode_length(data[at:start])
        if at > len(data):
            return
        kind, payload = engine.decode_kind(data[start:at])
        if kind is engine.EngineKind.FRAME:
            stage.decode_frame(payload)
        else:
            engine.decode_fields(payload)


def _read_package(data: bytes) -> None:
    """A manifest, with the rules that need nothing else."""
    manifest = read_manifest(data)
    if isinstance(manifest, PackageManifest):
        check_manifest(manifest)


def _read_listing(data: bytes) -> None:
    """An event and what it lists. Its id is made to fit, since a mutation would get no further than that."""
    text = data.decode("utf-8", "surrogateescape")
    found: object = listing.decode_event(_with_its_id(text), lambda *_: True)
    if isinstance(found, listing.ListingEvent):
        found = listing.decode_listing(found, _LISTING_RULES)
    if isinstance(found, listing.Rejection):
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, found.detail)


def _with_its_id(text: str) -> str:
    try:
        event = json.loads(text)
        tags = tuple(tuple(tag) for tag in event["tags"])
        event["id"] = listing.event_id_of(event["pubkey"], event["created_at"], event["kind"], tags, event["content"])
        return json.dumps(event)
    except (ValueError, TypeError, KeyError, RecursionError):
        return text


def _read_txt(data: bytes) -> None:
    """TXT fields, a line each."""
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    lan_record.decode_txt({key: value for key, _, value in lines})


# --- what is mutated


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes of a vector; ``head`` is the length of a prefix that is to fit what follows it."""

    name: str
    data: bytes
    prefix: str = ""


def samples() -> tuple[Sample, ...]:
    """Every case of every vector file, in the order of the files, and one message of each kind of the engine's."""
    found: list[Sample] = []
    for path in sorted(vectors.DIRECTORY.glob("*.json")):
        document = json.loads(path.read_text())
        for group, cases in document.items():
            if isinstance(cases, list):
                found += [
                    Sample(f"{path.stem} {group} {case['name']}", data, _prefix_of(document))
                    for case in cases
                    for data in _case_bytes(case)
                ]
    frame = next(sample.data for sample in found if sample.name.startswith("stage_frames valid"))
    for kind in engine.EngineKind:
        fields = {"id": 1, "name": "tokenize", "arguments": [[1, 2], "x"], "value": {"a": [1.5, None]}}
        data = engine.encode_message(kind, fields)
        if kind is engine.EngineKind.FRAME:
            data = engine.frame_message(kind, frame[stage.LENGTH_BYTES :])
        found.append(Sample(f"engine {kind.name}", data, "engine"))
    return tuple(found)


def _case_bytes(case: Any) -> Iterator[bytes]:
    """Bytes of a case, or the text that stands for them. Activations are bodies of frames, and come as those."""
    if not isinstance(case, dict):
        return
    if "bytes" in case or "parts" in case:
        data = vectors.case_bytes(case)
        if len(data) <= 256 * 1024:
            yield data
    elif isinstance(case.get("invite"), str):
        yield case["invite"].encode()
    elif isinstance(case.get("manifest"), str):
        yield case["manifest"].encode()
    elif isinstance(case.get("event"), str):
        yield case["event"].encode()
    elif isinstance(case.get("fields"), dict):
        yield "\n".join(f"{key}={value}" for key, value in case["fields"].items()).encode("utf-8", "replace")
    elif isinstance(case.get("body"), str) and "rows" in case:
        yield stage.encode_frame(
            stage.StageFrame(
                stage.FrameKind.DECODE, bytes(16), bytes(16), tokens=(0,) * case["rows"],
                hidden_size=case["hidden_size"], dtype=stage.WireDtype[case["dtype"]], body=bytes.fromhex(case["body"]),
            )
        )  # fmt: skip


def _prefix_of(document: dict[str, Any]) -> str:
    return {"/mesh-llm/1": "varint", "/skippy-stage/2": "frame"}.get(str(document.get("protocol")), "")


def with_prefix(kind: str, body: bytes) -> bytes:
    """``body`` behind the length that fits it."""
    if kind == "varint":
        return encode_varint(len(body)) + body if len(body) < 1 << 28 else body
    if kind in ("frame", "engine"):
        return len(body).to_bytes(4, "little") + body
    return body


def without_prefix(kind: str, data: bytes) -> bytes:
    """What follows the prefix."""
    if kind == "varint":
        end = next((n for n, byte in enumerate(data[:4], 1) if byte < 128), 0)
        return data[end:]
    return data[4:] if kind in ("frame", "engine") else data
