"""Scenarios of the world ``overlay``: many peers over regions of the Internet, their churn, faults and attackers.

Times in microseconds, shares per million. Who is hit by a fault is drawn from the seed, so a scenario fits any number
of peers.
"""

from dataclasses import dataclass

from p2pmesh.sim.chance import PER_MILLION
from p2pmesh.sim.scenario import DAY_US, MINUTE_US, SECOND_US, Crash, Partition, ranged, required


@dataclass(frozen=True, slots=True)
class RegionLinks:
    """One-way times between regions, and what gossip loses.

    A peer lives in a region with the weight of ``region_weights``. The link of a pair takes ``one_way_us`` of their
    regions, times one entry of ``spread_percent`` for good and plus one of ``jitter_percent`` of it each time: tables
    of equally likely values, which hold any distribution (the defaults are about lognormal) in whole numbers.
    ``drop``, ``duplicate``: gossip, per receipt. ``probe_drop``: a probe or its answer.
    """

    region_weights: tuple[int, ...] = ranged((45, 35, 20), 0, 1_000_000)
    one_way_us: tuple[tuple[int, ...], ...] = ranged(
        ((12_000, 48_000, 95_000), (48_000, 20_000, 85_000), (95_000, 85_000, 28_000)), 1, 60 * SECOND_US
    )
    spread_percent: tuple[int, ...] = ranged((55, 68, 77, 86, 95, 105, 117, 131, 153, 213), 1, 10_000)
    jitter_percent: tuple[int, ...] = ranged((0, 1, 1, 2, 3, 5, 8, 14, 30, 120), 0, 100_000)
    drop: int = ranged(1_000, 0, PER_MILLION)
    duplicate: int = ranged(0, 0, PER_MILLION)
    probe_drop: int = ranged(1_000, 0, PER_MILLION)


@dataclass(frozen=True, slots=True)
class OverlayPopulation:
    """The peers. ``nat``: those whom nobody can dial; they are clients of the DHT and are reached through relays.

    ``lying``: those that announce a model which they cannot serve. ``serving``: those that serve one of ``models``
    from their start. Peers start evenly over ``start_window_us``; 0: the overlay stands already, cut into
    shards, and each peer knows its own.
    """

    start_window_us: int = ranged(0, 0, DAY_US)
    nat: int = ranged(300_000, 0, 900_000)
    lying: int = ranged(0, 0, 900_000)
    serving: int = ranged(200_000, 0, PER_MILLION)
    models: int = ranged(50, 1, 10_000)


@dataclass(frozen=True, slots=True)
class Searches:
    """Every ``every_us`` from ``from_us`` on, a live peer announces a model that nobody had; ``seekers`` live peers
    look for it, each starting at a moment of its own in the 20 s after the announcement, then every 10 s."""

    from_us: int = ranged(10 * MINUTE_US, 0, DAY_US)
    every_us: int = ranged(MINUTE_US, SECOND_US, DAY_US)
    seekers: int = ranged(20, 1, 1000)


@dataclass(frozen=True, slots=True)
class Turnover:
    """Between two moments, ``per_hour`` of the peers go at moments of their own.

    ``leaving`` of them say so, the others crash. ``returning`` come back under the same key after ``down_us``; for
    each of the others a peer with a new key starts after as long.
    """

    from_us: int = required(0, DAY_US)
    until_us: int = required(0, DAY_US)
    per_hour: int = required(0, 10 * PER_MILLION)
    leaving: int = ranged(300_000, 0, PER_MILLION)
    returning: int = ranged(500_000, 0, PER_MILLION)
    down_us: int = ranged(2 * MINUTE_US, 0, DAY_US)


@dataclass(frozen=True, slots=True)
class Restart:
    """``share`` of the peers crash at once and are back under the same key after ``down_us``."""

    at_us: int = required(0, DAY_US)
    share: int = required(0, PER_MILLION)
    down_us: int = required(0, DAY_US)


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clocks of ``share`` of the peers go wrong by ``step_us``, for good."""

    at_us: int = required(0, DAY_US)
    share: int = required(0, PER_MILLION)
    step_us: int = required(-DAY_US, DAY_US)


@dataclass(frozen=True, slots=True)
class Slow:
    """For a while, every way to ``share`` of the peers takes ``delay_us`` longer."""

    at_us: int = required(0, DAY_US)
    until_us: int = required(0, DAY_US)
    share: int = required(0, PER_MILLION)
    delay_us: int = required(0, MINUTE_US)


@dataclass(frozen=True, slots=True)
class Loss:
    """For a while, gossip and probes are lost and gossip is doubled more often."""

    at_us: int = required(0, DAY_US)
    until_us: int = required(0, DAY_US)
    drop: int = required(0, PER_MILLION)
    duplicate: int = ranged(0, 0, PER_MILLION)
    probe_drop: int = ranged(0, 0, PER_MILLION)


@dataclass(frozen=True, slots=True)
class FalseReports:
    """``share`` of the peers say every ``every_us`` that a live peer of their view is down."""

    at_us: int = required(0, DAY_US)
    until_us: int = required(0, DAY_US)
    share: int = required(0, PER_MILLION)
    every_us: int = required(SECOND_US, DAY_US)


@dataclass(frozen=True, slots=True)
class Sybils:
    """One admitted peer makes up ``count`` identities and gossips them in its shard; it answers probes for them."""

    at_us: int = required(0, DAY_US)
    count: int = required(1, 10_000)


@dataclass(frozen=True, slots=True)
class Eclipse:
    """The same, with identities that were searched for until they fell into the shard of one victim."""

    at_us: int = required(0, DAY_US)
    count: int = required(1, 1000)


OverlayFault = (
    Crash | Partition | Turnover | Restart | ClockStep | Slow | Loss | FalseReports | Sybils | Eclipse
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OverlayScenario:
    """All that a simulation depends on, beside the seed. ``peers`` is what is simulated unless told otherwise."""

    name: str
    duration_us: int = required(1, DAY_US)
    peers: int = ranged(1000, 2, 50_000)
    links: RegionLinks = RegionLinks()
    population: OverlayPopulation = OverlayPopulation()
    searches: Searches = Searches()
    faults: tuple[OverlayFault, ...] = ()
    about: str = ""
