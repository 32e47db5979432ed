"""The envelope of signed records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.wire.signed import MAX_PAYLOAD_BYTES, seal, unseal
from tests.wire.keys import FOUNDER, JOINER, verify

LIMIT = 2 * MAX_PAYLOAD_BYTES


@given(st.binary(min_size=1, max_size=100), st.binary(max_size=20))
def test_a_payload_comes_back_under_its_own_domain_only(payload: bytes, domain: bytes) -> None:
    sealed = seal(domain, payload, FOUNDER.public_key, FOUNDER.sign)
    assert unseal(domain, sealed, verify, LIMIT, "a record").payload == payload
    with pytest.raises(RemoteProtocolError) as error:
        unseal(domain + b"x", sealed, verify, LIMIT, "a record")
    assert error.value.code is ErrorCode.SIGNATURE_INVALID


def test_another_key_does_not_fit() -> None:
    sealed = seal(b"d", b"payload", JOINER.public_key, FOUNDER.sign)
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        unseal(b"d", sealed, verify, LIMIT, "a record")


@pytest.mark.parametrize("size", [0, MAX_PAYLOAD_BYTES + 1])
def test_a_payload_without_room_is_not_sealed(size: int) -> None:
    with pytest.raises(LocalProtocolError):
        seal(b"d", bytes(size), FOUNDER.public_key, FOUNDER.sign)
