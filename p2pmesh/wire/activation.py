"""Activation bodies: float32 rows <-> bytes in each wire dtype.

Owns the layouts, which value does not fit a format, and every check of a body's bytes. Frames and flags stay in
``wire.stage``; which format a run uses is agreed elsewhere. Normative text: ``protocols/skippy-stage-2.md``.

The quantised formats hold, in this order: exact elements (f32, ``Q8_OUTLIER`` only), scales (f32 a row, or bfloat16 a
block of ``BLOCK``), one signed byte an element. A byte of ``MARK`` says that the element is the row's next exact one:
so an exact element needs no index, none can be out of range, twice or out of order, and only their number is checked.

Bounded and total: a body's length follows from its header before anything is allocated, and what is refused is
refused by one reduction over scales, marks and exact elements each, not by looking at the rows that come out.

A code of ``Q8_OUTLIER`` counts by its square, with its sign: what is left of a residual stream without its largest
elements still has heavy tails, and finer steps near zero halve the divergence that the coarse ones cause.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.dtype import WireDtype

Rows = NDArray[np.float32]

BLOCK = 32
"""Elements that share a scale."""
ELEMENTS_PER_OUTLIER = 72
"""A row of so many elements keeps one exactly; with 4 bytes each, a row takes 0.56 of its bytes in f16."""
MARK = -128
LARGEST_CODE = 127
LARGEST_SCALE = 2.0**112
"""The square of 128 times it, a mark taken for a code, is still finite. Larger elements than ``LARGEST_ELEMENT`` travel
as f32."""
LARGEST_ELEMENT = LARGEST_CODE * LARGEST_SCALE

_F16_OVERFLOWS = 65_520.0
"""The smallest magnitude that rounds to an infinity of IEEE 754 binary16, whose largest number is 65504."""
_BF16_OVERFLOWS = float(np.uint32(0x7F7F8000).view(np.float32))
"""The smallest magnitude that rounds to an infinity of bfloat16."""
_LARGEST_SCALE_BITS = 0x7780
"""``LARGEST_SCALE`` as bfloat16. A negative scale, an infinity and a NaN have larger bits."""
_SMALLEST_SCALE_BITS = 0x0080
_SMALLEST_SCALE = np.float32(2.0**-126)
"""The smallest normal number, in bits of bfloat16 and in f32. A smaller scale is written as zero, since its inverse may
not be finite."""
_ELEMENTS_AT_ONCE = 16_384
"""Rows of so many elements are quantised at a time: their arrays stay in the processor's cache."""
_ELEMENT_BYTES = {WireDtype.NONE: 0, WireDtype.F32: 4, WireDtype.F16: 2, WireDtype.BF16: 2}


def row_bytes(dtype: WireDtype, hidden_size: int) -> int:
    """Bytes of one row of a body; a body is a whole number of them."""
    element = _ELEMENT_BYTES.get(dtype)
    if element is not None:
        return element * hidden_size
    if dtype is WireDtype.Q8_ROW:
        return hidden_size + 4
    exact = outlier_count(hidden_size) if dtype is WireDtype.Q8_OUTLIER else 0
    return hidden_size + 2 * _block_count(hidden_size) + 4 * exact


def outlier_count(hidden_size: int) -> int:
    """Elements of a row that ``Q8_OUTLIER`` keeps exactly; none in rows of fewer than 72."""
    return hidden_size // ELEMENTS_PER_OUTLIER


def encode_rows(rows: Rows, dtype: WireDtype) -> tuple[bytes, WireDtype]:
    """Body bytes of rows, shape ``(tokens, hidden_size)``, and the dtype that they are in.

    That is F32 instead of ``dtype`` where an element does not fit. A non-finite element is a broken engine and raises
    ``ValueError``.
    """
    rows = rows.astype("<f4", copy=False)
    largest = float(max(np.maximum.reduce(rows, axis=None), -np.minimum.reduce(rows, axis=None)))
    if not largest < math.inf:
        raise ValueError("an activation holds a NaN or an infinity")
    if dtype is WireDtype.F32:
        return rows.tobytes(), WireDtype.F32
    if dtype is WireDtype.F16:
        if largest < _F16_OVERFLOWS:
            return rows.astype("<f2").tobytes(), WireDtype.F16
    elif dtype is WireDtype.BF16:
        if largest < _BF16_OVERFLOWS:
            return b"".join(_bf16_bits(rows[group]).tobytes() for group in _groups(*rows.shape)), WireDtype.BF16
    elif largest <= LARGEST_ELEMENT:
        return _encode_q8(np.ascontiguousarray(rows), dtype), dtype
    return rows.tobytes(), WireDtype.F32


def decode_rows(body: bytes | memoryview, dtype: WireDtype, count: int, hidden_size: int) -> Rows:
    """Rows of a body, shape ``(count, hidden_size)``, which the caller has found to have the length that they need.

    Raises ``RemoteProtocolError`` with ``FRAME_VALUE_INVALID`` where the bytes mean a NaN, an infinity, or nothing.
    """
    if dtype is WireDtype.F32:
        flat = np.frombuffer(body, dtype="<f4").astype(np.float32, copy=False)
    elif dtype is WireDtype.F16:
        flat = np.frombuffer(body, dtype="<f2").astype(np.float32)
    elif dtype is WireDtype.BF16:
        bits = np.frombuffer(body, dtype="<u2").astype(np.uint32)
        bits <<= 16
        flat = bits.view(np.float32)
    else:
        return _decode_q8(body, dtype, count, hidden_size)
    if not max(np.maximum.reduce(flat), -np.minimum.reduce(flat)) < math.inf:
        raise _invalid("an activation holds a NaN or an infinity")
    return flat.reshape(count, hidden_size)


def _invalid(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.FRAME_VALUE_INVALID, text)


def _bf16_bits(rows: Rows) -> NDArray[np.uint16]:
    """The upper halves, rounded to nearest, ties to even; finite for what is below ``_BF16_OVERFLOWS``."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounded = (bits >> 16) & 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    return rounded.astype("<u2")


# --- one byte an element ----------------------------------------------------------
def _block_count(hidden_size: int) -> int:
    return -(-hidden_size // BLOCK)


def _encode_q8(rows: Rows, dtype: WireDtype) -> bytes:
    groups = [_quantise(rows[group], dtype) for group in _groups(*rows.shape)]
    return b"".join(part.tobytes() for parts in zip(*groups, strict=True) for part in parts)


def _groups(count: int, hidden_size: int) -> list[slice]:
    at_once = max(1, _ELEMENTS_AT_ONCE // hidden_size)
    return [slice(start, start + at_once) for start in range(0, count, at_once)]


def _quantise(rows: Rows, dtype: WireDtype) -> tuple[NDArray[Any], ...]:
    """The parts of a body, in order."""
    if dtype is WireDtype.Q8_ROW:
        scales = _largest_of(rows) * np.float32(1 / LARGEST_CODE)
        scales[scales < _SMALLEST_SCALE] = 0
        return scales.astype("<f4"), _codes(rows, scales[:, None])
    if dtype is WireDtype.Q8_BLOCK:
        return _encode_blocks(rows, is_squared=False)
    exact = outlier_count(rows.shape[1])
    if exact == 0:
        return _encode_blocks(rows, is_squared=True)
    where = _outliers(rows, exact)
    outliers = rows.reshape(-1)[where]
    rest = rows.copy()
    rest.reshape(-1)[where] = 0
    bits, codes = _encode_blocks(rest, is_squared=True)
    codes.reshape(-1)[where] = MARK
    return outliers, bits, codes


def _outliers(rows: Rows, exact: int) -> NDArray[np.intp]:
    """Flat indices of the ``exact`` largest elements of each row, ascending."""
    count, hidden_size = rows.shape
    where = np.argpartition(np.abs(rows), hidden_size - exact, axis=1)[:, hidden_size - exact :]
    where.sort(axis=1)
    where += np.arange(count)[:, None] * hidden_size
    return where.reshape(-1)


def _encode_blocks(rows: Rows, *, is_squared: bool) -> tuple[NDArray[np.uint16], NDArray[np.int8]]:
    """Scales as bfloat16 bits, ``(count, blocks)``, and codes, ``(count, hidden_size)``."""
    count, hidden_size = rows.shape
    blocks = _in_blocks(rows)
    bits = _scale_bits(_largest_of(blocks), LARGEST_CODE**2 if is_squared else LARGEST_CODE)
    codes = _codes(blocks, _scales(bits)[:, None, :], is_squared=is_squared).reshape(count, -1)
    return bits.astype("<u2"), np.ascontiguousarray(codes[:, :hidden_size])


def _in_blocks(rows: Rows) -> Rows:
    """Shape ``(count, BLOCK, blocks)``: element i of a row is in block ``i % blocks``; filled up with zeros.

    Blocks run across the row because each operation then goes along memory, several times as fast as 32 at a time.
    """
    count, hidden_size = rows.shape
    blocks = _block_count(hidden_size)
    if hidden_size % BLOCK:
        filled = np.zeros((count, BLOCK * blocks), dtype=np.float32)
        filled[:, :hidden_size] = rows
        rows = filled
    return rows.reshape(count, BLOCK, blocks)


def _largest_of(values: Rows) -> Rows:
    """The largest magnitude along the second axis."""
    largest: Rows = np.maximum.reduce(np.abs(values), axis=1)
    return largest


def _scale_bits(largest: Rows, steps: int) -> NDArray[np.uint32]:
    """Scales as bfloat16 bits, rounded up, so that no code passes ``LARGEST_CODE``; zero for tiny blocks."""
    bits = (largest * np.float32(1 / steps)).view(np.uint32)
    bits += 0xFFFF
    bits >>= 16
    bits[bits < _SMALLEST_SCALE_BITS] = 0
    return np.minimum(bits, _LARGEST_SCALE_BITS)


def _scales(bits: NDArray[np.uint32]) -> Rows:
    return (bits << 16).view(np.float32)


def _codes(values: Rows, scales: Rows, *, is_squared: bool = False) -> NDArray[np.int8]:
    """Quantised elements; those of a zero scale are zero. ``scales`` broadcast against ``values``."""
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = values * inverse
    if is_squared:
        roots = np.abs(scaled)
        np.sqrt(roots, out=roots)
        np.copysign(roots, scaled, out=scaled)
    return np.rint(scaled, out=scaled).astype(np.int8)


def _decode_q8(body: bytes | memoryview, dtype: WireDtype, count: int, hidden_size: int) -> Rows:
    size = count * hidden_size
    codes = np.frombuffer(body, dtype=np.int8, count=size, offset=len(body) - size)
    if dtype is WireDtype.Q8_ROW:
        row_bits = np.frombuffer(body, dtype="<u4", count=count)
        _check_scales(row_bits, _LARGEST_SCALE_BITS << 16)
        _check_no_mark(codes)
        return codes.reshape(count, hidden_size) * row_bits.astype(np.uint32).view(np.float32)[:, None]
    is_squared = dtype is WireDtype.Q8_OUTLIER
    exact = outlier_count(hidden_size) if is_squared else 0
    blocks = _block_count(hidden_size)
    bits = np.frombuffer(body, dtype="<u2", count=count * blocks, offset=4 * exact * count)
    _check_scales(bits, _LARGEST_SCALE_BITS)
    rows = np.empty((count, hidden_size), dtype=np.float32)
    scales = _scales(bits.astype(np.uint32)).reshape(count, blocks)
    for group in _groups(count, hidden_size):
        steps = codes.reshape(count, hidden_size)[group].astype(np.float32)
        if is_squared:
            steps *= np.abs(steps)
        _scale(steps, scales[group], rows[group])
    if exact == 0:
        _check_no_mark(codes)
    else:
        _put_outliers(rows, codes, np.frombuffer(body, dtype="<f4", count=exact * count), exact)
    return rows


def _check_scales(bits: NDArray[Any], largest: int) -> None:
    """Bits with a sign, of an infinity or of a NaN are larger numbers than those of any scale that is allowed."""
    if np.maximum.reduce(bits) > largest:
        raise _invalid("a scale is negative, too large or no number")


def _check_no_mark(codes: NDArray[np.int8]) -> None:
    if np.minimum.reduce(codes) == MARK:
        raise _invalid("an element is marked as exact, and none are there")


def _scale(steps: Rows, scales: Rows, out: Rows) -> None:
    """Elements of blocks times their scales."""
    count, hidden_size = steps.shape
    if hidden_size % BLOCK == 0:
        in_blocks = (count, BLOCK, -1)
        np.multiply(steps.reshape(in_blocks), scales[:, None, :], out=out.reshape(in_blocks))
    else:
        np.multiply(steps, np.tile(scales, BLOCK)[:, :hidden_size], out=out)


def _put_outliers(rows: Rows, codes: NDArray[np.int8], outliers: Rows, exact: int) -> None:
    count, hidden_size = rows.shape
    where = np.flatnonzero(codes == MARK)
    if len(where) != len(outliers):
        raise _invalid(f"{len(where)} elements are marked as exact, {len(outliers)} are there")
    if count > 1 and (where.reshape(count, exact) // hidden_size != np.arange(count)[:, None]).any():
        raise _invalid(f"a row marks other than {exact} elements as exact")
    if not max(np.maximum.reduce(outliers), -np.minimum.reduce(outliers)) < math.inf:
        raise _invalid("an activation holds a NaN or an infinity")
    rows.reshape(-1)[where] = outliers
