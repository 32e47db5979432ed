"""Scenarios of the world ``models``: which models are served where, by the planner's own machines, while peers churn.

Numbers and their ranges as in ``sim.scenario``, whose faults are used too; links as in ``sim.overlay_scenario``.
"""

from dataclasses import dataclass

from p2pmesh.base.quantities import GIB
from p2pmesh.sim.chance import PER_MILLION
from p2pmesh.sim.overlay_scenario import RegionLinks
from p2pmesh.sim.scenario import DAY_US, MINUTE_US, SECOND_US, Churn, Crash, Partition, ranged, required


@dataclass(frozen=True, slots=True)
class Leave:
    """Every ``every_us`` a peer says that it goes, and does not come back."""

    every_us: int = required(1000, DAY_US)


@dataclass(frozen=True, slots=True)
class Join:
    """Every ``every_us`` a peer starts that was never there."""

    every_us: int = required(1000, DAY_US)


ModelsFault = Crash | Churn | Partition | Leave | Join


@dataclass(frozen=True, slots=True)
class HostMix:
    """What peers are like: rows of (GiB of memory, GB/s that decoding reads, weight), times 60 to 120 %.

    ``nat``: those whom nobody can dial; two of them meet through a relay. ``lying``: those that offer memory which they
    have not. Per million peers.
    """

    rows: tuple[tuple[int, ...], ...] = ranged(
        ((4, 8, 25), (8, 12, 30), (16, 25, 20), (12, 250, 8), (24, 400, 10), (32, 60, 5), (80, 900, 2)), 1, 1_000_000
    )
    nat: int = ranged(300_000, 0, PER_MILLION)
    lying: int = ranged(10_000, 0, PER_MILLION)


@dataclass(frozen=True, slots=True)
class Loading:
    """A stage is up ``base_us`` after its order, plus its bytes at ``bytes_per_s``; an engine that waits for it is
    taken up in ``take_up_us``."""

    base_us: int = ranged(2 * SECOND_US, 0, DAY_US)
    bytes_per_s: int = ranged(GIB, 1, 1024 * GIB)
    take_up_us: int = ranged(300_000, 0, DAY_US)


@dataclass(frozen=True, slots=True)
class ModelsScenario:
    """Of each of ``models`` ``holders`` peers have the file, and were told to serve it.

    A peer knows ``view`` others; what a peer offers is known ``gossip_us`` later, that it is gone ``forget_us`` later;
    its neighbours in a run notice that after ``detect_us``. Round trips and speeds are measured to within
    ``noise_percent``, anew each minute. ``models_gib`` are rows of (GiB, layers), taken in turn. A driver has had no
    request for a moment within ``longest_request_us``. ``drop`` of a million messages of claims are lost; clocks run up
    to ``drift`` per million fast or slow.
    """

    name: str
    duration_us: int = required(1, DAY_US)
    peers: int = ranged(200, 4, 10_000)
    models: int = ranged(10, 1, 1000)
    holders: int = ranged(3, 1, 16)
    view: int = ranged(256, 2, 10_000)
    models_gib: tuple[tuple[int, ...], ...] = ranged(
        ((2, 26), (4, 32), (5, 32), (8, 36), (14, 48), (18, 60), (20, 64), (26, 46), (32, 64), (40, 80)), 1, 1024
    )
    hosts: HostMix = HostMix()
    links: RegionLinks = RegionLinks()
    loading: Loading = Loading()
    gossip_us: int = ranged(5 * SECOND_US, 0, DAY_US)
    forget_us: int = ranged(10 * SECOND_US, 0, DAY_US)
    detect_us: int = ranged(SECOND_US, 0, DAY_US)
    noise_percent: int = ranged(8, 0, 90)
    longest_request_us: int = ranged(MINUTE_US, 1, DAY_US)
    drop: int = ranged(1_000, 0, PER_MILLION)
    drift: int = ranged(20_000, 0, 50_000)
    faults: tuple[ModelsFault, ...] = ()
    about: str = ""
