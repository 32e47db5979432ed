"""``p2pmesh gpus`` for programs and for people."""

import json
from pathlib import Path

import pytest

from p2pmesh.adapters.llama.speed_file import SpeedFile
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.app.gpus import describe_machine
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.cli.gpus import describe_devices
from p2pmesh.cli.main import main
from p2pmesh.core.devices import PROCESSOR_ALONE, DeviceListing
from p2pmesh.core.speeds import Speed


def test_the_command_prints_devices_and_the_offer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--json", "--home", str(tmp_path / "none")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "cpu" in {device["type"] for device in facts["devices"]}
    assert facts["offered_bytes"] >= 0
    assert "CPU" in facts["backends"]
    assert 1 <= facts["threads"] <= facts["processors"]
    assert facts["load_milli"] is None or facts["load_milli"] >= 0
    assert facts["battery_percent"] is not None or facts["is_on_battery"] is False
    assert facts["remedy"] is None or facts["runs_on"] == []
    assert facts["reserved_bytes"] >= 0
    assert facts["speeds"] == []
    assert not (tmp_path / "none").exists()


def test_the_command_tells_what_engines_of_the_home_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = (Speed("llama", 7, 6_000_000_000, 25_000_000_000, UnixMillis(5)),)
    SpeedFile(tmp_path / "cache" / "speeds", usable_threads(), PROCESSOR_ALONE).store(speeds)
    found = describe_machine(tmp_path, lambda: DeviceListing((), ("CPU",)))
    assert [Speed(**fields) for fields in found["speeds"]] == list(speeds)


def test_a_person_reads_a_table() -> None:
    device = {
        "name": "CUDA0", "description": "RTX", "backend": "CUDA", "type": "integrated_gpu", "free_bytes": 2**30,
        "total_bytes": 2**31,
    }  # fmt: skip
    facts = {
        "llama_cpp_python": "1.2", "backends": ["CUDA", "CPU"], "devices": [device], "runs_on": ["CUDA0"],
        "remedy": None, "processors": 8, "processor_quota": 2.5, "threads": 2, "group_left_bytes": 2**30,
        "offered_bytes": 2**29, "memory_bytes_per_s": 8_500_000_000, "battery_percent": 63,
        "is_on_battery": True, "load_milli": 400, "reserved_bytes": 2**28,
        "speeds": [
            {"architecture": "llama", "size_class": 7, "decode_bytes_per_s": 6 * 10**9, "prefill_bytes_per_s": 0},
            {"architecture": "gemma3", "size_class": 0, "decode_bytes_per_s": 10**9, "prefill_bytes_per_s": 10**10},
        ],
    }  # fmt: skip
    lines = list(describe_devices(facts))
    assert lines[0] == "llama-cpp-python 1.2, built for CUDA, CPU"
    assert lines[2].split() == ["CUDA0", "integrated", "gpu", "CUDA", "1.0", "GiB", "2.0", "GiB", "RTX"]
    assert lines[3:] == [
        "the limit of this container or service leaves 1.0 GiB",
        "its time is limited to 2.50 of 8 processors: engines run 2 threads",
        "its memory copies 8.5 GB/s",
        "model   a token reads  decoding  prompts",
        "llama   64-128 MiB     6.0 GB/s  ?",
        "gemma3  below 1 MiB    1.0 GB/s  10.0 GB/s",
        "its processors were loaded to 40 % in the last minute",
        "it runs on battery, 63 % are left: stages go to others first",
        "a node here offers 512.0 MiB for stages, which run on CUDA0; "
        "256.0 MiB more are free and stay with the machine",
    ]
    without = facts | {"runs_on": [], "remedy": "install one", "processor_quota": None, "group_left_bytes": None}
    without |= {"memory_bytes_per_s": None, "is_on_battery": False, "battery_percent": 100, "speeds": []}
    without |= {"load_milli": None}
    offers = "a node here offers 512.0 MiB for stages, which run on the processor"
    assert list(describe_devices(without))[3:] == [
        f"{offers}; 256.0 MiB more are free and stay with the machine",
        "install one",
    ]
