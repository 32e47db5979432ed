"""Which tiny models there are to certify: architecture, with experts or without, and the metadata each needs.

Owns sizes and metadata, as data. ``tiny_models`` has the library make tensors of them. llama.cpp ignores keys that an
architecture does not read, so all share one set, and only what differs is listed by architecture.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2pmesh.model.gguf_writer import Value

DEFAULT_LAYERS = 8
VOCABULARY_TOKENS = 128
_WINDOW_TOKENS = 8
"""Small, so that a run of a few dozen tokens leaves the window."""


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One tiny model: ``has_experts`` where an architecture exists with and without."""

    architecture: str
    has_experts: bool

    @property
    def name(self) -> str:
        """Unique text."""
        return f"{self.architecture}+experts" if self.has_experts else self.architecture


_DENSE = (
    "apertus", "arcee", "arwkv7", "baichuan", "bitnet", "bloom", "chatglm", "codeshell", "cogvlm", "cohere2",
    "command-r", "deci", "dream", "ernie4_5", "exaone", "exaone4", "falcon", "falcon-h1", "gemma", "gemma2", "gemma3",
    "gemma3n", "gemma4", "glm4", "gpt2", "gptneox", "granite", "granite_swa", "granitehybrid", "granitemoe",
    "hrm_text", "hunyuan-dense", "hunyuan_vl", "internlm2", "jais", "jais2", "jamba", "lfm2", "llada", "llama",
    "maincoder", "mamba", "mamba2", "minicpm", "minicpm3", "mistral3", "mpt", "muse-glimmer", "nanbeige", "nemotron",
    "nemotron_h", "nemotron_h_moe", "olmo", "olmo2", "openelm", "orion", "pangu-embedded", "phi2", "phi3", "plamo",
    "plamo2", "plamo3", "plm", "qwen", "qwen2", "qwen2vl", "qwen3", "qwen35", "qwen3tts", "qwen3vl", "refact", "rwkv6",
    "rwkv6qwen2", "rwkv7", "seed_oss", "smollm3", "spark2_5", "stablelm", "starcoder", "starcoder2", "talkie",
    "xverse",
)  # fmt: skip

_EXPERTS = (
    "afmoe", "arctic", "bailingmoe", "bailingmoe2", "bailingmoe3", "cohere2moe", "dbrx", "deepseek", "deepseek2",
    "deepseek32", "deepseek4", "dots1", "dots3note", "ernie4_5", "ernie4_5-moe", "exaone-moe", "glm-dsa", "glm4moe",
    "glm5-next", "gpt-oss", "granite", "granitemoe", "grok", "grovemoe", "hunyuan-moe", "hy_v3", "hy_v4", "kimi-k3",
    "kimi-linear", "laguna", "lfm2moe", "llada-moe", "llama", "llama4", "maple", "mellum", "mimo2", "minicpm",
    "minimax-01", "minimax-m2", "minimax-m3", "mistral3", "mistral4", "olmoe", "paddleocr", "phimoe", "qwen2moe",
    "qwen35moe", "qwen3moe", "qwen3next", "qwen3vlmoe", "qwen4exp", "refact", "rnd1", "smallthinker", "step35",
)  # fmt: skip

VARIANTS = tuple(sorted([Variant(name, False) for name in _DENSE] + [Variant(name, True) for name in _EXPERTS]))
"""All of them, in order of name."""

LAYERS: Mapping[str, int] = {"gemma3n": 24, "gemma4": 10, "hrm_text": 12, "smallthinker": 16}
"""Architectures that need more than ``DEFAULT_LAYERS``."""

_MLA = frozenset(
    {"deepseek2", "deepseek32", "glm-dsa", "dots3note", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next", "hy_v4",
     "mistral4"}
)  # fmt: skip
_HYBRID_HEADS = frozenset(
    {"plamo2", "jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear",
     "bailingmoe3", "kimi-k3", "glm5-next"}
)  # fmt: skip
_LISTED_HEADS = frozenset({"plamo2"})
"""Of the hybrids, those whose files list query heads by layer too; the others list only those of keys and values."""
_WINDOW_ARRAYS = frozenset(
    {"cohere2moe", "mimo2", "step35", "spark2_5", "muse-glimmer", "granite_swa", "dots3note", "maple"}
)

_WIDTHS: Mapping[str, tuple[int, int, int]] = {
    "deepseek4": (512, 8, 1024),
    "gemma3n": (64, 1, 96),
    "gemma4": (128, 2, 192),
    "laguna": (160, 2, 384),
    "step35": (160, 2, 384),
    "qwen3": (256, 4, 384),
    "muse-glimmer": (256, 4, 384),
    "afmoe": (256, 4, 384),
    **dict.fromkeys(_MLA, (128, 1, 192)),
}
"""Hidden size, heads, feed-forward width where they are not 256, 2, 384."""

_KV_HEADS: Mapping[str, int] = {"qwen3": 1, "muse-glimmer": 2, "afmoe": 2, "deepseek4": 1}


def layer_count(variant: Variant) -> int:
    """Layers of the tiny model: at least eight."""
    return LAYERS.get(variant.architecture, DEFAULT_LAYERS)


def tiny_metadata(variant: Variant) -> dict[str, Value]:
    """All metadata of a tiny model, full keys, in a fixed order."""
    architecture = variant.architecture
    layers = layer_count(variant)
    suffixes: dict[str, Value] = {}
    for part in (_sizes, _attention, _state, _indexer):
        suffixes |= part(architecture, layers)
    if variant.has_experts:
        suffixes |= _experts(architecture)
    special = _SPECIAL.get(architecture)
    if special is not None:
        suffixes |= special(layers)
    tokens = _SPECIAL_VOCABULARY.get(architecture, VOCABULARY_TOKENS)
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{suffix}": value for suffix, value in suffixes.items()},
        **({key: [1.0 + layer / 8 for layer in range(layers)] for key in _XIELU} if architecture == "apertus" else {}),
        "tokenizer.ggml.model": "test",
        "tokenizer.ggml.tokens": [f"tok_{token}" for token in range(tokens)],
        "tokenizer.ggml.scores": [0.0] * tokens,
    }


_XIELU = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
_SPECIAL_VOCABULARY: Mapping[str, int] = {"qwen3tts": 3072}


def _sizes(architecture: str, layers: int) -> dict[str, Value]:
    width, _, feed_forward = _WIDTHS.get(architecture, (256, 2, 384))
    is_nemotron = architecture in ("nemotron_h", "nemotron_h_moe")
    per_layer = [feed_forward if layer % 3 == 2 else 0 for layer in range(layers)]
    return {
        "vocab_size": _SPECIAL_VOCABULARY.get(architecture, VOCABULARY_TOKENS),
        "context_length": 256,
        "embedding_length": width,
        "features_length": width,
        "block_count": layers,
        "leading_dense_block_count": 1,
        "feed_forward_length": per_layer if is_nemotron else feed_forward,
        "use_parallel_residual": False,
        "logit_scale": 1.0,
        "residual_scale": 3.5,
        "swiglu_clamp_exp": [7.0] * layers if architecture == "step35" else 7.0,
        "swiglu_clamp_shexp": [7.0] * layers if architecture == "step35" else 7.0,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
    }


def _attention(architecture: str, layers: int) -> dict[str, Value]:
    width, heads, _ = _WIDTHS.get(architecture, (256, 2, 384))
    kv_heads: Value = _KV_HEADS.get(architecture, heads)
    head_list: Value = heads
    if architecture in _HYBRID_HEADS:
        per_layer = [0 if layer % 2 else heads for layer in range(layers)]
        if architecture in ("nemotron_h", "nemotron_h_moe"):
            per_layer = [heads if layer % 3 == 0 else 0 for layer in range(layers)]
        kv_heads = per_layer
        head_list = per_layer if architecture in _LISTED_HEADS else heads
    head = width // heads
    keys: dict[str, Value] = {
        "attention.head_count": head_list,
        "attention.head_count_kv": kv_heads,
        "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": 1.0,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.group_norm_epsilon": 1e-5,
        "attention.group_norm_groups": 8,
        "attention.q_lora_rank": 64 if architecture == "deepseek4" else 512,
        "attention.kv_lora_rank": 512,
        "attention.relative_buckets_count": 8,
        "attention.sliding_window": _WINDOW_TOKENS,
        "attention.sliding_window_pattern": _window(architecture, layers),
        "rope.dimension_sections": _sections(architecture, head),
    }
    if architecture in _MLA:
        keys |= {
            "attention.key_length": 512 if architecture == "glm5-next" else 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 0 if architecture == "glm5-next" else 64,
        }
    return keys


def _window(architecture: str, layers: int) -> Value:
    if architecture in _WINDOW_ARRAYS:
        return [layer % 2 for layer in range(layers)]
    return 5 if architecture == "gemma4" else 2


def _sections(architecture: str, head: int) -> Value:
    return [8, 12, 12, 0] if architecture == "bailingmoe3" else [head // 4] * 4


def _state(architecture: str, _layers: int) -> dict[str, Value]:
    width, heads, _ = _WIDTHS.get(architecture, (256, 2, 384))
    is_delta = architecture in ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
    return {
        "full_attention_interval": 2,
        "time_mix_extra_dim": 64,
        "time_decay_extra_dim": 128,
        "attention.decay_lora_rank": 32,
        "attention.iclr_lora_rank": 32,
        "attention.value_residual_mix_lora_rank": 16,
        "attention.gate_lora_rank": 32,
        "rescale_every_n_layers": 6 if architecture == "rwkv6" else 0,
        "token_shift_count": 1 if architecture in ("arwkv7", "rwkv6qwen2") else 2,
        "ssm.inner_size": 256 if is_delta else 2 * width,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.time_step_rank": heads,
        "ssm.group_count": 0 if architecture == "plamo2" else 2,
        "kda.head_dim": 128,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
        "wkv.head_size": width // heads,
        "shortconv.l_cache": 3,
        "attn_res.block_size": 12,
    }


def _indexer(architecture: str, _layers: int) -> dict[str, Value]:
    width, heads, _ = _WIDTHS.get(architecture, (256, 2, 384))
    return {
        "attention.indexer.head_count": heads if architecture == "minimax-m3" else 64,
        "attention.indexer.key_length": width // heads if architecture == "qwen4exp" else 128,
        "attention.indexer.top_k": 131_072,
        "attention.indexer.block_size": 4,
        "attention.indexer.kpool": 4,
        "attention.indexer.kpool_select_tail": True,
        "attention.indexer.local_blocks": 1,
    }


def _experts(architecture: str) -> dict[str, Value]:
    _, _, feed_forward = _WIDTHS.get(architecture, (256, 2, 384))
    return {
        "expert_feed_forward_length": feed_forward,
        "expert_shared_feed_forward_length": feed_forward // 2,
        "expert_chunk_feed_forward_length": feed_forward // 2,
        "expert_latent_length": feed_forward,
        "interleave_moe_layer_step": 2,
        "expert_count": 2,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_gating_func": 4 if architecture == "deepseek4" else 2,
        "expert_group_scale": 1.0,
        "experts_per_group": 1,
    }


def _streams(_layers: int) -> dict[str, Value]:
    return {"hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6}


def _qwen4exp(layers: int) -> dict[str, Value]:
    heads = 4
    width, _, _ = _WIDTHS.get("qwen4exp", (256, 2, 384))
    return _streams(layers) | {
        "hyper_connection.low_rank": 8,
        "attention.compress_ratios": [4] * layers,
        "ple.layers": [0],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 2,
        "ple.conv_kernel": 4,
        "ple.eos_token_id": 0,
        "embedding_length_per_layer_input": width // heads,
        "ple.layer_multipliers": [1, 3, 5],
        "ple.head_offsets": [0, 128, 256, 384],
        "ple.head_vocab_sizes": [128, 128, 128, 128],
    }


_SPECIAL: Mapping[str, Callable[[int], dict[str, Value]]] = {
    "minimax-m3": lambda _: {"rope.dimension_count": 64},
    "deepseek4": lambda layers: (
        _streams(layers)
        | {
            "attention.key_length": 64,
            "attention.value_length": 64,
            "rope.dimension_count": 32,
            "attention.output_group_count": 8,
            "attention.output_lora_rank": 32,
            "attention.compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128][:layers],
            "attention.compress_rope_freq_base": 160_000.0,
            "hash_layer_count": 0,
            "swiglu_clamp_exp": 10.0,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
        }
    ),
    "dots3note": lambda layers: {
        "attention.kv_lora_rank_swa": 512,
        "attention.key_length_swa": 576,
        "attention.value_length_swa": 512,
        "attention.key_length_mla_swa": 192,
        "attention.value_length_mla_swa": 128,
        "rope.freq_base_swa": 10_000.0,
        "attention.indexer.types": [1 - layer % 2 for layer in range(layers)],
    },
    "gemma4": lambda _: {
        "embedding_length_per_layer_input": 64,
        "attention.shared_kv_layers": 0,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
        "rope.freq_base_swa": 10_000.0,
    },
    "hy_v4": lambda layers: {
        "hyper_connection.count": 4,
        "hyper_connection.epsilon": 1e-6,
        "hyper_connection.magnitude": 2.0,
        "swiglu_clamp_exp": 10.0,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "attention.indexer.types": [1 - layer % 2 for layer in range(layers)],
    },
    "plamo2": lambda _: {"attention.key_length": 128, "attention.value_length": 128},
    "qwen4exp": _qwen4exp,
    "glm5-next": _streams,
    "hrm_text": lambda _: {"hrm.layers_per_stack": 2, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
    "bailingmoe3": lambda layers: {
        "swiglu_clamp_exp": [4.0 if layer % 2 else 0.0 for layer in range(layers)],
        "swiglu_clamp_shexp": [5.0 if layer % 2 else 0.0 for layer in range(layers)],
    },
}
