"""Which models of a home are served without being named."""

from pathlib import Path

import pytest

from p2pmesh.adapters.model_packages import PackagedModel
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.app.model_shelf import OwnersModels
from p2pmesh.base.errors import ConfigError, ErrorCode
from tests.fakes.tiny_gguf import TinyShape, tiny_llama


def shelf_of(home: Path, *excluded: str) -> OwnersModels:
    """A home with two models of the owner, one that is none, and one that pip installed."""
    models = home / "models"
    (models / "deeper").mkdir(parents=True)
    for name, seed in (("one.gguf", 1), ("deeper/two.gguf", 2), ("installed.gguf", 3)):
        (models / name).write_bytes(tiny_llama(TinyShape(layers=2), seed=seed))
    (models / "installed.gguf").rename(home / "installed.gguf")
    (models / "none.gguf").write_bytes(b"GGUF and no more")
    packaged = PackagedModel("installed", (home / "installed.gguf",))
    return OwnersModels(DiskModelStore(models, home / "cache", packages=lambda: (packaged,)), excluded)


async def test_what_the_owner_put_there_is_served_and_no_package(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path)
    assert [known.name for known in await shelf.survey()] == ["one", "two"]


async def test_a_model_is_read_and_held_when_it_is_wanted(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path)
    one, two = await shelf.survey()
    model = await shelf.load(one)
    assert (model.name, model.index.layer_count) == ("one", 2)
    assert model.digest in shelf._store._stages.holds
    shelf.release(model)
    assert model.digest not in shelf._store._stages.holds
    (tmp_path / "models" / "deeper" / "two.gguf").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        await shelf.load(two)
    await shelf.survey()
    with pytest.raises(ConfigError) as raised:
        await shelf.load(two)
    assert raised.value.code is ErrorCode.MODEL_NOT_FOUND


async def test_what_the_owner_excludes_is_not_served(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, "ONE")
    (two,) = await shelf.survey()
    model = await shelf.load(two)
    shelf.release(model)
    by_digest = OwnersModels(shelf._store, (model.digest[:12],))
    (_, two) = await by_digest.survey()
    with pytest.raises(ConfigError, match="excludes two"):
        await by_digest.load(two)
