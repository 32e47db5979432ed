"""Stage frames and activations beyond the vectors."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.limits import MAX_ERROR_TEXT_BYTES, MAX_SEQUENCE, MAX_STAGES
from p2pmesh.wire.activation import row_bytes
from p2pmesh.wire.stage import (
    HEADER_BYTES,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    MAX_POSITION,
    FrameFlag,
    FrameKind,
    StageFrame,
    WireDtype,
    decode_activation,
    decode_error,
    decode_frame,
    decode_length,
    encode_activation,
    encode_frame,
    error_frame,
)
from tests.wire.vectors import read_frame

IDS = st.binary(min_size=16, max_size=16)
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40).map(tuple)
ROWS = (FrameKind.PREFILL, FrameKind.DECODE)
_FREE = (FrameKind.BEGIN, FrameKind.TOKEN, FrameKind.ERROR)
"""Kinds whose body has a cap and no length that follows from the header."""
FLAGS = {
    FrameKind.PREFILL: [FrameFlag.NONE, FrameFlag.SAMPLE],
    FrameKind.DECODE: [FrameFlag.NONE, FrameFlag.REPLAY],
    FrameKind.HELD: [FrameFlag.NONE, FrameFlag.FIXED],
}
# float32 values where f16 rounds to its largest, or beyond it
EDGE = st.sampled_from([65503.0, 65504.0, 65505.0, 65519.0, 65519.996, 65520.0, 65521.0, 65536.0, 3.4e38, 6e-8, 1e-30])
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | EDGE | EDGE.map(lambda value: -value)
MATRICES = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=FLOATS)


@st.composite
def frames(draw: st.DrawFn) -> StageFrame:
    """Any frame that the document allows."""
    kind = draw(st.sampled_from(FrameKind))
    tokens = draw(TOKENS) if kind in (*ROWS, FrameKind.TOKEN) else ()
    dtype = draw(st.sampled_from(WireDtype)) if kind in ROWS else WireDtype.NONE
    hidden = draw(st.integers(1, 9)) if dtype is not WireDtype.NONE else 0
    size = len(tokens) * row_bytes(dtype, hidden)
    if kind in _FREE:
        size = draw(st.integers(0, MAX_ERROR_TEXT_BYTES))
    flags = draw(st.sampled_from(FLAGS.get(kind, [FrameFlag.NONE])))
    if dtype is WireDtype.F32 and draw(st.booleans()):
        flags |= FrameFlag.WIDENED
    ends_early = (kind is FrameKind.PREFILL and not flags & FrameFlag.SAMPLE) or bool(flags & FrameFlag.REPLAY)
    stages = draw(st.integers(0, MAX_STAGES - 1)) if ends_early or kind is FrameKind.HELD else 0
    highest = MAX_STAGES - 1 if kind is FrameKind.OPEN else MAX_POSITION - len(tokens)
    return StageFrame(
        kind, draw(IDS), draw(IDS), draw(st.integers(0, MAX_SEQUENCE)), draw(st.integers(0, highest)), tokens,
        hidden, dtype, flags, draw(st.binary(min_size=size, max_size=size)), stages,
    )  # fmt: skip


@given(frames())
def test_a_frame_comes_back_and_encodes_the_same(frame: StageFrame) -> None:
    data = encode_frame(frame)
    read = read_frame(data)
    assert read == frame
    assert encode_frame(read) == data
    assert decode_length(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES


@given(frames(), st.data())
def test_changed_bytes_give_a_frame_or_a_code(frame: StageFrame, data: st.DataObject) -> None:
    changed = bytearray(encode_frame(frame)[LENGTH_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_frame(bytes(changed))
    except RemoteProtocolError as error:
        assert error.code.value.startswith("frame_")  # noqa: PT017 - both outcomes are right
    else:
        assert encode_frame(read)[LENGTH_BYTES:] == changed


@given(frames(), st.binary(min_size=1, max_size=9))
def test_trailing_bytes_are_refused(frame: StageFrame, rest: bytes) -> None:
    data = encode_frame(frame)[LENGTH_BYTES:] + rest
    if frame.kind in _FREE and len(data) <= HEADER_BYTES + MAX_ERROR_TEXT_BYTES:
        assert decode_frame(data).body == bytes(frame.body) + rest
    elif frame.kind not in (FrameKind.BEGIN, FrameKind.TOKEN):
        with pytest.raises(RemoteProtocolError) as error:
            decode_frame(data)
        assert error.value.code is ErrorCode.FRAME_LENGTH_INVALID


@given(st.binary(max_size=200))
def test_random_bytes_are_a_frame_or_a_code(data: bytes) -> None:
    try:
        decode_frame(data)
    except RemoteProtocolError as error:
        assert error.code.value.startswith("frame_")  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize("kind", FrameKind)
@pytest.mark.parametrize(
    "flags", [FrameFlag.NONE, FrameFlag.REPLAY, FrameFlag.WIDENED | FrameFlag.REPLAY, FrameFlag.SAMPLE]
)
def test_only_decoded_rows_can_be_a_replay(kind: FrameKind, flags: FrameFlag) -> None:
    frame = StageFrame(kind, bytes(16), bytes(16), flags=flags)
    assert frame.is_replay == (kind is FrameKind.DECODE and FrameFlag.REPLAY in flags)
    assert [frame.has_flag(flag) for flag in FrameFlag] == [flag in flags for flag in FrameFlag]


def test_the_body_is_a_view_of_what_was_received() -> None:
    data = encode_frame(StageFrame(FrameKind.DECODE, bytes(16), bytes(16), 0, 0, (1,), 2, WireDtype.F16, body=b"abcd"))
    body = decode_frame(data[LENGTH_BYTES:]).body
    assert isinstance(body, memoryview)
    assert body == b"abcd"


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_declared_length_is_refused_before_anything_is_allocated(length: int) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_length(struct.pack("<I", length))
    assert error.value.code is ErrorCode.FRAME_LENGTH_INVALID


@pytest.mark.parametrize("length", [HEADER_BYTES, MAX_FRAME_BYTES])
def test_the_shortest_and_the_longest_length_pass(length: int) -> None:
    assert decode_length(struct.pack("<I", length)) == length


@pytest.mark.parametrize(
    "frame",
    [
        StageFrame(FrameKind.END, bytes(15), bytes(16)),
        StageFrame(FrameKind.END, bytes(16), bytes(17)),
        StageFrame(FrameKind.END, bytes(16), bytes(16), sequence=-1),
        StageFrame(FrameKind.END, bytes(16), bytes(16), position=2**32),
        StageFrame(FrameKind.TOKEN, bytes(16), bytes(16), tokens=(2**31,)),
    ],
)
def test_a_field_without_a_place_is_not_written(frame: StageFrame) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(frame)


def activation(rows: np.ndarray, wanted: WireDtype) -> StageFrame:
    body, dtype, flags = encode_activation(rows, wanted)
    count, hidden = rows.shape
    return StageFrame(FrameKind.DECODE, bytes(16), bytes(16), 0, 0, (0,) * count, hidden, dtype, flags, body)


@given(MATRICES, st.sampled_from([WireDtype.F32, WireDtype.F16]))
def test_no_finite_activation_becomes_infinite(rows: np.ndarray, wanted: WireDtype) -> None:
    frame = read_frame(encode_frame(activation(rows, wanted)))
    element = "<f2" if frame.dtype is WireDtype.F16 else "<f4"
    assert np.isfinite(np.frombuffer(frame.body, element)).all()
    read = decode_activation(frame)
    assert read.dtype == np.float32
    assert read.shape == rows.shape
    if frame.dtype is WireDtype.F32:
        assert read.tobytes() == rows.astype("<f4").tobytes()
    else:
        np.testing.assert_allclose(read, rows, rtol=2**-11, atol=2**-25)


@given(MATRICES)
def test_f16_is_widened_exactly_where_a_value_would_round_to_infinity(rows: np.ndarray) -> None:
    frame = activation(rows, WireDtype.F16)
    fits = bool((np.abs(rows.astype(np.float64)) < 65520.0).all())
    assert (frame.dtype is WireDtype.F16) == fits
    assert (frame.flags is FrameFlag.WIDENED) == (not fits)


@given(MATRICES, st.sampled_from([np.nan, np.inf, -np.inf]), st.data())
def test_a_broken_value_is_neither_written_nor_read(rows: np.ndarray, bad: float, data: st.DataObject) -> None:
    rows = rows.copy()
    rows.flat[data.draw(st.integers(0, rows.size - 1))] = bad
    for dtype in (WireDtype.F32, WireDtype.F16):
        with pytest.raises(ValueError, match="NaN or an infinity"):
            encode_activation(rows, dtype)
    count, hidden = rows.shape
    for dtype, element in ((WireDtype.F32, "<f4"), (WireDtype.F16, "<f2")):
        with np.errstate(over="ignore"):
            body = rows.astype(element).tobytes()
        frame = StageFrame(FrameKind.DECODE, bytes(16), bytes(16), 0, 0, (0,) * count, hidden, dtype, body=body)
        with pytest.raises(RemoteProtocolError) as error:
            decode_activation(frame)
        assert error.value.code is ErrorCode.FRAME_VALUE_INVALID


def test_rows_that_are_not_contiguous_are_written_in_order() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3).T
    assert decode_activation(activation(rows, WireDtype.F16)).tolist() == rows.tolist()


@given(st.sampled_from(ErrorCode), st.text(max_size=400))
def test_an_error_comes_back_in_one_line_and_within_its_limit(code: ErrorCode, text: str) -> None:
    cause = StageFrame(FrameKind.DECODE, b"r" * 16, b"u" * 16, 3, 9, (1,))
    frame = read_frame(encode_frame(error_frame(cause, code, text)))
    assert (frame.request_id, frame.run_id, frame.sequence) == (b"r" * 16, b"u" * 16, 3)
    read_code, read_text = decode_error(frame)
    assert read_code is code
    assert "\n" not in read_text
    assert "\ufffd" not in read_text or "\ufffd" in text


@pytest.mark.parametrize("body", [b"", b"\0", b"nonsense", b"nonsense\0text", b"\xff\xfe\0\xff", b"a\nb\0\x1b[2J"])
def test_an_error_without_a_known_code_is_internal(body: bytes) -> None:
    code, text = decode_error(StageFrame(FrameKind.ERROR, bytes(16), bytes(16), body=body))
    assert code is ErrorCode.INTERNAL
    assert text.isprintable()
