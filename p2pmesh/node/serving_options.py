"""How a model is to be served, as its operator wants it, and what the planner makes of that."""

from dataclasses import dataclass, field
from itertools import pairwise

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import DEFAULT_REPLAN_AFTER_S
from p2pmesh.core.planning.bytes import planning_model
from p2pmesh.core.planning.request import PlanningModel
from p2pmesh.core.wire_certificate import WireClearance
from p2pmesh.model.families import check_range, permitted_cuts
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.stage import WireDtype


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How a model is to be served. ``stage_count`` None is automatic; ``cuts`` not empty are the only ones to use.

    ``clearance`` says where the model may be cut with ``wire_dtype``. A serving run moves to a clearly better placement
    when that has been better for ``replan_after_s``; 0 never.
    """

    stage_count: int | None
    context_tokens: int
    lanes: int
    wire_dtype: WireDtype
    cuts: tuple[int, ...] = ()
    clearance: WireClearance = field(default_factory=lambda: WireClearance(None, ""))
    replan_after_s: float = DEFAULT_REPLAN_AFTER_S


def planning_model_of(model: ModelFile, options: ServingOptions) -> PlanningModel:
    """The planner's view of a model at this context and these lanes; explicit cuts leave it no others."""
    shape = (options.context_tokens, options.lanes)
    return planning_model(model.index, [shape], options.cuts, options.wire_dtype, options.clearance)


def check_split(model: ModelFile, options: ServingOptions) -> None:
    """Raises early, with the family's reason, if a wanted split can never be."""
    permitted = permitted_cuts(model.index)
    for start, end in pairwise((0, *options.cuts, model.index.layer_count)):
        if not start < end <= model.index.layer_count:
            last = model.index.layer_count - 1
            text = f"--cuts {','.join(map(str, options.cuts))}: give layers of 1 to {last}, each above the one before"
            raise ConfigError(ErrorCode.CUT_UNSUPPORTED, text)
        check_range(model.index, LayerRange(start, end))
    if options.stage_count not in (None, 1) and not permitted:
        check_range(model.index, LayerRange(0, 1))
        raise ConfigError(ErrorCode.CUT_UNSUPPORTED, f"{model.name} must stay whole; leave --split at auto")
