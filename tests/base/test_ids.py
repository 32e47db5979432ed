"""Shapes of identifiers, and layer ranges that tile a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import LayerRange, is_digest, is_mesh_id, is_peer_id, mesh_id_of_requirements, ranges_tile


@pytest.mark.parametrize(
    "text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 63 + "\n", "a" * 64 + "\n", "\u0661" * 64]
)
def test_what_is_no_digest(text: str) -> None:
    assert not is_digest(text)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "F" * 32, "0" * 32 + "\n"])
def test_what_is_no_mesh_id(text: str) -> None:
    assert not is_mesh_id(text)


@pytest.mark.parametrize("text", ["", "1" * 31, "1" * 129, "0" * 40, "O" * 40, "I" * 40, "l" * 40, "1" * 40 + "\n"])
def test_what_is_no_peer_id(text: str) -> None:
    assert not is_peer_id(text)


def test_what_is_one() -> None:
    assert is_digest("0123456789abcdef" * 4)
    assert is_mesh_id("0123456789abcdef" * 2)
    assert is_peer_id("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_mesh_id_names_one_set_of_requirements(key: bytes, other: bytes) -> None:
    assert is_mesh_id(mesh_id_of_requirements(key))
    assert (mesh_id_of_requirements(key) == mesh_id_of_requirements(other)) == (key == other)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 3), (4, 3), (-1, 2)])
def test_an_empty_or_negative_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="empty or negative"):
        LayerRange(start, end)


def test_a_range_knows_its_place() -> None:
    first, last = LayerRange(0, 15), LayerRange(15, 30)
    assert (len(first), first.is_first(), first.is_last(30)) == (15, True, False)
    assert (len(last), last.is_first(), last.is_last(30)) == (15, False, True)
    assert str(last) == "[15, 30)"
    assert first < last


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_consecutive_ranges_tile_and_no_part_of_them_does(sizes: list[int]) -> None:
    ranges = tuple(LayerRange(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes)))
    count = sum(sizes)
    assert ranges_tile(ranges, count)
    assert not ranges_tile(ranges, count + 1)
    assert not ranges_tile(ranges[1:], count)
    assert not ranges_tile(ranges[:-1], count)
    assert not ranges_tile((*ranges, ranges[-1]), count)
    if len(ranges) > 1:
        assert not ranges_tile(ranges[::-1], count)
        assert not ranges_tile(ranges[:1] + ranges, count)
