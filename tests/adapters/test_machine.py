"""This machine, as its node sees it."""

from pathlib import Path

import pytest

from p2pmesh.adapters import machine
from p2pmesh.adapters.machine import ThisMachine
from p2pmesh.core.devices import PROCESSOR_ALONE, Device, DeviceChoice

GPU = Device("CUDA0", "a card", "CUDA", "gpu", 1, 2)


def machine_of(folder: Path, threads: int = 2) -> ThisMachine:
    return ThisMachine(folder, PROCESSOR_ALONE, threads, 2.5, 77)


def test_facts_name_the_devices_that_are_used(tmp_path: Path) -> None:
    facts = machine_of(tmp_path).facts()
    assert (facts.threads, facts.processor_quota_milli, facts.available_bytes) == (2, 2500, 77)
    assert facts.used == {"CPU"}
    chosen = ThisMachine(tmp_path, DeviceChoice((GPU,), 9), 2, None, 77).facts()
    assert (chosen.devices, chosen.used, chosen.processor_quota_milli) == ((GPU,), {"CUDA0"}, 0)


async def test_the_speed_of_the_memory_is_measured_once_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([5, 6, 7])
    now = [1e9]
    monkeypatch.setattr(machine, "measure_memory_bytes_per_s", lambda threads: next(rates))
    monkeypatch.setattr(machine.time, "time", lambda: now[0])
    assert [await machine_of(tmp_path).memory_bytes_per_s() for _ in range(2)] == [5, 5]
    now[0] += 8 * 24 * 3600
    assert await machine_of(tmp_path).memory_bytes_per_s() == 6
    assert await machine_of(tmp_path, threads=3).memory_bytes_per_s() == 7


async def test_what_cannot_be_measured_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([0, 9])
    monkeypatch.setattr(machine, "measure_memory_bytes_per_s", lambda threads: next(rates))
    assert [await machine_of(tmp_path).memory_bytes_per_s() for _ in range(2)] == [0, 9]


async def test_a_reading_of_the_load_comes(tmp_path: Path) -> None:
    assert (await machine_of(tmp_path).read_load()).others_milli == -1
