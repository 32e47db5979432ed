"""Which connections a peer keeps when nothing needs them at the moment.

In a small overlay all of them: everybody is a neighbour there. In a large one a handful, since each costs pings and
gossip at both ends: those to peers of our own shards first, for announcements come over them. Lookups and probes open
others, and those end when they have been idle for a while. Which connection is in use, and the end itself, agreed upon
by both ends, is ``node.connections``'.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class ConnectionPolicy:
    """How many connections stand."""

    all_up_to: int = 32
    """Peers in view up to which an overlay is small."""
    opened_below: int = 8
    """A probe's connection to a peer of our shards stays while there are fewer of these."""
    standing: int = 12
    """More than these end once they are idle, down to ``near_kept`` of our own shards."""
    near_kept: int = 4
    idle_us: int = 60 * MICROS_PER_SECOND
    ended_at_once: int = 4


DEFAULT_POLICY = ConnectionPolicy()


@dataclass(frozen=True, slots=True)
class Standing:
    """A connection to an admitted peer."""

    peer: PeerId
    is_near: bool
    """We listen where the peer announces."""
    is_used: bool
    """An exchange is open, or gossip goes over it."""
    idle_us: int


def is_large(live_count: int, has_shards: bool, policy: ConnectionPolicy = DEFAULT_POLICY) -> bool:
    """Whether an overlay has too many peers for connections to all."""
    return has_shards or live_count > policy.all_up_to


def choose_idle(connections: Iterable[Standing], policy: ConnectionPolicy = DEFAULT_POLICY) -> tuple[PeerId, ...]:
    """Whose connections to end now in a large overlay: those to other shards first, the longest idle first."""
    standing = sorted(connections, key=lambda one: (one.is_near, -one.idle_us, one.peer))
    spare = sum(one.is_near for one in standing) - policy.near_kept
    chosen: list[PeerId] = []
    most = min(policy.ended_at_once, len(standing) - policy.standing)
    for one in standing:
        if len(chosen) >= most:
            break
        if one.is_used or one.idle_us < policy.idle_us or (one.is_near and spare <= 0):
            continue
        spare -= one.is_near
        chosen.append(one.peer)
    return tuple(chosen)
