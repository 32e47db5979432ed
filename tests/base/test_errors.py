"""Codes are unique, stable texts that fit a refusal."""

import re

import pytest

from p2pmesh.base import errors
from p2pmesh.base.errors import ErrorCode, P2PMeshError

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, P2PMeshError)]


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_is_a_short_snake_case_word(code: ErrorCode) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value)
    assert len(code.value) <= 64


def test_codes_are_unique() -> None:
    assert len({code.value for code in ErrorCode}) == len(ErrorCode.__members__)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_carries_its_code_and_shows_its_line(cls: type[P2PMeshError]) -> None:
    error = cls(ErrorCode.INTERNAL, "what is wrong; what to do")
    assert error.code is ErrorCode.INTERNAL
    assert str(error) == error.message == "what is wrong; what to do"


def test_every_class_is_a_kind_of_failure_of_ours() -> None:
    assert len(CLASSES) >= 7
