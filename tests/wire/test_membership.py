"""Passes and revocations beyond the vectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.limits import MAX_PASS_BYTES, MAX_REVOCATION_BYTES, MAX_REVOKED
from p2pmesh.wire.membership_pass import MembershipPass, decode_pass, encode_pass
from p2pmesh.wire.revocation import Revocation, decode_revocation, encode_revocation
from tests.wire.keys import FOUNDER, JOINER, peer_id_of, verify
from tests.wire.records import records_of


@given(records_of(MembershipPass))
def test_a_pass_comes_back_with_its_signer(granted: MembershipPass) -> None:
    sealed = encode_pass(granted, JOINER.public_key, JOINER.sign)
    assert len(sealed) <= MAX_PASS_BYTES
    signed = decode_pass(sealed, verify, peer_id_of)
    assert (signed.granted, signed.signer) == (granted, JOINER.peer_id)


@given(records_of(Revocation))
def test_a_revocation_comes_back_in_its_mesh(revocation: Revocation) -> None:
    sealed = encode_revocation(revocation, FOUNDER.public_key, FOUNDER.sign)
    assert decode_revocation(sealed, FOUNDER.public_key, revocation.mesh_id, verify) == revocation


def test_the_largest_revocation_fits() -> None:
    invites = (bytes(16),) * MAX_REVOKED
    largest = Revocation(FOUNDER.mesh_id, 2**53, 2**53, invites, invites, (JOINER.peer_id,) * MAX_REVOKED)
    assert len(encode_revocation(largest, FOUNDER.public_key, FOUNDER.sign)) <= MAX_REVOCATION_BYTES


@given(st.binary(max_size=300))
def test_random_bytes_are_neither(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_pass(data, verify, peer_id_of)
    with pytest.raises(RemoteProtocolError):
        decode_revocation(data, FOUNDER.public_key, FOUNDER.mesh_id, verify)
