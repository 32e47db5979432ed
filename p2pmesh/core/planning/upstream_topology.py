"""Mesh LLM's four ways to cut a model into stages (``skippy-topology``, commit c14e458), to compare with its results.

Even, weighted by memory, explicit, and package-aware. Nothing serves by them; ``planner`` is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, permutations

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MIB

UNKNOWN_EDGE_MS = 10_000
_MOST_EXHAUSTIVE = 8

Edges = Mapping[tuple[str, str], int]
"""Latency in milliseconds from one node to another; each direction by itself."""


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """What a node has: memory, bytes of the package that it has and lacks, its latency and a score of availability."""

    name: str
    memory_bytes: int = 0
    cached_bytes: int = 0
    missing_bytes: int = 0
    can_transfer: bool = True
    rtt_ms: int = 0
    availability: int = 0


@dataclass(frozen=True, slots=True)
class ArtifactTotals:
    """Of all nodes: what they have, what they lack, and how much of that peers or the hub must give."""

    cached_bytes: int
    missing_bytes: int
    transferable_bytes: int
    fallback_bytes: int


def cut_evenly(layer_count: int, nodes: int) -> tuple[int, ...]:
    """Boundaries, 0 and the end among them; the first stages get one layer more."""
    base, more = divmod(layer_count, nodes)
    bounds = [0]
    for at in range(nodes):
        bounds.append(bounds[-1] + base + (at < more))
    return tuple(bounds)


def cut_by_weight(layer_count: int, weights: Sequence[int]) -> tuple[int, ...]:
    """In proportion to weights, rounded down, at least one layer each; the last takes the rest."""
    total = sum(weights)
    if total == 0:
        return cut_evenly(layer_count, len(weights))
    bounds = [0]
    for at, weight in enumerate(weights[:-1]):
        most = layer_count - bounds[-1] - (len(weights) - 1 - at)
        bounds.append(bounds[-1] + min(most, max(1, layer_count * weight // total)))
    return (*bounds, layer_count)


def cut_at(layer_count: int, splits: Sequence[int]) -> tuple[int, ...] | None:
    """At explicit layers; None unless they ascend within the model."""
    bounds = (0, *splits, layer_count)
    return bounds if all(start < end for start, end in pairwise(bounds)) else None


def place_by_package(
    layer_count: int, nodes: Sequence[TopologyNode], edges: Edges
) -> tuple[tuple[str, LayerRange], ...]:
    """The nodes by their scores, then in the order of the shortest way through them, each with an even part."""
    by_score = sorted(nodes, key=lambda node: -score(node))
    names = [node.name for node in by_score]
    ordered = _shortest_way(names, edges)
    bounds = cut_evenly(layer_count, len(nodes))
    return tuple(zip(ordered, (LayerRange(*bound) for bound in pairwise(bounds)), strict=True))


def score(node: TopologyNode) -> int:
    """Memory, twice what it has, less four times what it lacks (eight without transfer), and its latency."""
    missing = node.missing_bytes * (4 if node.can_transfer else 8)
    offers = node.memory_bytes + 2 * node.cached_bytes + node.availability * MIB
    return offers - missing - node.rtt_ms * 16 * MIB


def artifact_totals(nodes: Sequence[TopologyNode]) -> ArtifactTotals:
    """What a placement must bring."""
    transferable = sum(node.missing_bytes for node in nodes if node.can_transfer)
    missing = sum(node.missing_bytes for node in nodes)
    return ArtifactTotals(sum(node.cached_bytes for node in nodes), missing, transferable, missing - transferable)


def _shortest_way(names: Sequence[str], edges: Edges) -> tuple[str, ...]:
    """From the first to the last node; of equal ways the first, which is the order given."""
    if len(names) > _MOST_EXHAUSTIVE:
        return _nearest_next(names, edges)
    return min(permutations(names), key=lambda way: sum(_edge_ms(edges, hop) for hop in pairwise(way)))


def _nearest_next(names: Sequence[str], edges: Edges) -> tuple[str, ...]:
    way, left = [names[0]], list(names[1:])
    while left:
        nearest = min(left, key=lambda name: _edge_ms(edges, (way[-1], name)))
        left.remove(nearest)
        way.append(nearest)
    return tuple(way)


def _edge_ms(edges: Edges, hop: tuple[str, str]) -> int:
    return edges.get(hop, UNKNOWN_EDGE_MS)


# --- what a stage keeps, and what crosses a boundary
class StateAffinity(StrEnum):
    """What a stage keeps of a sequence."""

    STATELESS = "stateless"
    ATTENTION_KV = "attention_kv"
    RECURRENT = "recurrent"
    MIXED = "mixed"


class MigrationPolicy(StrEnum):
    """Whether a stage may move to another node."""

    FREELY_MOVABLE = "freely_movable"
    COSTED_KV = "costed_kv"
    STICKY_RECURRENT_OWNER = "sticky_recurrent_owner"


class TopologyReason(StrEnum):
    """Diagnostics of a plan that these rules give; the names are upstream's."""

    RECURRENT_OWNER_STICKY = "recurrent_owner_sticky"
    SHARED_KV_REGION_CUT = "shared_kv_region_cut"


@dataclass(frozen=True, slots=True)
class TopologyStage:
    """A stage and how it may move; ``reason`` None where nothing speaks against it."""

    layers: LayerRange
    affinity: StateAffinity
    migration: MigrationPolicy
    reason: TopologyReason | None


def describe_stages(
    bounds: Sequence[int], recurrent: Sequence[LayerRange], *, has_attention: bool
) -> tuple[TopologyStage, ...]:
    """The stages of a family whose layers in ``recurrent`` keep a state, beside cells where it ``has_attention``."""
    return tuple(_describe_stage(LayerRange(*bound), recurrent, has_attention) for bound in pairwise(bounds))


def _describe_stage(layers: LayerRange, recurrent: Sequence[LayerRange], has_attention: bool) -> TopologyStage:
    keeps_state = any(part.start < layers.end and layers.start < part.end for part in recurrent)
    if keeps_state:
        affinity = StateAffinity.MIXED if has_attention else StateAffinity.RECURRENT
        sticky = MigrationPolicy.STICKY_RECURRENT_OWNER
        return TopologyStage(layers, affinity, sticky, TopologyReason.RECURRENT_OWNER_STICKY)
    if has_attention:
        return TopologyStage(layers, StateAffinity.ATTENTION_KV, MigrationPolicy.COSTED_KV, None)
    return TopologyStage(layers, StateAffinity.STATELESS, MigrationPolicy.FREELY_MOVABLE, None)


def refuse_cut(forbidden: Sequence[int], cut: int) -> TopologyReason | None:
    """Why a family with these forbidden cuts is not cut there."""
    return TopologyReason.SHARED_KV_REGION_CUT if cut in forbidden else None


def boundary_bytes(width: int, multiple: int = 1) -> tuple[int, int]:
    """Bytes of a token over a boundary, in f32 and in f16; ``multiple`` counts the side values of the family."""
    return 4 * width * multiple, 2 * width * multiple
