"""``p2pmesh gpus`` for programs and for people."""

import json

import pytest

from p2pmesh.cli.gpus import describe_devices
from p2pmesh.cli.main import main


def test_the_command_prints_devices_and_the_offer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "cpu" in {device["type"] for device in facts["devices"]}
    assert facts["offered_bytes"] >= 0
    assert "CPU" in facts["backends"]
    assert 1 <= facts["threads"] <= facts["processors"]
    assert facts["load_milli"] is None or facts["load_milli"] >= 0
    assert facts["battery_percent"] is not None or facts["is_on_battery"] is False
    assert facts["remedy"] is None or facts["runs_on"] == []


def test_a_person_reads_a_table() -> None:
    device = {
        "name": "CUDA0", "description": "RTX", "backend": "CUDA", "type": "integrated_gpu", "free_bytes": 2**30,
        "total_bytes": 2**31,
    }  # fmt: skip
    facts = {
        "llama_cpp_python": "1.2", "backends": ["CUDA", "CPU"], "devices": [device], "runs_on": ["CUDA0"],
        "remedy": None, "processors": 8, "processor_quota": 2.5, "threads": 2, "group_left_bytes": 2**30,
        "offered_bytes": 2**29, "memory_bytes_per_s": 8_500_000_000, "battery_percent": 63,
        "is_on_battery": True, "load_milli": 400,
    }  # fmt: skip
    lines = list(describe_devices(facts))
    assert lines[0] == "llama-cpp-python 1.2, built for CUDA, CPU"
    assert lines[2].split() == ["CUDA0", "integrated", "gpu", "CUDA", "1.0", "GiB", "2.0", "GiB", "RTX"]
    assert lines[3:] == [
        "the limit of this container or service leaves 1.0 GiB",
        "its time is limited to 2.50 of 8 processors: engines run 2 threads",
        "its memory copies 8.5 GB/s",
        "it runs on battery, 63 % are left: stages go to others first",
        "a node here offers 512.0 MiB for stages, which run on CUDA0",
    ]
    without = facts | {"runs_on": [], "remedy": "install one", "processor_quota": None, "group_left_bytes": None}
    without |= {"memory_bytes_per_s": None, "is_on_battery": False, "battery_percent": 100}
    assert list(describe_devices(without))[3:] == [
        "a node here offers 512.0 MiB for stages, which run on the processor",
        "install one",
    ]
