"""A model in a few numbers."""

from p2pmesh.model.describe import describe_model
from p2pmesh.model.gguf import read_index
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import array, encode_gguf, number, text, tiny_gemma3, zero_tensor


def test_facts_of_a_tiny_gemma3() -> None:
    data = tiny_gemma3()
    description = describe_model(read_index(MemorySource(data)))
    assert (description.architecture, description.title) == ("gemma3", "tiny gemma3")
    assert (description.layer_count, description.hidden_size, description.cut_count) == (8, 64, 7)
    assert (description.head_count, description.kv_head_count) == (4, 1)
    assert (description.sliding_window, description.windowed_layer_count) == (16, 7)
    assert description.kv_bytes_per_token == 8 * 1 * (16 + 16) * 2
    assert (description.state_bytes_per_sequence, description.activation_bytes_per_token) == (0, 64 * 4)
    assert description.size_bytes == len(data)
    assert description.tensor_types == ("F32",)
    assert description.is_output_tied
    assert description.cut_refusal == ""


def test_a_model_that_stays_whole_says_why() -> None:
    keys = [
        text("general.architecture", "llama"),
        number("llama.block_count", 2),
        number("llama.embedding_length", 4),
        number("llama.attention.head_count", 1),
        array("llama.unknown", 4, [1, 2]),
    ]
    tensors = [zero_tensor(f"blk.{n}.a", (4,)) for n in range(2)]
    description = describe_model(read_index(MemorySource(encode_gguf(keys, tensors))))
    assert description.cut_count == 0
    assert "llama.unknown" in description.cut_refusal
