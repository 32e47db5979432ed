"""Sizes and times with their units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import GIB, KIB, MIB, format_age, format_size, micros, parse_duration_s, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("17", 17), ("17B", 17), ("1K", KIB), ("1kb", KIB), ("512MiB", 512 * MIB), (" 8G ", 8 * GIB),
        ("1.5 GB", 3 * GIB // 2), ("2T", 2048 * GIB), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_a_size_reads(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "-1", "1e3", "1 PiB", "1,5G", "1..5G", "nan", "inf", "1G 2", "0x10", "1GG", "9" * 400]
)
def test_what_is_no_size_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(ValueError, match="512MiB"):
        parse_size_bytes(text)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert parse_size_bytes(text) >= 0
    except ValueError as error:
        assert "is not a size" in str(error)  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (KIB, "1.0 KiB"), (1536, "1.5 KiB"), (3 * GIB, "3.0 GiB"), (2048 * GIB, "2.0 TiB")],
)
def test_a_size_shows(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**50))
def test_a_shown_size_reads_back_within_its_rounding(size: int) -> None:
    assert parse_size_bytes(format_size(size)) == pytest.approx(size, rel=0.06)


def test_seconds_are_rounded_to_whole_micros() -> None:
    assert micros(1.5) == 1_500_000
    assert micros(0.000_000_4) == 0
    assert micros(-0.001) == -1000


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86_400), (" 7 D ", 604_800)])
def test_a_duration_in_seconds(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "0h", "-1h", "1.5h", "1w", "1h30m", "\u0661h", "9999999999s"])
def test_what_is_no_duration_says_how_one_looks(text: str) -> None:
    with pytest.raises(ValueError, match="24h"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (-5, "0 seconds"), (999, "0 seconds"), (1000, "1 second"), (119_999, "119 seconds"), (300_000, "5 minutes"),
        (7_199_999, "119 minutes"), (7_200_000, "2 hours"), (172_799_999, "47 hours"), (6_048_000_000, "70 days"),
    ],
)  # fmt: skip
def test_an_age_is_told_in_the_largest_unit_that_it_has_two_of(age_ms: int, text: str) -> None:
    assert format_age(age_ms) == text


@pytest.mark.parametrize("text", ["0s", "366d", "999999999d", "x"])
def test_a_duration_that_is_refused_tells_the_limits(text: str) -> None:
    with pytest.raises(ValueError, match="from 1s to 365d"):
        parse_duration_s(text)
