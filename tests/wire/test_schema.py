"""Shapes, bounds of plain values, and what a writer refuses."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.limits import MAX_MESSAGE_CONTAINERS, MAX_MESSAGE_DEPTH
from p2pmesh.wire.messages.answers import Refusal
from p2pmesh.wire.messages.artifacts import FetchArtifact
from p2pmesh.wire.messages.generation import Delta
from p2pmesh.wire.messages.runs import ProbeRun
from p2pmesh.wire.schema import (
    Bytes,
    Integer,
    Line,
    ListOf,
    Optional,
    Real,
    Shape,
    Text,
    as_line,
    checked_map,
    from_map,
    is_line,
    pack,
    unpack,
)
from p2pmesh.wire.values import unpack_value
from tests.wire.records import PLAIN


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(PLAIN)
def test_a_plain_value_comes_back_unless_too_deep(value: object) -> None:
    if depth_of(value) > MAX_MESSAGE_DEPTH:
        with pytest.raises(RemoteProtocolError):
            unpack(pack(value), "x")
    else:
        assert unpack(pack(value), "x") == value


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_as_malformed_or_read_as_msgpack_reads_them(data: bytes) -> None:
    try:
        value = unpack(data, "x")
    except RemoteProtocolError as error:
        refused = error
        assert refused.code is ErrorCode.MESSAGE_MALFORMED
    else:
        assert pack(value) == pack(msgpack.unpackb(data))


@given(PLAIN, st.binary(min_size=1, max_size=3))
def test_bytes_after_a_value_are_refused(value: object, rest: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(pack(value) + rest, "x")


@given(PLAIN, st.data())
def test_a_cut_value_is_refused(value: object, data: st.DataObject) -> None:
    whole = pack(value)
    with pytest.raises(RemoteProtocolError):
        unpack(whole[: data.draw(st.integers(0, len(whole) - 1))], "x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no bytes"),
        (b"\x91" * 9 + b"\xc0", "nested deeper"),
        (b"\x81\xa1a" * 9 + b"\xc0", "nested deeper"),
        (b"\x91" * 100_000, "nested deeper"),
        (b"\xdd\xff\xff\xff\xff\xc0", "incomplete"),
        (b"\xdf\xff\xff\xff\xff\xc0", "incomplete"),
        (b"\xdc\x20\x01" + b"\x90" * 8193, "too many values"),
        (b"\xdc\x20\x01" + b"\x80" * 8193, "too many values"),
        (b"\xdd\x00\x08\x00\x01" + b"\x00" * 524_289, "too many values"),
        (b"\x81\x01\x02", "not text"),
        (b"\x81\x80\x02", "not text"),
        (b"\x82\xa1a\x01\xa1a\x02", "repeated"),
        (b"\xc7\x00\x05", "extension"),
        (b"\xd6\xff\x00\x00\x00\x00", "max_ext_len"),
        (b"\xdc\x00\x41\x00" + b"\x91\x00" * 64, "max_array_len"),
    ],
)
def test_what_would_cost_memory_or_mean_two_things_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unpack_value(data)


def test_the_most_containers_and_the_deepest_nesting_pass() -> None:
    assert len(unpack_value(pack([[]] * (MAX_MESSAGE_CONTAINERS - 1)))) == MAX_MESSAGE_CONTAINERS - 1
    assert unpack_value(b"\x91" * MAX_MESSAGE_DEPTH + b"\xc0") == [[[[[[[[None]]]]]]]]
    tokens = list(range(262_144))
    assert unpack_value(pack({"tokens": tokens})) == {"tokens": tokens}


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (Text(4), "five!"), (Text(4), "äöü"), (Text(4), b"ab"), (Text(4), None), (Text(9), "\ud800"),
        (Text(9, is_line), "a\nb"), (Text(9, is_line), "a\u2028b"), (Text(9, is_line), "a\u2066b"),
        (Line(4), "five!"), (Line(4), 4),
        (Bytes(1, 2), b""), (Bytes(1, 2), b"abc"), (Bytes(1, 2), "ab"),
        (Integer(0, 5), -1), (Integer(0, 5), 6), (Integer(0, 5), True), (Integer(0, 5), 1.0), (Integer(0, 5), "1"),
        (Real(), "1"), (Real(), True), (Real(), float("nan")), (Real(), float("-inf")), (Real(), None),
        (ListOf(Integer(0, 5), 2), [1, 2, 3]), (ListOf(Integer(0, 5), 2), (1, 2)), (ListOf(Integer(0, 5), 2), [6]),
        (ListOf(Integer(0, 5), 2), [True]), (ListOf(Text(1), 2), ["ab"]), (ListOf(Text(1), 2), {"a": 1}),
        (Optional(Integer(0, 5)), 6),
    ],
)  # fmt: skip
def test_a_shape_refuses(shape: Shape, value: object) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^here") as error:
        shape.decode(value, "here")
    assert error.value.code is ErrorCode.MESSAGE_MALFORMED


def test_a_list_names_the_item_that_is_wrong() -> None:
    with pytest.raises(RemoteProtocolError, match=r"tokens\[2\]"):
        ListOf(Integer(0, 5), 9).decode([1, 2, 9], "tokens")


def test_integers_may_stand_for_reals_but_not_the_other_way_round() -> None:
    assert Real().decode(2, "x") == 2.0
    assert Real().decode(2**64 - 1, "x") == float(2**64 - 1)


@given(st.text(), st.integers(0, 40))
def test_a_line_is_one_line_of_bounded_utf8(text: str, size: int) -> None:
    line = as_line(text, size)
    assert is_line(line)
    assert len(line.encode()) <= size
    assert as_line(line, size) == line


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), max_size=9))
def test_plain_text_of_a_line_stays_as_it_is(text: str) -> None:
    assert as_line(text, 99) == text


def test_unknown_fields_are_left_out_and_missing_ones_named() -> None:
    assert from_map(ProbeRun, {"run_id": bytes(16), "more": 1}, "x") == ProbeRun(bytes(16))
    with pytest.raises(RemoteProtocolError, match="field run_id is missing"):
        from_map(ProbeRun, {}, "x")
    with pytest.raises(RemoteProtocolError, match="a map expected"):
        from_map(ProbeRun, [], "x")


@pytest.mark.parametrize(
    "record",
    [
        ProbeRun(bytes(15)),
        Refusal("c" * 65, ""),
        Delta((-1,), ""),
        Delta((), "\ud800"),
        FetchArtifact("x", "0" * 64, 0, 1),
    ],
)
def test_a_writer_refuses_what_no_reader_takes(record: object) -> None:
    with pytest.raises(LocalProtocolError, match="not sent"):
        checked_map(record)


def test_a_writer_cuts_the_line_of_a_refusal() -> None:
    assert checked_map(Refusal("internal", "a\r\n" + "é" * 999))["message"] == "a  " + "é" * 510
