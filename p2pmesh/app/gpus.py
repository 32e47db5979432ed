"""``p2pmesh gpus``: what llama.cpp can run on here, how fast, and what memory a node would offer. Facts for JSON."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from p2pmesh.adapters.bandwidth import measure_memory_bytes_per_s
from p2pmesh.adapters.cgroups import memory_left_bytes, processor_quota
from p2pmesh.adapters.llama.devices import list_devices
from p2pmesh.adapters.llama.speed_file import SpeedFile
from p2pmesh.adapters.machine_load import LoadMeter
from p2pmesh.adapters.processors import allowed_processors, usable_threads
from p2pmesh.app.device_choice import remedy_for
from p2pmesh.app.machine_memory import offered_memory_bytes, offered_of_bytes
from p2pmesh.core.devices import DeviceChoice, choose_devices
from p2pmesh.ports.devices import ListDevices


def describe_machine(home: Path, ask: ListDevices = list_devices, *, is_measuring: bool = False) -> dict[str, Any]:
    """``runs_on`` are the devices that ``up`` takes by itself, empty for the processor; null: without a limit, or, of
    the memory's speed, not measured, of battery and load, not known. ``speeds`` are those that engines of the node in
    ``home`` measured there, by kind of model.
    """
    found = ask()
    llama = version("llama-cpp-python")
    load = LoadMeter().read()
    choice = choose_devices(found.devices)
    assert isinstance(choice, DeviceChoice)  # nothing was wished
    offered = offered_memory_bytes(None, choice)
    speeds = SpeedFile(home / "cache" / "speeds", usable_threads(), choice).load()
    return {
        "llama_cpp_python": llama,
        "backends": list(found.backends),
        "devices": [asdict(device) for device in found.devices],
        "runs_on": list(choice.names),
        "remedy": remedy_for(found, llama),
        "processors": allowed_processors(),
        "processor_quota": processor_quota(),
        "threads": usable_threads(),
        "group_left_bytes": memory_left_bytes(),
        "memory_bytes_per_s": measure_memory_bytes_per_s(usable_threads()) if is_measuring else None,
        "battery_percent": load.battery_percent,
        "is_on_battery": load.is_on_battery,
        "load_milli": load.load_milli if load.load_milli >= 0 else None,
        "offered_bytes": offered,
        "reserved_bytes": max(0, offered_of_bytes(choice) - offered),
        "speeds": [asdict(speed) for speed in speeds],
    }
