"""One loaded stage of one run: frames between its engine, the stage before, the stage after and the driver.

Owns the streams of its run and who may send what on them. Sequences and their order are the driver's
(``node.driver``); loading is ``node.stages``'.

Frames flow forward as BEGIN, rows, CANCEL and END. Tokens and credits go from the last stage straight to the driver
(*direct return*); if that stream cannot be opened they travel back along the chain. Errors take the same way.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_LANES, PREFILL_CHUNK_TOKENS, PREFILL_CREDITS, STAGE_PROTOCOL
from p2pmesh.core.generation import REPLAY_ROWS
from p2pmesh.node.changes import Changes
from p2pmesh.node.channels import FrameStream
from p2pmesh.node.outlet import Outlet
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.vigil import Vigils, Watch, unreachable
from p2pmesh.ports.engine import Engine
from p2pmesh.wire.messages.runs import LoadStage, StageEntry
from p2pmesh.wire.stage import (
    FrameFlag,
    FrameKind,
    StageFrame,
    WireDtype,
    decode_activation,
    decode_error,
    error_frame,
)

SequenceKey = tuple[bytes, int]
Deliver = Callable[[StageFrame], Awaitable[None]]
"""Takes one frame: of the driver TOKEN, CREDIT, HELD and ERROR."""

_NO_REQUEST = bytes(16)
_FORWARD = (FrameKind.BEGIN, FrameKind.PREFILL, FrameKind.DECODE, FrameKind.CANCEL, FrameKind.END)
_BACKWARD = (FrameKind.TOKEN, FrameKind.CREDIT, FrameKind.HELD, FrameKind.ERROR)
_PASSED_ON = (FrameKind.BEGIN, FrameKind.CANCEL, FrameKind.END)
_UNFIT = frozenset({ErrorCode.FRAME_POSITION_INVALID, ErrorCode.FRAME_VALUE_INVALID, ErrorCode.FRAME_DTYPE_INVALID})
MAX_SEQUENCES = 4 * MAX_LANES
CREDIT_ROWS = PREFILL_CREDITS * PREFILL_CHUNK_TOKENS
"""Of one sequence in one engine; a chunk counts as a whole one, a replayed frame at least as ``REPLAY_ROWS``."""
RETURN_DIAL_S = 10.0


class StageRun:
    """The stage ``load.index`` of a run, while it lives."""

    def __init__(
        self,
        load: LoadStage,
        engine: Engine,
        overlay: Overlay,
        deliver: Deliver,
        report: Report,
        vigils: Vigils,
    ) -> None:
        self.load = load
        self._vigils = vigils
        self._watch: Watch | None = None
        """Over the stage after this one, while sequences are open; the driver watches all that it reaches itself."""
        self.engine = engine
        self._into_engine = Outlet(engine.send_all)
        self._overlay = overlay
        self._deliver = deliver
        self._report = report
        self._downstream: FrameStream | None = None
        self._upstream: FrameStream | None = None
        self._return: FrameStream | None = None
        self._return_tried = trio.Event()
        self._open_sequences: dict[SequenceKey, deque[int]] = {}
        """With the credit that each takes up here, one entry a frame in the engine."""
        self._failure: P2PMeshError | None = None
        self._is_closing = False
        self._was_widened = False
        self._cancel_scope = trio.CancelScope()
        self._is_closed = trio.Event()
        self.used: Callable[[int], None] = lambda tokens: None
        """Told of tokens that the stage before sent on."""
        self.ended = Changes()
        """Marked when a sequence is over here."""

    @property
    def is_driver(self) -> bool:
        """Whether this is stage 0."""
        return self.load.index == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage samples."""
        return self.load.index == len(self.load.stages) - 1

    @property
    def open_sequences(self) -> int:
        """Sequences that have begun here and neither ended nor been cancelled."""
        return len(self._open_sequences)

    # --- life ------------------------------------------------------------------
    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Opens the stream to the next stage, calls ``ready`` and relays until cancelled; raises why it broke."""
        try:
            with self._cancel_scope:
                if not self.is_last:
                    self._downstream = await self._open(self.load.index + 1, FrameKind.OPEN)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guarded, self._follow_engine)
                    if self._downstream is not None:
                        nursery.start_soon(self._guarded, self._follow_backward, self._downstream)
                    nursery.start_soon(self._guarded, ready)
        finally:
            with trio.CancelScope(shield=True):
                await self._close()
            self._is_closed.set()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: P2PMeshError) -> None:
        """Ends the run here with its cause; the first cause counts."""
        if self._failure is None:
            self._failure = error
        self._cancel_scope.cancel()

    async def submit(self, frame: StageFrame) -> None:
        """The driver's own frames, into its own stage."""
        await self._take_forward(frame)

    async def submit_all(self, frames: Sequence[StageFrame]) -> None:
        """Several of them together."""
        await self._together(self._take_forward, frames)

    async def _guarded(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await task(*arguments)
        except P2PMeshError as error:
            self._overlay.conduct.note_error(error)
            self.fail(error)

    async def _close(self) -> None:
        """Tells the driver why its sequences end, as far as streams still stand, then drops the streams."""
        self._is_closing = True
        if self._failure is not None and not self.is_driver:
            with trio.move_on_after(2):
                await self._fail_sequences(self._failure)
        await self._leave_engine()
        self._open_sequences.clear()
        self._end_watch()
        self.ended.mark()
        for stream in (self._return, self._upstream):
            if stream is not None:
                await stream.finish()  # a reset would overtake the causes that were just sent
        if self._downstream is not None:
            await (self._downstream.finish() if self._failure is None else self._downstream.reset())

    async def _leave_engine(self) -> None:
        """It may serve another run, which goes on with the sequences that are open; one that is gone need not."""
        with trio.move_on_after(1), suppress(P2PMeshError):
            await self.engine.park()

    async def _fail_sequences(self, error: P2PMeshError) -> None:
        for request_id, sequence in tuple(self._open_sequences):
            cause = StageFrame(FrameKind.CANCEL, request_id, self.load.run_id, sequence)
            try:
                await self._send_backward(error_frame(cause, error.code, error.message))
            except P2PMeshError:
                return

    # --- streams -----------------------------------------------------------------
    async def _open(self, index: int, kind: FrameKind) -> FrameStream:
        entry = self.load.stages[index]
        raw = await self._overlay.open_stream(PeerId(entry.peer_id), STAGE_PROTOCOL, entry.addresses)
        stream = FrameStream(raw)
        await stream.send(StageFrame(kind, _NO_REQUEST, self.load.run_id, position=self.load.index))
        return stream

    async def serve_inbound(self, stream: FrameStream, first: StageFrame) -> None:
        """Serves a stream of this run that another peer opened; raises if that peer may not."""
        if first.kind is FrameKind.OPEN:
            await self._serve_upstream(stream, first)
        elif first.kind is FrameKind.RETURN_OPEN and self.is_driver and not self.is_last:
            self._check_sender(stream, len(self.load.stages) - 1)
            await self._guarded(self._follow_backward, stream)
        else:
            text = f"{first.kind.name} opens no stream here"
            raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, text, culprit=stream.remote_peer)

    async def _serve_upstream(self, stream: FrameStream, first: StageFrame) -> None:
        if self.is_driver or first.position != self.load.index - 1:
            raise RemoteProtocolError(ErrorCode.NOT_IN_PLACEMENT, f"no stage {first.position} comes before this one")
        self._check_sender(stream, self.load.index - 1)
        if self._upstream is not None:
            raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, "the stage before this one has a stream already")
        self._upstream = stream
        try:
            await self._follow_forward(stream)
        except P2PMeshError as error:
            self.fail(error)
            await self._is_closed.wait()
            if isinstance(error, RemoteProtocolError):
                raise

    def _check_sender(self, stream: FrameStream, index: int) -> None:
        if stream.remote_peer != self.load.stages[index].peer_id:
            text = f"peer {stream.remote_peer} does not hold stage {index} of this run"
            raise RemoteProtocolError(ErrorCode.NOT_IN_PLACEMENT, text, culprit=stream.remote_peer)

    # --- forward -------------------------------------------------------------------
    async def _follow_forward(self, stream: FrameStream) -> None:
        while True:
            await self._together(self._take_from_before, await stream.receive_all())

    async def _take_from_before(self, frame: StageFrame) -> None:
        if frame.kind not in _FORWARD or frame.run_id != self.load.run_id:
            raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, f"{frame.kind.name} from the stage before")
        if frame.kind in (FrameKind.PREFILL, FrameKind.DECODE):
            self._check_rows(frame)
        if frame.kind is FrameKind.DECODE and not frame.is_replay:
            self.used(len(frame.tokens))
            if self._watch is not None:
                self._watch.hear()  # the token before has been through all stages
        await self._take_forward(frame)

    async def _together(self, take: Deliver, frames: Sequence[StageFrame]) -> None:
        """Takes frames that came together; what that sends goes together too."""
        if len(frames) == 1:
            await take(frames[0])
            return
        streams = (self._downstream, self._upstream, self._return)
        outlets = (self._into_engine, *(stream.outlet for stream in streams if stream is not None))
        for outlet in outlets:
            outlet.hold()
        try:
            for frame in frames:
                await take(frame)
        finally:
            for outlet in outlets:
                outlet.let_go()
            for outlet in outlets:  # what came before a frame that ends the run is no worse for it
                await outlet.flush()

    def _check_rows(self, frame: StageFrame) -> None:
        """Rows of a peer: our width, finite values, a chunk's length, positions inside the context."""
        if frame.dtype is WireDtype.NONE:
            raise RemoteProtocolError(ErrorCode.FRAME_DTYPE_INVALID, "rows without an activation")
        if frame.hidden_size != self.engine.facts.hidden_size:
            text = f"rows of width {frame.hidden_size}, this model has {self.engine.facts.hidden_size}"
            raise RemoteProtocolError(ErrorCode.FRAME_COUNT_INVALID, text)
        if len(frame.tokens) > PREFILL_CHUNK_TOKENS:
            raise RemoteProtocolError(ErrorCode.FRAME_COUNT_INVALID, f"a chunk of {len(frame.tokens)} rows")
        if frame.position + len(frame.tokens) > self.load.context_tokens:
            text = f"position {frame.position} of a context of {self.load.context_tokens}"
            raise RemoteProtocolError(ErrorCode.FRAME_POSITION_INVALID, text)
        if frame.stages >= len(self.load.stages) - self.load.index:
            text = f"rows for {frame.stages} stages, {len(self.load.stages) - self.load.index} are left"
            raise RemoteProtocolError(ErrorCode.FRAME_VALUE_INVALID, text)
        decode_activation(frame)  # raises on a NaN or an infinity

    async def _take_forward(self, frame: StageFrame) -> None:
        if self._is_closing:  # the engine is another run's from now on
            raise PeerUnavailable(ErrorCode.PEER_LOST, "the stage is ending; try again")
        key = (frame.request_id, frame.sequence)
        if frame.kind is FrameKind.BEGIN:
            self._begin(key)
        elif frame.kind in (FrameKind.CANCEL, FrameKind.END):
            self._forget(key)
        elif _takes_credit(frame):
            self._take_credit(key, frame)
        if frame.kind in _PASSED_ON and self._downstream is not None:
            await self._downstream.send(frame)
        await self._into_engine.send(frame)

    def _forget(self, key: SequenceKey) -> None:
        if self._open_sequences.pop(key, None) is not None:
            self.ended.mark()
        if not self._open_sequences:
            self._end_watch()

    def _begin(self, key: SequenceKey) -> None:
        if key in self._open_sequences:
            raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, "a sequence begins twice")
        if len(self._open_sequences) >= MAX_SEQUENCES:
            raise RemoteProtocolError(ErrorCode.CREDIT_EXCEEDED, f"more than {MAX_SEQUENCES} sequences")
        self._open_sequences[key] = deque()
        if self._watch is None and not self.is_driver and not self.is_last:
            after = self.load.stages[self.load.index + 1]
            peers = ((PeerId(after.peer_id), after.addresses),)
            self._watch = self._vigils.watch(peers, lambda _, error: self.fail(unreachable(error)))

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _take_credit(self, key: SequenceKey, frame: StageFrame) -> None:
        """Rows in this engine; more than the credits allow would let a peer fill our memory."""
        waiting = self._open_sequences.get(key, deque())
        rows = PREFILL_CHUNK_TOKENS if frame.kind is FrameKind.PREFILL else max(REPLAY_ROWS, len(frame.tokens))
        if sum(waiting) + rows > CREDIT_ROWS:
            text = f"{len(waiting) + 1} frames of {sum(waiting) + rows} rows without a credit"
            raise RemoteProtocolError(ErrorCode.CREDIT_EXCEEDED, text)
        waiting.append(rows)

    def _give_credit(self, frame: StageFrame) -> None:
        waiting = self._open_sequences.get((frame.request_id, frame.sequence))
        if waiting:
            waiting.popleft()

    # --- out of the engine -----------------------------------------------------------
    async def _follow_engine(self) -> None:
        await self.engine.follow(self._take_from_engine)

    async def _take_from_engine(self, frames: Sequence[StageFrame]) -> None:
        """In the engine's own task, which outlives ours: what goes wrong ends the run, not the engine's reader."""
        await self._guarded(self._together, self._relay, frames)

    async def _relay(self, frame: StageFrame) -> None:
        if frame.run_id != self.load.run_id:
            return  # the engine served another run before
        if frame.kind is FrameKind.CREDIT or _takes_credit(frame):
            self._give_credit(frame)
        if frame.kind in (FrameKind.PREFILL, FrameKind.DECODE):
            assert self._downstream is not None
            await self._downstream.send(frame)
            self._note_widened(frame)
            return
        if frame.kind is FrameKind.ERROR:
            self._check_cause(frame)
            await self._stop_elsewhere(frame)
        elif frame.kind is FrameKind.HELD:  # the engine does not know which stage it is
            frame = replace(frame, stages=self.load.index)
        await self._send_backward(frame)

    def _check_cause(self, frame: StageFrame) -> None:
        """Rows that do not fit those before them are the work of the stage before, and its next ones are no better."""
        code, text = decode_error(frame)
        if code in _UNFIT and not self.is_driver:
            raise RemoteProtocolError(code, text)

    def _note_widened(self, frame: StageFrame) -> None:
        """Told once a run: a model whose values do not fit f16 does so at every step."""
        if not self._was_widened and frame.has_flag(FrameFlag.WIDENED):
            self._was_widened = True
            self._report("wire_dtype_widened", {"model": self.load.model, "run_id": self.load.run_id.hex()})

    async def _stop_elsewhere(self, frame: StageFrame) -> None:
        """A sequence that failed here is dropped by the stages after this one too."""
        self._forget((frame.request_id, frame.sequence))
        if self._downstream is not None:
            await self._downstream.send(replace(frame, kind=FrameKind.CANCEL, body=b""))

    # --- backward ----------------------------------------------------------------------
    async def _follow_backward(self, stream: FrameStream) -> None:
        while True:
            await self._together(self._take_from_after, await stream.receive_all())

    async def _take_from_after(self, frame: StageFrame) -> None:
        if frame.kind not in _BACKWARD or frame.run_id != self.load.run_id:
            raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, f"{frame.kind.name} from a later stage")
        await self._send_backward(frame)

    async def _send_backward(self, frame: StageFrame) -> None:
        if self.is_driver:
            await self._deliver(frame)
            return
        stream = await self._way_back()
        if stream is None:
            raise PeerUnavailable(ErrorCode.PEER_LOST, "neither the driver nor the stage before can be reached")
        await stream.send(frame)

    async def _way_back(self) -> FrameStream | None:
        """The direct return stream of the last stage, opened once; otherwise the chain."""
        if not self.is_last or self._return_tried.is_set():
            return self._return or self._upstream
        driver: StageEntry = self.load.stages[0]
        if len(self.load.stages) > 2 and driver.peer_id != self._overlay.own_peer:
            await self._open_return(driver)
        self._return_tried.set()
        return self._return or self._upstream

    async def _open_return(self, driver: StageEntry) -> None:
        try:
            with trio.fail_after(RETURN_DIAL_S):
                self._return = await self._open(0, FrameKind.RETURN_OPEN)
        except (P2PMeshError, trio.TooSlowError) as error:
            self._report("direct_return_failed", {"driver": driver.peer_id, "message": str(error)})


def _takes_credit(frame: StageFrame) -> bool:
    return frame.kind is FrameKind.PREFILL or frame.is_replay
