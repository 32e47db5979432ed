"""Layer packages on disk: building one, checking one, and reading a model through one.

Owns directories and files. What belongs where and which rules hold is ``model.package``'s and
``model.package_layout``'s; which packages a node knows, and stages cut from them, are ``model_store``'s.

A package is built under another name beside its own, its manifest last, everything flushed, and then renamed: whatever
ends the process before leaves a directory without a manifest, which is no package.
"""

import contextlib
import hashlib
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.private_files import sync_directory
from p2pmesh.base import limits
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.base.ids import Digest, LayerRange, OwnerId
from p2pmesh.base.quantities import format_size
from p2pmesh.model.family_rules import rules_of
from p2pmesh.model.gguf import GgufIndex, Source, read_index
from p2pmesh.model.package import (
    MANIFEST_FILE,
    METADATA_PATH,
    Artifact,
    PackageContents,
    PackageManifest,
    SourceModel,
    Violation,
    ViolationCode,
    check_manifest,
    describe_contents,
    encode_manifest,
    is_package_path,
    read_manifest,
    signed_digest,
)
from p2pmesh.model.package_layout import (
    FragmentPlan,
    Region,
    artifacts_of_range,
    check_tensors,
    gaps_of,
    is_same_tensor,
    model_header,
    model_regions,
    plan_package,
)
from p2pmesh.ports.models import StageArtifact
from p2pmesh.wire.package import decode_statement
from p2pmesh.wire.signed import Verify

MANIFEST_MARGIN_BYTES = 4096
_BYTES_PER_ARTIFACT_ENTRY = 512
_BUILDING_SUFFIX = ".building"

DigestOf = Callable[[files.FileSource], Digest]
"""sha256 of an open file; may remember it."""
Sign = Callable[[str, str], bytes]
"""``(package id, manifest digest) -> envelope``."""


def is_package(path: Path) -> bool:
    """Whether ``path`` is a directory with a manifest."""
    return files.stamp_of(path / MANIFEST_FILE) is not None


# --- building


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What a package says of itself; ``sign`` None leaves it unsigned."""

    model_id: str
    source: SourceModel
    created_at_unix_secs: int
    sign: Sign | None = None


def build_package(
    source: files.OpenSource, index: GgufIndex, out: Path, options: BuildOptions, checkpoint: files.Checkpoint
) -> dict[str, Any]:
    """Writes the package of an open model to the directory ``out``, which must not exist; the manifest's fields.

    Raises ``ConfigError`` (``CONFIG_INVALID`` for ``out``, ``GGUF_INVALID`` for a model that cannot be rebuilt from
    fragments, ``HOME_UNUSABLE``), ``Refused(DISK_FULL)``. Nothing is left then, after a kill at most a directory that
    is no package and that the next build to the same place removes.
    """
    plans = plan_package(index)
    _check_out(out)
    _check_gaps(source, index, checkpoint)
    with files.translated(f"cannot write in {out.parent}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(out)
    needed = sum(plan.size_bytes for plan in plans) + _BYTES_PER_ARTIFACT_ENTRY * len(plans) + MANIFEST_MARGIN_BYTES
    files.require_free(out.parent, needed, files.Disk())
    with _building(out) as building:
        artifacts = [_write_fragment(source, plan, building, checkpoint) for plan in plans]
        if source.has_changed():
            raise ConfigError(ErrorCode.GGUF_INVALID, "the model changed while it was read; try again")
        fields = _sign(describe_contents(_contents(index, artifacts, options)), options.sign)
        files.write_whole(building / MANIFEST_FILE, encode_manifest(fields))
        _publish(building, out)
    return fields


def _check_out(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{out} is there already; name a directory that does not exist")


def _check_gaps(source: files.OpenSource, index: GgufIndex, checkpoint: files.Checkpoint) -> None:
    """A package does not keep padding; where that holds anything, the model could not be given back to the bit."""
    for gap in gaps_of(index):
        if any(any(piece) for piece in files.read_pieces(source, gap.offset, gap.size_bytes, checkpoint)):
            text = f"bytes from {gap.offset} on belong to no tensor and are not zero; such a model stays one file"
            raise ConfigError(ErrorCode.GGUF_INVALID, text)


def _building_prefix(out: Path) -> str:
    return f".{out.name}."


@contextlib.contextmanager
def _building(out: Path) -> Iterator[Path]:
    """A directory beside ``out`` that is gone afterwards unless it was renamed."""
    building = out.parent / f"{_building_prefix(out)}{os.getpid()}{_BUILDING_SUFFIX}"
    with files.translated(f"cannot write in {out.parent}"):
        building.mkdir()
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _remove_unfinished(out: Path) -> None:
    """Directories of builds to the same place whose process is gone."""
    for path in out.parent.glob(f"{_building_prefix(out)}*{_BUILDING_SUFFIX}"):
        pid = path.name.removeprefix(_building_prefix(out)).removesuffix(_BUILDING_SUFFIX)
        if pid.isascii() and pid.isdigit() and (int(pid) == os.getpid() or not files.is_running(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _write_fragment(
    source: files.OpenSource, plan: FragmentPlan, directory: Path, checkpoint: files.Checkpoint
) -> Artifact:
    path = directory / plan.path
    with files.translated(f"cannot write {path}"):
        path.parent.mkdir(exist_ok=True)
    with files.pending_file(path.parent, files.Disk()) as pending:
        for piece in files.segment_pieces(source, plan.segments, checkpoint):
            pending.write(piece)
        digest = pending.digest
        stamp = pending.commit(path)
    return Artifact(plan.path, plan.tensor_count, plan.tensor_bytes, stamp.size_bytes, digest)


def _contents(index: GgufIndex, artifacts: list[Artifact], options: BuildOptions) -> PackageContents:
    metadata, embeddings, output, *layers = artifacts
    return PackageContents(
        options.model_id, options.source, index.hidden_size, metadata, embeddings, output, tuple(layers),
        options.created_at_unix_secs,
    )  # fmt: skip


def _sign(fields: dict[str, Any], sign: Sign | None) -> dict[str, Any]:
    if sign is None:
        return fields
    return {**fields, "signature": sign(fields["package_id"], signed_digest(fields)).hex()}


def _publish(building: Path, out: Path) -> None:
    """Gives the package its name once the entries of its directories are on disk too."""
    with files.translated(f"cannot write {out}"):
        for folder in (building / "shared", building / "layers", building):
            sync_directory(folder)
        os.rename(building, out)
        sync_directory(out.parent)


# --- reading


def load_manifest(directory: Path) -> PackageManifest | Violation:
    """The manifest of a package directory, or why it has none."""
    path = directory / MANIFEST_FILE
    try:
        with files.FileSource(path) as source:
            return read_manifest(source.read_at(0, limits.MAX_PACKAGE_MANIFEST_BYTES + 1))
    except ConfigError as error:
        return Violation(ViolationCode.MANIFEST_MISSING, error.message)


class PackageSource:
    """A model's file as it was before it was packaged, readable at any offset; fragments open when they are needed.

    Each fragment's digest is checked when it is first opened. Not for two threads at a time. Made only of a package
    whose manifest breaks no rule: raises ``ConfigError(PACKAGE_INVALID)`` otherwise, and from ``read_at`` if a fragment
    is missing or not what the manifest says.
    """

    def __init__(self, directory: Path, digest_of: DigestOf) -> None:
        self.path = directory
        self._digest_of = digest_of
        self._open: tuple[str, files.FileSource] | None = None
        self._indexes: dict[str, GgufIndex] = {}
        stamp = files.stamp_of(directory / MANIFEST_FILE)
        self.manifest = usable_manifest(directory)
        if stamp is None or files.stamp_of(directory / MANIFEST_FILE) != stamp:
            raise _broken(directory, f"{MANIFEST_FILE} changed while it was read")
        self.stamp = stamp
        self._regions: tuple[Region, ...] = ()
        self._starts: list[int] = []
        try:
            self.index = self._read_index()
        except BaseException:
            self.close()  # whoever is told of a failure has nothing to close
            raise

    def __enter__(self) -> "PackageSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the fragment that is open."""
        if self._open is not None:
            self._open[1].__exit__()
            self._open = None

    @property
    def size_bytes(self) -> int:
        """Length of the model's file."""
        return self._size_bytes

    @property
    def digest(self) -> Digest:
        """sha256 of the model's file, as the manifest says; ``verify`` and assembling the whole model check it."""
        return Digest(self.manifest.source.sha256)

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end."""
        position, end = offset, min(offset + count, self._size_bytes)
        pieces: list[bytes] = []
        while position < end:
            piece = self._read_some(position, end - position)
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)

    def has_changed(self) -> bool:
        """Whether the package is another by now."""
        return files.stamp_of(self.path / MANIFEST_FILE) != self.stamp

    def _read_index(self) -> GgufIndex:
        header = model_header(self._index_of(METADATA_PATH))
        self._size_bytes = header.size_bytes
        self._set_regions(header.regions)
        try:
            index = read_index(self)
        except P2PMeshError as error:
            raise _broken(self.path, f"{METADATA_PATH}: {error.message}") from error
        self._set_regions(model_regions(header, index))
        return index

    def _set_regions(self, regions: tuple[Region, ...]) -> None:
        self._regions = regions
        self._starts = [region.start for region in regions]

    def _read_some(self, position: int, most: int) -> bytes:
        """At least one byte from ``position``, out of one region or the zeros before the next."""
        number = bisect_right(self._starts, position) - 1
        region = self._regions[number]
        inside = position - region.start
        if inside < region.size_bytes:
            return self._read_region(region, inside, min(most, region.size_bytes - inside))
        following = self._starts[number + 1] if number + 1 < len(self._starts) else self._size_bytes
        return bytes(min(most, max(1, following - position)))

    def _read_region(self, region: Region, inside: int, count: int) -> bytes:
        if not region.path:
            return region.literal[inside : inside + count]
        offset = region.offset
        if region.tensor is not None:
            entry = self._index_of(region.path).find_tensor(region.tensor.name)
            if entry is None or not is_same_tensor(entry, region.tensor):
                raise _broken(self.path, f"{region.path} does not hold {region.tensor.name} as the model does")
            offset = entry.offset
        piece = self._fragment(region.path).read_at(offset + inside, count)
        if not piece:
            raise _broken(self.path, f"{region.path} ends too early")
        return piece

    def _index_of(self, path: str) -> GgufIndex:
        index = self._indexes.get(path)
        if index is None:
            try:
                index = read_index(self._fragment(path))
            except P2PMeshError as error:
                raise _broken(self.path, f"{path}: {error.message}") from error
            self._indexes[path] = index
        return index

    def _fragment(self, path: str) -> files.FileSource:
        """The open fragment; checked against the manifest when it is opened."""
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self.close()
        artifact = self.manifest.artifact(path)
        if artifact is None:
            raise _broken(self.path, f"its manifest does not name {path}")
        source = _open_artifact(self.path, artifact)
        with contextlib.ExitStack() as stack:
            stack.enter_context(source)
            self._check_artifact(artifact, source)
            stack.pop_all()
        self._open = (path, source)
        return source

    def _check_artifact(self, artifact: Artifact, source: files.FileSource) -> None:
        if source.size_bytes != artifact.artifact_bytes or self._digest_of(source) != artifact.sha256:
            raise _broken(self.path, f"{artifact.path} is not the file that its manifest names")


def fragments_of_range(
    directory: Path, index: GgufIndex, layers: LayerRange, digest_of: DigestOf
) -> tuple[StageArtifact, ...]:
    """The manifest's file and those that a stage of a range is cut from, in the order in which they are needed."""
    manifest = usable_manifest(directory)
    with files.FileSource(directory / MANIFEST_FILE) as source:
        found = [StageArtifact(str(source.path), digest_of(source), source.size_bytes)]
    is_tied = index.find_tensor("output.weight") is None
    repeats_first = rules_of(index.architecture).repeats_first
    for path in artifacts_of_range(layers, index.layer_count, is_tied=is_tied, repeats_first=repeats_first):
        artifact = manifest.artifact(path)
        if artifact is None:
            raise _broken(directory, f"its manifest does not name {path}")
        found.append(StageArtifact(str(directory / path), Digest(artifact.sha256), artifact.artifact_bytes))
    return tuple(found)


@contextlib.contextmanager
def assembled_package(parent: Path, fragments: Sequence[StageArtifact]) -> Iterator[PackageSource]:
    """A package out of files whose digests were checked, the manifest first, as long as the scope lasts.

    It need not be whole: what is read must be there. ``ConfigError(PACKAGE_INVALID)``.
    """
    directory = parent / files.temporary_name()
    checked = {Path(fragment.path).resolve(): fragment.digest for fragment in fragments}
    try:
        with files.translated(f"cannot write in {parent}"):
            (directory / "shared").mkdir(parents=True)
            (directory / "layers").mkdir()
            os.symlink(Path(fragments[0].path).resolve(), directory / MANIFEST_FILE)
        found = {digest: path for path, digest in checked.items()}
        for artifact in usable_manifest(directory).artifacts():
            path = found.get(Digest(artifact.sha256))
            if path is not None:
                with files.translated(f"cannot write in {parent}"):
                    os.symlink(path, directory / artifact.path)
        with PackageSource(directory, lambda source: checked[source.path.resolve()]) as source:
            yield source
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_assembled(parent: Path) -> None:
    """What processes that are gone left of assembling."""
    for path in files.leftovers(parent):
        shutil.rmtree(path, ignore_errors=True)


def usable_manifest(directory: Path) -> PackageManifest:
    """The manifest, if neither it nor its signature breaks a rule; ``ConfigError(PACKAGE_INVALID)`` names the first."""
    manifest = load_manifest(directory)
    if isinstance(manifest, Violation):
        raise _broken(directory, manifest.text)
    violations = (*check_manifest(manifest), *check_signature(manifest, Ed25519Verifier().is_signature_of)[1])
    if violations:
        raise _broken(directory, violations[0].text)
    return manifest


def _open_artifact(directory: Path, artifact: Artifact) -> files.FileSource:
    try:
        return files.FileSource(directory / artifact.path)
    except ConfigError as error:
        raise ConfigError(ErrorCode.PACKAGE_INVALID, f"the package cannot be read: {error.message}") from error


def _broken(directory: Path, problem: str) -> ConfigError:
    text = f"{directory} is no usable layer package: {problem}; see p2pmesh package verify"
    return ConfigError(ErrorCode.PACKAGE_INVALID, text)


def digest_of_model(package: PackageSource, checkpoint: files.Checkpoint) -> Digest:
    """sha256 of the model's file, given back from its fragments."""
    digest = hashlib.sha256()
    for piece in files.read_pieces(package, 0, package.size_bytes, checkpoint):
        digest.update(piece)
    return Digest(digest.hexdigest())


# --- checking


@dataclass(frozen=True, slots=True)
class PackageCheck:
    """What a package is found to be. ``manifest`` None: there is none to read. ``owner_id`` None: it is unsigned."""

    manifest: PackageManifest | None
    owner_id: OwnerId | None
    violations: tuple[Violation, ...]


def check_package(directory: Path, verify: Verify, checkpoint: files.Checkpoint) -> PackageCheck:
    """Checks every rule, all bytes read; broken rules are values, and none of them ends the check early."""
    manifest = load_manifest(directory)
    if isinstance(manifest, Violation):
        return PackageCheck(None, None, (manifest,))
    owner_id, violations = check_signature(manifest, verify)
    found = [*check_manifest(manifest), *violations]
    held: dict[str, GgufIndex] = {}
    for artifact in manifest.artifacts():
        if is_package_path(artifact.path) and artifact.path not in held:
            found += _check_artifact(directory, artifact, held, checkpoint)
    found += _check_model(directory, manifest, held, checkpoint, is_sound=not found)
    return PackageCheck(manifest, owner_id, tuple(found))


def check_signature(manifest: PackageManifest, verify: Verify) -> tuple[OwnerId | None, tuple[Violation, ...]]:
    """The owner that signed the manifest as it is; None and no violation where nobody did."""
    if not manifest.signature:
        return None, ()
    try:
        signed = decode_statement(manifest.signature, verify)
    except P2PMeshError as error:
        return None, (Violation(ViolationCode.SIGNATURE_INVALID, f"the signature proves nothing: {error.message}"),)
    said = signed.statement
    if (said.package_id, said.manifest) != (manifest.package_id, signed_digest(manifest.raw)):
        return None, (Violation(ViolationCode.SIGNATURE_INVALID, "the signature is of another manifest"),)
    return signed.owner_id, ()


def _check_artifact(
    directory: Path, artifact: Artifact, held: dict[str, GgufIndex], checkpoint: files.Checkpoint
) -> Iterator[Violation]:
    path = artifact.path
    try:
        source = files.FileSource(directory / path)
    except ConfigError as error:
        yield Violation(ViolationCode.ARTIFACT_MISSING, f"{path}: {error.message}")
        return
    with source:
        if source.size_bytes != artifact.artifact_bytes:
            text = f"{path} has {source.size_bytes} bytes, not {artifact.artifact_bytes}"
            yield Violation(ViolationCode.ARTIFACT_SIZE_MISMATCH, text)
        elif files.digest_of(source, checkpoint) != artifact.sha256:
            yield Violation(ViolationCode.ARTIFACT_DIGEST_MISMATCH, f"{path} has not the digest {artifact.sha256[:12]}")
        try:
            held[path] = read_index(source)
        except P2PMeshError as error:
            yield Violation(ViolationCode.ARTIFACT_MALFORMED, f"{path}: {error.message}")


def _check_model(
    directory: Path,
    manifest: PackageManifest,
    held: Mapping[str, GgufIndex],
    checkpoint: files.Checkpoint,
    *,
    is_sound: bool,
) -> Iterator[Violation]:
    """The tensors against the model's own directory; and, of a package without any fault, all of the model's bytes."""
    header = held.get(METADATA_PATH)
    if header is None:
        return
    fragments = {path: index for path, index in held.items() if not path.startswith("projectors/")}
    try:
        model = _model_index(directory, header)
        violations = check_tensors(manifest, model, fragments)
    except P2PMeshError as error:
        yield Violation(ViolationCode.ARTIFACT_MALFORMED, f"{METADATA_PATH}: {error.message}")
        return
    yield from violations
    if is_sound and not violations:
        yield from _check_source(directory, manifest, checkpoint)


def _model_index(directory: Path, metadata: GgufIndex) -> GgufIndex:
    header = model_header(metadata)
    with files.FileSource(directory / METADATA_PATH) as source:
        return read_index(_HeaderSource(source, header.regions, header.size_bytes))


class _HeaderSource:
    """A model's header out of its metadata file; zeros where the tensors are."""

    def __init__(self, source: Source, regions: tuple[Region, ...], size_bytes: int) -> None:
        self._source = source
        self._regions = regions
        self.size_bytes = size_bytes

    def read_at(self, offset: int, count: int) -> bytes:
        """As ``Source``; the header is read in order, so a piece of it may come short of ``count`` at no place."""
        end = min(offset + count, self.size_bytes)
        out = bytearray(max(0, end - offset))
        for region in self._regions:
            start, stop = max(offset, region.start), min(end, region.start + region.size_bytes)
            if start >= stop:
                continue
            if region.path:
                data = self._source.read_at(region.offset + start - region.start, stop - start)
            else:
                data = region.literal[start - region.start : stop - region.start]
            out[start - offset : start - offset + len(data)] = data
        return bytes(out)


def _check_source(directory: Path, manifest: PackageManifest, checkpoint: files.Checkpoint) -> Iterator[Violation]:
    """The model given back from its fragments must be the file that was packaged."""
    source = manifest.source
    try:
        with PackageSource(directory, lambda file: files.digest_of(file, checkpoint)) as package:
            size_bytes = package.size_bytes
            digest = digest_of_model(package, checkpoint)
    except P2PMeshError as error:
        yield Violation(ViolationCode.SOURCE_MISMATCH, error.message)
        return
    if size_bytes != source.size_bytes or digest != source.sha256:
        text = (
            f"its fragments give a model of {format_size(size_bytes)} and digest {digest[:12]}, "
            f"not the one of digest {source.sha256[:12]} that it names"
        )
        yield Violation(ViolationCode.SOURCE_MISMATCH, text)
