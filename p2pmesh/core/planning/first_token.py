"""What a prompt is predicted to take to its first token: chunks of it through the stages, one behind the other.

Owns that arithmetic, for a prompt of which nothing is kept and beside which nothing runs. It is shown, and decides
nothing: which placement is best is ``pricing``'s to say, by the time of a decoded token.

A stage reads the weights of its layers for each token, and the cache before it ``ATTENTION_FACTOR`` times, at the speed
that was measured of its peer with prompts; the last one computes one row of logits. A stage sends a chunk on when it
is computed, and a chunk waits for the one before it at each stage and on each link. Of ``PREFILL_CREDITS`` chunks on
their way the first must be through before another begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_CREDITS
from p2pmesh.core.planning.bytes import PREDICTED_POSITION
from p2pmesh.core.planning.outcome import PlannedStage
from p2pmesh.core.planning.pricing import SLOWEST_BYTES_PER_S, Prices, compute_us
from p2pmesh.core.planning.request import PlanningPeer, PlanRequest

ATTENTION_FACTOR = 2
"""Rows of a prompt attend so much slower than the cache would be read at the speed of weights: each of its keys serves
several heads. Measured on a processor with prompts up to 1,440 tokens: 2.0 for SmolLM2-135M, 2.7 for gemma-3-270m."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Microseconds from a prompt at its driver to its first token; ``compute_us`` of them if stages never overlapped.

    Of ``unknown_speeds`` stages the peers have measured no prompt: the median of the others stands in.
    """

    prompt_tokens: int
    ttft_us: int
    compute_us: int
    unknown_speeds: int


def predict_first_token(request: PlanRequest, stages: Sequence[PlannedStage], prompt_tokens: int) -> FirstToken | None:
    """The prediction for a prompt of at least one token; None where no peer of the request has measured any."""
    known = sorted(peer.prefill_bytes_per_s for peer in request.peers if peer.prefill_bytes_per_s > 0)
    if not known:
        return None
    peers = {peer.peer_id: peer for peer in request.peers}
    holders = [_Holder(request, peers[stage.peer_id], stage, median_low(known)) for stage in stages]
    chunks = [
        (start, min(start + PREFILL_CHUNK_TOKENS, prompt_tokens))
        for start in range(0, prompt_tokens, PREFILL_CHUNK_TOKENS)
    ]
    sampling_us = holders[-1].sampling_us
    line = _Line(request, holders)
    through_us = [line.pass_chunk(*chunk) for chunk in chunks][-1]
    return FirstToken(
        prompt_tokens,
        through_us + sampling_us + line.back_us + request.policy.step_overhead_us,
        sum(holder.chunk_us(*chunk) for holder in holders for chunk in chunks) + sampling_us,
        sum(not peers[stage.peer_id].prefill_bytes_per_s for stage in stages),
    )


class _Holder:
    """A stage, and how long chunks take in it."""

    def __init__(self, request: PlanRequest, peer: PlanningPeer, stage: PlannedStage, usual_bytes_per_s: int) -> None:
        model, span = request.model, slice(stage.layers.start, stage.layers.end)
        self.peer_id = peer.peer_id
        self._bytes_per_s = max(SLOWEST_BYTES_PER_S, peer.prefill_bytes_per_s or usual_bytes_per_s)
        self._weights_bytes = sum((model.layer_reads or model.least.layer_bytes)[span])
        self._cache_bytes = sum(model.cache_reads[span])
        """At ``PREDICTED_POSITION``."""
        self.sampling_us = compute_us(model.output_reads, Prices(request).speed_of(peer))

    def chunk_us(self, start: int, end: int) -> int:
        """Time of the rows from one position to another, each of which attends to all before it."""
        positions = (start + end - 1) * (end - start) // 2
        attended_bytes = ATTENTION_FACTOR * self._cache_bytes * positions // PREDICTED_POSITION
        return compute_us(self._weights_bytes * (end - start) + attended_bytes, self._bytes_per_s)


class _Line:
    """The stages of a placement as chunks pass through them: until when each, and each link after one, is taken."""

    def __init__(self, request: PlanRequest, holders: Sequence[_Holder]) -> None:
        prices = Prices(request)
        ids = [holder.peer_id for holder in holders]
        hop_overhead_us = prices.hop_overhead_us if len(ids) > 1 else 0
        self._holders = holders
        self._latency_us = [prices.one_way_us(*hop) + hop_overhead_us for hop in pairwise(ids)]
        self._transfer_us = [prices.transfer_us(*hop) for hop in pairwise(ids)]
        """Of one row."""
        self.back_us = prices.one_way_us(ids[-1], ids[0]) + hop_overhead_us
        """From the last stage to the driver."""
        self._computed_us = [0] * len(ids)
        self._sent_us = [0] * len(ids)
        self._credited_us = [0] * PREFILL_CREDITS
        """When the driver hears that each of the last chunks is through, the oldest first."""

    def pass_chunk(self, start: int, end: int) -> int:
        """When the next chunk is through the last stage."""
        at_us = self._credited_us.pop(0)
        for place, holder in enumerate(self._holders):
            at_us = max(at_us, self._computed_us[place]) + holder.chunk_us(start, end)
            self._computed_us[place] = at_us
            if place < len(self._latency_us):
                at_us = max(at_us, self._sent_us[place]) + (end - start) * self._transfer_us[place]
                self._sent_us[place] = at_us
                at_us += self._latency_us[place]
        self._credited_us.append(at_us + self.back_us)
        return at_us
