"""Models in several files in the store: found under any part's name, cut and served as the file that was split."""

import hashlib
from pathlib import Path

import pytest

from p2pmesh.adapters.model_source import PartsSource, open_model, stamp_of_model
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.model.gguf import read_index
from tests.fakes.memory_source import MemorySource
from tests.fakes.split_gguf import split_gguf, write_parts
from tests.fakes.tiny_gguf import tiny_llama

MODEL = tiny_llama()
TENSORS = len(read_index(MemorySource(MODEL)).tensors)
COUNTS = (0, 11, TENSORS - 11)
DIGEST = Digest(hashlib.sha256(MODEL).hexdigest())


def store_of(home: Path) -> DiskModelStore:
    return DiskModelStore(home / "models", home / "cache", packages=lambda: ())


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return write_parts(tmp_path / "models", "tiny-F32", split_gguf(MODEL, COUNTS))


@pytest.mark.parametrize("number", [0, 2])
async def test_any_part_names_the_whole_model(parts: list[Path], tmp_path: Path, number: int) -> None:
    model = await store_of(tmp_path).resolve(str(parts[number]))
    assert (model.name, model.digest, model.size_bytes) == ("tiny-F32", DIGEST, len(MODEL))
    assert model.path == str(parts[0])
    assert model.index == read_index(MemorySource(MODEL))


async def test_parts_are_one_name_beside_what_else_lies_there(parts: list[Path], tmp_path: Path) -> None:
    folder = parts[0].parent
    for name in (".DS_Store", "mmproj-F16.gguf", "x.gguf.incomplete", "._tiny.gguf"):
        (folder / name).write_bytes(b"junk")
    (folder / "dangling.gguf").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "other.gguf").write_bytes(tiny_llama(seed=2))
    store = store_of(tmp_path)
    assert [model.name for model in await store.list_models()] == ["other", "tiny-F32"]
    assert (await store.resolve("TINY-f32")).digest == DIGEST


async def test_stages_and_served_bytes_are_those_of_the_file_that_was_split(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "whole.gguf").write_bytes(MODEL)
    store = store_of(tmp_path)
    split, whole = await store.resolve(str(parts[0])), await store.resolve(str(tmp_path / "whole.gguf"))
    for layers in (LayerRange(0, 1), LayerRange(1, 3), LayerRange(3, 4)):
        assert await store.cut(split, layers) == await store.cut(whole, layers)
    artifact = await store.cut(split, LayerRange(0, 4))
    served = bytearray()

    async def sink(piece: bytes) -> None:
        served.extend(piece)

    await store.read_artifact(artifact, 0, artifact.size_bytes, sink)
    assert bytes(served) == MODEL
    assert await store.stage_memory_bytes(artifact, 64, 1) > 0


async def test_a_peer_that_holds_parts_has_the_file_that_was_split(parts: list[Path], tmp_path: Path) -> None:
    found = await store_of(tmp_path).find_by_digest(DIGEST, len(MODEL))
    assert found is not None
    assert found.path == str(parts[0])


async def test_a_missing_part_is_named(parts: list[Path], tmp_path: Path) -> None:
    parts[1].unlink()
    with pytest.raises(ConfigError) as raised:
        await store_of(tmp_path).resolve(str(parts[0]))
    assert raised.value.code is ErrorCode.MODEL_NOT_FOUND
    assert "part 2 of 3 is missing: put tiny-F32-00002-of-00003.gguf beside the others" in raised.value.message
    assert await store_of(tmp_path).list_models() == ()


async def test_a_half_part_is_named(parts: list[Path], tmp_path: Path) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-100])
    with pytest.raises(ConfigError) as raised:
        await store_of(tmp_path).resolve(str(parts[0]))
    assert raised.value.code is ErrorCode.GGUF_TRUNCATED
    assert str(parts[2]) in raised.value.message


async def test_a_renamed_part_is_no_model(parts: list[Path], tmp_path: Path) -> None:
    parts[1].rename(tmp_path / "model.gguf")
    with pytest.raises(ConfigError) as raised:
        await store_of(tmp_path).resolve(str(tmp_path / "model.gguf"))
    assert raised.value.code is ErrorCode.GGUF_INVALID
    assert "one part of 3" in raised.value.message


def test_a_changed_part_is_another_model(parts: list[Path]) -> None:
    before = stamp_of_model(parts[0])
    with open_model(parts[1]) as source:
        assert isinstance(source, PartsSource)
        assert not source.has_changed()
        with parts[2].open("ab") as file:
            file.write(b"\0")
        assert source.has_changed()
    assert stamp_of_model(parts[0]) != before


async def test_two_files_of_one_name_list_both(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / "models" / folder).mkdir(parents=True)
        (tmp_path / "models" / folder / "same.gguf").write_bytes(tiny_llama())
    with pytest.raises(ConfigError) as raised:
        await store_of(tmp_path).resolve("same")
    assert "may mean 2 models" in raised.value.message
    assert "a/same.gguf" in raised.value.message


async def test_a_folder_named_as_a_repository_is_told_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        await store_of(tmp_path).resolve("org/repo")
    assert raised.value.code is ErrorCode.MODEL_NOT_A_FILE
    assert "hf://org/repo for the hub" in raised.value.message
