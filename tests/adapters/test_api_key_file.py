"""The file of API keys."""

import stat
from pathlib import Path

import pytest

from p2pmesh.adapters.api_key_file import FILE_NAME, load_api_keys, remove_api_keys, save_api_keys, stamp_of
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.api_keys import ApiKey

KEY = ApiKey("0a1b", "laptop", "ab" * 32, 3, 60, 1_700_000_000_000)


def test_keys_come_back_and_no_file_is_not_an_empty_one(tmp_path: Path) -> None:
    assert load_api_keys(tmp_path) is None
    assert stamp_of(tmp_path) is None
    for keys in ((KEY,), ()):
        save_api_keys(tmp_path, keys)
        assert load_api_keys(tmp_path) == keys
    remove_api_keys(tmp_path)
    assert load_api_keys(tmp_path) is None


def test_only_the_owner_may_read_and_each_replacement_shows(tmp_path: Path) -> None:
    save_api_keys(tmp_path, (KEY,))
    before = stamp_of(tmp_path)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    save_api_keys(tmp_path, ())
    assert stamp_of(tmp_path) not in (None, before)


GOOD = (
    '{"keys": [{"id": "a", "name": "", "digest": "%s", "max_in_flight": 0, "max_per_minute": 0, "created_unix_ms": 1}]}'
    % ("00" * 32)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"keys": {}}',
        '{"keys": [1]}',
        GOOD.replace("00" * 32, "zz" * 32),
        GOOD.replace("00" * 32, "00"),
        GOOD.replace('"max_in_flight": 0', '"max_in_flight": -1'),
        GOOD.replace('"max_in_flight": 0', '"max_in_flight": true'),
        GOOD.replace('"id": "a", ', ""),
    ],
)
def test_a_damaged_file_is_an_error_and_never_no_keys(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(GOOD)
    assert len(load_api_keys(tmp_path) or ()) == 1
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ConfigError, match="damaged") as raised:
        load_api_keys(tmp_path)
    assert raised.value.code is ErrorCode.HOME_UNUSABLE
