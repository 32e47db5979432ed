"""``p2pmesh bench memory``: what placements charge for stages, beside the resident memory of their engines.

Each model is loaded whole and in three parts, at two context lengths, as ``up`` loads it. An engine makes calls of
every kind as it loads (widths and speed are measured), so that what it then has is what it keeps.
"""

import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import psutil  # type: ignore[import-untyped]
import trio

from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.adapters.model_packages import installed_models
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import DEFAULT_LANES
from p2pmesh.base.quantities import MIB
from p2pmesh.model.cost import stage_bytes
from p2pmesh.model.families import check_range
from p2pmesh.ports.engine import EngineSpec
from p2pmesh.ports.models import ModelFile, ModelStore
from p2pmesh.wire.stage import WireDtype

CONTEXTS = (2048, 8192)
PARTS = 3
BAR = 0.05
PATIENCE_S = 60.0
"""Memory can be measured on a busy machine as well, where an engine that loads may be silent for long."""
_CHILD = "p2pmesh.adapters.llama.child"


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One stage; ``error`` is how much more was charged than was resident, as a share of that."""

    model: str
    layers: tuple[int, int]
    context_tokens: int
    lanes: int
    predicted_bytes: int
    resident_bytes: int

    @property
    def error(self) -> float:
        """Positive: charged too much."""
        return self.predicted_bytes / self.resident_bytes - 1


def run_memory(home: Path, models: tuple[str, ...], out: TextIO, *, is_json: bool) -> int:
    """Measures and prints each row as soon as it is there; 0, or 1 where a row misses the bar of 5 %."""
    names = models or tuple(model.name for model in installed_models())
    if not names:
        raise Refused(ErrorCode.MODEL_NOT_FOUND, "no model is installed; name one with --model")
    show: Callable[[MemoryRow], None] = (lambda _: None) if is_json else (lambda row: _write(out, _line_of(row)))
    if not is_json:
        heads = f"{'context':>8}{'lanes':>6}{'predicted MiB':>15}{'resident MiB':>14}{'error':>9}"
        _write(out, f"{'stage':36}{heads}")
    rows = trio.run(_measure, home, names, show)
    worst = max(rows, key=lambda row: abs(row.error))
    if is_json:
        facts = {"bar": BAR, "worst_error": worst.error, "rows": [asdict(row) | {"error": row.error} for row in rows]}
        _write(out, json.dumps(facts, indent=2))
    else:
        _write(out, f"the worst is {100 * worst.error:+.1f} %, the bar {100 * BAR:.0f} %")
    return int(abs(worst.error) > BAR)


def _write(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def _line_of(row: MemoryRow) -> str:
    name = f"{row.model} {row.layers[0]}-{row.layers[1] - 1}"
    sizes = f"{row.predicted_bytes / MIB:15.1f}{row.resident_bytes / MIB:14.1f}{100 * row.error:+8.1f} %"
    return f"{name:36}{row.context_tokens:8}{row.lanes:6}{sizes}"


async def _measure(home: Path, names: tuple[str, ...], show: Callable[[MemoryRow], None]) -> list[MemoryRow]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch:
        launcher = LlamaEngineLauncher(LauncherOptions(scratch, loading_silence_seconds=PATIENCE_S))
        store = open_access(home).store
        for name in names:
            model = await store.resolve(name)
            async for row in _rows_of(store, launcher, model):
                rows.append(row)
                show(row)
    return rows


async def _rows_of(store: ModelStore, launcher: LlamaEngineLauncher, model: ModelFile) -> AsyncIterator[MemoryRow]:
    for layers in ranges_of(model):
        artifact = await store.cut(model, layers)
        try:
            for context_tokens in CONTEXTS:
                spec = EngineSpec(
                    artifact.path, artifact.digest, layers, model.index.layer_count, context_tokens, DEFAULT_LANES,
                    WireDtype.F32, model.digest,
                )  # fmt: skip
                async with launcher.launch(spec):
                    resident = _resident_bytes()
                predicted = stage_bytes(model.index, layers, context_tokens, DEFAULT_LANES).total_bytes
                ends = (layers.start, layers.end)
                yield MemoryRow(model.name, ends, context_tokens, DEFAULT_LANES, predicted, resident)
        finally:
            store.release(artifact.digest)


def ranges_of(model: ModelFile) -> Iterator[LayerRange]:
    """The whole model, and its parts where its family may be cut there."""
    count = model.index.layer_count
    ends = [part * count // PARTS for part in range(PARTS + 1)]
    yield LayerRange(0, count)
    for start, end in pairwise(ends):
        layers = LayerRange(start, end)
        try:
            check_range(model.index, layers)
        except ConfigError:
            continue
        yield layers


def _resident_bytes() -> int:
    """Of the one engine process that this one has."""
    [engine] = [child for child in psutil.Process().children() if _CHILD in child.cmdline()]
    return int(engine.memory_info().rss)
