"""A process that could not say anything is not one that did not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2pmesh.adapters.llama.starving import MOST_FORGIVEN_S, Patience

PID = 7


def waited(folder: Path, **seconds: float) -> None:
    """What the kernel has counted by now, by thread."""
    for thread, waited_s in seconds.items():
        task = folder / str(PID) / "task" / thread
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"123 {round(waited_s * 1e9)} 9\n")


def test_what_a_thread_waited_is_forgiven(tmp_path: Path) -> None:
    waited(tmp_path, a=100.0, b=50.0)
    patience = Patience(PID, tmp_path)
    waited(tmp_path, a=100.4, b=50.1)
    assert patience.counted_s(0.5) == pytest.approx(0.1)
    assert patience.counted_s(1.0) == pytest.approx(0.6)  # nobody waited
    waited(tmp_path, a=109.0)
    assert patience.counted_s(2.0) == pytest.approx(0.6)  # no more than has passed


def test_another_silence_begins_with_nothing_forgiven(tmp_path: Path) -> None:
    waited(tmp_path, a=1.0)
    patience = Patience(PID, tmp_path)
    waited(tmp_path, a=2.0)
    assert patience.counted_s(1.0) == 0.0
    assert patience.counted_s(0.0) == 0.0
    assert patience.counted_s(0.2) == 0.2
    waited(tmp_path, a=2.5)
    assert patience.counted_s(1.0) == pytest.approx(0.5)


def at_look(folder: Path, patience: Patience, silent_s: float, state: str, ran_ns: int) -> float:
    """For how long it is known to be stopped."""
    task = folder / str(PID) / "task" / "a"
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"{ran_ns} 0 9\n")
    (folder / str(PID) / "stat").write_text(f"{PID} (of a) name) {state} 1 1\n")
    patience.counted_s(silent_s)
    return patience.stopped_s


def test_what_is_stopped_is_known_to_be(tmp_path: Path) -> None:
    patience = Patience(PID, tmp_path)
    assert [at_look(tmp_path, patience, s, "T", 5) for s in (0.25, 0.5, 0.75)] == [0.0, 0.25, 0.5]
    assert at_look(tmp_path, patience, 1.0, "S", 5) == 0.0
    assert at_look(tmp_path, patience, 1.25, "t", 5) == 0.0
    assert at_look(tmp_path, patience, 1.5, "t", 5) == 0.25
    assert at_look(tmp_path, patience, 0.25, "T", 5) == 0.0  # another silence
    assert at_look(tmp_path, patience, 0.0, "T", 5) == 0.0


def test_what_runs_by_turns_is_slow(tmp_path: Path) -> None:
    patience = Patience(PID, tmp_path)
    assert [at_look(tmp_path, patience, n / 10, "T", n) for n in range(2, 20)] == [0.0] * 18


def test_patience_has_an_end(tmp_path: Path) -> None:
    patience = Patience(PID, tmp_path)
    waited(tmp_path, a=0.0)
    for second in range(1, 200):
        waited(tmp_path, a=float(second))
        counted_s = patience.counted_s(float(second))
    assert counted_s == pytest.approx(199 - MOST_FORGIVEN_S)


def test_a_thread_that_is_new_is_not_charged_for_its_past_and_no_count_forgives_nothing(tmp_path: Path) -> None:
    patience = Patience(PID, tmp_path)
    waited(tmp_path, a=500.0)
    assert patience.counted_s(1.0) == 1.0
    (tmp_path / str(PID) / "task" / "a" / "schedstat").write_text("nonsense")
    assert patience.counted_s(2.0) == 2.0


def test_a_real_process_that_is_stopped_waits_for_no_processor() -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        patience = Patience(process.pid)
        assert patience.counted_s(1.0) == 1.0
        assert patience.counted_s(1.5) == 1.5
        assert patience.stopped_s == 0.5
    finally:
        process.kill()
        process.wait()
