"""Activation bodies beyond the vectors: against slow references written from the document, and what is refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_HIDDEN_SIZE
from p2pmesh.wire.activation import decode_rows, encode_rows, outlier_count, row_bytes
from p2pmesh.wire.dtype import DTYPE_LABELS, LOSSY_DTYPES, WireDtype, dtype_of_label

QUANTISED = (WireDtype.Q8_ROW, WireDtype.Q8_BLOCK, WireDtype.Q8_OUTLIER)
DTYPES = (WireDtype.F32, *LOSSY_DTYPES)
LARGEST = 127 * 2.0**112
EDGE = st.sampled_from([0.0, 1e-45, 1e-38, 2.0**-126, 65504.0, 65520.0, LARGEST, 3.3895e38, 3.4028234663852886e38])
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | EDGE | EDGE.map(lambda value: -value)
WIDTHS = st.sampled_from([1, 2, 31, 32, 33, 64, 71, 72, 73, 144, 150])
ROWS = st.tuples(st.integers(1, 3), WIDTHS).flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=FLOATS))


def reference(body: bytes, dtype: WireDtype, count: int, width: int) -> np.ndarray:
    """The rows of a valid quantised body, one element at a time, as the document says."""
    blocks, exact = -(-width // 32), width // 72 if dtype is WireDtype.Q8_OUTLIER else 0
    outliers = iter(struct.unpack_from(f"<{exact * count}f", body))
    at = 4 * exact * count
    if dtype is WireDtype.Q8_ROW:
        scales = [[value] for value in struct.unpack_from(f"<{count}f", body)]
        at = 4 * count
    else:
        words = struct.unpack_from(f"<{blocks * count}H", body, at)
        values = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
        scales = [values[row * blocks : (row + 1) * blocks] for row in range(count)]
        at += 2 * blocks * count
    codes = struct.unpack_from(f"<{width * count}b", body, at)
    rows = np.zeros((count, width), dtype=np.float32)
    for row in range(count):
        for i in range(width):
            code = codes[row * width + i]
            scale = np.float32(scales[row][i % len(scales[row])])
            steps = code * abs(code) if dtype is WireDtype.Q8_OUTLIER else code
            rows[row, i] = next(outliers) if code == -128 else np.float32(steps) * scale
    assert next(outliers, None) is None
    return rows


@given(ROWS, st.sampled_from(DTYPES))
def test_a_body_has_its_length_and_nothing_in_it_is_infinite(rows: np.ndarray, dtype: WireDtype) -> None:
    body, sent = encode_rows(rows, dtype)
    assert sent in (dtype, WireDtype.F32)
    assert len(body) == len(rows) * row_bytes(sent, rows.shape[1])
    read = decode_rows(body, sent, *rows.shape)
    assert read.dtype == np.float32
    assert read.shape == rows.shape
    assert np.isfinite(read).all()
    if sent is WireDtype.F32:
        assert read.tobytes() == rows.tobytes()


@given(ROWS, st.sampled_from(QUANTISED))
def test_quantised_rows_read_as_the_document_says(rows: np.ndarray, dtype: WireDtype) -> None:
    body, sent = encode_rows(rows, dtype)
    if sent is dtype:
        assert np.array_equal(decode_rows(body, dtype, *rows.shape), reference(body, dtype, *rows.shape))


@given(ROWS, st.sampled_from(QUANTISED))
def test_quantised_rows_are_little_off(rows: np.ndarray, dtype: WireDtype) -> None:
    body, sent = encode_rows(rows, dtype)
    read = decode_rows(body, sent, *rows.shape).astype(np.float64)
    largest = np.abs(rows.astype(np.float64)).max(axis=1, keepdims=True)
    step = largest / 127 * (1 + 2**-7)
    share = 1.01 if dtype is WireDtype.Q8_OUTLIER else 0.5001
    assert (np.abs(read - rows) <= step * share + 127**2 * 2.0**-126).all()


@given(ROWS)
def test_the_largest_elements_of_a_row_are_exact(rows: np.ndarray) -> None:
    body, sent = encode_rows(rows, WireDtype.Q8_OUTLIER)
    read = decode_rows(body, sent, *rows.shape)
    exact = outlier_count(rows.shape[1])
    for before, after in zip(rows, read, strict=True):
        threshold = np.sort(np.abs(before))[::-1][exact - 1] if exact else np.inf
        larger = np.abs(before) > threshold
        assert np.array_equal(before[larger], after[larger])


@given(ROWS, st.sampled_from(DTYPES))
def test_only_what_does_not_fit_is_widened(rows: np.ndarray, dtype: WireDtype) -> None:
    largest = float(np.abs(rows.astype(np.float64)).max())
    fits = {
        WireDtype.F32: True,
        WireDtype.F16: largest < 65520,
        WireDtype.BF16: largest < (2 - 2**-8) * 2.0**127,
    }.get(dtype, largest <= LARGEST)
    assert (encode_rows(rows, dtype)[1] is dtype) == fits


@given(ROWS)
def test_bf16_is_the_nearest_of_two(rows: np.ndarray) -> None:
    body, sent = encode_rows(rows, WireDtype.BF16)
    if sent is WireDtype.BF16:
        read = decode_rows(body, sent, *rows.shape)
        np.testing.assert_allclose(read, rows, rtol=2**-8, atol=2.0**-133)
        assert encode_rows(read, WireDtype.BF16)[0] == body


@given(ROWS, st.sampled_from(DTYPES))
def test_each_row_is_written_as_if_it_were_alone(rows: np.ndarray, dtype: WireDtype) -> None:
    body, sent = encode_rows(rows, dtype)
    alone = [encode_rows(row[None], dtype) for row in rows]
    if all(used is dtype for _, used in alone):
        read = decode_rows(body, sent, *rows.shape)
        one_by_one = [decode_rows(data, used, 1, rows.shape[1]) for data, used in alone]
        assert np.array_equal(read, np.concatenate(one_by_one))


@given(ROWS, st.sampled_from([np.nan, np.inf, -np.inf]), st.sampled_from(DTYPES), st.data())
def test_a_broken_value_is_not_written(rows: np.ndarray, bad: float, dtype: WireDtype, data: st.DataObject) -> None:
    rows = rows.copy()
    rows.flat[data.draw(st.integers(0, rows.size - 1))] = bad
    with pytest.raises(ValueError, match="NaN or an infinity"):
        encode_rows(rows, dtype)


@given(st.sampled_from(DTYPES), st.integers(1, 3), WIDTHS, st.data())
def test_any_bytes_are_finite_rows_or_refused(dtype: WireDtype, count: int, width: int, data: st.DataObject) -> None:
    size = count * row_bytes(dtype, width)
    body = data.draw(st.binary(min_size=size, max_size=size))
    try:
        rows = decode_rows(body, dtype, count, width)
    except RemoteProtocolError as error:
        assert error.code is ErrorCode.FRAME_VALUE_INVALID  # noqa: PT017 - both outcomes are right
    else:
        assert rows.shape == (count, width)
        assert np.isfinite(rows).all()


def test_rows_that_are_not_contiguous_are_written_in_order() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3).T
    for dtype in DTYPES:
        body, sent = encode_rows(rows, dtype)
        assert body == encode_rows(np.ascontiguousarray(rows), dtype)[0]
        np.testing.assert_allclose(decode_rows(body, sent, 3, 4), rows, rtol=0.01, atol=0.05)


def test_a_body_as_a_view_of_a_message_is_read_where_it_lies() -> None:
    rows = np.arange(144, dtype=np.float32).reshape(1, 144)
    for dtype in DTYPES:
        body, sent = encode_rows(rows, dtype)
        view = memoryview(b"odd" + body)[3:]
        assert np.array_equal(decode_rows(view, sent, 1, 144), decode_rows(body, sent, 1, 144))


@pytest.mark.parametrize(
    ("width", "expected"),
    [(576, (2304, 1152, 1152, 580, 612, 644)), (640, (2560, 1280, 1280, 644, 680, 712)),
     (2048, (8192, 4096, 4096, 2052, 2176, 2288))],
)  # fmt: skip
def test_bytes_of_a_row(width: int, expected: tuple[int, ...]) -> None:
    assert tuple(row_bytes(dtype, width) for dtype in DTYPES) == expected


@given(st.integers(576, MAX_HIDDEN_SIZE))
def test_a_row_with_outliers_takes_at_most_56_percent_of_f16(width: int) -> None:
    assert row_bytes(WireDtype.Q8_OUTLIER, width) <= 0.56 * row_bytes(WireDtype.F16, width) + 2


def test_labels_name_each_dtype() -> None:
    assert DTYPE_LABELS == ("f32", "f16", "bf16", "q8-row", "q8-block", "q8-outlier")
    assert [dtype_of_label(label) for label in DTYPE_LABELS] == list(DTYPES)
    for unknown in ("q8", "none", ""):
        with pytest.raises(ValueError, match="there are f32, f16"):
            dtype_of_label(unknown)
