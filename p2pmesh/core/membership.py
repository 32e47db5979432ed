"""What is known of the other peers: the freshest announcement of each, until it expires.

Knowledge by gossip, not by connection: a peer here may be unreachable. Who is connected and admitted is
``core.admission``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_PEERS
from p2pmesh.base.quantities import Micros
from p2pmesh.wire.announcement import Announcement


@dataclass(frozen=True, slots=True)
class AnnouncementReceived:
    """A checked announcement that lives ``lives_us`` from now."""

    announcement: Announcement
    lives_us: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to an admitted peer broke; what it announced no longer counts until it says so anew."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = AnnouncementReceived | PeerLost | DeadlinePassed


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer that was unknown."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerChanged:
    """A known peer announces something else."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerForgotten:
    """A peer's last announcement expired, or the peer is lost."""

    peer: PeerId


Effect = PeerJoined | PeerChanged | PeerForgotten


class MembershipMachine:
    """Announcements by peer; a full table takes no new peers."""

    def __init__(self, own_peer: PeerId, capacity: int = MAX_PEERS) -> None:
        self._own_peer = own_peer
        self._capacity = capacity
        self._known: dict[PeerId, tuple[Announcement, Micros]] = {}
        self._lost_at: dict[PeerId, tuple[int, int]] = {}
        self._next_due: Micros | None = None

    def find(self, peer: PeerId) -> Announcement | None:
        """The announcement of a peer."""
        entry = self._known.get(peer)
        return entry[0] if entry else None

    def announcements(self) -> tuple[Announcement, ...]:
        """All, by peer id."""
        return tuple(self._known[peer][0] for peer in sorted(self._known))

    @property
    def known_count(self) -> int:
        """Peers with an announcement that counts."""
        return len(self._known)

    def deadline(self) -> Micros | None:
        """Not after the earliest expiry; it may be before it, where a fresher announcement moved that on.

        Kept as one value: ten thousand peers are not searched at every announcement.
        """
        return self._next_due

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case AnnouncementReceived(announcement, lives_us):
                return self._on_announcement(announcement, lives_us, now)
            case PeerLost(peer):
                return self._on_lost(peer)
            case DeadlinePassed():
                return self._on_deadline(now)

    def _on_announcement(self, announcement: Announcement, lives_us: int, now: Micros) -> tuple[Effect, ...]:
        peer = PeerId(announcement.peer_id)
        if peer == self._own_peer or lives_us <= 0:
            return ()
        if peer in self._lost_at and announcement.freshness <= self._lost_at[peer]:
            return ()  # an echo of what the peer said before it was lost
        known = self._known.get(peer)
        if known is not None and announcement.freshness <= known[0].freshness:
            return ()
        if known is None and len(self._known) >= self._capacity:
            return ()
        self._lost_at.pop(peer, None)
        due = Micros(now + lives_us)
        self._known[peer] = (announcement, due)
        self._next_due = due if self._next_due is None else min(self._next_due, due)
        if known is None:
            return (PeerJoined(peer),)
        return (PeerChanged(peer),) if _says_something_new(known[0], announcement) else ()

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        late = sorted(peer for peer, (_, due) in self._known.items() if due <= now)
        for peer in late:
            del self._known[peer]
        self._next_due = min((due for _, due in self._known.values()), default=None)
        return tuple(PeerForgotten(peer) for peer in late)

    def _on_lost(self, peer: PeerId) -> tuple[Effect, ...]:
        known = self._known.pop(peer, None)
        if known is None:
            return ()
        if len(self._lost_at) >= self._capacity:
            del self._lost_at[next(iter(self._lost_at))]  # the peer that was lost first
        self._lost_at[peer] = known[0].freshness
        return (PeerForgotten(peer),)


def _says_something_new(before: Announcement, after: Announcement) -> bool:
    return (before.models, before.free_bytes, before.memory_bytes, before.addresses, before.incarnation) != (
        after.models,
        after.free_bytes,
        after.memory_bytes,
        after.addresses,
        after.incarnation,
    )
