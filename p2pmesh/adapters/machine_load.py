"""Battery and load of this machine, for ``machine``; what follows from a reading is ``core``'s."""

import os
from contextlib import suppress

import psutil  # type: ignore[import-untyped]

from p2pmesh.core.owner_wishes import MachineLoad

MAX_PROCESSES = 256
"""Of ours: more engines than that are not counted."""
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
    """Of this process and those that it started, ended ones too once they were waited for."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True)[:MAX_PROCESSES]:
        with suppress(psutil.Error):  # it has just ended
            total += sum(child.cpu_times()[:4])
    return float(total)
