"""``p2pmesh plan``: where a model would go, on the overlay of a running node or on the peers of a file. Facts for JSON.

Nothing is loaded and nobody is asked to hold anything; the decision is ``core.planning``'s, the very one that a node
makes with the same peers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from p2pmesh.app.client import ask_console
from p2pmesh.app.model_access import open_access
from p2pmesh.app.peers_file import KnownPeers, decode_peers, read_peers_file
from p2pmesh.app.wire_clearance import with_clearance
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES, MAX_LANES, MAX_STAGES
from p2pmesh.core.planning.bytes import auto_contexts, planning_model
from p2pmesh.core.planning.first_token import FirstToken, predict_first_token
from p2pmesh.core.planning.outcome import (
    PeerRefusal,
    Placement,
    PlacementRefusal,
    PlannedStage,
    StepEstimate,
)
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import DEFAULT_TARGET_US, PlanningPeer, PlanRequest
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.dtype import WireDtype

Facts = dict[str, Any]
MOST_CONTEXT_TOKENS = 2**31 - 1
MOST_TARGET_MS = 1_000_000
DEFAULT_PROMPT_TOKENS = 512
"""Of the prompt whose first token is predicted, where the context has room for it: a page of text."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What was typed; ``context_tokens`` and ``lanes`` None leave the choice to the planner.

    ``prompt_tokens`` None is ``DEFAULT_PROMPT_TOKENS``, or what the context has room for.
    """

    home: Path
    model: str
    peers: Path | None = None
    context_tokens: int | None = DEFAULT_CONTEXT_TOKENS
    lanes: int | None = DEFAULT_LANES
    stage_count: int | None = None
    target_ms: float = DEFAULT_TARGET_US / 1000
    wire_dtype: WireDtype = WireDtype.F32
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.context_tokens is not None and not 1 <= self.context_tokens <= MOST_CONTEXT_TOKENS:
            raise _invalid(f"--context {self.context_tokens}: give 1 to {MOST_CONTEXT_TOKENS} tokens, or auto")
        if self.lanes is not None and not 1 <= self.lanes <= MAX_LANES:
            raise _invalid(f"--lanes {self.lanes}: give 1 to {MAX_LANES}, or auto")
        if self.stage_count is not None and not 1 <= self.stage_count <= MAX_STAGES:
            raise _invalid(f"--split {self.stage_count}: give 1 to {MAX_STAGES} stages, or auto")
        if not 0 < self.target_ms <= MOST_TARGET_MS:
            raise _invalid(f"--target-tpot {self.target_ms}: give milliseconds, above 0 and at most {MOST_TARGET_MS}")
        most = (self.context_tokens or MOST_CONTEXT_TOKENS) - 1
        if self.prompt_tokens is not None and not 1 <= self.prompt_tokens <= most:
            raise _invalid(f"--prompt {self.prompt_tokens}: give 1 to {most} tokens, so that the context has room")


def _invalid(text: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_INVALID, text)


def make_plan(options: PlanOptions) -> Facts:
    """The plan; ``placement`` or ``refusal`` in it is null."""
    known = _known_peers(options)
    model = trio.run(open_access(options.home, is_reading=True).store.resolve, options.model)
    request = _request(options, model, known)
    plan = plan_placement(request)
    return {
        "model": model.name,
        "layer_count": model.index.layer_count,
        "wire_dtype": options.wire_dtype.label,
        "peers_from": "the running node" if options.peers is None else str(options.peers),
        "peer_count": len(known.peers),
        "peers": [_describe_peer(peer, known.labels[peer.peer_id]) for peer in request.peers],
        **_Described(request, known, options.prompt_tokens or DEFAULT_PROMPT_TOKENS).outcome(plan),
    }


def _known_peers(options: PlanOptions) -> KnownPeers:
    if options.peers is not None:
        return read_peers_file(options.peers)
    try:
        told = ask_console(options.home, "GET", "/api/peers")
    except ConfigError as error:
        if error.code is not ErrorCode.NODE_NOT_RUNNING:
            raise
        text = f"{error.message}, or give --peers FILE to plan over the peers of a file"
        raise ConfigError(ErrorCode.NODE_NOT_RUNNING, text) from None
    return decode_peers(told, "the node")


def _request(options: PlanOptions, model: ModelFile, known: KnownPeers) -> PlanRequest:
    native = model.index.context_length or DEFAULT_CONTEXT_TOKENS
    contexts = auto_contexts(native) if options.context_tokens is None else (options.context_tokens,)
    lanes = tuple(range(DEFAULT_LANES, 0, -1)) if options.lanes is None else (options.lanes,)
    serving = ServingOptions(options.stage_count, contexts[0], lanes[0], options.wire_dtype)
    clearance = with_clearance(serving, model, options.model, options.home).clearance
    shapes = [(context, count) for context in contexts for count in lanes]
    planned = planning_model(model.index, shapes, wire_dtype=options.wire_dtype, clearance=clearance)
    return PlanRequest(
        planned,
        known.having(model, sum(planned.reads) + planned.output_reads),
        known.coordinator,
        options.stage_count,
        known.links,
        target_us=round(options.target_ms * 1000),
        policy=known.policy,
    )


def _describe_peer(peer: PlanningPeer, label: str) -> Facts:
    """What the plan knows of it; null: no cap."""
    return {
        "peer": peer.peer_id,
        "label": label,
        "offered_bytes": peer.offered_bytes,
        "rank": peer.rank,
        "behind_nat": peer.is_behind_nat,
        "max_layers": peer.most_layers,
        "excluded": peer.is_excluded,
        "spared": peer.is_spared,
        "decode_bytes_per_s": peer.decode_bytes_per_s,
        "prefill_bytes_per_s": peer.prefill_bytes_per_s,
        "has_model": peer.has_model,
    }


def _describe_first_token(found: FirstToken) -> Facts:
    return {
        "prompt_tokens": found.prompt_tokens,
        "ttft_us": found.ttft_us,
        "compute_us": found.compute_us,
        "unknown_speeds": found.unknown_speeds,
    }


class _Described:
    """Outcomes of one request as plain values."""

    def __init__(self, request: PlanRequest, known: KnownPeers, prompt_tokens: int) -> None:
        self._request = request
        self._prompt_tokens = prompt_tokens
        self._known = known
        self._peers = {peer.peer_id: peer for peer in request.peers}
        self._usable = {peer.peer_id: request.usable_bytes(peer) for peer in request.peers}

    def outcome(self, plan: Placement | PlacementRefusal) -> Facts:
        if isinstance(plan, PlacementRefusal):
            refusal = {
                "reason": plan.reason.value,
                "message": plan.text,
                "numbers": dict(plan.numbers),
                "could_peers_help": plan.could_peers_help,
            }
            unused = self._refusals(plan.peers)
            return {"placement": None, "refusal": refusal, "runner_ups": [], "unused": unused}
        return {
            "placement": {
                "context_tokens": plan.context_tokens,
                "lanes": plan.lanes,
                "stages": self._stages(plan.stages),
                "estimate": self._estimate(plan.estimate, plan.stages),
                "first_token": self._first_token(plan.stages, plan.context_tokens),
            },
            "refusal": None,
            "runner_ups": [
                {
                    "why_not": other.why_not.value,
                    "stages": self._stages(other.stages),
                    "estimate": self._estimate(other.estimate, other.stages),
                    "first_token": self._first_token(other.stages, plan.context_tokens),
                }
                for other in plan.runner_ups
            ],
            "unused": self._refusals(plan.unused),
        }

    def _stages(self, stages: Sequence[PlannedStage]) -> list[Facts]:
        return [
            {
                "peer": stage.peer_id,
                "label": self._known.labels[stage.peer_id],
                "layers": [stage.layers.start, stage.layers.end],
                "needed_bytes": stage.needed_bytes,
                "usable_bytes": self._usable[stage.peer_id],
                "offered_bytes": stage.free_bytes,
            }
            for stage in stages
        ]

    def _estimate(self, estimate: StepEstimate, stages: Sequence[PlannedStage]) -> Facts:
        ring = zip(stages, (*stages[1:], stages[0]), strict=True)
        hops = {frozenset((one.peer_id, other.peer_id)) for one, other in ring}
        unknown = [hop for hop in hops if len(hop) > 1 and self._known.links.between(*sorted(hop)) is None]
        return {
            "tpot_us": estimate.tpot_us,
            "compute_us": estimate.compute_us,
            "network_us": estimate.network_us,
            "transfer_us": estimate.transfer_us,
            "overhead_us": estimate.overhead_us,
            "max_hop_us": estimate.max_hop_us,
            "estimated_decode_network_ms_per_token": estimate.estimated_decode_network_ms_per_token,
            "target_us": estimate.target_us,
            "decode_tpot_target_met": estimate.decode_tpot_target_met,
            "unknown_speeds": sum(not self._peers[stage.peer_id].decode_bytes_per_s for stage in stages),
            "unknown_links": len(unknown),
        }

    def _first_token(self, stages: Sequence[PlannedStage], context_tokens: int) -> Facts | None:
        """Of a prompt that the context has room for beside an answer."""
        prompt_tokens = max(1, min(self._prompt_tokens, context_tokens - 1))
        found = predict_first_token(self._request, stages, prompt_tokens)
        return None if found is None else _describe_first_token(found)

    def _refusals(self, refusals: Sequence[PeerRefusal]) -> list[Facts]:
        return [
            {
                "peer": refusal.peer_id,
                "label": self._known.labels[refusal.peer_id],
                "reason": refusal.reason.value,
                "message": refusal.text,
                "numbers": dict(refusal.numbers),
            }
            for refusal in refusals
        ]
