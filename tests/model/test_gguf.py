"""The GGUF reader: sound files, damaged files, hostile files, and the two real models."""

import contextlib
import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.adapters.model_files import FileSource
from p2pmesh.adapters.model_packages import installed_models
from p2pmesh.base import limits
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.model.gguf import GgufIndex, ValueType, layer_of_tensor, read_index
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import (
    Key,
    Tensor,
    array,
    encode_gguf,
    number,
    text,
    tiny_gemma3,
    tiny_llama,
    zero_tensor,
)

ARCHITECTURE = text("general.architecture", "llama")


def index_of(data: bytes) -> GgufIndex:
    return read_index(MemorySource(data))


def refusal_of(data: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        index_of(data)
    assert "\n" not in str(caught.value)
    return caught.value


# --- sound files


def test_facts_of_a_tiny_model() -> None:
    index = index_of(tiny_llama())
    assert (index.architecture, index.name) == ("llama", "tiny llama")
    assert (index.layer_count, index.hidden_size, index.context_length) == (4, 64, 2048)
    assert (index.head_counts, index.kv_head_counts) == ((4,) * 4, (2,) * 4)
    assert (index.key_length, index.value_length, index.sliding_window) == (16, 16, 0)
    assert index.vocabulary_size == 363
    assert index.find_tensor("token_embd.weight") is not None
    assert index.find_tensor("output.weight") is None


def test_head_widths_default_to_a_share_of_the_hidden_size() -> None:
    keys = [
        ARCHITECTURE,
        number("llama.embedding_length", 96),
        number("llama.block_count", 2),
        number("llama.attention.head_count", 4),
    ]
    index = index_of(encode_gguf(keys))
    assert (index.key_length, index.value_length, index.kv_head_counts) == (24, 24, (4, 4))


def test_numbers_may_be_one_for_all_layers_or_an_array() -> None:
    heads = array("llama.attention.head_count_kv", ValueType.INT32, [4, 2])
    index = index_of(encode_gguf([ARCHITECTURE, number("llama.block_count", 2), heads]))
    assert index.kv_head_counts == (4, 2)


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(version: int) -> None:
    assert index_of(encode_gguf([ARCHITECTURE], version=version)).version == version


def test_every_value_type_is_read() -> None:
    values: list[tuple[int, object]] = [
        (ValueType.UINT8, 255),
        (ValueType.INT8, -3),
        (ValueType.UINT16, 65_535),
        (ValueType.INT16, -300),
        (ValueType.UINT32, 2**32 - 1),
        (ValueType.INT32, -(2**31)),
        (ValueType.FLOAT32, 0.5),
        (ValueType.BOOL, True),
        (ValueType.STRING, "héllo"),
        (ValueType.UINT64, 2**64 - 1),
        (ValueType.INT64, -(2**63)),
        (ValueType.FLOAT64, 0.1),
    ]
    keys = [Key(f"k{kind}", kind, value) for kind, value in values]
    keys += [array(f"a{kind}", kind, [value, value]) for kind, value in values]
    metadata = index_of(encode_gguf(keys)).metadata
    assert [metadata[f"k{kind}"].value for kind, _ in values] == [value for _, value in values]
    assert [metadata[f"a{kind}"].value for kind, _ in values] == [(value, value) for _, value in values]


def test_long_arrays_stay_in_the_file() -> None:
    words = array("tokenizer.ggml.tokens", ValueType.STRING, [f"w{n}" for n in range(5000)])
    scores = array("tokenizer.ggml.scores", ValueType.FLOAT32, [0.0] * 5000)
    index = index_of(encode_gguf([ARCHITECTURE, words, scores, number("after", 7)]))
    assert index.metadata["tokenizer.ggml.tokens"].value is None
    assert index.metadata["tokenizer.ggml.scores"].value is None
    assert index.vocabulary_size == 5000
    assert index.metadata["after"].value == 7


def test_texts_longer_than_a_window_are_walked() -> None:
    long = "x" * 1_500_000
    words = array("tokenizer.ggml.tokens", ValueType.STRING, ["a"] * 4096 + [long, "b", long])
    index = index_of(encode_gguf([words, number("after", 7)]))
    assert index.metadata["after"].value == 7


def test_records_are_the_entries_bytes() -> None:
    data = encode_gguf([ARCHITECTURE, number("a", 1), text("b", "x"), array("c", ValueType.INT8, [1, 2])])
    index = index_of(data)
    for key in (ARCHITECTURE, number("a", 1), text("b", "x"), array("c", ValueType.INT8, [1, 2])):
        record = index.metadata[key.name].record
        entry = data[record.offset : record.offset + record.size_bytes]
        assert encode_gguf([key])[24 : 24 + len(entry)] == entry


def test_half_characters_in_a_vocabulary_are_no_error() -> None:
    data = encode_gguf([text("a", "??")]).replace(b"??", b"\xc3(")
    assert index_of(data).metadata["a"].value == "\N{REPLACEMENT CHARACTER}("


def test_tensors_are_placed_behind_the_header() -> None:
    data = encode_gguf([], [Tensor("a", (3,), 0, b"A" * 12), Tensor("b", (8, 2), 1, b"B" * 32)])
    index = index_of(data)
    first, second = index.tensors
    assert data[first.offset : first.offset + first.size_bytes] == b"A" * 12
    assert data[second.offset : second.offset + second.size_bytes] == b"B" * 32


def test_alignment_is_obeyed() -> None:
    keys = [number("general.alignment", 8)]
    data = encode_gguf(keys, [Tensor("a", (1,), 0, b"AAAA"), Tensor("b", (1,), 0, b"BBBB")], alignment=8)
    index = index_of(data)
    assert index.alignment == 8
    assert [data[t.offset : t.offset + 4] for t in index.tensors] == [b"AAAA", b"BBBB"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("blk.0.attn_q.weight", (0, "attn_q.weight")),
        ("blk.17.ffn.bias", (17, "ffn.bias")),
        ("output_norm.weight", None),
        ("blk.x.attn_q", None),
        ("blk.-1.a", None),
        ("blk.1", None),
        ("blk.\N{SUPERSCRIPT TWO}.a", None),
    ],
)
def test_layer_of_a_tensor(name: str, parts: tuple[int, str] | None) -> None:
    assert layer_of_tensor(name) == parts


# --- damaged files


@pytest.mark.parametrize("model", [tiny_llama, tiny_gemma3])
def test_a_cut_file_is_truncated_and_says_so(model: Callable[[], bytes]) -> None:
    data = model()
    for part in range(20):
        length = len(data) * part // 20 + part
        error = refusal_of(data[:length])
        assert error.code in (ErrorCode.GGUF_TRUNCATED, ErrorCode.GGUF_NOT_GGUF)
        if length >= 4:
            assert error.code is ErrorCode.GGUF_TRUNCATED
            assert f"ends at byte {length} " in str(error)
            assert "download it again" in str(error)


def test_a_missing_last_byte_is_noticed() -> None:
    data = encode_gguf([], [Tensor("a", (8,), 0, bytes(32))])
    assert index_of(data).size_bytes == len(data)
    error = refusal_of(data[:-1])
    assert error.code is ErrorCode.GGUF_TRUNCATED
    assert f"bytes up to {len(data)}" in str(error)
    assert "lacks 1 bytes" in str(error)


def test_a_file_that_shrinks_while_read_is_truncated() -> None:
    data = tiny_llama()
    with pytest.raises(RemoteProtocolError) as caught:
        read_index(MemorySource(data[:300], size_bytes=len(data)))
    assert caught.value.code is ErrorCode.GGUF_TRUNCATED


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"PK\x03\x04" + bytes(60), b"GGML" + bytes(60), b"\n\n\n\n"])
def test_other_files_are_no_gguf(data: bytes) -> None:
    assert refusal_of(data).code is ErrorCode.GGUF_NOT_GGUF


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_flipped_bytes_give_an_index_or_a_code(seed: int, flips: int) -> None:
    chance = random.Random(seed)
    data = bytearray(SMALL)
    for _ in range(flips):
        data[chance.randrange(len(data))] = chance.randrange(256)
    source = MemorySource(bytes(data))
    with contextlib.suppress(RemoteProtocolError):
        read_index(source)
    assert source.largest_read <= 2**20


SMALL = encode_gguf(
    [ARCHITECTURE, number("llama.block_count", 1), array("x", ValueType.STRING, ["a", "bc"])],
    [zero_tensor("blk.0.a", (4, 2)), zero_tensor("b", (32,), 2)],
)


# --- hostile files


def header(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def entry(key: str, body: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + body


ENORMOUS = 2**63
HOSTILE: dict[str, bytes] = {
    "version 1": header(version=1) + bytes(64),
    "version 4": header(version=4) + bytes(64),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "too many tensors": header(tensors=limits.MAX_GGUF_TENSORS + 1) + bytes(64),
    "too many keys": header(keys=limits.MAX_GGUF_METADATA_KEYS + 1) + bytes(64),
    "key longer than allowed": header(keys=1) + struct.pack("<Q", ENORMOUS) + bytes(64),
    "empty key": header(keys=1) + entry("", struct.pack("<II", ValueType.UINT32, 1)),
    "key with a line break": header(keys=1) + entry("a\nb", struct.pack("<II", ValueType.UINT32, 1)),
    "key that is not UTF-8": header(keys=1) + struct.pack("<Q", 1) + b"\xff" + bytes(64),
    "unknown value type": header(keys=1) + entry("a", struct.pack("<I", 13) + bytes(64)),
    "array in an array": header(keys=1) + entry("a", struct.pack("<IIQ", 9, 9, 1) + bytes(64)),
    "array longer than allowed": header(keys=1) + entry("a", struct.pack("<IIQ", 9, 0, ENORMOUS) + bytes(64)),
    "text longer than allowed": header(keys=1) + entry("a", struct.pack("<IQ", 8, ENORMOUS) + bytes(64)),
    "text in a long array longer than allowed": header(keys=1)
    + entry("a", struct.pack("<IIQQ", 9, 8, 5000, ENORMOUS) + bytes(64)),
    "key twice": encode_gguf([number("a", 1), number("a", 2)]),
    "alignment of another type": encode_gguf([Key("general.alignment", ValueType.UINT64, 32)]),
    "alignment 0": encode_gguf([number("general.alignment", 0)]),
    "alignment 48": encode_gguf([number("general.alignment", 48)]),
    "alignment beyond reason": encode_gguf([number("general.alignment", 2**31)]),
    "tensor twice": encode_gguf([], [zero_tensor("a", (4,)), zero_tensor("a", (4,))]),
    "tensors overlap": encode_gguf([], [zero_tensor("a", (16,)), Tensor("b", (4,), 0, bytes(16), offset=32)]),
    "tensor outside": encode_gguf([], [Tensor("a", (4,), 0, bytes(16), offset=2**60)]),
    "tensor not aligned": encode_gguf([], [zero_tensor("a", (4,)), Tensor("b", (4,), 0, bytes(16), offset=16)]),
    "tensor type unknown": encode_gguf([], [Tensor("a", (4,), 4, bytes(16))]),
    "tensor of Q8_1": encode_gguf([], [Tensor("a", (32,), 9, bytes(40))]),
    "row is no whole number of blocks": encode_gguf([], [Tensor("a", (33, 32), 2, bytes(1024))]),
    "no dimension": encode_gguf([], [Tensor("a", (), 0, bytes(16))]),
    "five dimensions": encode_gguf([], [Tensor("a", (1, 1, 1, 1, 1), 0, bytes(4))]),
    "dimension of 0": encode_gguf([], [Tensor("a", (0, 4), 0, b"")]),
    "elements overflow": encode_gguf([], [Tensor("a", (2**40, 2**40), 0, bytes(16))]),
    "tensor name too long": encode_gguf([], [zero_tensor("a" * 64, (4,))]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case: str) -> None:
    assert refusal_of(HOSTILE[case]).code is ErrorCode.GGUF_INVALID


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<IIQ", 9, 0, limits.MAX_GGUF_ARRAY_ITEMS),
        struct.pack("<IIQ", 9, 8, limits.MAX_GGUF_ARRAY_ITEMS),
        struct.pack("<IQ", 8, limits.MAX_GGUF_STRING_BYTES),
    ],
    ids=["numbers", "texts", "text"],
)
def test_counts_beyond_the_file_cost_no_memory(body: bytes) -> None:
    source = MemorySource(header(keys=1) + entry("a", body + bytes(64)))
    with pytest.raises(RemoteProtocolError) as caught:
        read_index(source)
    assert caught.value.code is ErrorCode.GGUF_TRUNCATED
    assert source.largest_read <= 2**20


def test_metadata_that_would_fill_memory_is_refused() -> None:
    long = "x" * (8 * 2**20)
    error = refusal_of(encode_gguf([text(f"k{n}", long) for n in range(9)]))
    assert error.code is ErrorCode.GGUF_INVALID


@pytest.mark.parametrize(
    ("keys", "fact"),
    [
        ([], "architecture"),
        ([number("general.architecture", 1)], "architecture"),
        ([ARCHITECTURE], "layer_count"),
        ([ARCHITECTURE, number("llama.block_count", 0)], "layer_count"),
        ([ARCHITECTURE, number("llama.block_count", limits.MAX_LAYERS + 1)], "layer_count"),
        ([ARCHITECTURE, text("llama.block_count", "4")], "layer_count"),
        ([ARCHITECTURE, Key("llama.block_count", ValueType.INT32, -4)], "layer_count"),
        ([ARCHITECTURE, Key("llama.block_count", ValueType.BOOL, True)], "layer_count"),
        ([ARCHITECTURE, number("llama.embedding_length", limits.MAX_HIDDEN_SIZE + 1)], "hidden_size"),
        ([ARCHITECTURE, number("llama.block_count", 2)], "head_counts"),
        (
            [
                ARCHITECTURE,
                number("llama.block_count", 2),
                array("llama.attention.head_count", ValueType.INT32, [1]),
            ],
            "head_counts",
        ),
        (
            [
                ARCHITECTURE,
                number("llama.block_count", 1),
                array("llama.attention.head_count", ValueType.INT32, [-1]),
            ],
            "head_counts",
        ),
        (
            [ARCHITECTURE, number("llama.block_count", 1), number("llama.attention.head_count", 0)],
            "key_length",
        ),
    ],
)
def test_impossible_facts_are_refused(keys: list[Key], fact: str) -> None:
    index = index_of(encode_gguf(keys))
    with pytest.raises(RemoteProtocolError) as caught:
        getattr(index, fact)
    assert caught.value.code is ErrorCode.GGUF_INVALID


# --- real models


def joined(parts: tuple[Path, ...], directory: Path) -> Path:
    if len(parts) == 1:
        return parts[0]
    path = directory / "joined.gguf"
    with path.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    return path


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", pytest.param("gemma-3-270m", marks=pytest.mark.slow)])
def test_real_models_read_as_the_gguf_package_reads_them(name: str, tmp_path: Path) -> None:
    models = {model.name: model for model in installed_models()}
    if name not in models:
        pytest.skip(f"{name} is not installed")
    path = joined(models[name].parts, tmp_path)
    reference = gguf.GGUFReader(path)
    with FileSource(path) as source:
        index = read_index(source)
    assert index.data_offset == reference.data_offset
    assert [(t.name, t.shape, t.ggml_type, t.offset, t.size_bytes) for t in index.tensors] == [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.data_offset), int(t.n_bytes))
        for t in reference.tensors
    ]
    theirs = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert list(index.metadata) == list(theirs)
    for key, field in theirs.items():
        ours = index.metadata[key]
        if ours.element_type is None:
            assert ours.value == field.contents()
        elif ours.value is None:
            assert ours.count == len(field.data)
        else:
            assert list(ours.value) == field.contents()  # type: ignore[call-overload]
