"""``/v1/completions``, the older endpoint: its requests parsed, its answers shaped."""

from collections.abc import Callable, Mapping
from typing import Any

from p2pmesh.api.errors import RequestError, invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, check_text, wrong_type
from p2pmesh.api.openai.parameters import (
    COMPLETIONS_HARMLESS,
    IMPLEMENTED,
    Call,
    check_names,
    read_max_tokens,
    read_model,
    read_sampling,
    read_stop,
    read_stream,
)
from p2pmesh.api.openai.shape import NO_FIELDS, AnswerHead, Piece, Usage
from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.limits import MAX_PROMPT_TOKENS, MAX_TEXT_BYTES
from p2pmesh.wire.generation import FinishReason, GenerationRequest, Prompt

DEFAULT_MAX_TOKENS = 16
"""What OpenAI's own endpoint takes when the request names no limit."""

_IMPLEMENTED = IMPLEMENTED | {"prompt"}
_MAX_TOKEN_ID = 2**31 - 1


def parse_completions(body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
    """A request of the older endpoint; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, _IMPLEMENTED, COMPLETIONS_HARMLESS)
    is_streamed, wants_usage_chunk = read_stream(fields)
    limit = read_max_tokens(fields, "max_tokens")
    request = GenerationRequest(
        request_id=request_id,
        model=read_model(fields),
        prompt=_read_prompt(fields),
        sampling=read_sampling(fields, random_seed),
        stop=read_stop(fields),
        max_tokens=DEFAULT_MAX_TOKENS if limit is None else limit,
    )
    return Call(request, is_streamed, wants_usage_chunk, fields.boolean("return_token_ids"))


def _read_prompt(fields: Fields) -> Prompt:
    if not fields.has("prompt"):
        raise invalid_parameter("prompt", "prompt is required")
    value = fields.values["prompt"]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]  # a batch of one
    if isinstance(value, str):
        return Prompt(text=check_text(value, "prompt", MAX_TEXT_BYTES))
    if not isinstance(value, list):
        raise wrong_type(value, "prompt", "a string or an array of token ids")
    if not value:
        raise invalid_parameter("prompt", "prompt must not be empty")
    if isinstance(value[0], str | list):
        raise unsupported_parameter("prompt", "prompt is supported only as one string or one array of token ids")
    if len(value) > MAX_PROMPT_TOKENS:
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, f"prompt may hold {MAX_PROMPT_TOKENS} token ids", "prompt")
    return Prompt(tokens=tuple(_token_id(item) for item in value))


def _token_id(item: object) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise wrong_type(item, "prompt", "an array of token ids")
    if not 0 <= item <= _MAX_TOKEN_ID:
        raise invalid_parameter("prompt", f"prompt holds a token id outside 0 to {_MAX_TOKEN_ID}")
    return item


class CompletionsShape:
    """Answers of the older endpoint as OpenAI shapes them."""

    prompt_param = "prompt"
    id_prefix = "cmpl-"

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """See ``parse_completions``."""
        return parse_completions(body, request_id, random_seed)

    def whole(self, head: AnswerHead, piece: Piece, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        choice = _choice(piece.text, reason, piece.token_fields() | head.prompt_fields())
        return {**head.fields("text_completion"), "choices": [choice], "usage": usage.fields()}

    def opening(self, head: AnswerHead) -> dict[str, Any] | None:
        """This endpoint has no role to announce, only the prompt's ids where they were asked for."""
        if head.prompt_token_ids is None:
            return None
        return self._chunk(head, [_choice("", None, Piece("", ()).token_fields() | head.prompt_fields())])

    def delta(self, head: AnswerHead, piece: Piece) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk(head, [_choice(piece.text, None, piece.token_fields())])

    def closing(self, head: AnswerHead, reason: FinishReason) -> dict[str, Any]:
        """The chunk that carries the finish reason and no text."""
        return self._chunk(head, [_choice("", reason)])

    def usage(self, head: AnswerHead, usage: Usage) -> dict[str, Any]:
        """The chunk that ``stream_options.include_usage`` asks for."""
        return {**head.fields("text_completion"), "choices": [], "usage": usage.fields()}

    def _chunk(self, head: AnswerHead, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**head.fields("text_completion"), "choices": choices, **head.usage_placeholder()}


def _choice(text: str, reason: FinishReason | None, token_fields: Mapping[str, Any] = NO_FIELDS) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": reason and reason.value, **token_fields}
