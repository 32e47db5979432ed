"""Building a package: where its model is found, and how much memory a real one takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from p2pmesh.adapters.model_packages import installed_models
from p2pmesh.app.package_commands import build
from p2pmesh.base.quantities import KIB, MIB
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

MOST_BYTES = 150 * MIB
SCRIPT = """
import sys
from pathlib import Path
from p2pmesh.app.package_commands import build, verify_package
home, model, out = sys.argv[1:]
if model:
    build(Path(home), model, Path(out), None)
else:
    assert verify_package(Path(out))[1]
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_bytes(*arguments: str) -> int:
    """The most memory that the process had, by its own account: a child's usage counts its parent's as well."""
    command = [sys.executable, "-c", SCRIPT, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return int(ended.stdout) * KIB


def test_a_model_of_the_shared_cache_is_found_as_up_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, cache = "ab" * 20, tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    snapshot = cache / "models--org--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "Tiny.gguf").write_bytes(tiny_llama(TinyShape(layers=2)))
    references = cache / "models--org--tiny" / "refs"
    references.mkdir()
    (references / "main").write_text(commit)
    assert build(tmp_path / "home", "org/tiny", tmp_path / "package", None)["layer_count"] == 2


def test_a_model_of_250_megabytes_is_packaged_and_checked_in_little_memory(tmp_path: Path) -> None:
    largest = max(installed_models(), key=lambda model: sum(part.stat().st_size for part in model.parts))
    size_bytes = sum(part.stat().st_size for part in largest.parts)
    if size_bytes < 200 * MIB:
        pytest.skip("the large model is not installed")
    home, out = str(tmp_path / "home"), str(tmp_path / "package")
    assert peak_bytes(home, largest.name, out) < MOST_BYTES
    assert peak_bytes(home, "", out) < MOST_BYTES
