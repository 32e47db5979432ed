"""Scenarios as data: peers, links, faults, the model and its requests. Times in microseconds, sizes in bytes."""

from dataclasses import dataclass

from p2pmesh.base.quantities import GIB

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A link's one-way time is ``latency_us``, up to ``spread_us`` by distance, up to ``jitter_us`` by chance.

    ``drop`` and ``duplicate`` are per million gossiped announcements and receiver, ``reset`` per million frames on a
    stage stream. ``detect_us`` passes until the other end of a broken connection notices.
    """

    latency_us: int = 5_000
    spread_us: int = 60_000
    jitter_us: int = 5_000
    drop: int = 0
    duplicate: int = 0
    reset: int = 0
    detect_us: int = 3 * SECOND_US


@dataclass(frozen=True, slots=True)
class PopulationModel:
    """Who takes part. Each peer dials ``degree`` others; ``foreign``, ``silent`` and ``lying`` are per million peers.

    A foreign peer has no valid invite, a silent one never says hello, a lying one offers memory it has not.
    """

    degree: int = 4
    start_window_us: int = 4 * SECOND_US
    redial_us: int = 5 * SECOND_US
    foreign: int = 0
    silent: int = 0
    lying: int = 0
    free_bytes: int = 4 * GIB
    slowness: int = 4


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The model that peer 0 coordinates, and its requests once it serves; 0 layers: none."""

    layers: int = 32
    layer_bytes: int = GIB // 4
    stage_count: int | None = 3
    plan_at_us: int = 8 * SECOND_US
    load_us: int = SECOND_US // 2
    layer_token_us: int = 10
    request_every_us: int = SECOND_US // 2
    max_prompt_tokens: int = 1500
    max_tokens: int = 24
    cancelled: int = 50_000


@dataclass(frozen=True, slots=True)
class Crash:
    """A peer dies at once and, if ``down_us`` is given, starts again after it under the same key."""

    at_us: int
    number: int
    down_us: int | None = None


@dataclass(frozen=True, slots=True)
class Churn:
    """Every ``every_us`` a peer other than 0, by chance, crashes for ``down_us``."""

    every_us: int
    down_us: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Until ``until_us``, peers numbered below ``boundary_percent`` of all and the others do not reach each other."""

    at_us: int
    until_us: int
    boundary_percent: int


@dataclass(frozen=True, slots=True)
class StageLoss:
    """The peer of stage ``index`` of the run that stands at ``at_us`` crashes."""

    at_us: int
    index: int


Fault = Crash | Churn | Partition | StageLoss


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a simulation depends on, beside the number of peers and the seed."""

    name: str
    duration_us: int
    links: LinkModel = LinkModel()
    population: PopulationModel = PopulationModel()
    model: ModelLoad = ModelLoad()
    faults: tuple[Fault, ...] = ()


_ALL = (
    Scenario("calm", 30 * SECOND_US),
    Scenario(
        "lossy",
        60 * SECOND_US,
        links=LinkModel(jitter_us=80_000, drop=200_000, duplicate=100_000, reset=200),
        population=PopulationModel(foreign=50_000, silent=50_000, lying=100_000),
    ),
    Scenario("churn", 60 * SECOND_US, faults=(Churn(SECOND_US, 10 * SECOND_US),)),
    Scenario("partition", 90 * SECOND_US, faults=(Partition(20 * SECOND_US, 50 * SECOND_US, 50),)),
    Scenario(
        "stage-loss", 60 * SECOND_US, faults=(StageLoss(25 * SECOND_US, 1), StageLoss(40 * SECOND_US, 2))
    ),
    Scenario("coordinator-loss", 60 * SECOND_US, faults=(Crash(25 * SECOND_US, 0, 5 * SECOND_US),)),
)  # fmt: skip

SCENARIOS = {scenario.name: scenario for scenario in _ALL}
