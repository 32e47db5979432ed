"""What each ``p2pmesh bench`` was asked to do, checked once; ``model`` None is the demo model."""

from dataclasses import dataclass
from pathlib import Path

from p2pmesh.app.option_checks import MAX_CONTEXT_TOKENS, check_range
from p2pmesh.base.limits import MAX_LANES, MAX_LAYERS, MAX_STAGES


@dataclass(frozen=True, slots=True)
class BenchDecodeOptions:
    """What ``p2pmesh bench decode`` was asked to do; ``model`` None is the demo model."""

    home: Path
    model: str | None = None
    peers: tuple[int, ...] = (1, 2, 3)
    prompt_tokens: int = 64
    decode_tokens: int = 128
    is_json: bool = False

    def __post_init__(self) -> None:
        for count in self.peers:
            check_range("--peers", count, 1, MAX_STAGES)
        check_range("--prompt-tokens", self.prompt_tokens, 1, MAX_CONTEXT_TOKENS)
        check_range("--tokens", self.decode_tokens, 1, MAX_CONTEXT_TOKENS)


@dataclass(frozen=True, slots=True)
class BenchPrefixOptions:
    """What ``p2pmesh bench prefix`` was asked to do; ``model`` None is the demo model."""

    home: Path
    model: str | None = None
    stages: int = 2
    prefix_tokens: int = 1000
    rounds: int = 5
    is_json: bool = False

    def __post_init__(self) -> None:
        check_range("--stages", self.stages, 1, MAX_STAGES)
        check_range("--prefix-tokens", self.prefix_tokens, 1, MAX_CONTEXT_TOKENS)
        check_range("--rounds", self.rounds, 1, 1000)


@dataclass(frozen=True, slots=True)
class BenchTpotOptions:
    """What ``p2pmesh bench tpot`` was asked to do: every number of stages with every delay of a hop, one way."""

    home: Path
    model: str | None = None
    stages: tuple[int, ...] = (1, 2, 3, 4)
    delays_ms: tuple[int, ...] = (0, 10, 40)
    prompt_tokens: int = 64
    tokens: int = 96
    requests: int = 3
    is_json: bool = False

    def __post_init__(self) -> None:
        for count in self.stages:
            check_range("--stages", count, 1, MAX_STAGES)
        for delay_ms in self.delays_ms:
            check_range("--delays", delay_ms, 0, 1000)
        check_range("--prompt-tokens", self.prompt_tokens, 1, MAX_CONTEXT_TOKENS)
        check_range("--tokens", self.tokens, 2, MAX_CONTEXT_TOKENS)
        check_range("--requests", self.requests, 1, 1000)


@dataclass(frozen=True, slots=True)
class BenchStreamsOptions:
    """What ``p2pmesh bench streams`` was asked to do: so many clients at once, each number of them in turn."""

    home: Path
    model: str | None = None
    streams: tuple[int, ...] = (16, 64)
    stages: int = 2
    lanes: int = 16
    prompt_tokens: int = 64
    tokens: int = 64
    context_tokens: int = 512
    llama_server: Path | None = None
    rounds: int = 1
    is_json: bool = False

    def __post_init__(self) -> None:
        for count in self.streams:
            check_range("--streams", count, 1, 256)
        check_range("--rounds", self.rounds, 1, 100)
        check_range("--stages", self.stages, 1, MAX_STAGES)
        check_range("--lanes", self.lanes, 1, MAX_LANES)
        check_range("--prompt-tokens", self.prompt_tokens, 1, MAX_CONTEXT_TOKENS)
        check_range("--tokens", self.tokens, 2, MAX_CONTEXT_TOKENS)
        check_range("--ctx-size", self.context_tokens, self.prompt_tokens + self.tokens, MAX_CONTEXT_TOKENS)


@dataclass(frozen=True, slots=True)
class BenchApiOptions:
    """What ``p2pmesh bench api`` was asked to do."""

    home: Path
    model: str | None = None
    stages: int = 1
    prompt_tokens: int = 64
    tokens: int = 256
    rounds: int = 5
    is_json: bool = False

    def __post_init__(self) -> None:
        check_range("--stages", self.stages, 1, MAX_STAGES)
        check_range("--prompt-tokens", self.prompt_tokens, 1, MAX_CONTEXT_TOKENS)
        check_range("--tokens", self.tokens, 2, MAX_CONTEXT_TOKENS)
        check_range("--rounds", self.rounds, 1, 1000)


@dataclass(frozen=True, slots=True)
class BenchOverlayOptions:
    """What ``p2pmesh bench overlay`` was asked to do."""

    peers: int = 30
    minutes: int = 5
    is_json: bool = False

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, 2, 64)
        check_range("--minutes", self.minutes, 1, 24 * 60)


@dataclass(frozen=True, slots=True)
class BenchPlannerOptions:
    """What ``p2pmesh bench planner`` was asked to do."""

    peers: int = 64
    layers: int = 128

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, 1, 1024)
        check_range("--layers", self.layers, 1, MAX_LAYERS)


@dataclass(frozen=True, slots=True)
class BenchDiscoveryOptions:
    """What ``p2pmesh bench discovery`` was asked to do: so many pools listed, ``dead`` of them not there."""

    pools: int = 20
    dead: int = 15
    rounds: int = 5
    is_json: bool = False

    def __post_init__(self) -> None:
        check_range("--pools", self.pools, 1, 500)
        check_range("--dead", self.dead, 0, self.pools - 1)
        check_range("--rounds", self.rounds, 1, 1000)
