"""The manifest of a layer package: its record, its canonical id, and the rules that need no other file.

A layer package is a model as separate files: metadata, embeddings, output, one file a layer. Owns the manifest's JSON.
Which tensor lies in which file, and what a stage needs, is ``package_layout``'s; files are ``adapters.package_files``';
the owner's signature is ``wire.package``'s. Normative: ``protocols/layer-package.md``.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from p2pmesh.base import limits
from p2pmesh.base.ids import is_digest

MANIFEST_FILE = "model-package.json"
SCHEMA_VERSION = 1
FORMAT = "layer-package"
ABI_VERSION = "0.1.30"
ID_PREFIX = "sha256:"

METADATA_PATH = "shared/metadata.gguf"
EMBEDDINGS_PATH = "shared/embeddings.gguf"
OUTPUT_PATH = "shared/output.gguf"
PROJECTOR_KIND = "mmproj"

_PROJECTOR_FOLDER = "projectors/"
_MAX_COUNT = 2**53
_MAX_TEXT_BYTES = 1024
_PATH_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_ABI = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})\Z")

# What is said of a model rather than what it is: two machines may name it differently.
_NOT_CONTENT = ("signature", "created_at_unix_secs", "model_id")
_NOT_SOURCE_CONTENT = ("path", "repo", "revision", "primary_file", "canonical_ref", "distribution_id")


class ViolationCode(StrEnum):
    """Each rule of a package, by the name that its violation has."""

    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_TOO_LARGE = "manifest_too_large"
    MANIFEST_MALFORMED = "manifest_malformed"
    SCHEMA_UNKNOWN = "schema_unknown"
    FORMAT_UNKNOWN = "format_unknown"
    ABI_INCOMPATIBLE = "abi_incompatible"
    PACKAGE_ID_MISMATCH = "package_id_mismatch"
    SIGNATURE_INVALID = "signature_invalid"
    PATH_INVALID = "path_invalid"
    PATH_UNEXPECTED = "path_unexpected"
    PATH_DUPLICATE = "path_duplicate"
    LAYER_MISSING = "layer_missing"
    LAYER_DUPLICATE = "layer_duplicate"
    LAYER_UNKNOWN = "layer_unknown"
    PROJECTOR_KIND_UNKNOWN = "projector_kind_unknown"
    ARTIFACT_EMPTY = "artifact_empty"
    TENSOR_BYTES_INCONSISTENT = "tensor_bytes_inconsistent"
    ARTIFACT_MISSING = "artifact_missing"
    ARTIFACT_SIZE_MISMATCH = "artifact_size_mismatch"
    ARTIFACT_DIGEST_MISMATCH = "artifact_digest_mismatch"
    ARTIFACT_MALFORMED = "artifact_malformed"
    TENSOR_COUNT_MISMATCH = "tensor_count_mismatch"
    TENSOR_BYTES_MISMATCH = "tensor_bytes_mismatch"
    TENSOR_MISSING = "tensor_missing"
    TENSOR_DUPLICATE = "tensor_duplicate"
    TENSOR_UNKNOWN = "tensor_unknown"
    TENSOR_MISPLACED = "tensor_misplaced"
    TENSOR_CHANGED = "tensor_changed"
    LAYER_COUNT_MISMATCH = "layer_count_mismatch"
    ACTIVATION_WIDTH_MISMATCH = "activation_width_mismatch"
    SOURCE_MISMATCH = "source_mismatch"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and where, in one line."""

    code: ViolationCode
    text: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a package. ``tensor_bytes`` counts data without padding, ``artifact_bytes`` the whole file."""

    path: str
    tensor_count: int
    tensor_bytes: int
    artifact_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the model that was packaged."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The model that was packaged: ``sha256`` of its (first) file, and where it came from, as far as known."""

    sha256: str
    files: tuple[SourceFile, ...]
    primary_file: str = ""
    repo: str = ""
    revision: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class PackageManifest:
    """A manifest as it was read, or is to be written. ``raw`` holds every field, also those not known here."""

    model_id: str
    source: SourceModel
    layer_count: int
    activation_width: int | None
    metadata: Artifact
    embeddings: Artifact
    output: Artifact
    layers: tuple[tuple[int, Artifact], ...]
    projectors: tuple[tuple[str, Artifact], ...]
    format: str
    abi_version: str
    package_id: str
    signature: bytes
    created_at_unix_secs: int
    raw: Mapping[str, Any]

    def artifacts(self) -> tuple[Artifact, ...]:
        """All files, the shared ones first."""
        layers = (artifact for _, artifact in self.layers)
        projectors = (artifact for _, artifact in self.projectors)
        return (self.metadata, self.embeddings, self.output, *layers, *projectors)

    def artifact(self, path: str) -> Artifact | None:
        """The artifact at ``path``."""
        return next((artifact for artifact in self.artifacts() if artifact.path == path), None)


def layer_path(layer: int) -> str:
    """Where the tensors of layer number ``layer`` lie."""
    return f"layers/layer-{layer:05}.gguf"


# --- writing


@dataclass(frozen=True, slots=True)
class PackageContents:
    """What a build found and wrote; ``layers`` in order of their index."""

    model_id: str
    source: SourceModel
    activation_width: int
    metadata: Artifact
    embeddings: Artifact
    output: Artifact
    layers: tuple[Artifact, ...]
    created_at_unix_secs: int


def describe_contents(contents: PackageContents) -> dict[str, Any]:
    """The manifest's fields, its id among them; unsigned."""
    source = contents.source
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "package_id": "",
        "model_id": contents.model_id,
        "source_model": {
            "sha256": source.sha256,
            "primary_file": source.primary_file,
            **({"repo": source.repo, "revision": source.revision} if source.repo else {}),
            "files": [_file_fields(file) for file in source.files],
        },
        "format": FORMAT,
        "layer_count": len(contents.layers),
        "activation_width": contents.activation_width,
        "shared": {
            "metadata": _artifact_fields(contents.metadata),
            "embeddings": _artifact_fields(contents.embeddings),
            "output": _artifact_fields(contents.output),
        },
        "layers": [
            {"layer_index": index, **_artifact_fields(artifact)} for index, artifact in enumerate(contents.layers)
        ],
        "skippy_abi_version": ABI_VERSION,
        "created_at_unix_secs": contents.created_at_unix_secs,
    }
    return {**fields, "package_id": package_id_of(fields)}


def encode_manifest(fields: Mapping[str, Any]) -> bytes:
    """The file's bytes."""
    return json.dumps(fields, indent=2, ensure_ascii=True).encode() + b"\n"


def package_id_of(fields: Mapping[str, Any]) -> str:
    """``sha256:`` of the normalised manifest: contents alone, lists sorted, the id empty.

    Names, places and times are left out, so that the same model has the same id wherever it was packaged.
    """
    content: dict[str, Any] = {name: value for name, value in fields.items() if name not in _NOT_CONTENT}
    content["package_id"] = ""
    source = fields["source_model"]
    kept = {name: value for name, value in source.items() if name not in _NOT_SOURCE_CONTENT}
    kept["files"] = _sorted([_without(file, "path") for file in source["files"]])
    content["source_model"] = kept
    content["layers"] = sorted(fields["layers"], key=lambda layer: (layer["layer_index"], _canonical(layer)))
    content["projectors"] = _sorted(list(fields.get("projectors", ())))
    return ID_PREFIX + hashlib.sha256(_canonical(content)).hexdigest()


def signed_digest(fields: Mapping[str, Any]) -> str:
    """sha256 of the whole manifest but its signature: what an owner vouches for, names and places included."""
    return hashlib.sha256(_canonical(_without(fields, "signature"))).hexdigest()


def _artifact_fields(artifact: Artifact) -> dict[str, Any]:
    return {
        "path": artifact.path,
        "tensor_count": artifact.tensor_count,
        "tensor_bytes": artifact.tensor_bytes,
        "artifact_bytes": artifact.artifact_bytes,
        "sha256": artifact.sha256,
    }


def _file_fields(file: SourceFile) -> dict[str, Any]:
    return {"path": file.path, "size_bytes": file.size_bytes, "sha256": file.sha256}


def _without(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=_canonical)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


# --- reading


class _Broken(Exception):
    """The manifest cannot be read any further."""

    def __init__(self, code: ViolationCode, text: str) -> None:
        super().__init__(text)
        self.violation = Violation(code, text)


def read_manifest(data: bytes) -> PackageManifest | Violation:
    """The manifest, or why these bytes are none. Of the rules only form is checked; see ``check_manifest``."""
    if len(data) > limits.MAX_PACKAGE_MANIFEST_BYTES:
        most = limits.MAX_PACKAGE_MANIFEST_BYTES
        return Violation(ViolationCode.MANIFEST_TOO_LARGE, f"the manifest has more than {most} bytes")
    try:
        return _read_fields(_Fields(_parse_json(data), "the manifest"))
    except _Broken as broken:
        return broken.violation


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_float=_no_number, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise _Broken(ViolationCode.MANIFEST_MALFORMED, f"the manifest is no JSON that we take: {reason}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return fields


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:32]} is no whole number")


class _Fields:
    """A JSON object whose fields are taken with their types and bounds; ``where`` names it in errors."""

    __slots__ = ("_where", "raw")

    def __init__(self, value: Any, where: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            raise _Broken(ViolationCode.MANIFEST_MALFORMED, f"{where} is no JSON object")
        self.raw: dict[str, Any] = value

    def fail(self, name: str, problem: str) -> _Broken:
        return _Broken(ViolationCode.MANIFEST_MALFORMED, f"{self._where}: {name} {problem}")

    def number(self, name: str, lowest: int = 0, highest: int = _MAX_COUNT) -> int:
        value = self.raw.get(name)
        if type(value) is not int or not lowest <= value <= highest:
            raise self.fail(name, f"is not a whole number of {lowest} to {highest}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.raw.get(name, default)
        if not isinstance(value, str) or not value.isprintable() or len(value.encode()) > _MAX_TEXT_BYTES:
            raise self.fail(name, f"is not a printable text of at most {_MAX_TEXT_BYTES} bytes")
        return value

    def digest(self, name: str) -> str:
        value = self.text(name)
        if not is_digest(value):
            raise self.fail(name, "is not a sha256 in 64 lower-case hex digits")
        return value

    def object(self, name: str) -> "_Fields":
        return _Fields(self.raw.get(name), f"{self._where}: {name}")

    def objects(self, name: str, most: int, *, is_optional: bool = False) -> tuple["_Fields", ...]:
        items = self.raw.get(name, [] if is_optional else None)
        if not isinstance(items, list) or len(items) > most:
            raise self.fail(name, f"is not a list of at most {most} items")
        return tuple(_Fields(item, f"{self._where}: {name}[{number}]") for number, item in enumerate(items))


def _read_fields(fields: _Fields) -> PackageManifest:
    version = fields.number("schema_version")
    if version != SCHEMA_VERSION:
        raise _Broken(ViolationCode.SCHEMA_UNKNOWN, f"schema {version} is unknown; {SCHEMA_VERSION} is read here")
    shared = fields.object("shared")
    width = fields.number("activation_width", 1, limits.MAX_HIDDEN_SIZE) if "activation_width" in fields.raw else None
    layers = fields.objects("layers", limits.MAX_LAYERS)
    projectors = fields.objects("projectors", limits.MAX_PACKAGE_PROJECTORS, is_optional=True)
    return PackageManifest(
        model_id=_model_id(fields),
        source=_source(fields.object("source_model")),
        layer_count=fields.number("layer_count", 1, limits.MAX_LAYERS),
        activation_width=width,
        metadata=_artifact(shared.object("metadata")),
        embeddings=_artifact(shared.object("embeddings")),
        output=_artifact(shared.object("output")),
        layers=tuple((layer.number("layer_index"), _artifact(layer)) for layer in layers),
        projectors=tuple((projector.text("kind"), _artifact(projector)) for projector in projectors),
        format=fields.text("format"),
        abi_version=fields.text("skippy_abi_version"),
        package_id=fields.text("package_id"),
        signature=_signature(fields),
        created_at_unix_secs=fields.number("created_at_unix_secs"),
        raw=fields.raw,
    )


def _model_id(fields: _Fields) -> str:
    model_id = fields.text("model_id")
    if not model_id or len(model_id.encode()) > limits.MAX_NAME_BYTES:
        raise fields.fail("model_id", f"is empty or longer than {limits.MAX_NAME_BYTES} bytes")
    return model_id


def _source(fields: _Fields) -> SourceModel:
    files = tuple(
        SourceFile(file.text("path"), file.number("size_bytes", 1), file.digest("sha256"))
        for file in fields.objects("files", limits.MAX_PACKAGE_SOURCE_FILES)
    )
    if not files:
        raise fields.fail("files", "is empty")
    return SourceModel(
        fields.digest("sha256"), files, fields.text("primary_file", ""), fields.text("repo", ""),
        fields.text("revision", ""),
    )  # fmt: skip


def _artifact(fields: _Fields) -> Artifact:
    return Artifact(
        fields.text("path"),
        fields.number("tensor_count"),
        fields.number("tensor_bytes"),
        fields.number("artifact_bytes"),
        fields.digest("sha256"),
    )


def _signature(fields: _Fields) -> bytes:
    try:
        return bytes.fromhex(fields.text("signature", ""))
    except ValueError:
        raise fields.fail("signature", "is not hex") from None


# --- rules


def check_manifest(manifest: PackageManifest) -> tuple[Violation, ...]:
    """Every broken rule that the manifest alone shows; the signature is checked by ``wire.package``."""
    return (*_check_head(manifest), *_check_paths(manifest), *_check_layers(manifest), *_check_sizes(manifest))


def _check_head(manifest: PackageManifest) -> Iterator[Violation]:
    if manifest.format != FORMAT:
        yield Violation(ViolationCode.FORMAT_UNKNOWN, f"format {manifest.format!r} is not {FORMAT!r}")
    if not is_abi_compatible(manifest.abi_version):
        text = f"it needs stage ABI {manifest.abi_version!r}, this software has {ABI_VERSION}"
        yield Violation(ViolationCode.ABI_INCOMPATIBLE, text)
    wanted = package_id_of(manifest.raw)
    if manifest.package_id != wanted:
        yield Violation(ViolationCode.PACKAGE_ID_MISMATCH, f"the contents have the id {wanted}, the manifest another")


def is_abi_compatible(version: str) -> bool:
    """Whether this software's stage ABI serves a package of ``version``: same major.minor, a patch not below it."""
    theirs, ours = _ABI.match(version), _ABI.match(ABI_VERSION)
    if theirs is None or ours is None or theirs.groups()[:2] != ours.groups()[:2]:
        return False
    return int(ours[3]) >= int(theirs[3])


def _check_paths(manifest: PackageManifest) -> Iterator[Violation]:
    expected = [METADATA_PATH, EMBEDDINGS_PATH, OUTPUT_PATH, *(layer_path(layer) for layer, _ in manifest.layers)]
    seen: set[str] = set()
    for number, artifact in enumerate(manifest.artifacts()):
        path = artifact.path
        if not is_package_path(path):
            yield Violation(ViolationCode.PATH_INVALID, f"{path!r} is no relative path inside the package")
        elif number < len(expected) and path != expected[number]:
            yield Violation(ViolationCode.PATH_UNEXPECTED, f"{path} stands where {expected[number]} belongs")
        elif number >= len(expected) and not (path.startswith(_PROJECTOR_FOLDER) and path.endswith(".gguf")):
            yield Violation(ViolationCode.PATH_UNEXPECTED, f"the projector {path} is not in {_PROJECTOR_FOLDER}")
        if path in seen:
            yield Violation(ViolationCode.PATH_DUPLICATE, f"{path} is named twice")
        seen.add(path)


def is_package_path(path: str) -> bool:
    """Whether ``path`` is relative and stays below the package: plain names joined by slashes."""
    return len(path) <= 255 and all(_PATH_PART.match(part) for part in path.split("/"))


def _check_layers(manifest: PackageManifest) -> Iterator[Violation]:
    seen: set[int] = set()
    for layer, _ in manifest.layers:
        if layer in seen:
            yield Violation(ViolationCode.LAYER_DUPLICATE, f"layer {layer} is named twice")
        if layer >= manifest.layer_count:
            text = f"layer {layer} is named, but there are {manifest.layer_count} layers"
            yield Violation(ViolationCode.LAYER_UNKNOWN, text)
        seen.add(layer)
    for layer in range(manifest.layer_count):
        if layer not in seen:
            yield Violation(ViolationCode.LAYER_MISSING, f"layer {layer} has no artifact")
    for kind, artifact in manifest.projectors:
        if kind != PROJECTOR_KIND:
            yield Violation(ViolationCode.PROJECTOR_KIND_UNKNOWN, f"{artifact.path}: kind {kind!r} is unknown")


def _check_sizes(manifest: PackageManifest) -> Iterator[Violation]:
    for artifact in manifest.artifacts():
        if artifact.artifact_bytes == 0:
            yield Violation(ViolationCode.ARTIFACT_EMPTY, f"{artifact.path} is said to have no bytes")
        if (artifact.tensor_bytes == 0) != (artifact.tensor_count == 0):
            text = f"{artifact.path}: {artifact.tensor_count} tensors of {artifact.tensor_bytes} bytes cannot be"
            yield Violation(ViolationCode.TENSOR_BYTES_INCONSISTENT, text)
