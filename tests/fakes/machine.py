"""A machine whose readings are given."""

from p2pmesh.core.owner_wishes import MachineLoad
from p2pmesh.ports.machine import MachineFacts


class FakeMachine:
    """Gives the readings in order, and the last one ever after."""

    def __init__(self, *readings: MachineLoad, memory_bytes_per_s: int = 0, facts: MachineFacts | None = None) -> None:
        self._readings = list(readings) or [MachineLoad()]
        self._memory_bytes_per_s = memory_bytes_per_s
        self._facts = facts or MachineFacts()
        self.measured = 0

    def facts(self) -> MachineFacts:
        return self._facts

    async def read_load(self) -> MachineLoad:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]

    async def memory_bytes_per_s(self) -> int:
        self.measured += 1
        return self._memory_bytes_per_s
