"""Layer packages for tests: built from tiny models, and changed afterwards with the manifest kept consistent."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p2pmesh.adapters.model_files import FileSource, digest_of
from p2pmesh.adapters.package_files import BuildOptions, Sign, build_package
from p2pmesh.model.gguf import read_index
from p2pmesh.model.package import MANIFEST_FILE, SourceFile, SourceModel, encode_manifest, package_id_of

Fields = dict[str, Any]


def unhurried() -> None:
    """A checkpoint that never ends the work."""


def package_of(model: bytes, out: Path, *, name: str = "tiny", created: int = 1, sign: Sign | None = None) -> Path:
    """The package of a model at ``out``; the model's file lies beside it."""
    path = out.with_name(f"{name}.gguf")
    path.write_bytes(model)
    with FileSource(path) as source:
        digest = digest_of(source, unhurried)
        origin = SourceModel(digest, (SourceFile(path.name, source.size_bytes, digest),), path.name)
        build_package(source, read_index(source), out, BuildOptions(name, origin, created, sign), unhurried)
    return out


def change_manifest(package: Path, change: Callable[[Fields], object], *, keeps_id: bool = False) -> None:
    """Lets ``change`` edit the manifest's fields; the id is made right again."""
    path = package / MANIFEST_FILE
    fields = json.loads(path.read_bytes())
    change(fields)
    if not keeps_id:
        fields["package_id"] = package_id_of(fields)
    path.write_bytes(encode_manifest(fields))


def artifact_fields(fields: Fields, path: str) -> Fields:
    """The manifest's entry of an artifact."""
    entries: list[Fields] = [*fields["shared"].values(), *fields["layers"], *fields.get("projectors", ())]
    return next(entry for entry in entries if entry["path"] == path)


def replace_fragment(package: Path, path: str, data: bytes, tensors: int, tensor_bytes: int) -> None:
    """Other bytes for a fragment, which the manifest then names as if they were right."""
    (package / path).write_bytes(data)

    def change(fields: Fields) -> None:
        artifact_fields(fields, path).update(
            sha256=hashlib.sha256(data).hexdigest(),
            artifact_bytes=len(data),
            tensor_count=tensors,
            tensor_bytes=tensor_bytes,
        )

    change_manifest(package, change)
