"""Removing, pruning and verifying: only what is the home's and nobody uses, and what was done is told."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pmesh.adapters.file_claims import claim, claimed_alone, end_claim
from p2pmesh.app.model_commands import (
    ModelsOptions,
    list_catalog,
    list_models,
    pull_model,
    search_hub,
    show_model,
)
from p2pmesh.app.model_upkeep import prune, remove_model, verify
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.model.reference import NameReference, parse_reference
from tests.fakes.hub_server import COMMIT, FakeHub, serving_hub
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

MODEL = tiny_llama(TinyShape(layers=2))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.gguf").write_bytes(MODEL)
    return tmp_path


@pytest.fixture
def options(home: Path, monkeypatch: pytest.MonkeyPatch) -> ModelsOptions:
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "none"))
    return ModelsOptions(home, is_offline=True)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving_hub() as served:
        served.add("org/tiny", **{"Tiny-Q8_0__gguf": MODEL, "Tiny-F16__gguf": MODEL + bytes(64)})
        yield served


def test_a_models_files_are_removed_and_what_that_freed_is_told(options: ModelsOptions, home: Path) -> None:
    facts = remove_model(options, "own")
    assert facts["removed"] == [str(home / "models" / "own.gguf")]
    assert facts["freed_bytes"] >= len(MODEL)
    with pytest.raises(ConfigError) as raised:
        remove_model(options, "own")
    assert raised.value.code is ErrorCode.MODEL_NOT_FOUND


def test_a_file_that_a_node_uses_stays(options: ModelsOptions, home: Path) -> None:
    path = home / "models" / "own.gguf"
    held = claim([path])
    with pytest.raises(ConfigError) as raised:
        remove_model(options, "own")
    assert raised.value.code is ErrorCode.HOME_IN_USE
    assert path.exists()
    end_claim(held)
    remove_model(options, "own")
    assert not path.exists()


def test_what_is_not_the_homes_is_left_to_its_owner(
    options: ModelsOptions, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x.gguf"
    elsewhere.write_bytes(MODEL)
    for reference, said in ((str(elsewhere), "remove it yourself"), ("SmolLM2-135M-Instruct", "pip uninstall")):
        with pytest.raises(ConfigError, match=said):
            remove_model(options, reference)
    with pytest.raises(ConfigError, match="nothing to remove"):
        remove_model(options, "org/repo")


def test_pruning_takes_what_nobody_holds(options: ModelsOptions, home: Path) -> None:
    stages = home / "cache" / "stages"
    stages.mkdir(parents=True)
    used, unused = stages / f"{'a' * 64}.gguf", stages / f"{'b' * 64}.gguf"
    used.write_bytes(b"x" * 5000)
    unused.write_bytes(b"x" * 5000)
    half = home / "cache" / "hub" / "org--tiny" / COMMIT / "Q8" / "m.gguf.incomplete"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x" * 5000)
    held = claim([used])
    facts = prune(options)
    end_claim(held)
    assert facts["removed"] == [str(half), str(unused)]
    assert facts["in_use"] == [str(used)]
    assert facts["freed_bytes"] >= 10_000
    assert (home / "models" / "own.gguf").exists()


def test_a_damaged_stage_is_put_aside_and_a_sound_one_stays(options: ModelsOptions, home: Path) -> None:
    stages = home / "cache" / "stages"
    stages.mkdir(parents=True)
    sound = stages / f"{hashlib.sha256(b'sound').hexdigest()}.gguf"
    sound.write_bytes(b"sound")
    damaged = stages / f"{'c' * 64}.gguf"
    damaged.write_bytes(b"other")
    facts = verify(options, None)
    assert (facts["checked"], facts["damaged"]) == (2, 1)
    assert sound.exists()
    assert not damaged.exists()
    assert [path.read_bytes() for path in (home / "cache" / "quarantine").iterdir()] == [b"other"]
    assert verify(options, None)["damaged"] == 0
    assert prune(options)["freed_bytes"] > 0


def test_an_operators_own_file_is_read_and_told_of(options: ModelsOptions, home: Path) -> None:
    assert verify(options, "own")["files"][0]["state"] == "readable"
    path = home / "models" / "own.gguf"
    path.write_bytes(MODEL[:-50])
    facts = verify(options, "own")
    assert facts["files"][0]["state"] == "damaged"
    assert "download it again" in facts["files"][0]["reason"]
    assert path.exists()


def test_a_claim_is_shared_and_exclusive_ones_see_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    first, second = claim([path, tmp_path / "missing"]), claim([path])
    end_claim(first)
    with claimed_alone(path) as is_free:
        assert not is_free
    end_claim(second)
    with claimed_alone(path) as is_free, claimed_alone(tmp_path / "missing") as is_missing_free:
        assert is_free
        assert is_missing_free


def test_a_pulled_model_is_listed_shown_verified_and_removed(options: ModelsOptions, home: Path, hub: FakeHub) -> None:
    online = ModelsOptions(home, hub.url)
    seen: list[dict[str, object]] = []
    pulled = pull_model(online, "org/tiny:q8_0", seen.append)
    assert seen[-1]["done_bytes"] == seen[-1]["total_bytes"] == len(MODEL)
    assert pulled["source"] == f"hf://org/tiny@{COMMIT}"
    assert [model["name"] for model in list_models(options)][:2] == ["SmolLM2-135M-Instruct", "Tiny-Q8_0"]
    shown = show_model(options, "org/tiny:Q8_0")
    assert (shown["name"], shown["layer_count"], shown["kv_bytes_per_token"] > 0) == ("Tiny-Q8_0", 2, True)
    assert shown["quantisation"] == "Q8_0"
    assert shown["fits"]["places"][0]["where"] == "this machine"
    assert verify(options, "org/tiny:Q8_0")["files"][0]["state"] == "sound"
    path = Path(pulled["path"])
    path.write_bytes(MODEL[:-1] + b"\xff")
    assert verify(options, None)["damaged"] == 1
    assert not path.exists()
    pull_model(online, "org/tiny:Q8_0", seen.append)
    assert remove_model(options, "Tiny-Q8_0")["removed"] == [pulled["path"]]
    with pytest.raises(P2PMeshError) as raised:
        pull_model(options, "org/tiny:Q8_0", seen.append)
    assert raised.value.code is ErrorCode.HUB_UNREACHABLE


def test_a_repository_that_is_not_here_is_shown_as_the_hub_lists_it(home: Path, hub: FakeHub) -> None:
    facts = show_model(ModelsOptions(home, hub.url), "org/tiny")
    assert (facts["repository"], facts["is_on_this_machine"]) == ("org/tiny", False)
    assert [model["quant"] for model in facts["models"]] == ["F16", "Q8_0"]


def test_a_search_is_a_table(home: Path, hub: FakeHub) -> None:
    (row,) = search_hub(ModelsOptions(home, hub.url), "tiny", 5)
    assert row["repository"] == "org/tiny"
    with pytest.raises(ConfigError):
        search_hub(ModelsOptions(home, hub.url), "tiny", 0)


def test_every_name_of_the_catalog_can_be_typed() -> None:
    for entry in list_catalog():
        assert parse_reference(entry["name"]) == NameReference(entry["name"])
        assert str(parse_reference(f"{entry['repository']}:{entry['quant']}"))
