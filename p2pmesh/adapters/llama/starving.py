"""Whether a process that says nothing could: time that it wanted a processor and got none, as the kernel counts it.

On a machine that others keep busy an engine may come to no beat for seconds. That is slow, and no reason to end it; one
that is stopped, or hangs, waits for no processor. Where the kernel does not count, nothing is forgiven.
"""

from contextlib import suppress
from pathlib import Path

MOST_FORGIVEN_S = 60.0
PROCESSES = Path("/proc")
_NANOS_PER_SECOND = 1_000_000_000


class Patience:
    """How long one silence of a process counts, less what it waited for a processor meanwhile."""

    def __init__(self, pid: int, processes: Path = PROCESSES) -> None:
        self._threads = processes / str(pid) / "task"
        self._waited = self._read()
        self._silent_s = 0.0
        self._forgiven_s = 0.0

    def counted_s(self, silent_s: float) -> float:
        """Of a silence that has lasted ``silent_s``; asked often, since only what passed in between is looked at."""
        waited = self._read()
        if silent_s < self._silent_s:
            self._forgiven_s = 0.0  # another silence
        elif silent_s > 0.0:
            starved_ns = max((now - self._waited.get(thread, now) for thread, now in waited.items()), default=0)
            starved_s = min(starved_ns / _NANOS_PER_SECOND, silent_s - self._silent_s)
            self._forgiven_s = min(self._forgiven_s + starved_s, MOST_FORGIVEN_S)
        self._waited, self._silent_s = waited, silent_s
        return silent_s - self._forgiven_s

    def _read(self) -> dict[str, int]:
        """Nanoseconds by thread."""
        found = {}
        with suppress(OSError):
            for thread in self._threads.iterdir():
                with suppress(OSError, ValueError, IndexError):
                    found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        return found
