"""Layer packages as models of a store: named, cut, held and found like files, with the same digests."""

import os
from pathlib import Path

import pytest

from p2pmesh.adapters.model_files import temporary_name
from p2pmesh.adapters.model_names import NamedModel
from p2pmesh.adapters.model_packages import installed_models
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.adapters.owner_keystore import OwnerKey
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.model.package_layout import artifacts_of_range
from p2pmesh.ports.models import StageArtifact
from p2pmesh.wire.package import encode_statement
from tests.fakes.packages import change_manifest, package_of
from tests.fakes.tiny_gguf import tiny_llama

GEMMA = "gemma-3-270m"
MODEL = tiny_llama()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return package_of(MODEL, tmp_path / "package")


def store_at(home: Path) -> DiskModelStore:
    return DiskModelStore(home / "models", home / "cache", packages=tuple)


def bytes_of(path: str) -> bytes:
    return Path(path).read_bytes()


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def keep_only(package: Path, kept: tuple[str, ...]) -> None:
    for path in list(package.rglob("*.gguf")):
        if str(path.relative_to(package)) not in kept:
            path.unlink()


async def test_stages_of_a_package_are_those_of_its_model(package: Path, tmp_path: Path) -> None:
    store, other = store_at(tmp_path / "one"), store_at(tmp_path / "two")
    packaged, whole = await store.resolve(str(package)), await other.resolve(str(tmp_path / "tiny.gguf"))
    assert (packaged.name, packaged.digest, packaged.size_bytes) == ("tiny", whole.digest, whole.size_bytes)
    assert packaged.index == whole.index
    for layers in (LayerRange(0, 1), LayerRange(1, 3), LayerRange(3, 4), LayerRange(0, 4)):
        ours, theirs = await store.cut(packaged, layers), await other.cut(whole, layers)
        assert (ours.digest, ours.size_bytes) == (theirs.digest, theirs.size_bytes)
        assert bytes_of(ours.path) == bytes_of(theirs.path)


async def test_a_stage_needs_only_its_own_fragments(package: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "home")
    model = await store.resolve(str(package))
    kept = artifacts_of_range(LayerRange(1, 3), 4, is_tied=True, repeats_first=False)
    keep_only(package, kept)
    await store.cut(model, LayerRange(1, 3))
    with pytest.raises(ConfigError) as caught:
        await store.cut(model, LayerRange(0, 2))
    assert caught.value.code is ErrorCode.PACKAGE_INVALID


async def test_a_damaged_fragment_makes_no_stage(package: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "home")
    model = await store.resolve(str(package))
    path = package / "layers" / "layer-00001.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for layers in (LayerRange(1, 3), LayerRange(0, 4)):
        with pytest.raises(ConfigError) as caught:
            await store.cut(model, layers)
        assert caught.value.code is ErrorCode.PACKAGE_INVALID
    assert list((tmp_path / "home" / "cache" / "stages").iterdir()) == []
    await store.cut(model, LayerRange(2, 4))


async def test_a_package_that_gives_another_model_back_is_not_served_whole(package: Path, tmp_path: Path) -> None:
    change_manifest(package, lambda fields: fields["source_model"].update(sha256="0" * 64))
    store = store_at(tmp_path / "home")
    model = await store.resolve(str(package))
    with pytest.raises(ConfigError) as caught:
        await store.cut(model, LayerRange(0, 4))
    assert caught.value.code is ErrorCode.PACKAGE_INVALID


async def test_packages_of_the_home_have_names_and_their_fragments_none(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    package_of(MODEL, home / "models" / "some-package")
    (home / "models" / "tiny.gguf").unlink()
    broken = package_of(MODEL, home / "models" / "broken")
    (home / "models" / "tiny.gguf").unlink()
    change_manifest(broken, lambda fields: fields.update(format="other"))
    store = store_at(home)
    assert [model.name for model in await store.list_models()] == ["tiny"]
    model = await store.resolve("tiny")
    assert model.path == str(home / "models" / "some-package")
    assert await store.find_by_digest(model.digest, model.size_bytes) is not None
    fresh = await store_at(home).find_by_digest(model.digest, model.size_bytes)
    assert fresh is not None
    assert fresh.path == model.path


async def test_a_whole_model_of_a_package_is_an_artifact_once_it_was_written(package: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "home")
    model = await store.resolve(str(package))
    assert await store.find_artifact(model.digest) is None
    whole = await store.cut(model, LayerRange(0, 4))
    assert bytes_of(whole.path) == MODEL
    assert await store.find_artifact(model.digest) == whole
    again = await store.cut(model, LayerRange(0, 4))
    assert again == whole


async def test_a_broken_manifest_is_told_of(package: Path, tmp_path: Path) -> None:
    change_manifest(package, lambda fields: fields.update(schema_version=2))
    with pytest.raises(ConfigError) as caught:
        await store_at(tmp_path / "home").resolve(str(package))
    assert caught.value.code is ErrorCode.PACKAGE_INVALID
    assert "schema 2" in caught.value.message


async def test_a_package_whose_signature_is_of_another_is_not_served(tmp_path: Path) -> None:
    key = OwnerKey.generate()
    package = package_of(
        MODEL, tmp_path / "package", sign=lambda name, digest: encode_statement(name, digest, key.public_key, key.sign)
    )
    assert (await store_at(tmp_path / "home").resolve(str(package))).name == "tiny"
    change_manifest(package, lambda fields: fields.update(model_id="another"))
    with pytest.raises(ConfigError) as caught:
        await store_at(tmp_path / "home").resolve(str(package))
    assert caught.value.code is ErrorCode.PACKAGE_INVALID


def test_a_package_is_checked_before_any_loop_runs(package: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "home")
    named = store.find(str(package))
    assert isinstance(named, NamedModel)
    store.check(named)
    damage(package / "shared" / "metadata.gguf")
    with pytest.raises(ConfigError) as caught:
        store_at(tmp_path / "other").check(named)
    assert caught.value.code is ErrorCode.PACKAGE_INVALID


# --- fragments between peers


async def fetched(giver: DiskModelStore, taker: DiskModelStore, artifact: StageArtifact) -> StageArtifact:
    """What the taker has once it was given a file; held."""
    found = await giver.find_artifact(artifact.digest)
    assert found is not None
    data, pieces = bytes_of(found.path), await giver.piece_list(found)
    giver.release(found.digest)
    async with taker.receive_artifact(artifact.digest, pieces) as reception:
        for piece in range(pieces.count):
            await reception.write_piece(piece, data[piece * pieces.piece_bytes :][: pieces.length_of(piece)])
    received = await taker.find_artifact(artifact.digest)
    assert received is not None
    return received


@pytest.mark.parametrize("layers", [LayerRange(0, 2), LayerRange(1, 3), LayerRange(2, 4)])
async def test_a_stage_is_assembled_from_fragments_of_another_home(
    package: Path, tmp_path: Path, layers: LayerRange
) -> None:
    giver, taker = store_at(tmp_path / "giver"), store_at(tmp_path / "taker")
    model = await giver.resolve(str(package))
    wanted = await giver.cut(model, layers)
    named = await giver.fragments_of(model, layers)
    assert named[0].path.endswith("model-package.json")
    assert len(named) == 1 + len(artifacts_of_range(layers, 4, is_tied=True, repeats_first=False))
    fragments = tuple([await fetched(giver, taker, one) for one in named])
    assembled = await taker.assemble(fragments, model.digest, layers)
    assert (assembled.digest, assembled.size_bytes) == (wanted.digest, wanted.size_bytes)
    assert bytes_of(assembled.path) == bytes_of(wanted.path)
    assert list((tmp_path / "taker" / "cache" / "packages").iterdir()) == []
    assert await taker.piece_list(assembled) == await giver.piece_list(wanted)


async def test_a_whole_model_is_not_assembled_and_a_file_has_no_fragments(package: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "home")
    assert await store.fragments_of(await store.resolve(str(package)), LayerRange(0, 4)) == ()
    assert await store.fragments_of(await store.resolve(str(tmp_path / "tiny.gguf")), LayerRange(0, 2)) == ()


async def test_fragments_of_another_model_or_too_few_make_no_stage(package: Path, tmp_path: Path) -> None:
    giver, taker = store_at(tmp_path / "giver"), store_at(tmp_path / "taker")
    model = await giver.resolve(str(package))
    named = await giver.fragments_of(model, LayerRange(1, 3))
    fragments = tuple([await fetched(giver, taker, one) for one in named])
    cases = (
        (fragments, Digest("0" * 64)), (fragments[:-1], model.digest), (fragments[:1], model.digest),
        (fragments[1:], model.digest), ((*fragments[:1], *fragments[2:]), model.digest),
    )  # fmt: skip
    for given, digest in cases:
        with pytest.raises(ConfigError) as caught:
            await taker.assemble(given, digest, LayerRange(1, 3))
        assert caught.value.code is ErrorCode.PACKAGE_INVALID
        assert list((tmp_path / "taker" / "cache" / "packages").iterdir()) == []


async def test_a_fragment_that_changed_is_not_given_out(package: Path, tmp_path: Path) -> None:
    store = store_at(tmp_path / "home")
    model = await store.resolve(str(package))
    *_, last = await store.fragments_of(model, LayerRange(1, 3))
    damage(Path(last.path))
    assert await store.find_artifact(last.digest) is None


async def test_what_a_dead_process_left_of_assembling_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "home" / "cache" / "packages" / ".999999999.mark.x.tmp"
    of_same_pid = left.with_name(f".{os.getpid()}.mark.x.tmp")  # as in a container, where it is always the same
    own = left.with_name(temporary_name())
    for path in (left, of_same_pid, own):
        (path / "layers").mkdir(parents=True)
    store_at(tmp_path / "home")
    assert (left.exists(), of_same_pid.exists(), own.exists()) == (False, False, True)


@pytest.mark.slow
async def test_a_stage_of_seven_layers_of_gemma_is_under_30_mb(tmp_path: Path) -> None:
    if GEMMA not in {model.name for model in installed_models()}:
        pytest.skip(f"not installed: {GEMMA}")
    store = DiskModelStore(tmp_path / "models", tmp_path / "cache")
    stage = await store.cut(await store.resolve(GEMMA), LayerRange(5, 12))
    assert stage.size_bytes < 30_000_000
