"""The keychain: a library that may be absent, and backends that may fail in any way."""

import sys
from types import ModuleType

import pytest

from p2pmesh.adapters.keychain import SERVICE, fetch_passphrase, forget_passphrase, store_passphrase
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId
from tests.fakes.keychain import FakeKeyring

OWNER_ID = OwnerId("a" * 64)


def test_a_passphrase_is_kept_found_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = FakeKeyring()
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert fetch_passphrase(OWNER_ID) is None
    store_passphrase(OWNER_ID, "secret")
    assert keyring.entries == {(SERVICE, OWNER_ID): "secret"}
    assert fetch_passphrase(OWNER_ID) == "secret"
    forget_passphrase(OWNER_ID)
    forget_passphrase(OWNER_ID)
    assert fetch_passphrase(OWNER_ID) is None


def test_an_absent_library_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match=r"pip install 'p2pmesh\[keychain\]'") as error:
        fetch_passphrase(OWNER_ID)
    assert error.value.code is ErrorCode.CONFIG_INVALID


class _Broken(ModuleType):
    """A backend that raises what no interface names."""

    def __init__(self) -> None:
        super().__init__("keyring")

    def get_password(self, *_: str) -> str:
        raise OSError("no\nbus")

    set_password = delete_password = get_password


def test_a_failing_backend_is_one_line_and_never_names_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", _Broken())
    for call in (lambda: fetch_passphrase(OWNER_ID), lambda: store_passphrase(OWNER_ID, "secret")):
        with pytest.raises(ConfigError, match="no bus") as error:
            call()
        assert "secret" not in error.value.message
    forget_passphrase(OWNER_ID)
