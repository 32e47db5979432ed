"""Lengths before messages: round trips, what is incomplete, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.varint import decode_varint, encode_varint


@given(st.integers(0, 2**28 - 1))
def test_a_varint_comes_back_and_is_incomplete_until_its_last_byte(number: int) -> None:
    encoded = encode_varint(number)
    assert decode_varint(encoded + b"\xff", 2**28) == number
    for end in range(len(encoded)):
        assert decode_varint(encoded[:end], 2**28) is None


@pytest.mark.parametrize(
    ("prefix", "limit", "code"),
    [
        (b"\x80\x00", 10, ErrorCode.MESSAGE_MALFORMED),
        (b"\xff\x80\x00", 10**9, ErrorCode.MESSAGE_MALFORMED),
        (b"\x80\x80\x80\x80", 10**9, ErrorCode.MESSAGE_MALFORMED),
        (b"\xff\xff\xff\xff\x0f", 10**9, ErrorCode.MESSAGE_MALFORMED),
        (b"\x0b", 10, ErrorCode.MESSAGE_TOO_LARGE),
        (b"\xff\xff\xff\x7f", 2**28 - 2, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_a_bad_varint_is_refused(prefix: bytes, limit: int, code: ErrorCode) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_varint(prefix, limit)
    assert error.value.code is code
