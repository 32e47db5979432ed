"""What a layer range costs in memory: exact bytes for weights and KV cache, an estimate for compute buffers.

Owns the arithmetic that placement charges. What a peer has is placement's affair.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS
from p2pmesh.model.families import INPUT_TENSORS, OUTPUT_TENSORS
from p2pmesh.model.gguf import GgufIndex, layer_of_tensor
from p2pmesh.model.stage_file import EMPTY_VOCABULARY_TOKENS

F16_BYTES = 2
F32_BYTES = 4
_LIVE_ROWS_OF_WIDTH = 4
"""Activations of one layer that are alive at the same time: residual, normed input, a projection, its sum."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """A model's bytes by part, once for all ranges.

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


def measure_model(index: GgufIndex) -> ModelCost:
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
    return ModelCost(
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


def stage_cost(model: ModelCost, layers: LayerRange, context_tokens: int, lanes: int) -> StageCost:
    """``stage_bytes`` from a measured model: cheap enough for a planner to ask about every range.

    A stage that is first and last holds a tied embedding once. The exact file is larger by its header.
    """
    is_first, is_last = layers.is_first(), layers.is_last(model.layer_count)
    embedding = model.embedding_bytes if is_first else 0
    if not is_first and not is_last:
        embedding = model.hidden_size * EMPTY_VOCABULARY_TOKENS * F32_BYTES
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
    model: ModelCost,
    layers: LayerRange,
    context_tokens: int,
    lanes: int,
    rows: int = PREFILL_CHUNK_TOKENS,
) -> int:
    """About what llama.cpp reserves for one call of ``rows`` rows. An estimate from above, not exact.

    Its parts, all of them for the widest call: the feed-forward's gate and up rows and a few rows of the hidden size
    (32 bits each); the attention mask (one 16-bit number per row and cache cell, and the 32-bit one it is made of);
    at the last stage the logits of every row.
    """
    activations = rows * F32_BYTES * (2 * model.widest_row + _LIVE_ROWS_OF_WIDTH * model.hidden_size)
    mask = rows * context_tokens * lanes * (F32_BYTES + F16_BYTES)
    is_last = layers.is_last(model.layer_count)
    logits = rows * F32_BYTES * model.vocabulary_size if is_last else 0
    return activations + mask + logits


def _widest_row(index: GgufIndex) -> int:
    """Elements of the widest row inside a layer: the feed-forward, or all query heads together."""
    queries = max(index.head_counts) * index.key_length
    key = index.key("feed_forward_length")
    feed_forward = max(index.per_layer("feed_forward_length")) if key in index.metadata else 0
    return max(queries, feed_forward, index.hidden_size)
