"""Control messages: round trips, prefixes, placements."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_PROMPT_TOKENS, MAX_TEXT_BYTES
from p2pmesh.wire import control
from p2pmesh.wire.schema import pack, to_map
from tests.wire import vectors
from tests.wire.records import PLAIN, records_of

GREEDY = control.SamplingEntry(0.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, 0)


@pytest.mark.parametrize("kind", control.KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_every_record_comes_back(kind: str, data: st.DataObject) -> None:
    message = data.draw(records_of(control.KINDS[kind]))
    assert vectors.read_control(control.encode_control(message)) == message


@pytest.mark.parametrize("kind", control.KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_value_in_any_field_is_read_or_malformed(kind: str, data: st.DataObject) -> None:
    plain = to_map(data.draw(records_of(control.KINDS[kind])))
    plain |= data.draw(st.dictionaries(st.sampled_from([*plain, "kind"]), PLAIN, max_size=3))
    try:
        control.decode_control(pack({"kind": kind, **plain}))
    except RemoteProtocolError as error:
        codes = {ErrorCode.MESSAGE_MALFORMED, ErrorCode.MESSAGE_KIND_UNKNOWN}
        assert error.code in codes  # noqa: PT017 - both outcomes are right


@given(st.binary(max_size=200))
def test_random_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        control.decode_control(data)


@given(st.integers(0, 2**28 - 1))
def test_a_varint_comes_back_and_is_incomplete_until_its_last_byte(number: int) -> None:
    encoded = control.encode_varint(number)
    assert control.decode_varint(encoded + b"\xff", 2**28) == number
    for end in range(len(encoded)):
        assert control.decode_varint(encoded[:end], 2**28) is None


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
        control.decode_varint(prefix, limit)
    assert error.value.code is code


def test_the_longest_prompt_of_tokens_fits_a_message() -> None:
    message = control.Generate(bytes(16), "m", GREEDY, tokens=(2**31 - 1,) * MAX_PROMPT_TOKENS)
    assert vectors.read_control(control.encode_control(message)) == message


def test_a_message_beyond_its_limit_is_not_written() -> None:
    entry = control.MessageEntry("user", "x" * MAX_TEXT_BYTES)
    with pytest.raises(RemoteProtocolError, match=str(MAX_CONTROL_MESSAGE_BYTES)) as error:
        control.encode_control(control.Generate(bytes(16), "m", GREEDY, messages=(entry, entry)))
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_the_kind_of_a_refused_message_is_shown_cut_and_quoted() -> None:
    with pytest.raises(RemoteProtocolError) as error:
        control.decode_control(pack({"kind": "\n" + "x" * 1000}))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 120


@pytest.mark.parametrize("name", [*control.KINDS])
def test_every_field_of_every_kind_has_a_shape(name: str) -> None:
    fields: dict[str, Any] = control.KINDS[name].__dataclass_fields__  # type: ignore[attr-defined]
    assert all("shape" in field.metadata for field in fields.values())
