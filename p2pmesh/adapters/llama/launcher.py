"""The node's side of an engine process: start, talk, watch, end. Implements ``ports.engine``.

One task reads the socket; while it waits for bytes, a beat must come, or a second task ends the child. Frames are
handed on in the reader's own task to whoever follows the engine, and wait in a bounded queue for others; while they are
not taken the reader stops reading, and the child, and so on back to the sender.
"""

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from p2pmesh.adapters.child_environment import engine_environment
from p2pmesh.adapters.llama.chats import message_fields
from p2pmesh.adapters.llama.exits import describe_exit, last_line_of
from p2pmesh.adapters.llama.link import EngineLink
from p2pmesh.adapters.llama.probe import DEFAULT_SPIN_COUNT, ProbeFindings, ProbeRequest, probe
from p2pmesh.adapters.llama.starving import Patience
from p2pmesh.adapters.niceness import set_niceness
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.base.errors import EngineError, ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.core.devices import PROCESSOR_ALONE, DeviceChoice
from p2pmesh.ports.engine import Engine, EngineFacts, EngineSpec, TakeFrames
from p2pmesh.wire.engine import (
    LENGTH_BYTES,
    EngineKind,
    decode_fields,
    decode_kind,
    decode_length,
    encode_message,
    frame_message,
)
from p2pmesh.wire.generation import ChatMessage, ToolUse
from p2pmesh.wire.stage import LENGTH_BYTES as FRAME_LENGTH_BYTES
from p2pmesh.wire.stage import StageFrame, decode_frame, encode_frame

_STDERR_KEPT_BYTES = 16 * 1024
_EXIT_GRACE_SECONDS = 1.0
_LOOK_SECONDS = 0.15


@dataclass(frozen=True, slots=True)
class LauncherOptions:
    """How engine processes are run.

    ``threads`` None means every processor that this process may use. ``silence_seconds`` without a beat is a hung
    child, ``loading_silence_seconds`` while it loads, ``starting_silence_seconds`` before its first one: a slow machine
    takes long to start Python. Time in which it wanted a processor and got none does not count. One that the kernel
    calls stopped, and that did not run meanwhile, is lost after ``stopped_seconds``. Without probing, no
    extra buffer types and the default spin are used. ``devices`` are where the layers of every stage go.
    """

    cache_directory: str
    devices: DeviceChoice = PROCESSOR_ALONE
    threads: int | None = None
    load_seconds: float = 600.0
    silence_seconds: float = 1.5
    stopped_seconds: float = 0.45
    loading_silence_seconds: float = 3.0
    starting_silence_seconds: float = 30.0
    queued_frames: int = 64
    is_probing: bool = True
    niceness: int | None = None
    """How much engines give way to other programs; None as much as the node."""


class LlamaEngineLauncher:
    """Starts engine children."""

    def __init__(self, options: LauncherOptions) -> None:
        self._options = options
        self._probing = trio.Lock()

    def launch(self, spec: EngineSpec) -> AbstractAsyncContextManager[Engine]:
        """See ``ports.engine.EngineLauncher``."""
        return self._launch(spec)

    @asynccontextmanager
    async def _launch(self, spec: EngineSpec) -> AsyncIterator[Engine]:
        threads = self._options.threads or usable_threads()
        findings = await self._probe(spec, threads)
        child = await _start_child(engine_environment(findings.spin_count, threads))
        if self._options.niceness is not None:
            set_niceness(child.process.pid, self._options.niceness)
        failure: EngineError | None = None
        try:
            async with trio.open_nursery() as nursery:
                engine = _ChildEngine(child, self._options)
                nursery.start_soon(child.keep_stderr)
                nursery.start_soon(engine.read_messages)
                nursery.start_soon(engine.watch)
                try:
                    await engine.load(_load_fields(spec, self._options, threads, findings))
                    yield engine
                except EngineError as error:
                    failure = error
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            await child.end()
        if failure is not None:
            raise failure

    async def _probe(self, spec: EngineSpec, threads: int) -> ProbeFindings:
        if not self._options.is_probing:
            return ProbeFindings(use_extra_buffers=False, spin_count=DEFAULT_SPIN_COUNT)
        request = ProbeRequest(
            path=spec.artifact_path,
            digest=spec.model_digest or spec.artifact_digest,
            is_first=spec.layers.is_first(),
            is_last=spec.layers.is_last(spec.layer_count),
            threads=threads,
            gpu_layers=self._options.devices.gpu_layers,
            devices=self._options.devices.names,
            cache_directory=self._options.cache_directory,
        )
        async with self._probing:  # two probes at once would measure each other
            return await trio.to_thread.run_sync(probe, request, engine_environment(threads=threads))


def _load_fields(spec: EngineSpec, options: LauncherOptions, threads: int, findings: ProbeFindings) -> dict[str, Any]:
    return {
        "artifact_path": spec.artifact_path,
        "artifact_digest": spec.artifact_digest,
        "start": spec.layers.start,
        "end": spec.layers.end,
        "layer_count": spec.layer_count,
        "context_tokens": spec.context_tokens,
        "lanes": spec.lanes,
        "wire_dtype": int(spec.wire_dtype),
        "gpu_layers": options.devices.gpu_layers,
        "devices": list(options.devices.names),
        "device_kinds": [f"{device.backend}:{device.description}" for device in options.devices.devices],
        "threads": threads,
        "cache_directory": options.cache_directory,
        "use_extra_buffers": findings.use_extra_buffers,
        "notes": list(findings.notes),
    }


class _Child:
    """A running process, our end of its socket, the tail of its stderr."""

    def __init__(self, process: trio.Process, link: EngineLink) -> None:
        self.process = process
        self.link = link
        self._stderr = bytearray()

    async def keep_stderr(self) -> None:
        """Reads stderr to its end and keeps the tail."""
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT_BYTES]

    async def cause_of_end(self) -> str:
        """Waits briefly for a process that has closed its socket, and says why it ended."""
        with trio.move_on_after(_EXIT_GRACE_SECONDS):
            await self.process.wait()
        if self.process.returncode is None:
            return "the engine process closed its socket but did not end"
        with trio.move_on_after(_EXIT_GRACE_SECONDS):
            await trio.lowlevel.checkpoint()
        return describe_exit(self.process.returncode, last_line_of(bytes(self._stderr)))

    async def end(self) -> None:
        """Closes the socket, waits briefly, kills, reaps; not interrupted, and bounded."""
        with trio.CancelScope(shield=True):
            self.link.close()
            with trio.move_on_after(_EXIT_GRACE_SECONDS):
                await self.process.wait()
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()
            if self.process.stderr is not None:
                await trio.aclose_forcefully(self.process.stderr)


async def _start_child(environment: dict[str, str]) -> _Child:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "p2pmesh.adapters.llama.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=environment,
            )
        except OSError as error:
            ours.close()
            raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"cannot start an engine process: {error}") from error
    return _Child(process, EngineLink(ours))


class _ChildEngine:
    """``ports.engine.Engine`` over a child."""

    def __init__(self, child: _Child, options: LauncherOptions) -> None:
        self._child = child
        self._options = options
        self._facts: EngineFacts | None = None
        self._frames_in, self._frames_out = trio.open_memory_channel[StageFrame](options.queued_frames)
        self._answers: dict[int, _Answer] = {}
        self._loaded = _Answer()
        self._next_call = 0
        self._end: EngineError | None = None
        self._hung: EngineError | None = None
        self._take: TakeFrames | None = None
        self._has_begun = False
        """Whether it has said anything yet."""

    @property
    def facts(self) -> EngineFacts:
        """Facts measured at load."""
        assert self._facts is not None
        return self._facts

    async def load(self, fields: dict[str, Any]) -> None:
        """Has the child load; raises with the cause if it cannot or takes too long."""
        await self._send(encode_message(EngineKind.LOAD, fields))
        with trio.move_on_after(self._options.load_seconds) as scope:
            self._facts = _decode_facts(await self._loaded.wait())
        if scope.cancelled_caught:
            raise EngineError(
                ErrorCode.ENGINE_LOAD_FAILED,
                f"the stage did not load within {self._options.load_seconds:.0f} s; is the disk this slow?",
            )

    async def send(self, frame: StageFrame) -> None:
        """See ``ports.engine.Engine``."""
        await self._send(_message_of(frame))

    async def send_all(self, frames: Sequence[StageFrame]) -> None:
        """See ``ports.engine.Engine``."""
        await self._send(b"".join([_message_of(frame) for frame in frames]))

    async def park(self) -> None:
        """See ``ports.engine.Engine``."""
        await self._send(encode_message(EngineKind.PARK, {}))

    async def receive(self) -> StageFrame:
        """See ``ports.engine.Engine``."""
        try:
            return await self._frames_out.receive()
        except trio.EndOfChannel:
            raise self._ended() from None

    async def follow(self, take: TakeFrames) -> None:
        """See ``ports.engine.Engine``."""
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                await take((self._frames_out.receive_nowait(),))
        self._take = take
        try:
            await self._loaded.wait_ended()
        finally:
            self._take = None
        raise self._ended()

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """See ``ports.engine.Engine``."""
        arguments = {"text": text, "add_special": add_special, "parse_special": parse_special}
        value = await self._call("tokenize", arguments)
        return tuple(np.frombuffer(value, dtype="<i4").tolist())

    async def render_chat(
        self, messages: tuple[ChatMessage, ...], reasoning_effort: str = "", tools: ToolUse | None = None
    ) -> str:
        """See ``ports.engine.Engine``."""
        arguments = {
            "messages": [message_fields(message) for message in messages],
            "reasoning_effort": reasoning_effort,
            "tools": "" if tools is None else tools.tools,
        }
        return str(await self._call("render_chat", arguments))

    async def pieces(self) -> tuple[bytes, ...]:
        """See ``ports.engine.Engine``."""
        lengths, joined = await self._call("pieces", {})
        ends = np.cumsum(np.frombuffer(lengths, dtype="<u2"), dtype=np.int64).tolist()
        return tuple(joined[start:end] for start, end in zip([0, *ends], ends, strict=False))

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        self._next_call += 1
        call_id, answer = self._next_call, _Answer()
        self._answers[call_id] = answer
        try:
            await self._send(encode_message(EngineKind.CALL, {"id": call_id, "name": name, "arguments": arguments}))
            return await answer.wait()
        finally:
            self._answers.pop(call_id, None)

    async def _send(self, message: bytes) -> None:
        if self._end is not None:
            raise self._ended()
        try:
            await self._child.link.send(message)
        except trio.BrokenResourceError:
            raise await self._broken() from None

    async def _broken(self) -> EngineError:
        """What the reader found out; it notices the end as well."""
        with trio.move_on_after(3 * _EXIT_GRACE_SECONDS):
            await self._loaded.wait_ended()
        return self._ended()

    def _ended(self) -> EngineError:
        end = self._end or EngineError(ErrorCode.ENGINE_CRASHED, "the engine process is gone")
        return EngineError(end.code, end.message)

    async def read_messages(self) -> None:
        """Reads until the child ends, hangs or breaks the protocol; then everyone who waits learns why."""
        try:
            await self._read_loop()
        except RemoteProtocolError as error:
            self._end = EngineError(ErrorCode.ENGINE_CRASHED, f"the engine process sent nonsense: {error.message}")
        except EngineError as error:
            self._end = self._hung or error
        if self._child.process.returncode is None:
            self._child.process.send_signal(signal.SIGKILL)
        self._frames_in.close()
        for answer in (self._loaded, *self._answers.values()):
            answer.fail(self._ended())

    async def _read_loop(self) -> None:
        buffer = bytearray()
        while True:
            data = await self._child.link.receive()
            self._has_begun = True
            if not data:
                raise EngineError(ErrorCode.ENGINE_CRASHED, await self._child.cause_of_end())
            if (
                not buffer
                and len(data) > LENGTH_BYTES
                and len(data) == LENGTH_BYTES + decode_length(data[:LENGTH_BYTES])
            ):
                await self._dispatch(
                    [decode_kind(memoryview(data)[LENGTH_BYTES:])]
                )  # one whole message: the usual case
                continue
            buffer += data
            await self._dispatch([decode_kind(message) for message in _whole_messages(buffer)])

    async def watch(self) -> None:
        """Ends a child that neither answers nor beats."""
        patience = Patience(self._child.process.pid)
        while True:
            counted_s = patience.counted_s(self._child.link.silent_s())
            if patience.stopped_s >= self._options.stopped_seconds:
                text = f"the engine process is stopped, for {self._options.stopped_seconds:g} s or more"
                break
            if counted_s >= self._patience_s():
                text = f"the engine process gave no sign of life for {self._patience_s():g} s"
                break
            await trio.sleep(_LOOK_SECONDS)
        self._hung = EngineError(ErrorCode.ENGINE_UNRESPONSIVE, f"{text}, and was killed")
        self._child.process.send_signal(signal.SIGKILL)

    def _patience_s(self) -> float:
        options = self._options
        if not self._has_begun:
            return options.starting_silence_seconds
        return options.silence_seconds if self._facts is not None else options.loading_silence_seconds

    async def _dispatch(self, messages: list[tuple[EngineKind, memoryview]]) -> None:
        frames = []
        for kind, payload in messages:
            if kind is EngineKind.FRAME:
                frames.append(decode_frame(payload))
            else:
                self._take_in(kind, payload)
        if frames and self._take is not None:
            await self._take(frames)
        else:
            for frame in frames:
                await self._frames_in.send(frame)

    def _take_in(self, kind: EngineKind, payload: memoryview) -> None:
        if kind is EngineKind.RESULT:
            fields = decode_fields(payload)
            answer = self._answers.get(fields.get("id", 0))
            if answer is not None and "code" in fields:
                answer.fail(Refused(_code(fields), str(fields.get("message"))))
            elif answer is not None:
                answer.set(fields.get("value"))
        elif kind is EngineKind.LOADED:
            self._loaded.set(decode_fields(payload))
        elif kind is EngineKind.FAILED:
            fields = decode_fields(payload)
            self._loaded.fail(EngineError(_code(fields), str(fields.get("message"))))
        elif kind is not EngineKind.BEAT:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, f"{kind.name} from an engine")


class _Answer:
    """A value that one task waits for."""

    def __init__(self) -> None:
        self._is_set = trio.Event()
        self._has_ended = trio.Event()
        self._value: Any = None
        self._error: P2PMeshError | None = None

    def set(self, value: Any) -> None:
        if not self._is_set.is_set():
            self._value = value
            self._is_set.set()

    def fail(self, error: P2PMeshError) -> None:
        self._has_ended.set()
        if not self._is_set.is_set():
            self._error = error
            self._is_set.set()

    async def wait(self) -> Any:
        await self._is_set.wait()
        if self._error is not None:
            raise self._error
        return self._value

    async def wait_ended(self) -> None:
        await self._has_ended.wait()


def _message_of(frame: StageFrame) -> bytes:
    return frame_message(EngineKind.FRAME, encode_frame(frame)[FRAME_LENGTH_BYTES:])


def _whole_messages(buffer: bytearray) -> list[bytes]:
    """Takes every complete message off the front of ``buffer``."""
    messages = []
    taken = 0
    with memoryview(buffer) as view:
        while len(view) >= taken + LENGTH_BYTES:
            start = taken + LENGTH_BYTES
            end = start + decode_length(bytes(view[taken:start]))
            if len(view) < end:
                break
            messages.append(bytes(view[start:end]))
            taken = end
    del buffer[:taken]
    return messages


def _code(fields: dict[str, Any]) -> ErrorCode:
    try:
        return ErrorCode(str(fields.get("code")))
    except ValueError:
        return ErrorCode.INTERNAL


def _decode_facts(fields: dict[str, Any]) -> EngineFacts:
    try:
        return EngineFacts(
            hidden_size=int(fields["hidden_size"]),
            exact_width=int(fields["exact_width"]),
            fingerprint=str(fields["fingerprint"]),
            kv_bytes=int(fields["kv_bytes"]),
            vocabulary_size=int(fields["vocabulary_size"]),
            beginning_token=None if fields["beginning_token"] is None else int(fields["beginning_token"]),
            end_tokens=frozenset(int(token) for token in fields["end_tokens"]),
            notes=tuple(str(note) for note in fields["notes"]),
            decode_us=int(fields["decode_us"]),
            call_format=str(fields["call_format"]),
            prefill_us=int(fields["prefill_us"]),
            shares_prefixes=bool(fields["shares_prefixes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"the engine process sent incomplete facts: {error}") from None
