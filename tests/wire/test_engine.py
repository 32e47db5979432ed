"""Messages between node and engine child."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_ENGINE_MESSAGE_BYTES
from p2pmesh.wire.engine import (
    LENGTH_BYTES,
    EngineKind,
    decode_fields,
    decode_kind,
    decode_length,
    encode_message,
    frame_message,
)
from tests.wire.records import PLAIN


@given(st.sampled_from(EngineKind), st.dictionaries(st.text("ab", max_size=3), st.integers(0, 9) | st.text("äz")))
def test_a_message_comes_back(kind: EngineKind, fields: dict[str, object]) -> None:
    data = encode_message(kind, fields)
    assert decode_length(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES
    read_kind, payload = decode_kind(data[LENGTH_BYTES:])
    assert read_kind is kind
    assert decode_fields(payload) == fields


def test_a_stage_frame_travels_as_it_is() -> None:
    kind, payload = decode_kind(frame_message(EngineKind.FRAME, b"frame")[LENGTH_BYTES:])
    assert (kind, bytes(payload)) == (EngineKind.FRAME, b"frame")


def test_the_pieces_of_a_large_vocabulary_fit() -> None:
    pieces = [b"piece"] * 600_000
    data = encode_message(EngineKind.RESULT, {"id": 1, "value": pieces})
    assert decode_fields(decode_kind(data[LENGTH_BYTES:])[1])["value"] == pieces


@pytest.mark.parametrize("length", [0, MAX_ENGINE_MESSAGE_BYTES + 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_length(length.to_bytes(LENGTH_BYTES, "little"))
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", ErrorCode.MESSAGE_MALFORMED),
        (b"\x08", ErrorCode.MESSAGE_KIND_UNKNOWN),
        (b"\xff", ErrorCode.MESSAGE_KIND_UNKNOWN),
    ],
)
def test_a_message_without_a_known_kind_is_refused(message: bytes, code: ErrorCode) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_kind(message)
    assert error.value.code is code


@given(st.binary(max_size=60))
def test_random_fields_raise_nothing_else(data: bytes) -> None:
    try:
        assert isinstance(decode_fields(memoryview(data)), dict)
    except RemoteProtocolError as error:
        assert error.code is ErrorCode.MESSAGE_MALFORMED  # noqa: PT017 - both outcomes are right


@given(PLAIN.filter(lambda value: not isinstance(value, dict)))
def test_fields_are_a_map(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_fields(memoryview(msgpack.packb(value)))
