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


def test_a_person_reads_a_table() -> None:
    device = {
        "name": "CUDA0", "description": "RTX", "backend": "CUDA", "type": "integrated_gpu", "free_bytes": 2**30,
        "total_bytes": 2**31,
    }  # fmt: skip
    lines = list(describe_devices({"devices": [device], "group_left_bytes": 2**30, "offered_bytes": 2**29}))
    assert lines[1].split() == ["CUDA0", "integrated", "gpu", "CUDA", "1.0", "GiB", "2.0", "GiB", "RTX"]
    assert lines[2:] == [
        "the limit of this container or service leaves 1.0 GiB",
        "a node here offers 512.0 MiB for stages, which run on the processor",
    ]
