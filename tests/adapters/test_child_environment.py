"""What our child processes find in their environment."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import p2pmesh
from p2pmesh.adapters.child_environment import child_environment, engine_environment
from p2pmesh.adapters.llama.certify import run_variant
from p2pmesh.adapters.llama.tiny_variants import VARIANTS

ROOT = str(Path(p2pmesh.__file__).resolve().parents[1])


def test_the_package_is_found_first_and_our_own_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert child_environment()["PYTHONPATH"] == os.pathsep.join((ROOT, "/theirs"))
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment()["PYTHONPATH"] == ROOT


def test_an_engine_starts_no_debugger_and_spins_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert engine_environment()["GGML_NO_BACKTRACE"] == "1"
    assert "GOMP_SPINCOUNT" not in engine_environment()
    assert engine_environment(300)["GOMP_SPINCOUNT"] == "300"


def test_an_engine_that_fills_the_processors_stays_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    every = len(os.sched_getaffinity(0))
    assert engine_environment(threads=every)["OMP_PROC_BIND"] == "true"
    assert "OMP_PROC_BIND" not in engine_environment(threads=every + 1)
    assert "OMP_PROC_BIND" not in engine_environment()
    monkeypatch.setenv("GOMP_CPU_AFFINITY", "0")
    assert "OMP_PROC_BIND" not in engine_environment(threads=every)


def test_a_run_that_aborts_during_certification_starts_no_debugger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Mapping[str, str]] = []

    def run(command: list[str], *, env: Mapping[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        seen.append(env)
        return subprocess.CompletedProcess(command, 1, b"", b"nothing ran")

    monkeypatch.setattr(subprocess, "run", run)
    run_variant(VARIANTS[0], ((1,),), tmp_path)
    assert [env["GGML_NO_BACKTRACE"] for env in seen] == ["1"]


def test_a_child_of_another_directory_finds_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import p2pmesh; print(p2pmesh.__file__)"]
    found = subprocess.run(command, env=child_environment(), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(ROOT)
