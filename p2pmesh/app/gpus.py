"""``p2pmesh gpus``: what llama.cpp can run on here, and how much memory a node would offer. Facts for JSON."""

from dataclasses import asdict
from typing import Any

from p2pmesh.adapters.cgroups import memory_left_bytes
from p2pmesh.adapters.llama.devices import list_devices
from p2pmesh.app.machine_memory import offered_memory_bytes


def describe_machine() -> dict[str, Any]:
    """Stages run on the processor, whatever else is found; ``group_left_bytes`` is null without a limit."""
    return {
        "devices": [asdict(device) for device in list_devices()],
        "group_left_bytes": memory_left_bytes(),
        "offered_bytes": offered_memory_bytes(None),
    }
