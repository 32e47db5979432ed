"""Measured speeds by kind of model."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import MIB, UnixMillis
from p2pmesh.core.speeds import (
    MAX_SPEEDS,
    REFRESH_MS,
    Speed,
    decode_speed_for,
    decode_speed_of_memory,
    headline_speed,
    note_speed,
    prefill_speed_for,
    size_class_of,
)


def speed(architecture: str, size_class: int, decode: int, at: int = 0) -> Speed:
    return Speed(architecture, size_class, decode, 0, UnixMillis(at))


def test_size_classes_are_doublings() -> None:
    assert [size_class_of(size * MIB) for size in (0, 1, 2, 3, 4, 1024)] == [0, 1, 2, 2, 3, 11]


def test_a_measurement_is_kept_until_it_is_old_or_another_differs_clearly() -> None:
    known = note_speed((), speed("llama", 5, 1000))
    assert note_speed(known, speed("llama", 5, 1150, 1)) == known
    assert note_speed(known, speed("llama", 5, 1151, 1))[0].decode_bytes_per_s == 1151
    assert note_speed(known, speed("llama", 5, 849, 1))[0].decode_bytes_per_s == 849
    assert note_speed(known, speed("llama", 5, 1001, REFRESH_MS))[0].decode_bytes_per_s == 1001
    assert len(note_speed(known, speed("llama", 6, 1000, 1))) == 2
    later = note_speed((), speed("llama", 5, 1000, 99))
    assert note_speed(later, speed("llama", 5, 1001, 98))[0].decode_bytes_per_s == 1001  # the clock was set back


def test_the_nearest_kind_stands_in() -> None:
    known = (speed("gemma3", 9, 90), speed("llama", 3, 30), speed("llama", 8, 80))
    assert decode_speed_for(known, "llama", 150 * MIB) == 80
    assert decode_speed_for(known, "llama", 5 * MIB) == 30
    assert decode_speed_for(known, "gemma3", MIB) == 90
    assert decode_speed_for(known, "mamba", 300 * MIB) == 90
    assert decode_speed_for((), "llama", MIB) == 0


def test_a_first_prefill_speed_is_news() -> None:
    without = note_speed((), speed("llama", 5, 1000))
    found = Speed("llama", 5, 1000, 7000, UnixMillis(1))
    assert note_speed(without, found) == (found,)
    assert note_speed((found,), speed("llama", 5, 1000, 2)) == (found,)


def test_a_peer_is_announced_with_its_largest_kind() -> None:
    assert headline_speed(()) == 0
    assert headline_speed((speed("a", 3, 30), speed("b", 9, 90, 1), speed("c", 9, 91, 2))) == 91


def test_half_of_what_memory_copies_stands_in_for_a_speed_of_decoding() -> None:
    assert decode_speed_of_memory(0) == 0
    assert decode_speed_of_memory(9_000_000_000) == 4_500_000_000


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.integers(1, 99), st.integers(0, 2**50))))
def test_the_table_stays_bounded_has_each_kind_once_and_the_newest_word_on_it(
    measured: list[tuple[str, int, int, int]],
) -> None:
    known: tuple[Speed, ...] = ()
    for one in measured:
        found = speed(*one)
        known = note_speed(known, found)
        kinds = [(kept.architecture, kept.size_class) for kept in known]
        assert len(set(kinds)) == len(kinds) <= MAX_SPEEDS
        assert (found.architecture, found.size_class) in kinds
        assert kinds == sorted(kinds)


def test_a_prefill_speed_is_that_of_the_nearest_kind_of_which_one_was_measured() -> None:
    known = (
        Speed("llama", 5, 10, 0, UnixMillis(0)),
        Speed("llama", 9, 10, 90, UnixMillis(0)),
        Speed("gemma3", 5, 10, 50, UnixMillis(0)),
    )
    assert prefill_speed_for(known, "llama", 31 << 20) == 90
    assert prefill_speed_for(known, "gemma3", 31 << 20) == 50
    assert prefill_speed_for(known[:1], "llama", 31 << 20) == 0
