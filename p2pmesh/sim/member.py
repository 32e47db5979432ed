"""One run of a peer of the overlay, from its start to its end: its machines, and what it last said.

Signatures, passes and proofs are outcomes here, not bytes. What ``node`` does around the machines is
``sim.overlay``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.admission import AdmissionMachine
from p2pmesh.core.hosts import HostBound, HostPolicy
from p2pmesh.core.membership import Effect, Event, MembershipMachine
from p2pmesh.core.records import RecordsMachine
from p2pmesh.core.shards import ShardMachine, shard_bits_of
from p2pmesh.sim.alarm import NEVER, Alarm
from p2pmesh.sim.chance import Draws, mixed
from p2pmesh.sim.directory import hash_of
from p2pmesh.sim.overlay_scenario import OverlayPopulation


class Said:
    """A signed announcement, as far as it matters here: who, how fresh, where, what, until when."""

    __slots__ = ("expires_us", "incarnation", "life_us", "models", "number", "peer_id", "sequence", "shard_depth")

    def __init__(self, peer: "Traits", incarnation: int, sequence: int) -> None:
        self.number = peer.number
        self.peer_id = peer.peer_id
        self.incarnation = incarnation
        self.sequence = sequence
        self.shard_depth = 0
        self.models: tuple[int, ...] = ()
        self.life_us = 0
        self.expires_us = 0
        """By the speaker's wall clock."""


class _Advertised(Protocol):
    """What others act on, of a real announcement or of one here."""

    @property
    def shard_depth(self) -> int:
        """In which shard."""

    @property
    def models(self) -> tuple[Any, ...]:
        """What is served."""


def says_something_new(before: _Advertised, after: _Advertised) -> bool:
    """Whether others here act on the difference."""
    return before.shard_depth != after.shard_depth or before.models != after.models


@dataclass(slots=True)
class Traits:
    """What stays with a peer over its runs. ``host`` answers for it; it is the peer itself but for a sybil."""

    number: int
    peer_id: PeerId
    peer_hash: int
    host: int
    is_nat: bool = False
    is_lying: bool = False
    is_silent_when_dead: bool = False
    """A crash takes the machine along, so that a dial is not even refused."""
    model: int | None = None
    """What it serves from its start."""
    bits: str = ""
    """Where it lies among the shards."""
    starts: int = 0
    clock_us: int = 0
    """How far the wall clock is off."""
    up_us: int = 0
    """Over all runs that are over."""


def draw_traits(number: int, peer_id: PeerId, population: OverlayPopulation, seed: int) -> Traits:
    """What the population makes of a number."""
    draws = Draws(seed, f"traits {number}")
    traits = Traits(number, peer_id, hash_of(peer_id), number, bits=shard_bits_of(peer_id))
    traits.is_nat = draws.happens(population.nat) and number > 0
    traits.is_lying = draws.happens(population.lying) and number > 0
    traits.is_silent_when_dead = bool(draws.below(2))
    if draws.happens(population.serving) or traits.is_lying:
        traits.model = draws.below(population.models)
    return traits


class Member:
    """One run of a peer. ``handle`` is membership's, at hand for the loop that calls it millions of times."""

    __slots__ = (
        "admission", "announce_alarm", "connections", "handle", "hosts", "incarnation", "is_joined",
        "is_nat", "is_up", "machine", "models", "number", "peer_id", "records", "records_alarm", "relays", "said",
        "seed", "sequence", "shards", "shards_alarm", "started_us", "topics", "traits", "viewed", "wake_us",
    )  # fmt: skip

    def __init__(self, traits: Traits, now_us: int, seed: int) -> None:
        self.traits = traits
        self.number = traits.number
        self.is_nat = traits.is_nat
        self.peer_id = traits.peer_id
        self.seed = mixed(seed ^ (traits.number << 20) ^ traits.starts)
        self.machine: MembershipMachine[Said] = MembershipMachine(
            traits.peer_id, seed=self.seed, is_change=says_something_new
        )
        self.handle: Callable[[Event, Micros], tuple[Effect, ...]] = self.machine.handle
        self.viewed = self.machine.peers()
        self.hosts: HostBound | None = None
        """Of made-up identities only: all others are one to a host here."""
        self.shards = ShardMachine(traits.peer_id)
        self.admission = AdmissionMachine()
        self.records = RecordsMachine(self.seed)
        self.records_alarm = Alarm()
        self.incarnation = now_us + 1
        self.sequence = 0
        self.said: Said | None = None
        self.models = () if traits.model is None else (traits.model,)
        self.connections: dict[int, int] = {}
        """Whom it is connected to, by number, and since when."""
        self.relays: tuple[int, ...] = ()
        self.topics: dict[str, None] = {}
        self.started_us = now_us
        self.is_up = True
        self.is_joined = False
        self.wake_us = NEVER
        self.shards_alarm = Alarm()
        self.announce_alarm = Alarm()

    def takes_made_up(self, peer: PeerId, host: int) -> bool:
        """Whether one more identity of a host may stay in view; it counts from now on if so."""
        if self.hosts is None:
            self.hosts = HostBound(HostPolicy(holds_from=0))
        hosts = frozenset((str(host),))
        is_small = self.machine.live_count < HostPolicy().holds_from
        if not is_small and not self.hosts.admits(peer, hosts):
            return False
        self.hosts.note(peer, hosts)
        return True

    def say(self, now_us: int, life_us: int) -> Said:
        """A fresh announcement."""
        self.sequence += 1
        said = Said(self.traits, self.incarnation, self.sequence)
        said.shard_depth = self.shards.depth
        said.models = self.models
        said.life_us = life_us
        said.expires_us = now_us + life_us + self.traits.clock_us
        self.said = said
        return said


def lives_us(said: Said, now_us: int, clock_us: int, skew_us: int) -> Micros:
    """How long it still lives for a reader whose clock is off by ``clock_us``."""
    return Micros(min(said.life_us, said.expires_us + skew_us - now_us - clock_us))
