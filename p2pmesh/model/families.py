"""Architectures that may be cut, and what each needs when it is.

Owns: which architectures are supported; which metadata arrays are per layer; sliding-window patterns, which llama.cpp
computes from the layer's index and which a fragment must therefore spell out; which ranges are refused and why.
Bytes are ``stage_file``'s, sizes ``cost``'s. A family joins the table when runs prove it, cut and whole, to the bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.gguf import GgufIndex, layer_of_tensor

SLIDING_WINDOW = "attention.sliding_window"
SLIDING_WINDOW_PATTERN = "attention.sliding_window_pattern"

PER_LAYER_ARRAYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "expert_used_count",
        "feed_forward_length",
        SLIDING_WINDOW_PATTERN,
    }
)
"""Keys (after ``<arch>.``) whose value is one item per layer where it is an array; cut with the layers."""

INPUT_TENSORS = frozenset({"token_embd.weight"})
"""Of the first stage; also of the last where the model ties its output to them."""

OUTPUT_TENSORS = frozenset({"output.weight", "output.bias", "output.scale", "output.input_scale"})
"""Of the last stage only."""

SHARED_TENSORS = frozenset(
    {
        "output_norm.weight",  # only the last stage uses it, but llama.cpp loads nothing without it
        "output_norm.bias",
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
    }
)
"""Of every stage."""

CutRule = Callable[[GgufIndex, LayerRange], str | None]
"""Why a range of a model cannot run by itself, or ``None``. Never asked about the whole model."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. ``window_period`` p: layer i is windowed unless it is the last of each p layers."""

    architecture: str
    window_period: int | None
    cut_rule: CutRule


_GEMMA3_27B_LAYERS = 62


def _gemma3_rule(index: GgufIndex, layers: LayerRange) -> str | None:
    """llama.cpp picks another attention scale when it counts 62 layers, so a fragment must agree with its model."""
    if index.hidden_size // max(1, index.head_counts[0]) == index.key_length:
        return None  # both scales are the same number
    if index.layer_count == _GEMMA3_27B_LAYERS:
        return "llama.cpp scales the attention of a 62-layer gemma3 by its layer count, which a part has not"
    if len(layers) == _GEMMA3_27B_LAYERS:
        return "llama.cpp would take 62 layers for the 27B model and scale their attention wrongly"
    return None


def _no_rule(_index: GgufIndex, _layers: LayerRange) -> str | None:
    return None


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", None, _no_rule),
    "gemma3": Family("gemma3", 6, _gemma3_rule),
}


def family_of(index: GgufIndex) -> Family:
    """The model's family; ``ConfigError(ARCHITECTURE_UNSUPPORTED)`` with its name and the reason."""
    architecture = index.architecture
    family = FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(
            ErrorCode.ARCHITECTURE_UNSUPPORTED,
            f"architecture {architecture[:64]!r} is not proven to give the same tokens when it is cut; "
            f"use a model of: {known}",
        )
    return family


def check_model(index: GgufIndex) -> None:
    """Raises unless this file is a whole model that can be served: ``ARCHITECTURE_UNSUPPORTED``, ``GGUF_INVALID``."""
    family_of(index)
    _check_is_whole(index)
    layer_count, _ = index.layer_count, index.hidden_size
    _ = index.kv_head_counts, index.key_length, index.value_length
    held = {parts[0] for tensor in index.tensors if (parts := layer_of_tensor(tensor.name))}
    if held != set(range(layer_count)):
        raise ConfigError(
            ErrorCode.GGUF_INVALID,
            f"it claims {layer_count} layers but holds tensors of {len(held)}: download it again",
        )
    if index.find_tensor("token_embd.weight") is None:
        raise ConfigError(
            ErrorCode.GGUF_INVALID, "it has no token_embd.weight; adapters and projectors cannot be served"
        )


def _check_is_whole(index: GgufIndex) -> None:
    parts = index.metadata.get("split.count")
    if parts is not None and isinstance(parts.value, int) and parts.value > 1:
        raise ConfigError(
            ErrorCode.GGUF_INVALID,
            f"it is one of {parts.value} parts of a model: join them first with llama-gguf-split --merge",
        )
    if "p2pmesh.layers.start" in index.metadata:
        raise ConfigError(ErrorCode.GGUF_INVALID, "it is a stage cut from a model; name the whole model instead")


def window_pattern(index: GgufIndex) -> tuple[bool, ...]:
    """For each layer whether its attention is windowed; all false for a model without a sliding window."""
    period = family_of(index).window_period
    layer_count = index.layer_count
    if period is None or index.sliding_window == 0:
        return (False,) * layer_count
    own = index.metadata.get(index.key(SLIDING_WINDOW_PATTERN))
    if own is not None and own.element_type is not None:
        return tuple(flag != 0 for flag in index.per_layer(SLIDING_WINDOW_PATTERN))
    if own is not None:
        period = index.required_number(SLIDING_WINDOW_PATTERN)
    # A period of 0 means that every layer is windowed, of 1 that none is.
    return tuple(period == 0 or layer % period < period - 1 for layer in range(layer_count))


def cut_refusal(index: GgufIndex, layers: LayerRange) -> str | None:
    """Why ``layers`` cannot be a stage of this model, in one sentence; ``None`` if they can."""
    layer_count = index.layer_count
    if layers.end > layer_count:
        return f"the model has {layer_count} layers, so there is no range {layers}"
    if len(layers) == layer_count:
        return None
    return _general_refusal(index) or family_of(index).cut_rule(index, layers)


def _general_refusal(index: GgufIndex) -> str | None:
    """Reasons that hold for every range but the whole."""
    if index.number("nextn_predict_layers"):
        return "its trailing layers predict further tokens (nextn_predict_layers) and belong to no range"
    for tensor in index.tensors:
        known = tensor.name in INPUT_TENSORS | OUTPUT_TENSORS | SHARED_TENSORS
        if not known and layer_of_tensor(tensor.name) is None:
            return f"no rule says which stage needs its tensor {tensor.name}"
    return _array_refusal(index)


def _array_refusal(index: GgufIndex) -> str | None:
    prefix = index.architecture + "."
    for key, entry in index.metadata.items():
        if entry.element_type is None or not key.startswith(prefix):
            continue
        if key.removeprefix(prefix) not in PER_LAYER_ARRAYS:
            return f"no rule says how to cut its array {key}"
        if entry.count != index.layer_count or entry.value is None:
            return f"its array {key} has {entry.count} items for {index.layer_count} layers"
    return None


def is_range_permitted(index: GgufIndex, layers: LayerRange) -> bool:
    """Whether ``layers`` can be a stage of this model."""
    return cut_refusal(index, layers) is None


def check_range(index: GgufIndex, layers: LayerRange) -> None:
    """Raises ``ConfigError(CUT_UNSUPPORTED)`` with the reason unless ``layers`` can be a stage."""
    reason = cut_refusal(index, layers)
    if reason is not None:
        raise ConfigError(ErrorCode.CUT_UNSUPPORTED, f"layers {layers} cannot be a stage: {reason}")


def permitted_cuts(index: GgufIndex) -> tuple[int, ...]:
    """Inner boundaries b at which the model may be cut into two, ascending; empty if it must stay whole."""
    count = index.layer_count
    rule = family_of(index).cut_rule
    if count == 1 or _general_refusal(index) is not None:
        return ()
    return tuple(
        cut
        for cut in range(1, count)
        if rule(index, LayerRange(0, cut)) is None and rule(index, LayerRange(cut, count)) is None
    )
