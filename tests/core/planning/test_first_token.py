"""What a prompt is predicted to take to its first token: by hand, and against the same chunks one after the other."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_CREDITS
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.bytes import PREDICTED_POSITION
from p2pmesh.core.planning.first_token import ATTENTION_FACTOR, FirstToken, predict_first_token
from p2pmesh.core.planning.outcome import PlannedStage
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningModel, PlanningPeer, PlanRequest, ShapeBytes

A, B = PeerId("a"), PeerId("b")
MODEL = PlanningModel((ShapeBytes((1,) * 4),), (1, 2, 3), layer_reads=(1_000,) * 4, output_reads=500)
PEERS = tuple(PlanningPeer(peer, 10, decode_bytes_per_s=1_000_000, prefill_bytes_per_s=1_000_000) for peer in (A, B))
ALONE = (PlannedStage(A, LayerRange(0, 4), 1, 10),)
SPLIT = (PlannedStage(A, LayerRange(0, 2), 1, 10), PlannedStage(B, LayerRange(2, 4), 1, 10))
STEP_US, HOP_US = DEFAULT_POLICY.step_overhead_us, DEFAULT_POLICY.hop_overhead_us


def asked(rtt_us: int = 20_000, throughput: int = 0, model: PlanningModel = MODEL) -> PlanRequest:
    return PlanRequest(model, PEERS, links=LinkMatrix({(A, B): PairLink(rtt_us, throughput, False)}))


def predicted(request: PlanRequest, stages: tuple[PlannedStage, ...], tokens: int) -> FirstToken:
    found = predict_first_token(request, stages, tokens)
    assert found is not None
    return found


def test_one_stage_reads_its_weights_once_for_each_token_and_its_output_head_once() -> None:
    found = predicted(asked(), ALONE, 240)
    assert found == FirstToken(240, 240 * 4_000 + 500 + STEP_US, 240 * 4_000 + 500, 0)


def test_each_row_reads_the_cache_of_all_rows_before_it() -> None:
    model = replace(MODEL, cache_reads=(PREDICTED_POSITION,) * 4)  # a byte a layer and position
    with_cache, without = (predicted(asked(model=m), ALONE, 100).ttft_us for m in (model, MODEL))
    assert with_cache - without == ATTENTION_FACTOR * 4 * sum(range(100))


def test_stages_work_at_the_same_time_on_chunks_that_follow_each_other() -> None:
    """Two chunks of 480 ms a stage: the second stage begins when the first chunk is here, and ends a chunk later than
    the first one would have on its own."""
    hop_us, chunk_us = 10_000 + HOP_US, 240 * 2_000
    found = predicted(asked(), SPLIT, 480)
    assert found.ttft_us == 3 * chunk_us + hop_us + 500 + hop_us + STEP_US
    assert found.compute_us == 4 * chunk_us + 500
    assert found.ttft_us < predicted(asked(), ALONE, 480).ttft_us


def test_a_narrow_link_carries_one_chunk_after_the_other() -> None:
    model = replace(MODEL, activation_bytes=10_000)
    row_us = 10_000  # at a megabyte a second, five times what a stage takes for it
    found = predicted(asked(throughput=1_000_000, model=model), SPLIT, 480)
    assert found.ttft_us == 240 * 2_000 + 480 * row_us + 240 * 2_000 + 2 * (10_000 + HOP_US) + 500 + STEP_US


def test_on_a_long_way_chunks_wait_for_credit() -> None:
    fast = tuple(replace(peer, prefill_bytes_per_s=10**15) for peer in PEERS)
    request = replace(asked(rtt_us=2_000_000), peers=fast)
    within, beyond = (
        predicted(request, SPLIT, chunks * PREFILL_CHUNK_TOKENS).ttft_us
        for chunks in (PREFILL_CREDITS, PREFILL_CREDITS + 1)
    )
    assert beyond - within == 2 * (1_000_000 + HOP_US)


def test_a_speed_that_was_not_measured_is_the_median_of_the_others_and_without_any_nothing_is_predicted() -> None:
    a, b = PEERS
    found = predicted(replace(asked(), peers=(a, replace(b, prefill_bytes_per_s=0))), SPLIT, 480)
    assert found == replace(predicted(asked(), SPLIT, 480), unknown_speeds=1)
    unknown = tuple(replace(peer, prefill_bytes_per_s=0) for peer in PEERS)
    assert predict_first_token(replace(asked(), peers=unknown), SPLIT, 480) is None


SPEEDS = st.integers(1_000, 10**9)


@st.composite
def lines(draw: st.DrawFn) -> tuple[PlanRequest, tuple[PlannedStage, ...]]:
    count = draw(st.integers(1, 4))
    ids = [PeerId(f"p{number}") for number in range(count)]
    peers = tuple(PlanningPeer(peer, 1, decode_bytes_per_s=10**6, prefill_bytes_per_s=draw(SPEEDS)) for peer in ids)
    pairs = [(one, other) for at, one in enumerate(ids) for other in ids[at + 1 :]]
    rtts, rates = st.integers(0, 300_000), st.sampled_from([0, 10**5, 10**8])
    links = {pair: PairLink(draw(rtts), draw(rates), False) for pair in pairs}
    model = PlanningModel(
        (ShapeBytes((1,) * 4),), (1, 2, 3), layer_reads=tuple(draw(st.integers(0, 10**5)) for _ in range(4)),
        output_reads=draw(st.integers(0, 10**5)), cache_reads=(1_000,) * 4,
        activation_bytes=draw(st.integers(0, 4_096)),
    )  # fmt: skip
    ends = [*sorted(draw(st.permutations([1, 2, 3]))[: count - 1]), 4]
    stages = tuple(
        PlannedStage(peer, LayerRange(*ends_of), 1, 1) for peer, ends_of in zip(ids, pairwise([0, *ends]), strict=True)
    )
    return PlanRequest(model, peers, links=LinkMatrix(links)), stages


@given(lines(), st.integers(1, 2_000))
def test_a_prompt_takes_no_longer_than_chunk_after_chunk_and_no_less_than_its_slowest_part(
    line: tuple[PlanRequest, tuple[PlannedStage, ...]], tokens: int
) -> None:
    request, stages = line
    found = predicted(request, stages, tokens)
    starts = range(0, tokens, PREFILL_CHUNK_TOKENS)
    assert found.prompt_tokens == tokens
    assert found.ttft_us >= found.compute_us // len(stages)
    ring_us = request.links.ring_us([stage.peer_id for stage in stages]) + len(stages) * HOP_US
    sent_us = sum(
        request.model.activation_bytes * 10**6 // link.throughput_bytes_per_s * tokens
        for one, other in pairwise(stages)
        if (link := request.links.between(one.peer_id, other.peer_id)) and link.throughput_bytes_per_s
    )
    assert found.ttft_us <= found.compute_us + STEP_US + len(starts) * ring_us + sent_us
    longer = predicted(request, stages, tokens + 1)
    assert longer.ttft_us >= found.ttft_us
    faster = tuple(replace(peer, prefill_bytes_per_s=2 * peer.prefill_bytes_per_s) for peer in request.peers)
    assert predicted(replace(request, peers=faster), stages, tokens).ttft_us <= found.ttft_us
