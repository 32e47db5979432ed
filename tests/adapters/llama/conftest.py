"""Tiny real models, whole and cut, and a launcher of real children."""

from pathlib import Path

import pytest

from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.base.ids import LayerRange
from p2pmesh.ports.engine import EngineSpec
from p2pmesh.wire.stage import WireDtype
from tests.fakes.tiny_gguf import tiny_gemma3, tiny_llama
from tests.model.stages import stage_of

LAYERS = {"llama": 4, "gemma3": 8}
CUTS = {"llama": 2, "gemma3": 6}


@pytest.fixture(scope="session")
def stage_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``llama.gguf``, ``llama-0-2.gguf``, … and the same for gemma3."""
    folder = tmp_path_factory.mktemp("stages")
    for name, data in (("llama", tiny_llama()), ("gemma3", tiny_gemma3())):
        (folder / f"{name}.gguf").write_bytes(data)
        for start, end in ((0, CUTS[name]), (CUTS[name], LAYERS[name])):
            (folder / f"{name}-{start}-{end}.gguf").write_bytes(stage_of(data, start, end))
    return folder


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measured widths, shared by the tests."""
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def launcher(cache_folder: Path) -> LlamaEngineLauncher:
    """Children without the probe, which has a test of its own."""
    options = LauncherOptions(str(cache_folder), is_probing=False, loading_silence_seconds=20)  # busy is not hung
    return LlamaEngineLauncher(options)


@pytest.fixture
def make_spec(stage_folder: Path):
    """A spec by family and layers."""

    def make(family="llama", start=0, end=None, *, lanes=2, context_tokens=384, wire_dtype=WireDtype.F32):
        layer_count = LAYERS[family]
        end = layer_count if end is None else end
        is_whole = (start, end) == (0, layer_count)
        name = f"{family}.gguf" if is_whole else f"{family}-{start}-{end}.gguf"
        digest = (name.encode().hex() + "0" * 64)[:64]
        return EngineSpec(
            str(stage_folder / name), digest, LayerRange(start, end), layer_count, context_tokens, lanes, wire_dtype
        )

    return make
