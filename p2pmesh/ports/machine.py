"""What the node asks of the machine that it runs on."""

from dataclasses import dataclass
from typing import Protocol

from p2pmesh.core.devices import Device
from p2pmesh.core.owner_wishes import MachineLoad
from p2pmesh.core.speeds import Speed


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What engines have of it. ``used`` are the devices that stages run on; ``available_bytes`` is their memory, of
    which the owner gives a part. ``processor_quota_milli`` 0: no limit.
    """

    threads: int = 0
    processor_quota_milli: int = 0
    available_bytes: int = 0
    devices: tuple[Device, ...] = ()
    used: frozenset[str] = frozenset()


class Machine(Protocol):
    """The machine."""

    def facts(self) -> MachineFacts:
        """As they were at the start."""

    async def read_load(self) -> MachineLoad:
        """Battery, and what other programs take, now."""

    async def memory_bytes_per_s(self) -> int:
        """Bytes that its memory copies in a second, measured of late or now; 0: it cannot be measured."""


class SpeedStore(Protocol):
    """Measured speeds of this machine as it is now: with another build, device or number of threads they are others."""

    def load(self) -> tuple[Speed, ...]:
        """What was stored last; nothing where it cannot be read."""

    def store(self, speeds: tuple[Speed, ...]) -> None:
        """Keeps them, instead of those before; a disk that refuses costs only the next measurement."""
