"""Speeds in the home."""

import json
from pathlib import Path

from p2pmesh.adapters.llama.speed_file import SpeedFile
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.devices import PROCESSOR_ALONE, Device, DeviceChoice
from p2pmesh.core.speeds import MAX_SPEEDS, Speed

SPEEDS = (Speed("gemma3", 8, 5_000_000_000, 90_000_000_000, UnixMillis(7)), Speed("llama", 7, 1, 0, UnixMillis(8)))


def test_speeds_outlive_the_node_but_not_a_change_of_its_engines(tmp_path: Path) -> None:
    SpeedFile(tmp_path / "speeds", 2, PROCESSOR_ALONE).store(SPEEDS)
    assert SpeedFile(tmp_path / "speeds", 2, PROCESSOR_ALONE).load() == SPEEDS
    gpu = DeviceChoice((Device("CUDA0", "a card", "CUDA", "gpu", 1, 2),), 9)
    assert SpeedFile(tmp_path / "speeds", 3, PROCESSOR_ALONE).load() == ()
    assert SpeedFile(tmp_path / "speeds", 2, gpu).load() == ()


def test_as_many_as_are_kept_fit_the_file(tmp_path: Path) -> None:
    most = tuple(Speed("a" * 40 + str(at), 64, 2**48, 2**48, UnixMillis(2**53)) for at in range(MAX_SPEEDS))
    file = SpeedFile(tmp_path, 2, PROCESSOR_ALONE)
    file.store(most)
    assert file.load() == most


def test_a_file_that_makes_no_sense_gives_nothing(tmp_path: Path) -> None:
    file = SpeedFile(tmp_path, 2, PROCESSOR_ALONE)
    file.store(SPEEDS)
    [path] = tmp_path.iterdir()
    good = ["llama", 7, 1, 0, 8]
    for rows in ({}, None, [1], [["llama", 7, 1, 0]], [["llama", -1, 1, 0, 8]], [["llama", 7, 2**49, 0, 8]], [[7] * 5]):
        path.write_text(json.dumps({"speeds": rows}))
        assert file.load() == ()
    path.write_text(json.dumps({"speeds": [["x"], good]}))
    assert file.load() == SPEEDS[1:]
    path.write_text("{")
    assert file.load() == ()
