"""Passes and revocations beyond the vectors."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import MAX_PASS_BYTES, MAX_REVOCATION_BYTES, MAX_REVOKED
from p2pmesh.wire.membership_pass import MembershipPass, SignedPass, decode_pass, encode_pass
from p2pmesh.wire.revocation import Revocation, decode_revocation, encode_revocation
from tests.wire.keys import FOUNDER, JOINER, STRANGER, peer_id_of, verify
from tests.wire.records import records_of


@given(records_of(MembershipPass))
def test_a_pass_comes_back_with_its_signer(granted: MembershipPass) -> None:
    sealed = encode_pass(granted, JOINER.public_key, JOINER.sign)
    assert len(sealed) <= MAX_PASS_BYTES
    signed = read(sealed, granted)
    assert (signed.granted, signed.signer, signed.signer_key) == (granted, JOINER.peer_id, JOINER.public_key)
    by_founder = read(encode_pass(granted, b"", FOUNDER.sign), granted)
    assert (by_founder.granted, by_founder.signer) == (granted, FOUNDER.peer_id)


@given(records_of(MembershipPass))
def test_a_pass_is_worth_nothing_in_another_place(granted: MembershipPass) -> None:
    sealed = encode_pass(granted, JOINER.public_key, JOINER.sign)
    for elsewhere in (replace(granted, peer_id=STRANGER.peer_id), replace(granted, mesh_id=STRANGER.mesh_id)):
        with pytest.raises(RemoteProtocolError, match="not granted to this peer"):
            read(sealed, elsewhere)


def read(data: bytes, place: MembershipPass) -> SignedPass:
    """As whoever meets the pass where it belongs to the peer and the overlay of ``place``."""
    holder, mesh_id = PeerId(place.peer_id), MeshId(place.mesh_id)
    return decode_pass(data, holder, mesh_id, FOUNDER.public_key, verify, peer_id_of)


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
        read(data, MembershipPass(FOUNDER.mesh_id, JOINER.peer_id, bytes(16), 0, 0))
    with pytest.raises(RemoteProtocolError):
        decode_revocation(data, FOUNDER.public_key, FOUNDER.mesh_id, verify)
