"""Which tensor lies in which file of a layer package, and how a model is read back from such files.

A package keeps all that the model's own file holds: the metadata file carries the model's metadata entries byte for
byte and its tensor directory, so that the file's bytes can be given back at any offset from the fragments. Whoever
reads a model through ``model_regions`` reads what the file itself holds, hence cuts the same stages with the same
digests. Pure; the manifest is ``package``'s, files are ``adapters.package_files``'.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from p2pmesh.base import limits
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.family_rules import INPUT_TENSORS, OUTPUT_TENSORS
from p2pmesh.model.gguf import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    GgufIndex,
    Span,
    TensorEntry,
    ValueType,
    layer_of_tensor,
    padded,
)
from p2pmesh.model.gguf_writer import encode_directory, encode_head, encode_text
from p2pmesh.model.package import (
    EMBEDDINGS_PATH,
    METADATA_PATH,
    OUTPUT_PATH,
    PackageManifest,
    Violation,
    ViolationCode,
    layer_path,
)
from p2pmesh.model.stage_file import Copy, Literal, Segment, Zeros

KEY_PREFIX = "p2pmesh.package."
_VERSION_KEY = KEY_PREFIX + "version"
_COUNT_KEY = KEY_PREFIX + "tensor_count"
_SIZE_KEY = KEY_PREFIX + "size_bytes"
_DIRECTORY_KEY = KEY_PREFIX + "directory"
_OWN_KEYS = 4
_HEAD_BYTES = 24


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """A file of a package as segments, of which ``Copy`` comes from the model."""

    path: str
    segments: tuple[Segment, ...]
    tensor_count: int
    tensor_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes ``[start, start + size_bytes)`` of the model: those of ``tensor`` in the fragment ``path``.

    Without a tensor they stand at ``offset`` of that fragment, and without a path they are ``literal``. What no region
    covers is zero.
    """

    start: int
    size_bytes: int
    path: str = ""
    offset: int = 0
    literal: bytes = b""
    tensor: TensorEntry | None = None


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Where the bytes before a model's tensors come from, and how long its file is."""

    regions: tuple[Region, ...]
    size_bytes: int


def artifact_of_tensor(name: str, layer_count: int) -> str:
    """The path of the one artifact that holds a tensor. What every stage needs lies with the metadata.

    Trailing layers beyond ``layer_count`` (they predict further tokens) lie with the output.
    """
    parts = layer_of_tensor(name)
    if parts is not None:
        return layer_path(parts[0]) if parts[0] < layer_count else OUTPUT_PATH
    if name in INPUT_TENSORS:
        return EMBEDDINGS_PATH
    return OUTPUT_PATH if name in OUTPUT_TENSORS else METADATA_PATH


def artifacts_of_range(layers: LayerRange, layer_count: int, *, is_tied: bool, repeats_first: bool) -> tuple[str, ...]:
    """The paths that a stage is assembled from.

    ``is_tied``: the output head is the embedding; ``repeats_first``: of a family whose stages all hold the embedding
    and the first layer.
    """
    paths = [METADATA_PATH]
    is_last = layers.is_last(layer_count)
    if layers.is_first() or repeats_first or (is_last and is_tied):
        paths.append(EMBEDDINGS_PATH)
    if repeats_first and not layers.is_first():
        paths.append(layer_path(0))
    paths += [layer_path(layer) for layer in range(layers.start, layers.end)]
    if is_last:
        paths.append(OUTPUT_PATH)
    return tuple(paths)


# --- writing


def plan_package(index: GgufIndex) -> tuple[FragmentPlan, ...]:
    """Every file of the package of a model, in the manifest's order: metadata, embeddings, output, layers.

    Raises ``ConfigError(GGUF_INVALID)`` for a model that has metadata of our own prefix or too long a directory.
    """
    count = index.layer_count
    held: dict[str, list[TensorEntry]] = {path: [] for path in (METADATA_PATH, EMBEDDINGS_PATH, OUTPUT_PATH)}
    held.update({layer_path(layer): [] for layer in range(count)})
    for tensor in index.tensors:
        held[artifact_of_tensor(tensor.name, count)].append(tensor)
    return tuple(_plan_fragment(index, path, tensors) for path, tensors in held.items())


def gaps_of(index: GgufIndex) -> Iterator[Span]:
    """Bytes of the model's file that belong to no entry and no tensor: padding, which a package does not keep."""
    end = _directory_span(index).offset + _directory_span(index).size_bytes
    for tensor in index.tensors:
        if tensor.offset > end:
            yield Span(end, tensor.offset - end)
        end = tensor.offset + tensor.size_bytes
    if index.size_bytes > end:
        yield Span(end, index.size_bytes - end)


def _plan_fragment(index: GgufIndex, path: str, tensors: Sequence[TensorEntry]) -> FragmentPlan:
    if path == METADATA_PATH:
        records, record_count = _model_records(index), len(index.metadata) + _OWN_KEYS
    else:
        records = _fragment_records(index)
        record_count = len(records)
    head = Literal(encode_head(len(tensors), record_count))
    header: list[Segment] = [head, *records, Literal(encode_directory(tensors, index.alignment))]
    unpadded = sum(segment.size_bytes for segment in header)
    segments = [*header, Zeros(padded(unpadded, index.alignment) - unpadded)]
    for tensor in tensors:
        segments.append(Copy(Span(tensor.offset, tensor.size_bytes)))
        segments.append(Zeros(padded(tensor.size_bytes, index.alignment) - tensor.size_bytes))
    kept = tuple(segment for segment in segments if segment.size_bytes)
    return FragmentPlan(
        path,
        kept,
        len(tensors),
        sum(tensor.size_bytes for tensor in tensors),
        sum(segment.size_bytes for segment in kept),
    )


def _fragment_records(index: GgufIndex) -> list[Segment]:
    """A fragment says of what architecture it is, and how its tensors are aligned."""
    records: list[Segment] = [Copy(index.metadata["general.architecture"].record)]
    if index.alignment != DEFAULT_ALIGNMENT:
        records.append(Copy(index.metadata[ALIGNMENT_KEY].record))
    return records


def _model_records(index: GgufIndex) -> list[Segment]:
    """The model's own entries in their order, then what it takes to rebuild its header."""
    if any(key.startswith(KEY_PREFIX) for key in index.metadata):
        raise ConfigError(ErrorCode.GGUF_INVALID, f"it has metadata under {KEY_PREFIX}: name the model itself")
    directory = _directory_span(index)
    if directory.size_bytes > limits.MAX_GGUF_ARRAY_ITEMS:
        raise ConfigError(ErrorCode.GGUF_INVALID, f"its tensor directory has {directory.size_bytes} bytes, too many")
    array = struct.pack("<IIQ", ValueType.ARRAY, ValueType.UINT8, directory.size_bytes)
    return [
        *(Copy(entry.record) for entry in index.metadata.values()),
        Literal(encode_text(_VERSION_KEY) + struct.pack("<II", ValueType.UINT32, index.version)),
        Literal(encode_text(_COUNT_KEY) + struct.pack("<IQ", ValueType.UINT64, len(index.tensors))),
        Literal(encode_text(_SIZE_KEY) + struct.pack("<IQ", ValueType.UINT64, index.size_bytes)),
        Literal(encode_text(_DIRECTORY_KEY) + array),  # one record with the bytes that follow
        Copy(directory),
    ]


def _directory_span(index: GgufIndex) -> Span:
    """Where the model's tensor directory stands in its file: right after the metadata."""
    ends = (entry.record.offset + entry.record.size_bytes for entry in index.metadata.values())
    start = max(ends, default=_HEAD_BYTES)
    return Span(start, sum(_declaration_bytes(tensor) for tensor in index.tensors))


def _declaration_bytes(tensor: TensorEntry) -> int:
    return 8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.shape) + 4 + 8


# --- reading


def model_header(metadata: GgufIndex) -> ModelHeader:
    """How to read the model's header from the metadata file; ``ConfigError(PACKAGE_INVALID)`` if it cannot be."""
    version, count, size_bytes = (_own_number(metadata, key) for key in (_VERSION_KEY, _COUNT_KEY, _SIZE_KEY))
    directory = metadata.metadata.get(_DIRECTORY_KEY)
    if directory is None or directory.element_type != ValueType.UINT8:
        raise _unusable(f"it has no {_DIRECTORY_KEY}")
    own = [entry for key, entry in metadata.metadata.items() if key.startswith(KEY_PREFIX)]
    records_end = min(entry.record.offset for entry in own)
    foreign = [entry for key, entry in metadata.metadata.items() if not key.startswith(KEY_PREFIX)]
    if any(entry.record.offset >= records_end for entry in foreign):
        raise _unusable("its entries are not in the model's order")
    head = encode_head(count, len(foreign), version)
    place = directory.record.offset + directory.record.size_bytes - directory.count
    regions = (
        Region(0, _HEAD_BYTES, literal=head),
        Region(_HEAD_BYTES, records_end - _HEAD_BYTES, METADATA_PATH, _HEAD_BYTES),
        Region(records_end, directory.count, METADATA_PATH, place),
    )
    return ModelHeader(tuple(region for region in regions if region.size_bytes), size_bytes)


def model_regions(header: ModelHeader, index: GgufIndex) -> tuple[Region, ...]:
    """All of a model's bytes but zeros, ascending, once its header was read into ``index``."""
    count = index.layer_count
    tensors = (
        Region(tensor.offset, tensor.size_bytes, artifact_of_tensor(tensor.name, count), tensor=tensor)
        for tensor in index.tensors
    )
    return (*header.regions, *tensors)


def _own_number(metadata: GgufIndex, key: str) -> int:
    entry = metadata.metadata.get(key)
    if entry is None or type(entry.value) is not int or not 0 <= entry.value <= limits.MAX_ARTIFACT_BYTES:
        raise _unusable(f"it has no usable {key}")
    return entry.value


def _unusable(problem: str) -> ConfigError:
    return ConfigError(ErrorCode.PACKAGE_INVALID, f"{METADATA_PATH} describes no model: {problem}")


# --- rules


def check_tensors(manifest: PackageManifest, model: GgufIndex, held: Mapping[str, GgufIndex]) -> tuple[Violation, ...]:
    """Broken rules between the manifest, the model's own directory and ``held``: the fragments' indexes by path."""
    return (*_check_facts(manifest, model), *_check_counts(manifest, held), *_check_places(model, held))


def _check_facts(manifest: PackageManifest, model: GgufIndex) -> Iterator[Violation]:
    if manifest.layer_count != model.layer_count:
        text = f"{manifest.layer_count} layers are named, the model has {model.layer_count}"
        yield Violation(ViolationCode.LAYER_COUNT_MISMATCH, text)
    if manifest.activation_width not in (None, model.hidden_size):
        text = f"an activation width of {manifest.activation_width} is named, the model has {model.hidden_size}"
        yield Violation(ViolationCode.ACTIVATION_WIDTH_MISMATCH, text)


def _check_counts(manifest: PackageManifest, held: Mapping[str, GgufIndex]) -> Iterator[Violation]:
    for artifact in manifest.artifacts():
        fragment = held.get(artifact.path)
        if fragment is None:
            continue
        count, size_bytes = len(fragment.tensors), sum(tensor.size_bytes for tensor in fragment.tensors)
        if count != artifact.tensor_count:
            text = f"{artifact.path} holds {count} tensors, not {artifact.tensor_count}"
            yield Violation(ViolationCode.TENSOR_COUNT_MISMATCH, text)
        if size_bytes != artifact.tensor_bytes:
            text = f"{artifact.path} holds {size_bytes} bytes of tensors, not {artifact.tensor_bytes}"
            yield Violation(ViolationCode.TENSOR_BYTES_MISMATCH, text)


def _check_places(model: GgufIndex, held: Mapping[str, GgufIndex]) -> Iterator[Violation]:
    """Every tensor of the model in exactly one artifact, the right one, as the model has it; and nothing else."""
    places: dict[str, list[tuple[str, TensorEntry]]] = {}
    for path, fragment in held.items():
        for tensor in fragment.tensors:
            places.setdefault(tensor.name, []).append((path, tensor))
    for tensor in model.tensors:
        wanted = artifact_of_tensor(tensor.name, model.layer_count)
        found = places.pop(tensor.name, [])
        if not found:
            yield Violation(ViolationCode.TENSOR_MISSING, f"tensor {tensor.name} is in no artifact")
        elif len(found) > 1:
            paths = " and ".join(path for path, _ in found)
            yield Violation(ViolationCode.TENSOR_DUPLICATE, f"tensor {tensor.name} is in {paths}")
        elif found[0][0] != wanted:
            text = f"tensor {tensor.name} is in {found[0][0]}, not in {wanted}"
            yield Violation(ViolationCode.TENSOR_MISPLACED, text)
        elif not is_same_tensor(tensor, found[0][1]):
            text = f"tensor {tensor.name} of {wanted} has another shape or type than the model's"
            yield Violation(ViolationCode.TENSOR_CHANGED, text)
    for name, found in places.items():
        yield Violation(ViolationCode.TENSOR_UNKNOWN, f"tensor {name} of {found[0][0]} is none of the model's")


def is_same_tensor(left: TensorEntry, right: TensorEntry) -> bool:
    """Whether both hold the same data, wherever it stands."""
    return (left.name, left.shape, left.ggml_type) == (right.name, right.shape, right.ggml_type)
