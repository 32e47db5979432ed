"""What a token is predicted to take, as plain values for events and the console."""

from typing import Any

from p2pmesh.core.planning.outcome import StepEstimate


def describe_estimate(estimate: StepEstimate) -> dict[str, Any]:
    """The sum, its parts, and upstream's two figures."""
    return {
        **describe_sum(estimate),
        "compute_us": estimate.compute_us,
        "network_us": estimate.network_us,
        "transfer_us": estimate.transfer_us,
        "overhead_us": estimate.overhead_us,
        "cache_us": estimate.cache_us,
    }


def describe_sum(estimate: StepEstimate) -> dict[str, Any]:
    """What a placement says of it."""
    return {
        "predicted_tpot_us": estimate.tpot_us,
        "estimated_decode_network_ms_per_token": estimate.estimated_decode_network_ms_per_token,
        "decode_tpot_target_met": estimate.decode_tpot_target_met,
    }
