"""The cuts of ``skippy-topology``'s published tests (commit c14e458), and the bytes of its boundaries."""

import pytest

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MIB
from p2pmesh.core.planning.upstream_topology import (
    MigrationPolicy,
    StateAffinity,
    TopologyNode,
    TopologyReason,
    artifact_totals,
    boundary_bytes,
    cut_at,
    cut_by_weight,
    cut_evenly,
    describe_stages,
    place_by_package,
    refuse_cut,
    score,
)


def nodes(*names: str) -> list[TopologyNode]:
    return [TopologyNode(name) for name in names]


def test_even_cuts_give_the_first_stages_what_is_left_over() -> None:
    assert cut_evenly(12, 3) == (0, 4, 8, 12)
    assert cut_evenly(11, 3) == (0, 4, 8, 11)
    assert cut_evenly(6, 3) == (0, 2, 4, 6)


def test_weighted_cuts() -> None:
    assert cut_by_weight(12, [60, 30, 30]) == (0, 6, 9, 12)
    assert cut_by_weight(12, [0, 0, 0]) == (0, 4, 8, 12)
    assert cut_by_weight(10, [1000, 1, 1]) == (0, 8, 9, 10)
    assert cut_by_weight(4, [1, 1, 1000]) == (0, 1, 2, 4)


def test_explicit_cuts() -> None:
    assert cut_at(9, [3, 6]) == (0, 3, 6, 9)
    assert cut_at(9, [6, 3]) is None
    assert cut_at(9, [9]) is None


def test_package_aware_placement_follows_the_edges() -> None:
    edges = {("a", "b"): 200, ("b", "c"): 200, ("a", "c"): 5, ("c", "b"): 5}
    assert place_by_package(9, nodes("a", "b", "c"), edges) == (
        ("a", LayerRange(0, 3)),
        ("c", LayerRange(3, 6)),
        ("b", LayerRange(6, 9)),
    )
    back = {("a", "b"): 200, ("b", "a"): 5}
    assert place_by_package(6, nodes("a", "b"), back) == (("b", LayerRange(0, 3)), ("a", LayerRange(3, 6)))


def test_equal_edges_keep_the_order_of_the_package() -> None:
    edges = {(a, b): 7 for a in "abc" for b in "abc"}
    assert [name for name, _ in place_by_package(9, nodes("b", "a", "c"), edges)] == ["b", "a", "c"]


def test_more_than_eight_nodes_are_chained_to_the_nearest() -> None:
    names = "abcdefghi"
    edges = {(a, b): abs(ord(a) - ord(b)) for a in names for b in names}
    shuffled = nodes(*"aibhcgdfe")
    assert [name for name, _ in place_by_package(9, shuffled, edges)] == list(names)


def test_a_score_counts_memory_files_latency_and_availability() -> None:
    node = TopologyNode("a", 1000, cached_bytes=10, missing_bytes=20, rtt_ms=2, availability=3)
    assert score(node) == 1000 + 20 - 80 - 32 * MIB + 3 * MIB
    alone = TopologyNode("b", 1000, missing_bytes=20, can_transfer=False)
    assert score(alone) == 1000 - 160


def test_artifact_totals() -> None:
    given = [
        TopologyNode("a", cached_bytes=30),
        TopologyNode("b", missing_bytes=30),
        TopologyNode("c", missing_bytes=16, can_transfer=False),
    ]
    totals = artifact_totals(given)
    found = (totals.cached_bytes, totals.missing_bytes, totals.transferable_bytes, totals.fallback_bytes)
    assert found == (30, 46, 30, 16)


def test_every_stage_of_falcon_h1_is_mixed_and_sticky() -> None:
    stages = describe_stages(cut_evenly(6, 3), [LayerRange(0, 6)], has_attention=True)
    assert [stage.layers for stage in stages] == [LayerRange(0, 2), LayerRange(2, 4), LayerRange(4, 6)]
    assert {stage.affinity for stage in stages} == {StateAffinity.MIXED}
    assert {stage.migration for stage in stages} == {MigrationPolicy.STICKY_RECURRENT_OWNER}
    assert [stage.reason for stage in stages] == [TopologyReason.RECURRENT_OWNER_STICKY] * 3


def test_other_stages_move_at_a_cost_or_freely() -> None:
    attention, none = (describe_stages((0, 2), [], has_attention=has)[0] for has in (True, False))
    assert (attention.affinity, attention.migration) == (StateAffinity.ATTENTION_KV, MigrationPolicy.COSTED_KV)
    assert (none.affinity, none.migration) == (StateAffinity.STATELESS, MigrationPolicy.FREELY_MOVABLE)
    recurrent = describe_stages((0, 2, 4), [LayerRange(2, 3)], has_attention=False)
    assert [stage.affinity for stage in recurrent] == [StateAffinity.STATELESS, StateAffinity.RECURRENT]


@pytest.mark.parametrize(
    ("width", "multiple", "expected"),
    [
        (1024, 1, (4096, 2048)),  # Qwen3-0.6B
        (2560, 1, (10_240, 5_120)),  # Gemma4-E4B at 21
        (768, 2, (6_144, 3_072)),  # RWKV7 at 4: v_first
        (2048, 4, (32_768, 16_384)),  # Gemma3n at 10: AltUp
    ],
)
def test_bytes_over_a_boundary(width: int, multiple: int, expected: tuple[int, int]) -> None:
    assert boundary_bytes(width, multiple) == expected


def test_cuts_through_shared_caches_are_rejected() -> None:
    gemma3n, gemma4 = (20,), (12, 14, 24, 28)
    assert [refuse_cut(gemma3n, cut) for cut in (10, 15)] == [None, None]
    assert refuse_cut(gemma3n, 20) is TopologyReason.SHARED_KV_REGION_CUT
    assert [refuse_cut(gemma4, cut) for cut in (12, 24)] == [TopologyReason.SHARED_KV_REGION_CUT] * 2
    assert refuse_cut(gemma4, 21) is None
