"""Scenarios as data: who takes part, links, faults, models. Times in microseconds, sizes in bytes, shares per million.

There are three worlds. ``runs`` (``sim.world``) holds few peers that are all connected, and looks at pipelines and
their requests. ``overlay`` (``sim.overlay``) holds many peers that know each other in part, and looks at the control
plane. ``claims`` (``sim.claims_world``) looks at who coordinates models. Every number has its range beside it;
``sim.scenario_file`` reads records out of TOML and holds them to it.
"""

from dataclasses import dataclass, field
from typing import Any

from p2pmesh.base.quantities import GIB
from p2pmesh.sim.chance import PER_MILLION

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 24 * 60 * MINUTE_US
MAX_SIMULATED_PEERS = 100_000


def ranged(default: Any, low: int, high: int) -> Any:
    """A field for a whole number, or for rows of them, in ``[low, high]``."""
    return field(default=default, metadata={"range": (low, high)})


def required(low: int, high: int) -> Any:
    """The same without a default."""
    return field(metadata={"range": (low, high)})


def _share(default: int = 0) -> Any:
    return ranged(default, 0, PER_MILLION)


def _time(default: int = 0) -> Any:
    return ranged(default, 0, DAY_US)


def _moment() -> Any:
    return required(0, DAY_US)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A link's one-way time is ``latency_us``, up to ``spread_us`` by distance, up to ``jitter_us`` by chance.

    ``drop`` and ``duplicate`` are per million gossiped announcements and receiver, ``reset`` per million frames on a
    stage stream. ``detect_us`` passes until the other end of a broken connection notices.
    """

    latency_us: int = _time(5_000)
    spread_us: int = _time(60_000)
    jitter_us: int = _time(5_000)
    drop: int = _share()
    duplicate: int = _share()
    reset: int = _share()
    detect_us: int = _time(3 * SECOND_US)


@dataclass(frozen=True, slots=True)
class PopulationModel:
    """Who takes part. Each peer dials ``degree`` others; ``foreign``, ``silent`` and ``lying`` are per million peers.

    A foreign peer has no valid invite, a silent one never says hello, a lying one offers memory it has not.
    """

    degree: int = ranged(4, 1, 64)
    start_window_us: int = _time(4 * SECOND_US)
    redial_us: int = ranged(5 * SECOND_US, SECOND_US // 10, DAY_US)
    foreign: int = _share()
    silent: int = _share()
    lying: int = _share()
    free_bytes: int = ranged(4 * GIB, 1, 1024 * GIB)
    slowness: int = ranged(4, 1, 1000)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The model that peer 0 coordinates, and its requests once it serves; 0 layers: none."""

    layers: int = ranged(32, 0, 1024)
    layer_bytes: int = ranged(GIB // 4, 4, 1024 * GIB)
    stage_count: int | None = ranged(3, 1, 64)
    plan_at_us: int = _time(8 * SECOND_US)
    load_us: int = _time(SECOND_US // 2)
    layer_token_us: int = ranged(10, 1, SECOND_US)
    request_every_us: int = ranged(SECOND_US // 2, 1000, DAY_US)
    max_prompt_tokens: int = ranged(1500, 1, 100_000)
    max_tokens: int = ranged(24, 1, 100_000)
    cancelled: int = _share(50_000)


@dataclass(frozen=True, slots=True)
class Crash:
    """A peer dies at once and, if ``down_us`` is given, starts again after it under the same key."""

    at_us: int = _moment()
    number: int = required(0, MAX_SIMULATED_PEERS - 1)
    down_us: int | None = ranged(None, 0, DAY_US)


@dataclass(frozen=True, slots=True)
class Churn:
    """Every ``every_us`` a peer other than 0, by chance, crashes for ``down_us``."""

    every_us: int = required(1000, DAY_US)
    down_us: int = _moment()


@dataclass(frozen=True, slots=True)
class Partition:
    """Until ``until_us``, peers numbered below ``boundary_percent`` of all and the others do not reach each other."""

    at_us: int = _moment()
    until_us: int = _moment()
    boundary_percent: int = required(0, 100)


@dataclass(frozen=True, slots=True)
class StageLoss:
    """The peer of stage ``index`` of the run that stands at ``at_us`` crashes."""

    at_us: int = _moment()
    index: int = required(0, 63)


Fault = Crash | Churn | Partition | StageLoss


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a simulation depends on, beside the number of peers and the seed."""

    name: str
    duration_us: int = required(1, DAY_US)
    links: LinkModel = LinkModel()
    population: PopulationModel = PopulationModel()
    model: ModelLoad = ModelLoad()
    faults: tuple[Fault, ...] = ()
    about: str = ""
