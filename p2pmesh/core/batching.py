"""Which call the engine makes next.

Owns the queues of frames that wait for a call. What a call does (cells, padding, sampling) stays in the engine adapter.

Rules:
- a *decode* call gathers the head frames of several sequences, together at most ``exact_width`` rows; the rows of one
  frame stay together, and a frame with more rows than that is a call of its own, which the engine cuts;
- a *prefill* call is one chunk of one sequence;
- while both kinds wait they take turns, so that prompts delay running sequences by the rows of one whole chunk at a
  time: a long one by a chunk, short ones by several of theirs, which are sooner all in step that way;
- frames of one sequence keep their order, and among sequences the one whose head has waited longest goes first.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS
from p2pmesh.wire.stage import FrameKind, StageFrame

SequenceKey = tuple[bytes, int]
"""Request id and choice index."""


class CallKind(StrEnum):
    """What a call computes."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Call:
    """One call to make now."""

    kind: CallKind
    frames: tuple[StageFrame, ...]


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """Bounds. ``exact_width`` is in rows, at least 1."""

    exact_width: int
    max_frames: int = 256
    max_body_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.exact_width < 1 or self.max_frames < 1:
            raise ValueError(f"a batching policy of {self.exact_width} rows and {self.max_frames} frames")


@dataclass(slots=True)
class _Waiting:
    """Frames of one sequence, each with its arrival number."""

    frames: deque[tuple[int, StageFrame]] = field(default_factory=deque)


class Batcher:
    """Queues of PREFILL and DECODE frames. Its owner asks ``has_room`` before it reads another frame."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._waiting: dict[SequenceKey, _Waiting] = {}
        self._arrivals = 0
        self._frames = 0
        self._body_bytes = 0
        self._prefilled_rows = 0
        """Since the last decode call."""

    def __len__(self) -> int:
        return self._frames

    def has_room(self) -> bool:
        """Whether another frame may be added."""
        return self._frames < self._policy.max_frames and self._body_bytes < self._policy.max_body_bytes

    def add(self, frame: StageFrame) -> None:
        """Queues a PREFILL or DECODE frame."""
        if frame.kind not in (FrameKind.PREFILL, FrameKind.DECODE):
            raise ValueError(f"{frame.kind.name} is not queued")
        if not self.has_room():
            raise ValueError("a frame was added to a full queue")
        self._waiting.setdefault(key_of(frame), _Waiting()).frames.append((self._arrivals, frame))
        self._arrivals += 1
        self._frames += 1
        self._body_bytes += len(frame.body)

    def drop(self, key: SequenceKey) -> int:
        """Forgets what waits for a sequence; how many frames that were."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return 0
        for _, frame in waiting.frames:
            self._uncount(frame)
        return len(waiting.frames)

    def clear(self) -> None:
        """Forgets all that waits."""
        for key in tuple(self._waiting):
            self.drop(key)

    def next_call(self) -> Call | None:
        """Takes the frames of the next call out of the queues; None when nothing waits."""
        if self._frames == 1:  # one sequence alone: what is nearly always the case while it decodes
            (waiting,) = self._waiting.values()
            frame = waiting.frames[0][1]
            return self._take(CallKind.PREFILL if frame.kind is FrameKind.PREFILL else CallKind.DECODE, [frame])
        heads = sorted((waiting.frames[0] for waiting in self._waiting.values()), key=itemgetter(0))
        prefills = [frame for _, frame in heads if frame.kind is FrameKind.PREFILL]
        decodes = [frame for _, frame in heads if frame.kind is FrameKind.DECODE]
        if not heads:
            return None
        if prefills and (not decodes or self._has_turn(prefills[0])):
            return self._take(CallKind.PREFILL, prefills[:1])
        return self._take(CallKind.DECODE, self._gather(decodes))

    def _has_turn(self, prefill: StageFrame) -> bool:
        """Before a step that waits."""
        return not self._prefilled_rows or self._prefilled_rows + len(prefill.tokens) <= PREFILL_CHUNK_TOKENS

    def _gather(self, decodes: list[StageFrame]) -> list[StageFrame]:
        """The longest-waiting frame, then every other that still fits."""
        chosen = decodes[:1]
        rows = len(decodes[0].tokens)
        for frame in decodes[1:]:
            if rows + len(frame.tokens) <= self._policy.exact_width:
                chosen.append(frame)
                rows += len(frame.tokens)
        return chosen

    def _take(self, kind: CallKind, frames: list[StageFrame]) -> Call:
        for frame in frames:
            key = key_of(frame)
            self._waiting[key].frames.popleft()
            if not self._waiting[key].frames:
                del self._waiting[key]
            self._uncount(frame)
        rows = sum(len(frame.tokens) for frame in frames)
        self._prefilled_rows = self._prefilled_rows + rows if kind is CallKind.PREFILL else 0
        return Call(kind, tuple(frames))

    def _uncount(self, frame: StageFrame) -> None:
        self._frames -= 1
        self._body_bytes -= len(frame.body)


def key_of(frame: StageFrame) -> SequenceKey:
    """The sequence a frame belongs to."""
    return frame.request_id, frame.sequence
