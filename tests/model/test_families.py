"""Which models are served, which ranges of them may be stages, and why not."""

import pytest

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.model import families
from p2pmesh.model.gguf import GgufIndex, ValueType, read_index
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import (
    Key,
    Tensor,
    TinyShape,
    array,
    encode_gguf,
    number,
    real,
    text,
    tiny_gemma3,
    tiny_llama,
    zero_tensor,
)


def index_of(data: bytes) -> GgufIndex:
    return read_index(MemorySource(data))


def skeleton(
    architecture: str = "llama",
    layers: int = 4,
    extra_keys: tuple[Key, ...] = (),
    extra_tensors: tuple[Tensor, ...] = (),
    head_width: int = 4,
) -> GgufIndex:
    """A model of one small tensor per layer."""
    keys = [
        text("general.architecture", architecture),
        number(f"{architecture}.block_count", layers),
        number(f"{architecture}.embedding_length", 32),
        number(f"{architecture}.attention.head_count", 4),
        number(f"{architecture}.attention.key_length", head_width),
        *extra_keys,
    ]
    tensors = [zero_tensor("token_embd.weight", (32, 8)), zero_tensor("output_norm.weight", (32,))]
    tensors += [zero_tensor(f"blk.{layer}.attn_norm.weight", (32,)) for layer in range(layers)]
    return index_of(encode_gguf(keys, [*tensors, *extra_tensors]))


def code_of(index: GgufIndex) -> ErrorCode:
    with pytest.raises(ConfigError) as caught:
        families.check_model(index)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_supported_models_pass() -> None:
    families.check_model(index_of(tiny_llama()))
    families.check_model(index_of(tiny_gemma3()))


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        families.check_model(skeleton("unheard-of"))
    assert caught.value.code is ErrorCode.ARCHITECTURE_UNSUPPORTED
    assert "'unheard-of'" in str(caught.value)
    assert "certify families" in str(caught.value)


def test_a_stage_file_is_not_taken_for_a_model() -> None:
    assert code_of(skeleton(extra_keys=(number("p2pmesh.layers.start", 0),))) is ErrorCode.GGUF_INVALID


def test_layers_without_tensors_are_noticed() -> None:
    extra = (zero_tensor("blk.9.attn_norm.weight", (32,)),)
    assert code_of(skeleton(extra_tensors=extra)) is ErrorCode.GGUF_INVALID


def test_a_file_without_an_embedding_is_no_model() -> None:
    keys = [
        text("general.architecture", "llama"),
        number("llama.block_count", 1),
        number("llama.embedding_length", 32),
        number("llama.attention.head_count", 4),
    ]
    assert code_of(index_of(encode_gguf(keys, [zero_tensor("blk.0.a", (4,))]))) is ErrorCode.GGUF_INVALID


# --- sliding windows


def test_gemma3_windows_five_of_six_layers_by_the_models_own_index() -> None:
    index = index_of(tiny_gemma3(TinyShape(layers=8, kv_heads=1)))
    assert families.window_pattern(index) == (True, True, True, True, True, False, True, True)


def test_a_period_of_the_models_own_is_obeyed() -> None:
    assert families.window_pattern(index_of(tiny_gemma3(pattern=2)))[:4] == (True, False, True, False)
    assert not any(families.window_pattern(index_of(tiny_gemma3(pattern=1))))
    assert all(families.window_pattern(index_of(tiny_gemma3(pattern=0))))


def test_a_pattern_of_the_models_own_is_obeyed() -> None:
    pattern = (True, False, False, True, True, True, False, True)
    assert families.window_pattern(index_of(tiny_gemma3(pattern=pattern))) == pattern


def test_without_a_window_no_layer_is_windowed() -> None:
    assert families.window_pattern(index_of(tiny_gemma3(sliding_window=0))) == (False,) * 8
    assert families.window_pattern(index_of(tiny_llama())) == (False,) * 4


# --- cuts


def test_every_cut_of_the_supported_families_is_permitted() -> None:
    assert families.permitted_cuts(index_of(tiny_llama())) == (1, 2, 3)
    assert families.permitted_cuts(index_of(tiny_gemma3())) == tuple(range(1, 8))


def test_one_layer_has_no_cut() -> None:
    assert families.permitted_cuts(skeleton(layers=1)) == ()


def test_a_range_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        families.check_range(skeleton(), LayerRange(2, 5))
    assert caught.value.code is ErrorCode.CUT_UNSUPPORTED


def test_the_62_layer_gemma3_stays_whole() -> None:
    index = skeleton("gemma3", layers=62)
    assert families.is_range_permitted(index, LayerRange(0, 62))
    assert families.permitted_cuts(index) == ()
    assert "62 layers" in (families.cut_refusal(index, LayerRange(0, 31)) or "")


def test_no_part_of_a_gemma3_may_have_62_layers() -> None:
    index = skeleton("gemma3", layers=64)
    assert not families.is_range_permitted(index, LayerRange(0, 62))
    assert not families.is_range_permitted(index, LayerRange(1, 63))
    assert families.is_range_permitted(index, LayerRange(0, 61))
    assert 2 not in families.permitted_cuts(index)
    assert 3 in families.permitted_cuts(index)


def test_62_layers_are_harmless_where_both_attention_scales_agree() -> None:
    assert len(families.permitted_cuts(skeleton("gemma3", layers=62, head_width=8))) == 61


@pytest.mark.parametrize(
    "extra",
    [
        array("llama.some_new_array", ValueType.INT32, [1, 2, 3, 4]),
        array("llama.feed_forward_length", ValueType.INT32, [1, 2, 3]),
    ],
    ids=lambda key: key.name,
)
def test_metadata_that_no_rule_covers_keeps_a_model_whole(extra: Key) -> None:
    index = skeleton(extra_keys=(extra,))
    assert families.permitted_cuts(index) == ()
    assert extra.name.removeprefix("llama.") in (families.cut_refusal(index, LayerRange(0, 2)) or "")
    assert families.is_range_permitted(index, LayerRange(0, 4))


def test_a_tensor_that_no_rule_covers_keeps_a_model_whole() -> None:
    index = skeleton(extra_tensors=(zero_tensor("some_new.weight", (32,)),))
    assert families.permitted_cuts(index) == ()
    assert "some_new.weight" in (families.cut_refusal(index, LayerRange(0, 2)) or "")


def test_rope_factors_and_scalars_do_not_hinder_a_cut() -> None:
    index = skeleton(
        extra_keys=(real("llama.rope.freq_base", 1e5),),
        extra_tensors=(zero_tensor("rope_freqs.weight", (2,)),),
    )
    assert families.permitted_cuts(index) == (1, 2, 3)


def test_trailing_predictors_are_no_layers_to_place() -> None:
    index = skeleton(layers=5, extra_keys=(number("llama.nextn_predict_layers", 1),))
    assert index.layer_count == 4
    families.check_model(index)
    assert families.permitted_cuts(index) == (1, 2, 3)


def test_a_stage_starts_at_a_multiple_of_the_step() -> None:
    assert families.permitted_cuts(skeleton("smollm3", layers=12)) == (4, 8)
    extra = (number("ernie4_5-moe.interleave_moe_layer_step", 3),)
    assert families.permitted_cuts(skeleton("ernie4_5-moe", layers=8, extra_keys=extra)) == (3, 6)
    assert families.permitted_cuts(skeleton("ernie4_5-moe", layers=4)) == (1, 2, 3)


def test_a_family_that_loads_no_range_without_a_window_says_so() -> None:
    extra = (number("cohere2.attention.sliding_window", 8),)
    index = skeleton("cohere2", layers=8, extra_keys=extra)
    assert families.permitted_cuts(index) == (1, 2, 3, 4, 5, 6)
    assert "windowed" in (families.cut_refusal(index, LayerRange(7, 8)) or "")


def test_a_range_of_a_hybrid_holds_both_kinds_of_layers() -> None:
    heads = array("jamba.attention.head_count_kv", ValueType.INT32, [0, 0, 2, 0, 0, 2])
    index = skeleton("jamba", layers=6, extra_keys=(heads,))
    assert families.permitted_cuts(index) == (3, 4)
    assert "state" in (families.cut_refusal(index, LayerRange(2, 3)) or "")
    assert "attention" in (families.cut_refusal(index, LayerRange(0, 2)) or "")


def test_a_constant_that_the_file_leaves_to_the_depth_forbids_the_cut() -> None:
    index = skeleton("minicpm", layers=4)
    assert families.permitted_cuts(index) == ()
    assert "residual_scale" in (families.cut_refusal(index, LayerRange(0, 2)) or "")


def test_a_family_that_needs_what_earlier_layers_keep_is_refused_with_the_cause() -> None:
    with pytest.raises(ConfigError) as caught:
        families.check_model(skeleton("gemma4"))
    assert caught.value.code is ErrorCode.ARCHITECTURE_UNSUPPORTED
    assert "keys and values of earlier layers" in str(caught.value)


def test_a_model_without_attention_is_served() -> None:
    keys = [
        text("general.architecture", "mamba2"),
        number("mamba2.block_count", 2),
        number("mamba2.embedding_length", 32),
        number("mamba2.attention.head_count", 0),
    ]
    tensors = [zero_tensor("token_embd.weight", (32, 8)), *(zero_tensor(f"blk.{n}.a", (4,)) for n in range(2))]
    index = index_of(encode_gguf(keys, tensors))
    families.check_model(index)
    assert families.permitted_cuts(index) == (1,)


@pytest.mark.parametrize("index", [index_of(tiny_llama()), index_of(tiny_gemma3())], ids=["llama", "gemma3"])
def test_forbidden_ranges_are_those_between_permitted_cuts_that_cannot_be_stages(index: GgufIndex) -> None:
    cuts = families.permitted_cuts(index)
    bounds = (0, *cuts, index.layer_count)
    ranges = [LayerRange(start, end) for start in bounds for end in bounds if start < end]
    wrong = {layers for layers in ranges if not families.is_range_permitted(index, layers)}
    assert families.forbidden_ranges(index, cuts) == wrong
    assert families.forbidden_ranges(index, ()) == frozenset()
