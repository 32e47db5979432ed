"""Tiny GGUF models with random weights that a real llama.cpp loads and runs, written with ``struct`` alone.

``encode_gguf`` writes any metadata and tensors, sound or not, for tests of readers; ``tiny_llama`` and ``tiny_gemma3``
write models of a few layers with a small tokenizer, for tests of stages and engines. Same arguments, same bytes.
"""

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2pmesh.model.gguf import DEFAULT_ALIGNMENT, SCALAR_FORMATS, ValueType, padded
from p2pmesh.model.tensor_types import F32, TENSOR_TYPES, tensor_bytes

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Key:
    """One metadata entry; with ``element_type`` an array, whose ``value`` is a sequence."""

    name: str
    value_type: int
    value: object
    element_type: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor with its bytes; ``offset`` overrides the place in the data that it would get."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    data: bytes
    offset: int | None = None


def encode_gguf(
    keys: Iterable[Key],
    tensors: Iterable[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> bytes:
    """The file's bytes. Counts and places are right unless a tensor says otherwise."""
    keys, tensors = list(keys), list(tensors)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(_key(key) for key in keys)
    data = b""
    for tensor in tensors:
        offset = len(data) if tensor.offset is None else tensor.offset
        head += _text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", tensor.ggml_type, offset)
        data += tensor.data.ljust(padded(len(tensor.data), alignment), b"\0")
    return head.ljust(padded(len(head), alignment), b"\0") + data


def number(name: str, value: int) -> Key:
    """A 32-bit key."""
    return Key(name, ValueType.UINT32, value)


def text(name: str, value: str) -> Key:
    """A text key."""
    return Key(name, ValueType.STRING, value)


def real(name: str, value: float) -> Key:
    """A 32-bit float key."""
    return Key(name, ValueType.FLOAT32, value)


def array(name: str, element_type: int, values: Sequence[object]) -> Key:
    """An array key."""
    return Key(name, ValueType.ARRAY, values, element_type)


def zero_tensor(name: str, shape: tuple[int, ...], ggml_type: int = F32) -> Tensor:
    """A tensor of zero bytes of the right length."""
    return Tensor(name, shape, ggml_type, bytes(tensor_bytes(TENSOR_TYPES[ggml_type], shape)))


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a tiny model."""

    layers: int = 4
    hidden_size: int = 64
    feed_forward: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 16
    context_length: int = 2048


def tiny_llama(
    shape: TinyShape | None = None,
    *,
    seed: int = 1,
    is_tied: bool = True,
    kv_heads_per_layer: Sequence[int] | None = None,
) -> bytes:
    """A ``llama`` model; ``kv_heads_per_layer`` makes its head count a per-layer array."""
    shape = shape if shape is not None else TinyShape()
    kv_heads = list(kv_heads_per_layer or [shape.kv_heads] * shape.layers)
    keys = _model_keys("llama", shape)
    keys.append(number("llama.rope.dimension_count", shape.head_width))
    if kv_heads_per_layer is None:
        keys.append(number("llama.attention.head_count_kv", shape.kv_heads))
    else:
        keys.append(array("llama.attention.head_count_kv", ValueType.UINT32, kv_heads))
    keys += _tokenizer_keys()
    weights = _Weights(seed)
    tensors = _ends(shape, weights, is_tied=is_tied)
    for layer, heads in enumerate(kv_heads):
        tensors += _attention(layer, shape, heads, weights)
        tensors += _feed_forward(layer, shape, weights)
    return encode_gguf(keys, tensors)


def tiny_gemma3(
    shape: TinyShape | None = None,
    *,
    seed: int = 1,
    sliding_window: int = 16,
    pattern: int | Sequence[bool] | None = None,
) -> bytes:
    """A ``gemma3`` model; ``pattern`` is its own sliding-window pattern, as a period or an array."""
    shape = shape if shape is not None else TinyShape(layers=8, kv_heads=1)
    keys = _model_keys("gemma3", shape)
    keys.append(number("gemma3.attention.head_count_kv", shape.kv_heads))
    keys.append(real("gemma3.rope.freq_base", 1_000_000.0))
    keys.append(number("gemma3.attention.sliding_window", sliding_window))
    if isinstance(pattern, int):
        keys.append(number("gemma3.attention.sliding_window_pattern", pattern))
    elif pattern is not None:
        keys.append(array("gemma3.attention.sliding_window_pattern", ValueType.BOOL, list(pattern)))
    keys += _tokenizer_keys()
    weights = _Weights(seed)
    tensors = _ends(shape, weights, is_tied=True)
    for layer in range(shape.layers):
        tensors += _attention(layer, shape, shape.kv_heads, weights)
        tensors += _feed_forward(layer, shape, weights)
        for part in ("attn_q_norm", "attn_k_norm"):
            tensors.append(weights.norm(f"blk.{layer}.{part}.weight", shape.head_width))
        for part in ("post_attention_norm", "post_ffw_norm"):
            tensors.append(weights.norm(f"blk.{layer}.{part}.weight", shape.hidden_size))
    return encode_gguf(keys, tensors)


def tiny_vocabulary() -> list[str]:
    """Special tokens, one token per byte, the printable characters, and a few pairs for merges to find."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    pairs = ["▁", "th", "he", "in", "er", "an", "▁t", "▁a", "the", "▁the"]
    return [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *pairs]


class _Weights:
    """Seeded random tensors, 32-bit floats."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def matrix(self, name: str, rows: int, width: int) -> Tensor:
        scale = 1.5 / width**0.5
        return self._tensor(name, (width, rows), 0.0, scale)

    def norm(self, name: str, width: int) -> Tensor:
        return self._tensor(name, (width,), 1.0, 0.1)

    def _tensor(self, name: str, shape: tuple[int, ...], mean: float, deviation: float) -> Tensor:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [mean + deviation * (2 * self._random.random() - 1) for _ in range(count)]
        return Tensor(name, shape, F32, struct.pack(f"<{count}f", *values))


def _model_keys(architecture: str, shape: TinyShape) -> list[Key]:
    return [
        text("general.architecture", architecture),
        text("general.name", f"tiny {architecture}"),
        number(f"{architecture}.block_count", shape.layers),
        number(f"{architecture}.context_length", shape.context_length),
        number(f"{architecture}.embedding_length", shape.hidden_size),
        number(f"{architecture}.feed_forward_length", shape.feed_forward),
        number(f"{architecture}.attention.head_count", shape.heads),
        number(f"{architecture}.attention.key_length", shape.head_width),
        number(f"{architecture}.attention.value_length", shape.head_width),
        real(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5),
    ]


def _tokenizer_keys() -> list[Key]:
    tokens = tiny_vocabulary()
    unknown, control, byte, normal = 2, 3, 6, 1
    types = [unknown, control, control, *([byte] * 256)]
    types += [normal] * (len(tokens) - len(types))
    return [
        text("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        array("tokenizer.ggml.scores", ValueType.FLOAT32, [-float(n) for n in range(len(tokens))]),
        array("tokenizer.ggml.token_type", ValueType.INT32, types),
        number("tokenizer.ggml.unknown_token_id", 0),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        Key("tokenizer.ggml.add_bos_token", ValueType.BOOL, True),
        text("tokenizer.chat_template", CHAT_TEMPLATE),
    ]


def _ends(shape: TinyShape, weights: _Weights, *, is_tied: bool) -> list[Tensor]:
    vocabulary = len(tiny_vocabulary())
    tensors = [
        weights.norm("output_norm.weight", shape.hidden_size),
        weights.matrix("token_embd.weight", vocabulary, shape.hidden_size),
    ]
    if not is_tied:
        tensors.append(weights.matrix("output.weight", vocabulary, shape.hidden_size))
    return tensors


def _attention(layer: int, shape: TinyShape, kv_heads: int, weights: _Weights) -> list[Tensor]:
    queries, keys = shape.heads * shape.head_width, kv_heads * shape.head_width
    return [
        weights.norm(f"blk.{layer}.attn_norm.weight", shape.hidden_size),
        weights.matrix(f"blk.{layer}.attn_q.weight", queries, shape.hidden_size),
        weights.matrix(f"blk.{layer}.attn_k.weight", keys, shape.hidden_size),
        weights.matrix(f"blk.{layer}.attn_v.weight", keys, shape.hidden_size),
        weights.matrix(f"blk.{layer}.attn_output.weight", shape.hidden_size, queries),
    ]


def _feed_forward(layer: int, shape: TinyShape, weights: _Weights) -> list[Tensor]:
    return [
        weights.norm(f"blk.{layer}.ffn_norm.weight", shape.hidden_size),
        weights.matrix(f"blk.{layer}.ffn_gate.weight", shape.feed_forward, shape.hidden_size),
        weights.matrix(f"blk.{layer}.ffn_up.weight", shape.feed_forward, shape.hidden_size),
        weights.matrix(f"blk.{layer}.ffn_down.weight", shape.hidden_size, shape.feed_forward),
    ]


def _key(key: Key) -> bytes:
    head = _text(key.name) + struct.pack("<I", key.value_type)
    if key.element_type is None:
        return head + _value(key.value_type, key.value)
    values = list(key.value) if isinstance(key.value, Sequence) else []
    items = b"".join(_value(key.element_type, value) for value in values)
    return head + struct.pack("<IQ", key.element_type, len(values)) + items


def _value(value_type: int, value: object) -> bytes:
    if value_type == ValueType.STRING:
        return _text(str(value))
    return struct.pack("<" + SCALAR_FORMATS[value_type], value)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw
