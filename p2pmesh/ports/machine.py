"""What the node asks of the machine that it runs on."""

from typing import Protocol

from p2pmesh.core.owner_wishes import MachineLoad


class ReadLoad(Protocol):
    """Looks at the battery, and at what other programs take."""

    async def __call__(self) -> MachineLoad:
        """A reading now."""
