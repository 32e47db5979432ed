"""``p2pmesh bench codecs``: how fast one core writes and reads activations in each wire dtype.

Gigabytes a second are of float32 rows, whatever they become: so the figures of two dtypes can be compared. Rows are
drawn, seeded, with some channels far larger than the others, as residual streams have.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from p2pmesh.wire.activation import decode_rows, encode_rows, row_bytes
from p2pmesh.wire.dtype import LOSSY_DTYPES, WireDtype

HIDDEN_SIZE = 2048
ROW_COUNTS = (1, 256)
"""A decoded token, and a chunk of a prompt."""
_REPEATS = 9
_REPEAT_S = 0.02
_SEED = 20_260_129


@dataclass(frozen=True, slots=True)
class CodecRow:
    """One dtype at one number of rows: processor time, the fastest of several repeats, as the machine is shared."""

    dtype: str
    rows: int
    bytes_per_row: int
    share_of_f16: float
    encode_us: float
    decode_us: float
    encode_gb_per_s: float
    decode_gb_per_s: float


def run_codecs(out: TextIO, *, is_json: bool) -> int:
    """Measures and prints the table; 0."""
    rows = [_measure(dtype, count) for count in ROW_COUNTS for dtype in (WireDtype.F32, *LOSSY_DTYPES)]
    if is_json:
        out.write(json.dumps({"hidden_size": HIDDEN_SIZE, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
        return 0
    out.write(f"width {HIDDEN_SIZE}, GB/s of f32 on one core\n")
    out.write(f"{'rows':>4}  {'dtype':12}{'B/row':>7}{'of f16':>8}{'encode':>8}{'us':>8}{'decode':>8}{'us':>8}\n")
    for row in rows:
        out.write(
            f"{row.rows:>4}  {row.dtype:12}{row.bytes_per_row:>7}{row.share_of_f16:>8.3f}"
            f"{row.encode_gb_per_s:>8.2f}{row.encode_us:>8.1f}{row.decode_gb_per_s:>8.2f}{row.decode_us:>8.1f}\n"
        )
    return 0


def sample_rows(count: int) -> NDArray[np.float32]:
    """Rows of ``HIDDEN_SIZE``; one channel in 256 is two hundred times the others."""
    random = np.random.Generator(np.random.PCG64(_SEED))
    rows = random.standard_normal((count, HIDDEN_SIZE), dtype=np.float32)
    rows[:, ::256] *= 200
    return rows


def _measure(dtype: WireDtype, count: int) -> CodecRow:
    rows = sample_rows(count)
    body, sent = encode_rows(rows, dtype)
    assert sent is dtype
    encode_s = _fastest_s(lambda: encode_rows(rows, dtype))
    decode_s = _fastest_s(lambda: decode_rows(body, dtype, count, HIDDEN_SIZE))
    return CodecRow(
        dtype=dtype.label,
        rows=count,
        bytes_per_row=row_bytes(dtype, HIDDEN_SIZE),
        share_of_f16=row_bytes(dtype, HIDDEN_SIZE) / row_bytes(WireDtype.F16, HIDDEN_SIZE),
        encode_us=encode_s * 1e6,
        decode_us=decode_s * 1e6,
        encode_gb_per_s=rows.nbytes / encode_s / 1e9,
        decode_gb_per_s=rows.nbytes / decode_s / 1e9,
    )


def _fastest_s(work: Callable[[], object]) -> float:
    """Seconds of one call, of this core, in the fastest of several loops of calls."""
    began = time.thread_time()
    work()
    calls = max(1, int(_REPEAT_S / max(time.thread_time() - began, 1e-7)))
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.thread_time()
        for _ in range(calls):
            work()
        best = min(best, (time.thread_time() - began) / calls)
    return best
