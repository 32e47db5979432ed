"""The body of BEGIN."""

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.begin import Begin, decode_begin, encode_begin
from p2pmesh.wire.generation import MAX_SEED, Grammar, SamplingParameters

GOOD = msgpack.unpackb(encode_begin(Begin(SamplingParameters(), 3)))


@given(
    st.floats(0, 2), st.integers(0, 1_000_000), st.floats(-2, 2), st.integers(0, MAX_SEED), st.integers(1, 2**31 - 1)
)
def test_round_trip(temperature, top_k, penalty, seed, prompt_tokens):
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, presence_penalty=penalty, seed=seed)
    assert decode_begin(encode_begin(Begin(parameters, prompt_tokens))) == Begin(parameters, prompt_tokens)


def test_what_it_goes_on_with_is_left_out_of_one_that_begins():
    assert "continues" not in GOOD
    begin = Begin(SamplingParameters(), 3, continues=b"i" * 16)
    assert decode_begin(encode_begin(begin)) == begin


@given(st.none() | st.integers(0, 20), st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=1024))
def test_round_trip_of_what_is_told_and_added(top_logprobs, biases):
    parameters = SamplingParameters(logit_bias=tuple(sorted(biases.items())))
    begin = Begin(parameters, 1, top_logprobs)
    assert decode_begin(encode_begin(begin)) == begin


@given(st.text(min_size=1), st.lists(st.text("ab<", min_size=1, max_size=9), max_size=4), st.booleans())
def test_a_grammar_comes_back(text, triggers, is_at_start):
    begin = Begin(SamplingParameters(), 3, None, 9, Grammar(text, tuple(triggers), is_at_start))
    assert decode_begin(encode_begin(begin)) == begin


def test_unknown_fields_are_left_out():
    assert decode_begin(msgpack.packb(GOOD | {"later": 1})) == Begin(SamplingParameters(), 3)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"temperature": 2.5}, ErrorCode.REQUEST_INVALID),
        ({"temperature": float("nan")}, ErrorCode.REQUEST_INVALID),
        ({"temperature": "1"}, ErrorCode.MESSAGE_MALFORMED),
        ({"temperature": True}, ErrorCode.MESSAGE_MALFORMED),
        ({"top_k": 1.5}, ErrorCode.MESSAGE_MALFORMED),
        ({"seed": -1}, ErrorCode.REQUEST_INVALID),
        ({"prompt_tokens": 0}, ErrorCode.REQUEST_INVALID),
        ({"prompt_tokens": 2**31}, ErrorCode.REQUEST_INVALID),
        ({"prompt_tokens": None}, ErrorCode.MESSAGE_MALFORMED),
        ({"top_logprobs": 21}, ErrorCode.REQUEST_INVALID),
        ({"top_logprobs": True}, ErrorCode.MESSAGE_MALFORMED),
        ({"logit_bias": []}, ErrorCode.MESSAGE_MALFORMED),
        ({"logit_bias": bytes(13)}, ErrorCode.MESSAGE_MALFORMED),
        ({"deep": [1] * 5}, ErrorCode.MESSAGE_MALFORMED),
        ({"max_tokens": 0}, ErrorCode.REQUEST_INVALID),
        ({"grammar": b"x"}, ErrorCode.MESSAGE_MALFORMED),
        ({"grammar_triggers": ["x"]}, ErrorCode.REQUEST_INVALID),
        ({"grammar_triggers": "x"}, ErrorCode.MESSAGE_MALFORMED),
        ({"grammar_at_start": True}, ErrorCode.REQUEST_INVALID),
        ({"grammar": "x", "grammar_triggers": ["x" * 65]}, ErrorCode.REQUEST_INVALID),
        ({"continues": bytes(15)}, ErrorCode.MESSAGE_MALFORMED),
        ({"continues": None}, ErrorCode.MESSAGE_MALFORMED),
    ],
)
def test_a_wrong_field_is_refused(change, code):
    with pytest.raises(RemoteProtocolError) as caught:
        decode_begin(msgpack.packb(GOOD | change))
    assert caught.value.code is code


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x01", msgpack.packb({}), bytes(200_000)])
def test_other_bytes_are_refused(body):
    with pytest.raises(RemoteProtocolError):
        decode_begin(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body):
    with contextlib.suppress(RemoteProtocolError):
        decode_begin(body)
