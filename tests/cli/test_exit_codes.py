from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES, FAILED, USAGE


def test_the_table_covers_every_code() -> None:
    assert set(EXIT_CODES) == set(ErrorCode)


def test_no_two_codes_share_a_number_and_none_is_a_shells() -> None:
    numbers = list(EXIT_CODES.values())
    assert len(numbers) == len(set(numbers))
    assert all(1 <= number < 126 for number in numbers)
    assert (EXIT_CODES[ErrorCode.INTERNAL], EXIT_CODES[ErrorCode.CONFIG_INVALID]) == (FAILED, USAGE)
