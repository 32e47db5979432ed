"""What the answers of both completion endpoints have in common, and the Protocol that each shape follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from p2pmesh.api.openai.parameters import Call
from p2pmesh.wire.generation import FinishReason


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that an answer and each of its chunks repeat."""

    id: str
    created_unix_s: int
    model: str
    fingerprint: str
    wants_usage_chunk: bool

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

    def whole(self, head: AnswerHead, text: str, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""

    def opening(self, head: AnswerHead) -> dict[str, Any] | None:
        """The chunk before any content, if the endpoint has one."""

    def delta(self, head: AnswerHead, text: str) -> dict[str, Any]:
        """A chunk of text."""

    def closing(self, head: AnswerHead, reason: FinishReason) -> dict[str, Any]:
        """The chunk with the finish reason."""

    def usage(self, head: AnswerHead, usage: Usage) -> dict[str, Any]:
        """The usage chunk."""
