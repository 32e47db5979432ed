"""A stage GGUF: the file that holds one layer range of a model and loads in a stock llama.cpp.

Pure: ``plan_stage_file`` says which bytes the file consists of, most of them copied from the model; whoever writes it
streams them. The same model and range give the same bytes on every machine, hence the same digest.

What a stage holds:
- its layers, renumbered from 0, with ``<arch>.block_count`` and every per-layer array cut to them;
- the first stage the token embedding, the last one the output head, both the tokenizer;
- a middle stage an empty vocabulary of 32 tokens, because llama.cpp wants one;
- where later layers need what the first one or the embedding gives (``Family.repeats_first``), a later stage holds both
  too, before its own layers, and the vocabulary;
- zeros in place of an output head or embedding that llama.cpp insists on and the stage never uses;
- provenance under ``p2pmesh.layers.*``.

The last stage of a model with an output head of its own stores that head *as* the token embedding and ties the output
to it: llama.cpp insists on an embedding of the vocabulary's size, and the stage never looks a token up.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange
from p2pmesh.model import families, family_rules
from p2pmesh.model.gguf import (
    SCALAR_FORMATS,
    GgufIndex,
    MetadataValue,
    Span,
    TensorEntry,
    ValueType,
    layer_of_tensor,
    padded,
)
from p2pmesh.model.gguf_writer import encode_directory, encode_head, encode_text
from p2pmesh.model.tensor_types import F32, TENSOR_TYPES, tensor_bytes

STAGE_FORMAT = 2
"""Raised whenever the bytes of a stage file change; part of every cache key."""

PROVENANCE_START = "p2pmesh.layers.start"
PROVENANCE_END = "p2pmesh.layers.end"
PROVENANCE_COUNT = "p2pmesh.layers.count"
PROVENANCE_FORMAT = "p2pmesh.stage_format"

INPUT_TENSOR_KEY = "p2pmesh.layers.input"
OUTPUT_TENSOR_KEY = "p2pmesh.layers.output"
"""Names of the tensors that the engine writes its rows over, and takes them from; without one it does the usual."""
INPUT_TOKENS_KEY = "p2pmesh.layers.tokens"
"""Present in the file of a later stage that wants the tokens of its rows besides."""

EMPTY_VOCABULARY_TOKENS = 32
_TOKEN_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"
_FILLER_TYPES = (19, 2, F32)
"""IQ1_S, Q4_0, F32: by size."""


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes that the plan itself holds."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """Length."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes copied from the model's file."""

    span: Span

    @property
    def size_bytes(self) -> int:
        """Length."""
        return self.span.size_bytes


@dataclass(frozen=True, slots=True)
class Zeros:
    """Zero bytes."""

    size_bytes: int


Segment = Literal | Copy | Zeros


@dataclass(frozen=True, slots=True)
class StageFilePlan:
    """The file as segments in order; ``header_bytes`` of them come before the tensor data."""

    layers: LayerRange
    layer_count: int
    segments: tuple[Segment, ...]
    header_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _StageTensor:
    """A tensor of the stage; ``source`` is ``None`` for zeros."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    size_bytes: int
    source: Span | None


def plan_stage_file(index: GgufIndex, layers: LayerRange) -> StageFilePlan:
    """The stage GGUF of ``layers``.

    The whole range is a stage file too (with provenance); a caller that can use the model itself should.
    Raises ``ConfigError``: ``ARCHITECTURE_UNSUPPORTED``, ``CUT_UNSUPPORTED``.
    """
    families.family_of(index)
    families.check_range(index, layers)
    return draft_stage_file(index, layers)


def draft_stage_file(index: GgufIndex, layers: LayerRange) -> StageFilePlan:
    """``plan_stage_file`` without asking whether a run has proved the cut: for the runs that are to prove it."""
    tensors = tuple(_stage_tensors(index, layers))
    records = tuple(_metadata_records(index, layers))
    head = Literal(encode_head(len(tensors), len(records)))
    directory = Literal(encode_directory(tensors, index.alignment))
    header = [head, *records, directory]
    unpadded = sum(segment.size_bytes for segment in header)
    header_bytes = padded(unpadded, index.alignment)
    segments = _merge([*header, Zeros(header_bytes - unpadded), *_data(tensors, index.alignment)])
    size_bytes = sum(segment.size_bytes for segment in segments)
    return StageFilePlan(layers, index.layer_count, segments, header_bytes, size_bytes)


# --- tensors


def _stage_tensors(index: GgufIndex, layers: LayerRange) -> Iterator[_StageTensor]:
    yield from _fillers(index, layers)
    held = {number: place for place, number in enumerate(_held_layers(index, layers))}
    is_untied = index.find_tensor(_OUTPUT) is not None
    for tensor in index.tensors:
        parts = layer_of_tensor(tensor.name)
        if parts is None:
            name = _end_name(index, tensor, layers, is_untied=is_untied)
        else:
            name = f"blk.{held[parts[0]]}.{parts[1]}" if parts[0] in held else None
        if name is not None:
            span = Span(tensor.offset, tensor.size_bytes)
            yield _StageTensor(name, tensor.shape, tensor.ggml_type, tensor.size_bytes, span)


def _end_name(index: GgufIndex, tensor: TensorEntry, layers: LayerRange, *, is_untied: bool) -> str | None:
    """What a tensor of no layer is called in the stage; ``None`` if the stage does not hold it."""
    is_last, takes_tokens = layers.is_last(index.layer_count), _takes_tokens(index, layers)
    keeps_output = index.architecture in family_rules.HAVE_OWN_OUTPUT
    if tensor.name == _OUTPUT and is_last and not takes_tokens and not keeps_output:
        return _TOKEN_EMBEDDING
    if tensor.name in family_rules.INPUT_TENSORS:
        return tensor.name if takes_tokens or (is_last and not is_untied) else None
    if tensor.name in family_rules.OUTPUT_TENSORS:
        return tensor.name if is_last else None
    return tensor.name


def _held_layers(index: GgufIndex, layers: LayerRange) -> tuple[int, ...]:
    return family_rules.rules_of(index.architecture).held_layers(layers)


def _takes_tokens(index: GgufIndex, layers: LayerRange) -> bool:
    """Whether the stage looks tokens up."""
    return layers.is_first() or family_rules.rules_of(index.architecture).repeats_first


def _has_vocabulary(index: GgufIndex, layers: LayerRange) -> bool:
    return _takes_tokens(index, layers) or layers.is_last(index.layer_count)


def _fillers(index: GgufIndex, layers: LayerRange) -> Iterator[_StageTensor]:
    """Zeros for what llama.cpp insists on and the stage never computes with."""
    is_last = layers.is_last(index.layer_count)
    keeps_output = index.architecture in family_rules.HAVE_OWN_OUTPUT
    embedding = index.find_tensor(_TOKEN_EMBEDDING)
    has_vocabulary = embedding is not None and _has_vocabulary(index, layers)
    tokens = embedding.shape[-1] if embedding is not None and has_vocabulary else EMPTY_VOCABULARY_TOKENS
    if not _takes_tokens(index, layers) and (not is_last or keeps_output):
        yield _filler(_TOKEN_EMBEDDING, (index.hidden_size, tokens))
    if keeps_output and not is_last:
        for name in sorted(family_rules.OUTPUT_TENSORS):
            tensor = index.find_tensor(name)
            if tensor is not None:
                yield _filler(name, (*tensor.shape[:-1], tokens))


def _filler(name: str, shape: tuple[int, ...]) -> _StageTensor:
    """The smallest type that the shape permits; a short one as plain numbers."""
    wide = len(shape) > 1 and shape[-1] > EMPTY_VOCABULARY_TOKENS
    kinds = _FILLER_TYPES if wide else (F32,)
    kind = next(kind for kind in kinds if shape[0] % TENSOR_TYPES[kind].block_size == 0)
    return _StageTensor(name, shape, kind, tensor_bytes(TENSOR_TYPES[kind], shape), None)


def _data(tensors: tuple[_StageTensor, ...], alignment: int) -> Iterator[Segment]:
    for tensor in tensors:
        yield Copy(tensor.source) if tensor.source is not None else Zeros(tensor.size_bytes)
        yield Zeros(padded(tensor.size_bytes, alignment) - tensor.size_bytes)


# --- metadata


def _metadata_records(index: GgufIndex, layers: LayerRange) -> Iterator[Segment]:
    """One segment per key: first the model's own in its order, changed where the range asks for it, then ours."""
    changed = _changed_records(index, layers)
    has_vocabulary = _has_vocabulary(index, layers)
    for key, entry in index.metadata.items():
        if key in changed:
            replacement = changed.pop(key)
            if replacement is not None:
                yield Literal(replacement)
        elif has_vocabulary or not key.startswith("tokenizer."):
            yield Copy(entry.record)
    for replacement in changed.values():
        if replacement is not None:
            yield Literal(replacement)


def _changed_records(index: GgufIndex, layers: LayerRange) -> dict[str, bytes | None]:
    """Records that differ from the model's, by key; ``None`` removes the key."""
    changed: dict[str, bytes | None] = {}
    _put_number(changed, index.key("block_count"), len(_held_layers(index, layers)))
    if index.predictor_count:
        _put_number(changed, index.key("nextn_predict_layers"), 0)
    if len(layers) < index.layer_count:
        _cut_arrays(changed, index, layers)
        _cut_leading(changed, index, layers)
        _put_window(changed, index, layers)
        _put_recurrent(changed, index, layers)
        _put_ends(changed, index, layers)
    if not _has_vocabulary(index, layers):
        changed["tokenizer.ggml.model"] = _record("tokenizer.ggml.model", ValueType.STRING, encode_text("none"))
        _put_number(changed, index.key("vocab_size"), EMPTY_VOCABULARY_TOKENS)
    _put_number(changed, PROVENANCE_START, layers.start)
    _put_number(changed, PROVENANCE_END, layers.end)
    _put_number(changed, PROVENANCE_COUNT, index.layer_count)
    _put_number(changed, PROVENANCE_FORMAT, STAGE_FORMAT)
    return changed


def _cut_arrays(changed: dict[str, bytes | None], index: GgufIndex, layers: LayerRange) -> None:
    keys = [index.key(suffix) for suffix in family_rules.PER_LAYER_ARRAYS]
    for key in sorted([*keys, *family_rules.PLAIN_PER_LAYER_ARRAYS]):
        entry = index.metadata.get(key)
        if entry is not None and entry.element_type is not None:
            changed[key] = _array_record(key, entry, _held_layers(index, layers))


def _cut_leading(changed: dict[str, bytes | None], index: GgufIndex, layers: LayerRange) -> None:
    for suffix in sorted(family_rules.LEADING_LAYERS):
        count = index.number(suffix)
        if count is not None:
            held = sum(layer < count for layer in _held_layers(index, layers))
            _put_number(changed, index.key(suffix), held)


def _put_window(changed: dict[str, bytes | None], index: GgufIndex, layers: LayerRange) -> None:
    """Spells out the windowed layers, which llama.cpp would otherwise count from the range's own first layer."""
    rule = family_rules.rules_of(index.architecture).window
    if rule is None or index.sliding_window == 0:
        return
    key = index.key(family_rules.SLIDING_WINDOW_PATTERN)
    whole = families.window_pattern(index)
    pattern = tuple(whole[layer] for layer in _held_layers(index, layers))
    if any(pattern) or not rule.is_optional:
        changed[key] = _flags_record(key, pattern)
    else:
        # llama.cpp refuses a windowed model without a windowed layer; these layers attend to everything anyway.
        changed[key] = None
        changed[index.key(family_rules.SLIDING_WINDOW)] = None


def _put_recurrent(changed: dict[str, bytes | None], index: GgufIndex, layers: LayerRange) -> None:
    """Spells out the layers with a state, for the same reason."""
    pattern = families.recurrent_layers(index)
    if pattern is not None:
        key = index.key(family_rules.RECURRENT_LAYERS)
        changed[key] = _flags_record(key, tuple(pattern[layer] for layer in _held_layers(index, layers)))


def _put_ends(changed: dict[str, bytes | None], index: GgufIndex, layers: LayerRange) -> None:
    """What happens where the range was cut from the rest."""
    rules = family_rules.rules_of(index.architecture)
    if not layers.is_first():
        for suffix, value in rules.pins:
            _put_real(changed, index.key(suffix), value)
        if rules.input_tensor and (not rules.input_needs or index.find_tensor(rules.input_needs) is not None):
            _put_text(changed, INPUT_TENSOR_KEY, rules.input_tensor)
        if rules.repeats_first:
            _put_number(changed, INPUT_TOKENS_KEY, 1)
    if not layers.is_last(index.layer_count) and rules.output_tensor != family_rules.USUAL_OUTPUT:
        _put_text(changed, OUTPUT_TENSOR_KEY, rules.output_tensor.format(len(_held_layers(index, layers)) - 1))


def _flags_record(key: str, flags: tuple[bool, ...]) -> bytes:
    body = struct.pack(f"<{len(flags)}?", *flags)
    return _record(key, ValueType.ARRAY, _array(ValueType.BOOL, len(flags), body))


def _array_record(key: str, entry: MetadataValue, held: tuple[int, ...]) -> bytes:
    items = entry.value if isinstance(entry.value, tuple) else ()
    part = tuple(items[layer] for layer in held if layer < len(items))
    element_type = entry.element_type if entry.element_type is not None else ValueType.UINT32
    body = struct.pack(f"<{len(part)}{SCALAR_FORMATS[element_type]}", *part)
    return _record(key, ValueType.ARRAY, _array(element_type, len(part), body))


def _put_number(changed: dict[str, bytes | None], key: str, value: int) -> None:
    changed[key] = _record(key, ValueType.UINT32, struct.pack("<I", value))


def _put_real(changed: dict[str, bytes | None], key: str, value: float) -> None:
    changed[key] = _record(key, ValueType.FLOAT32, struct.pack("<f", value))


def _put_text(changed: dict[str, bytes | None], key: str, value: str) -> None:
    changed[key] = _record(key, ValueType.STRING, encode_text(value))


def _record(key: str, value_type: int, body: bytes) -> bytes:
    return encode_text(key) + struct.pack("<I", value_type) + body


def _array(element_type: int, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", element_type, count) + body


# --- segments


def _merge(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same bytes in fewer segments: neighbours joined, empty ones dropped."""
    merged: list[Segment] = []
    for segment in segments:
        if segment.size_bytes == 0:
            continue
        joined = _join(merged[-1], segment) if merged else None
        if joined is None:
            merged.append(segment)
        else:
            merged[-1] = joined
    return tuple(merged)


def _join(left: Segment, right: Segment) -> Segment | None:
    """Both as one segment, if they are of a kind and, for copies, adjacent in the model's file."""
    match left, right:
        case Literal(first), Literal(second):
            return Literal(first + second)
        case Zeros(first), Zeros(second):
            return Zeros(first + second)
        case Copy(first), Copy(second) if first.offset + first.size_bytes == second.offset:
            return Copy(Span(first.offset, first.size_bytes + second.size_bytes))
    return None
