"""What a decoded token costs: the only place that knows.

``TPOT = Σ stage compute + Σ one-way latencies round the ring + transfers + overhead``. With direct return there are as
many hops as stages; two stages return along the chain, which is the same hop. One way is taken for half a round trip.
Compute is what the weights of a stage, and the KV cache at one position, take to be read at the peer's measured speed.
What was measured of a run that is loaded replaces what its peers were known for.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.planning.outcome import MeasuredRun, PlannedStage, StepEstimate
from p2pmesh.core.planning.request import DEFAULT_DECODE_BYTES_PER_S, PlanningPeer, PlanningPolicy, PlanRequest

MOST_HOP_OVERHEAD_US = 20_000
"""No hop is believed to take more beside its link, whatever was measured in a bad moment."""
SLOWEST_BYTES_PER_S = 1000
"""A peer counts as no slower than this, so that the time of any model stays a number of 64 bits."""


class Prices:
    """Times of stages and hops between the peers of one request; an unknown speed is the median of the known."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._peers = {peer.peer_id: peer for peer in request.peers}
        known = sorted(peer.decode_bytes_per_s for peer in self._peers.values() if peer.decode_bytes_per_s > 0)
        self._neutral = max(SLOWEST_BYTES_PER_S, median_low(known)) if known else DEFAULT_DECODE_BYTES_PER_S

    def speed_of(self, peer: PlanningPeer) -> int:
        """Bytes of weights that the peer reads in a second."""
        return max(SLOWEST_BYTES_PER_S, peer.decode_bytes_per_s) if peer.decode_bytes_per_s > 0 else self._neutral

    def one_way_us(self, one: PeerId, other: PeerId) -> int:
        """Latency from one peer to another."""
        return self._request.links.one_way_us(one, other)

    def transfer_us(self, one: PeerId, other: PeerId) -> int:
        """What the bytes of a token's activation add, by the link and the caps at its ends; 0 where none is known."""
        if one == other:
            return 0
        link = self._request.links.between(one, other)
        sender, receiver = self._peers.get(one), self._peers.get(other)
        rates = (
            0 if link is None else link.throughput_bytes_per_s,
            0 if sender is None else sender.up_bytes_per_s,
            0 if receiver is None else receiver.down_bytes_per_s,
        )
        rate = min((one_rate for one_rate in rates if one_rate), default=0)
        return self._request.model.activation_bytes * MICROS_PER_SECOND // rate if rate else 0

    def penalty_us(self, one: PeerId, other: PeerId) -> int:
        """What a hop counts for beyond its time when placements are compared."""
        link = self._request.links.between(one, other)
        ends = (self._peers.get(one), self._peers.get(other))
        is_hidden = all(end is not None and end.is_behind_nat for end in ends)
        is_relayed = is_hidden if link is None else link.is_relayed
        return self._request.policy.relay_penalty_us if is_relayed and one != other else 0

    def hop_us(self, one: PeerId, other: PeerId) -> int:
        """What a hop that carries but a token counts for when placements are compared."""
        return self.one_way_us(one, other) + self.penalty_us(one, other) + self.hop_overhead_us

    @property
    def hop_overhead_us(self) -> int:
        """Of each hop, beside the network."""
        return self._request.policy.hop_overhead_us

    def overhead_us(self, stages: int) -> int:
        """Of a step through so many stages."""
        return self._request.policy.step_overhead_us + (stages * self.hop_overhead_us if stages > 1 else 0)

    def estimate(self, stages: Sequence[PlannedStage], measured: MeasuredRun | None = None) -> StepEstimate:
        """The prediction for a placement. The last hop carries but a token.

        What was ``measured`` of it counts before what its peers were known for.
        """
        peers = [stage.peer_id for stage in stages]
        hops = [(peer, peers[(at + 1) % len(peers)]) for at, peer in enumerate(peers)]
        latencies = [self.one_way_us(*hop) for hop in hops]
        cache_us = sum(self._cache_us(stage) for stage in stages)
        estimate = StepEstimate(
            compute_us=sum(self._compute_us(stage) for stage in stages),
            network_us=sum(latencies),
            transfer_us=sum(self.transfer_us(*hop) for hop in hops[:-1]),
            overhead_us=self.overhead_us(len(stages)),
            max_hop_us=max(latencies),
            stage_count=len(stages),
            target_us=self._request.target_us,
            cache_us=cache_us,
        )
        return estimate if measured is None else corrected(estimate, measured)

    def _compute_us(self, stage: PlannedStage) -> int:
        model = self._request.model
        reads = sum(model.reads[stage.layers.start : stage.layers.end])
        reads += model.output_reads * stage.layers.is_last(model.layer_count)
        return self._read_us(stage.peer_id, reads)

    def _cache_us(self, stage: PlannedStage) -> int:
        reads = sum(self._request.model.cache_reads[stage.layers.start : stage.layers.end])
        return self._read_us(stage.peer_id, reads)

    def _read_us(self, peer_id: PeerId, read_bytes: int) -> int:
        peer = self._peers.get(peer_id)
        return compute_us(read_bytes, self._neutral if peer is None else self.speed_of(peer))


def corrected(estimate: StepEstimate, measured: MeasuredRun) -> StepEstimate:
    """An estimate with what was measured in place of what was guessed.

    Engines measure with a cache that is all but empty, so that its read is added. Where whole steps were timed the sum
    is theirs: engines and links explain as much of it as they can, and the overhead is what is left.
    """
    engines_us = sum(measured.decode_us)
    if not measured.ring_us:
        return replace(estimate, compute_us=engines_us + estimate.cache_us)
    engines_us = min(engines_us, measured.ring_us)
    network_us = min(estimate.network_us, measured.ring_us - engines_us)
    transfer_us = min(estimate.transfer_us, measured.ring_us - engines_us - network_us)
    return replace(
        estimate,
        compute_us=engines_us + estimate.cache_us,
        network_us=network_us,
        transfer_us=transfer_us,
        overhead_us=measured.ring_us - engines_us - network_us - transfer_us,
    )


def learn_overhead(policy: PlanningPolicy, timed: StepEstimate) -> PlanningPolicy:
    """The policy with what a hop was found to take in a run whose steps were timed and whose links are known.

    A run of one stage has no hops, and tells nothing. Half of it counts, so that a disturbed start does not rule.
    """
    if timed.stage_count < 2:
        return policy
    found_us = max(0, timed.overhead_us - policy.step_overhead_us) // timed.stage_count
    return replace(policy, hop_overhead_us=min(MOST_HOP_OVERHEAD_US, (policy.hop_overhead_us + found_us) // 2))


def compute_us(read_bytes: int, bytes_per_s: int) -> int:
    """Time to read so many bytes of weights once."""
    return read_bytes * MICROS_PER_SECOND // bytes_per_s
