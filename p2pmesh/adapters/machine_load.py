"""Battery and load of this machine, for ``machine``; what follows from a reading is ``core``'s."""

import os
from contextlib import suppress
from itertools import islice

import psutil  # type: ignore[import-untyped]

from p2pmesh.core.owner_wishes import MachineLoad

MAX_PROCESSES = 4096
"""Looked at for ours: what is beyond them counts as others'."""
MAX_ARGUMENTS = 4
_NAME = "p2pmesh"
_IDLE = ("idle", "iowait")


class LoadMeter:
    """Reads, and remembers the last reading: what others took is a difference."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float] | None = None

    def read(self) -> MachineLoad:
        """A reading; takes milliseconds."""
        battery = _battery()
        return MachineLoad(
            is_on_battery=battery is not None and not battery[1],
            battery_percent=None if battery is None else battery[0],
            load_milli=_load_milli(),
            others_milli=self._others_milli(),
        )

    def _others_milli(self) -> int:
        all_s, busy_s = _machine_times_s()
        own_s = _own_times_s()
        before, self._before = self._before, (all_s, busy_s, own_s)
        if before is None or all_s <= before[0]:
            return -1
        others_s = (busy_s - before[1]) - max(0.0, own_s - before[2])
        return max(0, min(1000, round(1000 * others_s / (all_s - before[0]))))


def _battery() -> tuple[int, bool] | None:
    """Percent, and whether it is plugged in; some systems do not know the latter, and count as plugged in."""
    if not hasattr(psutil, "sensors_battery"):
        return None
    with suppress(OSError, RuntimeError, ValueError):  # what drivers write into their files is not always a number
        found = psutil.sensors_battery()
        if found is not None:
            return max(0, min(100, round(found.percent))), found.power_plugged is not False
    return None


def _load_milli() -> int:
    try:
        return round(1000 * os.getloadavg()[0] / (os.cpu_count() or 1))
    except (OSError, AttributeError):
        return -1


def _machine_times_s() -> tuple[float, float]:
    """Seconds of all processors, and those of them that were not idle."""
    times = psutil.cpu_times()._asdict()
    for counted_already in ("guest", "guest_nice"):
        times.pop(counted_already, None)
    return sum(times.values()), sum(value for name, value in times.items() if name not in _IDLE)


def _own_times_s() -> float:
    """Of every node on this machine and of its engines: nodes beside each other are not each other's owner's work."""
    total = 0.0
    for process in islice(psutil.process_iter(), MAX_PROCESSES):
        with suppress(psutil.Error):  # it has just ended, or is none of our business
            if any(_NAME in part for part in process.cmdline()[:MAX_ARGUMENTS]):
                total += sum(process.cpu_times()[:4])
    return total
