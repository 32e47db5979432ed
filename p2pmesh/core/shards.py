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
    lonely_patience_us: int = 120 * MICROS_PER_SECOND
    """The same for a shard that is all but empty while others are known that are less deep."""
    evidence: int = 8
    """So many other peers must be known before their median depth is followed; below, a shard is all but empty."""
    justifying: int = 32
    """So many peers of one shard must a newcomer know to go one deeper: a few that say 16 would send it anywhere."""
    newcomer_us: int = 60 * MICROS_PER_SECOND
    """So long after the first word a peer can be a newcomer."""
    elsewhere_capacity: int = 256
    elsewhere_us: int = 1800 * MICROS_PER_SECOND
    """So long the depth of a peer counts that announces where we do not listen."""
    elsewhere_weight: int = 3
    """So many of those, whom nobody here can probe, count at most for each peer in view."""
    view_capacity: int = 256
    max_depth: int = MAX_SHARD_DEPTH
    shortest_interval_us: int = 20 * MICROS_PER_SECOND
    longest_interval_us: int = 900 * MICROS_PER_SECOND
    us_per_peer: int = 12 * MICROS_PER_SECOND
    """From a whole shard about one announcement arrives in this time."""


DEFAULT_POLICY = ShardPolicy()
_HEAD_BITS = 32


@lru_cache(maxsize=16_384)
def shard_bits_of(peer: PeerId, depth: int = MAX_SHARD_DEPTH) -> str:
    """The leading bits of sha256 of the peer id, as text of 0 and 1: the name of its shard at that depth."""
    return format(_head_of(peer), f"0{_HEAD_BITS}b")[:depth]


@lru_cache(maxsize=16_384)
def _head_of(peer: PeerId) -> int:
    return int.from_bytes(hashlib.sha256(peer.encode()).digest()[: _HEAD_BITS // 8], "big")


def _shared_length(one: int, other: int, at_most: int) -> int:
    """Leading bits in which two heads agree."""
    return min(at_most, _HEAD_BITS - (one ^ other).bit_length())


def shared_bits(one: PeerId, other: PeerId) -> int:
    """The depth down to which two peers are of one shard."""
    return _shared_length(_head_of(one), _head_of(other), MAX_SHARD_DEPTH)


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


@dataclass(slots=True, unsafe_hash=True)
class PeerElsewhere:
    """A peer announces at ``depth``, where we do not listen: it is not in the view, or not any more."""

    peer: PeerId
    depth: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """A peer has failed, left or was forgotten. What is known of it elsewhere ages by itself."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = PeerHeard | PeerElsewhere | PeerGone | DeadlinePassed


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


class Census:
    """Peers by the leading bits that they share with us, and by the depth at which they announce."""

    __slots__ = ("_matching", "depths", "peers")

    def __init__(self, max_depth: int) -> None:
        self.peers: dict[PeerId, tuple[int, int, Micros]] = {}
        """Peer: how many leading bits it shares with us, its depth, and since when; the last put is the last."""
        self.depths = [0] * (max_depth + 1)
        self._matching = [0] * (max_depth + 1)

    def put(self, peer: PeerId, shared: int, depth: int, now: Micros) -> None:
        """Counts one that is not counted."""
        self.peers[peer] = (shared, depth, now)
        self.depths[depth] += 1
        self._matching[shared] += 1

    def take(self, peer: PeerId) -> tuple[int, int, Micros] | None:
        """Counts it no more; what it was, or None if it was not counted."""
        known = self.peers.pop(peer, None)
        if known is not None:
            self._matching[known[0]] -= 1
            self.depths[known[1]] -= 1
        return known

    def count(self, depth: int) -> int:
        """Those that share so many bits with us."""
        return sum(self._matching[depth:])


class ShardMachine:
    """One peer's place among the shards. Starts at depth 0, listening to ``listen_bits``."""

    __slots__ = (
        "_count",
        "_depth",
        "_elsewhere",
        "_first_heard",
        "_head",
        "_is_new",
        "_lonely_since",
        "_policy",
        "_small_since",
        "_turn",
        "_view",
        "bits",
        "own_peer",
    )

    def __init__(self, own_peer: PeerId, policy: ShardPolicy = DEFAULT_POLICY) -> None:
        self.own_peer = own_peer
        self.bits = shard_bits_of(own_peer, policy.max_depth)
        self._head = _head_of(own_peer)
        self._policy = policy
        self._depth = 0
        self._is_new = True
        """Until enough others are known: a newcomer takes their depth, or all shards would hear it for long."""
        self._first_heard: Micros | None = None
        self._view = Census(policy.max_depth)
        self._elsewhere = Census(policy.max_depth)
        """Those that went where we do not listen: without them, who stays behind follows others that stay behind."""
        self._count = 0
        """Peers of the view that are of our shard."""
        self._small_since: Micros | None = None
        self._lonely_since: Micros | None = None
        self._turn = 0

    # --- what others ask
    @property
    def depth(self) -> int:
        """Bits of the shard that we announce in."""
        return self._depth

    @property
    def is_new(self) -> bool:
        """Whether it still takes the depth that most of the first peers that it hears of have."""
        return self._is_new

    @property
    def publish_bits(self) -> tuple[str, ...]:
        """The shards that we announce in: our own, and its parent while ours is small."""
        own = self.bits[: self._depth]
        if self._depth > 0 and self.shard_count < self._policy.parent_too_below:
            return (own, own[:-1])
        return (own,)

    def next_publish_bits(self) -> tuple[str, ...]:
        """The shards of the next announcement: at every second one of the shards above too, the nearest most often.

        In each arrives about as much as in one of full size. Nobody listens there but who stayed behind, and so learns
        that the others are deeper.
        """
        self._turn += 1
        halvings = (self._turn & -self._turn).bit_length() - 1
        above = self._depth - 1 - halvings
        if halvings == 0 or above < 0:
            return self.publish_bits
        return (*self.publish_bits, self.bits[:above])

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
        return self._depth > 0 or any(self._view.depths[1:]) or any(self._elsewhere.depths[1:])

    def deadline(self) -> Micros | None:
        """When a shard that stays small is left for its parent, or an empty one for where others are."""
        if self._small_since is None:
            return None
        due = self._small_since + self._policy.up_patience_us
        if self._lonely_since is not None:
            due = min(due, self._lonely_since + self._policy.lonely_patience_us)
        return Micros(due)

    # --- events
    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        if self._first_heard is None:
            self._first_heard = now
        match event:
            case PeerHeard(peer, depth):
                if not self._hear(peer, depth, now):
                    return ()
            case PeerElsewhere(peer, depth):
                if not self._note_elsewhere(peer, depth, now):
                    return ()
            case PeerGone(peer):
                if not self._forget(peer):
                    return ()
            case DeadlinePassed():
                pass
        if self._elsewhere.peers:
            self._forget_old(now)
        return self._settle(now)

    def _hear(self, peer: PeerId, depth: int, now: Micros) -> bool:
        depth = max(0, min(depth, self._policy.max_depth))
        known = self._view.peers.get(peer)
        if known is not None and known[1] == depth:
            return False
        if known is None and (peer == self.own_peer or len(self._view.peers) >= self._policy.view_capacity):
            return False
        if self._elsewhere.peers:
            self._elsewhere.take(peer)
        if known is None:
            shared = self._shared(peer)
        else:
            shared = known[0]
            self._forget(peer)
        self._view.put(peer, shared, depth, now)
        self._count += shared >= self._depth
        return True

    def _note_elsewhere(self, peer: PeerId, depth: int, now: Micros) -> bool:
        if peer == self.own_peer:
            return False
        self._forget(peer)
        known = self._elsewhere.take(peer)
        if known is None and len(self._elsewhere.peers) >= self._policy.elsewhere_capacity:
            self._elsewhere.take(next(iter(self._elsewhere.peers)))
        shared = self._shared(peer) if known is None else known[0]
        self._elsewhere.put(peer, shared, max(0, min(depth, self._policy.max_depth)), now)
        return True

    def _shared(self, peer: PeerId) -> int:
        return _shared_length(self._head, _head_of(peer), self._policy.max_depth)

    def _forget(self, peer: PeerId) -> bool:
        known = self._view.take(peer)
        if known is None:
            return False
        self._count -= known[0] >= self._depth
        return True

    def _forget_old(self, now: Micros) -> None:
        peers = self._elsewhere.peers
        while peers:
            oldest = next(iter(peers))
            if peers[oldest][2] + self._policy.elsewhere_us > now:
                return
            self._elsewhere.take(oldest)

    def _settle(self, now: Micros) -> tuple[Effect, ...]:
        if self._is_at_rest():
            self._small_since = self._lonely_since = None
            return ()
        depth = self._depth
        self._depth = self._wanted_depth(now)
        self._end_newness(now)
        if self._depth == depth:
            return ()
        self._count = self._view.count(self._depth)
        before, left_bits = listening_bits(self.bits, depth, self._policy.max_depth), self.bits[:depth]
        self._small_since = self._lonely_since = None
        self._note_size(now)
        after = self.listen_bits
        listen = tuple(Listen(bits) for bits in after if bits not in before)
        leave = tuple(StopListening(bits) for bits in before if bits not in after)
        return (*listen, *leave, Moved(self._depth, left_bits))

    def _is_at_rest(self) -> bool:
        """Whether everything says at a glance that the depth is right, as it is mostly: what ``_wanted_depth`` weighs
        at length would come to the same."""
        view, policy = self._view, self._policy
        return (
            not self._is_new
            and policy.up_below <= self._count <= policy.deeper_above
            and len(view.peers) < policy.view_capacity
            and 2 * view.depths[self._depth] > len(view.peers)
            and not self._elsewhere.peers
        )

    def _end_newness(self, now: Micros) -> None:
        first = now if self._first_heard is None else self._first_heard
        is_over = len(self._view.peers) >= self._policy.justifying or now >= first + self._policy.newcomer_us
        self._is_new = self._is_new and not is_over

    # --- how deep
    def _wanted_depth(self, now: Micros) -> int:
        policy = self._policy
        depth = self._depth
        in_view = self._median_or_own(self._view.depths, len(self._view.peers))
        median = self._median_with_elsewhere(in_view)
        # What is known of those elsewhere may be old, so it alone calls nobody up; once deeper is enough.
        if max(in_view, median) < depth - 1:
            return max(in_view, median)
        if median > depth + (0 if self._is_new else 1):
            justified = self._justified(median)
            if justified > depth:
                return justified
        # Not beyond the reach of the others, however many made-up peers crowd our bits.
        is_full = len(self._view.peers) >= policy.view_capacity
        limit = policy.deeper_above_when_full if is_full else policy.deeper_above
        if self._known(depth) > limit and depth < min(policy.max_depth, median + 1):
            return depth + 1
        self._note_size(now)
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return depth
        return depth - 1 if self._lonely_since is None else self._median_above()

    def _known(self, depth: int) -> int:
        """Peers of our shard at that depth, with those elsewhere as far as those in view vouch for as many."""
        elsewhere = self._elsewhere.count(depth) if self._elsewhere.peers else 0
        vouched = self._policy.elsewhere_weight * max(self._policy.evidence, len(self._view.peers))
        return self._view.count(depth) + min(elsewhere, vouched)

    def _justified(self, median: int) -> int:
        """How deep we may go at once: to a shard that we know enough peers of to stay there.

        A newcomer knows peers of one shard, which is not its own; that so many are of one says as much.
        """
        found = self._depth
        while found < median and self._known(found + 1) >= self._policy.up_below:
            found += 1
        if not self._is_new or len(self._view.peers) < self._policy.justifying:
            return found
        for depth in range(median, found, -1):
            crowds: dict[str, int] = {}
            for peer in self._view.peers:
                bits = shard_bits_of(peer, depth - 1)
                crowds[bits] = crowds.get(bits, 0) + 1
            if max(crowds.values()) >= self._policy.justifying:
                return depth
        return found

    def _note_size(self, now: Micros) -> None:
        policy = self._policy
        is_small = self._depth > 0 and self._count < policy.up_below
        if not is_small:
            self._small_since = self._lonely_since = None
            return
        if self._small_since is None:
            self._small_since = now
        above = any(self._view.depths[: self._depth]) or any(self._elsewhere.depths[: self._depth])
        if self._count >= policy.evidence or not above:
            self._lonely_since = None
        elif self._lonely_since is None:
            self._lonely_since = now

    def _median_or_own(self, depths: list[int], count: int) -> int:
        """The lower median of what others announce: a minority cannot move it. Our own depth if they are too few."""
        is_as_most = 2 * depths[self._depth] > count
        return self._depth if count < self._policy.evidence or is_as_most else _lower_median(depths, count)

    def _median_with_elsewhere(self, in_view: int) -> int:
        count = len(self._elsewhere.peers)
        if not count:
            return in_view
        depths = [here + there for here, there in zip(self._view.depths, self._elsewhere.depths, strict=True)]
        return self._median_or_own(depths, len(self._view.peers) + count)

    def _median_above(self) -> int:
        """Where those are that are less deep."""
        pairs = zip(self._view.depths[: self._depth], self._elsewhere.depths[: self._depth], strict=True)
        depths = [here + there for here, there in pairs]
        return _lower_median(depths, sum(depths))


def _lower_median(depths: list[int], count: int) -> int:
    left = (count + 1) // 2
    for depth, here in enumerate(depths):
        left -= here
        if left <= 0:
            return depth
    raise AssertionError("every peer has a depth")
