"""This machine, for its node. Implements ``ports.machine.Machine``.

Its memory's speed is kept in the home for a week; battery and load are ``machine_load``'s.
"""

import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import trio

from p2pmesh.adapters.bandwidth import measure_memory_bytes_per_s
from p2pmesh.adapters.llama.findings import load_findings, store_findings
from p2pmesh.adapters.machine_load import LoadMeter
from p2pmesh.core.devices import Device, DeviceChoice
from p2pmesh.core.owner_wishes import MachineLoad
from p2pmesh.ports.machine import MachineFacts

KEPT_S = 7 * 24 * 3600.0
_NAME = "memory-speed"


class ThisMachine:
    """With engines of ``threads`` on the chosen devices, of which ``available_bytes`` were free at the start."""

    def __init__(
        self, folder: Path, choice: DeviceChoice, threads: int, quota: float | None, available_bytes: int
    ) -> None:
        self._folder = folder
        self._threads = threads
        self._meter = LoadMeter()
        devices = choice.devices or (_processor(),)
        self._facts = MachineFacts(
            threads,
            0 if quota is None else round(1000 * quota),
            available_bytes,
            devices,
            frozenset(device.name for device in devices),
        )

    def facts(self) -> MachineFacts:
        """See ``ports.machine``."""
        return self._facts

    async def read_load(self) -> MachineLoad:
        """See ``ports.machine``; some drivers answer late, so it is made beside the node."""
        return await trio.to_thread.run_sync(self._meter.read)

    async def memory_bytes_per_s(self) -> int:
        """See ``ports.machine``."""
        return await trio.to_thread.run_sync(self._measure)

    def _measure(self) -> int:
        kept = load_findings(self._folder, _NAME) or {}
        rate, measured_s, threads = (kept.get(name) for name in ("bytes_per_s", "measured_unix_s", "threads"))
        now_s = time.time()
        is_fresh = isinstance(measured_s, int | float) and 0 <= now_s - measured_s < KEPT_S
        if is_fresh and threads == self._threads and type(rate) is int and rate > 0:
            return rate
        rate = measure_memory_bytes_per_s(self._threads)
        if rate:
            store_findings(
                self._folder, _NAME, {"bytes_per_s": rate, "measured_unix_s": now_s, "threads": self._threads}
            )
        return rate


def _processor() -> Device:
    """As llama.cpp tells it, but for what is free: the choice of it asks no child process."""
    memory = psutil.virtual_memory()
    return Device("CPU", "", "CPU", "cpu", int(memory.available), int(memory.total))
