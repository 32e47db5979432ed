"""Whom to probe next: every member once per pass, in an order drawn as it goes, and at times one before its turn.

Owns the order and the turn; what is asked, and what becomes of it, is ``core.membership``'s.
"""

from collections.abc import Iterator

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.draws import Draws


class ProbeOrder:
    """Peers in the order of their turns. An urgent one is taken at most every second round of ``interval_us``."""

    __slots__ = ("_cursor", "_draws", "_interval_us", "_peers", "_urgent", "_urgent_from")

    def __init__(self, draws: Draws, interval_us: int) -> None:
        self._draws = draws
        self._interval_us = interval_us
        self._peers: list[PeerId] = []
        """Those before the cursor have had their turn in this pass."""
        self._cursor = 0
        self._urgent: PeerId | None = None
        self._urgent_from = Micros(0)

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def add(self, peer: PeerId) -> None:
        """One more, with a turn still in this pass."""
        self._peers.append(peer)

    def remove(self, peer: PeerId) -> None:
        """One that was added is no member any more."""
        index = self._peers.index(peer)
        del self._peers[index]
        if index < self._cursor:
            self._cursor -= 1

    def hurry(self, peer: PeerId, now: Micros) -> None:
        """Takes a peer before its turn, unless one was lately: every second round stays one of our own choice."""
        if self._urgent is None and now >= self._urgent_from:
            self._urgent = peer
            self._urgent_from = Micros(now + 2 * self._interval_us)

    def take_urgent(self) -> PeerId | None:
        """Who was to be taken before its turn, perhaps gone by now; it costs this round."""
        if self._cursor >= len(self._peers):
            self._cursor = 0
        urgent, self._urgent = self._urgent, None
        return urgent

    def take(self) -> PeerId:
        """Whose turn it is; there is at least one peer."""
        peers, cursor = self._peers, self._cursor
        if cursor >= len(peers):
            cursor = 0
        drawn = cursor + self._draws.below(len(peers) - cursor)
        peer = peers[drawn]
        peers[drawn] = peers[cursor]
        peers[cursor] = peer
        self._cursor = cursor + 1
        return peer
