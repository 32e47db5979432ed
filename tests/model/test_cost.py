"""Bytes that placement charges, against the stage files themselves."""

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import LayerRange
from p2pmesh.model.cost import (
    cache_cells,
    decode_reads,
    kv_bytes_per_token,
    measure_model,
    planning_bytes,
    sequence_bytes,
    stage_bytes,
    stage_cost,
)
from p2pmesh.model.gguf import GgufIndex, read_index
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import encode_gguf, number, text, tiny_gemma3, tiny_llama, zero_tensor
from tests.model.stages import stage_of

MODELS = {"llama": tiny_llama(), "untied": tiny_llama(is_tied=False), "gemma3": tiny_gemma3()}
CONTEXT, LANES = 1000, 3


def index_of(data: bytes) -> GgufIndex:
    return read_index(MemorySource(data))


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_weights_are_exactly_those_of_the_stage_file(name: str, data: st.DataObject) -> None:
    model = MODELS[name]
    index = index_of(model)
    start = data.draw(st.integers(0, index.layer_count - 1))
    end = data.draw(st.integers(start + 1, index.layer_count))
    cost = stage_bytes(index, LayerRange(start, end), CONTEXT, LANES)
    in_file = sum(tensor.size_bytes for tensor in index_of(stage_of(model, start, end)).tensors)
    assert cost.weights_bytes + cost.embedding_bytes + cost.output_bytes == in_file


def test_a_tied_embedding_is_counted_at_both_ends_and_once_when_whole() -> None:
    index = index_of(MODELS["llama"])
    embedding = 363 * 64 * 4
    first = stage_bytes(index, LayerRange(0, 2), CONTEXT, LANES)
    last = stage_bytes(index, LayerRange(2, 4), CONTEXT, LANES)
    whole = stage_bytes(index, LayerRange(0, 4), CONTEXT, LANES)
    assert (first.embedding_bytes, first.output_bytes) == (embedding, 0)
    assert (last.embedding_bytes, last.output_bytes) == (0, embedding)
    assert (whole.embedding_bytes, whole.output_bytes) == (embedding, 0)


def test_kv_bytes_are_two_bytes_per_element_of_keys_and_values() -> None:
    index = index_of(MODELS["llama"])
    assert kv_bytes_per_token(index) == (2 * 2 * (16 + 16),) * 4
    cost = stage_bytes(index, LayerRange(1, 3), CONTEXT, LANES)
    assert cache_cells(CONTEXT, LANES) == 3072
    assert cost.kv_bytes == 2 * 128 * 3072
    assert (cost.state_bytes, sequence_bytes(index, CONTEXT, LANES)) == (0, 4 * 128 * 3072)


def test_more_context_lanes_and_layers_never_cost_less() -> None:
    index = index_of(MODELS["gemma3"])
    base = stage_bytes(index, LayerRange(1, 3), CONTEXT, LANES)
    assert stage_bytes(index, LayerRange(1, 4), CONTEXT, LANES).total_bytes > base.total_bytes
    assert stage_bytes(index, LayerRange(1, 3), CONTEXT + 256, LANES).total_bytes > base.total_bytes
    assert stage_bytes(index, LayerRange(1, 3), CONTEXT, LANES + 1).total_bytes > base.total_bytes


def test_only_the_ends_give_out_logits() -> None:
    index = index_of(MODELS["llama"])
    first, middle, last = (stage_bytes(index, LayerRange(n, n + 1), CONTEXT, LANES) for n in (0, 1, 3))
    row = 363 * 4
    assert (first.logits_bytes, middle.logits_bytes, last.logits_bytes) == (64 * row, 0, (LANES + 2) * row)
    assert first.compute_bytes == last.compute_bytes >= middle.compute_bytes


def test_a_large_vocabulary_is_reserved_for_every_row_of_a_call() -> None:
    model = replace(measure_model(index_of(MODELS["llama"])), vocabulary_size=200_000)
    first, middle = (stage_cost(model, LayerRange(n, n + 1), CONTEXT, LANES) for n in (0, 1))
    assert first.compute_bytes == 64 * 4 * (200_000 + 2 * 64)
    assert middle.compute_bytes < first.compute_bytes


def test_the_total_is_the_sum_of_the_parts() -> None:
    cost = stage_bytes(index_of(MODELS["untied"]), LayerRange(2, 4), CONTEXT, LANES)
    assert cost.total_bytes == sum(astuple(cost)) - 2 * cost.untouched_bytes


def test_logits_that_no_call_makes_are_reserved_and_take_no_memory() -> None:
    model = replace(measure_model(index_of(MODELS["llama"])), vocabulary_size=200_000)
    ranges = (LayerRange(0, 2), LayerRange(1, 3), LayerRange(2, 4), LayerRange(0, 4))
    first, middle, last, whole = (stage_cost(model, layers, CONTEXT, LANES) for layers in ranges)
    row = 200_000 * 4
    assert first.untouched_bytes == first.compute_bytes - middle.compute_bytes + first.logits_bytes
    assert middle.untouched_bytes == 0
    assert last.untouched_bytes == last.compute_bytes - middle.compute_bytes - 16 * row
    assert whole.untouched_bytes == last.untouched_bytes
    assert last.process_bytes - first.process_bytes == 5 * 2**20 + 16 * row


@pytest.mark.parametrize("name", MODELS)
def test_planning_sums_are_never_less_than_the_cost(name: str) -> None:
    index = index_of(MODELS[name])
    count = index.layer_count
    sums = planning_bytes(index, CONTEXT, LANES)
    for start in range(count):
        for end in range(start + 1, count + 1):
            charged = sum(sums.layer_bytes[start:end]) + sums.stage_bytes
            charged += sums.first_bytes * (start == 0) + sums.last_bytes * (end == count)
            exact = stage_bytes(index, LayerRange(start, end), CONTEXT, LANES).total_bytes
            is_whole = start == 0 and end == count
            assert charged - exact >= 0
            assert charged - exact == sums.whole_saving_bytes if is_whole else charged - exact <= 64 * 32 * 4


def _repeating_model() -> GgufIndex:
    keys = [
        text("general.architecture", "talkie"),
        number("talkie.block_count", 4),
        number("talkie.embedding_length", 64),
        number("talkie.attention.head_count", 4),
        number("talkie.vocab_size", 512),
    ]
    tensors = [zero_tensor("token_embd.weight", (64, 512)), zero_tensor("output.weight", (64, 512))]
    return index_of(encode_gguf(keys, [*tensors, *(zero_tensor(f"blk.{n}.a", (64, 64)) for n in range(4))]))


def test_a_stage_that_repeats_the_first_layer_is_charged_for_it_and_the_embedding() -> None:
    index = _repeating_model()
    first, middle, last = (stage_bytes(index, LayerRange(n, n + 1), CONTEXT, LANES) for n in (0, 1, 3))
    layer, embedding = 64 * 64 * 4, 64 * 512 * 4
    assert (first.weights_bytes, middle.weights_bytes, last.weights_bytes) == (layer, 2 * layer, 2 * layer)
    assert first.embedding_bytes == middle.embedding_bytes == last.embedding_bytes == embedding
    assert (first.output_bytes, middle.output_bytes, last.output_bytes) == (0, 0, embedding)
    assert (middle.kv_bytes, last.kv_bytes) == (2 * first.kv_bytes, 2 * first.kv_bytes)
    assert middle.logits_bytes == first.logits_bytes > 0


def test_planning_sums_cover_repeated_layers() -> None:
    index = _repeating_model()
    sums = planning_bytes(index, CONTEXT, LANES)
    logits = 512 * 4 * (64 - LANES - 2)
    for start in range(4):
        for end in range(start + 1, 5):
            charged = sum(sums.layer_bytes[start:end]) + sums.stage_bytes
            charged += sums.first_bytes * (start == 0) + sums.last_bytes * (end == 4)
            exact = stage_bytes(index, LayerRange(start, end), CONTEXT, LANES).total_bytes
            spare = charged - exact - (sums.whole_saving_bytes if (start, end) == (0, 4) else 0)
            assert 0 <= spare <= sums.layer_bytes[0] + logits + 64 * 32 * 4


def test_an_indexer_is_charged_for_the_cells_that_it_scores_and_picks() -> None:
    def compute(top_k: int) -> int:
        keys = [
            text("general.architecture", "deepseek32"),
            number("deepseek32.block_count", 1),
            number("deepseek32.embedding_length", 64),
            number("deepseek32.attention.head_count", 4),
            number("deepseek32.attention.indexer.head_count", 8),
            number("deepseek32.attention.indexer.key_length", 16),
            number("deepseek32.attention.indexer.top_k", top_k),
        ]
        model = encode_gguf(keys, [zero_tensor("token_embd.weight", (64, 8)), zero_tensor("blk.0.a", (64, 64))])
        return stage_bytes(index_of(model), LayerRange(0, 1), CONTEXT, LANES).compute_bytes

    assert compute(512) - compute(0) == 64 * 512 * 36
    assert compute(10**6) == compute(cache_cells(CONTEXT, LANES))


def _scanning_model() -> GgufIndex:
    scan = {"conv_kernel": 4, "inner_size": 128, "state_size": 16, "group_count": 2}
    keys = [
        text("general.architecture", "mamba2"),
        number("mamba2.block_count", 4),
        number("mamba2.embedding_length", 64),
        number("mamba2.attention.head_count", 4),
        number("mamba2.vocab_size", 512),
        *(number(f"mamba2.ssm.{name}", value) for name, value in scan.items()),
    ]
    tensors = [zero_tensor("token_embd.weight", (64, 512)), zero_tensor("output.weight", (64, 512))]
    return index_of(encode_gguf(keys, [*tensors, *(zero_tensor(f"blk.{n}.a", (64, 64)) for n in range(4))]))


def test_states_are_reserved_twice_for_a_call_and_take_memory_once() -> None:
    index = _scanning_model()
    states = measure_model(index).state_bytes_per_sequence[0] * (LANES + 2)
    middle = stage_bytes(index, LayerRange(1, 3), CONTEXT, LANES)
    assert middle.untouched_bytes == states > 0
    assert middle.compute_bytes > 2 * states
    sums = planning_bytes(index, CONTEXT, LANES)
    for start in range(4):
        for end in range(start + 1, 5):
            charged = sum(sums.layer_bytes[start:end]) + sums.stage_bytes
            charged += sums.first_bytes * (start == 0) + sums.last_bytes * (end == 4)
            charged -= sums.whole_saving_bytes if (start, end) == (0, 4) else 0
            exact = stage_bytes(index, LayerRange(start, end), CONTEXT, LANES).total_bytes
            assert 0 <= charged - exact <= 64 * 32 * 4


def test_all_tensors_are_charged_to_some_part() -> None:
    index = index_of(MODELS["untied"])
    model = measure_model(index)
    charged = sum(model.layer_bytes) + model.embedding_bytes + model.output_bytes + model.shared_bytes
    assert charged == sum(tensor.size_bytes for tensor in index.tensors)
    assert not model.is_tied


def test_a_token_reads_all_weights_of_a_dense_layer_and_the_output_head() -> None:
    model = measure_model(index_of(MODELS["untied"]))
    assert decode_reads(index_of(MODELS["untied"])) == (model.layer_bytes, model.output_bytes)


def test_a_token_reads_only_the_experts_in_use() -> None:
    keys = [
        text("general.architecture", "llama"),
        number("llama.block_count", 1),
        number("llama.embedding_length", 32),
        number("llama.attention.head_count", 4),
        number("llama.expert_count", 8),
        number("llama.expert_used_count", 2),
    ]
    tensors = [
        zero_tensor("token_embd.weight", (32, 8)),
        zero_tensor("blk.0.attn_norm.weight", (32,)),
        zero_tensor("blk.0.ffn_up_exps.weight", (32, 16, 8)),
    ]
    reads, output = decode_reads(index_of(encode_gguf(keys, tensors)))
    assert reads == (32 * 4 + 32 * 16 * 2 * 4,)
    assert output == 32 * 8 * 4
