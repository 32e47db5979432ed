"""``p2pmesh package``: a model into a layer package, and what such a package is found to be. Facts for JSON."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.model_source import open_model
from p2pmesh.adapters.owner_keystore import OwnerKey
from p2pmesh.adapters.package_files import (
    BuildOptions,
    PackageCheck,
    Sign,
    build_package,
    check_package,
    check_signature,
    is_package,
    usable_manifest,
)
from p2pmesh.app.claims import OwnerFiles, as_utc, verify
from p2pmesh.app.model_access import open_access
from p2pmesh.app.passphrase import PassphraseSources
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.quantities import format_size
from p2pmesh.model.package import PackageManifest, SourceFile, SourceModel
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.package import encode_statement

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signing:
    """With which key a package is signed, and where its passphrase comes from."""

    files: OwnerFiles
    sources: PassphraseSources


def build(home: Path, reference: str, out: Path, signing: Signing | None) -> Facts:
    """Packages a model into the directory ``out``; ``ConfigError``, ``Refused(DISK_FULL)``."""
    if is_package(Path(reference)):
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{reference} is a layer package already; copy the directory")
    sign = None if signing is None else _signer(signing.sources.open_key(signing.files.keystore))
    model = trio.run(open_access(home).store.resolve, reference)
    with open_model(Path(model.path)) as source:
        if source.size_bytes != model.size_bytes:
            raise ConfigError(ErrorCode.GGUF_INVALID, f"{model.path} changed while it was read; try again")
        options = BuildOptions(model.name, _source_of(model), int(time.time()), sign)
        fields = build_package(source, model.index, out.absolute(), options, _never)
    return {
        "path": str(out.absolute()),
        "package_id": fields["package_id"],
        "model_id": model.name,
        "layer_count": fields["layer_count"],
        "size": format_size(_stored_bytes(fields)),
        "signature": "unsigned" if sign is None else "signed",
    }


def verify_package(directory: Path) -> tuple[Facts, bool]:
    """What a package is, every byte of it read, and whether it breaks no rule."""
    check = check_package(directory, verify, _never)
    facts: Facts = {"path": str(directory.absolute()), "is_valid": not check.violations}
    if check.manifest is not None:
        facts |= _describe(check.manifest) | {"signature": _signature_word(check)}
    if check.owner_id is not None:
        facts["owner_id"] = check.owner_id
    facts["violations"] = [{"code": found.code.value, "text": found.text} for found in check.violations]
    return facts, not check.violations


def show(directory: Path) -> Facts:
    """What the manifest says; no fragment is read. ``ConfigError(PACKAGE_INVALID)`` if it breaks a rule by itself."""
    manifest = usable_manifest(directory)
    owner_id, _ = check_signature(manifest, verify)
    shared = {"metadata": manifest.metadata, "embeddings": manifest.embeddings, "output": manifest.output}
    return {
        "path": str(directory.absolute()),
        **_describe(manifest),
        "signature": "unsigned" if owner_id is None else "signed",
        "owner_id": owner_id,
        "created": as_utc(manifest.created_at_unix_secs * 1000),
        "source_sha256": manifest.source.sha256,
        "source_bytes": manifest.source.size_bytes,
        **{f"{name}_bytes": artifact.artifact_bytes for name, artifact in shared.items()},
        "layers": [
            {"layer": layer, "bytes": artifact.artifact_bytes, "tensors": artifact.tensor_count}
            for layer, artifact in manifest.layers
        ],
    }


def _describe(manifest: PackageManifest) -> Facts:
    return {
        "package_id": manifest.package_id,
        "model_id": manifest.model_id,
        "layer_count": manifest.layer_count,
        "activation_width": manifest.activation_width,
        "size": format_size(sum(artifact.artifact_bytes for artifact in manifest.artifacts())),
    }


def _signature_word(check: PackageCheck) -> str:
    if check.owner_id is not None:
        return "signed"
    return "invalid" if check.manifest is not None and check.manifest.signature else "unsigned"


def _stored_bytes(fields: Facts) -> int:
    artifacts = [*fields["shared"].values(), *fields["layers"]]
    return sum(int(artifact["artifact_bytes"]) for artifact in artifacts)


def _source_of(model: ModelFile) -> SourceModel:
    name = Path(model.path).name
    return SourceModel(model.digest, (SourceFile(name, model.size_bytes, model.digest),), name)


def _signer(key: OwnerKey) -> Sign:
    return lambda package_id, manifest: encode_statement(package_id, manifest, key.public_key, key.sign)


def _never() -> None:
    """Commands are ended by a signal, not by a scope."""
