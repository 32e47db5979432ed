"""What the node asks of the machine that it runs on."""

from typing import Protocol

from p2pmesh.core.owner_wishes import MachineLoad
from p2pmesh.core.speeds import Speed


class ReadLoad(Protocol):
    """Looks at the battery, and at what other programs take."""

    async def __call__(self) -> MachineLoad:
        """A reading now."""


class SpeedStore(Protocol):
    """Measured speeds of this machine as it is now: with another build, device or number of threads they are others."""

    def load(self) -> tuple[Speed, ...]:
        """What was stored last; nothing where it cannot be read."""

    def store(self, speeds: tuple[Speed, ...]) -> None:
        """Keeps them, instead of those before; a disk that refuses costs only the next measurement."""
