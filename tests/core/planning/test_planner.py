"""The planner against its promises, and against all placements there are."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.ids import LayerRange, PeerId, ranges_tile
from p2pmesh.base.quantities import GIB
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.cutting import FULL
from p2pmesh.core.planning.kept import plan_kept, plan_replacement
from p2pmesh.core.planning.outcome import (
    Numbers,
    PeerReason,
    Placement,
    PlacementReason,
    PlacementRefusal,
    PlannedStage,
    WhyNot,
)
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.pricing import Prices, compute_us
from p2pmesh.core.planning.request import (
    DEFAULT_POLICY,
    LeftOut,
    PlanningModel,
    PlanningPeer,
    PlanRequest,
    ShapeBytes,
)

NO_HEAD_ROOM = replace(DEFAULT_POLICY, head_room_divisor=1 << 62)
"""For numbers that a person can follow."""


def even(layers: int, layer_bytes: int = 10, ends: int = 0, stage: int = 0) -> PlanningModel:
    shape = ShapeBytes((layer_bytes,) * layers, ends, ends, stage)
    return PlanningModel((shape,), tuple(range(1, layers)))


def uneven(sizes: tuple[int, ...], cuts: tuple[int, ...] | None = None, **more: int) -> PlanningModel:
    return PlanningModel((ShapeBytes(sizes, **more),), tuple(range(1, len(sizes))) if cuts is None else cuts)


def request(model: PlanningModel, free: tuple[int, ...], count: int | None = None) -> PlanRequest:
    """The coordinator is ``p0``, the others ``p1`` and so on."""
    peers = tuple(PlanningPeer(PeerId(f"p{number}"), size) for number, size in enumerate(free))
    return PlanRequest(model, peers, PeerId("p0"), count, policy=NO_HEAD_ROOM)


def with_peer(asked: PlanRequest, name: str, **changes: object) -> PlanRequest:
    """The same with one peer changed."""
    peers = tuple(replace(p, **changes) if p.peer_id == name else p for p in asked.peers)  # type: ignore[arg-type]
    return replace(asked, peers=peers)


def linked(asked: PlanRequest, **rtt_ms: int) -> PlanRequest:
    """Links by the numbers of two peers: ``p0p1=20``; all others are near."""
    names = [peer.peer_id for peer in asked.peers]
    near = {(a, b): PairLink(1_000, 0, False) for a, b in itertools.combinations(names, 2)}
    given = {(PeerId(p[:2]), PeerId(p[2:])): PairLink(ms * 1000, 0, False) for p, ms in rtt_ms.items()}
    return replace(asked, links=LinkMatrix(near | given))


def planned(asked: PlanRequest) -> Placement:
    plan = plan_placement(asked)
    assert isinstance(plan, Placement), plan
    return plan


def placed(asked: PlanRequest) -> list[tuple[str, int, int]]:
    return [(stage.peer_id, stage.layers.start, stage.layers.end) for stage in planned(asked).stages]


def refused(asked: PlanRequest) -> PlacementRefusal:
    plan = plan_placement(asked)
    assert isinstance(plan, PlacementRefusal), plan
    return plan


# --- fewest peers, and who drives
def test_what_fits_on_the_coordinator_is_never_split() -> None:
    assert placed(request(even(8), (80, 1000, 1000))) == [("p0", 0, 8)]


def test_what_fits_on_another_peer_is_not_split_because_the_coordinator_is_small() -> None:
    assert placed(request(even(8), (40, 80, 40))) == [("p1", 0, 8)]


def test_the_fewest_peers_share_what_does_not_fit() -> None:
    assert placed(request(even(8), (40, 40, 40, 40))) == [("p0", 0, 4), ("p1", 4, 8)]


def test_exactly_as_many_stages_as_asked_for_though_fewer_would_do() -> None:
    assert placed(request(even(6), (1000, 1000, 1000), 3)) == [("p0", 0, 2), ("p1", 2, 4), ("p2", 4, 6)]


def test_a_coordinator_without_memory_holds_nothing() -> None:
    assert placed(request(even(6), (0, 60))) == [("p1", 0, 6)]


def test_the_coordinator_drives_unless_the_step_then_takes_more_than_twice_as_long() -> None:
    asked = request(even(8), (80, 80))
    slow = with_peer(with_peer(asked, "p0", decode_bytes_per_s=1_000), "p1", decode_bytes_per_s=1_900)
    assert placed(slow) == [("p0", 0, 8)]
    assert placed(with_peer(slow, "p1", decode_bytes_per_s=2_300)) == [("p1", 0, 8)]
    assert planned(slow).runner_ups[0].why_not is WhyNot.ANOTHER_DRIVER
    assert placed(replace(slow, coordinator=None)) == [("p1", 0, 8)]


# --- speed
def test_a_token_travels_the_shortest_ring() -> None:
    asked = request(even(12), (30, 40, 50, 60), 4)
    for far in ("p1p2", "p0p3"):
        names = [name for name, *_ in placed(linked(asked, **{far: 300}))]
        assert names in (["p0", "p1", "p3", "p2"], ["p0", "p2", "p3", "p1"])


def test_less_than_a_millisecond_does_not_outweigh_memory() -> None:
    asked = request(uneven((10, 10, 40)), (10, 60, 45))
    near = placed(asked)
    links = LinkMatrix(
        dict.fromkeys(itertools.combinations([p.peer_id for p in asked.peers], 2), PairLink(400, 0, False))
    )
    assert placed(replace(asked, links=links)) == near


def test_the_nearer_peer_is_taken_and_a_far_one_is_never_refused() -> None:
    asked = request(even(8), (40, 40, 70))
    assert placed(linked(asked, p0p2=80)) == [("p0", 0, 4), ("p1", 4, 8)]
    only_far = request(even(8), (40, 40))
    assert placed(linked(only_far, p0p1=60_000)) == placed(only_far)


def test_a_faster_peer_takes_more_layers_and_of_equal_ones_the_faster_is_taken() -> None:
    model = even(8, 100_000_000)
    asked = request(model, (500_000_000, 700_000_000, 700_000_000), 2)
    asked = with_peer(with_peer(asked, "p0", decode_bytes_per_s=10**9), "p1", decode_bytes_per_s=10**9)
    assert placed(linked(with_peer(asked, "p2", decode_bytes_per_s=4 * 10**9))) == [("p0", 0, 1), ("p2", 1, 8)]


def test_a_relayed_link_counts_for_more_than_its_time_and_so_does_an_unknown_one_between_hidden_peers() -> None:
    asked = request(even(8), (40, 40, 40))
    links = {(PeerId("p0"), PeerId(name)): PairLink(ms * 1000, 0, name == "p1") for name, ms in (("p1", 4), ("p2", 20))}
    plan = planned(replace(asked, links=LinkMatrix(links)))
    assert [stage.peer_id for stage in plan.stages] == ["p0", "p2"]
    assert plan.estimate.network_us == 20_000
    hidden = with_peer(with_peer(asked, "p0", is_behind_nat=True), "p1", is_behind_nat=True)
    assert [name for name, *_ in placed(hidden)] == ["p0", "p2"]


def test_bytes_of_activations_take_time_on_a_narrow_link() -> None:
    model = replace(even(8), activation_bytes=100_000)
    asked = request(model, (40, 40, 40))
    links = {
        (PeerId("p0"), PeerId("p1")): PairLink(1_000, 1_000_000, False),
        (PeerId("p0"), PeerId("p2")): PairLink(21_000, 100_000_000, False),
    }
    plan = planned(replace(asked, links=LinkMatrix(links)))
    assert [stage.peer_id for stage in plan.stages] == ["p0", "p2"]
    assert plan.estimate.transfer_us == 1_000


def test_an_unknown_speed_is_the_median_of_the_known_ones() -> None:
    asked = request(even(8, 10**6), (10**8, 10**8, 10**8, 10**8))
    for name, speed in (("p1", 10**6), ("p2", 2 * 10**6), ("p3", 10**9)):
        asked = with_peer(asked, name, decode_bytes_per_s=speed)
    assert Prices(asked).speed_of(asked.peers[0]) == 2 * 10**6


def test_the_estimate_adds_up_and_tells_upstreams_figure_beside_it() -> None:
    asked = linked(request(even(6, 8_000_000), (16_000_000,) * 3), p0p1=20, p1p2=40, p0p2=60)
    estimate = planned(asked).estimate
    policy = asked.policy
    assert estimate.network_us == 10_000 + 20_000 + 30_000
    assert estimate.compute_us == 3 * 2_000
    assert estimate.overhead_us == policy.step_overhead_us + 3 * policy.hop_overhead_us
    assert estimate.tpot_us == 66_000 + estimate.overhead_us
    assert estimate.estimated_decode_network_ms_per_token == 90.0
    assert not estimate.decode_tpot_target_met
    assert planned(replace(asked, target_us=estimate.tpot_us)).estimate.decode_tpot_target_met


def test_one_peer_has_no_network() -> None:
    estimate = planned(request(even(6), (60,))).estimate
    assert (estimate.network_us, estimate.estimated_decode_network_ms_per_token) == (0, 0.0)


# --- context, lanes, files, balance
def shaped(*shapes: tuple[int, int, int]) -> PlanningModel:
    """Shapes by context, lanes, and the bytes of each of eight layers."""
    made = tuple(ShapeBytes((size,) * 8, context_tokens=context, lanes=lanes) for context, lanes, size in shapes)
    return PlanningModel(made, tuple(range(1, 8)))


def test_the_longest_context_that_costs_no_peer_and_no_time() -> None:
    model = shaped((8192, 4, 30), (8192, 1, 20), (4096, 4, 15), (4096, 1, 10))
    for free, expected in ((240, (8192, 4)), (239, (8192, 1)), (159, (4096, 4)), (119, (4096, 1))):
        plan = planned(request(model, (free, free)))
        assert (len(plan.stages), plan.context_tokens, plan.lanes) == (1, *expected)


def test_a_longer_context_does_not_take_a_further_peer() -> None:
    plan = planned(request(shaped((8192, 1, 20), (4096, 1, 10)), (80, 80)))
    assert (len(plan.stages), plan.context_tokens) == (1, 4096)


def test_a_longer_context_does_not_take_a_slower_peer() -> None:
    asked = linked(request(shaped((8192, 1, 20), (4096, 1, 10)), (70, 50, 110), 2), p0p2=50)
    plan = planned(asked)
    assert ([stage.peer_id for stage in plan.stages], plan.context_tokens) == (["p0", "p1"], 4096)
    assert planned(linked(asked, p0p1=50, p0p2=50, p1p2=50)).context_tokens == 8192


def test_of_equally_fast_peers_the_one_that_has_the_model_is_taken() -> None:
    asked = request(even(8), (40, 40, 70))
    assert [name for name, *_ in placed(asked)] == ["p0", "p2"]
    assert [name for name, *_ in placed(with_peer(asked, "p1", has_model=True))] == ["p0", "p1"]


def test_equal_peers_share_evenly_and_unequal_ones_by_what_they_offer() -> None:
    assert [end - start for _, start, end in placed(request(even(62), (200,) * 4))] == [16, 16, 15, 15]
    assert placed(request(even(40), (300, 900), 2)) == [("p0", 0, 10), ("p1", 10, 40)]


def test_a_sixteenth_of_an_offer_stays_free() -> None:
    asked = replace(request(even(4), (42,)), policy=DEFAULT_POLICY)
    assert placed(asked) == [("p0", 0, 4)]
    assert refused(with_peer(asked, "p0", free_bytes=41)).reason is PlacementReason.MEMORY_SHORT


# --- what owners and families allow
def test_an_owners_wishes_are_kept() -> None:
    asked = request(even(8), (1000, 40, 40))
    assert placed(with_peer(asked, "p0", is_excluded=True)) == [("p1", 0, 4), ("p2", 4, 8)]
    assert placed(with_peer(asked, "p0", most_layers=0)) == [("p1", 0, 4), ("p2", 4, 8)]
    assert placed(with_peer(asked, "p0", most_layers=5)) == [("p0", 0, 5), ("p1", 5, 8)]
    assert placed(with_peer(asked, "p0", most_bytes=40)) == [("p0", 0, 4), ("p1", 4, 8)]


def test_peers_that_had_better_be_spared_come_last_of_their_rank() -> None:
    asked = with_peer(request(even(8), (100, 40, 40)), "p0", is_spared=True)
    assert placed(asked) == [("p1", 0, 4), ("p2", 4, 8)]
    [unused] = plan_placement(asked).unused
    assert (unused.peer_id, unused.reason) == ("p0", PeerReason.SPARED)
    assert placed(with_peer(asked, "p2", is_spared=True)) == [("p0", 0, 8)]
    assert placed(with_peer(asked, "p2", rank=1)) == [("p0", 0, 8)]


def test_only_permitted_cuts_are_used_and_no_forbidden_range() -> None:
    assert placed(request(uneven((10,) * 6, (5,)), (50, 50))) == [("p0", 0, 5), ("p1", 5, 6)]
    model = replace(even(6), forbidden=frozenset({LayerRange(0, 3), LayerRange(3, 6)}))
    assert placed(request(model, (40, 40))) in ([("p0", 0, 2), ("p1", 2, 6)], [("p0", 0, 4), ("p1", 4, 6)])


def test_the_whole_may_fit_where_all_but_its_last_layer_would_not() -> None:
    model = uneven((10, 10), first_bytes=50, last_bytes=50, whole_saves_bytes=65)
    shape = model.least
    assert shape.bytes_of(LayerRange(0, 1)) > shape.bytes_of(LayerRange(0, 2)) == 55
    assert placed(request(model, (55,))) == [("p0", 0, 2)]
    assert refused(request(model, (54, 54), 2)).reason is PlacementReason.MEMORY_SHORT


def test_a_peer_that_is_listed_twice_counts_once_and_with_the_smaller_offer() -> None:
    twice = request(even(4), (20, 40, 20))
    twice = replace(twice, peers=(*twice.peers[:2], replace(twice.peers[1], free_bytes=20)))
    assert placed(twice) == [("p0", 0, 2), ("p1", 2, 4)]


def test_stages_of_a_sticky_family_stay_with_their_owners() -> None:
    model = replace(even(9), is_sticky=True)
    first = planned(request(model, (30, 30, 30), 3))
    after = request(model, (30, 30, 0, 60, 40), None)
    kept = replace(after, kept=first.stages)
    found = placed(with_peer(kept, "p2", is_excluded=True))
    assert found[:2] == [("p0", 0, 3), ("p1", 3, 6)]
    survivors = replace(kept, peers=tuple(p for p in kept.peers if p.peer_id != "p1"))
    assert placed(survivors) == [("p0", 0, 3), ("p3", 3, 6), ("p2", 6, 9)]
    moved = replace(survivors, model=replace(model, is_sticky=False))
    assert placed(moved) == [("p0", 0, 3), ("p3", 3, 9)]


def test_a_sticky_family_is_planned_anew_where_no_peer_fills_the_gap() -> None:
    model = replace(even(9), is_sticky=True)
    first = planned(request(model, (30, 30, 30), 3))
    asked = replace(request(model, (80, 0, 20)), kept=first.stages[:1])
    assert placed(asked) == [("p0", 0, 8), ("p2", 8, 9)]


# --- refusals
@pytest.mark.parametrize(
    ("asked", "reason", "numbers", "could_peers_help"),
    [
        (request(even(4), (0, 0)), "no_memory_offered", ("0",), True),
        (request(even(4), (90,), 3), "too_few_peers", ("3 stages", "1 is here", "start 2 more"), True),
        (request(even(4), (90, 90), 3), "too_few_peers", ("3 stages", "2 are here", "start 1 more"), True),
        (request(even(4), (90,) * 9, 9), "too_few_layers", ("9 stages", "4 layers"), False),
        (request(even(200), (9000,) * 70, 65), "too_few_layers", ("65 stages", "64"), False),
        (request(uneven((1,) * 4, (2,)), (9, 9), 3), "no_permitted_cut", ("2 cuts", "permits 1"), False),
        (
            request(
                replace(uneven((1,) * 4, (2,)), forbidden=frozenset({LayerRange(0, 2), LayerRange(2, 4)})), (9, 9), 2
            ),
            "no_permitted_cut",
            ("2 stages", "4 layers"),
            False,
        ),
        (request(even(4, GIB), (GIB, GIB)), "memory_short", ("4.0 GiB", "2 peers", "2.0 GiB"), True),
        (request(even(4, GIB), (GIB, GIB), 2), "memory_short", ("4.0 GiB", "2.0 GiB"), True),
        (request(even(4, GIB), (GIB, 3 * GIB), 1), "memory_short", ("4.0 GiB", "on one peer"), True),
        (request(uneven((GIB,) * 2, ()), (GIB, GIB)), "memory_short", ("2.0 GiB", "on one peer"), True),
    ],
)
def test_a_refusal_has_its_reason_its_numbers_and_says_whether_peers_could_help(
    asked: PlanRequest, reason: str, numbers: tuple[str, ...], could_peers_help: bool
) -> None:
    refusal = refused(asked)
    assert refusal.reason == reason
    assert all(number in refusal.text for number in numbers), refusal.text
    assert refusal.could_peers_help is could_peers_help
    assert len(refusal.peers) == len(asked.peers)
    check_numbers(refusal.numbers)
    for peer in refusal.peers:
        check_numbers(peer.numbers)


def check_numbers(numbers: Numbers) -> None:
    """Each figure once, under a name."""
    assert numbers
    assert len(dict(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 more peer holds the model for a run of another coordinator, and it is left out for 15 s at most"),
        (2, "2 more peers hold the model for a run of another coordinator, and they are left out for 15 s at most"),
    ],
)
def test_no_peer_is_to_be_started_where_those_that_are_missing_serve_the_model_already(count: int, text: str) -> None:
    for asked in (request(even(4), (90,), 3), request(even(4), (0,)), request(even(4, GIB), (GIB,))):
        refusal = refused(replace(asked, left_out=LeftOut(count, 14_500_000)))
        assert text in refusal.text
        assert not any(advice in refusal.text for advice in ("start", "add a peer"))


def test_each_peer_without_a_stage_is_told_with_its_reason() -> None:
    asked = with_peer(request(even(8, 10), (40, 40, 9, 0, 40)), "p4", is_excluded=True)
    reasons = {refusal.peer_id: refusal.reason for refusal in planned(asked).unused}
    assert reasons == {"p2": PeerReason.TOO_SMALL, "p3": PeerReason.NO_MEMORY, "p4": PeerReason.EXCLUDED}


MEMORY = {"offered_bytes": 40 * GIB, "usable_bytes": 40 * GIB}


@pytest.mark.parametrize(
    ("changes", "reason", "text", "numbers"),
    [
        ({"is_excluded": True}, "excluded_by_owner", "its owner wants no stage there, with 40.0 GiB free",
         {"free_bytes": 40 * GIB}),
        ({"most_layers": 0}, "excluded_by_owner", "its owner allows 0 layers there, with 40.0 GiB free",
         {"free_bytes": 40 * GIB, "most_layers": 0}),
        ({"most_bytes": 0}, "no_memory_offered", "its owner allows 0 B, with 40.0 GiB free",
         {"free_bytes": 40 * GIB, "offered_bytes": 0}),
        ({"free_bytes": 0}, "no_memory_offered", "it offers 0 B", {"free_bytes": 0, "offered_bytes": 0}),
        ({"free_bytes": GIB}, "too_small", "1.0 GiB within its head room, the smallest stage needs 10.0 GiB",
         {"offered_bytes": GIB, "usable_bytes": GIB, "smallest_stage_bytes": 10 * GIB}),
        ({"rank": 3}, "of_lower_rank", "it is of rank 3, and 2 of rank 0 suffice; 40.0 GiB within its head room",
         {**MEMORY, "peers_used": 2, "rank": 3}),
        ({"is_spared": True}, "spared",
         "it runs on battery or its owner uses it, and 2 others suffice; 40.0 GiB within its head room",
         {**MEMORY, "peers_used": 2}),
        ({}, "not_needed", "40.0 GiB within its head room", {**MEMORY, "peers_used": 2}),
    ],
)  # fmt: skip
def test_why_a_peer_holds_no_stage_has_its_numbers_for_people_and_for_programs(
    changes: dict[str, object], reason: str, text: str, numbers: dict[str, int]
) -> None:
    asked = with_peer(request(even(8, 10 * GIB), (40 * GIB,) * 3), "p2", **changes)
    [told] = planned(asked).unused
    assert (told.peer_id, told.reason, told.text, dict(told.numbers)) == ("p2", reason, text, numbers)


def test_peers_of_the_ranks_and_kinds_that_had_to_be_taken_are_not_said_to_be_held_back() -> None:
    for last in ({"rank": 1}, {"is_spared": True}):
        asked = request(even(8), (40, 40, 40))
        for name in ("p1", "p2"):
            asked = with_peer(asked, name, **last)
        assert [told.reason for told in planned(asked).unused] == [PeerReason.NOT_NEEDED]


def test_no_stages_at_all_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="0 stages"):
        request(even(4), (90,), 0)


# --- runners-up
def test_runner_ups_are_other_peers_and_one_peer_more_with_what_they_would_have_cost() -> None:
    asked = linked(request(even(8), (40, 40, 40, 80)), p0p1=10, p0p2=30, p1p2=30)
    plan = planned(replace(asked, peers=asked.peers[:3]))
    told = [([stage.peer_id for stage in r.stages], r.why_not, r.estimate.network_us) for r in plan.runner_ups]
    assert [stage.peer_id for stage in plan.stages] == ["p0", "p1"]
    assert (["p0", "p2"], WhyNot.SLOWER, 30_000) in told
    assert any(why is WhyNot.MORE_PEERS and len(names) == 3 for names, why, _ in told)
    assert all(r.estimate.tpot_us > 0 for r in plan.runner_ups)


# --- ranks and wire dtypes
def ranked(asked: PlanRequest, *last: str) -> PlanRequest:
    """The same, with these peers behind all others."""
    return replace(asked, peers=tuple(replace(peer, rank=int(peer.peer_id in last)) for peer in asked.peers))


def test_peers_of_the_first_rank_hold_the_model_alone_if_they_can() -> None:
    asked = request(even(4), (20, 30, 20))
    assert {stage[0] for stage in placed(asked)} == {"p0", "p1"}
    assert {stage[0] for stage in placed(ranked(asked, "p1"))} == {"p0", "p2"}
    assert [r.reason for r in planned(ranked(asked, "p1")).unused] == [PeerReason.UNTRUSTED]


def test_others_help_where_the_first_rank_does_not_suffice_and_a_small_peer_of_it_is_not_in_the_way() -> None:
    asked = request(even(4), (20, 20, 1))
    assert {stage[0] for stage in placed(ranked(asked, "p1"))} == {"p0", "p1"}


def test_a_wire_dtype_that_is_not_certified_refuses_a_split_at_once_and_says_why() -> None:
    model = replace(even(4), wire_cuts=frozenset(), wire_reason="not certified; run that")
    for asked in (request(model, (25, 25)), request(model, (99, 99), 2)):
        refusal = refused(asked)
        assert refusal.reason is PlacementReason.WIRE_DTYPE_UNCERTIFIED
        assert refusal.text == "not certified; run that (0 of 3 permitted cuts are certified)"
        assert dict(refusal.numbers) == {"certified_cuts": 0, "permitted_cuts": 3}
        assert not refusal.could_peers_help


def test_a_whole_model_needs_no_certificate_and_cuts_are_those_that_are_certified() -> None:
    whole = replace(even(4), wire_cuts=frozenset(), wire_reason="not certified")
    assert placed(request(whole, (40, 40))) == [("p0", 0, 4)]
    at_three = replace(even(4), wire_cuts=frozenset({3}), wire_reason="only at 3")
    assert placed(request(at_three, (30, 30))) == [("p0", 0, 3), ("p1", 3, 4)]
    assert refused(request(at_three, (25, 25))).text == "only at 3 (1 of 3 permitted cuts are certified)"
    assert refused(request(whole, (99, 99, 99, 99, 99), 5)).reason is PlacementReason.TOO_FEW_LAYERS


# --- all placements there are
@dataclass(frozen=True, slots=True)
class Found:
    """One way to place the model in one shape."""

    peers: tuple[PlanningPeer, ...]
    ranges: tuple[LayerRange, ...]
    shape: int
    cost_us: int
    fetchers: int
    fullest: int


def all_placements(asked: PlanRequest) -> Iterator[Found]:
    """The simple reference: every choice and order of peers, every choice of cuts, every shape."""
    givers = [peer for peer in asked.peers if peer.offered_bytes > 0]
    counts = range(1, len(givers) + 1) if asked.stage_count is None else (asked.stage_count,)
    for count, (at, _) in itertools.product(counts, enumerate(asked.model.shapes)):
        for peers in itertools.permutations(givers, count):
            for cuts in itertools.combinations(asked.model.cuts, count - 1):
                ranges = tuple(LayerRange(a, b) for a, b in itertools.pairwise((0, *cuts, asked.model.layer_count)))
                found = measured(asked, peers, ranges, at)
                if found is not None:
                    yield found


def ring_us(prices: Prices, peers: list[PeerId]) -> int:
    if len(peers) == 1:
        return prices.overhead_us(1)
    hops = sum(prices.hop_us(one, other) for one, other in zip(peers, (*peers[1:], peers[0]), strict=True))
    sent = sum(itertools.starmap(prices.transfer_us, itertools.pairwise(peers)))
    return prices.overhead_us(0) + hops + sent


def measured(
    asked: PlanRequest, peers: tuple[PlanningPeer, ...], ranges: tuple[LayerRange, ...], at: int
) -> Found | None:
    model, prices = asked.model, Prices(asked)
    cost_us, fullest = ring_us(prices, [peer.peer_id for peer in peers]), 0
    for peer, layers in zip(peers, ranges, strict=True):
        needed = model.shapes[at].bytes_of(layers)
        is_short = peer.most_layers is not None and len(layers) > peer.most_layers
        if needed > asked.usable_bytes(peer) or is_short or layers in model.forbidden:
            return None
        reads = sum(model.reads[layers.start : layers.end]) + model.output_reads * layers.is_last(model.layer_count)
        cost_us += compute_us(reads, prices.speed_of(peer))
        fullest = max(fullest, needed * FULL // asked.usable_bytes(peer))
    return Found(peers, ranges, at, cost_us, sum(not peer.has_model for peer in peers), fullest)


def best_of(asked: PlanRequest, found: list[Found]) -> list[Found]:
    """Those that remain after each rule in turn."""
    fewest = min(len(one.peers) for one in found)
    found = [one for one in found if len(one.peers) == fewest]
    own = [one for one in found if one.peers[0].peer_id == asked.coordinator]
    fastest = min(one.cost_us for one in found)
    if min((one.cost_us for one in own), default=1 << 62) <= asked.policy.coordinator_factor * fastest:
        found = own
    fastest = min(one.cost_us for one in found)
    budget = fastest + max(asked.policy.tolerance_us, fastest * asked.policy.tolerance_percent // 100)
    found = [one for one in found if one.cost_us <= budget]
    for rule in (lambda one: one.shape, lambda one: one.fetchers, lambda one: one.fullest):
        least = min(map(rule, found))
        found = [one for one in found if rule(one) == least]
    return found


@st.composite
def requests(draw: st.DrawFn, most_peers: int = 5) -> PlanRequest:
    layers = draw(st.integers(1, 6))
    small = draw(st.lists(st.integers(0, 20), min_size=layers, max_size=layers))
    more = draw(st.lists(st.integers(0, 10), min_size=layers, max_size=layers))
    first, last, stage = (draw(st.integers(0, 10)) for _ in range(3))
    saves = draw(st.integers(0, small[-1] + first + last + stage))
    least = ShapeBytes(tuple(small), first, last, stage, saves, 1024, 1)
    larger = replace(least, layer_bytes=tuple(a + b for a, b in zip(small, more, strict=True)), context_tokens=2048)
    cuts = tuple(sorted(draw(st.sets(st.integers(1, layers - 1))))) if layers > 1 else ()
    bounds = (0, *cuts, layers)
    ranges = [LayerRange(a, b) for a, b in itertools.combinations(bounds, 2) if b - a < layers]
    forbidden = frozenset(draw(st.lists(st.sampled_from(ranges), max_size=2))) if ranges else frozenset()
    shapes = (larger, least) if draw(st.booleans()) else (least,)
    certified = frozenset(draw(st.lists(st.sampled_from(cuts)))) if cuts else frozenset()
    model = PlanningModel(
        shapes, cuts, forbidden, tuple(n * 1000 for n in small), draw(st.integers(0, 20_000)), activation_bytes=1000,
        cache_reads=tuple(n * 100 for n in more) if draw(st.booleans()) else (),
        wire_cuts=draw(st.sampled_from([None, certified])), wire_reason="not certified everywhere",
    )  # fmt: skip
    peers = tuple(draw(planning_peers(f"p{number}")) for number in range(draw(st.integers(1, most_peers))))
    names = [peer.peer_id for peer in peers]
    links = {
        pair: PairLink(
            draw(st.sampled_from([0, 1_000, 20_000, 90_000])), draw(st.sampled_from([0, 10**6])), draw(st.booleans())
        )
        for pair in itertools.combinations(names, 2)
        if draw(st.booleans())
    }
    coordinator = draw(st.sampled_from([None, *names]))
    count = draw(st.none() | st.integers(1, 4))
    return PlanRequest(model, peers, coordinator, count, LinkMatrix(links))


@st.composite
def planning_peers(draw: st.DrawFn, name: str) -> PlanningPeer:
    return PlanningPeer(
        PeerId(name),
        draw(st.integers(0, 90) | st.sampled_from([30, 60])),
        most_bytes=draw(st.none() | st.integers(0, 60)),
        most_layers=draw(st.none() | st.integers(0, 4)),
        is_excluded=draw(st.integers(0, 9)) == 0,
        decode_bytes_per_s=draw(st.sampled_from([0, 10**6, 2 * 10**6, 10**9])),
        has_model=draw(st.booleans()),
        is_behind_nat=draw(st.booleans()),
        rank=draw(st.sampled_from([0, 0, 0, 1, 2])),
        is_spared=draw(st.integers(0, 3)) == 0,
    )


def at_certified_cuts(asked: PlanRequest) -> PlanRequest:
    """The same question as a model of a family that permits no other cuts."""
    model = asked.model
    cuts = tuple(cut for cut in model.cuts if model.wire_cuts is None or cut in model.wire_cuts)
    return replace(asked, model=replace(model, cuts=cuts, wire_cuts=None))


def by_preference(asked: PlanRequest) -> list[PlanRequest]:
    """The same question of fewer peers, those first of which no others are asked if they can hold the model."""
    trusted = tuple(peer for peer in asked.peers if peer.rank == 0)
    at_hand = tuple(peer for peer in trusted if not peer.is_spared)
    return [replace(asked, peers=peers) for peers in (at_hand, trusted, asked.peers)]


@settings(max_examples=300, deadline=None)
@given(requests())
def test_a_placement_is_the_best_of_all_there_are(whole: PlanRequest) -> None:
    plan = plan_placement(whole)
    allowed = at_certified_cuts(whole)
    tries = [(asked, list(all_placements(asked))) for asked in by_preference(allowed)]
    asked, possible = next(((asked, found) for asked, found in tries if found), (allowed, []))
    if not possible:
        assert isinstance(plan, PlacementRefusal)
        assert any(digit.isdigit() for digit in plan.text)
        check_numbers(plan.numbers)
        return
    assert isinstance(plan, Placement), plan
    offers = {peer.peer_id: peer for peer in asked.peers}
    at = next(n for n, s in enumerate(asked.model.shapes) if s.context_tokens == plan.context_tokens)
    chosen = measured(
        asked,
        tuple(offers[stage.peer_id] for stage in plan.stages),
        tuple(stage.layers for stage in plan.stages),
        at,
    )
    assert chosen is not None
    best = best_of(asked, possible)
    assert len(chosen.peers) == len(best[0].peers)
    assert (chosen.shape, chosen.fetchers, chosen.fullest) == (best[0].shape, best[0].fetchers, best[0].fullest)
    assert chosen.cost_us in {one.cost_us for one in best}


@settings(max_examples=100, deadline=None)
@given(requests(most_peers=7))
def test_stages_tile_the_layers_within_every_peers_offer(asked: PlanRequest) -> None:
    plan = plan_placement(asked)
    if isinstance(plan, PlacementRefusal):
        assert sorted(told.peer_id for told in plan.peers) == sorted(peer.peer_id for peer in asked.peers)
        return
    model = at_certified_cuts(asked).model
    shape = next(s for s in model.shapes if s.context_tokens == plan.context_tokens)
    offers = {peer.peer_id: peer for peer in asked.peers}
    for stages, held in ((plan.stages, shape), *((other.stages, model.least) for other in plan.runner_ups)):
        assert ranges_tile(tuple(stage.layers for stage in stages), model.layer_count)
        assert len({stage.peer_id for stage in stages}) == len(stages)
        for stage in stages:
            peer = offers[stage.peer_id]
            assert stage.needed_bytes == held.bytes_of(stage.layers) <= asked.usable_bytes(peer)
            assert stage.free_bytes == peer.offered_bytes
            assert peer.most_layers is None or len(stage.layers) <= peer.most_layers
            assert stage.layers not in model.forbidden
            assert stage.layers.end in (*model.cuts, model.layer_count)
    assert {stage.peer_id for stage in plan.stages} | {r.peer_id for r in plan.unused} == set(offers)
    for told in plan.unused:
        check_numbers(told.numbers)
        assert any(digit.isdigit() for digit in told.text)


@settings(max_examples=100, deadline=None)
@given(requests(most_peers=7))
def test_runner_ups_are_other_choices_and_the_reason_is_true_of_each(asked: PlanRequest) -> None:
    plan = plan_placement(asked)
    if isinstance(plan, PlacementRefusal):
        return
    chosen = {stage.peer_id for stage in plan.stages}
    others = [frozenset(stage.peer_id for stage in other.stages) for other in plan.runner_ups]
    assert chosen not in others
    assert len(set(others)) == len(others) <= asked.policy.runner_ups
    for other in plan.runner_ups:
        assert other.estimate.tpot_us > 0
        assert other.estimate.stage_count == len(other.stages)
        assert (other.why_not is WhyNot.MORE_PEERS) == (len(other.stages) > len(plan.stages))
        if other.why_not is WhyNot.ANOTHER_DRIVER:
            assert plan.stages[0].peer_id == asked.coordinator != other.stages[0].peer_id


@settings(max_examples=100, deadline=None)
@given(requests(most_peers=7), st.randoms(use_true_random=False))
def test_the_order_of_the_peers_changes_nothing(asked: PlanRequest, rng: "object") -> None:
    shuffled = list(asked.peers)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan_placement(replace(asked, peers=tuple(shuffled))) == plan_placement(asked)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 6), st.sets(st.integers(1, 5)))
def test_ranks_refuse_nothing_that_can_be_placed(free: list[int], layers: int, last: set[int]) -> None:
    asked = request(even(layers), tuple(free))
    names = {f"p{number}" for number in last}
    plan = plan_placement(ranked(asked, *names))
    assert isinstance(plan, Placement) == isinstance(plan_placement(asked), Placement)
    alone = plan_placement(replace(asked, peers=tuple(peer for peer in asked.peers if peer.peer_id not in names)))
    if isinstance(alone, Placement):
        assert isinstance(plan, Placement)
        assert [stage.peer_id for stage in plan.stages] == [stage.peer_id for stage in alone.stages]


# --- stages that are up
@settings(max_examples=150, deadline=None)
@given(requests(), st.data())
def test_stages_that_are_up_stay_wherever_each_gap_between_them_has_a_peer_of_its_own(
    asked: PlanRequest, data: st.DataObject
) -> None:
    model, ids = asked.model, [peer.peer_id for peer in asked.peers]
    ends = [*model.cuts, model.layer_count]
    ranges = [LayerRange(a, b) for a, b in itertools.pairwise((0, *ends))]
    places = data.draw(st.lists(st.sampled_from([None, *ids]), min_size=len(ranges), max_size=len(ranges)))
    owners = {place: held for place, held in zip(places, ranges, strict=True) if place is not None}
    kept = tuple(PlannedStage(peer, held, model.least.bytes_of(held), 99) for peer, held in owners.items())
    asked = replace(asked, kept=kept, model=replace(model, wire_cuts=None))
    found = plan_kept(asked)
    gaps = gaps_of(kept, model.layer_count)
    givers = [peer for peer in asked.peers if peer.peer_id not in owners]
    ways = [
        peers
        for peers in itertools.permutations(givers, len(gaps))
        if all(holds(asked, peer, gap) for peer, gap in zip(peers, gaps, strict=True))
    ]
    assert isinstance(found, Placement) == bool(ways)
    if isinstance(found, Placement):
        assert set(kept) <= set(found.stages)
        assert ranges_tile(tuple(stage.layers for stage in found.stages), model.layer_count)
        assert len({stage.peer_id for stage in found.stages}) == len(found.stages)
        sticky = plan_placement(replace(asked, model=replace(asked.model, is_sticky=True)))
        assert not kept or sticky == found
    else:
        check_numbers(found.numbers)


def gaps_of(kept: tuple[PlannedStage, ...], layer_count: int) -> list[LayerRange]:
    held = sorted(stage.layers for stage in kept)
    edges = [0, *itertools.chain.from_iterable((layers.start, layers.end) for layers in held), layer_count]
    return [LayerRange(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def holds(asked: PlanRequest, peer: PlanningPeer, layers: LayerRange) -> bool:
    is_short = peer.most_layers is not None and len(layers) > peer.most_layers
    needed = asked.model.least.bytes_of(layers)
    return needed <= asked.usable_bytes(peer) and not is_short and layers not in asked.model.forbidden


def test_a_gap_leaves_the_only_peer_that_another_fits_on_to_that_one() -> None:
    """The faster peer would be taken for the first gap, and is the only one with room for the second."""
    asked = request(uneven((10, 10, 10, 30), None), (10, 30, 10))
    asked = with_peer(asked, "p1", decode_bytes_per_s=1 << 40)
    kept = (PlannedStage(PeerId("p0"), LayerRange(1, 3), 20, 10),)
    found = plan_kept(replace(asked, kept=kept))
    assert isinstance(found, Placement)
    assert [stage.peer_id for stage in found.stages] == ["p2", "p0", "p1"]


# --- many peers
def test_many_peers_are_cut_in_fair_parts() -> None:
    stages = placed(request(even(100), (90,) + (150,) * 10))
    assert len(stages) == 7
    assert ranges_tile(tuple(LayerRange(start, end) for _, start, end in stages), 100)
    asked = request(even(100), (90,) + (150,) * 10, 8)
    assert ranges_tile(tuple(stage.layers for stage in planned(asked).stages), 100)


def test_among_many_peers_the_near_ones_are_found() -> None:
    asked = request(even(12), (40,) * 40)
    names = [peer.peer_id for peer in asked.peers]
    near = {PeerId("p0"), PeerId("p17"), PeerId("p33")}
    links = {
        pair: PairLink(2_000 if set(pair) <= near else 150_000, 0, False) for pair in itertools.combinations(names, 2)
    }
    plan = planned(replace(asked, links=LinkMatrix(links)))
    assert {stage.peer_id for stage in plan.stages} == near


def test_a_thousand_peers_that_are_short_together_are_refused() -> None:
    refusal = refused(request(even(100), (15,) * 1000))
    assert refusal.reason is PlacementReason.MEMORY_SHORT


def test_a_shortage_says_that_owners_cap_layers() -> None:
    asked = with_peer(request(even(8), (1000,)), "p0", most_layers=5)
    assert "1 peer, which has a cap on layers, offers" in refused(asked).text


@pytest.mark.parametrize("capped", [3, 70])
def test_large_peers_of_which_their_owners_give_a_layer_stand_in_the_way_of_no_smaller_ones(capped: int) -> None:
    asked = request(even(8), (1000,) * capped + (50,) * 12)
    for number in range(capped):
        asked = with_peer(asked, f"p{number}", most_layers=1)
    assert len(planned(replace(asked, coordinator=None)).stages) == 2


# --- what follows a broken run
def test_a_lost_stage_goes_where_an_engine_waits_and_the_others_stay() -> None:
    asked = request(even(8), (40, 40, 40, 80))
    broken = planned(asked)
    assert [stage.peer_id for stage in broken.stages] == ["p3"]
    split = planned(request(even(8), (40, 40)))
    spares = {LayerRange(4, 8): PeerId("p2")}
    found = plan_replacement(asked, split, None, {PeerId("p1")}, spares.get)
    assert isinstance(found, Placement)
    assert [stage.peer_id for stage in found.stages] == ["p0", "p2"]
    engine_died = plan_replacement(asked, split, 1, (), spares.get)
    assert isinstance(engine_died, Placement)
    assert engine_died.stages == found.stages
    without_spare = plan_replacement(asked, split, None, {PeerId("p1"), PeerId("p2")}, spares.get)
    assert isinstance(without_spare, Placement)
    assert [stage.peer_id for stage in without_spare.stages] == ["p0", "p3"]


@pytest.mark.parametrize(("wanted", "cuts"), [(None, [(0, 3), (3, 8)]), (3, [(0, 3), (3, 6), (6, 8)])])
def test_lost_neighbours_stay_apart_where_so_many_stages_are_asked_for(
    wanted: int | None, cuts: list[tuple[int, int]]
) -> None:
    asked = replace(request(even(8), (40, 40, 40, 80, 80)), stage_count=wanted)
    stages = [("p0", 0, 3), ("p1", 3, 6), ("p2", 6, 8)]
    held = tuple(PlannedStage(PeerId(name), LayerRange(start, end), 0, 0) for name, start, end in stages)
    split = replace(planned(asked), stages=held)
    found = plan_replacement(asked, split, None, {PeerId("p1"), PeerId("p2")}, lambda layers: None)
    assert isinstance(found, Placement)
    assert [(stage.layers.start, stage.layers.end) for stage in found.stages] == cuts
    assert len({stage.peer_id for stage in found.stages}) == len(cuts)


@pytest.mark.parametrize("last", [{"rank": 1}, {"is_spared": True}])
def test_a_lost_stage_goes_to_a_stranger_or_a_peer_to_be_spared_only_where_nobody_else_has_room(
    last: dict[str, object],
) -> None:
    split = planned(request(even(8), (40, 40)))
    fast = with_peer(request(even(8), (40, 40, 80, 80)), "p2", decode_bytes_per_s=1 << 40, **last)
    for gone, heir in (({"p1"}, "p3"), ({"p1", "p3"}, "p2")):
        found = plan_replacement(fast, split, None, gone, lambda layers: None)
        assert isinstance(found, Placement)
        assert [stage.peer_id for stage in found.stages] == ["p0", heir]
