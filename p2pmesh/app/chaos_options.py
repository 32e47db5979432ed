"""What ``p2pmesh chaos`` was asked to do, checked once; what each fault does is ``app.chaos_faults``'."""

from dataclasses import dataclass
from pathlib import Path

from p2pmesh.app.option_checks import check_range, invalid
from p2pmesh.base.quantities import GIB

CHAOS_FAULTS = (
    "kill-node", "leave", "kill-engine", "freeze", "freeze-engine", "slow", "partition", "silent-link", "cut-link",
    "corrupt", "lie",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What ``p2pmesh chaos`` was asked to do. ``is_matrix``: one fault a request, at each stage and position.

    Of those ``cases`` many are chosen, None means all.
    """

    home: Path
    model: str | None = None
    stages: int = 3
    spares: int = 1
    requests: int = 50
    tokens: int = 64
    parallel: int = 2
    every_s: float = 10.0
    faults: tuple[str, ...] = CHAOS_FAULTS
    seed: int = 0
    is_matrix: bool = False
    positions: int = 20
    is_json: bool = False
    peer_memory_bytes: int = 4 * GIB
    cases: int | None = None

    def __post_init__(self) -> None:
        check_range("--stages", self.stages, 1, 16)
        check_range("--spares", self.spares, 0, 16)
        check_range("--requests", self.requests, 1, 100_000)
        check_range("--tokens", self.tokens, 2, 2048)
        check_range("--parallel", self.parallel, 1, 64)
        check_range("--every", int(self.every_s), 1, 3600)
        check_range("--positions", self.positions, 1, 1000)
        if self.cases is not None:
            check_range("--cases", self.cases, 1, 100_000)
        if self.peer_memory_bytes < 0:
            raise invalid("--peer-memory must not be negative")
        for name in self.faults:
            if name not in CHAOS_FAULTS:
                raise invalid(f"--faults {name}: there are {', '.join(CHAOS_FAULTS)}")
