"""What the invariants look at: the state of a simulation at one moment, as plain records."""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange


@dataclass(frozen=True, slots=True)
class PeerSnapshot:
    """Sizes of a peer's collections."""

    number: int
    admitted: int
    waiting: int
    known: int


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One run. ``effects_to_lost`` counts effects to a stage whose peer's loss the coordinator had noticed before."""

    number: int
    layer_count: int
    ranges: tuple[LayerRange, ...]
    needed_bytes: tuple[int, ...]
    free_bytes: tuple[int, ...]
    effects_to_lost: int


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """One sequence at its driver. ``open_tokens`` are sent and not yet covered by a credit."""

    number: int
    is_live: bool
    ends: int
    effects_after_end: int
    open_tokens: int
    open_tokens_limit: int
    late_us: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole simulation."""

    now_us: int
    peers: tuple[PeerSnapshot, ...]
    runs: tuple[RunSnapshot, ...]
    sequences: tuple[SequenceSnapshot, ...]
