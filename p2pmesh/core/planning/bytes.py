"""A model file as the planner sees it: what each range takes, at each context and number of lanes that will do."""

from collections.abc import Sequence

from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS
from p2pmesh.core.planning.request import PlanningModel, ShapeBytes
from p2pmesh.core.wire_certificate import WireClearance
from p2pmesh.model.cost import decode_reads, kv_bytes_per_token, planning_bytes
from p2pmesh.model.families import forbidden_ranges, permitted_cuts
from p2pmesh.model.gguf import GgufIndex
from p2pmesh.model.sequence_state import layer_states
from p2pmesh.wire.activation import row_bytes
from p2pmesh.wire.dtype import WireDtype

PREDICTED_POSITION = 128
"""Tokens that are in the cache of the sequence that placements are predicted for: those of a short talk."""
ANY_WIRE = WireClearance(None, "")
SMALLEST_AUTO_CONTEXT = DEFAULT_CONTEXT_TOKENS
"""A shorter context is taken only where it is asked for, or where the model knows no longer one."""


def planning_model(
    index: GgufIndex,
    shapes: Sequence[tuple[int, int]],
    cuts: tuple[int, ...] = (),
    wire_dtype: WireDtype = WireDtype.F32,
    clearance: WireClearance = ANY_WIRE,
) -> PlanningModel:
    """``shapes`` are (context tokens, lanes), the best first and the smallest last; ``cuts`` not empty are the only
    ones to use, else all that the family permits.
    """
    allowed = cuts or permitted_cuts(index)
    reads, output = decode_reads(index)
    return PlanningModel(
        shapes=tuple(_shape_bytes(index, context_tokens, lanes) for context_tokens, lanes in shapes),
        cuts=allowed,
        forbidden=forbidden_ranges(index, allowed),
        layer_reads=reads,
        output_reads=output,
        cache_reads=tuple(PREDICTED_POSITION * size for size in kv_bytes_per_token(index)),
        activation_bytes=row_bytes(wire_dtype, index.hidden_size),
        wire_cuts=clearance.cuts,
        wire_reason=clearance.reason,
        is_sticky=any(state.bytes_per_sequence for state in layer_states(index)),
    )


def auto_contexts(native_tokens: int) -> tuple[int, ...]:
    """Context lengths to choose from, the longest first: what the model was trained for, and doublings up to there."""
    below = SMALLEST_AUTO_CONTEXT
    steps = []
    while below < native_tokens:
        steps.append(below)
        below *= 2
    return tuple(reversed([*steps, native_tokens]))


def _shape_bytes(index: GgufIndex, context_tokens: int, lanes: int) -> ShapeBytes:
    needed = planning_bytes(index, context_tokens, lanes)
    return ShapeBytes(
        layer_bytes=needed.layer_bytes,
        first_bytes=needed.first_bytes,
        last_bytes=needed.last_bytes,
        stage_bytes=needed.stage_bytes,
        whole_saves_bytes=needed.whole_saving_bytes,
        context_tokens=context_tokens,
        lanes=lanes,
    )
