"""Battery and load, as the system tells them."""

from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from p2pmesh.adapters import machine_load
from p2pmesh.adapters.machine_load import LoadMeter


def test_a_reading_of_this_machine_is_within_its_bounds() -> None:
    meter = LoadMeter()
    assert meter.read().others_milli == -1
    reading = meter.read()
    assert -1 <= reading.others_milli <= 1000
    assert reading.load_milli >= -1


@pytest.mark.parametrize(
    ("battery", "expected"),
    [
        (None, (False, None)),
        (SimpleNamespace(percent=41.6, power_plugged=False), (True, 42)),
        (SimpleNamespace(percent=100, power_plugged=True), (False, 100)),
        (SimpleNamespace(percent=140, power_plugged=None), (False, 100)),
    ],
)
def test_a_battery_that_is_not_plugged_in_is_what_the_machine_runs_on(
    monkeypatch: pytest.MonkeyPatch, battery: Any, expected: tuple[bool, int | None]
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    reading = LoadMeter().read()
    assert (reading.is_on_battery, reading.battery_percent) == expected


def test_a_battery_whose_files_make_no_sense_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("not a number")

    monkeypatch.setattr(psutil, "sensors_battery", fail, raising=False)
    assert LoadMeter().read().battery_percent is None


def test_what_others_took_is_what_is_neither_idle_nor_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(100.0, 50.0), (120.0, 65.0), (120.0, 65.0)])
    own = iter([10.0, 14.0, 14.0])
    monkeypatch.setattr(machine_load, "_machine_times_s", lambda: next(readings))
    monkeypatch.setattr(machine_load, "_own_times_s", lambda: next(own))
    meter = LoadMeter()
    assert [meter.read().others_milli for _ in range(3)] == [-1, 550, -1]
