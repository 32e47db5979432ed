"""How much memory of this machine a node offers."""

import psutil  # type: ignore[import-untyped]

from p2pmesh.adapters.cgroups import memory_left_bytes
from p2pmesh.base.quantities import MIB
from p2pmesh.core.devices import PROCESSOR_ALONE, DeviceChoice

SHARE_OF_AVAILABLE_MEMORY = 0.8
RESERVE_BYTES = 512 * MIB
"""Of what is available, a machine keeps this much, and a fifth, for itself."""


def offered_memory_bytes(given: int | None, choice: DeviceChoice = PROCESSOR_ALONE) -> int:
    """What was typed, or a share of what is available now where the stages will lie.

    That is the memory of the chosen devices, where every layer goes to them; an integrated one has the machine's.
    Otherwise it is what the machine, and the control groups of this process, leave.
    """
    if given is not None:
        return given
    return max(0, int(offered_of_bytes(choice) * SHARE_OF_AVAILABLE_MEMORY) - RESERVE_BYTES)


def offered_of_bytes(choice: DeviceChoice) -> int:
    """What is available now where stages will lie, of which a part is offered."""
    available = available_memory_bytes()
    if not choice.is_whole:
        return available
    on_devices = sum(device.free_bytes for device in choice.devices)
    if not on_devices:  # their backend does not tell
        return available
    shares_memory = any(device.type == "integrated_gpu" for device in choice.devices)
    return min(on_devices, available) if shares_memory else on_devices


def available_memory_bytes() -> int:
    """What the machine, and the control groups of this process, have available now."""
    available = int(psutil.virtual_memory().available)
    left = memory_left_bytes()
    return available if left is None else min(available, left)
