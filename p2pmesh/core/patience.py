"""How long an answer may be waited for, by how long those before it took.

A peer that always answers in milliseconds is not waited for as long as one whose machine is busy: what a client sees of
a loss begins with this wait. One that took long to answer lately gets more than a stranger: a false alarm costs a run.
"""

from collections import deque

from p2pmesh.base.ids import PeerId

MAX_PEERS = 256
RECENT = 16
ENOUGH = 4
"""Answers from which on the slowest of them says something."""
FACTOR = 8
"""On a machine at load 19 answers took 20 to 250 ms, and now and then three times as long as any for a while."""
LEAST_US = 500_000
"""A packet that is lost twice on a short way comes within it: Linux sends again after 200 ms at least."""
STRANGER_US = 1_000_000
MOST_US = 3_000_000


class Patience:
    """The last ``RECENT`` answers of each of ``MAX_PEERS`` peers; whoever was heard of longest ago makes room."""

    def __init__(self) -> None:
        self._took_us: dict[PeerId, deque[int]] = {}
        self._doubted: set[PeerId] = set()
        """Of those, who was silent and has not answered ``ENOUGH`` times since: pings say nothing of them."""

    def note_answer(self, peer: PeerId, took_us: int) -> None:
        """It answered, so long after it was asked."""
        recent = self._took_us.get(peer, deque[int](maxlen=RECENT))
        recent.append(took_us)
        self._keep(peer, recent)
        if len(recent) >= ENOUGH:
            self._doubted.discard(peer)

    def note_silence(self, peer: PeerId) -> None:
        """It did not answer in time: if it lives, what was known of it holds no more, nor what its pings say."""
        self._keep(peer, deque[int](maxlen=RECENT))
        self._doubted.add(peer)

    def _keep(self, peer: PeerId, recent: deque[int]) -> None:
        self._took_us.pop(peer, None)
        while len(self._took_us) >= MAX_PEERS:
            oldest = next(iter(self._took_us))
            del self._took_us[oldest]
            self._doubted.discard(oldest)
        self._took_us[peer] = recent

    def of(self, peer: PeerId, slowest_ping_us: int | None = None) -> int:
        """Microseconds: ``FACTOR`` times its slowest recent answer, from ``LEAST_US`` to ``MOST_US``.

        Pings are answered by the same process: the slowest of some recent ones counts as an answer, and is enough where
        too few questions were put. One of whom neither says anything gets ``STRANGER_US``.
        """
        recent = self._took_us.get(peer, ())
        if (slowest_ping_us is None or peer in self._doubted) and len(recent) < ENOUGH:
            return STRANGER_US
        slowest_us = max(slowest_ping_us or 0, *recent, 0)
        return min(MOST_US, max(LEAST_US, FACTOR * slowest_us))
