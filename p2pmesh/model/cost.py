"""What a layer range costs in memory: exact bytes of weights, KV cache and states, an estimate for compute buffers.

Owns the arithmetic that placement charges, and the sizes that the engine gives its caches. What a layer keeps of a
token or a sequence is ``sequence_state``'s, what a peer has is placement's affair. A test compares all of it with what
llama.cpp says that it allocates, on real models and on one tiny model of each kind of attention; ``p2pmesh bench
memory`` compares the total with the resident memory of engines.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MIB
from p2pmesh.model.families import window_pattern
from p2pmesh.model.family_rules import INPUT_TENSORS, OUTPUT_TENSORS, rules_of
from p2pmesh.model.gguf import GgufIndex, layer_of_tensor, padded
from p2pmesh.model.sequence_state import (
    F16_BYTES,
    F32_BYTES,
    Indexer,
    LayerState,
    head_widths,
    indexer_of,
    layer_states,
)
from p2pmesh.model.stage_file import EMPTY_VOCABULARY_TOKENS

SPARE_CELLS = 64
"""Cells that an engine has beyond those of its lanes: room for a scratch row."""
SPARE_SEQUENCES = 2
"""Sequences that an engine has beyond its lanes: the scratch row's and the grave."""
CALL_ROWS = 64
"""Rows that an engine's call has at most, and reserves for unless it has more sequences."""

PROCESS_BYTES = 56 * MIB
"""An engine process with its interpreter and libraries, before it loads anything; measured."""
VOCABULARY_ENTRY_BYTES = 384
"""What an engine process keeps of each token of a vocabulary; measured."""
SAMPLING_BYTES = 5 * MIB
"""What an engine process takes to look at logits, besides the rows themselves; measured at last stages."""
OUTPUT_ROWS = 16
"""Rows of one call whose logits are computed and looked at: no call samples or verifies more."""

_CELL_GRANULE = 256
_LIVE_ROWS_OF_WIDTH = 4
"""Activations of one layer that are alive at the same time: residual, normed input, a projection, its sum."""
_SMALL_BUFFERS_BYTES = MIB // 16
_PICKED_CELL_BYTES = 36
"""Of each row: places, zeros, masks; 33 to 37 for deepseek32 at 2,048 to 16,640 cells, 21 for dots3note."""
_EXPERTS = "_exps."
"""In the names of tensors that hold all experts of a layer."""


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """A model's own bytes by part, once for all ranges.

    ``layer_bytes`` and ``layer_states`` have one item per layer. ``output_bytes`` is what the last stage holds
    besides its layers: the output head, which is the embedding's copy where the model ties the two. ``shared_bytes``
    (norms, rope factors) is held by every stage. ``widest_row`` is in elements; ``mask_count`` masks of one row for
    each cell are made, one for each kind of attention. ``repeats_first``: every stage holds the embedding and the
    first layer too (``family_rules``).
    """

    layer_bytes: tuple[int, ...]
    layer_states: tuple[LayerState, ...]
    embedding_bytes: int
    output_bytes: int
    shared_bytes: int
    is_tied: bool
    hidden_size: int
    widest_row: int
    mask_count: int
    vocabulary_size: int
    repeats_first: bool = False
    indexer: Indexer | None = None

    @property
    def layer_count(self) -> int:
        """Layers of the whole model."""
        return len(self.layer_bytes)

    @property
    def kv_bytes_per_token(self) -> tuple[int, ...]:
        """Bytes of keys and values that one token takes in each layer."""
        return tuple(state.bytes_per_token for state in self.layer_states)

    @property
    def state_bytes_per_sequence(self) -> tuple[int, ...]:
        """Bytes of state that one sequence takes in each layer, however long it is."""
        return tuple(state.bytes_per_sequence for state in self.layer_states)

    @property
    def activation_bytes_per_token(self) -> int:
        """Bytes that a token takes between two stages, at 32 bits a number."""
        return self.hidden_size * F32_BYTES


@dataclass(frozen=True, slots=True)
class StageCost:
    """Bytes that one stage takes, by part. All exact but ``compute_bytes``, ``process_bytes`` and ``untouched_bytes``.

    ``kv_bytes`` is the whole cache, its spare cells included, and ``state_bytes`` the states of all sequences.
    ``logits_bytes`` is what the rows of one call give out, ``process_bytes`` what the engine takes beside its buffers.
    ``untouched_bytes`` of the buffers are reserved for logits that no call makes, and for states a second time: a
    machine gives them no memory (a GPU does; the share of it that is not offered covers them).
    """

    weights_bytes: int
    embedding_bytes: int
    output_bytes: int
    kv_bytes: int
    state_bytes: int
    logits_bytes: int
    compute_bytes: int
    process_bytes: int
    untouched_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """All that llama.cpp allocates and tells of."""
        weights = self.weights_bytes + self.embedding_bytes + self.output_bytes
        return weights + self.kv_bytes + self.state_bytes + self.logits_bytes + self.compute_bytes

    @property
    def total_bytes(self) -> int:
        """Everything together: what the process takes of the machine, its resident memory."""
        return self.buffer_bytes - self.untouched_bytes + self.process_bytes


def cache_cells(context_tokens: int, lanes: int) -> int:
    """Cells of the cache that an engine makes for ``lanes`` sequences of ``context_tokens`` tokens each."""
    return padded(context_tokens * lanes + SPARE_CELLS, _CELL_GRANULE)


def measure_model(index: GgufIndex) -> ModelBytes:
    """Adds up the tensors of a model by the stage that will hold them."""
    layer_bytes = [0] * index.layer_count
    embedding = output = shared = 0
    for tensor in index.tensors:
        parts = layer_of_tensor(tensor.name)
        if parts is not None:
            if parts[0] < len(layer_bytes):
                layer_bytes[parts[0]] += tensor.size_bytes
        elif tensor.name in INPUT_TENSORS:
            embedding += tensor.size_bytes
        elif tensor.name in OUTPUT_TENSORS:
            output += tensor.size_bytes
        else:
            shared += tensor.size_bytes
    is_tied = index.find_tensor("output.weight") is None
    states = layer_states(index)
    return ModelBytes(
        layer_bytes=tuple(layer_bytes),
        layer_states=states,
        embedding_bytes=embedding,
        output_bytes=embedding if is_tied else output,
        shared_bytes=shared,
        is_tied=is_tied,
        hidden_size=index.hidden_size,
        widest_row=_widest_row(index),
        mask_count=_mask_count(index, states),
        vocabulary_size=index.vocabulary_size,
        repeats_first=rules_of(index.architecture).repeats_first,
        indexer=indexer_of(index),
    )


def kv_bytes_per_token(index: GgufIndex) -> tuple[int, ...]:
    """Bytes of keys and values that one token takes in each layer, at 16 bits each.

    Windowed layers are charged in full, because the engine keeps their whole cache: a pruned one cannot roll back.
    """
    return tuple(state.bytes_per_token for state in layer_states(index))


def sequence_bytes(index: GgufIndex, context_tokens: int, lanes: int) -> int:
    """Bytes that the layers of a file keep: the cache, and the states of all sequences."""
    states = layer_states(index)
    return _cache_bytes(states, context_tokens, lanes) + _state_bytes(states, lanes)


def stage_bytes(index: GgufIndex, layers: LayerRange, context_tokens: int, lanes: int) -> StageCost:
    """Bytes of the stage ``layers`` with room for ``lanes`` sequences of ``context_tokens`` tokens each."""
    return stage_cost(measure_model(index), layers, context_tokens, lanes)


def stage_cost(model: ModelBytes, layers: LayerRange, context_tokens: int, lanes: int) -> StageCost:
    """``stage_bytes`` from a measured model: cheap enough for a planner to ask about every range.

    A stage that is first and last holds a tied embedding once. The exact file is larger by its header.
    """
    is_first, is_last = layers.is_first(), layers.is_last(model.layer_count)
    takes_tokens = is_first or model.repeats_first
    embedding = model.embedding_bytes if takes_tokens else 0
    if not takes_tokens and not is_last:
        embedding = _empty_embedding_bytes(model.hidden_size)
    output = model.output_bytes if is_last and not (takes_tokens and model.is_tied) else 0
    held = range(layers.start, layers.end)
    repeated = (0,) if model.repeats_first and not is_first else ()
    states = tuple(model.layer_states[layer] for layer in (*repeated, *held))
    has_vocabulary = takes_tokens or is_last
    logits = _logits_bytes(model, lanes, is_last=is_last) if has_vocabulary else 0
    compute = _compute_bytes(model, context_tokens, lanes, has_vocabulary=has_vocabulary)
    used = _used_layers_bytes(model, context_tokens, lanes) + (_used_head_bytes(model, lanes) if is_last else 0)
    return StageCost(
        weights_bytes=sum(model.layer_bytes[layer] for layer in (*repeated, *held)) + model.shared_bytes,
        embedding_bytes=embedding,
        output_bytes=output,
        kv_bytes=_cache_bytes(states, context_tokens, lanes),
        state_bytes=_state_bytes(states, lanes),
        logits_bytes=logits,
        compute_bytes=compute,
        process_bytes=PROCESS_BYTES
        + (_vocabulary_bytes(model) if has_vocabulary else 0)
        + (_sampling_bytes(model, lanes) if is_last else 0),
        untouched_bytes=max(0, compute - used) + (0 if is_last else logits),
    )


def _cache_bytes(states: tuple[LayerState, ...], context_tokens: int, lanes: int) -> int:
    return sum(state.bytes_per_token for state in states) * cache_cells(context_tokens, lanes)


def _state_bytes(states: tuple[LayerState, ...], lanes: int) -> int:
    return sum(state.bytes_per_sequence for state in states) * (lanes + SPARE_SEQUENCES)


def _vocabulary_bytes(model: ModelBytes) -> int:
    return model.vocabulary_size * VOCABULARY_ENTRY_BYTES


def _sampling_bytes(model: ModelBytes, lanes: int) -> int:
    """The rows of logits that are looked at stand a second time in the engine's own memory."""
    return SAMPLING_BYTES + _output_rows(lanes) * model.vocabulary_size * F32_BYTES


def _output_rows(lanes: int) -> int:
    return max(OUTPUT_ROWS, lanes + SPARE_SEQUENCES)


# --- buffers of a call


def _call_rows(lanes: int) -> int:
    return max(CALL_ROWS, lanes + SPARE_SEQUENCES)


def _logits_bytes(model: ModelBytes, lanes: int, *, is_last: bool) -> int:
    """A last stage gives out a row for each sequence; a first one clears one for each row, but computes none."""
    rows = lanes + SPARE_SEQUENCES if is_last else _call_rows(lanes)
    return rows * model.vocabulary_size * F32_BYTES


def _compute_bytes(model: ModelBytes, context_tokens: int, lanes: int, *, has_vocabulary: bool) -> int:
    """About what llama.cpp reserves for one call: what its layers need, or its logits, whichever is more.

    Wherever there is a vocabulary it reserves the logits of every row, also where only the last layer computes them.
    """
    layers = _layers_compute_bytes(model, context_tokens, lanes)
    return max(layers, _head_compute_bytes(model, lanes)) if has_vocabulary else layers


def _layers_compute_bytes(model: ModelBytes, context_tokens: int, lanes: int) -> int:
    """Rows of the widest part and of the hidden size; a mask of each kind of attention; a layer's states twice."""
    rows = _call_rows(lanes)
    activations = rows * F32_BYTES * (2 * model.widest_row + _LIVE_ROWS_OF_WIDTH * model.hidden_size)
    masks = model.mask_count * (rows + 2) * cache_cells(context_tokens, lanes) * F16_BYTES
    states = 2 * max(model.state_bytes_per_sequence) * (lanes + SPARE_SEQUENCES)
    return activations + masks + states + _indexer_bytes(model.indexer, context_tokens, lanes) + _SMALL_BUFFERS_BYTES


def _used_layers_bytes(model: ModelBytes, context_tokens: int, lanes: int) -> int:
    """Of that, what calls fill: with the states of all sequences once. Measured with mamba2 at four sequences."""
    states = max(model.state_bytes_per_sequence) * (lanes + SPARE_SEQUENCES)
    return _layers_compute_bytes(model, context_tokens, lanes) - states


def _indexer_bytes(indexer: Indexer | None, context_tokens: int, lanes: int) -> int:
    """Its queries, a mask and a score for each cell, and what is made of those picked; the last factor is measured."""
    if indexer is None:
        return 0
    cells = cache_cells(context_tokens, lanes)
    picked = min(indexer.top_k, cells) * _PICKED_CELL_BYTES
    return _call_rows(lanes) * (indexer.query_width * F32_BYTES + cells * (F16_BYTES + F32_BYTES) + picked)


def _head_compute_bytes(model: ModelBytes, lanes: int) -> int:
    return _call_rows(lanes) * F32_BYTES * (model.vocabulary_size + 2 * model.hidden_size)


def _used_head_bytes(model: ModelBytes, lanes: int) -> int:
    """Of the head's buffer, what the rows fill whose logits are computed."""
    return _output_rows(lanes) * model.vocabulary_size * F32_BYTES


def _mask_count(index: GgufIndex, states: tuple[LayerState, ...]) -> int:
    """How many kinds of attention there are: to everything, and to a window."""
    windowed = {
        is_windowed for is_windowed, state in zip(window_pattern(index), states, strict=True) if state.bytes_per_token
    }
    return len(windowed)


@dataclass(frozen=True, slots=True)
class PlanningBytes:
    """The same bytes as sums, for a planner that tries many ranges.

    A range takes ``stage_bytes`` and its layers' bytes, plus ``first_bytes`` and ``last_bytes`` where it has that
    end. That is never less than ``stage_cost`` says. The whole model on one peer takes ``whole_saving_bytes`` less than
    the sum, because it reserves logits once and holds a tied embedding once.
    """

    layer_bytes: tuple[int, ...]
    first_bytes: int
    last_bytes: int
    stage_bytes: int
    whole_saving_bytes: int


def planning_bytes(index: GgufIndex, context_tokens: int, lanes: int) -> PlanningBytes:
    """``PlanningBytes`` with KV cache for ``lanes`` sequences of ``context_tokens`` tokens each."""
    model = measure_model(index)
    cells, sequences = cache_cells(context_tokens, lanes), lanes + SPARE_SEQUENCES
    per_layer = tuple(
        weights + state.bytes_per_token * cells + state.bytes_per_sequence * sequences
        for weights, state in zip(model.layer_bytes, model.layer_states, strict=True)
    )
    compute = _used_layers_bytes(model, context_tokens, lanes)
    reserved = max(_layers_compute_bytes(model, context_tokens, lanes), _head_compute_bytes(model, lanes))
    head = min(reserved - compute, _used_head_bytes(model, lanes))
    first = model.embedding_bytes + _vocabulary_bytes(model)
    last = model.output_bytes + _vocabulary_bytes(model) + head
    last += _logits_bytes(model, lanes, is_last=True) + _sampling_bytes(model, lanes)
    stage = PROCESS_BYTES + model.shared_bytes + compute + _empty_embedding_bytes(model.hidden_size)
    if model.repeats_first:  # each stage is like a first one, with a layer more
        stage, first, last = stage + first + per_layer[0], 0, last - _vocabulary_bytes(model)
    whole = stage_cost(model, LayerRange(0, model.layer_count), context_tokens, lanes).total_bytes
    return PlanningBytes(
        layer_bytes=per_layer,
        first_bytes=first,
        last_bytes=last,
        stage_bytes=stage,
        whole_saving_bytes=sum(per_layer) + first + last + stage - whole,
    )


def decode_reads(index: GgufIndex) -> tuple[tuple[int, ...], int]:
    """Bytes of weights that one decoded token reads, by layer, and of the output head; of experts only those in use.

    The time of a step of one sequence is about these bytes over the memory bandwidth that a peer reaches.
    """
    model = measure_model(index)
    experts, used = index.number("expert_count") or 0, _largest(index, "expert_used_count")
    idle = [0] * index.layer_count
    for tensor in index.tensors if 0 < used < experts else ():
        parts = layer_of_tensor(tensor.name)
        if parts is not None and parts[0] < len(idle) and _EXPERTS in tensor.name:
            idle[parts[0]] += tensor.size_bytes * (experts - used) // experts
    return tuple(all_ - unread for all_, unread in zip(model.layer_bytes, idle, strict=True)), model.output_bytes


def _empty_embedding_bytes(hidden_size: int) -> int:
    return hidden_size * EMPTY_VOCABULARY_TOKENS * F32_BYTES


def _widest_row(index: GgufIndex) -> int:
    """Elements of the widest row inside a layer: the feed-forward of all experts in use, or all query heads."""
    keys = ("attention.head_count", "feed_forward_length", "expert_feed_forward_length", "expert_used_count")
    heads, feed_forward, expert, used = (_largest(index, key) for key in keys)
    queries = heads * head_widths(index)[0]
    inner = index.number("ssm.inner_size") or 0 if any(s.bytes_per_sequence for s in layer_states(index)) else 0
    experts = used * expert if index.number("expert_count") else 0
    return max(queries, feed_forward, experts, inner, index.hidden_size)


def _largest(index: GgufIndex, suffix: str) -> int:
    return max(index.per_layer(suffix)) if index.key(suffix) in index.metadata else 0
