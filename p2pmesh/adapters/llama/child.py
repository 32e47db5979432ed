"""The engine process: ``python -m p2pmesh.adapters.llama.child FD``.

A plain blocking loop over the inherited socket: take what has arrived, make one call, send what came of it. It needs
neither trio nor libp2p. It ends by itself when the socket closes, also inside a step (``channel``), and leaves SIGINT
to the node.
"""

import gc
import hashlib
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from p2pmesh.adapters.llama import native_log
from p2pmesh.adapters.llama.binding import KV_TYPE, LoadedStage, LoadOptions, describe_build
from p2pmesh.adapters.llama.channel import Channel, encode_result
from p2pmesh.adapters.llama.grammars import GrammarShelf
from p2pmesh.adapters.llama.pace import measure_decode_us, measure_prefill_us
from p2pmesh.adapters.llama.steps import SingleRow, StageShape, Stepper, Widths
from p2pmesh.adapters.llama.vocabulary import Vocabulary
from p2pmesh.adapters.llama.width import load_widths, measure_widths, store_widths
from p2pmesh.base.errors import EngineError, ErrorCode, P2PMeshError
from p2pmesh.core.batching import Batcher, BatchingPolicy, key_of
from p2pmesh.model.cost import SPARE_CELLS, SPARE_SEQUENCES
from p2pmesh.wire.engine import EngineKind, decode_fields, encode_message, frame_message
from p2pmesh.wire.stage import LENGTH_BYTES, FrameKind, StageFrame, WireDtype, decode_frame, encode_frame, error_frame

_NUMERICS = "p2pmesh-numerics-1"
_CACHE_SIZE = re.compile(r"llama_(?:kv_cache|memory_recurrent)\w*: +size = +([0-9.]+) MiB")
"""The total of one cache, of cells or of states; each of its buffers has a line of its own besides."""
_EXIT_FAILED = 3
PARKED_SECONDS = 60.0
"""Rows of a run that is over are kept so long, for the run after it and its clients to find each other."""


def main() -> None:
    """Serves the socket whose descriptor is the first argument until the node closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    channel = Channel(connection)
    channel.start_beating()
    kind, payload = channel.next_message(wait=True) or (EngineKind.BEAT, memoryview(b""))
    try:
        if kind is not EngineKind.LOAD:
            raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"the first message is {kind.name}, not LOAD")
        engine = LoadedEngine(decode_fields(payload))
    except P2PMeshError as error:
        channel.send([encode_message(EngineKind.FAILED, {"code": error.code.value, "message": error.message})])
        sys.exit(_EXIT_FAILED)
    channel.send([encode_message(EngineKind.LOADED, engine.facts)])
    gc.freeze()  # what loading made stays; looking through it again and again would interrupt steps
    _serve(channel, engine)


def _serve(channel: Channel, engine: "LoadedEngine") -> None:
    while True:
        while engine.batcher.has_room():
            message = channel.next_message(wait=not len(engine.batcher))
            if message is None:
                break
            out = engine.accept(*message)
            if out:
                channel.send(out)
            if engine.has_all():
                break
        call = engine.batcher.next_call()
        if call is not None:
            frames = engine.stepper.run(call)
            _drop_failed(engine, frames)
            if frames:
                channel.send([_encode_frame(frame) for frame in frames])


def _drop_failed(engine: "LoadedEngine", frames: list[StageFrame]) -> None:
    for frame in frames:
        if frame.kind is FrameKind.ERROR:
            engine.batcher.drop(key_of(frame))


def _encode_frame(frame: StageFrame) -> bytes:
    return frame_message(EngineKind.FRAME, encode_frame(frame)[LENGTH_BYTES:])


class LoadedEngine:
    """One loaded stage: its facts, its queue, its stepper, its vocabulary."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._spec = fields
        is_first = fields["start"] == 0
        is_last = fields["end"] == fields["layer_count"]
        lanes, context = fields["lanes"], fields["context_tokens"]
        stage = LoadedStage(
            LoadOptions(
                fields["artifact_path"], is_first, is_last, lanes + SPARE_SEQUENCES, context * lanes + SPARE_CELLS,
                fields["threads"], fields["use_extra_buffers"], fields["gpu_layers"],
                tuple(fields["devices"]),
            )
        )  # fmt: skip
        if stage.layer_count != fields["end"] - fields["start"]:
            raise EngineError(
                ErrorCode.ENGINE_LOAD_FAILED,
                f"{fields['artifact_path']} holds {stage.layer_count} layers, not {fields['end'] - fields['start']}",
            )
        self._vocabulary = Vocabulary(stage)
        shape = StageShape(
            is_first, is_last, stage.hidden_size, stage.vocabulary_size if self._vocabulary.is_present else None,
            context, lanes, WireDtype(fields["wire_dtype"]), not stage.has_state,
        )  # fmt: skip
        self._fingerprint = fingerprint(
            fields["threads"], fields["use_extra_buffers"], fields["gpu_layers"], tuple(fields["device_kinds"])
        )
        widths = self._widths(stage, shape)
        decode_us = measure_decode_us(stage, shape, widths)
        prefill_us = measure_prefill_us(stage, shape)
        self.stepper = Stepper(stage, shape, widths, GrammarShelf(self._vocabulary.words))
        self.batcher = Batcher(BatchingPolicy(widths.exact_width))
        self.facts = {
            "hidden_size": stage.hidden_size,
            "exact_width": widths.exact_width,
            "fingerprint": self._fingerprint,
            "kv_bytes": cache_bytes(),
            "decode_us": decode_us,
            "prefill_us": prefill_us,
            "vocabulary_size": stage.vocabulary_size,
            "beginning_token": self._vocabulary.beginning_token(),
            "end_tokens": self._vocabulary.end_tokens(),
            "notes": list(fields["notes"]),
            "call_format": self._vocabulary.call_format,
            "shares_prefixes": shape.can_roll_back,
        }

    def _widths(self, stage: LoadedStage, shape: StageShape) -> Any:
        if stage.has_state:  # measuring rolls back; and rows of one call would be taken by the state out of order
            way = SingleRow.REFERENCE if stage.has_reference_attention else SingleRow.PLAIN
            return Widths(1, way, way)
        folder = Path(self._spec["cache_directory"])
        ends = f"{self._spec['start']}-{self._spec['end']}-{self._spec['layer_count']}"
        text = f"{self._fingerprint}:{self._spec['artifact_digest']}:{ends}:{shape.context_tokens}:{shape.lanes}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        widths = load_widths(folder, key)
        if widths is None:
            widths = measure_widths(stage, shape)
            store_widths(folder, key, widths)
        return widths

    def has_all(self) -> bool:
        """Whether the only sequence here has its next step waiting: no other frame could join the call."""
        return len(self.batcher) == 1 == self.stepper.sequence_count

    def accept(self, kind: EngineKind, payload: memoryview) -> list[bytes]:
        """Takes one message in; the messages that answer it at once."""
        if kind is EngineKind.CALL:
            return [self._answer(decode_fields(payload))]
        if kind is EngineKind.PARK:
            self.batcher.clear()
            self.stepper.park(time.monotonic() + PARKED_SECONDS)
            return []
        if kind is not EngineKind.FRAME:
            raise EngineError(ErrorCode.MESSAGE_UNEXPECTED, f"the node sent {kind.name}")
        return [_encode_frame(frame) for frame in self._accept_frame(decode_frame(payload))]

    def _accept_frame(self, frame: StageFrame) -> list[StageFrame]:
        key = key_of(frame)
        if frame.kind in (FrameKind.PREFILL, FrameKind.DECODE):
            self.batcher.add(frame)
        elif frame.kind is FrameKind.BEGIN:
            self.stepper.drop_parked(time.monotonic())
            return self.stepper.begin(frame)
        elif frame.kind in (FrameKind.CANCEL, FrameKind.END):
            self.batcher.drop(key)
            self.stepper.finish(key)
            self.stepper.drop_parked(time.monotonic())
        else:
            return [error_frame(frame, ErrorCode.FRAME_UNEXPECTED, f"{frame.kind.name} is not for an engine")]
        return []

    def _answer(self, call: dict[str, Any]) -> bytes:
        try:
            return encode_result(call["id"], self._compute(call["name"], call["arguments"]))
        except P2PMeshError as error:
            fields = {"id": call["id"], "code": error.code.value, "message": error.message}
            return encode_message(EngineKind.RESULT, fields)

    def _compute(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "tokenize":
            return self._vocabulary.tokenize(**arguments)
        if name == "render_chat":
            return self._vocabulary.render_chat(**arguments)
        if name == "pieces":
            return self._vocabulary.pieces()
        raise P2PMeshError(ErrorCode.INTERNAL, f"an engine has no call {name}")


def fingerprint(threads: int, use_extra_buffers: bool, gpu_layers: int = 0, device_kinds: tuple[str, ...] = ()) -> str:
    """A name for everything but the stage file that the bits depend on; kinds are backends and models of devices."""
    parts = (
        _NUMERICS, *describe_build(), f"threads={threads}", f"kv={KV_TYPE}", f"extra={use_extra_buffers}",
        f"gpu_layers={gpu_layers}", *(f"device={kind}" for kind in device_kinds),
    )  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def cache_bytes() -> int:
    """Size of the caches of cells and states just made, by llama.cpp's own log lines; it has no call that tells."""
    sizes = [float(match[1]) for line in native_log.lines() if (match := _CACHE_SIZE.search(line))]
    return round(sum(sizes) * 1024 * 1024)


if __name__ == "__main__":
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
