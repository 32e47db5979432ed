"""Which name was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.nearest_name import choose_nearest_name, count_typos

OPTIONS = ("port", "console-port", "model", "home", "host", "join", "join-file", "max-memory", "max-layers", "name")
NAMES = st.text("abcp-", max_size=8)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("prot", "port"),
        ("modle", "model"),
        ("consoleport", "console-port"),
        ("max-memroy", "max-memory"),
        ("max-mem", "max-memory"),
        ("joinfile", "join-file"),
        ("hom", "home"),
        ("naem", "name"),
    ],
)
def test_a_slip_is_seen_through(typed: str, meant: str) -> None:
    assert choose_nearest_name(typed, OPTIONS) == meant


@pytest.mark.parametrize("typed", ["", "x", "gpus", "mold", "colour", "maximum", "max", "jo", "portmanteau", "p" * 65])
def test_another_word_means_nothing_here(typed: str) -> None:
    assert choose_nearest_name(typed, OPTIONS) is None


def test_of_equally_near_names_the_first_is_meant() -> None:
    assert choose_nearest_name("ham", ("hat", "has")) == "has"


def test_typos_are_counted() -> None:
    assert [count_typos("port", other) for other in ("port", "prot", "ort", "sport", "pert", "")] == [0, 1, 1, 1, 1, 4]


@given(NAMES, NAMES, NAMES)
def test_typos_are_a_measure(one: str, other: str, third: str) -> None:
    assert count_typos(one, other) == count_typos(other, one)
    assert (count_typos(one, other) == 0) == (one == other)
    assert abs(len(one) - len(other)) <= count_typos(one, other) <= max(len(one), len(other))
    assert count_typos(one + third, other + third) <= count_typos(one, other)


@given(NAMES, st.lists(NAMES, max_size=5))
def test_what_is_meant_is_known_and_near(typed: str, known: list[str]) -> None:
    found = choose_nearest_name(typed, known)
    assert found is None or found in known
    if typed in known and found is not None:
        assert count_typos(typed, found) == 0 or found.startswith(typed)
