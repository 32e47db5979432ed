"""Keys as commands make them and as a running node knows them."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.adapters.api_key_file import FILE_NAME
from p2pmesh.api.access import KeyLimited
from p2pmesh.app.api_keys import (
    LOOK_EVERY_S,
    OPERATOR,
    HomeKeys,
    allow_any_key,
    create_api_key,
    list_api_keys,
    revoke_api_key,
)
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused

TOKEN = "console-token"


def refusal(keys: HomeKeys, given: str) -> ErrorCode:
    with pytest.raises(Refused) as raised:
        keys.begin(given)
    return raised.value.code


def test_a_key_is_kept_as_a_hash_alone(tmp_path: Path) -> None:
    made = create_api_key(tmp_path, "laptop", 2, 60)
    secret = made["key"].removeprefix("p2pmesh-sk-")
    assert len(secret) == 43
    assert secret not in (tmp_path / FILE_NAME).read_text()
    listed = list_api_keys(tmp_path)
    assert "key" not in listed["keys"][0]
    assert (listed["keys"][0]["name"], listed["keys"][0]["per_minute"]) == ("laptop", 60)


@pytest.mark.parametrize(("name", "limit"), [("two\nlines", 0), ("x" * 257, 0), ("", -1), ("", 10**9)])
def test_what_makes_no_sense_is_refused(tmp_path: Path, name: str, limit: int) -> None:
    with pytest.raises(ConfigError):
        create_api_key(tmp_path, name, limit, 0)
    assert list_api_keys(tmp_path)["any_key_is_accepted"]


def test_a_key_that_is_not_there_cannot_be_revoked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key list"):
        revoke_api_key(tmp_path, "ffff")


async def test_without_keys_any_is_accepted_and_changes_count_within_a_second(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    keys = HomeKeys(tmp_path, TOKEN)
    assert keys.begin("") is None
    assert keys.begin("anything") is None
    made = create_api_key(tmp_path, "", 0, 0)
    await trio.sleep(LOOK_EVERY_S)
    assert refusal(keys, "") is ErrorCode.UNAUTHORIZED
    assert refusal(keys, "anything") is ErrorCode.UNAUTHORIZED
    assert keys.begin(made["key"]) == made["id"]
    assert keys.begin(TOKEN) == OPERATOR
    keys.end(OPERATOR)
    revoke_api_key(tmp_path, made["id"])
    await trio.sleep(LOOK_EVERY_S)
    assert refusal(keys, made["key"]) is ErrorCode.UNAUTHORIZED  # the last one revoked lets nobody in
    allow_any_key(tmp_path)
    await trio.sleep(LOOK_EVERY_S)
    assert keys.begin("anything") is None


async def test_limits_of_a_key(tmp_path: Path, autojump_clock: MockClock) -> None:
    made = create_api_key(tmp_path, "", 1, 2)
    keys = HomeKeys(tmp_path, TOKEN)
    keys.begin(made["key"])
    with pytest.raises(KeyLimited, match="in flight"):
        keys.begin(made["key"])
    keys.end(made["id"])
    keys.begin(made["key"])
    keys.end(made["id"])
    with pytest.raises(KeyLimited) as raised:
        keys.begin(made["key"])
    assert raised.value.retry_after_s == 30


async def test_models_that_are_asked_besides_count_for_the_minute(tmp_path: Path, autojump_clock: MockClock) -> None:
    made = create_api_key(tmp_path, "", 0, 6)
    keys = HomeKeys(tmp_path, TOKEN)
    keys.begin(made["key"])
    keys.charge(made["id"], 6)
    keys.charge("of-nobody", 6)
    with pytest.raises(KeyLimited) as raised:
        keys.begin(made["key"])
    assert raised.value.retry_after_s == 20


async def test_while_the_file_is_damaged_nobody_is_let_in_and_its_place_is_not_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    keys = HomeKeys(tmp_path, TOKEN)
    for _ in range(2):
        with pytest.raises(Refused) as raised:
            keys.begin("anything")
        assert str(tmp_path) not in raised.value.message
