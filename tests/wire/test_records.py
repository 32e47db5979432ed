"""Keys of provider records; the document holds the same values."""

from pathlib import Path

from p2pmesh.base.ids import MeshId
from p2pmesh.wire.records import artifact_key, model_key

MESH = MeshId("0123456789abcdef" * 2)
TEXT = (Path(__file__).parents[2] / "protocols" / "records.md").read_text()


def test_keys_are_those_of_the_document() -> None:
    assert f"`{model_key(MESH, 'smollm2-135m').hex()}`" in TEXT
    assert f"`{artifact_key(MESH, 'ab' * 32).hex()}`" in TEXT


def test_keys_differ_by_overlay_kind_and_name() -> None:
    other = MeshId("f" * 32)
    keys = {model_key(MESH, "m"), model_key(other, "m"), model_key(MESH, "n"), artifact_key(MESH, "m")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}
