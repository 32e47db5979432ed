"""Stage files: what each range holds, that its bytes are the model's, and that they are always the same."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.gguf import GgufIndex, ValueType, read_index
from p2pmesh.model.stage_file import plan_stage_file
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import array, encode_gguf, number, text, tiny_gemma3, tiny_llama, zero_tensor
from tests.model.stages import stage_of

LLAMA = tiny_llama()
UNTIED = tiny_llama(is_tied=False, kv_heads_per_layer=[2, 2, 2, 2])
GEMMA = tiny_gemma3()
GLOBAL_TENSORS = {"output_norm.weight", "token_embd.weight"}


def index_of(data: bytes) -> GgufIndex:
    return read_index(MemorySource(data))


def tensor_bytes_of(data: bytes) -> dict[str, bytes]:
    return {t.name: data[t.offset : t.offset + t.size_bytes] for t in index_of(data).tensors}


def value(index: GgufIndex, key: str) -> object:
    entry = index.metadata.get(key)
    return None if entry is None else entry.value


@pytest.mark.parametrize("model", [LLAMA, UNTIED, GEMMA], ids=["llama", "untied", "gemma3"])
@given(data=st.data())
def test_a_stage_holds_its_layers_renumbered(model: bytes, data: st.DataObject) -> None:
    count = index_of(model).layer_count
    start = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(start + 1, count))
    stage = stage_of(model, start, end)
    whole, part = tensor_bytes_of(model), tensor_bytes_of(stage)
    expected = {
        f"blk.{int(name.split('.')[1]) - start}.{name.split('.', 2)[2]}": content
        for name, content in whole.items()
        if name.startswith("blk.") and start <= int(name.split(".")[1]) < end
    }
    assert {name: content for name, content in part.items() if name.startswith("blk.")} == expected
    index = index_of(stage)
    assert index.layer_count == end - start
    assert value(index, "p2pmesh.layers.start") == start
    assert value(index, "p2pmesh.layers.end") == end
    assert value(index, "p2pmesh.layers.count") == count


def test_the_first_stage_takes_tokens_and_has_no_head() -> None:
    part, whole = tensor_bytes_of(stage_of(UNTIED, 0, 2)), tensor_bytes_of(UNTIED)
    assert part["token_embd.weight"] == whole["token_embd.weight"]
    assert "output.weight" not in part
    assert index_of(stage_of(UNTIED, 0, 2)).vocabulary_size == 363


def test_the_last_stage_of_a_tied_model_holds_the_embedding() -> None:
    part, whole = tensor_bytes_of(stage_of(LLAMA, 2, 4)), tensor_bytes_of(LLAMA)
    assert part["token_embd.weight"] == whole["token_embd.weight"]
    assert index_of(stage_of(LLAMA, 2, 4)).vocabulary_size == 363


def test_the_last_stage_of_an_untied_model_ties_its_head() -> None:
    part, whole = tensor_bytes_of(stage_of(UNTIED, 2, 4)), tensor_bytes_of(UNTIED)
    assert part["token_embd.weight"] == whole["output.weight"]
    assert "output.weight" not in part


def test_a_middle_stage_has_an_empty_vocabulary() -> None:
    stage = stage_of(LLAMA, 1, 3)
    index, part = index_of(stage), tensor_bytes_of(stage)
    assert value(index, "tokenizer.ggml.model") == "none"
    assert value(index, "llama.vocab_size") == 32
    assert [key for key in index.metadata if key.startswith("tokenizer.")] == ["tokenizer.ggml.model"]
    assert part["token_embd.weight"] == bytes(4 * 64 * 32)
    assert {name for name in part if not name.startswith("blk.")} == GLOBAL_TENSORS


def _repeating_model() -> bytes:
    """Of a family whose later stages compute the first layer again; its layers differ by a tensor's length."""
    keys = [
        text("general.architecture", "talkie"),
        number("talkie.block_count", 5),
        number("talkie.embedding_length", 32),
        number("talkie.attention.head_count", 2),
        array("talkie.attention.head_count_kv", ValueType.UINT32, [1, 2, 1, 2, 2]),
        number("talkie.leading_dense_block_count", 3),
        text("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", ValueType.STRING, [chr(97 + n) for n in range(16)]),
    ]
    tensors = [zero_tensor("token_embd.weight", (32, 16)), zero_tensor("output.weight", (32, 16))]
    return encode_gguf(keys, [*tensors, *(zero_tensor(f"blk.{n}.a", (32 + n,)) for n in range(5))])


def test_a_later_stage_holds_the_first_layer_where_later_ones_need_it() -> None:
    index = index_of(stage_of(_repeating_model(), 2, 4))
    shapes = {tensor.name: tensor.shape for tensor in index.tensors}
    assert [shapes[f"blk.{n}.a"] for n in range(3)] == [(32,), (34,), (35,)]
    assert index.layer_count == 3
    assert value(index, "talkie.attention.head_count_kv") == (1, 1, 2)
    assert value(index, "talkie.leading_dense_block_count") == 2
    assert value(index, "p2pmesh.layers.input") == "l_out-0"
    assert value(index, "p2pmesh.layers.tokens") == 1
    assert shapes["token_embd.weight"] == (32, 16)
    assert shapes["output.weight"] == (32, 16)
    assert value(index, "tokenizer.ggml.model") == "llama"


def test_a_first_stage_holds_its_layers_once_in_any_family() -> None:
    index = index_of(stage_of(_repeating_model(), 0, 2))
    assert index.layer_count == 2
    assert value(index, "p2pmesh.layers.tokens") is None
    assert value(index, "p2pmesh.layers.input") is None


def test_the_whole_range_holds_every_tensor_unchanged() -> None:
    assert tensor_bytes_of(stage_of(UNTIED, 0, 4)) == tensor_bytes_of(UNTIED)


def test_ends_keep_the_tokenizer_byte_for_byte() -> None:
    whole, first, last = index_of(LLAMA), stage_of(LLAMA, 0, 1), stage_of(LLAMA, 1, 4)
    for key, entry in whole.metadata.items():
        if key.startswith("tokenizer."):
            record = LLAMA[entry.record.offset : entry.record.offset + entry.record.size_bytes]
            assert record in first
            assert record in last


def test_the_window_pattern_is_spelled_out_for_the_models_own_indices() -> None:
    middle = index_of(stage_of(GEMMA, 3, 7))
    assert value(middle, "gemma3.attention.sliding_window_pattern") == (True, True, False, True)
    assert value(middle, "gemma3.attention.sliding_window") == 16


def test_a_pattern_of_the_models_own_is_cut() -> None:
    model = tiny_gemma3(pattern=[True, False, False, True, False, True, True, False])
    assert value(index_of(stage_of(model, 2, 4)), "gemma3.attention.sliding_window_pattern") == (False, True)


def test_layers_without_a_window_become_a_model_without_one() -> None:
    index = index_of(stage_of(GEMMA, 5, 6))
    assert "gemma3.attention.sliding_window" not in index.metadata
    assert "gemma3.attention.sliding_window_pattern" not in index.metadata


def test_per_layer_arrays_are_cut() -> None:
    assert value(index_of(stage_of(UNTIED, 1, 3)), "llama.attention.head_count_kv") == (2, 2)
    assert value(index_of(UNTIED), "llama.attention.head_count_kv") == (2, 2, 2, 2)


def test_the_same_range_gives_the_same_bytes() -> None:
    assert stage_of(GEMMA, 2, 5) == stage_of(tiny_gemma3(), 2, 5)
    assert stage_of(GEMMA, 2, 5) != stage_of(GEMMA, 2, 6)


def test_the_bytes_are_fixed() -> None:
    """Peers of one release must agree on digests: whoever changes these bytes raises STAGE_FORMAT."""
    keys = [
        text("general.architecture", "gemma3"),
        number("gemma3.block_count", 3),
        number("gemma3.embedding_length", 4),
        number("gemma3.attention.head_count", 1),
        number("gemma3.attention.sliding_window", 8),
        array("tokenizer.ggml.tokens", ValueType.STRING, ["a", "b"]),
    ]
    tensors = [zero_tensor("token_embd.weight", (4, 2)), zero_tensor("output_norm.weight", (4,))]
    model = encode_gguf(keys, [*tensors, *(zero_tensor(f"blk.{n}.a", (4,)) for n in range(3))])
    digests = [hashlib.sha256(stage_of(model, n, n + 1)).hexdigest()[:16] for n in range(3)]
    assert digests == ["43c76e1dc784acff", "771ef9d03291e52d", "11cb978c01cbb983"]


def test_alignment_of_the_model_is_kept() -> None:
    keys = [
        number("general.alignment", 64),
        text("general.architecture", "llama"),
        number("llama.block_count", 2),
        number("llama.embedding_length", 3),
        number("llama.attention.head_count", 1),
    ]
    tensors = [zero_tensor("token_embd.weight", (3, 2))]
    tensors += [zero_tensor(f"blk.{n}.a", (3,)) for n in range(2)]
    index = index_of(stage_of(encode_gguf(keys, tensors, alignment=64), 1, 2))
    assert index.alignment == 64
    assert all(tensor.offset % 64 == 0 for tensor in index.tensors)


def test_the_plan_knows_its_sizes_and_copies_in_few_pieces() -> None:
    plan = plan_stage_file(index_of(LLAMA), LayerRange(1, 3))
    stage = stage_of(LLAMA, 1, 3)
    assert plan.size_bytes == len(stage)
    assert plan.header_bytes == index_of(stage).data_offset
    assert len(plan.segments) < 12


@pytest.mark.parametrize(
    ("model", "layers", "code"),
    [
        (LLAMA, LayerRange(3, 5), ErrorCode.CUT_UNSUPPORTED),
        (encode_gguf([text("general.architecture", "gemma4")]), LayerRange(0, 1), ErrorCode.ARCHITECTURE_UNSUPPORTED),
    ],
    ids=["beyond the end", "unknown architecture"],
)
def test_what_cannot_be_cut_is_refused(model: bytes, layers: LayerRange, code: ErrorCode) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_stage_file(index_of(model), layers)
    assert caught.value.code is code
