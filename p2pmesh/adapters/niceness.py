"""How much a process of ours gives way to others of the machine, as its owner wants."""

from contextlib import suppress

import psutil  # type: ignore[import-untyped]

LEAST_NICE = 0
MOST_NICE = 19
_BELOW_NORMAL_FROM = 1
_IDLE_FROM = 10


def set_niceness(pid: int, niceness: int) -> None:
    """Of a process that has just started: threads that it makes later inherit it. Windows knows three of the steps.

    A system that refuses leaves it as it is.
    """
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        process.nice(_windows_class(niceness) if psutil.WINDOWS else niceness)


def _windows_class(niceness: int) -> int:
    if niceness >= _IDLE_FROM:
        return int(psutil.IDLE_PRIORITY_CLASS)
    return int(psutil.BELOW_NORMAL_PRIORITY_CLASS if niceness >= _BELOW_NORMAL_FROM else psutil.NORMAL_PRIORITY_CLASS)
