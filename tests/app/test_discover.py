"""``p2pmesh discover`` over a real relay: what is listed, what is asked for, what is left out, and silence."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings
from p2pmesh.app.discover import DiscoverOptions, run_discover
from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable
from p2pmesh.cli.exit_codes import EXIT_CODES
from p2pmesh.cli.main import main
from p2pmesh.wire import invite
from p2pmesh.wire.listing import ListingContent
from tests.adapters.nostr.real_relays import local_relay, silent_server
from tests.fakes.clock import FakeClock, FakeEntropy
from tests.wire.keys import FOUNDER, JOINER, STRANGER, TestKey, verify

NOWHERE = "ws://127.0.0.1:9"
DEAD = "/ip4/127.0.0.1/tcp/9"


def content_of(key: TestKey, name: str = "", **changes: Any) -> ListingContent:
    """A listing of a public pool of ``key``, where nobody answers."""
    now = int(time.time()) * 1000
    terms = replace(key.requirements, is_public=True, pool_name=name)
    made = invite.Invite(bytes(16), terms, now, now + invite.LIFE_MS, (DEAD,))
    line = invite.encode_invite(made, key.public_key, key.sign)
    said = ListingContent(line, ("smollm2-135m",), 8 << 30, 2, made.mesh_id, 1, name=name or None, region="EU")
    return replace(said, **changes)


async def list_at(url: str, *contents: ListingContent) -> None:
    clock = FakeClock(unix_ms=int(time.time()) * 1000)
    for content in contents:
        relays = NostrRelays(RelaySettings((url,), PublisherKey.fresh(), verify), clock, FakeEntropy())
        assert (await relays.publish(content, 20.0)).accepted == 1


async def discovered(home: Path, *urls: str, **asked: Any) -> dict[str, Any]:
    options = DiscoverOptions(home, urls, **asked)
    return await trio.to_thread.run_sync(run_discover, options)


async def test_pools_are_shown_once_and_filtered_and_what_is_none_is_counted(tmp_path: Path) -> None:
    attic = content_of(FOUNDER, "the attic", serving=("smollm2-135m", "qwen3-4b"), client_count=2, max_clients=16)
    other = content_of(JOINER, total_vram_bytes=64 << 30, region=None)
    private = content_of(STRANGER)
    hidden = replace(private, invite_token=_private_line(STRANGER), mesh_id=STRANGER.mesh_id)
    async with local_relay() as url:
        await list_at(url, attic, attic, other, hidden, replace(other, name="not its name"))
        facts = await discovered(tmp_path, url, NOWHERE)
        by_name = {pool["name"]: pool for pool in facts["pools"]}
        assert list(by_name) == [None, "the attic"]
        assert by_name["the attic"]["serving"] == ["smollm2-135m", "qwen3-4b"]
        assert len(by_name["the attic"]["publishers"]) == 2
        assert [relay["answered"] for relay in facts["relays"]] == [True, False]
        assert [(one["reason"], one["count"]) for one in facts["rejections"]] == [
            ("mesh_mismatch", 1),
            ("not_public", 1),
        ]
        assert "choice" not in facts
        asked = {
            "name": ("name", "the attic", ["the attic"]),
            "model": ("model", "qwen3-4b", ["the attic"]),
            "memory": ("min_memory_bytes", 10 << 30, [None]),
            "region": ("region", "eu", ["the attic"]),
            "nothing": ("model", "qwen3", []),
        }
        for option, value, names in asked.values():
            facts = await discovered(tmp_path, url, **{option: value})
            assert [pool["name"] for pool in facts["pools"]] == names
            assert facts["hidden"] == 2 - len(names)


async def test_with_no_pool_that_answers_nothing_would_be_joined(tmp_path: Path) -> None:
    async with local_relay() as url:
        assert (await discovered(tmp_path, url, is_choosing=True))["choice"] is None
        await list_at(url, content_of(FOUNDER))
        facts = await discovered(tmp_path, url, is_choosing=True)
        assert len(facts["pools"]) == 1
        assert facts["choice"] is None


async def test_silence_is_told_with_its_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PeerUnavailable) as error:
        await discovered(tmp_path, NOWHERE)
    assert error.value.code is ErrorCode.PEER_UNREACHABLE
    assert f"no relay answered ({NOWHERE}: " in error.value.message
    command = ["discover", "--home", str(tmp_path), "--relay", NOWHERE]
    assert await trio.to_thread.run_sync(main, command) == EXIT_CODES[ErrorCode.PEER_UNREACHABLE]
    assert capsys.readouterr().err.startswith("p2pmesh: no relay answered")


@pytest.mark.parametrize(
    ("asked", "code"),
    [({"name": ""}, ErrorCode.CONFIG_INVALID), ({"relays": ("http://x",)}, ErrorCode.ADDRESS_INVALID)],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, asked: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(ConfigError) as error:
        run_discover(DiscoverOptions(tmp_path, **asked))
    assert error.value.code is code


async def test_the_command_prints_both_forms_and_makes_no_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    async with local_relay() as url, silent_server() as silent:
        await list_at(url, content_of(FOUNDER, "the attic"))
        command = ["discover", "--home", str(home), "--relay", url, "--relay", silent]
        assert await trio.to_thread.run_sync(main, [*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["pools"][0]["name"] == "the attic"
        assert await trio.to_thread.run_sync(main, command) == 0
        lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pool", "nodes", "memory", "serving", "clients", "region", "score", "listed"]
    assert lines[1].startswith("the attic  2      8.0 GiB  smollm2-135m  0        EU      ")
    assert lines[2] == "1 pool at 1 of 2 relays, by their own word"
    assert lines[3].startswith(f"no answer from {silent}")
    assert not home.exists()


async def test_relays_of_the_configuration_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with local_relay() as url:
        (tmp_path / "config.toml").write_text(f'nostr_relay = ["{url}"]\n')
        assert await trio.to_thread.run_sync(main, ["discover", "--home", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["relays"] == [{"url": url, "answered": True, "detail": ""}]


def _private_line(key: TestKey) -> str:
    now = int(time.time()) * 1000
    made = invite.Invite(bytes(16), key.requirements, now, now + invite.LIFE_MS, (DEAD,))
    return invite.encode_invite(made, key.public_key, key.sign)
