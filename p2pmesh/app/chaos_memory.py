"""Resident memory of every process of ``p2pmesh chaos``, and whether it grows: a line through its samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from p2pmesh.app.bench_nodes import PAGE_BYTES
from p2pmesh.base.quantities import KIB, MIB

SAMPLE_S = 2.0
WARM_UP_S = 60.0
"""Before that a process is still being loaded and filling its tables."""
JUDGED_S = 300.0
"""A slope over less than this says nothing."""
MOST_GROWTH = 0.05
SLACK_BYTES = 8 * MIB
MOST_PROCESSES = 4096
_MINUTE_S = 60.0


@dataclass(slots=True)
class Slope:
    """The least-squares line through points that are not kept."""

    count: int = 0
    sum_x: float = 0.0
    sum_y: float = 0.0
    sum_xx: float = 0.0
    sum_xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        """One more point."""
        self.count += 1
        self.sum_x += x
        self.sum_y += y
        self.sum_xx += x * x
        self.sum_xy += x * y

    def value(self) -> float:
        """y for one of x; 0 where no line is defined."""
        spread = self.count * self.sum_xx - self.sum_x * self.sum_x
        return 0.0 if spread <= 0 else (self.count * self.sum_xy - self.sum_x * self.sum_y) / spread


@dataclass(slots=True)
class ProcessMemory:
    """One process: what it took when it was warm, last, and at most."""

    name: str
    born_s: float
    lived_s: float = 0.0
    before_bytes: int = 0
    after_bytes: int = 0
    most_bytes: int = 0
    slope: Slope = field(default_factory=Slope)

    def add(self, now_s: float, resident_bytes: int) -> None:
        """One more sample."""
        self.lived_s = now_s - self.born_s
        self.after_bytes = resident_bytes
        self.most_bytes = max(self.most_bytes, resident_bytes)
        if self.lived_s >= WARM_UP_S:
            self.slope.add(self.lived_s, resident_bytes)
        if self.slope.count <= 1:
            self.before_bytes = resident_bytes

    @property
    def is_flat(self) -> bool | None:
        """Whether what it grew by along its slope is little; None if it did not live long enough to tell."""
        if self.lived_s < JUDGED_S:
            return None
        grown_bytes = self.slope.value() * (self.lived_s - WARM_UP_S)
        return grown_bytes <= max(SLACK_BYTES, MOST_GROWTH * self.before_bytes)

    def described(self) -> dict[str, Any]:
        """As plain values; memory in MiB, the slope in KiB a minute."""
        return {
            "process": self.name,
            "lived_s": round(self.lived_s),
            "before_mib": round(self.before_bytes / MIB, 1),
            "after_mib": round(self.after_bytes / MIB, 1),
            "most_mib": round(self.most_bytes / MIB, 1),
            "kib_per_minute": round(self.slope.value() * _MINUTE_S / KIB, 1),
            "is_flat": self.is_flat,
        }


class MemoryWatch:
    """All processes that ``processes`` tells, names by process id, for as long as each is there."""

    def __init__(
        self, processes: Callable[[], Mapping[int, str]], resident: Callable[[int], int | None] | None = None
    ) -> None:
        self._processes = processes
        self._resident = resident or resident_bytes
        self._seen: dict[int, ProcessMemory] = {}

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self.sample(trio.current_time())
            await trio.sleep(SAMPLE_S)

    def sample(self, now_s: float) -> None:
        """One sample of each."""
        for pid, name in self._processes().items():
            size_bytes = self._resident(pid)
            if size_bytes is None or (pid not in self._seen and len(self._seen) >= MOST_PROCESSES):
                continue
            self._seen.setdefault(pid, ProcessMemory(name, now_s)).add(now_s, size_bytes)

    def lives(self) -> tuple[ProcessMemory, ...]:
        """Every process that was seen, in the order of its birth."""
        return tuple(self._seen.values())


def resident_bytes(pid: int) -> int | None:
    """Of a process; None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return None
