"""What Mesh LLM's coordinator would decide (commit c14e458): its rules as they are, to compare with what it published.

Nothing serves by this policy; ``planner`` is ours. It knows a peer's memory and one latency, charges every layer the
same, fills the largest peer first and leaves one layer to each of the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

CONTEXT_STEPS = tuple(512 << power for power in range(9))
"""512 to 131072 tokens."""
LARGEST_FLOOR = 65_536
MOST_LANES = 4
TARGET_MS = 33
_MOST_CHOSEN_FROM = 12
"""Peers whose combinations are all tried; of more the largest are taken."""


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """``kv_bytes_per_token`` is of all layers together; lanes do not multiply it."""

    layer_count: int
    weights_bytes: int
    kv_bytes_per_token: int
    native_context: int

    def layer_bytes(self, context_tokens: int) -> int:
        """What every layer is charged."""
        weights = -(-self.weights_bytes // self.layer_count)
        return weights + -(-self.kv_bytes_per_token // self.layer_count) * context_tokens


@dataclass(frozen=True, slots=True)
class UpstreamPeer:
    """``most_bytes`` is the owner's cap; ``latency_ms`` None is unknown."""

    name: str
    detected_bytes: int
    most_bytes: int | None = None
    head_room_bytes: int = 0
    latency_ms: int | None = None

    @property
    def usable_bytes(self) -> int:
        """Detected, capped, less the head room."""
        capped = self.detected_bytes if self.most_bytes is None else min(self.detected_bytes, self.most_bytes)
        return max(0, capped - self.head_room_bytes)


class UpstreamRefusal(StrEnum):
    """Why there is no plan."""

    CONTEXT_BELOW_MINIMUM = "ContextBelowMinimum"
    CONTEXT_EXCEEDS_NATIVE = "ContextExceedsNative"
    DOES_NOT_FIT = "DoesNotFit"


@dataclass(frozen=True, slots=True)
class UpstreamPlan:
    """Peers in order with the number of layers of each; ``estimate_ms`` None where no latency is known."""

    peers: tuple[str, ...]
    layers: tuple[int, ...]
    context_tokens: int
    lanes: int
    estimate_ms: int | None
    is_target_met: bool
    spare_bytes: tuple[int, ...]


def estimate_decode_ms(hop_ms: int, stages: int) -> int:
    """Network time of a token with direct return: as many hops as stages."""
    return hop_ms * decode_hops(stages)


def decode_hops(stages: int, *, is_chained: bool = False) -> int:
    """Hops of a token; chained, as in generation 2, it goes back the way it came."""
    return 2 * (stages - 1) if is_chained else stages


def plan_upstream(
    model: UpstreamModel,
    peers: Sequence[UpstreamPeer],
    least_peers: int = 1,
    context_override: int | None = None,
    target_ms: int = TARGET_MS,
) -> UpstreamPlan | UpstreamRefusal:
    """The plan that upstream's coordinator makes."""
    contexts = _contexts(model, context_override)
    if isinstance(contexts, UpstreamRefusal):
        return contexts
    plans = [
        plan
        for context in contexts
        for count in range(max(1, least_peers), min(len(peers), model.layer_count) + 1)
        for plan in _of_count(model, peers, count, context, target_ms)
    ]
    has_latency = any(peer.latency_ms is not None for peer in peers)
    return min(plans, key=_by_latency if has_latency else _by_context, default=UpstreamRefusal.DOES_NOT_FIT)


def _contexts(model: UpstreamModel, override: int | None) -> tuple[int, ...] | UpstreamRefusal:
    floor = min(model.native_context, LARGEST_FLOOR)
    if override is not None:
        if override > model.native_context:
            return UpstreamRefusal.CONTEXT_EXCEEDS_NATIVE
        return UpstreamRefusal.CONTEXT_BELOW_MINIMUM if override < floor else (override,)
    steps = {step for step in (*CONTEXT_STEPS, model.native_context) if floor <= step <= model.native_context}
    return tuple(sorted(steps, reverse=True))


def _of_count(
    model: UpstreamModel, peers: Sequence[UpstreamPeer], count: int, context: int, target_ms: int
) -> Iterator[UpstreamPlan]:
    largest_first = sorted(peers, key=lambda peer: (-peer.usable_bytes, peer.name))
    chosen_from = largest_first if len(peers) <= _MOST_CHOSEN_FROM else largest_first[:count]
    size = model.layer_bytes(context)
    for chosen in combinations(chosen_from, count):
        layers = _fill(model.layer_count, [peer.usable_bytes // size for peer in chosen])
        if layers is None:
            continue
        known = [peer.latency_ms for peer in chosen if peer.latency_ms is not None]
        estimate_ms = estimate_decode_ms(max(known), count) if known else None
        spare = tuple(peer.usable_bytes - held * size for peer, held in zip(chosen, layers, strict=True))
        # lanes share one cache, so that all four always fit where one does
        yield UpstreamPlan(
            tuple(peer.name for peer in chosen), layers, context, MOST_LANES, estimate_ms,
            estimate_ms is None or estimate_ms <= target_ms, spare,
        )  # fmt: skip


def _fill(layer_count: int, rooms: Sequence[int]) -> tuple[int, ...] | None:
    """Each takes all that fits and leaves one layer for each that follows."""
    layers, left = [], layer_count
    for at, room in enumerate(rooms):
        held = min(room, left - (len(rooms) - 1 - at))
        if held < 1:
            return None
        layers.append(held)
        left -= held
    return tuple(layers) if left == 0 else None


def _by_context(plan: UpstreamPlan) -> tuple[object, ...]:
    return (-plan.context_tokens, len(plan.peers), -plan.lanes, *_ties(plan))


def _by_latency(plan: UpstreamPlan) -> tuple[object, ...]:
    return (not plan.is_target_met, plan.estimate_ms or 0, -plan.context_tokens, -plan.lanes, *_ties(plan))


def _ties(plan: UpstreamPlan) -> tuple[object, ...]:
    return (plan.estimate_ms or 0, -min(plan.spare_bytes), -sum(plan.spare_bytes), plan.peers)
