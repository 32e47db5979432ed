"""A model in a few numbers, for ``p2pmesh models show`` and for announcements. Says; never decides."""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange
from p2pmesh.model.cost import measure_model
from p2pmesh.model.families import cut_refusal, permitted_cuts, window_pattern
from p2pmesh.model.gguf import GgufIndex
from p2pmesh.model.sequence_state import head_widths
from p2pmesh.model.tensor_types import TENSOR_TYPES


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Facts for a person. ``cut_refusal`` says why a model stays whole, and is empty if it may be cut somewhere."""

    architecture: str
    title: str
    layer_count: int
    hidden_size: int
    head_count: int
    kv_head_count: int
    key_length: int
    value_length: int
    context_length: int
    vocabulary_size: int
    sliding_window: int
    windowed_layer_count: int
    size_bytes: int
    layers_bytes: int
    embedding_bytes: int
    output_bytes: int
    is_output_tied: bool
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    activation_bytes_per_token: int
    tensor_types: tuple[str, ...]
    cut_count: int
    cut_refusal: str


def describe_model(index: GgufIndex) -> ModelDescription:
    """The facts of a supported model; ``head_count`` and ``kv_head_count`` are those of its widest layer."""
    cost = measure_model(index)
    key_length, value_length = head_widths(index)
    cuts = permitted_cuts(index)
    refusal = None if cuts or index.layer_count == 1 else cut_refusal(index, LayerRange(0, 1))
    return ModelDescription(
        architecture=index.architecture,
        title=index.name,
        layer_count=index.layer_count,
        hidden_size=index.hidden_size,
        head_count=max(index.head_counts),
        kv_head_count=max(index.kv_head_counts),
        key_length=key_length,
        value_length=value_length,
        context_length=index.context_length,
        vocabulary_size=index.vocabulary_size,
        sliding_window=index.sliding_window,
        windowed_layer_count=sum(window_pattern(index)),
        size_bytes=index.size_bytes,
        layers_bytes=sum(cost.layer_bytes),
        embedding_bytes=cost.embedding_bytes,
        output_bytes=cost.output_bytes,
        is_output_tied=cost.is_tied,
        kv_bytes_per_token=sum(cost.kv_bytes_per_token),
        state_bytes_per_sequence=sum(cost.state_bytes_per_sequence),
        activation_bytes_per_token=cost.activation_bytes_per_token,
        tensor_types=_tensor_types(index),
        cut_count=len(cuts),
        cut_refusal=refusal or "",
    )


def _tensor_types(index: GgufIndex) -> tuple[str, ...]:
    """Names of the tensor types, the one with the most bytes first."""
    sizes: dict[int, int] = {}
    for tensor in index.tensors:
        sizes[tensor.ggml_type] = sizes.get(tensor.ggml_type, 0) + tensor.size_bytes
    ordered = sorted(sizes, key=lambda number: (-sizes[number], number))
    return tuple(TENSOR_TYPES[number].name for number in ordered)
