"""The parameters of both completion endpoints: which are implemented, which are harmless, which are refused.

Three kinds and no fourth, so that none is dropped silently: *implemented* ones are read, *harmless* ones are accepted
at the values (in ``HARMLESS``) where ignoring them changes nothing, everything else is a 400 ``unsupported_parameter``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, NoneType
from typing import Any

from p2pmesh.api.errors import invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, check_text, describe_type, wrong_type
from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.limits import MAX_LOGIT_BIAS, MAX_NAME_BYTES, MAX_SEQUENCE, MAX_STOP_BYTES, MAX_STOP_SEQUENCES
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.wire.generation import MAX_SEED, GenerationRequest, Prompt, SamplingParameters

MAX_TOKENS = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1
MAX_CHOICES = MAX_SEQUENCE + 1
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
_MIN_SEED = -(2**63)

SAMPLING_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
)
"""Read under OpenAI's names; ``top_k``, ``min_p`` and ``repeat_penalty`` (also ``repetition_penalty``) are extensions
that others offer too, and so is ``return_token_ids``, with vLLM's name and shape."""

IMPLEMENTED = frozenset(
    {
        *SAMPLING_NUMBERS,
        "repetition_penalty",
        "top_k",
        "logit_bias",
        "logprobs",
        "model",
        "max_tokens",
        "n",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "return_token_ids",
    }
)
"""Read by both endpoints; each adds its own."""


@dataclass(frozen=True, slots=True)
class Harmless:
    """A parameter that is not implemented and may still be present, at some values."""

    types: tuple[type, ...]
    accepts: Callable[[object], bool]
    allowed: str


def _anything(value: object) -> bool:
    return True


def only(*values: object) -> Callable[[object], bool]:
    """Accepts these values, each of its own type."""

    def accepts(value: object) -> bool:
        return any(type(value) is type(allowed) and value == allowed for allowed in values)

    return accepts


def _empty(value: object) -> bool:
    return not value


_LABEL = Harmless((str,), _anything, "a string")
_NO_TOOLS = Harmless((list,), _empty, "an empty array")
_NO_TOOL_CHOICE = Harmless((str, dict), only("none", "auto"), "'none' or 'auto'")

HARMLESS: Mapping[str, Harmless] = MappingProxyType(
    {
        # labels for the operator of a hosted service
        "user": _LABEL,
        "safety_identifier": _LABEL,
        "metadata": Harmless((dict,), _anything, "an object"),
        "store": Harmless((bool,), only(False), "false"),
        "service_tier": Harmless((str,), only("auto", "default"), "'auto' or 'default'"),
        # hints that change cost, never the answer
        "prompt_cache_key": _LABEL,
        "prompt_cache_retention": _LABEL,
        "prompt_cache_options": Harmless((dict,), _anything, "an object"),
    }
)

CHAT_HARMLESS: Mapping[str, Harmless] = MappingProxyType(
    {
        **HARMLESS,
        "modalities": Harmless((list,), only(["text"]), "['text']"),
        "verbosity": Harmless((str,), only("medium"), "'medium'"),
        "functions": _NO_TOOLS,
        "function_call": _NO_TOOL_CHOICE,
    }
)

COMPLETIONS_HARMLESS: Mapping[str, Harmless] = MappingProxyType(
    {
        **HARMLESS,
        "suffix": Harmless((str,), _empty, "an empty string"),
    }
)

STREAM_OPTIONS_HARMLESS: Mapping[str, Harmless] = MappingProxyType(
    {"include_obfuscation": Harmless((bool,), only(False), "false")}
)


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed request: what to generate and how to answer.

    ``requests`` holds ``candidates`` of each prompt, one prompt after another; the best ``n`` of them are shown.
    """

    requests: tuple[GenerationRequest, ...]
    is_streamed: bool
    wants_usage_chunk: bool
    wants_token_ids: bool = False
    shows_logprobs: bool = False
    n: int = 1
    candidates: int = 1
    echoes: tuple[str, ...] = ()
    """Text to put in front of each request's answer; none if empty."""
    given: Mapping[str, Any] | None = None
    """Fields of the request that the answer repeats."""
    asker: Asker = NOBODY

    @property
    def request(self) -> GenerationRequest:
        """The first one, which has what all have in common."""
        return self.requests[0]

    def prompt_of(self, index: int) -> int:
        """Which prompt a request answers."""
        return index // self.candidates


def check_names(fields: Fields, implemented: frozenset[str], harmless: Mapping[str, Harmless]) -> None:
    """Refuses every field that is neither implemented nor harmless at its value."""
    for name, value in fields.values.items():
        if name in implemented:
            continue
        param = fields.shown_param(name)
        rule = harmless.get(name)
        if rule is None:
            if value is not None:
                raise unsupported_parameter(param, f"{param} is not supported")
        elif not isinstance(value, (*rule.types, NoneType)) or (isinstance(value, bool) and bool not in rule.types):
            raise invalid_parameter(param, f"{param} must be {rule.allowed}, not {describe_type(value)}")
        elif value is not None and not rule.accepts(value):
            raise unsupported_parameter(param, f"{param} is supported only as {rule.allowed}")


def read_model(fields: Fields) -> str:
    """The name of the model, of any overlay peer."""
    return fields.required_text("model", MAX_NAME_BYTES)


def read_sampling(fields: Fields, random_seed: Callable[[], int]) -> SamplingParameters:
    """Sampling parameters; ``random_seed`` is asked only when the request names no seed."""
    given: dict[str, Any] = {}
    for name in SAMPLING_NUMBERS:
        number = fields.number(name)
        if number is not None:
            given[name] = _in_range(fields.param(name), name, number)
    top_k = fields.integer("top_k", 0, 1_000_000)
    seed = fields.integer("seed", _MIN_SEED, MAX_SEED)
    alias = fields.number("repetition_penalty")
    if alias is not None:
        if given.get("repeat_penalty", alias) != alias:
            raise invalid_parameter("repetition_penalty", "repetition_penalty and repeat_penalty contradict each other")
        given["repeat_penalty"] = _in_range("repetition_penalty", "repeat_penalty", alias)
    return SamplingParameters(
        **given,
        top_k=top_k or 0,
        # OpenAI's seeds are signed; the generator takes the same 64 bits unsigned
        seed=random_seed() if seed is None else seed & MAX_SEED,
        logit_bias=_read_bias(fields),
    )


def _read_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    """OpenAI's map of token ids, which are strings in JSON, by ascending id."""
    biases = fields.object("logit_bias")
    if biases is None:
        return ()
    if len(biases.values) > MAX_LOGIT_BIAS:
        raise invalid_parameter("logit_bias", f"logit_bias may hold {MAX_LOGIT_BIAS} tokens, not {len(biases.values)}")
    pairs: list[tuple[int, float]] = []
    for name in biases.values:
        bias = biases.number(name)
        if not _TOKEN_ID.fullmatch(name) or int(name) > MAX_TOKEN_ID or bias is None or not -100 <= bias <= 100:
            param = biases.shown_param(name)
            raise invalid_parameter(param, f"{param}: logit_bias maps token ids to numbers of -100 to 100")
        pairs.append((int(name), bias))
    return tuple(sorted(pairs))


def _in_range(param: str, name: str, number: float) -> float:
    values: dict[str, Any] = {name: number}
    try:
        SamplingParameters(**values)
    except RemoteProtocolError as error:
        raise invalid_parameter(param, error.message) from None
    return number


def read_n(fields: Fields) -> int:
    """How many choices."""
    return fields.integer("n", 1, MAX_CHOICES) or 1


def fan_out(request: GenerationRequest, prompts: Sequence[Prompt], candidates: int) -> tuple[GenerationRequest, ...]:
    """``candidates`` requests for each prompt, each a sequence of its own under the same request id."""
    if len(prompts) * candidates > MAX_CHOICES:
        text = f"prompts times choices must be at most {MAX_CHOICES}, not {len(prompts) * candidates}"
        raise invalid_parameter("n", text)
    if len(prompts) * candidates == 1:
        return (replace(request, prompt=prompts[0]),)
    sequences = enumerate(prompt for prompt in prompts for _ in range(candidates))
    return tuple(replace(request, prompt=prompt, sequence=sequence) for sequence, prompt in sequences)


def read_max_tokens(fields: Fields, name: str) -> int | None:
    """A limit on generated tokens, at least 1."""
    return fields.integer(name, 1, MAX_TOKENS)


def read_stop(fields: Fields) -> tuple[str, ...]:
    """Stop sequences: one string or a list of at most four."""
    if not fields.has("stop"):
        return ()
    value = fields.values["stop"]
    if isinstance(value, str):
        return (check_text(value, "stop", MAX_STOP_BYTES),)
    if not isinstance(value, list):
        raise wrong_type(value, "stop", "a string or an array of strings")
    if len(value) > MAX_STOP_SEQUENCES:
        raise invalid_parameter("stop", f"stop may hold {MAX_STOP_SEQUENCES} sequences, not {len(value)}")
    return tuple(check_text(item, f"stop[{index}]", MAX_STOP_BYTES) for index, item in enumerate(value))


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether a usage chunk is wanted at the end."""
    is_streamed = fields.boolean("stream")
    options = fields.object("stream_options")
    if options is None:
        return is_streamed, False
    if not is_streamed:
        raise invalid_parameter("stream_options", "stream_options may be given only when stream is true")
    check_names(options, frozenset({"include_usage"}), STREAM_OPTIONS_HARMLESS)
    return is_streamed, options.boolean("include_usage")
