import pytest

from p2pmesh.api.errors import RequestError
from p2pmesh.api.openai.fields import Fields, check_text, decode_object
from p2pmesh.base.errors import ErrorCode, P2PMeshError


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{} {}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"[" * 5_000_000,
        b'{"a": ' + b"[" * 256 + b"]" * 256 + b"}",
        b'{"a": [1e999]}',
        b'{"a": -1e400}',
    ],
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(P2PMeshError) as raised:
        decode_object(body)
    assert raised.value.code is ErrorCode.REQUEST_INVALID
    assert "\n" not in raised.value.message


def test_what_is_read_may_be_nested_as_deep_as_it_can_be_written() -> None:
    assert decode_object(b'{"a": ' + b"[" * 255 + b"]" * 255 + b"}")
    with pytest.raises(P2PMeshError, match="nested more than 256 deep"):
        decode_object(b'{"a": ' + b"[" * 256 + b"]" * 256 + b"}")


def test_a_refusal_gives_no_advice_to_python_programs() -> None:
    with pytest.raises(P2PMeshError) as raised:
        decode_object(b'{"a": ' + b"9" * 5000 + b"}")
    assert "4300 digits" in raised.value.message
    assert "sys." not in raised.value.message


def test_a_pair_of_surrogate_escapes_is_a_character() -> None:
    assert decode_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize("body", [b'{"a": "x\\ud800"}', b'{"a": "\\udc00\\ud800"}', b'{"a": "\xed\xa0\x80"}'])
def test_half_of_a_surrogate_pair_is_refused_by_the_parameter_that_holds_it(body: bytes) -> None:
    with pytest.raises(RequestError) as raised:
        check_text(decode_object(body)["a"], "messages[0].content", 100)
    assert (raised.value.code, raised.value.param) == (ErrorCode.REQUEST_INVALID, "messages[0].content")


def test_null_counts_as_absent() -> None:
    fields = Fields({"a": None})
    assert fields.number("a") is None
    assert fields.integer("a", 0, 1) is None
    assert fields.boolean("a") is False
    assert fields.object("a") is None


@pytest.mark.parametrize("value", [True, "1", 1.5, [1], {}])
def test_an_integer_is_no_other_type(value: object) -> None:
    with pytest.raises(RequestError) as raised:
        Fields({"n": value}, "options").integer("n", 0, 9)
    assert raised.value.param == "options.n"


def test_a_whole_float_is_an_integer() -> None:
    assert Fields({"n": 3.0}).integer("n", 0, 9) == 3


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan")])
def test_a_number_beyond_floats_is_out_of_range(value: float) -> None:
    with pytest.raises(RequestError):
        Fields({"n": value}).number("n")
    with pytest.raises(RequestError):
        Fields({"n": value}).integer("n", 0, 9)
