"""What the planner answers: stages with their predicted cost, what else was possible, and why there is no placement."""

from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.ids import LayerRange, PeerId

Numbers = tuple[tuple[str, int], ...]
"""What a refusal rests on, each figure by a name that ends in its unit or says what is counted; each name once."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A layer range on a peer, and what it takes of what the peer offers."""

    peer_id: PeerId
    layers: LayerRange
    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Predicted time of one decoded token of one sequence, by part, in microseconds.

    ``network_us`` is the sum of one-way latencies round the ring, ``transfer_us`` what the activations' bytes add,
    ``overhead_us`` everything else of the hops and of the step. ``max_hop_us`` is the longest hop. Of ``compute_us``
    ``cache_us`` is the read of the KV cache, for a token at the position that the model was planned with.
    """

    compute_us: int
    network_us: int
    transfer_us: int
    overhead_us: int
    max_hop_us: int
    stage_count: int
    target_us: int
    cache_us: int = 0

    @property
    def tpot_us(self) -> int:
        """Time per output token."""
        return self.compute_us + self.network_us + self.transfer_us + self.overhead_us

    @property
    def estimated_decode_network_ms_per_token(self) -> float:
        """Upstream's rougher figure: the longest one-way hop times the stages."""
        return self.max_hop_us * self.stage_count / 1000

    @property
    def decode_tpot_target_met(self) -> bool:
        """Whether the whole step, compute included, is within the target."""
        return self.tpot_us <= self.target_us


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What was measured of a run once it was loaded, in microseconds.

    ``decode_us`` is what a token takes in the engine of each stage; ``ring_us`` is a whole step, of a few tokens that
    were sent round before anybody was served; 0: not measured.
    """

    decode_us: tuple[int, ...]
    ring_us: int = 0


class WhyNot(StrEnum):
    """Why another placement was not chosen."""

    MORE_PEERS = "more_peers"
    ANOTHER_DRIVER = "another_driver"
    SLOWER = "slower"
    SMALLER_CONTEXT = "smaller_context"
    MORE_TO_FETCH = "more_to_fetch"
    FULLER = "fuller"


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """Another placement that fits, what it would have cost, and why it is not the one."""

    stages: tuple[PlannedStage, ...]
    estimate: StepEstimate
    why_not: WhyNot


class PeerReason(StrEnum):
    """Why a peer holds no stage."""

    EXCLUDED = "excluded_by_owner"
    NO_MEMORY = "no_memory_offered"
    TOO_SMALL = "too_small"
    NOT_NEEDED = "not_needed"
    NOT_ENOUGH = "not_enough_together"
    UNTRUSTED = "of_lower_rank"
    SPARED = "spared"


@dataclass(frozen=True, slots=True)
class PeerRefusal:
    """A peer that holds no stage, the reason, its numbers in one line, and the same for programs."""

    peer_id: PeerId
    reason: PeerReason
    text: str
    numbers: Numbers = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Stages in order; they tile the layers. ``unused`` are the peers without one, by peer id."""

    stages: tuple[PlannedStage, ...]
    context_tokens: int
    lanes: int
    estimate: StepEstimate
    runner_ups: tuple[RunnerUp, ...] = ()
    unused: tuple[PeerRefusal, ...] = ()


class PlacementReason(StrEnum):
    """Why there is no placement."""

    NO_MEMORY_OFFERED = "no_memory_offered"
    TOO_FEW_PEERS = "too_few_peers"
    TOO_FEW_LAYERS = "too_few_layers"
    NO_PERMITTED_CUT = "no_permitted_cut"
    MEMORY_SHORT = "memory_short"
    WIRE_DTYPE_UNCERTIFIED = "wire_dtype_uncertified"


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """A reason with its numbers, for people and for programs; whether more peers could help; what each peer lacks."""

    reason: PlacementReason
    text: str
    could_peers_help: bool
    peers: tuple[PeerRefusal, ...] = ()
    numbers: Numbers = ()
