"""What a layer range costs in memory: exact bytes for weights and KV cache, an estimate for compute buffers.

Owns the arithmetic that placement charges. What a peer has is placement's affair.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS
from p2pmesh.base.quantities import MIB
from p2pmesh.model.families import INPUT_TENSORS, OUTPUT_TENSORS
from p2pmesh.model.gguf import GgufIndex, layer_of_tensor
from p2pmesh.model.stage_file import EMPTY_VOCABULARY_TOKENS

F16_BYTES = 2
F32_BYTES = 4
_SMALL_BUFFERS_BYTES = 4 * MIB
_LIVE_ROWS_OF_WIDTH = 4
"""Activations of one layer that are alive at the same time: residual, normed input, a projection, its sum."""


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """A model's own bytes by part, once for all ranges.

    ``layer_bytes`` and ``kv_bytes_per_token`` have one item per layer. ``output_bytes`` is what the last stage holds
    besides its layers: the output head, which is the embedding's copy where the model ties the two. ``shared_bytes``
    (norms, rope factors) is held by every stage.
    """

    layer_bytes: tuple[int, ...]
    kv_bytes_per_token: tuple[int, ...]
    embedding_bytes: int
    output_bytes: int
    shared_bytes: int
    is_tied: bool
    hidden_size: int
    widest_row: int
    vocabulary_size: int

    @property
    def layer_count(self) -> int:
        """Layers of the whole model."""
        return len(self.layer_bytes)


@dataclass(frozen=True, slots=True)
class StageCost:
    """Bytes that one stage takes, by part. All exact but ``compute_bytes``."""

    weights_bytes: int
    embedding_bytes: int
    output_bytes: int
    kv_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.weights_bytes + self.embedding_bytes + self.output_bytes + self.kv_bytes + self.compute_bytes


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
    return ModelBytes(
        layer_bytes=tuple(layer_bytes),
        kv_bytes_per_token=kv_bytes_per_token(index),
        embedding_bytes=embedding,
        output_bytes=embedding if is_tied else output,
        shared_bytes=shared,
        is_tied=is_tied,
        hidden_size=index.hidden_size,
        widest_row=_widest_row(index),
        vocabulary_size=index.vocabulary_size,
    )


def kv_bytes_per_token(index: GgufIndex) -> tuple[int, ...]:
    """Bytes of keys and values that one token takes in each layer, at 16 bits each.

    Windowed layers are charged in full, because the engine keeps their whole cache: a pruned one cannot roll back.
    """
    width = index.key_length + index.value_length
    return tuple(heads * width * F16_BYTES for heads in index.kv_head_counts)


def stage_bytes(index: GgufIndex, layers: LayerRange, context_tokens: int, lanes: int) -> StageCost:
    """Bytes of the stage ``layers`` with room for ``lanes`` sequences of ``context_tokens`` tokens each."""
    return stage_cost(measure_model(index), layers, context_tokens, lanes)


def stage_cost(model: ModelBytes, layers: LayerRange, context_tokens: int, lanes: int) -> StageCost:
    """``stage_bytes`` from a measured model: cheap enough for a planner to ask about every range.

    A stage that is first and last holds a tied embedding once. The exact file is larger by its header.
    """
    is_first, is_last = layers.is_first(), layers.is_last(model.layer_count)
    embedding = model.embedding_bytes if is_first else 0
    if not is_first and not is_last:
        embedding = _empty_embedding_bytes(model.hidden_size)
    output = model.output_bytes if is_last and not (is_first and model.is_tied) else 0
    per_token = sum(model.kv_bytes_per_token[layers.start : layers.end])
    return StageCost(
        weights_bytes=sum(model.layer_bytes[layers.start : layers.end]) + model.shared_bytes,
        embedding_bytes=embedding,
        output_bytes=output,
        kv_bytes=per_token * context_tokens * lanes,
        compute_bytes=estimate_compute_bytes(model, layers, context_tokens, lanes),
    )


def estimate_compute_bytes(
    model: ModelBytes,
    layers: LayerRange,
    context_tokens: int,
    lanes: int,
    rows: int = PREFILL_CHUNK_TOKENS,
) -> int:
    """About what llama.cpp reserves for calls of at most ``rows`` rows: an estimate from above.

    - the feed-forward's gate and up rows and a few rows of the hidden size, 32 bits each;
    - the attention mask: one 16-bit number per row and cache cell, and the 32-bit one it is made of;
    - the logits of every row wherever there is a vocabulary: a first stage reserves them, and clears as much again
      for outputs, although it computes none;
    - a constant for what is small.
    """
    logits = 0
    if layers.is_last(model.layer_count):
        logits = _last_logits_bytes(model, lanes, rows)
    elif layers.is_first():
        logits = _first_logits_bytes(model, rows)
    return _layer_compute_bytes(model, context_tokens, lanes, rows) + logits


def _layer_compute_bytes(model: ModelBytes, context_tokens: int, lanes: int, rows: int) -> int:
    activations = rows * F32_BYTES * (2 * model.widest_row + _LIVE_ROWS_OF_WIDTH * model.hidden_size)
    mask = rows * context_tokens * lanes * (F32_BYTES + F16_BYTES)
    return activations + mask + _SMALL_BUFFERS_BYTES


def _first_logits_bytes(model: ModelBytes, rows: int) -> int:
    """Every row is an output, so that the last layer computes them all."""
    return 2 * rows * model.vocabulary_size * F32_BYTES


def _last_logits_bytes(model: ModelBytes, lanes: int, rows: int) -> int:
    """Only one row per lane and a padding row are outputs."""
    return (rows + lanes + 1) * model.vocabulary_size * F32_BYTES


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
    rows = PREFILL_CHUNK_TOKENS
    per_layer = tuple(
        weights + kv * context_tokens * lanes
        for weights, kv in zip(model.layer_bytes, model.kv_bytes_per_token, strict=True)
    )
    compute = _layer_compute_bytes(model, context_tokens, lanes, rows)
    first = model.embedding_bytes + _first_logits_bytes(model, rows)
    last = model.output_bytes + _last_logits_bytes(model, lanes, rows)
    stage = model.shared_bytes + compute + _empty_embedding_bytes(model.hidden_size)
    whole = stage_cost(model, LayerRange(0, model.layer_count), context_tokens, lanes).total_bytes
    return PlanningBytes(
        layer_bytes=per_layer,
        first_bytes=first,
        last_bytes=last,
        stage_bytes=stage,
        whole_saving_bytes=sum(per_layer) + first + last + stage - whole,
    )


def _empty_embedding_bytes(hidden_size: int) -> int:
    return hidden_size * EMPTY_VOCABULARY_TOKENS * F32_BYTES


def _widest_row(index: GgufIndex) -> int:
    """Elements of the widest row inside a layer: the feed-forward, or all query heads together."""
    queries = max(index.head_counts) * index.key_length
    key = index.key("feed_forward_length")
    feed_forward = max(index.per_layer("feed_forward_length")) if key in index.metadata else 0
    return max(queries, feed_forward, index.hidden_size)
