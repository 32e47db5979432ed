"""What one layer keeps of the sequences that it has seen: keys and values by token, or a state by sequence.

Owns the widths, as llama.cpp allocates them with the engine's settings: keys and values in 16 bits; windowed layers in
full, since a pruned cache cannot roll back; states in 32 bits. How many tokens and sequences there is room for, and
everything else that takes memory, is ``cost``'s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2pmesh.model.family_rules import FULL_ATTENTION_INTERVAL, RECURRENT_LAYERS, SequenceState, rules_of
from p2pmesh.model.gguf import GgufIndex

F16_BYTES = 2
F32_BYTES = 4

_STATE_BUT_AT_OWN_INTERVALS: Mapping[str, int] = {"minimax-01": 8}
"""With the interval that llama.cpp takes where the file names none, other than the usual one."""
_USUAL_INTERVAL = 4
_STATE_AND_CELLS = frozenset({"falcon-h1"})
_NOTHING_KEPT = frozenset({"dream", "llada", "llada-moe", "rnd1"})
_FEED_FORWARD_LAYERS = frozenset({"nemotron_h", "nemotron_h_moe"})
"""A layer with a feed-forward has nothing else, so it keeps nothing."""
_INDEXED = frozenset({"deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3"})
"""A narrow key cache beside the wide one picks the tokens that are attended to."""
_SCORE_BLOCKS = frozenset({"minimax-m3"})
_WITHOUT_SCAN_GROUPS = frozenset({"jamba", "mamba"})
_GEMMA3N_KV_LAYERS = 20


@dataclass(frozen=True, slots=True)
class LayerState:
    """What a layer keeps: bytes of each token's keys and values, bytes of each sequence's state."""

    bytes_per_token: int
    bytes_per_sequence: int


def layer_states(index: GgufIndex) -> tuple[LayerState, ...]:
    """One item per layer. Also for a stage file, whose layers count from 0."""
    architecture = index.architecture
    count = index.layer_count
    if architecture in _NOTHING_KEPT:
        return (LayerState(0, 0),) * count
    if rules_of(architecture).state is SequenceState.RECURRENT:
        return (LayerState(0, _state_bytes(index)),) * count
    has_state = _layers_with_state(index)
    feed_forward = _feed_forward_layers(index)
    own_cells = _layers_with_cells(index)
    states: list[LayerState] = []
    for layer in range(count):
        keeps_cells = (not has_state[layer] or architecture in _STATE_AND_CELLS) and own_cells[layer]
        per_token = _token_bytes(index, layer) if keeps_cells and not feed_forward[layer] else 0
        per_sequence = _state_bytes(index) if has_state[layer] and not feed_forward[layer] else 0
        states.append(LayerState(per_token, per_sequence))
    return tuple(states)


def head_widths(index: GgufIndex) -> tuple[int, int]:
    """Width of a key's and a value's head; 0 for a file without heads."""
    return _width(index, "attention.key_length"), _width(index, "attention.value_length")


@dataclass(frozen=True, slots=True)
class Indexer:
    """Picks the tokens that are attended to: ``query_width`` elements a row score all cells, ``top_k`` are taken."""

    query_width: int
    top_k: int


def indexer_of(index: GgufIndex) -> Indexer | None:
    """The indexer of the families that score every cell; ``None`` for those that score blocks, or have none."""
    if index.architecture not in _INDEXED or index.architecture in _SCORE_BLOCKS:
        return None
    heads, width, top_k = (
        index.number(f"attention.indexer.{name}") or 0 for name in ("head_count", "key_length", "top_k")
    )
    return Indexer(heads * width, top_k)


def has_attention(index: GgufIndex) -> bool:
    """Whether any layer attends to earlier tokens by cells."""
    return any(state.bytes_per_token for state in layer_states(index))


def layers_of_states(index: GgufIndex) -> tuple[bool, ...]:
    """For each layer of a hybrid whether it keeps a state and no cells; all false for any other model."""
    if index.architecture in _STATE_AND_CELLS:
        return (False,) * index.layer_count
    plain = _feed_forward_layers(index)
    return tuple(
        has_state and not is_plain for has_state, is_plain in zip(_layers_with_state(index), plain, strict=True)
    )


def recurrent_interval(architecture: str) -> int | None:
    """Each how many layers a hybrid has one that attends, where its file lists none; None for who counts otherwise."""
    usual = _USUAL_INTERVAL if rules_of(architecture).has_recurrent_interval else None
    return _STATE_BUT_AT_OWN_INTERVALS.get(architecture, usual)


def _layers_with_state(index: GgufIndex) -> tuple[bool, ...]:
    architecture, count = index.architecture, index.layer_count
    if rules_of(architecture).state is not SequenceState.HYBRID:
        return (False,) * count
    if architecture in _STATE_AND_CELLS:
        return (True,) * count
    interval = recurrent_interval(architecture)
    if interval is None:
        return tuple(heads == 0 for heads in index.kv_head_counts)
    own = index.metadata.get(index.key(RECURRENT_LAYERS))
    if own is not None and own.element_type is not None:
        return tuple(flag != 0 for flag in index.per_layer(RECURRENT_LAYERS))
    interval = index.number(FULL_ATTENTION_INTERVAL) or interval
    return tuple((layer + 1) % interval != 0 for layer in range(count))


def _feed_forward_layers(index: GgufIndex) -> tuple[bool, ...]:
    if index.architecture not in _FEED_FORWARD_LAYERS:
        return (False,) * index.layer_count
    return tuple(width > 0 for width in index.per_layer("feed_forward_length"))


def _layers_with_cells(index: GgufIndex) -> tuple[bool, ...]:
    """Trailing layers of some families read the cells of earlier ones."""
    count = index.layer_count
    own = count
    if index.architecture == "gemma3n":
        own = _GEMMA3N_KV_LAYERS
    elif index.architecture == "gemma4":
        own = count - (index.number("attention.shared_kv_layers") or 0)
    return tuple(layer < own for layer in range(count))


def _token_bytes(index: GgufIndex, layer: int) -> int:
    heads = index.kv_head_counts[layer]
    keys, values = _head_widths(index, layer)
    if index.number("attention.key_length_mla") and index.number("attention.value_length_mla"):
        values = 0  # latent keys hold the values too
    return (heads * (keys + values) + _indexer_width(index, layer)) * F16_BYTES


def _indexer_width(index: GgufIndex, layer: int) -> int:
    suffix = "attention.indexer.types"
    if index.architecture not in _INDEXED:
        return 0
    if index.key(suffix) in index.metadata and index.per_layer(suffix)[layer] == 0:
        return 0  # it takes the choice of an earlier layer
    width = index.number("attention.indexer.key_length") or 0
    if index.architecture == "minimax-m3":  # sparse layers keep values beside them
        is_dense = layer < (index.number("leading_dense_block_count") or 0)
        return 0 if is_dense else width + _width(index, "attention.value_length")
    is_pooled = index.architecture == "glm5-next" and index.number("attention.indexer.kpool")
    return 3 * width if is_pooled else width


def _head_widths(index: GgufIndex, layer: int) -> tuple[int, int]:
    """Of keys and values; some families have others in windowed layers."""
    keys, values = _width(index, "attention.key_length"), _width(index, "attention.value_length")
    swa_keys, swa_values = (index.number(f"attention.{kind}_length_swa") for kind in ("key", "value"))
    if swa_keys is None or swa_values is None or not _is_windowed(index, layer):
        return keys, values
    return swa_keys, swa_values


def _width(index: GgufIndex, suffix: str) -> int:
    """A head's width as the file says it, else its share of the hidden size."""
    own = index.number(suffix)
    if own is not None:
        return own
    heads = next((count for count in index.head_counts if count), 0)
    return index.hidden_size // heads if heads else 0


def _is_windowed(index: GgufIndex, layer: int) -> bool:
    suffix = "attention.sliding_window_pattern"
    own = index.metadata.get(index.key(suffix))
    if own is None:
        return False
    if own.element_type is not None:
        return index.per_layer(suffix)[layer] != 0
    period = index.required_number(suffix)
    return period == 0 or layer % period != period - 1


# --- states


def _state_bytes(index: GgufIndex) -> int:
    """Bytes of one sequence's state in one layer."""
    widths = _STATE_WIDTHS.get(index.architecture, _scan_widths)
    return sum(widths(index)) * F32_BYTES


def _time_mix_widths(index: GgufIndex) -> tuple[int, int]:
    shifts = index.number("token_shift_count")
    return (2 if shifts is None else shifts) * index.hidden_size, index.hidden_size * index.required_number(
        "wkv.head_size"
    )


def _short_convolution_widths(index: GgufIndex) -> tuple[int, int]:
    return index.hidden_size * (index.required_number("shortconv.l_cache") - 1), 0


def _delta_attention_widths(index: GgufIndex) -> tuple[int, int]:
    head, heads = index.required_number("kda.head_dim"), index.head_counts[0]
    kernel = index.number("ssm.conv_kernel") or 4
    return 3 * (kernel - 1) * heads * head, heads * head * head


def _scan_widths(index: GgufIndex) -> tuple[int, int]:
    """Convolution and state of a selective scan."""
    kernel, inner, state, groups = (
        index.number(f"ssm.{name}") or 0 for name in ("conv_kernel", "inner_size", "state_size", "group_count")
    )
    if index.architecture in _WITHOUT_SCAN_GROUPS:
        groups = 0
    return max(0, kernel - 1) * (inner + 2 * groups * state), state * inner


def _linear_attention_widths(index: GgufIndex) -> tuple[int, int]:
    head = _width(index, "attention.key_length")
    return 0, head * head * index.head_counts[0]


_Widths = Callable[[GgufIndex], tuple[int, int]]
_STATE_WIDTHS: Mapping[str, _Widths] = {
    **dict.fromkeys(("arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"), _time_mix_widths),
    **dict.fromkeys(("lfm2", "lfm2moe"), _short_convolution_widths),
    **dict.fromkeys(("bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"), _delta_attention_widths),
    "minimax-01": _linear_attention_widths,
}
"""Of families that have no selective scan."""
