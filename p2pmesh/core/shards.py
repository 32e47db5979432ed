"""Which part of a growing overlay a peer announces in, listens to, and how often it speaks.

Owns the depth of a peer's shard with its hysteresis, the topics that follow from it, and the announcement interval. Who
is alive is ``core.membership``'s; subscribing, signing and publishing are the node's. In a small overlay all of it is
depth 0, one topic.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_SHARD_DEPTH
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros


@dataclass(frozen=True, slots=True)
class ShardPolicy:
    """When to go deeper or up, and how often to speak."""

    deeper_above: int = 192
    """Live peers of the shard; both halves of one that is cut are far above ``up_below``."""
    deeper_above_when_full: int = 96
    """The same for a view that has no room left: peers of other shards hide how large ours is."""
    up_below: int = 40
    parent_too_below: int = 80
    """A shard that may soon be left is heard in its parent as well, so that no one there is left alone."""
    up_patience_us: int = 900 * MICROS_PER_SECOND
    """So long a shard must have looked too small: by then every member of it has announced at least once."""
    evidence: int = 8
    """So many other peers must be known before their median depth is followed."""
    view_capacity: int = 256
    max_depth: int = MAX_SHARD_DEPTH
    shortest_interval_us: int = 20 * MICROS_PER_SECOND
    longest_interval_us: int = 900 * MICROS_PER_SECOND
    us_per_peer: int = 6 * MICROS_PER_SECOND
    """From a whole shard about one announcement arrives in this time."""


DEFAULT_POLICY = ShardPolicy()


@lru_cache(maxsize=16_384)
def shard_bits_of(peer: PeerId, depth: int = MAX_SHARD_DEPTH) -> str:
    """The leading bits of sha256 of the peer id, as text of 0 and 1: the name of its shard at that depth."""
    head = int.from_bytes(hashlib.sha256(peer.encode()).digest()[:4], "big")
    return format(head, "032b")[:depth]


def shared_bits(one: PeerId, other: PeerId) -> int:
    """The depth down to which two peers are of one shard."""
    return _shared_length(shard_bits_of(one), shard_bits_of(other))


def listening_bits(bits: str, depth: int, max_depth: int = MAX_SHARD_DEPTH) -> tuple[str, ...]:
    """The shards that a peer at ``depth`` hears: its own, the parent, and its own half of the next level.

    The last is empty until others go deeper; then those that went and those that did not still hear each other.
    """
    return tuple(bits[:level] for level in range(max(0, depth - 1), min(depth + 1, max_depth) + 1))


def announcement_interval_us(live_count: int, policy: ShardPolicy = DEFAULT_POLICY) -> int:
    """How long a peer waits between announcements when ``live_count`` others of its shard are alive."""
    wanted = live_count * policy.us_per_peer
    return max(policy.shortest_interval_us, min(policy.longest_interval_us, wanted))


@dataclass(slots=True, unsafe_hash=True)  # not frozen: a simulation makes millions
class PeerHeard:
    """A live peer is in the view; it announces at ``depth``. Again when that changed."""

    peer: PeerId
    depth: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """A peer has failed, left or was forgotten."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = PeerHeard | PeerGone | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Listen:
    """Join the topic of these bits."""

    bits: str


@dataclass(frozen=True, slots=True)
class StopListening:
    """Leave the topic of these bits."""

    bits: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Announce at this depth from now on, and say so at once; in the shard that was left too, or those who stay behind
    there hear nothing of the others one day."""

    depth: int
    left_bits: str


Effect = Listen | StopListening | Moved


class ShardMachine:
    """One peer's place among the shards. Starts at depth 0, listening to ``listen_bits``."""

    __slots__ = (
        "_count",
        "_depth",
        "_depths",
        "_is_new",
        "_matching",
        "_peers",
        "_policy",
        "_small_since",
        "bits",
        "own_peer",
    )

    def __init__(self, own_peer: PeerId, policy: ShardPolicy = DEFAULT_POLICY) -> None:
        self.own_peer = own_peer
        self.bits = shard_bits_of(own_peer, policy.max_depth)
        self._policy = policy
        self._depth = 0
        self._is_new = True
        """Until enough others are known: a newcomer takes their depth, or all shards would hear it for long."""
        self._peers: dict[PeerId, tuple[int, int]] = {}
        """Peer: how many leading bits it shares with us, and its depth."""
        self._matching = [0] * (policy.max_depth + 1)
        self._depths = [0] * (policy.max_depth + 1)
        self._count = 0
        """Peers of our shard: what ``_matching`` adds up to from our depth on."""
        self._small_since: Micros | None = None

    # --- what others ask
    @property
    def depth(self) -> int:
        """Bits of the shard that we announce in."""
        return self._depth

    @property
    def is_new(self) -> bool:
        """Whether it still takes whatever depth most of the first peers that it hears of have."""
        return self._is_new

    @property
    def publish_bits(self) -> tuple[str, ...]:
        """The shards that we announce in: our own, and its parent while ours is small."""
        own = self.bits[: self._depth]
        if self._depth > 0 and self.shard_count < self._policy.parent_too_below:
            return (own, own[:-1])
        return (own,)

    @property
    def listen_bits(self) -> tuple[str, ...]:
        """The shards that we hear."""
        return listening_bits(self.bits, self._depth, self._policy.max_depth)

    @property
    def shard_count(self) -> int:
        """Other live peers of our shard that we know."""
        return self._count

    @property
    def interval_us(self) -> int:
        """How long to wait until the next announcement if nothing changes."""
        return announcement_interval_us(self.shard_count, self._policy)

    @property
    def has_shards(self) -> bool:
        """Whether models are announced on their own topics too: the overlay is cut, here or next door."""
        return self._depth > 0 or any(self._depths[1:])

    def deadline(self) -> Micros | None:
        """When a shard that stays small is left for its parent."""
        return None if self._small_since is None else Micros(self._small_since + self._policy.up_patience_us)

    # --- events
    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case PeerHeard(peer, depth):
                if not self._hear(peer, depth):
                    return ()
            case PeerGone(peer):
                if not self._forget(peer):
                    return ()
            case DeadlinePassed():
                pass
        return self._settle(now)

    def _hear(self, peer: PeerId, depth: int) -> bool:
        depth = max(0, min(depth, self._policy.max_depth))
        known = self._peers.get(peer)
        if known is None:
            if peer == self.own_peer or len(self._peers) >= self._policy.view_capacity:
                return False
            shared = _shared_length(self.bits, shard_bits_of(peer, self._policy.max_depth))
            self._matching[shared] += 1
            self._count += shared >= self._depth
        elif known[1] == depth:
            return False
        else:
            shared = known[0]
            self._depths[known[1]] -= 1
        self._depths[depth] += 1
        self._peers[peer] = (shared, depth)
        return True

    def _forget(self, peer: PeerId) -> bool:
        known = self._peers.pop(peer, None)
        if known is None:
            return False
        self._matching[known[0]] -= 1
        self._count -= known[0] >= self._depth
        self._depths[known[1]] -= 1
        return True

    def _settle(self, now: Micros) -> tuple[Effect, ...]:
        depth = self._depth
        self._depth = self._wanted_depth(now)
        if self._depth == depth:
            return ()
        self._count = sum(self._matching[self._depth :])
        before, left_bits = listening_bits(self.bits, depth, self._policy.max_depth), self.bits[:depth]
        self._small_since = None
        self._note_size(now)
        after = self.listen_bits
        listen = tuple(Listen(bits) for bits in after if bits not in before)
        leave = tuple(StopListening(bits) for bits in before if bits not in after)
        return (*listen, *leave, Moved(self._depth, left_bits))

    def _wanted_depth(self, now: Micros) -> int:
        policy = self._policy
        depth = self._depth
        has_evidence = len(self._peers) >= policy.evidence
        median = self._median_depth() if has_evidence else depth
        tolerated = 0 if self._is_new else 1
        self._is_new = self._is_new and not has_evidence
        if abs(median - depth) > tolerated:
            return median
        # Not beyond the reach of the others, however many made-up peers crowd our bits.
        is_full = len(self._peers) >= policy.view_capacity
        limit = policy.deeper_above_when_full if is_full else policy.deeper_above
        if self.shard_count > limit and depth < min(policy.max_depth, median + 1):
            return depth + 1
        self._note_size(now)
        deadline = self.deadline()
        return depth - 1 if deadline is not None and now >= deadline else depth

    def _note_size(self, now: Micros) -> None:
        is_small = self._depth > 0 and self.shard_count < self._policy.up_below
        if not is_small:
            self._small_since = None
        elif self._small_since is None:
            self._small_since = now

    def _median_depth(self) -> int:
        """The lower median of what others announce: a minority cannot move it."""
        left = (len(self._peers) + 1) // 2
        if 2 * self._depths[self._depth] > len(self._peers):
            return self._depth  # as most are
        for depth, count in enumerate(self._depths):
            left -= count
            if left <= 0:
                return depth
        raise AssertionError("every peer has a depth")


def _shared_length(one: str, other: str) -> int:
    return len(one) if one == other else len(one) - (int(one or "0", 2) ^ int(other or "0", 2)).bit_length()
