"""What a token is predicted to take: from what is known of peers and links, and from what a run measured."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.outcome import MeasuredRun, Placement, PlannedStage, StepEstimate
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.pricing import MOST_HOP_OVERHEAD_US, SLOWEST_BYTES_PER_S, Prices, corrected, learn_overhead
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningModel, PlanningPeer, PlanRequest, ShapeBytes

A, B = PeerId("a"), PeerId("b")
STAGES = (PlannedStage(A, LayerRange(0, 2), 1, 10), PlannedStage(B, LayerRange(2, 4), 1, 10))
MODEL = PlanningModel((ShapeBytes((1,) * 4),), (1, 2, 3), layer_reads=(1_000,) * 4, cache_reads=(0, 100, 200, 300))
PEERS = tuple(PlanningPeer(peer, 10, decode_bytes_per_s=1_000_000) for peer in (A, B))
REQUEST = PlanRequest(MODEL, PEERS, links=LinkMatrix({(A, B): PairLink(20_000, 0, False)}))
MICROS = st.integers(0, 200_000)


def test_the_cache_is_read_besides_the_weights_wherever_it_lies() -> None:
    estimate = Prices(REQUEST).estimate(STAGES)
    assert (estimate.compute_us, estimate.cache_us) == (4_600, 600)
    without = Prices(replace(REQUEST, model=replace(MODEL, cache_reads=()))).estimate(STAGES)
    assert (without.compute_us, without.cache_us) == (4_000, 0)


def test_engines_that_measured_themselves_are_believed_and_the_cache_is_added() -> None:
    estimate = Prices(REQUEST).estimate(STAGES, MeasuredRun((2_500, 3_500)))
    assert estimate.compute_us == 6_000 + 600
    assert (estimate.network_us, estimate.overhead_us) == (20_000, Prices(REQUEST).estimate(STAGES).overhead_us)


def test_of_steps_that_were_timed_the_overhead_is_what_engines_and_links_leave() -> None:
    estimate = Prices(REQUEST).estimate(STAGES, MeasuredRun((2_500, 3_500), ring_us=28_000))
    assert (estimate.compute_us, estimate.network_us, estimate.overhead_us) == (6_600, 20_000, 2_000)
    assert estimate.tpot_us == 28_600
    assert estimate.estimated_decode_network_ms_per_token == 20.0


def test_a_link_that_nobody_has_measured_makes_no_timed_step_longer() -> None:
    unknown = replace(REQUEST, links=LinkMatrix())
    estimate = Prices(unknown).estimate(STAGES, MeasuredRun((2_500, 3_500), ring_us=28_000))
    assert (estimate.network_us, estimate.overhead_us, estimate.tpot_us) == (22_000, 0, 28_600)


@given(MICROS, MICROS, MICROS, MICROS, MICROS, st.lists(MICROS, min_size=1, max_size=4), st.integers(1, 400_000))
def test_a_timed_step_is_the_prediction_whatever_its_parts_were_thought_to_be(
    compute: int, network: int, transfer: int, overhead: int, cache: int, engines: list[int], ring: int
) -> None:
    guessed = StepEstimate(compute, network, transfer, overhead, network, len(engines), 33_000, cache)
    found = corrected(guessed, MeasuredRun(tuple(engines), ring))
    assert found.tpot_us == ring + cache
    assert min(found.compute_us, found.network_us, found.transfer_us, found.overhead_us) >= 0
    assert found.network_us <= network


def test_hops_are_priced_by_what_timed_runs_took_and_one_bad_moment_does_not_rule() -> None:
    timed = StepEstimate(6_000, 20_000, 0, DEFAULT_POLICY.step_overhead_us + 2 * 500, 10_000, 2, 33_000)
    policy = learn_overhead(DEFAULT_POLICY, timed)
    assert policy.hop_overhead_us == (DEFAULT_POLICY.hop_overhead_us + 500) // 2
    for _ in range(20):
        policy = learn_overhead(policy, timed)
    assert abs(policy.hop_overhead_us - 500) <= 1
    assert replace(policy, hop_overhead_us=DEFAULT_POLICY.hop_overhead_us) == DEFAULT_POLICY
    awful = learn_overhead(DEFAULT_POLICY, replace(timed, overhead_us=10**9))
    assert awful.hop_overhead_us == MOST_HOP_OVERHEAD_US
    assert learn_overhead(DEFAULT_POLICY, replace(timed, overhead_us=0)).hop_overhead_us >= 0


def test_a_peer_that_says_it_is_slower_than_any_is_makes_no_others_so_slow_that_nothing_fits() -> None:
    lying = tuple(replace(peer, decode_bytes_per_s=speed) for peer, speed in zip(PEERS, (1, 0), strict=True))
    prices = Prices(replace(REQUEST, peers=lying))
    assert [prices.speed_of(peer) for peer in lying] == [SLOWEST_BYTES_PER_S] * 2
    model = PlanningModel((ShapeBytes((1,) * 4),), (1, 2, 3), layer_reads=(10**12,) * 4)
    asked = PlanRequest(model, lying)
    assert isinstance(plan_placement(asked), Placement)


def test_a_run_of_one_stage_tells_nothing_of_hops() -> None:
    alone = StepEstimate(6_000, 0, 0, 9_000, 0, 1, 33_000)
    assert learn_overhead(DEFAULT_POLICY, alone) is DEFAULT_POLICY


def test_what_owners_let_through_costs_as_a_narrow_link_does() -> None:
    """The sender's cap on what it sends, the receiver's on what it receives; the narrowest counts."""
    model = replace(MODEL, activation_bytes=10_000)

    def transfer_us(sender: PlanningPeer, receiver: PlanningPeer, throughput: int = 0) -> int:
        links = LinkMatrix({(A, B): PairLink(20_000, throughput, False)})
        asked = PlanRequest(model, (sender, receiver), links=links)
        return Prices(asked).estimate(STAGES).transfer_us

    a, b = PEERS
    assert transfer_us(a, b) == 0
    assert transfer_us(replace(a, up_bytes_per_s=1_000_000), b) == 10_000
    assert transfer_us(a, replace(b, down_bytes_per_s=500_000)) == 20_000
    assert transfer_us(replace(a, up_bytes_per_s=1_000_000), replace(b, down_bytes_per_s=500_000), 250_000) == 40_000
    assert transfer_us(replace(a, down_bytes_per_s=1), replace(b, up_bytes_per_s=1)) == 0
