"""Which peers are connected, and what the node has been told of it."""

from collections import deque
from dataclasses import dataclass

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.ports.network import ConnectionEvent, FaultKind, PeerConnected, PeerDisconnected, PeerFault

MAX_QUEUED_FAULTS = 256


@dataclass(slots=True)
class _Knowledge:
    is_connected: bool = False
    is_inbound: bool = False
    was_told_connected: bool = False
    was_lost: bool = False
    """Disconnected since the node was told that it is connected."""


class PeerFaults:
    """Reports of what authenticated peers do wrong; the oldest go first when nobody listens."""

    def __init__(self) -> None:
        self._faults: deque[PeerFault] = deque(maxlen=MAX_QUEUED_FAULTS)
        self._news = trio.Event()

    def put(self, peer: PeerId, kind: FaultKind) -> None:
        """Reports one."""
        self._faults.append(PeerFault(peer, kind))
        self._news.set()
        self._news = trio.Event()

    async def next(self) -> PeerFault:
        """Waits for the next."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._faults:
            await self._news.wait()
        return self._faults.popleft()


class PathChanges:
    """Counts connections that come and go, also those that are not a peer's first or last."""

    def __init__(self) -> None:
        self.count = 0
        self._news = trio.Event()

    def mark(self) -> None:
        """One came or went."""
        self.count += 1
        self._news.set()
        self._news = trio.Event()

    async def wait_changed(self) -> None:
        """Waits for the next."""
        await self._news.wait()

    async def wait_beyond(self, seen: int) -> int:
        """Waits until the count is above ``seen``; what it is then."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.count <= seen:
            await self._news.wait()
        return self.count


class ConnectionEvents:
    """Folds events per peer: however slowly the node listens, there is at most one entry per peer.

    What it hears of one peer always alternates, connected, disconnected, connected; a loss is never left out, a
    connection that came and went in between is.
    """

    def __init__(self) -> None:
        self._peers: dict[PeerId, _Knowledge] = {}
        self._changed: dict[PeerId, None] = {}
        self._news = trio.Event()

    def connected(self, peer: PeerId, *, is_inbound: bool) -> None:
        """The first connection to ``peer`` stands."""
        known = self._peers.setdefault(peer, _Knowledge())
        if not known.is_connected:
            known.is_connected, known.is_inbound = True, is_inbound
            self._note_change(peer)

    def disconnected(self, peer: PeerId) -> None:
        """The last connection to ``peer`` is gone."""
        known = self._peers.get(peer)
        if known is not None and known.is_connected:
            known.is_connected = False
            known.was_lost = known.was_told_connected
            self._note_change(peer)

    def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a connection now."""
        return frozenset(peer for peer, known in self._peers.items() if known.is_connected)

    async def next(self) -> ConnectionEvent:
        """Waits for the next event."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while self._changed:
                event = self._fold(next(iter(self._changed)))
                if event is not None:
                    return event
            await self._news.wait()

    def _note_change(self, peer: PeerId) -> None:
        self._changed.setdefault(peer)
        self._news.set()
        self._news = trio.Event()

    def _fold(self, peer: PeerId) -> ConnectionEvent | None:
        known = self._peers[peer]
        if known.was_told_connected and known.was_lost:
            known.was_told_connected = known.was_lost = False
            if not known.is_connected:
                del self._changed[peer], self._peers[peer]
            return PeerDisconnected(peer)
        del self._changed[peer]
        if known.is_connected and not known.was_told_connected:
            known.was_told_connected = True
            return PeerConnected(peer, known.is_inbound)
        if not known.is_connected:
            del self._peers[peer]
        return None
