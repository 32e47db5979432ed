"""Where the layers of a model go: a total function of exact bytes and the peers at hand.

Fewest peers that fit; the coordinator holds stage 0 unless it holds nothing; within that, the cut that fills the
fullest peer least. Links and compute speed are not weighed yet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.quantities import format_size


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Bytes a stage needs: the sum over its layers, what the ends add, and what every stage adds.

    ``cuts`` are the layer indices at which the family may be cut, ascending, within ``1 … layer_count - 1``.
    ``is_permitted`` refuses ranges that the family cannot run although both their ends are permitted cuts.
    """

    layer_bytes: tuple[int, ...]
    first_bytes: int
    last_bytes: int
    stage_bytes: int
    cuts: tuple[int, ...]
    is_permitted: Callable[[LayerRange], bool] = lambda _: True

    @property
    def layer_count(self) -> int:
        """Layers of the whole model."""
        return len(self.layer_bytes)

    def bytes_of(self, layers: LayerRange) -> int:
        """Memory that a peer needs to hold ``layers``."""
        size = sum(self.layer_bytes[layers.start : layers.end]) + self.stage_bytes
        if layers.is_first():
            size += self.first_bytes
        if layers.is_last(self.layer_count):
            size += self.last_bytes
        return size


@dataclass(frozen=True, slots=True)
class CandidatePeer:
    """A peer and the bytes that it offers now."""

    peer_id: PeerId
    free_bytes: int


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """``stage_count`` None is automatic; otherwise exactly so many stages on so many peers."""

    cost: ModelCost
    coordinator: CandidatePeer
    others: tuple[CandidatePeer, ...]
    stage_count: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A layer range on a peer, and what it takes of what the peer offers."""

    peer_id: PeerId
    layers: LayerRange
    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Stages in order; they tile the layers."""

    stages: tuple[PlannedStage, ...]


class PlacementReason(StrEnum):
    """Why there is no placement."""

    NO_MEMORY_OFFERED = "no_memory_offered"
    TOO_FEW_PEERS = "too_few_peers"
    TOO_FEW_LAYERS = "too_few_layers"
    NO_PERMITTED_CUT = "no_permitted_cut"
    MEMORY_SHORT = "memory_short"


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """A reason, the numbers, and whether more peers could help."""

    reason: PlacementReason
    text: str
    could_peers_help: bool


def plan_placement(request: PlacementRequest) -> Placement | PlacementRefusal:
    """The placement, or why there is none. The order of ``others`` does not matter."""
    givers = _givers(request)
    if not givers:
        return PlacementRefusal(
            PlacementReason.NO_MEMORY_OFFERED, "no peer offers memory; start one without --max-memory 0", True
        )
    wanted = request.stage_count
    if wanted is not None and wanted > request.cost.layer_count:
        text = f"{wanted} stages of {request.cost.layer_count} layers; ask for fewer"
        return PlacementRefusal(PlacementReason.TOO_FEW_LAYERS, text, False)
    if wanted is not None and wanted > len(givers):
        short = wanted - len(givers)
        text = f"{wanted} stages need {wanted} peers with memory, {len(givers)} are here; start {short} more"
        return PlacementRefusal(PlacementReason.TOO_FEW_PEERS, text, True)
    counts = range(1, min(len(givers), request.cost.layer_count) + 1) if wanted is None else (wanted,)
    for count in counts:
        stages = _cut(request.cost, givers[:count])
        if stages is not None:
            return Placement(stages)
    return _explain_shortage(request.cost, givers, wanted)


def _givers(request: PlacementRequest) -> tuple[CandidatePeer, ...]:
    """Peers that offer memory: the coordinator first, then the largest, ties by peer id."""
    others = sorted(
        (peer for peer in request.others if peer.free_bytes > 0 and peer.peer_id != request.coordinator.peer_id),
        key=lambda peer: (-peer.free_bytes, peer.peer_id),
    )
    head = (request.coordinator,) if request.coordinator.free_bytes > 0 else ()
    return (*head, *others)


def _cut(cost: ModelCost, peers: tuple[CandidatePeer, ...]) -> tuple[PlannedStage, ...] | None:
    """Cuts for these peers in this order that fill the fullest least; None if nothing fits.

    Dynamic programming over (stages placed, layer reached); fractions are exact, the earlier cut wins a tie.
    """
    ends = (*cost.cuts, cost.layer_count)
    reached: dict[int, tuple[Fraction, tuple[LayerRange, ...]]] = {0: (Fraction(0), ())}
    for number, peer in enumerate(peers, start=1):
        is_last_peer = number == len(peers)
        following: dict[int, tuple[Fraction, tuple[LayerRange, ...]]] = {}
        for start in sorted(reached):
            fullest, ranges = reached[start]
            for end in ends:
                if end <= start or is_last_peer != (end == cost.layer_count):
                    continue
                layers = LayerRange(start, end)
                fill = Fraction(cost.bytes_of(layers), peer.free_bytes)
                if fill > 1 or not cost.is_permitted(layers):
                    continue
                option = (max(fullest, fill), (*ranges, layers))
                if end not in following or option[0] < following[end][0]:
                    following[end] = option
        reached = following
    best = reached.get(cost.layer_count)
    if best is None:
        return None
    return tuple(
        PlannedStage(peer.peer_id, layers, cost.bytes_of(layers), peer.free_bytes)
        for peer, layers in zip(peers, best[1], strict=True)
    )


def _explain_shortage(cost: ModelCost, givers: tuple[CandidatePeer, ...], wanted: int | None) -> PlacementRefusal:
    whole = cost.bytes_of(LayerRange(0, cost.layer_count))
    offered = sum(peer.free_bytes for peer in givers)
    if wanted is not None and wanted - 1 > len(cost.cuts):
        text = f"{wanted} stages need {wanted - 1} cuts, this family permits {len(cost.cuts)}"
        return PlacementRefusal(PlacementReason.NO_PERMITTED_CUT, text, False)
    text = (
        f"the model needs {format_size(whole)} (context and lanes included), {len(givers)} peers offer "
        f"{format_size(offered)}; add a peer, raise --max-memory, or lower --ctx-size or --lanes"
    )
    return PlacementRefusal(PlacementReason.MEMORY_SHORT, text, wanted is None)
