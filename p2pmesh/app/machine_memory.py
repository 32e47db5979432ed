"""How much memory of this machine a node offers."""

import psutil  # type: ignore[import-untyped]

from p2pmesh.adapters.cgroups import memory_left_bytes
from p2pmesh.base.quantities import MIB

SHARE_OF_AVAILABLE_MEMORY = 0.8
RESERVE_BYTES = 512 * MIB
"""Of what is available, a machine keeps this much, and a fifth, for itself."""


def offered_memory_bytes(given: int | None) -> int:
    """What was typed, or a share of what the machine, and the control groups of this process, have available now."""
    if given is not None:
        return given
    available = int(psutil.virtual_memory().available)
    left = memory_left_bytes()
    if left is not None:
        available = min(available, left)
    return max(0, int(available * SHARE_OF_AVAILABLE_MEMORY) - RESERVE_BYTES)
