"""Models of a home and of the hub together: what is fetched, what is not asked again, what is fetched anew."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pmesh.adapters.hub import TransferProgress
from p2pmesh.adapters.model_reader import ModelReader
from p2pmesh.app.model_access import ModelAccess, open_access
from p2pmesh.app.model_commands import ModelsOptions, list_models, show_model
from p2pmesh.app.model_upkeep import prune
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from tests.fakes.hub_server import COMMIT, OTHER_COMMIT, FakeHub, serving_hub
from tests.fakes.packages import package_of
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

MODEL = tiny_llama(TinyShape(layers=2))
NEWER = tiny_llama(TinyShape(layers=2), seed=9)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving_hub() as served:
        served.add("org/tiny", Tiny__gguf=MODEL)
        yield served


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    return tmp_path / "home"


def ignore(progress: TransferProgress) -> None:
    pass


def damage(path: str) -> None:
    Path(path).write_bytes(MODEL[:-1] + b"\xff")


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def offline(home: Path) -> ModelAccess:
    return open_access(home, is_offline=True)


async def test_what_was_fetched_once_is_served_without_the_hub_and_read_once(home: Path, hub: FakeHub) -> None:
    model = await open_access(home, hub.url).obtain("org/tiny", ignore)
    asked = len(hub.asked)
    again = await offline(home).obtain("org/tiny", ignore)
    assert again == model
    assert again.source == f"hf://org/tiny@{COMMIT}"
    assert (await open_access(home, hub.url).obtain("Tiny", ignore)) == model
    assert len(hub.asked) == asked


async def test_a_damaged_file_is_put_aside_and_fetched_again(home: Path, hub: FakeHub) -> None:
    access = open_access(home, hub.url)
    model = await access.obtain("org/tiny", ignore)
    damage(model.path)
    with pytest.raises(ConfigError, match="damaged, and --offline") as raised:
        await offline(home).obtain("org/tiny", ignore)
    assert raised.value.code is ErrorCode.ARTIFACT_CORRUPT
    assert (await open_access(home, hub.url).obtain("org/tiny", ignore)).digest == model.digest
    assert names_in(home / "cache" / "quarantine") != []


async def test_a_name_means_the_commit_that_was_fetched_last(home: Path, hub: FakeHub) -> None:
    access = open_access(home, hub.url)
    old = await access.obtain("org/tiny", ignore)
    hub.commit = OTHER_COMMIT
    hub.add("org/tiny", Tiny__gguf=NEWER)
    assert (await access.obtain("org/tiny", ignore)).digest == old.digest
    wanted = access.store.find_on_hub("org/tiny")
    assert wanted is not None
    new = await access.fetch(wanted, ignore)
    assert new.digest != old.digest
    assert (await offline(home).obtain("Tiny", ignore)).digest == new.digest
    assert (await offline(home).obtain(f"org/tiny@{COMMIT}", ignore)).digest == old.digest
    assert prune(ModelsOptions(home))["removed"] == [old.path]
    assert (await offline(home).obtain("org/tiny", ignore)).digest == new.digest


async def test_a_pinned_commit_is_kept(home: Path, hub: FakeHub) -> None:
    await open_access(home, hub.url).obtain(f"org/tiny@{COMMIT}", ignore)
    assert prune(ModelsOptions(home))["removed"] == []


def test_references_are_checked_before_anything_runs(home: Path) -> None:
    access = offline(home)
    access.check(("SmolLM2-135M-Instruct",))
    for reference, code in (
        ("org/none", ErrorCode.HUB_UNREACHABLE),
        ("qwen3-4b", ErrorCode.HUB_UNREACHABLE),
        ("nothing", ErrorCode.MODEL_NOT_FOUND),
        ("./nothing.gguf", ErrorCode.MODEL_NOT_FOUND),
        ("a b:c d", ErrorCode.CONFIG_INVALID),
        (str(home), ErrorCode.MODEL_NOT_A_FILE),
    ):
        with pytest.raises(P2PMeshError) as raised:
            access.check((reference,))
        assert raised.value.code is code
    open_access(home).check(("org/none", "qwen3-4b:Q8_0"))  # to be fetched: found out when it is asked for


def test_a_list_reads_headers_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "own.gguf").write_bytes(MODEL)
    monkeypatch.setattr(ModelReader, "digest_of", lambda *_: pytest.fail("a digest was made"))
    assert "own" in [model["name"] for model in list_models(ModelsOptions(home))]


def test_where_a_model_fits_counts_the_running_nodes_peers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "own.gguf").write_bytes(MODEL)
    peers = [{"name": "kitchen", "peer_id": "x", "free_bytes": 10**9}, {"name": "", "peer_id": "y", "free_bytes": 0}]
    monkeypatch.setattr("p2pmesh.app.model_commands.fetch_status", lambda home: {"free_bytes": 1000, "peers": peers})
    fits = show_model(ModelsOptions(home, context_tokens=128, lanes=1), "own")["fits"]
    assert [(place["where"], place["fits_whole"], place["layers"]) for place in fits["places"]] == [
        ("this node", False, 0), ("kitchen", True, 2), ("y", False, 0),
    ]  # fmt: skip
    assert fits["is_enough_together"]


def test_the_head_of_a_file_is_checked_before_anything_runs(tmp_path: Path) -> None:
    access = open_access(tmp_path / "home", is_offline=True)
    model, junk = tmp_path / "m.gguf", tmp_path / "junk.gguf"
    model.write_bytes(tiny_llama())
    junk.write_bytes(b"junk" * 100)
    package = package_of(tiny_llama(), tmp_path / "package", name="tiny")
    access.check([str(model), str(package)])
    with pytest.raises(ConfigError) as raised:
        access.check([str(junk)])
    assert raised.value.code is ErrorCode.GGUF_NOT_GGUF
