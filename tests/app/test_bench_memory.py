"""``p2pmesh bench memory``: which stages are measured, and how a row reads. The measurement itself is the command's."""

from pathlib import Path

import trio

from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.app.bench_memory import MemoryRow, _line_of, ranges_of
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MIB
from tests.fakes.tiny_gguf import tiny_gemma3


def test_a_model_is_measured_whole_and_in_the_parts_that_its_family_permits(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gemma3())
    model = trio.run(DiskModelStore(tmp_path / "models", tmp_path / "cache").resolve, str(path))
    ranges = list(ranges_of(model))
    assert ranges[0] == LayerRange(0, model.index.layer_count)
    assert all(0 <= one.start < one.end <= model.index.layer_count for one in ranges)


def test_a_row_says_how_far_the_charge_is_off() -> None:
    row = MemoryRow("m", (2, 4), 2048, 4, 105 * MIB, 100 * MIB)
    assert round(row.error, 3) == 0.05
    assert _line_of(row).split() == ["m", "2-3", "2048", "4", "105.0", "100.0", "+5.0", "%"]
