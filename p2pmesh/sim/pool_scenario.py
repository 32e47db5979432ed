"""Scenarios of the world ``pool``: who lists a public pool on its relays, while publishers die.

Numbers and their ranges as in ``sim.scenario``, whose faults are used too.
"""

from dataclasses import dataclass

from p2pmesh.sim.scenario import DAY_US, SECOND_US, Crash, Partition, ranged, required


@dataclass(frozen=True, slots=True)
class KillPublisher:
    """Every ``every_us`` whoever lists the pool dies without a word, and comes back as another after ``down_us``."""

    every_us: int = required(SECOND_US, DAY_US)
    down_us: int | None = ranged(None, 1, DAY_US)


@dataclass(frozen=True, slots=True)
class RelayOutage:
    """The relays answer nobody and keep what they had."""

    at_us: int = required(0, DAY_US)
    until_us: int = required(1, DAY_US)


PoolFault = Crash | Partition | KillPublisher | RelayOutage


@dataclass(frozen=True, slots=True)
class PoolScenario:
    """All ``peers`` of one public pool watch its listing, the first was told to publish it.

    A relay answers after ``relay_us`` and up to ``jitter_us``, there and back. Members know that one is gone
    ``detect_us`` and up to twice that later; 0: they never do, and only the listing's end tells.
    """

    name: str
    duration_us: int = required(1, DAY_US)
    peers: int = ranged(200, 2, 10_000)
    relay_us: int = ranged(150_000, 0, 10 * SECOND_US)
    jitter_us: int = ranged(300_000, 0, 10 * SECOND_US)
    detect_us: int = ranged(5 * SECOND_US, 0, DAY_US)
    life_us: int = ranged(120 * SECOND_US, SECOND_US, DAY_US)
    faults: tuple[PoolFault, ...] = ()
    about: str = ""
