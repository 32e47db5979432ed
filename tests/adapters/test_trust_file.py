"""The trust store and the node's claim in a home."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.adapters.trust_file import (
    CLAIM_FILE,
    CLAIM_PREFIX,
    MAX_TRUST_FILE_BYTES,
    TRUST_FILE,
    decode_claim_line,
    encode_claim_line,
    load_claim,
    load_trust,
    read_claim,
    remove_claim,
    save_claim,
    save_trust,
)
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId, PeerId
from p2pmesh.base.limits import MAX_REVOCATIONS, MAX_TRUSTED_OWNERS
from p2pmesh.core.ownership import TrustPolicy, TrustStore
from tests.wire.keys import JOINER

OWNER_A, OWNER_B = OwnerId("a" * 64), OwnerId("b" * 64)
FULL = TrustStore(
    TrustPolicy.ALLOWLIST,
    {OWNER_A: "Grüße 🦙"},
    frozenset({OWNER_B}),
    frozenset({bytes(16)}),
    frozenset({JOINER.peer_id}),
)


def test_no_file_is_an_empty_store(tmp_path: Path) -> None:
    assert load_trust(tmp_path) == TrustStore()


@pytest.mark.parametrize("trust", [TrustStore(), FULL])
def test_a_store_comes_back_from_a_private_file(tmp_path: Path, trust: TrustStore) -> None:
    save_trust(tmp_path, trust)
    assert load_trust(tmp_path) == trust
    assert (tmp_path / TRUST_FILE).stat().st_mode & 0o777 == 0o600


def test_the_fullest_store_fits_its_file(tmp_path: Path) -> None:
    def numbers(count: int, width: int) -> list[str]:
        return [f"{number:0{width}x}" for number in range(count)]

    peers = [PeerId("1" * 124 + text.replace("0", "z")) for text in numbers(MAX_REVOCATIONS, 4)]
    fullest = TrustStore(
        TrustPolicy.REQUIRE_OWNED,
        {OwnerId(owner): "\\" * 128 for owner in numbers(MAX_TRUSTED_OWNERS, 64)},
        frozenset(map(OwnerId, numbers(MAX_REVOCATIONS, 64))),
        frozenset(map(bytes.fromhex, numbers(MAX_REVOCATIONS, 32))),
        frozenset(peers),
    )
    save_trust(tmp_path, fullest)
    assert load_trust(tmp_path) == fullest


def written(tmp_path: Path, change: dict[str, Any]) -> None:
    save_trust(tmp_path, FULL)
    path = tmp_path / TRUST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"policy": "trust-all"},
        {"policy": None},
        {"trusted_owners": []},
        {"trusted_owners": {"x": ""}},
        {"trusted_owners": {OWNER_A: 5}},
        {"trusted_owners": {OWNER_A: "a\nb"}},
        {"revoked_owners": OWNER_A},
        {"revoked_owners": [5]},
        {"revoked_owners": {}},
        {"revoked_certificates": ["00"]},
        {"revoked_certificates": ["zz"]},
        {"revoked_nodes": ["not a peer"]},
        {"revoked_nodes": [[]]},
        {"revoked_nodes": None},
    ],
    ids=str,
)
def test_a_damaged_store_is_one_line_and_no_empty_store(tmp_path: Path, change: dict[str, Any]) -> None:
    written(tmp_path, change)
    with pytest.raises(ConfigError) as error:
        load_trust(tmp_path)
    assert error.value.code is ErrorCode.HOME_UNUSABLE
    assert str(tmp_path / TRUST_FILE) in error.value.message
    assert "\n" not in error.value.message
    reason = error.value.message.partition("(")[2].partition(")")[0]
    assert not re.search(r"indices|object|'|TrustPolicy|fromhex|trusted_owners", reason), reason


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", "null", "[" * 100_000, "x" * (MAX_TRUST_FILE_BYTES + 1)])
def test_what_is_no_store_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / TRUST_FILE).write_text(text)
    with pytest.raises(ConfigError) as error:
        load_trust(tmp_path)
    assert error.value.code is ErrorCode.HOME_UNUSABLE
    assert re.search("no JSON|of another form|no such file has", error.value.message)


def test_a_claim_is_kept_replaced_and_removed(tmp_path: Path) -> None:
    assert load_claim(tmp_path) is None
    save_claim(tmp_path, b"one")
    save_claim(tmp_path, b"two")
    assert load_claim(tmp_path) == b"two"
    assert (tmp_path / CLAIM_FILE).read_text().startswith(CLAIM_PREFIX)
    assert (tmp_path / CLAIM_FILE).stat().st_mode & 0o777 == 0o600
    remove_claim(tmp_path)
    remove_claim(tmp_path)
    assert load_claim(tmp_path) is None


def test_a_claim_of_another_user_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mailed"
    path.write_text(encode_claim_line(b"one"))
    path.chmod(0o644)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    assert read_claim(path) == b"one"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"p2pmesh-claim1-", b"p2pmesh1-AAAA", b"p2pmesh-claim1-A", b"p2pmesh-claim1-AA AA"]
)
def test_a_damaged_claim_file_is_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / CLAIM_FILE).write_bytes(data)
    with pytest.raises(ConfigError) as error:
        load_claim(tmp_path)
    assert error.value.code is ErrorCode.CLAIM_INVALID
    assert str(tmp_path / CLAIM_FILE) in error.value.message
    assert "\n" not in error.value.message


@given(st.binary(min_size=1, max_size=1024))
def test_the_line_of_a_claim_comes_back(claim: bytes) -> None:
    assert decode_claim_line(f" {encode_claim_line(claim)}\r\n") == claim


def test_a_claim_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        decode_claim_line(encode_claim_line(bytes(1025)))
