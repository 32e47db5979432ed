"""A model file as the planner sees it: never less than what is then charged."""

import pytest

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS
from p2pmesh.core.planning.bytes import PREDICTED_POSITION, auto_contexts, planning_model
from p2pmesh.core.wire_certificate import WireClearance
from p2pmesh.model.cost import kv_bytes_per_token, stage_bytes
from p2pmesh.model.families import permitted_cuts
from p2pmesh.model.gguf import GgufIndex, read_index
from p2pmesh.wire.dtype import WireDtype
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import tiny_gemma3, tiny_llama


def index_of(data: bytes) -> GgufIndex:
    return read_index(MemorySource(data))


@pytest.mark.parametrize("data", [tiny_llama(), tiny_llama(is_tied=False), tiny_gemma3()])
def test_every_range_is_charged_at_least_what_it_takes_and_the_whole_exactly(data: bytes) -> None:
    index = index_of(data)
    model = planning_model(index, [(1024, 4), (512, 1)])
    for shape in model.shapes:
        for start in range(index.layer_count):
            for end in range(start + 1, index.layer_count + 1):
                layers = LayerRange(start, end)
                takes = stage_bytes(index, layers, shape.context_tokens, shape.lanes).total_bytes
                assert takes <= shape.bytes_of(layers)
        whole = LayerRange(0, index.layer_count)
        assert shape.bytes_of(whole) == stage_bytes(index, whole, shape.context_tokens, shape.lanes).total_bytes
    assert model.least is model.shapes[1]
    assert not model.is_sticky


def test_cuts_are_the_familys_or_those_that_were_asked_for() -> None:
    index = index_of(tiny_llama())
    assert planning_model(index, [(512, 1)]).cuts == permitted_cuts(index)
    assert planning_model(index, [(512, 1)], (2,)).cuts == (2,)


def test_the_wire_dtype_says_what_an_activation_takes_and_where_it_may_be_cut() -> None:
    index = index_of(tiny_llama())
    clearance = WireClearance(frozenset({2}), "only at 2")
    model = planning_model(index, [(512, 1)], wire_dtype=WireDtype.F16, clearance=clearance)
    assert model.activation_bytes == 2 * index.hidden_size
    assert (model.wire_cuts, model.wire_reason) == (frozenset({2}), "only at 2")
    assert planning_model(index, [(512, 1)]).activation_bytes == 4 * index.hidden_size


def test_a_token_reads_the_weights_and_the_cache_of_a_short_talk_in_each_layer() -> None:
    index = index_of(tiny_llama())
    model = planning_model(index, [(512, 1)])
    assert model.cache_reads == tuple(PREDICTED_POSITION * size for size in kv_bytes_per_token(index))
    assert min(model.cache_reads) > 0
    assert model.reads == tuple(map(sum, zip(model.layer_reads, model.cache_reads, strict=True)))


def test_contexts_to_choose_from_begin_at_what_the_model_knows() -> None:
    assert auto_contexts(20_000) == (20_000, 16_384, 8_192, 4_096)
    assert auto_contexts(DEFAULT_CONTEXT_TOKENS) == (DEFAULT_CONTEXT_TOKENS,)
    assert auto_contexts(2_048) == (2_048,)
