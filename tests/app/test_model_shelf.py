"""Which models of a home are served without being named."""

import json
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters.model_packages import PackagedModel
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.app.events import Event
from p2pmesh.app.model_shelf import OwnersModels, tell_unusable
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.cli.main import main
from p2pmesh.cli.output import describe_event
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


async def test_what_cannot_be_read_is_named_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf_of(tmp_path)
    models = tmp_path / "models"
    (models / "text.gguf").write_text("no model")
    (models / "cut.gguf").write_bytes((models / "one.gguf").read_bytes()[:-9])
    (models / "half-00001-of-00002.gguf").write_bytes(b"GGUF")
    told: list[Event] = []
    await tell_unusable(DiskModelStore(models, tmp_path / "cache"), told.append)
    lines = [line for event in told for line in describe_event(event)]
    assert [line.partition(" is not served: ")[0] for line in lines] == [
        str(models / name) for name in ("cut.gguf", "half-00001-of-00002.gguf", "none.gguf", "text.gguf")
    ]
    assert "the file ends at byte" in lines[0]
    assert "half-00002-of-00002.gguf is missing" in lines[1]
    assert "not a GGUF model" in lines[3]
    assert await trio.to_thread.run_sync(main, ["models", "list", "--home", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"p2pmesh: {line}" for line in lines]
    assert {"one", "two"} <= {one["name"] for one in json.loads(captured.out)}


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
