import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.gguf import read_index
from p2pmesh.model.shards import (
    JoinedSource,
    PartName,
    check_not_a_part,
    files_of_model,
    group_files,
    join_parts,
    parse_part_name,
)
from p2pmesh.model.stage_file import Copy, Literal, plan_stage_file
from tests.fakes.memory_source import MemorySource
from tests.fakes.split_gguf import split_gguf
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

MODEL = tiny_llama(TinyShape(layers=3))
TENSORS = len(read_index(MemorySource(MODEL)).tensors)


def joined(parts: list[bytes]) -> JoinedSource:
    sources = [MemorySource(part) for part in parts]
    return join_parts(sources, [read_index(source) for source in sources])


def stage_bytes(source: MemorySource | JoinedSource, layers: LayerRange) -> bytes:
    data = b""
    for segment in plan_stage_file(read_index(source), layers).segments:
        if isinstance(segment, Literal):
            data += segment.data
        elif isinstance(segment, Copy):
            data += source.read_at(segment.span.offset, segment.span.size_bytes)
        else:
            data += bytes(segment.size_bytes)
    return data


def test_part_names_are_read_and_written() -> None:
    part = parse_part_name("dir/Model-Q4-00002-of-00005.gguf")
    assert part == PartName("dir/Model-Q4", 2, 5)
    assert part.sibling(1) == "dir/Model-Q4-00001-of-00005.gguf"


@pytest.mark.parametrize(
    "name",
    [
        "m.gguf", "m-1-of-2.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf",
        "-00001-of-00002.gguf", "m-00001-of-00002.gguf.incomplete", "m-00001-of-00002.bin",
    ],
)  # fmt: skip
def test_other_names_are_no_parts(name: str) -> None:
    assert parse_part_name(name) is None


def test_parts_are_one_model_and_a_missing_one_is_named() -> None:
    names = ["b.gguf", "a-00002-of-00003.gguf", "a-00001-of-00003.gguf", ".gguf", ".DS_Store", "x.txt"]
    groups = group_files(names)
    assert [group.name for group in groups] == ["a", "b"]
    assert groups[0].missing == ("a-00003-of-00003.gguf",)
    assert groups[0].files[0] == "a-00001-of-00003.gguf"
    assert groups[1].files == ("b.gguf",)
    assert files_of_model("a-00003-of-00003.gguf") == groups[0].files
    assert files_of_model("b.gguf") == ("b.gguf",)


@pytest.mark.parametrize(
    "counts", [(TENSORS,), (0, TENSORS), (5, TENSORS - 5), (0, 1, TENSORS - 1), (7, 0, TENSORS - 7)]
)
def test_parts_stand_for_the_file_that_was_split(counts: tuple[int, ...]) -> None:
    source = joined(split_gguf(MODEL, counts))
    assert source.size_bytes == len(MODEL)
    assert source.read_at(0, len(MODEL) + 100) == MODEL


@given(st.integers(0, len(MODEL) + 10), st.integers(0, 4096))
def test_any_piece_of_the_joined_file_is_that_of_the_whole(offset: int, count: int) -> None:
    assert PARTS.read_at(offset, count) == MODEL[offset : offset + count]


PARTS = joined(split_gguf(MODEL, (0, 9, TENSORS - 9)))


@pytest.mark.parametrize("layers", [LayerRange(0, 1), LayerRange(1, 2), LayerRange(2, 3), LayerRange(0, 3)])
def test_stages_cut_from_parts_are_those_cut_from_the_whole(layers: LayerRange) -> None:
    assert stage_bytes(PARTS, layers) == stage_bytes(MemorySource(MODEL), layers)


def test_parts_in_the_wrong_order_are_refused() -> None:
    first, second = split_gguf(MODEL, (4, TENSORS - 4))
    with pytest.raises(RemoteProtocolError) as raised:
        joined([second, first])
    assert raised.value.code is ErrorCode.GGUF_INVALID
    assert "part 1 of 2 says that it is part 2 of 2" in raised.value.message


def test_parts_of_two_models_are_refused() -> None:
    two, three = split_gguf(MODEL, (4, TENSORS - 4)), split_gguf(MODEL, (4, 4, TENSORS - 8))
    with pytest.raises(RemoteProtocolError, match="part 2 of 2 says that it is part 2 of 3"):
        joined([two[0], three[1]])


def test_the_same_tensor_in_two_parts_is_refused() -> None:
    one, other = split_gguf(MODEL, (4, TENSORS - 4)), split_gguf(MODEL, (5, TENSORS - 5))
    with pytest.raises(RemoteProtocolError, match="occurs twice"):
        read_index(joined([other[0], one[1]]))


def test_a_whole_file_is_no_part() -> None:
    with pytest.raises(RemoteProtocolError, match="says that it is no part"):
        joined([MODEL, MODEL])
    check_not_a_part(read_index(MemorySource(MODEL)))


def test_a_part_under_a_name_of_its_own_is_told_from_a_model() -> None:
    first = read_index(MemorySource(split_gguf(MODEL, (4, TENSORS - 4))[0]))
    with pytest.raises(RemoteProtocolError, match="one part of 2"):
        check_not_a_part(first)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1), st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_damaged_parts_are_a_model_or_refused(number: int, offset: int, damage: bytes) -> None:
    parts = split_gguf(MODEL, (0, TENSORS))
    parts[number] = parts[number][:offset] + damage + parts[number][offset + len(damage) :]
    try:
        index = read_index(joined(parts))
    except RemoteProtocolError:
        return
    assert index.size_bytes >= sum(tensor.size_bytes for tensor in index.tensors)
