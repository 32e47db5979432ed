"""What the answers of both completion endpoints have in common, and the Protocol that each shape follows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from p2pmesh.api.openai.parameters import Call
from p2pmesh.wire.generation import FinishReason

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that an answer and each of its chunks repeat."""

    id: str
    created_unix_s: int
    model: str
    fingerprint: str
    wants_usage_chunk: bool
    prompt_token_ids: tuple[int, ...] | None = None
    """Only where ``return_token_ids`` asked for them."""

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

    def prompt_fields(self) -> dict[str, Any]:
        """``prompt_token_ids`` where they were asked for; which object holds them is the endpoint's choice."""
        return {} if self.prompt_token_ids is None else {"prompt_token_ids": list(self.prompt_token_ids)}


@dataclass(frozen=True, slots=True)
class Piece:
    """Generated text and, only where ``return_token_ids`` asked for them, the ids of its tokens.

    The ids never lag, the text may: a piece can hold either alone.
    """

    text: str
    token_ids: tuple[int, ...] | None = None

    def token_fields(self) -> dict[str, Any]:
        """``token_ids`` of a choice, where they were asked for."""
        return {} if self.token_ids is None else {"token_ids": list(self.token_ids)}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int

    def fields(self) -> dict[str, Any]:
        """OpenAI's ``usage`` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class AnswerShape(Protocol):
    """One endpoint's requests and answers, without any sending."""

    prompt_param: str
    id_prefix: str

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """The request in a decoded body; raises ``RequestError``."""

    def whole(self, head: AnswerHead, piece: Piece, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""

    def opening(self, head: AnswerHead) -> dict[str, Any] | None:
        """The chunk before any content, if the endpoint has one."""

    def delta(self, head: AnswerHead, piece: Piece) -> dict[str, Any]:
        """A chunk of what was generated."""

    def closing(self, head: AnswerHead, reason: FinishReason) -> dict[str, Any]:
        """The chunk with the finish reason."""

    def usage(self, head: AnswerHead, usage: Usage) -> dict[str, Any]:
        """The usage chunk."""
