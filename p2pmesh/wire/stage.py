"""``/skippy-stage/2``: the binary stage frame, bytes <-> ``StageFrame``.

Owns the header, the limits and every check that needs no knowledge of a run. Who may send which frame, and in which
order, is decided in ``core`` and ``node``; what an activation's bytes mean, in ``wire.activation``. Normative text:
``protocols/skippy-stage-2.md``.

A frame on a stream is ``u32 length`` (little-endian, of what follows) and then ``length`` bytes: the fixed header of
``HEADER_BYTES``, the token ids, the body. The body is an activation (``ROWS`` kinds), a msgpack map (``BEGIN``),
log probabilities (``TOKEN``, see ``wire.token_report``), or UTF-8 text (``ERROR``).
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import ID_BYTES
from p2pmesh.base.limits import (
    MAX_BEGIN_BODY_BYTES,
    MAX_ERROR_TEXT_BYTES,
    MAX_HIDDEN_SIZE,
    MAX_REPORT_BODY_BYTES,
    MAX_SEQUENCE,
    MAX_STAGE_BODY_BYTES,
    MAX_STAGES,
    MAX_TOKENS_PER_FRAME,
)
from p2pmesh.wire.activation import decode_rows, encode_rows, row_bytes
from p2pmesh.wire.dtype import WireDtype as WireDtype
from p2pmesh.wire.schema import as_line

VERSION = 2

# version, kind, dtype, flags | request id | run id | sequence, position, token count, hidden size | stages, reserved
_HEADER = struct.Struct("<BBBB16s16sIIIIQ")
HEADER_BYTES = _HEADER.size
_TOKEN = struct.Struct("<i")
LENGTH_BYTES = 4
MAX_FRAME_BYTES = HEADER_BYTES + 4 * MAX_TOKENS_PER_FRAME + MAX_STAGE_BODY_BYTES
MAX_POSITION = 2**31 - 1


class FrameKind(IntEnum):
    """What a frame is; the numbers are normative."""

    OPEN = 1  # first on a stream of activations: run id; position = the sender's stage index
    RETURN_OPEN = 2  # first on a direct return stream: run id, from the last stage to the driver
    BEGIN = 3  # a sequence starts: sampling parameters and prompt length; takes a lane at each stage
    PREFILL = 4  # one chunk of prompt rows
    DECODE = 5  # rows that are sampled at the last stage, one each, or replayed
    TOKEN = 6  # sampled tokens; position is that of the first of them
    CREDIT = 7  # the prefill chunk or the replayed rows that end before position are consumed where they end
    ERROR = 8  # the sequence failed at a stage; dtype and flags 0, body = code, NUL, text
    CANCEL = 9  # drop the sequence, whatever is queued of it too
    END = 10  # the sequence is complete; its lane is free
    HELD = 11  # answers a BEGIN that continues a sequence: the stage still holds the rows before position


class FrameFlag(IntFlag):
    """Bits of the flags byte."""

    NONE = 0
    SAMPLE = 1  # PREFILL: the last row is to be sampled (the last chunk of a prompt)
    WIDENED = 2  # the sender was to send another dtype and sent f32: a value does not fit
    REPLAY = 4  # DECODE: what follows the rows is known; a CREDIT answers them, and nothing is sampled
    FIXED = 8  # HELD: the stage can go on exactly there, or from position 0


_ROWS = (FrameKind.PREFILL, FrameKind.DECODE)
_WITH_TOKENS = (*_ROWS, FrameKind.TOKEN)
_FLAGS_ALLOWED = {
    FrameKind.PREFILL: int(FrameFlag.SAMPLE | FrameFlag.WIDENED),
    FrameKind.DECODE: int(FrameFlag.WIDENED | FrameFlag.REPLAY),
    FrameKind.HELD: int(FrameFlag.FIXED),
}
_BODY_CAPS = {
    FrameKind.BEGIN: MAX_BEGIN_BODY_BYTES,
    FrameKind.TOKEN: MAX_REPORT_BODY_BYTES,
    FrameKind.ERROR: MAX_ERROR_TEXT_BYTES,
}
# Calling an enum class costs several times a table; these three stand in the path of every decoded token.
_KINDS = {int(kind): kind for kind in FrameKind}
_DTYPES = {int(dtype): dtype for dtype in WireDtype}
_FLAGS = {flags: FrameFlag(flags) for flags in range(16)}


@dataclass(frozen=True, slots=True)
class StageFrame:
    """One frame. ``position`` is the sequence position of the first row (or token).

    ``stages``: how many stages take the rows, the one that reads the frame among them, and 0 for all that there are;
    of a HELD, the index of its stage.
    """

    kind: FrameKind
    request_id: bytes
    run_id: bytes
    sequence: int = 0
    position: int = 0
    tokens: tuple[int, ...] = ()
    hidden_size: int = 0
    dtype: WireDtype = WireDtype.NONE
    flags: FrameFlag = FrameFlag.NONE
    body: bytes | memoryview = b""
    stages: int = 0

    @property
    def is_replay(self) -> bool:
        """Whether it holds rows of which nothing is sampled, since what follows them is known."""
        return self.has_flag(FrameFlag.REPLAY) and self.kind is FrameKind.DECODE

    def has_flag(self, flag: FrameFlag) -> bool:
        """Whether it bears ``flag``; most frames bear none, and to ask an enum costs more than to see that."""
        return self.flags is not FrameFlag.NONE and bool(self.flags & flag)


def encode_frame(frame: StageFrame) -> bytes:
    """The frame with its length prefix, ready for a stream. ``LocalProtocolError`` if a field has no place in it."""
    if len(frame.request_id) != ID_BYTES or len(frame.run_id) != ID_BYTES:  # struct would pad or cut it unsaid
        raise LocalProtocolError(ErrorCode.FRAME_VALUE_INVALID, f"an id of a frame is not {ID_BYTES} bytes")
    try:
        return _encoded(frame)
    except (struct.error, OverflowError) as error:
        raise LocalProtocolError(ErrorCode.FRAME_VALUE_INVALID, f"a frame cannot be written: {error}") from None


def _encoded(frame: StageFrame) -> bytes:
    token_bytes = _encode_tokens(frame.tokens)
    length = HEADER_BYTES + len(token_bytes) + len(frame.body)
    header = _HEADER.pack(
        VERSION,
        frame.kind,
        frame.dtype,
        frame.flags,
        frame.request_id,
        frame.run_id,
        frame.sequence,
        frame.position,
        len(frame.tokens),
        frame.hidden_size,
        frame.stages,
    )
    return b"".join((length.to_bytes(LENGTH_BYTES, "little"), header, token_bytes, frame.body))


def decode_length(prefix: bytes) -> int:
    """The length that a prefix announces, checked before anything is allocated for it."""
    length = int.from_bytes(prefix, "little")
    if not HEADER_BYTES <= length <= MAX_FRAME_BYTES:
        raise RemoteProtocolError(
            ErrorCode.FRAME_LENGTH_INVALID,
            f"a stage frame of {length} bytes; allowed are {HEADER_BYTES} to {MAX_FRAME_BYTES}",
        )
    return length


def decode_frame(data: bytes | memoryview) -> StageFrame:
    """A checked frame from the bytes after the length prefix; the body is a view, not a copy.

    Raises ``RemoteProtocolError`` with the code of the first rule that is broken.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise _broken(ErrorCode.FRAME_LENGTH_INVALID, f"{len(view)} bytes are no header")
    version, kind, dtype, flags, request_id, run_id, sequence, position, count, hidden_size, stages = (
        _HEADER.unpack_from(view)
    )
    if version != VERSION:
        raise _broken(ErrorCode.FRAME_VERSION_UNSUPPORTED, f"frame version {version}, not {VERSION}")
    frame_kind = _checked_kind(kind)
    frame_flags = _checked_flags(frame_kind, flags)
    if stages:
        _check_stages(frame_kind, frame_flags, stages)
    frame_dtype = _checked_dtype(frame_kind, dtype, frame_flags)
    _check_count(frame_kind, count)
    _check_place(frame_kind, sequence, position, count)
    tokens_end = HEADER_BYTES + 4 * count
    _check_length(frame_kind, frame_dtype, count, hidden_size, len(view) - tokens_end)
    tokens: tuple[int, ...] = ()
    if count:
        # one token is what nearly every frame of a decode carries: worth sparing it a numpy array
        one = count == 1
        tokens = _TOKEN.unpack_from(view, HEADER_BYTES) if one else _decode_tokens(view, count)
        if min(tokens) < 0:
            raise _broken(ErrorCode.FRAME_VALUE_INVALID, "a negative token id")
    return StageFrame(
        frame_kind, request_id, run_id, sequence, position, tokens, hidden_size, frame_dtype, frame_flags,
        view[tokens_end:], stages,
    )  # fmt: skip


def _decode_tokens(view: memoryview, count: int) -> tuple[int, ...]:
    return tuple(np.frombuffer(view, dtype="<i4", count=count, offset=HEADER_BYTES).tolist())


def _encode_tokens(tokens: tuple[int, ...]) -> bytes:
    if len(tokens) == 1:
        return _TOKEN.pack(tokens[0])
    return np.asarray(tokens, dtype="<i4").tobytes() if tokens else b""


def _broken(code: ErrorCode, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(code, text)


def _checked_kind(kind: int) -> FrameKind:
    frame_kind = _KINDS.get(kind)
    if frame_kind is None:
        raise _broken(ErrorCode.FRAME_KIND_UNKNOWN, f"frame kind {kind}")
    return frame_kind


def _checked_flags(kind: FrameKind, flags: int) -> FrameFlag:
    allowed = _FLAGS_ALLOWED.get(kind, 0)
    if flags & ~allowed:
        raise _broken(ErrorCode.FRAME_FLAGS_INVALID, f"flags {flags:#x} on {kind.name}")
    return _FLAGS[flags]


def _check_stages(kind: FrameKind, flags: FrameFlag, stages: int) -> None:
    """What is sampled goes to the last stage; the seven bytes behind the number are reserved."""
    ends_early = kind is FrameKind.PREFILL and not flags & FrameFlag.SAMPLE
    ends_early = ends_early or (kind is FrameKind.DECODE and bool(flags & FrameFlag.REPLAY))
    if stages > 0xFF or not (ends_early or kind is FrameKind.HELD):
        raise _broken(ErrorCode.FRAME_FLAGS_INVALID, f"stages or reserved {stages:#x} on {kind.name}")
    if stages >= MAX_STAGES:
        raise _broken(ErrorCode.FRAME_VALUE_INVALID, f"stages {stages}; allowed 0 to {MAX_STAGES - 1}")


def _checked_dtype(kind: FrameKind, dtype: int, flags: FrameFlag) -> WireDtype:
    wire_dtype = _DTYPES.get(dtype)
    if wire_dtype is None:
        raise _broken(ErrorCode.FRAME_DTYPE_INVALID, f"wire dtype {dtype}")
    if wire_dtype is not WireDtype.NONE and kind not in _ROWS:
        raise _broken(ErrorCode.FRAME_DTYPE_INVALID, f"wire dtype {wire_dtype.name} on {kind.name}")
    if flags is not FrameFlag.NONE and flags & FrameFlag.WIDENED and wire_dtype is not WireDtype.F32:
        raise _broken(ErrorCode.FRAME_FLAGS_INVALID, f"WIDENED on wire dtype {wire_dtype.name}")
    return wire_dtype


def _check_count(kind: FrameKind, count: int) -> None:
    lowest, highest = (1, MAX_TOKENS_PER_FRAME) if kind in _WITH_TOKENS else (0, 0)
    if not lowest <= count <= highest:
        raise _broken(ErrorCode.FRAME_COUNT_INVALID, f"{count} tokens in {kind.name}; allowed {lowest} to {highest}")


def _check_place(kind: FrameKind, sequence: int, position: int, count: int) -> None:
    """OPEN's position is a stage index; everywhere else the rows end at or before ``MAX_POSITION``."""
    highest = MAX_STAGES - 1 if kind is FrameKind.OPEN else MAX_POSITION - count
    if position > highest:
        raise _broken(ErrorCode.FRAME_POSITION_INVALID, f"position {position} with {count} tokens in {kind.name}")
    if sequence > MAX_SEQUENCE:
        raise _broken(ErrorCode.FRAME_VALUE_INVALID, f"sequence {sequence}; allowed 0 to {MAX_SEQUENCE}")


def _check_length(kind: FrameKind, dtype: WireDtype, count: int, hidden_size: int, body_bytes: int) -> None:
    """The body's length follows from the header for rows, and has a cap for the others."""
    if dtype is WireDtype.NONE:
        if hidden_size:
            raise _broken(ErrorCode.FRAME_COUNT_INVALID, f"hidden size {hidden_size} without an activation")
    elif not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise _broken(ErrorCode.FRAME_COUNT_INVALID, f"hidden size {hidden_size}")
    cap = _BODY_CAPS.get(kind)
    if cap is not None:
        if not 0 <= body_bytes <= cap:
            raise _broken(ErrorCode.FRAME_LENGTH_INVALID, f"{body_bytes} body bytes in {kind.name}; allowed {cap}")
        return
    exact = count * row_bytes(dtype, hidden_size)
    if body_bytes != exact or exact > MAX_STAGE_BODY_BYTES:
        raise _broken(
            ErrorCode.FRAME_LENGTH_INVALID, f"{body_bytes} body bytes in {kind.name}; the header means {exact}"
        )


def encode_activation(rows: NDArray[np.float32], dtype: WireDtype) -> tuple[bytes, WireDtype, FrameFlag]:
    """Body bytes of activation rows, shape ``(tokens, hidden_size)``, in ``dtype``.

    Never emits an infinity: rows that do not fit travel as f32 and the flag says so. A non-finite input is a broken
    engine and raises ``ValueError``.
    """
    body, sent = encode_rows(rows, dtype)
    return body, sent, FrameFlag.NONE if sent is dtype else FrameFlag.WIDENED


def decode_activation(frame: StageFrame) -> NDArray[np.float32]:
    """Rows of a frame, shape ``(tokens, hidden_size)``, float32; raises on a NaN, an infinity or no activation."""
    if frame.dtype is WireDtype.NONE:
        raise _broken(ErrorCode.FRAME_DTYPE_INVALID, f"{frame.kind.name} without an activation")
    return decode_rows(frame.body, frame.dtype, len(frame.tokens), frame.hidden_size)


def error_frame(cause: StageFrame, code: ErrorCode, text: str) -> StageFrame:
    """The ERROR that answers ``cause``."""
    head = code.value + "\0"
    body = (head + as_line(text, MAX_ERROR_TEXT_BYTES - len(head))).encode()
    return StageFrame(FrameKind.ERROR, cause.request_id, cause.run_id, cause.sequence, body=body)


def decode_error(frame: StageFrame) -> tuple[ErrorCode, str]:
    """Code and text of an ERROR frame, the text fit for one line; a code we do not know reads as ``internal``."""
    raw_code, _, raw_text = bytes(frame.body).decode("utf-8", "replace").partition("\0")
    text = as_line(raw_text, MAX_ERROR_TEXT_BYTES)
    try:
        return ErrorCode(raw_code), text
    except ValueError:
        return ErrorCode.INTERNAL, as_line(f"{raw_code}: {text}", MAX_ERROR_TEXT_BYTES)
