"""The hub through its child process, against a small hub on loopback that misbehaves on request."""

import errno
import hashlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from p2pmesh.adapters import hub as adapter
from p2pmesh.adapters.hub import Hub, HubSettings, TransferProgress, hub_settings
from p2pmesh.adapters.hub_cache import HubCache, HubFile, HubRecord, is_safe_path, parse_file, shared_cache_root
from p2pmesh.adapters.model_files import Disk
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.model.reference import HubReference
from tests.fakes.hub_server import COMMIT, OTHER_COMMIT, FakeHub, serving_hub
from tests.fakes.split_gguf import split_gguf
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

BYTES = random.Random(3).randbytes(300_000)
REPOSITORY = "org/repo"
WANTED = HubReference(REPOSITORY)


class Setup(NamedTuple):
    hub: FakeHub
    client: Hub
    cache: HubCache


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    with serving_hub() as hub:
        hub.add(REPOSITORY, **{"Model-Q4_K_M__gguf": BYTES, "mmproj-F16__gguf": b"x" * 10, "README__md": b"hello"})
        cache = HubCache(tmp_path / "hub")
        yield Setup(hub, Hub(cache, HubSettings(hub.url, attempts=3, first_wait_s=0.01, timeout_s=20)), cache)


def ignore(progress: TransferProgress) -> None:
    pass


async def failure_of(client: Hub, wanted: HubReference = WANTED) -> P2PMeshError:
    with pytest.raises(P2PMeshError) as raised:
        await client.fetch(wanted, ignore)
    assert "\n" not in raised.value.message
    return raised.value


async def test_a_model_is_fetched_once_checked_and_pinned(setup: Setup) -> None:
    told: list[TransferProgress] = []
    found = await setup.client.fetch(WANTED, told.append)
    assert found.name == "Model-Q4_K_M"
    assert found.source == f"hf://org/repo@{COMMIT}"
    assert found.paths[0].read_bytes() == BYTES
    assert told[0].done_bytes == 0
    assert told[-1].done_bytes == told[-1].total_bytes == len(BYTES)
    sent = setup.hub.sent_bytes
    assert await setup.client.fetch(WANTED, ignore) == found
    assert setup.hub.sent_bytes == sent
    assert setup.cache.find(WANTED) == found
    assert setup.cache.find(replace(WANTED, revision=COMMIT)) == found
    assert setup.cache.models() == (found,)


async def test_a_cancelled_fetch_ends_at_once_and_goes_on_later(setup: Setup) -> None:
    big = random.Random(4).randbytes(3_000_000)
    setup.hub.add("org/big", big__gguf=big)
    setup.hub.gate = threading.Event()
    wanted = HubReference("org/big")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setup.client.fetch, wanted, ignore)
        assert await trio.to_thread.run_sync(setup.hub.has_sent.wait, 10)
        nursery.cancel_scope.cancel()  # the server is silent: a thread that reads could not be stopped
    setup.hub.gate.set()
    setup.hub.gate = None
    setup.hub.cut_after = [2_000_000]
    await setup.client.fetch(wanted, ignore)
    assert setup.cache.find(wanted) is not None
    assert hashlib.sha256(setup.cache.models()[0].paths[0].read_bytes()).digest() == hashlib.sha256(big).digest()
    assert setup.cache.leftovers() == ()


async def test_a_wrong_digest_is_told_and_nothing_stays(setup: Setup) -> None:
    setup.hub.lies_about_digest = True
    error = await failure_of(setup.client)
    assert error.code is ErrorCode.ARTIFACT_CORRUPT
    assert "has not the sha256 that the hub tells" in error.message
    assert setup.cache.models() == ()


async def test_no_network_is_one_line(setup: Setup) -> None:
    nowhere = Hub(setup.cache, HubSettings("http://127.0.0.1:9", attempts=1))
    error = await failure_of(nowhere)
    assert error.code is ErrorCode.HUB_UNREACHABLE
    assert "http://127.0.0.1:9 cannot be reached" in error.message


async def test_offline_asks_nobody(setup: Setup) -> None:
    client = Hub(setup.cache, replace(setup.client.settings, is_offline=True))
    assert (await failure_of(client)).code is ErrorCode.HUB_UNREACHABLE
    assert setup.hub.asked == []


async def test_a_disk_too_small_is_refused_before_a_byte_comes(setup: Setup) -> None:
    client = Hub(setup.cache, setup.client.settings, disk=Disk(free_bytes=lambda path: 1000))
    assert (await failure_of(client)).code is ErrorCode.DISK_FULL
    assert setup.hub.sent_bytes == 0


async def test_what_was_asked_for_and_is_not_there_lists_what_is(setup: Setup) -> None:
    error = await failure_of(setup.client, HubReference(REPOSITORY, "Q8_0"))
    assert error.message == "org/repo has no Q8_0; it has org/repo:Q4_K_M"


async def test_a_newer_commit_is_another_model_and_the_revision_moves(setup: Setup) -> None:
    old = await setup.client.fetch(WANTED, ignore)
    setup.hub.commit = OTHER_COMMIT
    setup.hub.add(REPOSITORY, **{"Model-Q4_K_M__gguf": BYTES[::-1]})
    new = await setup.client.fetch(WANTED, ignore)
    assert new.paths[0].read_bytes() == BYTES[::-1]
    assert setup.cache.find(WANTED) == new
    assert setup.cache.find(replace(WANTED, revision=COMMIT)) == old


async def test_models_in_parts_come_whole_and_are_read_as_one(setup: Setup, tmp_path: Path) -> None:
    data = tiny_llama(TinyShape(layers=2))
    parts = split_gguf(data, (0, 9, 11))
    named = {f"Q8_0/tiny-Q8_0-0000{n}-of-00003__gguf": part for n, part in enumerate(parts, 1)}
    setup.hub.add("org/parts", **named)
    await setup.client.fetch(HubReference("org/parts", "q8_0"), ignore)
    store = DiskModelStore(tmp_path / "models", tmp_path / "cache", packages=lambda: (), hub_cache=setup.cache)
    model = await store.resolve("org/parts:Q8_0")
    assert model.digest == hashlib.sha256(data).hexdigest()
    assert (model.name, model.source) == ("tiny-Q8_0", f"hf://org/parts@{COMMIT}")
    assert (await store.resolve("tiny-q8_0")).path == model.path


async def test_a_search_that_nobody_answers_ends_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adapter.SEARCH_DEADLINE_S <= 15
    monkeypatch.setattr(adapter, "SEARCH_DEADLINE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = Hub(HubCache(tmp_path), HubSettings(f"http://127.0.0.1:{mute.getsockname()[1]}"))
        with pytest.raises(P2PMeshError, match="is it reachable from here") as raised:
            await client.search("llama", 5)
    assert raised.value.code is ErrorCode.HUB_UNREACHABLE


async def test_a_search_lists_repositories(setup: Setup) -> None:
    assert [model["id"] for model in await setup.client.search("REPO", 5)] == [REPOSITORY]
    assert await setup.client.search("nothing", 5) == []


# --- without a process


def test_the_endpoint_is_what_was_typed_then_the_environment() -> None:
    environment = {"HF_ENDPOINT": "http://a.lan/", "HF_HUB_OFFLINE": "1"}
    assert hub_settings(None, False, environment) == HubSettings(
        "http://a.lan", is_offline=True, offline_by="HF_HUB_OFFLINE"
    )
    assert hub_settings("http://b.lan:8080", False, {}).hosts() == ("b.lan:8080",)
    assert "huggingface.co" in hub_settings(None, True, {}).hosts()
    for wrong in ("b.lan", "ftp://b.lan", "http://", "http://b:x"):
        with pytest.raises(ConfigError):
            hub_settings(wrong, False, {})


def test_the_hubs_own_cache_is_read_where_it_is(tmp_path: Path) -> None:
    place = tmp_path / "shared" / "models--org--repo"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "blobs").mkdir()
    (place / "blobs" / "abc").write_bytes(BYTES)
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "Model-Q4_0.gguf").symlink_to("../../blobs/abc")
    (snapshot / "mmproj.gguf").symlink_to("../../blobs/abc")
    (snapshot / "Model-Q8_0.gguf").symlink_to("../../blobs/missing")
    cache = HubCache(tmp_path / "own", tmp_path / "shared")
    found = cache.find(WANTED)
    assert found is not None
    assert (found.name, found.is_shared) == ("Model-Q4_0", True)
    assert cache.find(replace(WANTED, quant="Q8_0")) is None
    assert cache.find(replace(WANTED, revision="../../x")) is None


def test_a_disk_that_is_full_keeps_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(P2PMeshError) as raised:
        HubCache(tmp_path).remember(HubRecord(REPOSITORY, COMMIT, ("main",), ()))
    assert raised.value.code is ErrorCode.DISK_FULL
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_damaged_records_are_passed_over(tmp_path: Path) -> None:
    cache = HubCache(tmp_path)
    record = HubRecord(REPOSITORY, COMMIT, ("main",), (HubFile("a.gguf", 3),))
    cache.remember(record)
    for number, text in enumerate(["", "[]", "{}", '{"repository": 3, "revisions": [], "files": []}', "[" * 9999]):
        (tmp_path / "org--repo" / f"{number:040x}.json").write_text(text)
    assert list(cache.records()) == [record]
    assert cache.find(WANTED) is None


@pytest.mark.parametrize("path", ["../a.gguf", "/etc/a.gguf", "a//b.gguf", "a/./b.gguf", "a\nb.gguf", "a\\b.gguf", ""])
def test_names_that_leave_their_folder_are_dropped(path: str) -> None:
    assert not is_safe_path(path)
    assert parse_file(path, 1, None) is None


def test_the_shared_cache_is_where_the_environment_says() -> None:
    assert shared_cache_root({"HF_HUB_CACHE": "/a"}) == Path("/a")
    assert shared_cache_root({"HF_HOME": "/b"}) == Path("/b/hub")
