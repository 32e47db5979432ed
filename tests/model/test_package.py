"""The manifest's form, id and rules, without files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.adapters.package_files import check_signature
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.package import (
    ABI_VERSION,
    EMBEDDINGS_PATH,
    METADATA_PATH,
    OUTPUT_PATH,
    Artifact,
    PackageContents,
    PackageManifest,
    SourceFile,
    SourceModel,
    Violation,
    check_manifest,
    describe_contents,
    encode_manifest,
    is_abi_compatible,
    is_package_path,
    layer_path,
    package_id_of,
    read_manifest,
    signed_digest,
)
from p2pmesh.model.package_layout import artifact_of_tensor, artifacts_of_range
from tests.wire import vectors
from tests.wire.keys import verify

DIGEST = "ab" * 32
FIELDS = describe_contents(
    PackageContents(
        "a model", SourceModel(DIGEST, (SourceFile("a.gguf", 9, DIGEST),), "a.gguf", "org/repo", "main"), 64,
        Artifact(METADATA_PATH, 1, 4, 400, DIGEST), Artifact(EMBEDDINGS_PATH, 1, 4, 400, DIGEST),
        Artifact(OUTPUT_PATH, 0, 0, 400, DIGEST), tuple(Artifact(layer_path(n), 1, 4, 400, DIGEST) for n in range(3)),
        7,
    )
)  # fmt: skip

EXPECTED_ID = "sha256:71c94bc9cd256aabd17a313492da4a92db2bcca46b93609e364b4f02885c8dfd"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_what_is_written_is_read() -> None:
    manifest = read_manifest(encode_manifest(FIELDS))
    assert isinstance(manifest, PackageManifest)
    assert check_manifest(manifest) == ()
    assert manifest.raw == FIELDS
    assert manifest.source.repo == "org/repo"
    assert manifest.artifact(layer_path(2)) == Artifact(layer_path(2), 1, 4, 400, DIGEST)
    assert len(manifest.artifacts()) == 6


@given(name=st.sampled_from(sorted(FIELDS)), value=JSON)
def test_any_value_of_a_field_is_read_or_refused_by_name(name: str, value: Any) -> None:
    found = read_manifest(encode_manifest({**FIELDS, name: value}))
    assert isinstance(found, (PackageManifest, Violation))
    if isinstance(found, PackageManifest):
        check_manifest(found)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_without_an_exception(data: bytes) -> None:
    assert isinstance(read_manifest(data), Violation)


def test_the_id_is_of_contents_and_not_of_names_places_and_times() -> None:
    renamed = {**FIELDS, "model_id": "other", "created_at_unix_secs": 8, "signature": "00", "package_id": "x"}
    renamed["source_model"] = {**FIELDS["source_model"], "repo": "else", "path": "/b", "revision": "v1"}
    renamed["layers"] = list(reversed(FIELDS["layers"]))
    assert package_id_of(renamed) == package_id_of(FIELDS) == FIELDS["package_id"]
    assert signed_digest(renamed) != signed_digest(FIELDS)
    for name, value in (("layer_count", 4), ("activation_width", 65), ("generation", {"type": "native-mtp"})):
        assert package_id_of({**FIELDS, name: value}) != package_id_of(FIELDS)


def test_the_id_of_a_manifest_is_this_one() -> None:
    assert FIELDS["package_id"] == EXPECTED_ID
    assert package_id_of(json.loads(encode_manifest(FIELDS))) == EXPECTED_ID


@pytest.mark.parametrize(
    ("version", "is_compatible"),
    [(ABI_VERSION, True), ("0.1.0", True), ("0.1.31", False), ("0.0.30", False), ("1.1.30", False), ("0.1.3a", False)],
)
def test_an_abi_serves_what_asks_for_no_more(version: str, is_compatible: bool) -> None:
    assert is_abi_compatible(version) is is_compatible


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", ".a", "a\\b", "a b", "é", "a" * 256])
def test_a_path_that_could_leave_the_package_is_none(path: str) -> None:
    assert not is_package_path(path)
    assert is_package_path("projectors/a-1_2.gguf")


def test_a_stage_needs_its_layers_and_the_ends_that_it_has() -> None:
    layers = [layer_path(n) for n in range(4)]
    assert artifacts_of_range(LayerRange(0, 2), 4, is_tied=True, repeats_first=False) == (
        METADATA_PATH,
        EMBEDDINGS_PATH,
        *layers[:2],
    )
    assert artifacts_of_range(LayerRange(1, 3), 4, is_tied=True, repeats_first=False) == (METADATA_PATH, *layers[1:3])
    assert artifacts_of_range(LayerRange(3, 4), 4, is_tied=False, repeats_first=False) == (
        METADATA_PATH,
        layers[3],
        OUTPUT_PATH,
    )
    assert artifacts_of_range(LayerRange(3, 4), 4, is_tied=True, repeats_first=False) == (
        METADATA_PATH, EMBEDDINGS_PATH, layers[3], OUTPUT_PATH,
    )  # fmt: skip


def test_stages_of_some_families_need_the_first_layer_too() -> None:
    layers = [layer_path(n) for n in range(4)]
    first = artifacts_of_range(LayerRange(0, 2), 4, is_tied=False, repeats_first=True)
    middle = artifacts_of_range(LayerRange(1, 3), 4, is_tied=False, repeats_first=True)
    assert first == (METADATA_PATH, EMBEDDINGS_PATH, *layers[:2])
    assert middle == (METADATA_PATH, EMBEDDINGS_PATH, layers[0], *layers[1:3])


def test_every_tensor_has_one_place() -> None:
    assert artifact_of_tensor("blk.3.attn_q.weight", 4) == layer_path(3)
    assert artifact_of_tensor("blk.4.nextn.weight", 4) == OUTPUT_PATH
    assert artifact_of_tensor("token_embd.weight", 4) == EMBEDDINGS_PATH
    assert artifact_of_tensor("output.weight", 4) == OUTPUT_PATH
    assert artifact_of_tensor("output_norm.weight", 4) == METADATA_PATH
    assert artifact_of_tensor("rope_freqs.weight", 4) == METADATA_PATH


DOCUMENT = vectors.load("layer_packages")


def cases(group: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in DOCUMENT[group]])


@cases("valid")
def test_a_valid_manifest_has_its_id_and_its_owner(case: dict[str, Any]) -> None:
    manifest = read_manifest(case["manifest"].encode())
    assert isinstance(manifest, PackageManifest)
    assert check_manifest(manifest) == ()
    assert (manifest.package_id, signed_digest(manifest.raw)) == (case["package_id"], case["signed_digest"])
    assert check_signature(manifest, verify) == (case["owner_id"], ())


@cases("invalid")
def test_an_invalid_manifest_breaks_its_rule(case: dict[str, Any]) -> None:
    manifest = read_manifest(case["manifest"].encode())
    if isinstance(manifest, Violation):
        assert manifest.code.value == case["violation"]
        return
    found = (*check_manifest(manifest), *check_signature(manifest, verify)[1])
    assert case["violation"] in {violation.code.value for violation in found}


def test_there_are_more_invalid_vectors_than_valid_ones() -> None:
    assert len(DOCUMENT["invalid"]) > len(DOCUMENT["valid"])
