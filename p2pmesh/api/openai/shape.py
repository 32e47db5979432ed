"""What the answers of all generating endpoints have in common, and the Protocols that each endpoint follows.

A *choice* is one answer among several to the same request. Its events become ``Piece``s in a ``ChoiceReader``; how
pieces look to a client is the shape's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from p2pmesh.api.exchange import encode_json
from p2pmesh.api.openai.parameters import Call
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.core.tool_calls.reading import CallPart
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    GenerationStarted,
    TokenLogprob,
)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that an answer and each of its chunks repeat."""

    id: str
    created_unix_s: int
    model: str
    fingerprint: str
    wants_usage_chunk: bool
    prompt_tokens: int = 0
    """Of the choice that was admitted first, as the next."""
    cached_tokens: int = 0
    given: Mapping[str, Any] | None = None
    """What the answer repeats of its request."""

    def fields(self, kind: str) -> dict[str, Any]:
        """The head of an object of this ``kind`` (OpenAI's ``object`` field)."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_unix_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def usage_placeholder(self) -> dict[str, Any]:
        """``usage: null`` in each chunk but the last, only where a usage chunk was asked for."""
        return {"usage": None} if self.wants_usage_chunk else {}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice: what is said, what was thought before, the tokens' log probabilities, calls of tools.

    ``token_ids`` is None where ``return_token_ids`` did not ask for them. The ids never lag, the rest may: a piece can
    hold either alone.
    """

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    calls: tuple[CallPart, ...] = ()

    @property
    def is_text_alone(self) -> bool:
        """Whether it is said text and nothing besides, as nearly all pieces are."""
        return bool(self.text) and self.token_ids is None and not (self.reasoning or self.logprobs or self.calls)

    def is_shown(self) -> bool:
        """Whether a client sees anything of it."""
        return bool(self.text or self.reasoning or self.logprobs or self.token_ids or self.calls)

    def token_fields(self) -> dict[str, Any]:
        """``token_ids`` of a choice, where they were asked for."""
        return {} if self.token_ids is None else {"token_ids": list(self.token_ids)}


@dataclass(frozen=True, slots=True)
class Choice:
    """A whole choice; ``prompt_token_ids`` only where they were asked for."""

    index: int
    piece: Piece
    reason: FinishReason
    prompt_token_ids: tuple[int, ...] | None = None
    stop: str = ""
    """The stop sequence that ended it, if one did."""

    def prompt_fields(self) -> dict[str, Any]:
        """``prompt_token_ids`` where they were asked for; which object holds them is the endpoint's choice."""
        return {} if self.prompt_token_ids is None else {"prompt_token_ids": list(self.prompt_token_ids)}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request: each prompt once, all that was generated for it."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    cached_tokens: int = 0

    def fields(self) -> dict[str, Any]:
        """OpenAI's ``usage`` object. No prediction is made use of."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream: a JSON object, or text as it is; ``name`` is its ``event:`` line, if it has one."""

    data: dict[str, Any] | str
    name: str | None = None


Events = Sequence[ServerEvent]


class TextTemplate:
    """JSON objects that differ in one text: for each token only that is encoded, the rest once."""

    PLACE = "\0text\0"
    """Stands in the example where the text belongs; no client's own text comes after it."""

    def __init__(self, example: dict[str, Any]) -> None:
        self._before, _, self._after = encode_json(example).rpartition(encode_json(self.PLACE))

    def event(self, text: str) -> ServerEvent:
        """The object with ``text`` in its place."""
        return ServerEvent(self._before + encode_json(text) + self._after)


class ChoiceReader(Protocol):
    """Makes pieces of one choice's events."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far that were reasoning."""

    def add(self, delta: GenerationDelta) -> Piece:
        """What a delta brings."""

    def finish(self, finished: GenerationFinished) -> tuple[Piece, FinishReason]:
        """What was held back, and why the choice ended."""


class StreamShape(Protocol):
    """The events of one streamed answer, in their order. ``begin`` comes first, one of the last two last."""

    def begin(self, head: AnswerHead) -> Events:
        """Some choice was admitted: the answer begins."""

    def open(self, index: int, prompt_token_ids: tuple[int, ...] | None) -> Events:
        """The choice was admitted."""

    def add(self, index: int, piece: Piece) -> Events:
        """Part of a choice."""

    def close(self, index: int, reason: FinishReason, stop: str = "") -> Events:
        """The choice is complete; ``stop`` is the stop sequence that ended it, if one did."""

    def finish(self, usage: Usage) -> Events:
        """All choices are."""

    def fail(self, error: P2PMeshError) -> Events:
        """The answer breaks off."""


class AnswerShape(Protocol):
    """One endpoint's requests and answers, without any sending."""

    prompt_param: str
    id_prefix: str

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """The request in a decoded body; raises ``RequestError``."""

    def reader(self, call: Call, started: GenerationStarted) -> ChoiceReader:
        """A reader for a choice that was admitted."""

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""

    def stream(self, call: Call) -> StreamShape:
        """The events of one that is."""

    def error(self, error: P2PMeshError) -> dict[str, Any]:
        """The body of an error."""
