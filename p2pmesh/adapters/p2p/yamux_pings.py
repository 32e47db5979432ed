"""Pings of one yamux connection: when its peer counts as silent, and how long answers take.

Owns the counting alone; frames and clock are ``yamux``'s.
"""

from collections import deque
from dataclasses import dataclass

RECENT_PINGS = 8


@dataclass(frozen=True, slots=True)
class Vigilance:
    """When silence means death: a ping every ``interval_s``, and at most ``max_silent`` in a row with nothing heard.

    Pings are counted, not seconds, so that a process that was stopped itself does not blame its peers.

    A connection without exchanges is pinged each ``quiet_intervals`` only, but as often as any other once a ping stays
    unanswered: pings are most of what an idle connection costs.
    """

    interval_s: float = 2.0
    max_silent: int = 3
    quiet_intervals: int = 5


class Pings:
    """Round trips are in seconds, None before one was measured."""

    def __init__(self, vigilance: Vigilance) -> None:
        self.vigilance = vigilance
        self.smoothed_s: float | None = None
        self.newest_s: float | None = None
        self._recent_s = deque[float](maxlen=RECENT_PINGS)
        self._unheard = 0
        """Pings since anything was heard of the peer."""
        self._number = 0
        self._sent_at: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether nothing was heard since the last ping."""
        return self._unheard > 0

    @property
    def is_silent(self) -> bool:
        """Whether the peer has left a ping unanswered and said nothing since."""
        return self._unheard > 1

    @property
    def is_over(self) -> bool:
        """Whether the peer has been silent for too long."""
        return self._unheard >= self.vigilance.max_silent

    @property
    def slowest_s(self) -> float | None:
        """Of the last ``RECENT_PINGS`` but one, which waited if the peer was frozen; None before half were answered."""
        recent = sorted(self._recent_s)
        return recent[-2] if len(recent) >= RECENT_PINGS // 2 else None

    def note_heard(self) -> None:
        """The peer said something, whatever it was."""
        self._unheard = 0

    def begin(self, now: float) -> int:
        """The number of the ping that is sent now."""
        self._number = (self._number + 1) % 2**32
        self._sent_at = now
        self._unheard += 1
        return self._number

    def note_answer(self, number: int, now: float) -> None:
        """An answer came; what is not the last ping's says nothing."""
        if number != self._number or self._sent_at is None:
            return
        sample_s = now - self._sent_at
        self.newest_s = sample_s
        self._recent_s.append(sample_s)
        self.smoothed_s = sample_s if self.smoothed_s is None else (3 * self.smoothed_s + sample_s) / 4
        self._sent_at = None
