"""``bench codecs`` gives a row per dtype and number of rows; how fast is not for a test to say."""

import io
import json

from p2pmesh.app.bench_codecs import ROW_COUNTS, run_codecs
from p2pmesh.wire.dtype import DTYPE_LABELS


def test_every_dtype_is_measured_at_every_number_of_rows() -> None:
    out = io.StringIO()
    assert run_codecs(out, is_json=True) == 0
    document = json.loads(out.getvalue())
    assert [(row["rows"], row["dtype"]) for row in document["rows"]] == [
        (count, label) for count in ROW_COUNTS for label in DTYPE_LABELS
    ]
    assert all(row["encode_gb_per_s"] > 0 and row["decode_gb_per_s"] > 0 for row in document["rows"])
    assert {row["dtype"]: row["bytes_per_row"] for row in document["rows"]} == {
        "f32": 8192, "f16": 4096, "bf16": 4096, "q8-row": 2052, "q8-block": 2176, "q8-outlier": 2288,
    }  # fmt: skip
