"""Which models may be served and cut, where, and why not elsewhere.

Owns the answers at run time: ``family_rules`` says how an architecture is cut, ``family_verdicts`` where runs proved
it. Bytes are ``stage_file``'s, sizes ``cost``'s.
"""

from math import lcm

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.family_rules import (
    INPUT_TENSORS,
    OUTPUT_TENSORS,
    PER_LAYER_ARRAYS,
    RECURRENT_LAYERS,
    SHARED_TENSORS,
    SLIDING_WINDOW_PATTERN,
    WHOLE_ARRAYS,
    Family,
    SequenceState,
    rules_of,
)
from p2pmesh.model.family_verdicts import verdict_of
from p2pmesh.model.gguf import GgufIndex, layer_of_tensor
from p2pmesh.model.sequence_state import layer_states, layers_of_states


def family_of(index: GgufIndex) -> Family:
    """The model's family; ``ConfigError(ARCHITECTURE_UNSUPPORTED)`` with its name and the reason."""
    architecture = index.architecture
    verdict = verdict_of(architecture)
    if verdict is None or not verdict.is_served:
        reason = verdict.reason if verdict is not None else "no run has proved it"
        raise ConfigError(
            ErrorCode.ARCHITECTURE_UNSUPPORTED,
            f"architecture {architecture[:64]!r} is not served: {reason}; "
            "`p2pmesh certify families --list` names those that are",
        )
    return rules_of(architecture)


def check_model(index: GgufIndex) -> None:
    """Raises unless this file is a model that can be served: ``ARCHITECTURE_UNSUPPORTED``, ``GGUF_INVALID``.

    Whether it is but a part of one is asked first, by ``shards.check_not_a_part``.
    """
    family_of(index)
    _check_is_no_stage(index)
    layer_count, _ = index.layer_count, index.hidden_size
    if rules_of(index.architecture).state is not SequenceState.RECURRENT:  # such a file says that it has no heads
        _ = index.kv_head_counts, index.key_length, index.value_length
    layer_states(index)
    held = {parts[0] for tensor in index.tensors if (parts := layer_of_tensor(tensor.name))}
    if not held.issuperset(range(layer_count)) or max(held) >= layer_count + index.predictor_count:
        raise ConfigError(
            ErrorCode.GGUF_INVALID,
            f"it claims {layer_count} layers but holds tensors of {len(held)}: download it again",
        )
    if index.find_tensor("token_embd.weight") is None:
        raise ConfigError(
            ErrorCode.GGUF_INVALID, "it has no token_embd.weight; adapters and projectors cannot be served"
        )


def _check_is_no_stage(index: GgufIndex) -> None:
    if "p2pmesh.layers.start" in index.metadata:
        raise ConfigError(ErrorCode.GGUF_INVALID, "it is a stage cut from a model; name the whole model instead")


def window_pattern(index: GgufIndex) -> tuple[bool, ...]:
    """For each layer whether its attention is windowed; all false for a model without a sliding window."""
    rule = rules_of(index.architecture).window
    layer_count = index.layer_count
    if rule is None or index.sliding_window == 0:
        return (False,) * layer_count
    period = rule.period
    own = index.metadata.get(index.key(SLIDING_WINDOW_PATTERN))
    if own is not None and own.element_type is not None:
        return tuple(flag != 0 for flag in index.per_layer(SLIDING_WINDOW_PATTERN))
    if own is not None:
        period = index.required_number(SLIDING_WINDOW_PATTERN)
    # A period of 0 means that every layer is windowed, of 1 that none is.
    full = 0 if rule.is_full_first else period - 1
    return tuple(period == 0 or layer % period != full for layer in range(layer_count))


def recurrent_layers(index: GgufIndex) -> tuple[bool, ...] | None:
    """For each layer whether it keeps a state instead of cells, where the file gives but an interval; else ``None``."""
    if not rules_of(index.architecture).has_recurrent_interval:
        return None
    own = index.metadata.get(index.key(RECURRENT_LAYERS))
    return None if own is not None and own.element_type is not None else layers_of_states(index)


def cut_refusal(index: GgufIndex, layers: LayerRange) -> str | None:
    """Why ``layers`` cannot be a stage of this model, in one sentence; ``None`` if they can."""
    layer_count = index.layer_count
    if layers.end > layer_count:
        return f"the model has {layer_count} layers, so there is no range {layers}"
    if len(layers) == layer_count:
        return None
    verdict = verdict_of(index.architecture)
    if verdict is None or not verdict.is_splittable:
        return verdict.reason if verdict is not None else "no run has proved it"
    return rule_refusal(index, layers)


def rule_refusal(index: GgufIndex, layers: LayerRange) -> str | None:
    """``cut_refusal`` by the rules alone, for a model whose architecture no run has judged yet."""
    return _general_refusal(index) or _range_refusal(index, layers)


def _range_refusal(index: GgufIndex, layers: LayerRange) -> str | None:
    rules = rules_of(index.architecture)
    if rules.refusal:
        return rules.refusal
    step = lcm(rules.start_step, *(index.number(suffix) or 1 for suffix in rules.step_keys))
    if layers.start % step:
        return f"llama.cpp counts {step} layers at a time from a range's first, so a stage starts at a multiple of that"
    return _window_refusal(index, layers, rules) or _state_refusal(index, layers) or _constant_refusal(index, layers)


def _state_refusal(index: GgufIndex, layers: LayerRange) -> str | None:
    """llama.cpp makes a hybrid's memory of both parts, and neither may be empty."""
    states = layers_of_states(index)
    if not any(states):
        return None
    part = range(layers.start, layers.end)
    if not any(states[layer] for layer in part):
        return "llama.cpp runs no range of a hybrid without a layer that keeps a state"
    if not any(not states[layer] and index.kv_head_counts[layer] for layer in part):
        return "llama.cpp runs no range of a hybrid without an attention layer"
    return None


def _window_refusal(index: GgufIndex, layers: LayerRange, rules: Family) -> str | None:
    pattern = window_pattern(index)
    window = rules.window
    if window is None or not any(pattern):
        return None
    part = pattern[layers.start : layers.end]
    if not window.is_optional and not any(part):
        return "llama.cpp loads no range of this family without a windowed layer"
    if window.needs_full and all(part):
        return "llama.cpp runs no range of this family without a layer that attends to everything"
    return None


def _constant_refusal(index: GgufIndex, layers: LayerRange) -> str | None:
    """Constants that llama.cpp picks by the number of layers, where a file cannot say them."""
    special = rules_of(index.architecture).special_counts
    for suffix in rules_of(index.architecture).needs_keys:
        if index.key(suffix) not in index.metadata:
            return f"its file has no {index.key(suffix)}, which llama.cpp then computes from the number of layers"
    if index.architecture == "gemma3" and index.hidden_size // max(1, index.head_counts[0]) == index.key_length:
        return None  # both attention scales are the same number
    found = sorted({index.layer_count, len(layers)}.intersection(special))
    if not found:
        return None
    return f"llama.cpp takes other constants for a model of {found[0]} layers, and the parts would not agree"


def _general_refusal(index: GgufIndex) -> str | None:
    """Reasons that hold for every range but the whole."""
    known = INPUT_TENSORS | OUTPUT_TENSORS | SHARED_TENSORS
    for tensor in index.tensors:
        if tensor.name not in known and layer_of_tensor(tensor.name) is None:
            return f"no rule says which stage needs its tensor {tensor.name}"
    return _array_refusal(index)


def _array_refusal(index: GgufIndex) -> str | None:
    prefix = index.architecture + "."
    wanted = (index.layer_count, index.layer_count + index.predictor_count)
    for key, entry in index.metadata.items():
        if entry.element_type is None or not key.startswith(prefix):
            continue
        suffix = key.removeprefix(prefix)
        if suffix in WHOLE_ARRAYS:
            continue
        if suffix not in PER_LAYER_ARRAYS:
            return f"no rule says how to cut its array {key}"
        if entry.count not in wanted or entry.value is None:
            return f"its array {key} has {entry.count} items for {index.layer_count} layers"
    return None


def is_range_permitted(index: GgufIndex, layers: LayerRange) -> bool:
    """Whether ``layers`` can be a stage of this model."""
    return cut_refusal(index, layers) is None


def forbidden_ranges(index: GgufIndex, cuts: tuple[int, ...]) -> frozenset[LayerRange]:
    """Ranges between ``cuts`` that cannot be stages, although a cut may stand at either end; the whole is not one."""
    count = index.layer_count
    if not cuts or not _has_range_rules(index):
        return frozenset()
    bounds = (0, *cuts, count)
    ranges = (LayerRange(start, end) for at, start in enumerate(bounds) for end in bounds[at + 1 :])
    return frozenset(layers for layers in ranges if len(layers) < count and _range_refusal(index, layers) is not None)


def _has_range_rules(index: GgufIndex) -> bool:
    """Whether what lies in a range matters, beside where it begins and ends: most families need not look at each."""
    rules = rules_of(index.architecture)
    return bool(rules.special_counts or any(window_pattern(index)) or any(layers_of_states(index)))


def check_range(index: GgufIndex, layers: LayerRange) -> None:
    """Raises ``ConfigError(CUT_UNSUPPORTED)`` with the reason unless ``layers`` can be a stage."""
    reason = cut_refusal(index, layers)
    if reason is not None:
        raise ConfigError(ErrorCode.CUT_UNSUPPORTED, f"layers {layers} cannot be a stage: {reason}")


def permitted_cuts(index: GgufIndex) -> tuple[int, ...]:
    """Inner boundaries b at which the model may be cut into two, ascending; empty if it must stay whole."""
    count = index.layer_count
    verdict = verdict_of(index.architecture)
    if count == 1 or verdict is None or not verdict.is_splittable or _general_refusal(index) is not None:
        return ()
    return tuple(
        cut
        for cut in range(1, count)
        if _range_refusal(index, LayerRange(0, cut)) is None and _range_refusal(index, LayerRange(cut, count)) is None
    )
