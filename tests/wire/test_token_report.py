"""The body of TOKEN."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.token_report import LEAST_LOGPROB, TokenReport, check_embedding, decode_reports, encode_reports

LOGPROBS = st.floats(LEAST_LOGPROB, 0, width=32)
REPORTS = st.builds(
    TokenReport,
    LOGPROBS,
    st.lists(st.tuples(st.integers(0, 2**31 - 1), LOGPROBS), max_size=20).map(tuple),
)


@given(st.lists(REPORTS, max_size=8).map(tuple))
def test_round_trip(reports):
    assert decode_reports(encode_reports(reports), len(reports), 20) == reports


@given(st.lists(REPORTS, min_size=1, max_size=4).map(tuple), st.integers(1, 4))
def test_a_body_that_is_cut_is_refused(reports, cut):
    with pytest.raises(RemoteProtocolError) as caught:
        decode_reports(encode_reports(reports)[:-cut], len(reports), 20)
    assert caught.value.code is ErrorCode.FRAME_VALUE_INVALID


@given(st.binary(max_size=200), st.integers(0, 8), st.integers(0, 20))
def test_any_bytes_are_decoded_or_refused(body, tokens, top_logprobs):
    with contextlib.suppress(RemoteProtocolError):
        assert len(decode_reports(body, tokens, top_logprobs)) == tokens


@pytest.mark.parametrize("value", [0.1, float("nan"), float("-inf"), -10_000.0])
def test_what_is_no_log_probability_is_refused(value):
    with pytest.raises(RemoteProtocolError):
        decode_reports(struct.pack("<fB", value, 0), 1, 0)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_an_embedding_is_so_many_finite_numbers(values):
    body = struct.pack(f"<{len(values)}f", *values)
    assert check_embedding(body, len(values)) == body
    for size in (len(values) - 1, len(values) + 1):
        with pytest.raises(RemoteProtocolError):
            check_embedding(body, size)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_embedding_that_is_not_finite_is_refused(value):
    with pytest.raises(RemoteProtocolError):
        check_embedding(struct.pack("<2f", 1.0, value), 2)
