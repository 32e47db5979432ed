"""A seeded dozen of the losses of ``p2pmesh chaos --matrix``, and its faults of every kind under load."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SMOLLM, require_models

LAST_S = 900


def run_chaos(*arguments: str, home: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "p2pmesh", "chaos", "--json", "--home", str(home), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LAST_S, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == 0, report
    return report


@pytest.mark.slow
@pytest.mark.timeout(LAST_S)
@pytest.mark.parametrize("spares", [0, 1])
def test_a_seeded_half_dozen_kills_change_no_byte(tiny_model: Path, tmp_path: Path, spares: int) -> None:
    report = run_chaos(
        "--matrix", "--cases", "6", "--seed", str(spares), "--spares", str(spares), "--faults", "kill-node",
        "--model", str(tiny_model), "--tokens", "600", home=tmp_path,
    )  # fmt: skip
    assert report["outcomes"] == {"identical": 6}
    assert report["inexact_recoveries"] == 0


@pytest.mark.slow
@pytest.mark.timeout(LAST_S)
def test_faults_of_all_kinds_lose_nothing(tmp_path: Path) -> None:
    require_models(SMOLLM)
    report = run_chaos(
        "--model", SMOLLM, "--requests", "14", "--tokens", "240", "--every", "6", "--seed", "2", home=tmp_path
    )
    assert report["outcomes"] == {"identical": 14}
    assert report["needless_replacements"] == 0
    assert len(report["faults"]) > 3


def nodes_below(folder: Path) -> list[str]:
    """Commands of the processes whose home lies there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command and "chaos_node" in command:
                found.append(command)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_nothing_behind(tiny_model: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable, "-m", "p2pmesh", "chaos", "--home", str(tmp_path / "home"), "--model", str(tiny_model),
    ]  # fmt: skip
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 60
    while not nodes_below(scratch) and time.monotonic() < deadline:
        assert running.poll() is None
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "Traceback" not in errors
    assert nodes_below(scratch) == []
    assert list(scratch.glob("p2pmesh-chaos-*")) == []
