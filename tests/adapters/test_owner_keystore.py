"""The owner's key at rest."""

import json
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.owner_keystore import (
    MAX_FILE_BYTES,
    KdfCost,
    OwnerKey,
    _checksum,
    check_passphrase,
    load_owner_key,
    read_keystore_facts,
    save_owner_key,
)
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import owner_id_of_key

CHEAP = KdfCost(memory_kib=8, iterations=1)
PASSPHRASE = "correct horse"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "owner.key"


def save(path: Path, passphrase: str = PASSPHRASE) -> OwnerKey:
    key = OwnerKey.generate()
    save_owner_key(path, key, passphrase, cost=CHEAP)
    return key


def code_of(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(ConfigError) as error:
        call()
    assert "\n" not in error.value.message
    return error.value.code


def test_a_key_comes_back_with_its_passphrase(path: Path) -> None:
    key = save(path)
    loaded = load_owner_key(path, PASSPHRASE)
    assert (loaded.owner_id, loaded.public_key) == (key.owner_id, key.public_key)
    assert Ed25519Verifier().is_signature_of(key.public_key, b"m", loaded.sign(b"m"))
    assert key.owner_id == owner_id_of_key(key.public_key)


def test_the_cost_is_that_of_the_reference(path: Path) -> None:
    save_owner_key(path, OwnerKey.generate(), PASSPHRASE)
    kdf = json.loads(path.read_text())["kdf"]
    assert (kdf["name"], kdf["memory_kib"], kdf["iterations"], kdf["lanes"]) == ("argon2id", 19_456, 2, 1)
    load_owner_key(path, PASSPHRASE)


def test_the_file_is_private_and_holds_neither_secret_nor_passphrase(path: Path) -> None:
    key = save(path)
    data = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.private_seed.hex().encode() not in data
    assert key.private_seed not in data
    assert PASSPHRASE.encode() not in data
    assert len(data) < MAX_FILE_BYTES
    assert os.listdir(path.parent) == [path.name]


def test_two_files_of_one_key_share_no_secret_bytes(path: Path) -> None:
    key = save(path)
    first = json.loads(path.read_text())
    save_owner_key(path, key, PASSPHRASE, cost=CHEAP)
    second = json.loads(path.read_text())
    assert first["kdf"]["salt"] != second["kdf"]["salt"]
    assert first["cipher"]["nonce"] != second["cipher"]["nonce"]
    assert first["ciphertext"] != second["ciphertext"]


def test_a_wrong_passphrase_is_no_damage(path: Path) -> None:
    save(path)
    assert code_of(lambda: load_owner_key(path, "wrong")) is ErrorCode.PASSPHRASE_WRONG
    assert code_of(lambda: load_owner_key(path, PASSPHRASE + " ")) is ErrorCode.PASSPHRASE_WRONG


def test_a_passphrase_counts_in_any_unicode_form(path: Path) -> None:
    save(path, unicodedata.normalize("NFC", "Käse"))
    load_owner_key(path, unicodedata.normalize("NFD", "Käse"))


def test_no_file_is_no_key(path: Path) -> None:
    assert read_keystore_facts(path) is None
    assert code_of(lambda: load_owner_key(path, PASSPHRASE)) is ErrorCode.OWNER_KEY_MISSING


def test_facts_need_no_passphrase(path: Path) -> None:
    key = save(path)
    facts = read_keystore_facts(path)
    assert facts is not None
    assert (facts.owner_id, facts.public_key, facts.has_keychain_passphrase) == (key.owner_id, key.public_key, False)


def test_every_cut_and_every_changed_byte_is_damage_or_changes_nothing(path: Path) -> None:
    key = save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 17):  # the last two are a brace and a line feed
        path.write_bytes(whole[:length])
        assert code_of(lambda: load_owner_key(path, PASSPHRASE)) is ErrorCode.HOME_UNUSABLE
    for index in range(0, len(whole), 5):
        changed = bytearray(whole)
        changed[index] ^= 0x01
        path.write_bytes(changed)
        try:
            assert load_owner_key(path, PASSPHRASE).owner_id == key.owner_id  # white space
        except ConfigError as error:
            assert error.code is ErrorCode.HOME_UNUSABLE, whole[index : index + 1]  # noqa: PT017 - either may come


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "gigabytes": lambda d: d["kdf"].update(memory_kib=4 << 20),
    "a memory below the least": lambda d: d["kdf"].update(memory_kib=7),
    "a negative memory": lambda d: d["kdf"].update(memory_kib=-1),
    "hours": lambda d: d["kdf"].update(iterations=1_000_000),
    "no iterations": lambda d: d["kdf"].update(iterations=0),
    "many lanes": lambda d: d["kdf"].update(lanes=1 << 20),
    "no lanes": lambda d: d["kdf"].update(lanes=0),
    "a memory that is true": lambda d: d["kdf"].update(memory_kib=True),
    "a memory that is text": lambda d: d["kdf"].update(memory_kib="19456"),
    "another derivation": lambda d: d["kdf"].update(name="pbkdf2"),
    "another cipher": lambda d: d["cipher"].update(name="aes-ecb"),
    "a short salt": lambda d: d["kdf"].update(salt="00"),
    "a salt that is no hex": lambda d: d["kdf"].update(salt="zz" * 16),
    "a salt that is a number": lambda d: d["kdf"].update(salt=5),
    "a short nonce": lambda d: d["cipher"].update(nonce=""),
    "a long cipher text": lambda d: d.update(ciphertext="00" * 49),
    "a list for the derivation": lambda d: d.update(kdf=[]),
    "text for the cipher": lambda d: d.update(cipher="chacha"),
    "another owner id": lambda d: d.update(owner_id="0" * 64),
    "another version": lambda d: d.update(version=2),
    "another kind": lambda d: d.update(kind="ssh"),
    "no public key": lambda d: d.pop("public_key"),
    "no cipher text": lambda d: d.pop("ciphertext"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_forged_file_is_refused_before_anything_is_derived(
    path: Path, change: Callable[[dict[str, Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is right: whoever forges a file computes that too."""
    save(path)
    document = json.loads(path.read_text())
    change(document)
    document.pop("checksum")
    path.write_text(json.dumps({**document, "checksum": _checksum(document)}))
    monkeypatch.setattr("p2pmesh.adapters.owner_keystore.Argon2id", None)
    assert code_of(lambda: load_owner_key(path, PASSPHRASE)) is ErrorCode.HOME_UNUSABLE


def test_clear_facts_are_bound_to_the_secret(path: Path) -> None:
    """Another owner's public key over our secret does not pass, whatever its checksum says."""
    save(path)
    document = json.loads(path.read_text())
    other = OwnerKey.generate()
    document.update(public_key=other.public_key.hex(), owner_id=other.owner_id)
    document.pop("checksum")
    path.write_text(json.dumps({**document, "checksum": _checksum(document)}))
    assert code_of(lambda: load_owner_key(path, PASSPHRASE)) is ErrorCode.PASSPHRASE_WRONG


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 4000, "{" * 4000, "x" * (MAX_FILE_BYTES + 1)])
def test_what_is_no_keystore_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    assert code_of(lambda: read_keystore_facts(path)) is ErrorCode.HOME_UNUSABLE


def test_passphrases_that_cannot_be_meant() -> None:
    check_passphrase("x")
    check_passphrase("\udc80")  # a byte of the environment that is no UTF-8
    for passphrase in ("", "x" * 1025):
        assert code_of(lambda passphrase=passphrase: check_passphrase(passphrase)) is ErrorCode.CONFIG_INVALID
