"""Which model answers a request for ``auto``: by what is asked, by what models are good at, by how fast they are here.

A request has a kind (calls of tools, code, reasoning, creative, chat) and a depth (quick, moderate, deep), read off its
own words. What a model is good at and how large it is are read off its name, the only thing that all of them have. Of
the models that suit, one is drawn with the weight of its speed; a small share of requests goes to models whose speed is
not known. Kinds, depths, the ten billion parameters and all figures of speed are Mesh LLM's.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.core.routing import (
    ENOUGH_ANSWERS,
    EXPLORED_PERCENT,
    LEAST_TOKENS_PER_S,
    MOST_TOKENS_PER_S,
    NEUTRAL_TOKENS_PER_S,
)
from p2pmesh.wire.generation import GenerationRequest, Prompt

AUTO = "auto"
"""The name under which a model is chosen for each conversation."""
LARGE_MILLIONS = 10_000
"""Parameters from which on a model is preferred for what is not quick."""
QUICK_CHARACTERS = 160
DEEP_CHARACTERS = 4000
DEEP_TOKENS = 2048
_HARD_EFFORTS = ("high", "xhigh", "max")
_READ_CHARACTERS = 16_384
"""Of the words of a request; the classes of a longer one show before that."""


class Kind(StrEnum):
    """What is asked for."""

    TOOL = "tool"
    CODE = "code"
    REASONING = "reasoning"
    CREATIVE = "creative"
    CHAT = "chat"


class Depth(StrEnum):
    """How much of an answer it takes."""

    QUICK = "quick"
    MODERATE = "moderate"
    DEEP = "deep"


@dataclass(frozen=True, slots=True)
class RequestClass:
    """What a request is like."""

    kind: Kind
    depth: Depth


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that can be asked. ``token_us`` is the time of a token at its fastest known driver, None if unknown."""

    name: str
    answers: int = 0
    token_us: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether enough was measured of it."""
        return self.token_us is not None and self.answers >= ENOUGH_ANSWERS

    @property
    def tokens_per_s(self) -> int:
        """Within the bounds in which speeds count; the neutral one while it is not known."""
        if not self.is_known or self.token_us is None:
            return NEUTRAL_TOKENS_PER_S
        return max(LEAST_TOKENS_PER_S, min(MOST_TOKENS_PER_S, 1_000_000 // max(1, self.token_us)))


_CODE = re.compile(
    r"```|\b(?:def|class|import|return|const|struct|SELECT)\s+\w|#include|=>|"
    r"\b(?:code|function|script|regex|compil|debug|refactor|unit test|stack ?trace|python|javascript|typescript|rust|"
    r"golang|kotlin|sql|bash|html|css)\w*\b",
    re.IGNORECASE,
)
_REASONING = re.compile(
    r"\b(?:prove|proof|theorem|derive|step[- ]by[- ]step|reason|puzzle|solve|calculate|compute|how many|probability|"
    r"equation|integral|logic)\w*\b",
    re.IGNORECASE,
)
_CREATIVE = re.compile(
    r"\b(?:story|poem|poetry|haiku|song|lyrics|novel|fiction|screenplay|limerick|imagine|role ?play|fairy tale)\w*\b",
    re.IGNORECASE,
)
_STRENGTHS = (
    (Kind.CODE, re.compile(r"code|coder|codestral|devstral|starcoder", re.IGNORECASE)),
    (Kind.REASONING, re.compile(r"think|reason|\br1\b|-r1|qwq|math|deepseek-r", re.IGNORECASE)),
    (Kind.CREATIVE, re.compile(r"story|creative|writer|roleplay|mytho", re.IGNORECASE)),
    (Kind.TOOL, re.compile(r"hermes|functionary|tool|xlam|gorilla", re.IGNORECASE)),
)
_PARAMETERS = re.compile(r"(?:^|[^a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z0-9])", re.IGNORECASE)


def classify(request: GenerationRequest) -> RequestClass:
    """What a request is like, by its words and its limits."""
    words = _words_of(request.prompt)
    effort = request.prompt.reasoning_effort
    return RequestClass(_kind_of(request, words, effort), _depth_of(request, words, effort))


def _kind_of(request: GenerationRequest, words: str, effort: str) -> Kind:
    if request.tools is not None:
        return Kind.TOOL
    if _CODE.search(words):
        return Kind.CODE
    if effort in ("medium", *_HARD_EFFORTS) or _REASONING.search(words):
        return Kind.REASONING
    return Kind.CREATIVE if _CREATIVE.search(words) else Kind.CHAT


def _depth_of(request: GenerationRequest, words: str, effort: str) -> Depth:
    limit = request.max_tokens
    if effort in _HARD_EFFORTS or len(words) > DEEP_CHARACTERS or (limit is not None and limit >= DEEP_TOKENS):
        return Depth.DEEP
    is_quick = len(words) <= QUICK_CHARACTERS and effort in ("", "none", "minimal", "low")
    return Depth.QUICK if is_quick else Depth.MODERATE


def _words_of(prompt: Prompt) -> str:
    """What the user asks last; a prompt of token ids has no words."""
    if prompt.text is not None:
        return prompt.text[-_READ_CHARACTERS:]
    asked = [message.content for message in prompt.messages or () if message.role == "user"]
    return asked[-1][:_READ_CHARACTERS] if asked else ""


def strengths_of(name: str) -> frozenset[Kind]:
    """What a model's name says that it is made for; nothing for one that is made for all."""
    return frozenset(kind for kind, pattern in _STRENGTHS if pattern.search(name))


def parameters_millions(name: str) -> int | None:
    """Parameters by the model's name (``7B``, ``8x7b``, ``135M``), None where it does not say."""
    found = [
        round(int(copies or 1) * float(count) * (1000 if unit in "bB" else 1))
        for copies, count, unit in _PARAMETERS.findall(name)
    ]
    return max(found, default=None)


def choose_model(choices: Sequence[ModelChoice], asked: RequestClass, key: bytes) -> str | None:
    """The model for a request with this ``key``; None if there is none. The order of ``choices`` does not matter."""
    suited = _suited(sorted(choices, key=lambda choice: choice.name), asked)
    if not suited:
        return None
    unknown = [choice for choice in suited if not choice.is_known]
    if 0 < len(unknown) < len(suited) and _draw(key, b"explore", 100) < EXPLORED_PERCENT:
        return unknown[_draw(key, b"unknown", len(unknown))].name
    point = _draw(key, b"speed", sum(choice.tokens_per_s for choice in suited))
    for choice in suited:
        point -= choice.tokens_per_s
        if point < 0:
            return choice.name
    raise AssertionError("the weights add up to more than every point")


def _suited(choices: Sequence[ModelChoice], asked: RequestClass) -> Sequence[ModelChoice]:
    """Those made for it, else those made for all, else any; of them the large ones for what is not quick."""
    made_for_it = [choice for choice in choices if asked.kind in strengths_of(choice.name)]
    for_all = [choice for choice in choices if not strengths_of(choice.name)]
    suited = made_for_it or for_all or choices
    large = [choice for choice in suited if (parameters_millions(choice.name) or 0) >= LARGE_MILLIONS]
    return large if large and asked.depth is not Depth.QUICK else suited


def _draw(key: bytes, purpose: bytes, bound: int) -> int:
    digest = hashlib.blake2b(key, digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "big") % bound


def names_with_auto(names: Iterable[str]) -> tuple[str, ...]:
    """What can be asked for: with two models or more also ``auto``, behind them."""
    listed = tuple(names)
    return (*listed, AUTO) if len(listed) > 1 and AUTO not in listed else listed
