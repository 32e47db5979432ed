"""The layer package vectors, for ``tests.wire.regenerate``: manifests, and the rules that each breaks.

Rules about the files themselves have their packages in ``tests/adapters/test_package_files.py``.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

from p2pmesh.base.ids import owner_id_of_key
from p2pmesh.model.package import (
    EMBEDDINGS_PATH,
    METADATA_PATH,
    OUTPUT_PATH,
    Artifact,
    PackageContents,
    SourceFile,
    SourceModel,
    ViolationCode,
    describe_contents,
    layer_path,
    package_id_of,
    signed_digest,
)
from p2pmesh.wire.package import encode_statement
from tests.wire.keys import OWNER, STRANGER

Case = dict[str, Any]
Change = Callable[[Case], object]
C = ViolationCode
OWNER_ID = owner_id_of_key(OWNER.public_key)


def _digest(number: int) -> str:
    return f"{number:064x}"


def _fields() -> Case:
    source = SourceModel(_digest(1), (SourceFile("tiny.gguf", 5000, _digest(1)),), "tiny.gguf", "org/tiny", "main")
    shared = [Artifact(METADATA_PATH, 1, 256, 900, _digest(2)), Artifact(EMBEDDINGS_PATH, 1, 2048, 2300, _digest(3)),
              Artifact(OUTPUT_PATH, 0, 0, 96, _digest(4))]  # fmt: skip
    layers = tuple(Artifact(layer_path(n), 9, 700, 1200, _digest(5 + n)) for n in range(3))
    return describe_contents(PackageContents("tiny", source, 64, *shared, layers, 1_780_000_000))


def _signed(fields: Case) -> Case:
    envelope = encode_statement(fields["package_id"], signed_digest(fields), OWNER.public_key, OWNER.sign)
    return {**fields, "signature": envelope.hex()}


def _changed(change: Change, *, keeps_id: bool = False) -> Case:
    fields = copy.deepcopy(_fields())
    change(fields)
    if not keeps_id:
        fields["package_id"] = package_id_of(fields)
    return fields


def _projector(**changes: Any) -> Case:
    return {"kind": "mmproj", "path": "projectors/mmproj.gguf", "tensor_count": 2, "tensor_bytes": 64,
            "artifact_bytes": 300, "sha256": _digest(20), **changes}  # fmt: skip


def _valid() -> list[Case]:
    cases = {
        "unsigned": _fields(),
        "signed by an owner": _signed(_fields()),
        "another name, place and time, the same id": _changed(
            lambda fields: fields.update(model_id="else", created_at_unix_secs=1)
        ),
        "layers in another order, the same id": _changed(lambda fields: fields["layers"].reverse()),
        "with a projector": _changed(lambda fields: fields.update(projectors=[_projector()])),
        "with a field that no reader knows": _changed(lambda fields: fields.update(generation={"type": "native-mtp"})),
        "without an activation width": _changed(lambda fields: fields.pop("activation_width")),
        "an older patch of the ABI": _changed(lambda fields: fields.update(skippy_abi_version="0.1.7")),
    }
    return [
        {
            "name": name,
            "manifest": json.dumps(fields),
            "package_id": fields["package_id"],
            "signed_digest": signed_digest(fields),
            "owner_id": OWNER_ID if "signature" in fields else None,
        }
        for name, fields in cases.items()
    ]


def _sets(name: str, value: Any) -> Change:
    return lambda fields: fields.update({name: value})


def _on_layer(number: int, **changes: Any) -> Change:
    return lambda fields: fields["layers"][number].update(changes)


def _on_shared(name: str, **changes: Any) -> Change:
    return lambda fields: fields["shared"][name].update(changes)


CHANGES: list[tuple[ViolationCode, str, Change]] = [
    (C.MANIFEST_MALFORMED, "no shared files", lambda fields: fields.pop("shared")),
    (C.MANIFEST_MALFORMED, "layers as an object", _sets("layers", {})),
    (C.MANIFEST_MALFORMED, "a count as text", _sets("layer_count", "3")),
    (C.MANIFEST_MALFORMED, "true as a count", _sets("layer_count", True)),
    (C.MANIFEST_MALFORMED, "no layers at all", _sets("layer_count", 0)),
    (C.MANIFEST_MALFORMED, "more layers than are possible", _sets("layer_count", 1025)),
    (C.MANIFEST_MALFORMED, "a name with a line feed", _sets("model_id", "tiny\nmodel")),
    (C.MANIFEST_MALFORMED, "a name of 257 bytes", _sets("model_id", "a" * 257)),
    (C.MANIFEST_MALFORMED, "a negative size", _on_layer(0, artifact_bytes=-1)),
    (C.MANIFEST_MALFORMED, "a digest in capitals", _on_layer(0, sha256=_digest(10).upper())),
    (C.MANIFEST_MALFORMED, "no files of the source", lambda fields: fields["source_model"].update(files=[])),
    (C.MANIFEST_MALFORMED, "17 projectors", _sets("projectors", [_projector()] * 17)),
    (C.SCHEMA_UNKNOWN, "schema 2", _sets("schema_version", 2)),
    (C.SCHEMA_UNKNOWN, "schema 0", _sets("schema_version", 0)),
    (C.FORMAT_UNKNOWN, "another format", _sets("format", "runtime-slice")),
    (C.ABI_INCOMPATIBLE, "a newer patch of the ABI", _sets("skippy_abi_version", "0.1.31")),
    (C.ABI_INCOMPATIBLE, "another minor of the ABI", _sets("skippy_abi_version", "0.2.0")),
    (C.ABI_INCOMPATIBLE, "an ABI of two numbers", _sets("skippy_abi_version", "0.1")),
    (C.SIGNATURE_INVALID, "no envelope", _sets("signature", "00")),
    (C.PATH_INVALID, "a path that leaves the package", _on_layer(1, path="../layers/layer-00001.gguf")),
    (C.PATH_INVALID, "an absolute path", _on_layer(1, path="/layers/layer-00001.gguf")),
    (C.PATH_INVALID, "a path with a backslash", _on_layer(1, path="layers\\layer-00001.gguf")),
    (C.PATH_INVALID, "a hidden file", _on_layer(1, path="layers/.layer-00001.gguf")),
    (C.PATH_UNEXPECTED, "a layer's file under another name", _on_layer(1, path="layers/layer-1.gguf")),
    (C.PATH_UNEXPECTED, "the output where the embeddings belong", _on_shared("embeddings", path=OUTPUT_PATH)),
    (C.PATH_UNEXPECTED, "a projector among the layers", _sets("projectors", [_projector(path="layers/p.gguf")])),
    (C.PATH_DUPLICATE, "two layers in one file", _on_layer(1, path=layer_path(0))),
    (C.PATH_DUPLICATE, "two projectors in one file", _sets("projectors", [_projector()] * 2)),
    (C.LAYER_MISSING, "a layer without a file", lambda fields: fields["layers"].pop(1)),
    (C.LAYER_MISSING, "a projector instead of a layer",
     lambda fields: (fields["layers"].pop(), fields.update(projectors=[_projector()]))),
    (C.LAYER_DUPLICATE, "a layer twice", lambda fields: fields["layers"].append(fields["layers"][0])),
    (C.LAYER_UNKNOWN, "a layer beyond the count", _sets("layer_count", 2)),
    (C.PROJECTOR_KIND_UNKNOWN, "a projector of another kind", _sets("projectors", [_projector(kind="lora")])),
    (C.ARTIFACT_EMPTY, "a file without bytes", _on_layer(0, artifact_bytes=0)),
    (C.TENSOR_BYTES_INCONSISTENT, "tensors without bytes", _on_layer(0, tensor_bytes=0)),
    (C.TENSOR_BYTES_INCONSISTENT, "bytes without tensors", _on_shared("output", tensor_bytes=4)),
]  # fmt: skip


def _invalid() -> list[Case]:
    plain = [{"name": name, "manifest": json.dumps(_changed(change)), "violation": code.value}
             for code, name, change in CHANGES]  # fmt: skip
    good = json.dumps(_fields())
    forged = _signed(_fields()) | {"model_id": "renamed"}
    foreign = encode_statement(_fields()["package_id"], _digest(0), STRANGER.public_key, STRANGER.sign)
    texts = {
        ("no JSON", C.MANIFEST_MALFORMED): "package",
        ("a list", C.MANIFEST_MALFORMED): "[]",
        ("cut off", C.MANIFEST_MALFORMED): good[:-1],
        ("a key twice", C.MANIFEST_MALFORMED): '{"schema_version": 1, ' + good[1:],
        ("a number with a point", C.MANIFEST_MALFORMED): good.replace('"layer_count": 3', '"layer_count": 3.0'),
        ("not a number", C.MANIFEST_MALFORMED): good.replace('"layer_count": 3', '"layer_count": NaN'),
        ("an id of other contents", C.PACKAGE_ID_MISMATCH): json.dumps(
            _changed(_on_layer(0, sha256=_digest(99)), keeps_id=True)
        ),
        ("renamed after it was signed", C.SIGNATURE_INVALID): json.dumps(forged),
        ("a signature of another manifest", C.SIGNATURE_INVALID): json.dumps({**_fields(), "signature": foreign.hex()}),
    }
    return plain + [{"name": name, "manifest": text, "violation": code.value} for (name, code), text in texts.items()]


def layer_packages() -> dict[str, Any]:
    """The document."""
    return {"valid": _valid(), "invalid": _invalid()}
