"""What layers keep, by the metadata of each kind of attention; ``tests/adapters/llama/test_cost.py`` loads models."""

import pytest

from p2pmesh.model.describe import describe_model
from p2pmesh.model.family_rules import RULES, SequenceState
from p2pmesh.model.gguf import GgufIndex, ValueType, read_index
from p2pmesh.model.sequence_state import LayerState, has_attention, layer_states, recurrent_interval
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import Key, array, encode_gguf, number, text


def model(architecture: str, *keys: Key, layers: int = 4, heads: int = 4) -> GgufIndex:
    own = [
        text("general.architecture", architecture),
        number(f"{architecture}.block_count", layers),
        number(f"{architecture}.embedding_length", 64),
        number(f"{architecture}.attention.head_count", heads),
    ]
    return read_index(MemorySource(encode_gguf([*own, *keys])))


def per_layer(name: str, *values: int) -> Key:
    return array(name, ValueType.UINT32, values)


SCAN = [("conv_kernel", 4), ("inner_size", 128), ("state_size", 16), ("group_count", 2)]


def scan(architecture: str) -> list[Key]:
    return [number(f"{architecture}.ssm.{name}", value) for name, value in SCAN]


def test_full_attention_keeps_every_head_and_grouped_attention_fewer() -> None:
    assert layer_states(model("llama")) == (LayerState(4 * (16 + 16) * 2, 0),) * 4
    grouped = model("llama", number("llama.attention.head_count_kv", 1))
    assert layer_states(grouped) == (LayerState((16 + 16) * 2, 0),) * 4
    by_layer = model("llama", per_layer("llama.attention.head_count_kv", 1, 2, 3, 4))
    assert [state.bytes_per_token for state in layer_states(by_layer)] == [64, 128, 192, 256]


def test_a_window_saves_nothing_but_may_have_other_widths() -> None:
    keys = [number("gemma3.attention.sliding_window", 8), number("gemma3.attention.sliding_window_pattern", 2)]
    assert layer_states(model("gemma3", *keys)) == layer_states(model("gemma3"))
    widths = [number(f"gemma4.attention.{kind}_length_swa", 4) for kind in ("key", "value")]
    pattern = number("gemma4.attention.sliding_window_pattern", 2)
    narrow = [state.bytes_per_token for state in layer_states(model("gemma4", pattern, *widths))]
    assert narrow == [4 * 8 * 2, 4 * 32 * 2] * 2


def test_latent_attention_keeps_no_values() -> None:
    keys = [("key_length", 576), ("value_length", 512), ("head_count_kv", 1)]
    latent = [number(f"deepseek2.attention.{name}", value) for name, value in keys]
    assert layer_states(model("deepseek2", *latent))[0].bytes_per_token == (576 + 512) * 2
    mla = [number(f"deepseek2.attention.{name}_length_mla", 128) for name in ("key", "value")]
    assert layer_states(model("deepseek2", *latent, *mla))[0].bytes_per_token == 576 * 2


def test_a_recurrent_layer_keeps_a_state_of_each_sequence() -> None:
    states = layer_states(model("mamba2", *scan("mamba2")))
    assert states == (LayerState(0, (3 * (128 + 2 * 2 * 16) + 16 * 128) * 4),) * 4
    assert not has_attention(model("mamba2", *scan("mamba2")))
    assert layer_states(model("mamba", *scan("mamba")))[0].bytes_per_sequence == (3 * 128 + 16 * 128) * 4
    time_mix = model("rwkv7", number("rwkv7.wkv.head_size", 16))
    assert layer_states(time_mix)[0] == LayerState(0, (2 * 64 + 64 * 16) * 4)


def test_a_recurrent_model_says_that_it_has_no_heads() -> None:
    index = model("mamba2", *scan("mamba2"), heads=0)
    assert layer_states(index)[0].bytes_per_token == 0
    described = describe_model(index)
    assert (described.head_count, described.key_length, described.kv_bytes_per_token) == (0, 0, 0)
    assert described.state_bytes_per_sequence == 4 * layer_states(index)[0].bytes_per_sequence


def test_hybrids_keep_one_or_the_other_or_both() -> None:
    state = (3 * (128 + 2 * 2 * 16) + 16 * 128) * 4
    both = layer_states(model("falcon-h1", *scan("falcon-h1")))
    assert both == (LayerState(256, state),) * 4
    by_heads = model(
        "granitehybrid", per_layer("granitehybrid.attention.head_count_kv", 4, 0, 4, 0), *scan("granitehybrid")
    )
    assert layer_states(by_heads) == (LayerState(256, 0), LayerState(0, state)) * 2
    by_interval = model("qwen3next", number("qwen3next.full_attention_interval", 2), *scan("qwen3next"))
    assert layer_states(by_interval) == (LayerState(0, state), LayerState(256, 0)) * 2
    spelled = model(
        "qwen3next", array("qwen3next.attention.recurrent_layers", ValueType.BOOL, (False, True, True, True))
    )
    assert [state.bytes_per_token for state in layer_states(spelled)] == [256, 0, 0, 0]


def test_who_keeps_states_is_what_was_read_in_the_source_of_llama_cpp() -> None:
    def of(state: SequenceState) -> set[str]:
        return {name for name, rules in RULES.items() if rules.state is state}

    at_intervals = {name: interval for name in RULES if (interval := recurrent_interval(name)) is not None}
    assert of(SequenceState.RECURRENT) == {"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"}
    assert at_intervals == {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4}
    assert of(SequenceState.HYBRID) - at_intervals.keys() == {
        "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear",
        "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2",
    }  # fmt: skip


@pytest.mark.parametrize("shared", [0, 1, 3])
def test_layers_that_read_the_cells_of_others_keep_none(shared: int) -> None:
    states = layer_states(model("gemma4", number("gemma4.attention.shared_kv_layers", shared)))
    assert [state.bytes_per_token > 0 for state in states] == [layer < 4 - shared for layer in range(4)]
