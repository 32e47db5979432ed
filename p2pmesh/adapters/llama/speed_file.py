"""Measured speeds in the node's home. Implements ``ports.machine.SpeedStore``.

One small file for each state of the machine: its processor, the build of llama.cpp, the threads and the devices of
engines. With another of these the speeds are others, and are measured anew.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path

from p2pmesh.adapters.llama.findings import load_findings, store_findings
from p2pmesh.adapters.llama.probe import machine_facts
from p2pmesh.base.limits import MAX_DECODE_BYTES_PER_S
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.devices import DeviceChoice
from p2pmesh.core.speeds import MAX_SPEEDS, Speed

_MAX_NAME = 64
_MAX_CLASS = 64
_MAX_TIME = 2**53


class SpeedFile:
    """In ``folder``, for engines of so many threads on such devices."""

    def __init__(self, folder: Path, threads: int, devices: DeviceChoice) -> None:
        kinds = (f"{device.backend}:{device.name}:{device.description}" for device in devices.devices)
        facts = "\n".join((machine_facts(), str(threads), str(devices.gpu_layers), *kinds))
        self._folder = folder
        self._name = f"speeds-{hashlib.sha256(facts.encode()).hexdigest()[:32]}"

    def load(self) -> tuple[Speed, ...]:
        """See ``ports.machine.SpeedStore``."""
        fields = load_findings(self._folder, self._name)
        rows = fields.get("speeds") if fields is not None else None
        if not isinstance(rows, list):
            return ()
        found = (_speed_of(row) for row in rows[:MAX_SPEEDS])
        return tuple(speed for speed in found if speed is not None)

    def store(self, speeds: tuple[Speed, ...]) -> None:
        """See ``ports.machine.SpeedStore``."""
        store_findings(self._folder, self._name, {"speeds": [list(asdict(speed).values()) for speed in speeds]})


def _speed_of(row: object) -> Speed | None:
    """Of a row that was edited, or of another version, nothing is believed."""
    match row:
        case [str(name), int(size_class), int(decode), int(prefill), int(measured)]:
            limits = ((size_class, _MAX_CLASS), (decode, MAX_DECODE_BYTES_PER_S), (prefill, MAX_DECODE_BYTES_PER_S))
            is_sound = all(0 <= value <= most for value, most in (*limits, (measured, _MAX_TIME)))
            return Speed(name[:_MAX_NAME], size_class, decode, prefill, UnixMillis(measured)) if is_sound else None
        case _:
            return None
