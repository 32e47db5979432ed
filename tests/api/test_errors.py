from typing import Any

import pytest

from p2pmesh.api.errors import (
    HTTP_ERRORS,
    RETRIABLE_STATUSES,
    RequestError,
    error_body,
    error_headers,
    error_of,
    invalid_parameter,
)
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused


def test_the_table_covers_every_code() -> None:
    assert set(HTTP_ERRORS) == set(ErrorCode)


def test_each_api_code_has_one_meaning() -> None:
    words = [row.api_code or code.value for code, row in HTTP_ERRORS.items()]
    assert len(words) == len(set(words))


def test_types_follow_the_status() -> None:
    expected = {401: "authentication_error", 429: "rate_limit_error"}
    for row in HTTP_ERRORS.values():
        default = "server_error" if row.status >= 500 else "invalid_request_error"
        assert row.type == expected.get(row.status, default)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_retriable_status_says_when(code: ErrorCode) -> None:
    headers = dict(error_headers(Refused(code, "no"), 7))
    assert (headers.get(b"retry-after") == b"7") == (HTTP_ERRORS[code].status in RETRIABLE_STATUSES)


def test_a_body_has_openais_four_fields() -> None:
    body = error_body(invalid_parameter("temperature", "too hot"))
    expected: dict[str, Any] = {
        "message": "too hot",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_request",
    }
    assert body == {"error": expected}


def test_an_unknown_model_is_openais_model_not_found() -> None:
    error = error_body(Refused(ErrorCode.MODEL_UNKNOWN, "no peer serves it"))["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_a_bias_for_a_token_that_there_is_not_names_its_parameter() -> None:
    error = error_body(Refused(ErrorCode.LOGIT_BIAS_INVALID, "no such token"), "messages")["error"]
    assert (error["code"], error["param"]) == ("logit_bias_invalid", "logit_bias")


def test_a_prompt_that_is_too_long_names_the_endpoints_own_parameter() -> None:
    error = Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "5000 tokens, at most 4096")
    assert error_body(error, "messages")["error"]["param"] == "messages"
    assert error_body(error)["error"]["param"] is None


def test_an_error_is_found_in_a_group_of_groups() -> None:
    wanted = RequestError(ErrorCode.REQUEST_INVALID, "x", "n")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError(), wanted])])
    assert error_of(group) is wanted
    assert error_of(ExceptionGroup("outer", [ValueError()])) is None
    assert error_of(ValueError()) is None
    assert isinstance(error_of(wanted), P2PMeshError)
