"""Whether memory grows, told from samples."""

import os

import pytest

from p2pmesh.app.chaos_memory import JUDGED_S, SAMPLE_S, MemoryWatch, ProcessMemory, Slope, resident_bytes
from p2pmesh.base.quantities import KIB, MIB


def test_a_line_is_found() -> None:
    slope = Slope()
    assert slope.value() == 0.0
    for x in range(5):
        slope.add(x, 3.0 + 2.0 * x)
    assert slope.value() == pytest.approx(2.0)


def life(bytes_per_s: float, seconds: float = 2 * JUDGED_S, start: int = 100 * MIB) -> ProcessMemory:
    memory = ProcessMemory("peer", 1000.0)
    for sample in range(int(seconds / SAMPLE_S) + 1):
        memory.add(1000.0 + sample * SAMPLE_S, start + round(bytes_per_s * sample * SAMPLE_S))
    return memory


def test_memory_that_stays_is_flat_and_memory_that_grows_is_not() -> None:
    assert life(0).is_flat is True
    assert life(1 * KIB).is_flat is True
    assert life(100 * KIB).is_flat is False
    assert life(100 * KIB, seconds=JUDGED_S / 2).is_flat is None


def test_what_a_start_takes_is_no_growth() -> None:
    memory = ProcessMemory("peer", 0.0)
    for at_s in range(0, int(2 * JUDGED_S), 2):
        memory.add(float(at_s), min(100, at_s * 2) * MIB)
    assert memory.is_flat is True
    assert memory.described()["before_mib"] == 100.0


def test_a_life_is_told_in_plain_values() -> None:
    told = life(1 * KIB).described()
    assert told["process"] == "peer"
    assert told["lived_s"] == 600
    assert told["kib_per_minute"] == pytest.approx(60, abs=1)
    assert told["after_mib"] == told["most_mib"]


def test_a_process_that_comes_back_is_another_one() -> None:
    names = {1: "peer"}
    watch = MemoryWatch(lambda: names, {1: 10, 2: 20}.get)
    watch.sample(0.0)
    names.clear()
    names.update({2: "peer", 3: "gone already"})
    watch.sample(2.0)
    assert [(one.name, one.after_bytes) for one in watch.lives()] == [("peer", 10), ("peer", 20)]


def test_a_real_process_takes_memory() -> None:
    own = resident_bytes(os.getpid())
    assert own is not None
    assert own > MIB
    assert resident_bytes(2**22 + 1) is None
