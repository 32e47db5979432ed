"""Stages that are up stay where they are; only what is missing is placed, each gap on one peer.

For a family whose states cannot move, and for the replacement of a stage that was lost. What fits no gap is
``planner``'s to plan anew.
"""

import itertools
from collections.abc import Callable, Collection, Container
from dataclasses import replace

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.quantities import format_size
from p2pmesh.core.planning.outcome import Placement, PlacementReason, PlacementRefusal, PlannedStage
from p2pmesh.core.planning.pricing import Prices
from p2pmesh.core.planning.refusing import unused_peers
from p2pmesh.core.planning.request import PlanningPeer, PlanRequest


def plan_kept(request: PlanRequest, bounds: Collection[int] = ()) -> Placement | PlacementRefusal:
    """A placement of ``request.kept`` and, for each gap between them, the peer that makes the shortest step and leaves
    each other gap a peer of its own.

    At each layer of ``bounds`` a gap ends and another begins.

    As in any plan, peers of rank 0 that need not be spared come first, then all of rank 0, then all. Kept stages of
    peers that are not among ``request.peers`` are gaps. The shape is the least. A refusal names the first gap that no
    peer holds.
    """
    here = {peer.peer_id for peer in request.peers}
    stages = sorted((stage for stage in request.kept if stage.peer_id in here), key=lambda stage: stage.layers)
    prices = Prices(request)
    shape = request.model.least
    gaps = _gaps([stage.layers for stage in stages], request.model.layer_count, bounds)
    for at, gap in enumerate(gaps):
        fitting = _fitting(request, stages, gap)
        later = [[peer.peer_id for peer in _fitting(request, stages, other)] for other in gaps[at + 1 :]]
        fitting = [peer for peer in fitting if _leaves_each(later, peer.peer_id)] or fitting
        if not fitting:
            text = (
                f"layers {gap} need {format_size(shape.bytes_of(gap))} on one peer beside the stages that are up, and "
                "none has room; start a peer"
            )
            numbers = (("first_layer", gap.start), ("end_layer", gap.end), ("needed_bytes", shape.bytes_of(gap)))
            return PlacementRefusal(PlacementReason.MEMORY_SHORT, text, True, unused_peers(request, stages), numbers)
        options = [_with_stage(request, stages, gap, peer) for peer in _preferred(fitting)]
        ranked = [(prices.estimate(option).tpot_us + _penalty_us(prices, option), option) for option in options]
        stages = min(ranked, key=lambda item: (item[0], [stage.peer_id for stage in item[1]]))[1]
    placed = tuple(stages)
    return Placement(
        placed, shape.context_tokens, shape.lanes, prices.estimate(placed), (), unused_peers(request, placed)
    )


def plan_replacement(
    request: PlanRequest,
    broken: Placement,
    lost_stage: int | None,
    silent: Container[PeerId],
    spare_for: Callable[[LayerRange], PeerId | None],
) -> Placement | PlacementRefusal:
    """What follows a broken run: whole stages where they were, lost ones where an engine waits or a peer is spare.

    ``lost_stage`` is the one whose engine died, if one did, and ``silent`` are the peers that are gone. Lost neighbours
    go to one peer, unless so many stages are asked for.
    """
    peers = tuple(peer for peer in request.peers if peer.peer_id not in silent)
    kept, used = [], {stage.peer_id for stage in broken.stages}
    for index, stage in enumerate(broken.stages):
        spare = spare_for(stage.layers)
        is_broken = stage.peer_id in silent or index == lost_stage
        if is_broken and spare is not None and spare not in used:
            used.add(spare)
            kept.append(replace(stage, peer_id=spare))
        elif stage.peer_id not in silent:
            kept.append(stage)
    bounds = () if request.stage_count is None else [stage.layers.start for stage in broken.stages]
    return plan_kept(replace(request, peers=peers, kept=tuple(kept)), bounds)


def _gaps(held: list[LayerRange], layer_count: int, bounds: Collection[int]) -> list[LayerRange]:
    starts = (0, *(layers.end for layers in held))
    ends = (*(layers.start for layers in held), layer_count)
    gaps = []
    for start, end in zip(starts, ends, strict=True):
        points = [start, *sorted(bound for bound in bounds if start < bound < end), end]
        gaps += [LayerRange(*gap) for gap in itertools.pairwise(points) if gap[0] < gap[1]]
    return gaps


def _fitting(request: PlanRequest, stages: list[PlannedStage], gap: LayerRange) -> list[PlanningPeer]:
    model = request.model
    is_range = gap not in model.forbidden and {gap.start, gap.end} <= {0, *model.cuts, model.layer_count}
    taken = {stage.peer_id for stage in stages}
    needed = model.least.bytes_of(gap)
    return [
        peer
        for peer in request.peers
        if is_range
        and peer.peer_id not in taken
        and needed <= request.usable_bytes(peer)
        and (peer.most_layers is None or len(gap) <= peer.most_layers)
    ]


def _leaves_each(options: list[list[PeerId]], but: PeerId) -> bool:
    """Whether each of some gaps can go to a peer of its own among its ``options``, and none to ``but``."""
    held: dict[PeerId, int] = {}

    def finds(gap: int, tried: set[PeerId]) -> bool:
        for peer in options[gap]:
            if peer != but and peer not in tried:
                tried.add(peer)
                if peer not in held or finds(held[peer], tried):
                    held[peer] = gap
                    return True
        return False

    return all(finds(gap, set()) for gap in range(len(options)))


def _preferred(peers: list[PlanningPeer]) -> list[PlanningPeer]:
    trusted = [peer for peer in peers if peer.rank == 0]
    return [peer for peer in trusted if not peer.is_spared] or trusted or peers


def _with_stage(
    request: PlanRequest, stages: list[PlannedStage], gap: LayerRange, peer: PlanningPeer
) -> list[PlannedStage]:
    stage = PlannedStage(peer.peer_id, gap, request.model.least.bytes_of(gap), peer.offered_bytes)
    return sorted((*stages, stage), key=lambda stage: stage.layers)


def _penalty_us(prices: Prices, stages: list[PlannedStage]) -> int:
    peers = [stage.peer_id for stage in stages]
    return sum(prices.penalty_us(peer, peers[(at + 1) % len(peers)]) for at, peer in enumerate(peers))
