"""What each architecture needs when a range of its layers becomes a file of its own: rules as data.

Owns facts read in the source of llama.cpp: which metadata is per layer, which depends on a layer's index, which tensor
carries the rows between two stages. Whether a family may be cut is decided by runs (``families``), not here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.ids import LayerRange

SLIDING_WINDOW = "attention.sliding_window"
SLIDING_WINDOW_PATTERN = "attention.sliding_window_pattern"
RECURRENT_LAYERS = "attention.recurrent_layers"
FULL_ATTENTION_INTERVAL = "full_attention_interval"

PER_LAYER_ARRAYS = frozenset(
    {
        "attention.compress_ratios",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.indexer.types",
        "attention.rope_pattern",
        "expert_feed_forward_length",
        "expert_used_count",
        "feed_forward_length",
        RECURRENT_LAYERS,
        SLIDING_WINDOW_PATTERN,
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
    }
)
"""Keys (after ``<arch>.``) whose value is one item per layer where it is an array; cut with the layers."""

PLAIN_PER_LAYER_ARRAYS = frozenset({"xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"})
"""The same, of keys that do not name the architecture."""

WHOLE_ARRAYS = frozenset({"rope.dimension_sections"})
"""Keys whose array says nothing of layers; kept as it is."""

LEADING_LAYERS = frozenset({"leading_dense_block_count", "hash_layer_count", "n_deepstack_layers"})
"""Keys that count layers from the first one on."""

INPUT_TENSORS = frozenset({"token_embd.weight"})
"""Of the first stage; also of the last where the model ties its output to them."""

OUTPUT_TENSORS = frozenset({"output.weight", "output.bias", "output.scale", "output.input_scale"})
"""Of the last stage only."""

SHARED_TENSORS = frozenset(
    {
        "output_norm.weight",  # only the last stage uses it, but llama.cpp loads nothing without it
        "output_norm.bias",
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
        # applied to rows before the first layer; a later stage writes over the outcome, but needs them to load
        "position_embd.weight",
        "token_embd_norm.weight",
        "token_embd_norm.bias",
    }
)
"""Of every stage."""


USUAL_OUTPUT = "l_out-{}"
"""What llama.cpp calls the outcome of a layer, nearly everywhere."""


class SequenceState(StrEnum):
    """What a stage keeps of a sequence."""

    CELLS = "cells"
    """Keys and values by position: the tail can be dropped."""
    RECURRENT = "recurrent"
    """One state: all of it, or nothing."""
    HYBRID = "hybrid"
    """Both, by layer."""


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Windowed layers, where the file does not list them: all but one of each ``period`` layers.

    ``is_full_first``: the first of them attends to everything, else the last. ``is_optional``: a range without a
    windowed layer may drop the window; otherwise llama.cpp loads no such range.
    ``needs_full``: nor one without a layer that attends to everything.
    """

    period: int
    is_full_first: bool = False
    is_optional: bool = True
    needs_full: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    ``input_tensor`` is the tensor that the rows of a later stage are written over, empty where they go in as
    embeddings unchanged; it counts only in a model that has the tensor ``input_needs``. ``output_tensor`` names the
    outcome of the last layer, with ``{}`` for its index. ``pins`` are numbers that a later stage's file sets (suffix
    to value). A range may start only at a multiple of ``start_step``, and of the numbers at ``step_keys``. At
    ``special_counts`` of layers llama.cpp picks other constants, so neither the model nor a range may have so many.
    Without ``needs_keys`` it computes them from the number of layers. ``repeats_first``: layers mix in a value that
    the embedding or the first layer gives, so every stage holds both and computes that layer again, from the tokens,
    before the rows are written over its outcome. ``refusal`` says why no range runs by itself,
    ``unserved`` why an engine does not run it, whole or cut.
    """

    architecture: str
    window: WindowRule | None = None
    input_tensor: str = ""
    output_tensor: str = USUAL_OUTPUT
    input_needs: str = ""
    state: SequenceState = SequenceState.CELLS
    has_recurrent_interval: bool = False
    pins: tuple[tuple[str, float], ...] = ()
    start_step: int = 1
    step_keys: tuple[str, ...] = ()
    special_counts: tuple[int, ...] = ()
    needs_keys: tuple[str, ...] = ()
    repeats_first: bool = False
    refusal: str = ""
    needs_side_value: bool = False
    unserved: str = ""

    def held_layers(self, layers: LayerRange) -> tuple[int, ...]:
        """The layers that the file of a stage holds, in order: its own, and the first where that is repeated."""
        own = tuple(range(layers.start, layers.end))
        return (0, *own) if self.repeats_first and not layers.is_first() else own

    @property
    def is_sticky(self) -> bool:
        """Whether a sequence belongs to the peer that began it: its state rolls back to nothing but the start."""
        return self.state is not SequenceState.CELLS


_R, _H = SequenceState.RECURRENT, SequenceState.HYBRID
_NO_SCALE = (("embedding_scale", 0.0),)
"""0 is llama.cpp's word for no scale at all."""

_FIRST_OUTCOME = USUAL_OUTPUT.format(0)
_STREAMS = "its layers pass on several hidden streams, of which only one would travel between stages"
_PER_LAYER = "its layers take embeddings of the tokens of their own, or keys and values of earlier layers"

_DIFFUSION = "it writes all places of a text at once, by diffusion, which an engine does not do"

_SPECIAL = (
    Family("afmoe", WindowRule(4), input_tensor="inp_embd_scaled", start_step=4),
    Family("arwkv7", state=_R, input_tensor=_FIRST_OUTCOME, repeats_first=True),
    Family("bailingmoe3", state=_H),
    Family("bloom", input_tensor="inp_norm-0"),
    # rows that are no tokens would take its image weights
    Family("cogvlm", input_tensor=_FIRST_OUTCOME, repeats_first=True),
    Family("cohere2", WindowRule(4, is_optional=False)),
    Family("cohere2moe", WindowRule(4, is_full_first=True, is_optional=False)),
    Family("deepseek4", state=_H, refusal=_STREAMS, needs_side_value=True),
    Family("deepseek2", special_counts=(26, 27, 47, 48)),
    *(Family(name, unserved=_DIFFUSION) for name in ("dream", "llada", "llada-moe", "rnd1")),
    Family("qwen3tts", unserved="it speaks codes of sound, not tokens of text"),
    Family("dots3note", WindowRule(1, is_optional=False, needs_full=True)),
    Family("ernie4_5-moe", step_keys=("interleave_moe_layer_step",)),
    Family("exaone-moe", WindowRule(4, is_optional=False)),
    Family("exaone4", WindowRule(4), special_counts=(64,)),
    Family("falcon-h1", state=_H),
    Family("gemma", input_tensor="inp_scaled"),
    Family("gemma2", WindowRule(2), input_tensor="inp_scaled"),
    Family("gemma3", WindowRule(6), special_counts=(62,)),
    Family("gemma3n", WindowRule(5), refusal=_PER_LAYER, needs_side_value=True),
    Family("gemma4", WindowRule(5), refusal=_PER_LAYER, needs_side_value=True),
    Family("glm5-next", state=_H, refusal=_STREAMS, needs_side_value=True),
    Family("gpt-oss", WindowRule(2, is_optional=False)),
    Family("gpt2", input_tensor="inpL"),
    Family("granite", pins=_NO_SCALE),
    Family("granite_swa", WindowRule(1, is_optional=False), pins=_NO_SCALE),
    Family("granitehybrid", state=_H, pins=_NO_SCALE),
    Family("granitemoe", pins=_NO_SCALE),
    Family("grok", pins=_NO_SCALE),
    Family("hrm_text", refusal="its layers are run several times over, in stacks that a range would break"),
    Family("hy_v4", refusal=_STREAMS, needs_side_value=True),
    Family("jamba", state=_H),
    Family(
        "kimi-k3",
        state=_H,
        refusal="its layers attend to the outcomes of earlier ones, side values that do not travel between stages",
        needs_side_value=True,
    ),
    Family("kimi-linear", state=_H),
    Family("laguna", WindowRule(4, is_full_first=True)),
    Family("lfm2", state=_H),
    Family("lfm2moe", state=_H),
    Family("llama4", WindowRule(4), start_step=4, step_keys=("interleave_moe_layer_step",)),
    Family("mamba", state=_R),
    Family("mamba2", state=_R),
    Family("maple", WindowRule(1, is_optional=False)),
    Family("mellum", WindowRule(4)),
    Family("mimo2", WindowRule(1, is_optional=False)),
    Family("mpt", input_tensor="inpL", input_needs="position_embd.weight"),
    Family("minicpm", pins=_NO_SCALE, needs_keys=("residual_scale",)),
    Family(
        "minicpm3",
        input_tensor="inp_scaled",
        refusal="llama.cpp scales every layer by the number of layers, which a part has not",
    ),
    Family(
        "minimax-01",
        state=_H,
        refusal="the decay of its linear attention is computed from a layer's index and the number of layers",
    ),
    Family("muse-glimmer", WindowRule(4, is_optional=False), input_tensor="embd_norm"),
    Family("nemotron_h", output_tensor="nemotron_h_block_out-{}", state=_H),
    Family("nemotron_h_moe", output_tensor="nemotron_h_block_out-{}", state=_H),
    Family("olmo2", WindowRule(4)),
    Family(
        "plamo2",
        output_tensor="ffn_residual-{}",
        state=_H,
        refusal="cut, its tiny model did not come to an end, and the cause is not known",
    ),
    Family("plamo3", WindowRule(8)),
    Family("qwen35", state=_H, has_recurrent_interval=True),
    Family("qwen35moe", state=_H, has_recurrent_interval=True),
    Family("qwen3next", state=_H, has_recurrent_interval=True),
    Family("qwen4exp", state=_H, has_recurrent_interval=True, refusal=_STREAMS, needs_side_value=True),
    # the sum of the embedding's norm and its bias has no name of its own but its place in the graph
    Family("rwkv6", input_tensor="node_22", state=_R, step_keys=("rescale_every_n_layers",)),
    Family("rwkv6qwen2", state=_R, refusal="llama.cpp runs no tiny model of it, so no run has proved a cut"),
    Family("rwkv7", state=_R, input_tensor=_FIRST_OUTCOME, repeats_first=True),
    Family("smallthinker", WindowRule(4, is_full_first=True), start_step=4, special_counts=(4,)),
    Family("smollm3", start_step=4),
    Family("spark2_5", WindowRule(1, is_optional=False)),
    Family("starcoder", input_tensor="inpL"),
    Family("step35", WindowRule(1, is_optional=False), output_tensor="h_nextn"),
    Family("talkie", input_tensor=_FIRST_OUTCOME, repeats_first=True),
)

HAVE_OWN_OUTPUT = frozenset(
    {"apertus", "arwkv7", "baichuan", "bailingmoe", "bailingmoe2", "codeshell", "dbrx", "deepseek4", "dots1",
     "exaone-moe", "glm5-next", "gpt-oss", "gptneox", "hy_v4", "internlm2", "jais", "kimi-k3", "kimi-linear",
     "llada-moe", "maple", "mellum", "mimo2", "minimax-m2", "minimax-m3", "muse-glimmer", "nemotron", "olmo2", "olmoe",
     "orion", "phi2", "phimoe", "plamo", "qwen", "qwen2moe", "rwkv6", "rwkv6qwen2", "rwkv7", "stablelm", "step35",
     "talkie", "xverse"}
)  # fmt: skip
"""Architectures of which llama.cpp loads nothing without an output head beside the embedding."""

RULES: Mapping[str, Family] = {family.architecture: family for family in _SPECIAL}


def rules_of(architecture: str) -> Family:
    """The rules of an architecture; those of a plain transformer where nothing else is known."""
    return RULES.get(architecture) or Family(architecture)
