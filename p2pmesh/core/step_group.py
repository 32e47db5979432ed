"""Sequences whose rows go round a run together, where all of its stages are on one machine.

Left to themselves, rows of many sequences fall into groups: whoever comes first is computed at once, and the next stage
begins while the one before works on the others. On machines of their own that keeps all stages busy. On one machine the
stages only take its processors from each other, and many narrow calls cost more than a wide one. So a row waits until
all that went before it are back; then all go at once.

Owns who waits for whom and for how long, and what counts as one machine. Sending is ``node.step_turns``'.
"""

from collections.abc import Iterable

from p2pmesh.base.quantities import Micros
from p2pmesh.core.batching import SequenceKey, key_of
from p2pmesh.wire.stage import StageFrame

FIRST_STEP_US = 50_000
MOST_WAIT_US = 200_000
"""A sequence that does not come back holds up the others no longer, at any speed."""


def share_machine(each: Iterable[Iterable[str]]) -> bool:
    """Whether peers with these multiaddrs are on one machine: all announce the same hosts.

    Two homes may well have one private address in common, but not all of their addresses.
    """
    hosts = {frozenset("/".join(address.split("/")[1:3]) for address in addresses) for addresses in each}
    return len(hosts) == 1 and frozenset() not in hosts


class StepGroup:
    """Of one run. Holds one DECODE frame of a sequence at most; times are those of the caller's clock."""

    def __init__(self) -> None:
        self._waiting: dict[SequenceKey, StageFrame] = {}
        self._travelling: set[SequenceKey] = set()
        self._released_at = Micros(0)
        self._step_us = FIRST_STEP_US
        self._deadline: Micros | None = None

    def deadline(self) -> Micros | None:
        """When ``expire`` is due: those that wait go without the others."""
        return self._deadline

    def take(self, frame: StageFrame, now: Micros) -> tuple[StageFrame, ...]:
        """A sequence is back with its next row; the frames that go now, in the order in which they came."""
        key = key_of(frame)
        was_travelling = key in self._travelling
        self._travelling.discard(key)
        self._waiting[key] = frame
        if not self._travelling:
            if was_travelling:
                self._step_us += (now - self._released_at - self._step_us) // 4
            return self._release(now)
        if self._deadline is None:
            self._deadline = Micros(now + min(MOST_WAIT_US, 2 * self._step_us))
        return ()

    def leave(self, key: SequenceKey, now: Micros) -> tuple[StageFrame, ...]:
        """A sequence is over; the frames that waited for it alone."""
        self._travelling.discard(key)
        self._waiting.pop(key, None)
        if not self._waiting:
            self._deadline = None
        return () if self._travelling else self._release(now)

    def expire(self, now: Micros) -> tuple[StageFrame, ...]:
        """The frames that have waited long enough."""
        return self._release(now) if self._deadline is not None and now >= self._deadline else ()

    def _release(self, now: Micros) -> tuple[StageFrame, ...]:
        frames = tuple(self._waiting.values())
        self._travelling |= self._waiting.keys()
        self._waiting = {}
        self._deadline = None
        self._released_at = now
        return frames
