"""What ``model.cost`` charges, against what llama.cpp says that it allocates. ``pytest -s`` shows the table."""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters.llama.tiny_variants import VARIANTS
from p2pmesh.adapters.model_files import FileSource
from p2pmesh.adapters.model_packages import installed_models
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MIB
from p2pmesh.model.cost import StageCost, stage_bytes
from p2pmesh.model.gguf import read_index

CONTEXT, LANES = 2048, 4
CACHE_BAR, TOTAL_BAR = 0.01, 0.05
REAL = ("SmolLM2-135M-Instruct", "gemma-3-270m")
KINDS = {
    "full": "llama",
    "grouped": "qwen3",
    "sliding window": "gemma3",
    "latent (MLA)": "deepseek2+experts",
    "latent with an indexer": "deepseek32+experts",
    "windowed with an indexer": "dots3note+experts",
    "recurrent": "mamba2",
    "recurrent (time mix)": "rwkv7",
    "hybrid, both": "falcon-h1",
    "hybrid, by layer": "granitehybrid",
}


UNKNOWN_CACHES = frozenset({"deepseek4"})
"""Architectures whose caches are not charged right: four caches of tokens that were compressed."""
UNKNOWN_BUFFERS = frozenset({"deepseek4", "gemma3n", "glm5-next"})
"""Architectures whose buffers of a call are charged more than 5 % of the whole wrong; none of them is served."""
GROUPS = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: charged and said, in bytes."""

    name: str
    cost: StageCost
    said: dict[str, int]

    @property
    def cache_error(self) -> float:
        charged = self.cost.kv_bytes + self.cost.state_bytes
        return abs(charged - self.said["caches"]) / max(1, self.said["caches"])

    @property
    def total_error(self) -> float:
        total = sum(self.said[part] for part in ("model", "KV", "RS", "compute", "output"))
        return self.cost.buffer_bytes / total - 1

    def line(self) -> str:
        cost, said = self.cost, self.said
        weights = cost.weights_bytes + cost.embedding_bytes + cost.output_bytes
        pairs = (
            (weights, said["model"]), (cost.kv_bytes, said["KV"]), (cost.state_bytes, said["RS"]),
            (cost.compute_bytes, said["compute"]), (cost.logits_bytes, said["output"]),
        )  # fmt: skip
        columns = "  ".join(f"{charged / MIB:7.2f} {real / MIB:7.2f}" for charged, real in pairs)
        return f"{self.name:34} {columns}   {100 * self.cache_error:5.2f} % {100 * self.total_error:+6.2f} %"


def said_of(*items: str) -> list[dict[str, int]]:
    command = [sys.executable, "-m", "tests.adapters.llama.buffers", str(CONTEXT), str(LANES), *items]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def cost_of(path: Path, layers: LayerRange | None = None) -> StageCost:
    with FileSource(path) as source:
        index = read_index(source)
    return stage_bytes(index, layers or LayerRange(0, index.layer_count), CONTEXT, LANES)


def show(rows: list[Row]) -> None:
    heads = "".join(f"{head:>17}" for head in ("weights", "KV", "states", "compute", "logits"))
    print(f"\n{'charged and said, in MiB':32}{heads}   caches   total")
    for row in rows:
        print(row.line())


def check(rows: list[Row]) -> None:
    show(rows)
    for row in rows:
        assert row.cache_error <= CACHE_BAR, row.line()
        assert abs(row.total_error) <= TOTAL_BAR, row.line()


def test_tiny_models_of_each_kind_of_attention(tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"{architecture}.gguf" for kind, architecture in KINDS.items()}
    rows = []
    for kind, architecture in KINDS.items():
        (said,) = said_of(f"tiny={architecture}:{paths[kind]}", f"{paths[kind]}:1:1")
        rows.append(Row(f"{kind}: {architecture}", cost_of(paths[kind]), said))
    check(rows)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_bytes_of_every_architecture(group: int, tmp_path: Path) -> None:
    """Those that llama.cpp makes no tiny model of are left out; ``test_families`` says which must be made."""
    wrong: list[str] = []
    for number, variant in enumerate(VARIANTS[group::GROUPS]):
        path = tmp_path / f"{number}.gguf"
        try:
            (said,) = said_of(f"tiny={variant.name}:{path}", f"{path}:1:1")
        except subprocess.CalledProcessError:
            continue
        row = Row(variant.name, cost_of(path), said)
        is_cache_wrong, are_buffers_wrong = row.cache_error > CACHE_BAR, abs(row.total_error) > TOTAL_BAR
        expected = (variant.architecture in UNKNOWN_CACHES, variant.architecture in UNKNOWN_BUFFERS)
        if (is_cache_wrong, are_buffers_wrong) != expected:
            wrong.append(row.line())
        path.unlink()
    assert wrong == []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("name", REAL)
def test_real_models_whole_and_cut(name: str, home: Path) -> None:
    if name not in {model.name for model in installed_models()}:
        pytest.skip(f"{name} is not installed")
    store = DiskModelStore(home / "models", home / "cache")
    model = trio.run(store.resolve, name)
    count = model.index.layer_count
    ranges = [LayerRange(0, count), *(LayerRange(n * count // 3, (n + 1) * count // 3) for n in range(3))]
    rows = []
    for layers in ranges:
        stage = trio.run(partial(store.cut, model, layers))
        is_first, is_last = layers.is_first(), layers.is_last(count)
        (said,) = said_of(f"{stage.path}:{int(is_first)}:{int(is_last)}")
        cost = stage_bytes(model.index, layers, CONTEXT, LANES)
        if is_first and not is_last:
            said["output"] = (
                cost.logits_bytes
            )  # made when the first call gives out a row of logits for each of its rows
        rows.append(Row(f"{name} {layers}", cost, said))
    check(rows)
