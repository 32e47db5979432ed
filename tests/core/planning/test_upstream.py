"""Mesh LLM's published results, from the same rules; and by how much our own planner does better on the same peers.

Sources: the tables and fixtures of its coordinator and of ``skippy-topology`` at commit c14e458; the cuts of the
coordinator's fixtures are ours where its tests assert only part of them.
"""

from dataclasses import replace
from fractions import Fraction

import pytest

from p2pmesh.base.ids import PeerId, ranges_tile
from p2pmesh.base.quantities import GIB
from p2pmesh.core import claims
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest, ShapeBytes
from p2pmesh.core.planning.upstream import (
    UpstreamModel,
    UpstreamPeer,
    UpstreamPlan,
    UpstreamRefusal,
    decode_hops,
    estimate_decode_ms,
    plan_upstream,
)

BASE = UpstreamModel(40, 40 * GIB, 65_536, 65_536)
LONG_BASE = replace(BASE, native_context=262_144)
Q480 = UpstreamModel(62, 315_680_000_000, 131_072, 262_144)


def peers(*gib: int, latency_ms: int | None = None) -> list[UpstreamPeer]:
    return [UpstreamPeer(f"n{at:02}", size * GIB, latency_ms=latency_ms) for at, size in enumerate(gib)]


def planned(model: UpstreamModel, given: list[UpstreamPeer], least: int = 1) -> UpstreamPlan:
    plan = plan_upstream(model, given, least)
    assert isinstance(plan, UpstreamPlan), plan
    return plan


# --- the stage table, at 10 ms a hop
@pytest.mark.parametrize(("stages", "ms", "tokens_per_s"), [(2, 20, 50.0), (3, 30, 33.3), (4, 40, 25.0), (5, 50, 20.0)])
def test_the_stage_table(stages: int, ms: int, tokens_per_s: float) -> None:
    assert estimate_decode_ms(10, stages) == ms
    assert round(1000 / ms, 1) == tokens_per_s


@pytest.mark.parametrize(("stages", "ms"), [(2, 20.0), (3, 30.0), (4, 40.0), (5, 50.0)])
def test_our_own_report_gives_the_same_figure(stages: int, ms: float) -> None:
    ids = [PeerId(f"p{number}") for number in range(stages)]
    links = LinkMatrix({(a, b): PairLink(20_000, 0, False) for a in ids for b in ids if a < b})
    model = PlanningModel((ShapeBytes((10,) * 40),), tuple(range(1, 40)))
    plan = plan_placement(PlanRequest(model, tuple(PlanningPeer(peer, 1000) for peer in ids), None, stages, links))
    assert isinstance(plan, Placement)
    assert plan.estimate.estimated_decode_network_ms_per_token == ms
    assert plan.estimate.network_us == ms * 1000


def test_a_chain_of_four_stages_makes_six_hops_and_a_direct_return_four() -> None:
    assert (decode_hops(4, is_chained=True) * 10, decode_hops(4) * 10) == (60, 40)


# --- the coordinator's fixtures
CAPPED_24 = UpstreamPeer("capped", 80 * GIB, most_bytes=24 * GIB, head_room_bytes=8 * GIB)
CAPPED_80 = UpstreamPeer("capped", 120 * GIB, most_bytes=80 * GIB, head_room_bytes=16 * GIB)
MIXED = [UpstreamPeer("small", 115_448_725_504), UpstreamPeer("large", 239_143_780_352)]


@pytest.mark.parametrize(
    ("model", "given", "least", "context", "layers", "first"),
    [
        (BASE, peers(23, 23), 1, 65_536, (20, 20), "n00"),
        (BASE, peers(*[80] * 6), 1, 65_536, (40,), "n00"),
        (BASE, peers(16, 48), 2, 65_536, (39, 1), "n01"),
        (BASE, [CAPPED_24, *peers(48)], 2, 65_536, (39, 1), "n00"),
        (LONG_BASE, peers(*[23] * 4, latency_ms=10), 2, 65_536, (20, 20), "n00"),
        (Q480, peers(*[80] * 4), 2, 65_536, (16, 16, 16, 14), "n00"),
        (Q480, peers(*[80] * 4, latency_ms=10), 2, 65_536, (16, 16, 16, 14), "n00"),
        (Q480, peers(*[80] * 5), 2, 262_144, (15, 15, 15, 15, 2), "n00"),
        (Q480, peers(*[80] * 10), 2, 262_144, (15, 15, 15, 15, 2), "n00"),
        (Q480, peers(*[80] * 7, 1, 1, 1), 2, 262_144, (15, 15, 15, 15, 2), "n00"),
        (Q480, peers(64, *[80] * 4), 2, 262_144, (15, 15, 15, 15, 2), "n01"),
        (Q480, [CAPPED_80, *peers(*[80] * 4)], 2, 262_144, (15, 15, 15, 15, 2), "n00"),
        (Q480, MIXED, 2, 262_144, (42, 20), "large"),
    ],
)
def test_the_coordinators_fixtures(
    model: UpstreamModel, given: list[UpstreamPeer], least: int, context: int, layers: tuple[int, ...], first: str
) -> None:
    plan = planned(model, given, least)
    assert (plan.context_tokens, plan.lanes, plan.layers, plan.peers[0]) == (context, 4, layers, first)


def test_the_small_and_the_capped_peer_come_last() -> None:
    assert planned(Q480, peers(64, *[80] * 4), 2).peers[-1] == "n00"
    assert planned(Q480, [CAPPED_80, *peers(*[80] * 4)], 2).peers[-1] == "capped"


def test_estimates_and_targets_of_the_fixtures_with_latency() -> None:
    met = planned(LONG_BASE, peers(*[23] * 4, latency_ms=10), 2)
    assert (met.estimate_ms, met.is_target_met) == (20, True)
    missed = planned(Q480, peers(*[80] * 4, latency_ms=10), 2)
    assert (missed.estimate_ms, missed.is_target_met) == (40, False)


@pytest.mark.parametrize(
    ("model", "given", "override", "refusal"),
    [
        (BASE, peers(8, 8), None, UpstreamRefusal.DOES_NOT_FIT),
        (Q480, peers(*[70] * 4), None, UpstreamRefusal.DOES_NOT_FIT),
        (LONG_BASE, peers(80), 32_768, UpstreamRefusal.CONTEXT_BELOW_MINIMUM),
        (BASE, peers(80), 131_072, UpstreamRefusal.CONTEXT_EXCEEDS_NATIVE),
    ],
)
def test_refusals(
    model: UpstreamModel, given: list[UpstreamPeer], override: int | None, refusal: UpstreamRefusal
) -> None:
    assert plan_upstream(model, given, context_override=override) is refusal


def test_an_override_between_floor_and_native_is_taken() -> None:
    plan = plan_upstream(LONG_BASE, peers(80), context_override=131_072)
    assert isinstance(plan, UpstreamPlan)
    assert plan.context_tokens == 131_072


# --- ours on the same peers
def ours(model: UpstreamModel, gib: tuple[int, ...], context: int, stages: int | None) -> list[tuple[int, Fraction]]:
    """Layers of each stage of our own planner, and how much of its peer's offer it takes."""
    shape = ShapeBytes((model.layer_bytes(context),) * model.layer_count)
    planning = PlanningModel((shape,), tuple(range(1, model.layer_count)))
    offers = tuple(PlanningPeer(PeerId(f"n{at:02}"), size * GIB) for at, size in enumerate(gib))
    plan = plan_placement(PlanRequest(planning, offers, None, stages))
    assert isinstance(plan, Placement)
    assert ranges_tile(tuple(stage.layers for stage in plan.stages), model.layer_count)
    return [(len(stage.layers), Fraction(stage.needed_bytes, stage.free_bytes)) for stage in plan.stages]


def theirs(plan: UpstreamPlan, model: UpstreamModel, gib: tuple[int, ...]) -> list[Fraction]:
    size = model.layer_bytes(plan.context_tokens)
    offers = [gib[int(name[1:])] * GIB for name in plan.peers]
    return [Fraction(held * size, offer) for held, offer in zip(plan.layers, offers, strict=True)]


def test_instead_of_39_and_1_both_peers_are_filled_alike() -> None:
    """89 % and 7 % of what they offer become 69 % and 69 %."""
    gib = (16, 48)
    upstream = theirs(planned(BASE, peers(*gib), 2), BASE, gib)
    own = ours(BASE, gib, 65_536, 2)
    assert sorted(layers for layers, _ in own) == [10, 30]
    assert [round(100 * float(share)) for share in upstream] == [89, 7]
    assert [round(100 * float(share)) for _, share in own] == [69, 69]


def test_instead_of_15_15_15_15_2_five_peers_keep_thirteen_per_cent_more_free() -> None:
    """The fullest falls from 99 % to 85 % of its memory, the largest part from seven and a half times the smallest to
    a twelfth more."""
    gib = (80,) * 5
    upstream = theirs(planned(Q480, peers(*gib), 2), Q480, gib)
    own = ours(Q480, gib, 262_144, None)
    assert sorted(layers for layers, _ in own) == [12, 12, 12, 13, 13]
    assert round(100 * float(max(upstream))) == 99
    assert round(100 * float(max(share for _, share in own))) == 85


def test_ours_leaves_the_head_room_that_upstream_did_not_have() -> None:
    """Two peers of 23 GiB would be 96 % full: we ask for more memory, or for a shorter context."""
    assert max(theirs(planned(BASE, peers(23, 23)), BASE, (23, 23))) > Fraction(15, 16)
    own = ours(BASE, (23, 23), 32_768, None)
    assert [layers for layers, _ in own] == [20, 20]
    assert max(share for _, share in own) < Fraction(15, 16)


# --- quorum
@pytest.mark.parametrize(("stages", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_the_quorum_table(stages: int, quorum: int) -> None:
    assert claims.quorum(stages) == quorum
