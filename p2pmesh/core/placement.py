"""Where the layers of a model go: a total function of exact bytes and the peers at hand.

Fewest peers that fit; the coordinator holds stage 0 unless it holds nothing; within that, the order of stages round
which a token travels shortest, to the millisecond, and then the cut that fills the fullest peer least. Which peers:
the coordinator and the largest others, of equal ones the nearer. Every order of up to ``MAX_ORDERED_PEERS`` others is
tried; more of them stand from the largest to the smallest, which may miss a fit that another order has. A link is a
cost only: an unknown or slow one refuses nobody. Which peers by their links, throughput and compute speed are not
weighed yet.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.limits import MAX_STAGES
from p2pmesh.base.quantities import format_size
from p2pmesh.core.links import NO_LINKS, LinkMatrix

MAX_ORDERED_PEERS = 3
MICROS_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class PlacementCost:
    """Bytes a stage needs: the sum over its layers, what the ends add, and what every stage adds.

    ``whole_saves_bytes`` is what a stage that is first and last need not hold twice (a tied embedding).
    ``cuts`` are the layer indices at which the family may be cut, ascending, within ``1 … layer_count - 1``.
    ``is_permitted`` refuses ranges that the family cannot run although both their ends are permitted cuts.
    ``wire_cuts`` are those at which the wire dtype may be used, None all; ``wire_reason`` says why not at others.
    """

    layer_bytes: tuple[int, ...]
    first_bytes: int
    last_bytes: int
    stage_bytes: int
    cuts: tuple[int, ...]
    is_permitted: Callable[[LayerRange], bool] = lambda _: True
    whole_saves_bytes: int = 0
    wire_cuts: frozenset[int] | None = None
    wire_reason: str = ""

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
        if layers.is_first() and layers.is_last(self.layer_count):
            size -= self.whole_saves_bytes
        return size


@dataclass(frozen=True, slots=True)
class CandidatePeer:
    """A peer and the bytes that it offers now; peers of ``rank`` 0 come before all others."""

    peer_id: PeerId
    free_bytes: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """``stage_count`` None is automatic; otherwise exactly so many stages (at least 1) on so many peers.

    A peer that stands twice among ``others``, or there beside being the coordinator, counts once. ``links`` tells what
    is known of the link between any two of them.
    """

    cost: PlacementCost
    coordinator: CandidatePeer
    others: tuple[CandidatePeer, ...]
    stage_count: int | None = None
    links: LinkMatrix = NO_LINKS

    def __post_init__(self) -> None:
        if self.stage_count is not None and self.stage_count < 1:
            raise ValueError(f"{self.stage_count} stages hold no model")


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
    WIRE_DTYPE_UNCERTIFIED = "wire_dtype_uncertified"


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """A reason, the numbers, and whether more peers could help."""

    reason: PlacementReason
    text: str
    could_peers_help: bool


def plan_placement(request: PlacementRequest) -> Placement | PlacementRefusal:
    """The placement, or why there is none. The order of ``others`` does not matter.

    A wire dtype that is not certified at a cut leaves it out. It is the reason of a refusal where every cut would give
    a placement, or a hope of one.
    """
    cost = request.cost
    if cost.wire_cuts is None:
        return _plan_by_rank(request)
    cuts = tuple(cut for cut in cost.cuts if cut in cost.wire_cuts)
    planned = _plan_by_rank(replace(request, cost=replace(cost, cuts=cuts)))
    if isinstance(planned, Placement):
        return planned
    otherwise = _plan_by_rank(request)
    if isinstance(otherwise, Placement) or (otherwise.could_peers_help and not planned.could_peers_help):
        return PlacementRefusal(PlacementReason.WIRE_DTYPE_UNCERTIFIED, cost.wire_reason, False)
    return planned


def _plan_by_rank(request: PlacementRequest) -> Placement | PlacementRefusal:
    """Peers of rank 0 hold the model alone if they can; if not, rank does not count, since a small peer of rank 0 could
    otherwise stand in the way of larger ones.
    """
    preferred = tuple(peer for peer in request.others if peer.rank == 0)
    if len(preferred) < len(request.others):
        planned = _plan(replace(request, others=preferred))
        if isinstance(planned, Placement):
            return planned
    return _plan(request)


def _plan(request: PlacementRequest) -> Placement | PlacementRefusal:
    givers = _givers(request)
    refusal = _refuse_at_once(request, givers)
    if refusal is not None:
        return refusal
    table = _CutTable(request.cost)
    stages = _first_fit(table, givers, request)
    return Placement(stages) if stages is not None else _explain_shortage(table, givers, request)


def _givers(request: PlacementRequest) -> tuple[CandidatePeer, ...]:
    """Peers that offer memory: the coordinator first, then the largest, of these the nearest, ties by peer id."""
    here = request.coordinator.peer_id
    by_id = {peer.peer_id: peer for peer in sorted(request.others, key=lambda peer: -peer.free_bytes)}
    others = sorted(
        (peer for peer in by_id.values() if peer.free_bytes > 0 and peer.peer_id != here),
        key=lambda peer: (-peer.free_bytes, request.links.one_way_us(here, peer.peer_id), peer.peer_id),
    )
    head = (request.coordinator,) if _coordinator_gives(request) else ()
    return (*head, *others)


def _coordinator_gives(request: PlacementRequest) -> bool:
    return request.coordinator.free_bytes > 0


def _most_stages(request: PlacementRequest) -> int:
    """Stages that the layers, the cuts and the protocol allow, or the number that was asked for."""
    cost = request.cost
    return request.stage_count or min(cost.layer_count, len(cost.cuts) + 1, MAX_STAGES)


def _refuse_at_once(request: PlacementRequest, givers: tuple[CandidatePeer, ...]) -> PlacementRefusal | None:
    """Refusals that counting alone gives; those that no peer can mend come first."""
    wanted = request.stage_count
    cost = request.cost
    if wanted is not None and wanted > min(cost.layer_count, MAX_STAGES):
        text = f"{wanted} stages of {cost.layer_count} layers, of at most {MAX_STAGES} stages; ask for fewer"
        return PlacementRefusal(PlacementReason.TOO_FEW_LAYERS, text, False)
    if wanted is not None and wanted - 1 > len(cost.cuts):
        text = f"{wanted} stages need {wanted - 1} cuts, this family permits {len(cost.cuts)}; ask for fewer"
        return PlacementRefusal(PlacementReason.NO_PERMITTED_CUT, text, False)
    if not givers:
        text = "no peer offers memory (0 B in all); start one without --max-memory 0"
        return PlacementRefusal(PlacementReason.NO_MEMORY_OFFERED, text, True)
    if wanted is not None and wanted > len(givers):
        short = wanted - len(givers)
        text = f"{wanted} stages need {wanted} peers with memory, {len(givers)} are here; start {short} more"
        return PlacementRefusal(PlacementReason.TOO_FEW_PEERS, text, True)
    return None


@dataclass(frozen=True, slots=True)
class _Cutting:
    """Where the stages so far end, and how full their fullest peer is: ``needed / free``."""

    ends: tuple[int, ...] = ()
    needed: int = 0
    free: int = 1

    def is_emptier_than(self, other: "_Cutting") -> bool:
        """Exact comparison of two fractions."""
        return self.needed * other.free < other.needed * self.free

    def followed_by(self, end: int, needed: int, free: int) -> "_Cutting":
        """One stage more, up to ``end``."""
        if self.needed * free >= needed * self.free:
            return _Cutting((*self.ends, end), self.needed, self.free)
        return _Cutting((*self.ends, end), needed, free)


class _CutTable:
    """Sizes of all ranges in constant time, and the step of the dynamic programming over (stage, layer reached)."""

    def __init__(self, cost: PlacementCost) -> None:
        self.cost = cost
        self._ends = (*cost.cuts, cost.layer_count)
        self._sums = (0, *itertools.accumulate(cost.layer_bytes))

    def needed_bytes(self, start: int, end: int) -> int:
        """As ``PlacementCost.bytes_of``."""
        needed = self._sums[end] - self._sums[start] + self.cost.stage_bytes
        if start == 0:
            needed += self.cost.first_bytes
        if end == self.cost.layer_count:
            needed += self.cost.last_bytes
        if start == 0 and end == self.cost.layer_count:
            needed -= self.cost.whole_saves_bytes
        return needed

    def extend(self, reached: dict[int, _Cutting], free_bytes: int) -> dict[int, _Cutting]:
        """The best cutting for each layer that one more peer can reach; the earlier cut wins a tie."""
        following: dict[int, _Cutting] = {}
        for start in sorted(reached):
            for end in self._ends[bisect_right(self._ends, start) :]:
                needed = self.needed_bytes(start, end)
                if needed > free_bytes and start > 0:
                    break  # sizes only grow with the end; the whole alone may need less than all but its last layer
                if needed > free_bytes or not self.cost.is_permitted(LayerRange(start, end)):
                    continue
                option = reached[start].followed_by(end, needed, free_bytes)
                if end not in following or option.is_emptier_than(following[end]):
                    following[end] = option
        return following

    def steps(self, free_bytes: tuple[int, ...]) -> Iterator[_Cutting | None]:
        """For one peer, two, three and so on in this order: the best cutting of the whole model, if one fits."""
        reached = {0: _Cutting()}
        for free in free_bytes:
            reached = self.extend(reached, free)
            yield reached.pop(self.cost.layer_count, None)

    def stages(self, peers: tuple[CandidatePeer, ...], cutting: _Cutting) -> tuple[PlannedStage, ...]:
        """The cutting as planned stages."""
        ranges = itertools.starmap(LayerRange, itertools.pairwise((0, *cutting.ends)))
        return tuple(
            PlannedStage(peer.peer_id, layers, self.needed_bytes(layers.start, layers.end), peer.free_bytes)
            for peer, layers in zip(peers, ranges, strict=True)
        )


def _first_fit(
    table: _CutTable, givers: tuple[CandidatePeer, ...], request: PlacementRequest
) -> tuple[PlannedStage, ...] | None:
    """The stages of the smallest number of peers that is allowed and fits."""
    fixed = 1 if _coordinator_gives(request) else 0
    peers = givers[: _most_stages(request)]
    in_order = table.steps(tuple(peer.free_bytes for peer in peers))
    for count, cutting in enumerate(in_order, start=1):
        if request.stage_count not in (None, count):
            continue
        if 1 < count - fixed <= MAX_ORDERED_PEERS:
            stages = _best_order(table, peers[:fixed], peers[fixed:count], request.links)
        else:
            stages = table.stages(peers[:count], cutting) if cutting is not None else None
        if stages is not None:
            return stages
    return None


def _best_order(
    table: _CutTable, head: tuple[CandidatePeer, ...], others: tuple[CandidatePeer, ...], links: LinkMatrix
) -> tuple[PlannedStage, ...] | None:
    """The order of ``others`` with the shortest ring, then the emptiest fullest peer; the order given wins a tie."""
    best: tuple[_Cutting, tuple[CandidatePeer, ...]] | None = None
    shortest_ms = 0
    for order in itertools.permutations(others):
        peers = (*head, *order)
        *_, cutting = table.steps(tuple(peer.free_bytes for peer in peers))
        ring_ms = links.ring_us([peer.peer_id for peer in peers]) // MICROS_PER_MS
        if cutting is None or (best is not None and ring_ms > shortest_ms):
            continue
        if best is None or ring_ms < shortest_ms or cutting.is_emptier_than(best[0]):
            best, shortest_ms = (cutting, peers), ring_ms
    return None if best is None else table.stages(best[1], best[0])


def _explain_shortage(
    table: _CutTable, givers: tuple[CandidatePeer, ...], request: PlacementRequest
) -> PlacementRefusal:
    cost = request.cost
    whole = table.needed_bytes(0, cost.layer_count)
    most = _most_stages(request)
    if not _could_be_cut(table, request):
        text = f"the family's rules permit no cut into {most} stages of its {cost.layer_count} layers"
        return PlacementRefusal(PlacementReason.NO_PERMITTED_CUT, text, False)
    smallest_first = table.needed_bytes(0, (*cost.cuts, cost.layer_count)[0])
    if _coordinator_gives(request) and request.coordinator.free_bytes < smallest_first:
        text = (
            f"this peer offers {format_size(request.coordinator.free_bytes)}, its stage needs at least "
            f"{format_size(smallest_first)}; raise --max-memory, or set it to 0 so that others hold the model"
        )
        return PlacementRefusal(PlacementReason.MEMORY_SHORT, text, False)
    text = (
        f"the model needs {format_size(whole)} (context and lanes included), {len(givers)} peers offer "
        f"{format_size(sum(peer.free_bytes for peer in givers))}; add a peer, raise --max-memory, or lower --ctx-size "
        "or --lanes"
    )
    return PlacementRefusal(PlacementReason.MEMORY_SHORT, text, most > 1 or not _coordinator_gives(request))


def _could_be_cut(table: _CutTable, request: PlacementRequest) -> bool:
    """Whether peers without bounds could hold the model in a number of stages that is allowed."""
    most_bytes = table.needed_bytes(0, request.cost.layer_count) + request.cost.whole_saves_bytes
    unbounded = (most_bytes,) * _most_stages(request)
    steps = table.steps(unbounded)
    if request.stage_count is None:
        return any(cutting is not None for cutting in steps)
    *_, exactly = steps
    return exactly is not None
