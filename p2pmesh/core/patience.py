"""How long an answer may be waited for, by how long those before it took.

A peer that always answers in milliseconds is not waited for as long as one whose machine is busy: what a client sees of
a loss begins with this wait.
"""

from collections import deque

from p2pmesh.base.ids import PeerId

MAX_PEERS = 256
RECENT = 8
ENOUGH = 4
"""Answers from which on the slowest of them says something."""
FACTOR = 4
LEAST_US = 500_000
MOST_US = 1_000_000


class Patience:
    """The last ``RECENT`` answers of each of ``MAX_PEERS`` peers; whoever was heard of longest ago makes room."""

    def __init__(self) -> None:
        self._took_us: dict[PeerId, deque[int]] = {}

    def note_answer(self, peer: PeerId, took_us: int) -> None:
        """It answered, so long after it was asked."""
        recent = self._took_us.pop(peer, None) or deque[int](maxlen=RECENT)
        recent.append(took_us)
        while len(self._took_us) >= MAX_PEERS:
            del self._took_us[next(iter(self._took_us))]
        self._took_us[peer] = recent

    def note_silence(self, peer: PeerId) -> None:
        """It did not answer in time: if it lives, what was known of it holds no more."""
        self._took_us.pop(peer, None)

    def of(self, peer: PeerId) -> int:
        """Microseconds: four times its slowest recent answer, at least half a second; a second if it is not known."""
        recent = self._took_us.get(peer, ())
        if len(recent) < ENOUGH:
            return MOST_US
        return min(MOST_US, max(LEAST_US, FACTOR * max(recent)))
