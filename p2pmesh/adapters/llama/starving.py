"""Whether a process that says nothing could: time that it wanted a processor and got none, as the kernel counts it.

On a machine that others keep busy an engine may come to no beat for seconds. That is slow, and no reason to end it; one
that is stopped, or hangs, waits for no processor. That it is stopped the kernel says as well (``proc_pid_stat(5)``),
and is known long before a silence says as much. Where the kernel tells nothing, nothing is forgiven, nor known.
"""

from contextlib import suppress
from pathlib import Path

MOST_FORGIVEN_S = 60.0
QUIET_S = 0.15
"""A silence so short is none: beats come every 100 ms, and nothing is read for it."""
PROCESSES = Path("/proc")
_NANOS_PER_SECOND = 1_000_000_000
_STOPPED = frozenset("Tt")


class Patience:
    """How long one silence of a process counts, less what it waited for a processor meanwhile."""

    def __init__(self, pid: int, processes: Path = PROCESSES) -> None:
        self._process = processes / str(pid)
        self._times = self._read_times()
        self._silent_s = 0.0
        self._forgiven_s = 0.0
        self._stopped_at_s: float | None = None
        self.stopped_s = 0.0
        """For how much of the silence it is known to be stopped, without having run in between."""

    def counted_s(self, silent_s: float) -> float:
        """Of a silence that has lasted ``silent_s``; asked often, since only what passed in between is looked at."""
        if silent_s < self._silent_s or silent_s < QUIET_S:
            self._forgiven_s, self._stopped_at_s, self.stopped_s = 0.0, None, 0.0  # another silence
            self._silent_s, self._times = silent_s, {}
            return silent_s
        before, self._times = self._times, self._read_times()
        starved_ns = max((now[1] - before.get(thread, now)[1] for thread, now in self._times.items()), default=0)
        starved_s = min(starved_ns / _NANOS_PER_SECOND, silent_s - self._silent_s)
        self._forgiven_s = min(self._forgiven_s + starved_s, MOST_FORGIVEN_S)
        self._silent_s = silent_s
        self._note_stopped(silent_s, has_run=before != self._times)
        return silent_s - self._forgiven_s

    def _note_stopped(self, silent_s: float, *, has_run: bool) -> None:
        """One that is stopped and goes on by turns is slow, and runs between two looks."""
        if not self._is_stopped():
            self._stopped_at_s = None
        elif has_run or self._stopped_at_s is None:
            self._stopped_at_s = silent_s
        self.stopped_s = 0.0 if self._stopped_at_s is None else silent_s - self._stopped_at_s

    def _is_stopped(self) -> bool:
        with suppress(OSError, IndexError):
            return (self._process / "stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
        return False

    def _read_times(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds by thread: on a processor, and waiting for one."""
        found = {}
        with suppress(OSError):
            for thread in (self._process / "task").iterdir():
                with suppress(OSError, ValueError, IndexError):
                    ran, waited = (thread / "schedstat").read_text().split()[:2]
                    found[thread.name] = (int(ran), int(waited))
        return found
