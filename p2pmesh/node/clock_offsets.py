"""How far our clock is from those of peers: what each signs in its hello is of that very moment.

No other party is asked for the time. A hello is at most a round trip old, which is nothing beside the 30 s of skew that
matter; one peer with a wrong clock does not sway the median.
"""

from statistics import median_low

from p2pmesh.base.ids import PeerId

MAX_PEERS = 64


class ClockOffsets:
    """The last word of each peer, bounded."""

    def __init__(self) -> None:
        self._offsets: dict[PeerId, int] = {}

    def note(self, peer: PeerId, said_unix_ms: int, now_unix_ms: int) -> None:
        """A peer signed ``said_unix_ms`` just now; 0 is no time."""
        if not said_unix_ms:
            return
        self._offsets.pop(peer, None)
        while len(self._offsets) >= MAX_PEERS:
            del self._offsets[next(iter(self._offsets))]
        self._offsets[peer] = now_unix_ms - said_unix_ms

    def describe(self) -> dict[str, int | None]:
        """``ahead_ms``: how far we are ahead of the median peer; None before any was heard."""
        return {"peers": len(self._offsets), "ahead_ms": median_low(self._offsets.values()) if self._offsets else None}
