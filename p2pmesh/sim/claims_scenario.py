"""Scenarios of the world ``claims``: models whose coordinators crash, part, and measure time differently.

Numbers and their ranges as in ``sim.scenario``, whose faults are used too.
"""

from dataclasses import dataclass

from p2pmesh.sim.scenario import DAY_US, SECOND_US, Churn, Crash, Partition, ranged, required

ClaimsFault = Crash | Churn | Partition


@dataclass(frozen=True, slots=True)
class ClaimsScenario:
    """``holders`` peers were given each of the ``models``; its runs of ``stages`` stages are placed on ``pool`` peers.

    Messages take ``latency_us`` and up to ``jitter_us``; ``drop`` of a million are lost. Clocks run up to ``drift``
    per million fast or slow. ``detect_us`` passes until a neighbour notices that a stage is gone, ``load_us`` until a
    run is loaded and proved.
    """

    name: str
    duration_us: int = required(1, DAY_US)
    peers: int = ranged(100, 2, 10_000)
    models: int = ranged(10, 1, 1000)
    holders: int = ranged(2, 1, 16)
    stages: int = ranged(3, 1, 16)
    pool: int = ranged(6, 1, 64)
    latency_us: int = ranged(20_000, 0, SECOND_US)
    jitter_us: int = ranged(100_000, 0, 10 * SECOND_US)
    drop: int = ranged(0, 0, 1_000_000)
    drift: int = ranged(40_000, 0, 50_000)
    detect_us: int = ranged(1_000_000, 0, DAY_US)
    load_us: int = ranged(3 * SECOND_US, 0, DAY_US)
    faults: tuple[ClaimsFault, ...] = ()
    about: str = ""
