"""Ownership claims: the vectors, and what they do not cover."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import PeerId, is_owner_id, owner_id_of_key
from p2pmesh.base.limits import MAX_OWNERSHIP_CLAIM_BYTES
from p2pmesh.core.ownership import OwnershipStatus, TrustPolicy, TrustStore, assess_ownership
from p2pmesh.wire.ownership import LONGEST_LIFE_MS, OwnershipClaim, decode_claim, encode_claim
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, OWNER, STRANGER, verify

DOCUMENT = vectors.load("ownership_claims")
CLAIM = OwnershipClaim(1, bytes(16), JOINER.peer_id, "", 1, 2)
SEALED = encode_claim(CLAIM, OWNER.public_key, OWNER.sign)


def cases(group: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in DOCUMENT[group]])


@cases("valid")
def test_a_valid_claim_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    signed = decode_claim(data, verify)
    assert vectors.to_json(signed.claim) == case["value"]
    assert signed.owner_id == case["owner_id"]
    claim = vectors.from_json(OwnershipClaim, case["value"])
    assert encode_claim(claim, OWNER.public_key, OWNER.sign) == data


@cases("invalid")
def test_an_invalid_claim_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_claim(vectors.case_bytes(case), verify)
    assert error.value.code.value == case["error"]
    assert "\n" not in str(error.value)


@cases("assessed")
def test_a_claim_is_assessed_as_the_vectors_say(case: dict[str, Any]) -> None:
    given_trust = case["trust"]
    trust = TrustStore(
        TrustPolicy(given_trust.get("policy", "off")),
        dict.fromkeys(given_trust.get("trusted_owners", ()), "label"),
        frozenset(given_trust.get("revoked_owners", ())),
        frozenset(bytes.fromhex(text) for text in given_trust.get("revoked_certificates", ())),
        frozenset(given_trust.get("revoked_peers", ())),
    )
    found = assess_ownership(vectors.case_bytes(case), PeerId(case["peer_id"]), trust, case["now_unix_ms"], verify)
    assert found.status.value == case["status"]


def test_the_vectors_hold_every_status_more_invalid_than_valid_cases_and_the_keys_they_name() -> None:
    assert {case["status"] for case in DOCUMENT["assessed"]} == set(OwnershipStatus)
    assert len(DOCUMENT["invalid"]) > 5 * len(DOCUMENT["valid"])
    for group in ("valid", "invalid", "assessed"):
        names = [case["name"] for case in DOCUMENT[group]]
        assert len(set(names)) == len(names)
    for key in (OWNER, FOUNDER, JOINER, STRANGER):
        assert DOCUMENT["keys"][key.name]["public_key"] == key.public_key.hex()


@given(
    st.binary(min_size=16, max_size=16), st.sampled_from([JOINER, FOUNDER, STRANGER]), st.text(max_size=40),
    st.integers(-1, 2**53 + 1), st.integers(-1, LONGEST_LIFE_MS + 1),
)  # fmt: skip
def test_what_is_written_is_read_and_what_no_reader_takes_is_not_written(
    certificate_id: bytes, node: Any, label: str, issued: int, life: int
) -> None:
    claim = OwnershipClaim(1, certificate_id, node.peer_id, label, issued, issued + life)
    try:
        data = encode_claim(claim, OWNER.public_key, OWNER.sign)
    except LocalProtocolError:
        return
    assert decode_claim(data, verify).claim == claim
    assert 0 < life <= LONGEST_LIFE_MS


@given(st.binary(max_size=1200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_claim(data, verify)


@given(st.integers(0, 8 * len(SEALED) - 1))
def test_no_flipped_bit_passes(bit: int) -> None:
    changed = bytearray(SEALED)
    changed[bit // 8] ^= 1 << bit % 8
    try:
        signed = decode_claim(bytes(changed), verify)
    except RemoteProtocolError:
        return
    # A bit of the envelope's own headers may be one of form alone; what was signed cannot change.
    assert signed.claim == CLAIM
    assert signed.owner_id == owner_id_of_key(OWNER.public_key)


def test_the_longest_claim_fits_an_announcement() -> None:
    longest = OwnershipClaim(1, bytes(16), "1" * 128, "l" * 128, 2**53 - LONGEST_LIFE_MS, 2**53)
    assert len(encode_claim(longest, OWNER.public_key, OWNER.sign)) < MAX_OWNERSHIP_CLAIM_BYTES


@pytest.mark.parametrize(
    "wrong", [replace(CLAIM, expires_unix_ms=1), replace(CLAIM, expires_unix_ms=2 + LONGEST_LIFE_MS)]
)
def test_a_life_that_no_reader_takes_is_not_written(wrong: OwnershipClaim) -> None:
    with pytest.raises(LocalProtocolError):
        encode_claim(wrong, OWNER.public_key, OWNER.sign)


def test_an_owner_id_is_64_hex_digits_of_the_key() -> None:
    assert is_owner_id(owner_id_of_key(OWNER.public_key))
    assert owner_id_of_key(OWNER.public_key) != owner_id_of_key(STRANGER.public_key)
    assert not is_owner_id(owner_id_of_key(OWNER.public_key).upper())
