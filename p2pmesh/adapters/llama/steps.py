"""Runs the calls of one loaded stage: frames in, frames out.

Owns lanes, cells, padding and sampling; the order of calls comes from ``core.batching``. A failure costs the sequences
of the call, which get an ERROR, never the process.

Numerics: a decode call has at most ``exact_width`` rows. A prefill chunk is cut into slices of ``PREFILL_ROWS``, fewer
than the 64 rows from which llama.cpp's attention takes a tiled kernel whose bits depend on where in the cache a
sequence's cells lie. Slices lie on an absolute grid of positions, so that the rows of a whole one are the same however
long the prompt is and wherever its computing began. A call of one row takes yet another kernel once the cache view has
512 cells, and differs; what is done about it (``SingleRow``) is measured at load. Padding with a scratch row is what
always helps, and costs up to 40 % of a step of a small model.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from p2pmesh.adapters.llama import native_log
from p2pmesh.adapters.llama.binding import LoadedStage
from p2pmesh.adapters.llama.cells import CellLog
from p2pmesh.adapters.llama.grammars import GrammarShelf
from p2pmesh.adapters.llama.lanes import Lane, LaneTable
from p2pmesh.base.errors import ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_SLICE_TOKENS
from p2pmesh.core.batching import Call, CallKind, SequenceKey, key_of
from p2pmesh.core.pooling import RowPool, choose_pooling
from p2pmesh.core.prefix_index import PrefixIndex, PrefixPolicy
from p2pmesh.core.sampling import rank_logprobs, sample, sample_allowed
from p2pmesh.model.cost import SPARE_CELLS
from p2pmesh.wire.begin import Begin, decode_begin
from p2pmesh.wire.stage import (
    FrameFlag,
    FrameKind,
    StageFrame,
    WireDtype,
    decode_activation,
    encode_activation,
    error_frame,
)
from p2pmesh.wire.token_report import TokenReport, encode_reports

PREFILL_ROWS = PREFILL_SLICE_TOKENS
SMALL_VIEW_CELLS = 256
"""Up to here llama.cpp looks at 256 cells; from the next cell on at 512 or more."""

_SCRATCH_TOKEN = 0
_PASSED_ON = FrameFlag.SAMPLE | FrameFlag.REPLAY

_Sampled = tuple[int, TokenReport | None]
"""A token, and what is told beside it where the client asked."""


@dataclass(frozen=True, slots=True)
class StageShape:
    """What a stage is and may hold.

    ``vocabulary_size`` None: this stage cannot check token ids. ``can_roll_back`` false: what it holds of a sequence is
    one state, which can only be dropped as a whole.
    """

    is_first: bool
    is_last: bool
    hidden_size: int
    vocabulary_size: int | None
    context_tokens: int
    lanes: int
    wire_dtype: WireDtype
    can_roll_back: bool = True


class SingleRow(StrEnum):
    """How a call of one row is made so that it gives the bits of a wider one."""

    PLAIN = "plain"
    REFERENCE = "reference"  # with the CPU backend's reference attention
    PADDED = "padded"  # with a scratch row


@dataclass(frozen=True, slots=True)
class Widths:
    """Measured at load: rows of a decode call, and what to do with one row while the cache view is small, and after."""

    exact_width: int
    single_small: SingleRow
    single_large: SingleRow

    def single(self, cells: int) -> SingleRow:
        """What to do with a row that becomes cell number ``cells``, counted from 1."""
        return self.single_small if cells <= SMALL_VIEW_CELLS else self.single_large


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one frame, checked: ``inputs`` are embeddings on every stage but the first."""

    frame: StageFrame
    lane: Lane
    inputs: NDArray[np.float32] | None


class Stepper:
    """Applies frames to a loaded stage."""

    def __init__(
        self, stage: LoadedStage, shape: StageShape, widths: Widths, grammars: GrammarShelf | None = None
    ) -> None:
        self._stage = stage
        self._grammars = grammars if shape.is_last else None
        self._shape = shape
        self._widths = widths
        self._pooling = choose_pooling(stage.pooling_type())
        # one context's rows at most: each cell that is kept costs every call a look at it
        kept = PrefixPolicy(PREFILL_SLICE_TOKENS, PREFILL_CHUNK_TOKENS, shape.lanes, shape.context_tokens)
        self._lanes = LaneTable(shape.lanes, PrefixIndex(kept) if shape.can_roll_back else None)
        self._parked_until = 0.0
        self._cells = CellLog(stage, shape.lanes, shape.context_tokens * shape.lanes + SPARE_CELLS)

    @property
    def sequence_count(self) -> int:
        """Sequences that hold a lane."""
        return len(self._lanes)

    def begin(self, frame: StageFrame) -> list[StageFrame]:
        """Takes a lane, the one it continues if that is parked, or renews the parameters of a sequence that has one.

        HELD answers what continues another or copies its prefix, ERROR what finds no lane.
        """
        try:
            begin = decode_begin(frame.body)
            constraint = self._grammars.constrain(begin) if self._grammars is not None else None
        except RemoteProtocolError as error:
            return self._fail(frame, error.code, error.message)
        if begin.wants_embedding and self._shape.is_last and self._pooling is None:
            return self._fail(frame, ErrorCode.REQUEST_INVALID, "this model ranks texts, and gives no embedding of one")
        lane = (
            self._lanes.find(key_of(frame))
            or self._continued(frame, begin)
            or self._copied(frame, begin)
            or self._take_lane(key_of(frame), begin)
        )
        if lane is None:
            return self._fail(frame, ErrorCode.OVERLOADED, f"all {self._shape.lanes} lanes are taken; retry later")
        lane.begin, lane.constraint = begin, constraint
        is_asked = begin.continues or begin.prefix is not None
        return [self._held(frame, len(lane.history))] if is_asked else []

    def _continued(self, frame: StageFrame, begin: Begin) -> Lane | None:
        """The lane that was parked, with the rows of another's prompt where those are more than its own."""
        if not begin.continues:
            return None
        lane = self._lanes.adopt((begin.continues, frame.sequence), key_of(frame), begin)
        prefix = begin.prefix
        if lane is None or prefix is None or not self._shape.can_roll_back or len(lane.history) >= prefix.rows:
            return lane
        found = self._lanes.find_source(prefix)
        if found is not None:
            self._cut(lane, 0)
            self._copy(found[1], lane, prefix.rows)
        return lane

    def _copied(self, frame: StageFrame, begin: Begin) -> Lane | None:
        """A lane with the rows of another's prompt, if they are here and are of the tokens that the driver means."""
        prefix = begin.prefix
        if prefix is None or not self._shape.can_roll_back:
            return None
        found = self._lanes.find_source(prefix)
        if found is None:
            return None
        key, source = found
        lane = self._take_lane(key_of(frame), begin, spared=key)
        if lane is not None:
            self._copy(source, lane, prefix.rows)
            return lane
        lane = self._lanes.take_over(key, key_of(frame), begin)
        if lane is not None:
            self._cut(lane, prefix.rows)
        return lane

    def _copy(self, source: Lane, lane: Lane, rows: int) -> None:
        """Into an empty lane."""
        self._cells.copy(source.index, lane.index, rows)
        lane.history += source.history[:rows]

    def _take_lane(self, key: SequenceKey, begin: Begin, spared: SequenceKey | None = None) -> Lane | None:
        """A lane that is free, or is kept for others, or parked; ``spared`` does not give way."""
        lane = self._lanes.take(key, begin)
        if lane is None:
            self._make_lane_free(spared)
            lane = self._lanes.take(key, begin)
        return lane

    def _make_lane_free(self, spared: SequenceKey | None) -> None:
        freed = self._lanes.free_oldest_kept(spared)
        oldest = self._lanes.oldest_parked()
        if freed is not None:
            self._cells.truncate(freed.index, 0)
        elif oldest is not None:
            self._unpark(oldest)

    def _cut(self, lane: Lane, rows: int) -> None:
        self._cells.truncate(lane.index, rows)
        del lane.history[rows:]

    def _held(self, cause: StageFrame, rows: int) -> StageFrame:
        answer = self._answer(cause, FrameKind.HELD, rows)
        return answer if self._shape.can_roll_back else replace(answer, flags=FrameFlag.FIXED)

    def park(self, until: float) -> None:
        """The run is over: rows of its sequences stay until ``until``, by the clock of ``drop_parked``.

        What was kept for others of the run goes: no other run is to find it.
        """
        while (freed := self._lanes.free_oldest_kept()) is not None:
            self._cells.truncate(freed.index, 0)
        self._lanes.park()
        self._parked_until = until

    def drop_parked(self, now: float) -> None:
        """Frees what was parked, once its time is up."""
        if now < self._parked_until:
            return
        while (oldest := self._lanes.oldest_parked()) is not None:
            self._unpark(oldest)

    def _unpark(self, key: SequenceKey) -> None:
        self._cells.truncate(self._lanes.unpark(key).index, 0)

    def finish(self, key: SequenceKey) -> None:
        """A sequence is over: its prompt's rows may be kept for others that begin alike, all else is freed."""
        kept, freed = self._lanes.finish(key)
        if kept is not None:
            self._cut(kept, self._lanes.kept_rows(key))
        for lane in freed:
            self._cells.truncate(lane.index, 0)

    def release(self, key: SequenceKey) -> None:
        """Frees the lane and the cells of a sequence, if it has any."""
        lane = self._lanes.release(key)
        if lane is not None:
            self._cells.truncate(lane.index, 0)

    def run(self, call: Call) -> list[StageFrame]:
        """Runs one call; the frames it gives rise to."""
        out: list[StageFrame] = []
        parts: list[_Part] = []
        for frame in call.frames:
            try:
                part = self._admit(frame)
            except P2PMeshError as error:
                out += self._fail(frame, error.code, error.message)
                continue
            if part is not None:
                parts.append(part)
        if parts:
            run = self._run_prefill if call.kind is CallKind.PREFILL else self._run_decode
            try:
                out += run(parts)
            except (P2PMeshError, ValueError) as error:
                code = error.code if isinstance(error, P2PMeshError) else ErrorCode.INTERNAL
                for part in parts:
                    out += self._fail(part.frame, code, str(error))
        return out

    def _admit(self, frame: StageFrame) -> _Part | None:
        """Checks a frame against its sequence and drops what is held from its position on; None for a late frame."""
        lane = self._lanes.find(key_of(frame))
        if lane is None:
            if self._lanes.has_ended(key_of(frame)):
                return None
            raise RemoteProtocolError(ErrorCode.FRAME_UNEXPECTED, "rows of a sequence that did not begin here")
        if frame.position > len(lane.history):
            raise RemoteProtocolError(
                ErrorCode.FRAME_POSITION_INVALID, f"rows at {frame.position}, held are {len(lane.history)}"
            )
        if 0 < frame.position < len(lane.history) and not self._shape.can_roll_back:
            raise RemoteProtocolError(
                ErrorCode.CANNOT_ROLLBACK,
                f"rows at {frame.position}, held are {len(lane.history)}, and its state cannot go back: "
                "replay the sequence from position 0",
            )
        if frame.position + len(frame.tokens) > self._shape.context_tokens:
            raise RemoteProtocolError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED, f"the context holds {self._shape.context_tokens} tokens"
            )
        size = self._shape.vocabulary_size
        if size is not None and max(frame.tokens) >= size:
            raise RemoteProtocolError(ErrorCode.FRAME_VALUE_INVALID, f"token {max(frame.tokens)} of {size}")
        inputs = self._inputs(frame)
        self._cells.truncate(lane.index, frame.position)
        del lane.history[frame.position :]
        return _Part(frame, lane, inputs)

    def _inputs(self, frame: StageFrame) -> NDArray[np.float32] | None:
        if self._shape.is_first:
            return None
        if frame.dtype is WireDtype.NONE:
            raise RemoteProtocolError(ErrorCode.FRAME_DTYPE_INVALID, "rows without their activation")
        if frame.dtype is not self._shape.wire_dtype and frame.dtype is not WireDtype.F32:
            text = f"rows in {frame.dtype.label}, agreed is {self._shape.wire_dtype.label}"
            raise RemoteProtocolError(ErrorCode.FRAME_DTYPE_INVALID, text)
        if frame.hidden_size != self._shape.hidden_size:
            raise RemoteProtocolError(
                ErrorCode.FRAME_COUNT_INVALID, f"hidden size {frame.hidden_size}, not {self._shape.hidden_size}"
            )
        return decode_activation(frame)

    def _run_prefill(self, parts: list[_Part]) -> list[StageFrame]:
        part = parts[0]
        count = len(part.frame.tokens)
        wants_sample = self._shape.is_last and FrameFlag.SAMPLE in part.frame.flags
        if self._shape.is_last and part.lane.begin.wants_embedding:
            return self._read_prefill(part, count)
        ends_here = self._ends_here(part.frame)
        hidden: list[NDArray[np.float32]] = []
        slices = _slices(part.frame.position, count)
        for start, end in slices:
            self._call([(part, start, end)], sampled_from=end - start - (wants_sample and end == count))
            if not ends_here:
                hidden.append(self._stage.hidden_rows()[: end - start])
        if not ends_here:
            return [self._activation(part.frame, hidden)]
        out = [self._answer(part.frame, FrameKind.CREDIT, part.frame.position + count)]
        if wants_sample:
            out += self._sampled(part, count - 1, count, count - 1 - slices[-1][0])
        return out

    def _ends_here(self, frame: StageFrame) -> bool:
        """Whether no other stage takes these rows."""
        return self._shape.is_last or frame.stages == 1

    def _read_prefill(self, part: _Part, count: int) -> list[StageFrame]:
        """At the last stage, of a prompt that is to be read: rows are pooled, and the last chunk gives the vector."""
        frame = part.frame
        pool = part.lane.pool
        if frame.position == 0 or pool is None:
            assert self._pooling is not None
            pool = part.lane.pool = RowPool(self._pooling)
        if frame.position != pool.count:
            raise RemoteProtocolError(ErrorCode.FRAME_POSITION_INVALID, f"{pool.count} rows are pooled already")
        self._stage.give_embeddings(True)
        try:
            for start, end in _slices(frame.position, count):
                self._call([(part, start, end)])
                pool.add(self._stage.embedding_rows(end - start))
        finally:
            self._stage.give_embeddings(False)
        out = [self._answer(frame, FrameKind.CREDIT, frame.position + count)]
        if FrameFlag.SAMPLE in frame.flags:
            vector = pool.vector().astype("<f4").tobytes()
            position = frame.position + count
            out.append(
                StageFrame(
                    FrameKind.TOKEN, frame.request_id, frame.run_id, frame.sequence, position, (_SCRATCH_TOKEN,),
                    body=vector,
                )
            )  # fmt: skip
        return out

    def _run_decode(self, parts: list[_Part]) -> list[StageFrame]:
        width = self._widths.exact_width
        count = len(parts[0].frame.tokens)
        if len(parts) > 1 or count <= width:
            return self._decode_within([(part, 0, len(part.frame.tokens)) for part in parts])
        slices = [(parts[0], start, min(start + width, count)) for start in range(0, count, width)]
        return self._decode_slices(slices)

    def _decode_within(self, spans: list[tuple[_Part, int, int]]) -> list[StageFrame]:
        """Several frames in one call."""
        self._call(spans, _sampled_from(spans))
        out: list[StageFrame] = []
        row = 0
        rows = None if self._shape.is_last else self._stage.hidden_rows()
        for part, start, end in spans:
            if rows is not None and not self._ends_here(part.frame):
                out.append(self._activation(part.frame, [rows[row : row + end - start]]))
            elif FrameFlag.REPLAY in part.frame.flags:
                out.append(self._answer(part.frame, FrameKind.CREDIT, part.frame.position + end))
            else:
                out += self._sampled(part, start, end, row)
            row += end - start
        return out

    def _decode_slices(self, slices: list[tuple[_Part, int, int]]) -> list[StageFrame]:
        """One frame of more rows than fit a call."""
        frame = slices[0][0].frame
        is_replay = FrameFlag.REPLAY in frame.flags
        ends_here = self._ends_here(frame)
        hidden: list[NDArray[np.float32]] = []
        sampled: list[_Sampled] = []
        for span in slices:
            part, start, end = span
            self._call([span], _sampled_from([span]))
            if ends_here and not is_replay:
                sampled += [self._sample(part, index + 1, index - start) for index in range(start, end)]
            elif not ends_here:
                hidden.append(self._stage.hidden_rows()[: end - start])
        if ends_here and is_replay:
            return [self._answer(frame, FrameKind.CREDIT, frame.position + len(frame.tokens))]
        if ends_here:
            return [self._tokens(frame, 1, sampled)]
        return [self._activation(frame, hidden)]

    def _call(self, spans: list[tuple[_Part, int, int]], sampled_from: int = 0) -> None:
        """One call of llama.cpp over rows ``[start, end)`` of each part; histories and cells grow by them.

        The last stage gets logits of the call's rows from ``sampled_from`` on.
        """
        count = spans[0][2] - spans[0][1] if len(spans) == 1 else sum(end - start for _, start, end in spans)
        self._make_room(count + 1)
        single = self._widths.single(self._cells.used() + 1) if count == 1 else SingleRow.PLAIN
        is_padded = single is SingleRow.PADDED
        self._fill(spans)
        if is_padded:
            self._fill_scratch_row(count)
        if self._shape.is_last:
            outputs = self._stage.rows.outputs
            outputs[: count + 1] = 0
            outputs[sampled_from:count] = 1
            # one column alone takes another kernel through the output matrix than two or more do
            outputs[count] = is_padded and sampled_from < count
        if single is SingleRow.REFERENCE:
            self._stage.use_reference_attention(True)
        status = self._stage.decode(count + is_padded)
        if single is SingleRow.REFERENCE:
            self._stage.use_reference_attention(False)
        if is_padded:
            self._stage.drop_cells(self._cells.scratch_sequence, 0)
        if status != 0:
            raise P2PMeshError(
                ErrorCode.INTERNAL, f"llama.cpp failed a call of {count} rows ({status}): {native_log.last_complaint()}"
            )
        for part, start, end in spans:
            part.lane.history.extend(part.frame.tokens[start:end])
            self._cells.grow(part.lane.index, end - start)

    def _make_room(self, count: int) -> None:
        lost = self._cells.make_room(count)
        if lost:
            # Only a bug of llama.cpp's restore gets here; every sequence would answer from an incomplete cache.
            raise SystemExit(f"the cells of {len(lost)} sequences were lost in a rewrite of the cache")

    def _fill(self, spans: list[tuple[_Part, int, int]]) -> None:
        """Puts the rows of a call into the stage's buffers."""
        rows = self._stage.rows
        row = 0
        for part, start, end in spans:
            last = row + end - start
            first = part.frame.position + start
            rows.positions[row:last] = first if last == row + 1 else np.arange(first, part.frame.position + end)
            rows.sequences[row:last] = part.lane.index
            if self._stage.takes_tokens:
                rows.tokens[row:last] = part.frame.tokens[start:end]
            if part.inputs is not None:
                rows.embeddings[row:last] = part.inputs[start:end]
            row = last

    def _fill_scratch_row(self, row: int) -> None:
        rows = self._stage.rows
        rows.positions[row] = 0
        rows.sequences[row] = self._cells.scratch_sequence
        if self._stage.takes_tokens:
            rows.tokens[row] = _SCRATCH_TOKEN
        if not self._shape.is_first:
            rows.embeddings[row] = 0.0

    def _sampled(self, part: _Part, start: int, end: int, row: int) -> list[StageFrame]:
        """The tokens after rows ``[start, end)`` of a part, which are rows of the last call from ``row`` on."""
        try:
            sampled = [self._sample(part, index + 1, row + index - start) for index in range(start, end)]
        except P2PMeshError as error:  # its grammar's doing: the others of the call go on
            return self._fail(part.frame, error.code, error.message)
        return [self._tokens(part.frame, start + 1, sampled)]

    def _sample(self, part: _Part, rows_consumed: int, row: int) -> _Sampled:
        """Samples after ``rows_consumed`` rows of the part, from row ``row`` of the last call."""
        position = part.frame.position + rows_consumed
        history = part.lane.history
        if position < len(history):
            history = history[:position]
        begin, logits = part.lane.begin, self._stage.logits(row)
        token = self._pick(part, logits, history, position)
        top_logprobs = begin.top_logprobs
        return token, None if top_logprobs is None else rank_logprobs(logits, token, top_logprobs)

    @staticmethod
    def _pick(part: _Part, logits: NDArray[np.float32], history: list[int], position: int) -> int:
        """The token that follows ``history``; ``P2PMeshError(GRAMMAR_DEAD_END)`` where the grammar lets none."""
        begin, constraint, sequence = part.lane.begin, part.lane.constraint, part.frame.sequence
        if constraint is None:
            return sample(logits, history, begin.prompt_tokens, begin.parameters, sequence, position)
        prompt, parameters = begin.prompt_tokens, begin.parameters
        if not constraint.follow(history[prompt:]):
            if position > part.frame.position + 1:  # behind a row that the driver will not take: drafted, and refused
                return sample(logits, history, prompt, parameters, sequence, position)
            raise RemoteProtocolError(ErrorCode.GRAMMAR_INVALID, "the answer so far does not keep to its grammar")
        token = sample_allowed(logits, history, prompt, parameters, sequence, position, constraint)
        if token is None:
            text = "no token of this model's vocabulary can follow here by the grammar; change it"
            raise P2PMeshError(ErrorCode.GRAMMAR_DEAD_END, text)
        return token

    @staticmethod
    def _tokens(cause: StageFrame, offset: int, sampled: list[_Sampled]) -> StageFrame:
        """The TOKEN that answers rows of ``cause``; the first token stands ``offset`` positions after the first row."""
        reports = tuple(report for _, report in sampled if report is not None)
        return StageFrame(
            FrameKind.TOKEN, cause.request_id, cause.run_id, cause.sequence, cause.position + offset,
            tuple(token for token, _ in sampled), body=encode_reports(reports) if reports else b"",
        )  # fmt: skip

    def _activation(self, frame: StageFrame, hidden: list[NDArray[np.float32]]) -> StageFrame:
        rows = hidden[0] if len(hidden) == 1 else np.concatenate(hidden)
        body, dtype, flags = encode_activation(rows, self._shape.wire_dtype)
        return StageFrame(
            frame.kind, frame.request_id, frame.run_id, frame.sequence, frame.position, frame.tokens,
            self._shape.hidden_size, dtype, (frame.flags & _PASSED_ON) | flags, body, max(0, frame.stages - 1),
        )  # fmt: skip

    @staticmethod
    def _answer(cause: StageFrame, kind: FrameKind, position: int) -> StageFrame:
        return StageFrame(kind, cause.request_id, cause.run_id, cause.sequence, position)

    def _fail(self, cause: StageFrame, code: ErrorCode, text: str) -> list[StageFrame]:
        """Ends a sequence here and says why."""
        self.release(key_of(cause))
        return [error_frame(cause, code, text)]


def _slices(position: int, count: int) -> list[tuple[int, int]]:
    """Spans of the ``count`` rows of a frame at ``position``: they end at multiples of ``PREFILL_ROWS`` positions."""
    ends = [*range(PREFILL_ROWS - position % PREFILL_ROWS, count, PREFILL_ROWS), count]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _sampled_from(spans: list[tuple[_Part, int, int]]) -> int:
    """From which row on a decode call needs logits: the first, or none where every row is replayed."""
    for part, _, _ in spans:
        if FrameFlag.REPLAY not in part.frame.flags:
            return 0
    return sum(end - start for _, start, end in spans)
