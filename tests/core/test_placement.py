"""Placement against its promises, and against all placements there are."""

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.ids import LayerRange, PeerId, ranges_tile
from p2pmesh.base.quantities import GIB
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.placement import (
    CandidatePeer,
    Placement,
    PlacementCost,
    PlacementReason,
    PlacementRefusal,
    PlacementRequest,
    plan_placement,
)


def peer(name: str, free_bytes: int) -> CandidatePeer:
    return CandidatePeer(PeerId(name), free_bytes)


def even_cost(layers: int, layer_bytes: int = 10, ends: int = 0, stage: int = 0) -> PlacementCost:
    return PlacementCost((layer_bytes,) * layers, ends, ends, stage, tuple(range(1, layers)))


def request(cost: PlacementCost, free: tuple[int, ...], count: int | None = None) -> PlacementRequest:
    """The coordinator is ``p0``, the others ``p1`` and so on."""
    others = tuple(peer(f"p{number}", size) for number, size in enumerate(free[1:], start=1))
    return PlacementRequest(cost, peer("p0", free[0]), others, count)


def placed(asked: PlacementRequest) -> list[tuple[str, int, int]]:
    plan = plan_placement(asked)
    assert isinstance(plan, Placement), plan
    return [(stage.peer_id, stage.layers.start, stage.layers.end) for stage in plan.stages]


def refused(asked: PlacementRequest) -> PlacementRefusal:
    plan = plan_placement(asked)
    assert isinstance(plan, PlacementRefusal), plan
    return plan


def fullest(plan: Placement) -> Fraction:
    return max(Fraction(stage.needed_bytes, stage.free_bytes) for stage in plan.stages)


def all_placements(asked: PlacementRequest, count: int) -> list[tuple[Fraction, tuple[str, ...]]]:
    """The simple reference: every choice and order of peers, every choice of cuts."""
    cost = asked.cost
    givers = [other for other in asked.others if other.free_bytes > 0]
    has_head = asked.coordinator.free_bytes > 0
    heads = (asked.coordinator,) if has_head else ()
    found = []
    for tail in itertools.permutations(givers, count - len(heads)):
        peers = (*heads, *tail)
        for cuts in itertools.combinations(cost.cuts, count - 1):
            ranges = [LayerRange(a, b) for a, b in itertools.pairwise((0, *cuts, cost.layer_count))]
            fills = [Fraction(cost.bytes_of(r), p.free_bytes) for r, p in zip(ranges, peers, strict=True)]
            if max(fills) <= 1 and all(map(cost.is_permitted, ranges)):
                found.append((max(fills), tuple(p.peer_id for p in peers)))
    return found


@st.composite
def requests(draw: st.DrawFn) -> PlacementRequest:
    layers = draw(st.integers(1, 6))
    sizes = tuple(draw(st.lists(st.integers(0, 20), min_size=layers, max_size=layers)))
    cuts = tuple(sorted(draw(st.sets(st.integers(1, layers - 1))))) if layers > 1 else ()
    first, last, stage = (draw(st.integers(0, 10)) for _ in range(3))
    longest = draw(st.integers(1, layers))
    rule = draw(st.sampled_from([lambda r: True, lambda r: len(r) <= longest or len(r) == layers]))
    saves = draw(st.integers(0, sizes[-1] + first + last + stage))
    cost = PlacementCost(sizes, first, last, stage, cuts, rule, whole_saves_bytes=saves)
    free = tuple(draw(st.lists(st.integers(0, 80) | st.sampled_from([30, 60]), min_size=1, max_size=4)))
    return request(cost, free, draw(st.none() | st.integers(1, 5)))


def test_what_fits_on_the_coordinator_is_never_split() -> None:
    assert placed(request(even_cost(8), (80, 1000, 1000))) == [("p0", 0, 8)]


def test_the_fewest_peers_share_what_does_not_fit() -> None:
    assert placed(request(even_cost(8), (40, 40, 40, 40))) == [("p0", 0, 4), ("p1", 4, 8)]


def test_the_largest_peers_are_taken_first() -> None:
    assert placed(request(even_cost(8), (40, 10, 60, 50))) == [("p0", 0, 3), ("p2", 3, 8)]


def linked(asked: PlacementRequest, **rtt_ms: int) -> PlacementRequest:
    """Links by the numbers of two peers: ``p0p1=20``; all others are near."""
    names = [asked.coordinator.peer_id, *(other.peer_id for other in asked.others)]
    near = {(a, b): PairLink(1_000, 0, False) for a, b in itertools.combinations(names, 2)}
    given = {(PeerId(p[:2]), PeerId(p[2:])): PairLink(ms * 1000, 0, False) for p, ms in rtt_ms.items()}
    return replace(asked, links=LinkMatrix(near | given))


def test_a_token_travels_the_shortest_ring_though_another_order_fills_less() -> None:
    asked = request(even_cost(12), (30, 40, 50, 60), 4)
    for far, ring in (("p1p2", ["p0", "p1", "p3", "p2"]), ("p0p3", ["p0", "p1", "p3", "p2"])):
        names = [name for name, *_ in placed(linked(asked, **{far: 300}))]
        assert names in (ring, [ring[0], *reversed(ring[1:])])


def test_less_than_a_millisecond_of_ring_does_not_outweigh_memory() -> None:
    cost = PlacementCost((10, 10, 40), 0, 0, 0, (1, 2))
    free = (10, 60, 45)
    near = placed(request(cost, free))
    slower = PairLink(400, 0, False)
    names = [PeerId(name) for name, *_ in near]
    links = LinkMatrix(dict.fromkeys(itertools.combinations(names, 2), slower))
    assert placed(replace(request(cost, free), links=links)) == near


def test_of_equal_peers_the_nearer_is_taken_and_a_far_one_is_never_refused() -> None:
    asked = request(even_cost(8), (40, 40, 40))
    assert placed(linked(asked, p0p1=80)) == [("p0", 0, 4), ("p2", 4, 8)]
    only_far = request(even_cost(8), (40, 40))
    assert placed(linked(only_far, p0p1=60_000)) == placed(only_far)


def test_equal_peers_are_taken_by_their_ids() -> None:
    backwards = PlacementRequest(even_cost(4), peer("p0", 20), (peer("p2", 20), peer("p1", 20)))
    assert placed(backwards) == [("p0", 0, 2), ("p1", 2, 4)]


def test_exactly_as_many_stages_as_asked_for_though_fewer_would_do() -> None:
    assert placed(request(even_cost(6), (1000, 1000, 1000), 3)) == [("p0", 0, 2), ("p1", 2, 4), ("p2", 4, 6)]


def test_a_coordinator_without_memory_holds_nothing() -> None:
    assert placed(request(even_cost(6), (0, 60))) == [("p1", 0, 6)]


def test_the_ends_and_what_every_stage_adds_are_charged() -> None:
    cost = even_cost(2, ends=5, stage=3)
    assert cost.bytes_of(LayerRange(0, 2)) == 20 + 5 + 5 + 3
    plan = plan_placement(request(cost, (18, 18)))
    assert isinstance(plan, Placement)
    assert [(stage.needed_bytes, stage.free_bytes) for stage in plan.stages] == [(18, 18), (18, 18)]


def test_the_whole_may_fit_where_all_but_its_last_layer_would_not() -> None:
    cost = PlacementCost((10, 10), 50, 50, 0, (1,), whole_saves_bytes=65)
    assert cost.bytes_of(LayerRange(0, 1)) > cost.bytes_of(LayerRange(0, 2)) == 55
    assert placed(request(cost, (55,))) == [("p0", 0, 2)]
    assert refused(request(cost, (54, 54), 2)).reason == PlacementReason.MEMORY_SHORT


def test_an_order_of_peers_that_fits_is_found_though_the_largest_first_does_not_fit() -> None:
    cost = PlacementCost((10, 10, 40), 0, 0, 0, (1, 2))
    assert placed(request(cost, (10, 15, 40))) == [("p0", 0, 1), ("p1", 1, 2), ("p2", 2, 3)]
    heavy_middle = PlacementCost((10, 40, 10), 0, 0, 0, (1, 2))
    assert placed(request(heavy_middle, (10, 15, 40))) == [("p0", 0, 1), ("p2", 1, 2), ("p1", 2, 3)]


def test_only_permitted_cuts_are_used() -> None:
    cost = PlacementCost((10,) * 6, 0, 0, 0, (5,))
    assert placed(request(cost, (50, 50))) == [("p0", 0, 5), ("p1", 5, 6)]


def test_a_range_that_the_family_cannot_run_is_not_planned() -> None:
    cost = PlacementCost((10,) * 6, 0, 0, 0, (1, 2, 3, 4, 5), lambda layers: len(layers) != 3)
    assert placed(request(cost, (40, 40))) == [("p0", 0, 2), ("p1", 2, 6)]


def test_a_peer_that_is_listed_twice_counts_once_and_with_the_smaller_offer() -> None:
    twice = PlacementRequest(even_cost(4), peer("p0", 20), (peer("p1", 40), peer("p1", 20), peer("p0", 90)))
    assert placed(twice) == [("p0", 0, 2), ("p1", 2, 4)]
    assert refused(PlacementRequest(even_cost(6), peer("p0", 20), twice.others)).reason == PlacementReason.MEMORY_SHORT


@pytest.mark.parametrize(
    ("asked", "reason", "numbers", "could_peers_help"),
    [
        (request(even_cost(4), (0, 0)), "no_memory_offered", ("0",), True),
        (request(even_cost(4), (90, 90), 3), "too_few_peers", ("3 stages", "2 are here", "start 1 more"), True),
        (request(even_cost(4), (90,) * 9, 9), "too_few_layers", ("9 stages", "4 layers"), False),
        (request(even_cost(200), (9000,) * 70, 65), "too_few_layers", ("65 stages", "64"), False),
        (
            request(PlacementCost((1,) * 4, 0, 0, 0, (2,)), (9, 9), 3),
            "no_permitted_cut",
            ("2 cuts", "permits 1"),
            False,
        ),
        (
            request(PlacementCost((1,) * 4, 0, 0, 0, (2,), lambda layers: len(layers) == 4), (9, 9), 2),
            "no_permitted_cut",
            ("2 stages", "4 layers"),
            False,
        ),
        (request(even_cost(4, GIB), (GIB, GIB)), "memory_short", ("4.0 GiB", "2 peers", "2.0 GiB"), True),
        (request(even_cost(4, GIB), (GIB, GIB), 2), "memory_short", ("4.0 GiB", "2.0 GiB"), True),
        (request(even_cost(4, GIB), (GIB, 9 * GIB), 1), "memory_short", ("4.0 GiB",), False),
        (request(even_cost(4, GIB), (0, GIB), 1), "memory_short", ("4.0 GiB", "1 peers"), True),
        (request(PlacementCost((GIB,) * 2, 0, 0, 0, ()), (GIB, GIB)), "memory_short", ("2.0 GiB",), False),
        (request(even_cost(4, GIB), (1024, 9 * GIB)), "memory_short", ("1.0 KiB", "1.0 GiB"), False),
    ],
)
def test_a_refusal_has_its_reason_its_numbers_and_says_whether_peers_could_help(
    asked: PlacementRequest, reason: str, numbers: tuple[str, ...], could_peers_help: bool
) -> None:
    refusal = refused(asked)
    assert refusal.reason == reason
    assert all(number in refusal.text for number in numbers), refusal.text
    assert refusal.could_peers_help is could_peers_help


def test_no_stages_at_all_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="0 stages"):
        request(even_cost(4), (90,), 0)


def test_more_peers_than_orders_are_tried_for_still_tile() -> None:
    stages = placed(request(even_cost(100), (90,) + (150,) * 10))
    assert len(stages) == 8
    assert ranges_tile(tuple(LayerRange(start, end) for _, start, end in stages), 100)


def test_a_thousand_peers_that_are_short_together_are_refused_without_a_search_through_all() -> None:
    calls = itertools.count()

    def count_calls(_: LayerRange) -> bool:
        return next(calls) >= 0

    cost = PlacementCost((10,) * 100, 0, 0, 0, tuple(range(1, 100)), count_calls)
    assert refused(request(cost, (15,) * 1000)).reason == PlacementReason.MEMORY_SHORT
    assert next(calls) < 20_000


@settings(max_examples=300)
@given(requests())
def test_a_placement_is_the_best_of_all_there_are(asked: PlacementRequest) -> None:
    plan = plan_placement(asked)
    counts = range(1, 5) if asked.stage_count is None else (asked.stage_count,)
    possible = next((found for count in counts if (found := all_placements(asked, count))), None)
    if possible is None:
        assert isinstance(plan, PlacementRefusal)
        assert any(digit.isdigit() for digit in plan.text)
        return
    assert isinstance(plan, Placement)
    assert len(plan.stages) == len(possible[0][1])
    assert fullest(plan) == min(possible)[0]


@given(requests())
def test_stages_tile_the_layers_within_every_peers_offer(asked: PlacementRequest) -> None:
    plan = plan_placement(asked)
    if isinstance(plan, PlacementRefusal):
        return
    cost = asked.cost
    offers = {p.peer_id: p.free_bytes for p in (asked.coordinator, *asked.others)}
    assert ranges_tile(tuple(stage.layers for stage in plan.stages), cost.layer_count)
    assert len({stage.peer_id for stage in plan.stages}) == len(plan.stages)
    for stage in plan.stages:
        assert stage.needed_bytes == cost.bytes_of(stage.layers) <= stage.free_bytes == offers[stage.peer_id]
        assert cost.is_permitted(stage.layers)
        assert stage.layers.end in (*cost.cuts, cost.layer_count)


@given(requests(), st.randoms(use_true_random=False))
def test_the_order_of_the_others_changes_nothing(asked: PlacementRequest, rng: "object") -> None:
    shuffled = list(asked.others)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    again = PlacementRequest(asked.cost, asked.coordinator, tuple(shuffled), asked.stage_count)
    assert plan_placement(again) == plan_placement(asked)


def ranked(asked: PlacementRequest, *last: str) -> PlacementRequest:
    """The same, with these peers behind all others."""
    return replace(asked, others=tuple(replace(peer, rank=int(peer.peer_id in last)) for peer in asked.others))


def test_peers_of_the_first_rank_hold_the_model_alone_if_they_can() -> None:
    asked = request(even_cost(4), (20, 100, 20))
    assert {stage[0] for stage in placed(asked)} == {"p0", "p1"}
    assert {stage[0] for stage in placed(ranked(asked, "p1"))} == {"p0", "p2"}


def test_others_help_where_the_first_rank_does_not_suffice_and_a_small_peer_of_it_is_not_in_the_way() -> None:
    asked = request(even_cost(4), (20, 20, 1))
    assert {stage[0] for stage in placed(ranked(asked, "p1"))} == {"p0", "p1"}


def test_a_refusal_counts_all_peers_whatever_their_rank() -> None:
    asked = request(even_cost(10), (20, 30, 20))
    assert refused(ranked(asked, "p1")) == refused(asked)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 6), st.sets(st.integers(1, 5)))
def test_ranks_refuse_nothing_that_can_be_placed(free: list[int], layers: int, last: set[int]) -> None:
    asked = request(even_cost(layers), tuple(free))
    names = {f"p{number}" for number in last}
    plan = plan_placement(ranked(asked, *names))
    assert isinstance(plan, Placement) == isinstance(plan_placement(asked), Placement)
    preferred = replace(asked, others=tuple(peer for peer in asked.others if peer.peer_id not in names))
    alone = plan_placement(preferred)
    if isinstance(alone, Placement):
        assert isinstance(plan, Placement)
        assert [stage.peer_id for stage in plan.stages] == [stage.peer_id for stage in alone.stages]


def test_a_wire_dtype_that_is_not_certified_refuses_a_split_at_once_and_says_why() -> None:
    cost = replace(even_cost(4), wire_cuts=frozenset(), wire_reason="not certified; run that")
    for asked in (request(cost, (25, 25)), request(cost, (99, 99), 2), request(cost, (25,)), request(cost, (99,), 2)):
        refusal = refused(asked)
        assert (refusal.reason, refusal.text) == (PlacementReason.WIRE_DTYPE_UNCERTIFIED, "not certified; run that")
        assert not refusal.could_peers_help


def test_a_whole_model_needs_no_certificate() -> None:
    cost = replace(even_cost(4), wire_cuts=frozenset(), wire_reason="not certified")
    assert placed(request(cost, (40, 40))) == [("p0", 0, 4)]
    assert placed(request(cost, (0, 40))) == [("p1", 0, 4)]


def test_cuts_are_those_that_are_certified() -> None:
    cost = replace(even_cost(4), wire_cuts=frozenset({3}), wire_reason="only at 3")
    assert placed(request(cost, (30, 30))) == [("p0", 0, 3), ("p1", 3, 4)]
    refusal = refused(request(cost, (25, 25)))
    assert (refusal.reason, refusal.text) == (PlacementReason.WIRE_DTYPE_UNCERTIFIED, "only at 3")
    assert refused(request(cost, (30, 5))).reason is PlacementReason.MEMORY_SHORT
    assert refused(request(cost, (30,))).could_peers_help


def test_what_no_dtype_could_mend_keeps_its_own_reason() -> None:
    cost = replace(even_cost(2), wire_cuts=frozenset(), wire_reason="not certified")
    assert refused(request(cost, (99, 99, 99), 3)).reason is PlacementReason.TOO_FEW_LAYERS
    assert refused(replace(request(cost, (0, 0)))).reason is PlacementReason.NO_MEMORY_OFFERED
