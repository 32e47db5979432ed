"""Control messages: round trips, damaged fields, limits."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_PROMPT_TOKENS, MAX_TEXT_BYTES
from p2pmesh.wire import control
from p2pmesh.wire.messages.generation import Generate, MessageEntry, SamplingEntry
from p2pmesh.wire.schema import pack, to_map
from tests.wire import vectors
from tests.wire.records import PLAIN, records_of

GREEDY = SamplingEntry(0.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, 0)


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


def test_the_longest_prompt_of_tokens_fits_a_message() -> None:
    message = Generate(bytes(16), "m", GREEDY, tokens=(2**31 - 1,) * MAX_PROMPT_TOKENS)
    assert vectors.read_control(control.encode_control(message)) == message


def test_a_message_beyond_its_limit_is_not_written() -> None:
    entry = MessageEntry("user", "x" * MAX_TEXT_BYTES)
    with pytest.raises(RemoteProtocolError, match=str(MAX_CONTROL_MESSAGE_BYTES)) as error:
        control.encode_control(Generate(bytes(16), "m", GREEDY, messages=(entry, entry)))
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
