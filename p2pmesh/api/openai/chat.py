"""``/v1/chat/completions``: its requests parsed, its answers shaped.

How answers are sent stays in ``endpoint``; parameters shared with the older endpoint in ``parameters``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from p2pmesh.api.errors import invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, as_fields, check_text, wrong_type
from p2pmesh.api.openai.parameters import (
    CHAT_HARMLESS,
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
from p2pmesh.base.limits import MAX_CHAT_MESSAGES, MAX_TEXT_BYTES
from p2pmesh.wire.generation import ChatMessage, FinishReason, GenerationRequest, Prompt

_IMPLEMENTED = IMPLEMENTED | {"messages", "max_completion_tokens"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_UNSUPPORTED_ROLES = frozenset({"tool", "function"})
_EMPTY_IN_HISTORY = frozenset({"tool_calls", "annotations"})
_MAX_PARTS = 1024


def parse_chat(body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
    """A chat request; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, _IMPLEMENTED, CHAT_HARMLESS)
    is_streamed, wants_usage_chunk = read_stream(fields)
    request = GenerationRequest(
        request_id=request_id,
        model=read_model(fields),
        prompt=Prompt(messages=_read_messages(fields)),
        sampling=read_sampling(fields, random_seed),
        stop=read_stop(fields),
        max_tokens=_read_limit(fields),
    )
    return Call(request, is_streamed, wants_usage_chunk, fields.boolean("return_token_ids"))


def _read_limit(fields: Fields) -> int | None:
    older = read_max_tokens(fields, "max_tokens")
    newer = read_max_tokens(fields, "max_completion_tokens")
    if older is not None and newer is not None and older != newer:
        raise invalid_parameter("max_tokens", "max_tokens and max_completion_tokens contradict each other")
    return older if newer is None else newer


def _read_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    items = fields.array("messages", MAX_CHAT_MESSAGES)
    return tuple(_read_message(as_fields(item, f"messages[{index}]")) for index, item in enumerate(items))


def _read_message(message: Fields) -> ChatMessage:
    role_param = message.param("role")
    role = message.required_text("role", 64)
    if role in _UNSUPPORTED_ROLES:
        raise unsupported_parameter(role_param, f"{role_param} {role!r} is not supported")
    if role not in _ROLES:
        raise invalid_parameter(role_param, f"{role_param} must be one of {', '.join(_ROLES)}")
    _check_message_names(message)
    return ChatMessage(_ROLES[role], _read_content(message, may_be_null=role == "assistant"))


def _check_message_names(message: Fields) -> None:
    for name, value in message.values.items():
        is_empty = value is None or (name in _EMPTY_IN_HISTORY and value == [])
        if name not in {"role", "content"} and not is_empty:
            param = message.shown_param(name)
            raise unsupported_parameter(param, f"{param} is not supported")


def _read_content(message: Fields, *, may_be_null: bool) -> str:
    """Text of a message. Parts are joined by a line break, as the servers of llama.cpp and vLLM do."""
    param = message.param("content")
    content = message.values.get("content")
    if content is None:
        if may_be_null:
            return ""
        raise invalid_parameter(param, f"{param} is required")
    if isinstance(content, str):
        return check_text(content, param, MAX_TEXT_BYTES, may_be_empty=True)
    if not isinstance(content, list):
        raise wrong_type(content, param, "a string or an array of parts")
    parts = message.array("content", _MAX_PARTS)
    text = "\n".join(_read_part(as_fields(part, f"{param}[{index}]")) for index, part in enumerate(parts))
    return check_text(text, param, MAX_TEXT_BYTES, may_be_empty=True)


def _read_part(part: Fields) -> str:
    kind = part.required_text("type", 64)
    if kind != "text":
        raise unsupported_parameter(part.param("type"), f"{part.param('type')} {kind!r} is not supported, only 'text'")
    check_names(part, frozenset({"type", "text"}), {})
    return check_text(part.values.get("text"), part.param("text"), MAX_TEXT_BYTES, may_be_empty=True)


class ChatShape:
    """Answers of the chat endpoint as OpenAI shapes them."""

    prompt_param = "messages"
    id_prefix = "chatcmpl-"

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """See ``parse_chat``."""
        return parse_chat(body, request_id, random_seed)

    def whole(self, head: AnswerHead, piece: Piece, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason.value}
        choice |= piece.token_fields()
        return {**head.fields("chat.completion"), "choices": [choice], "usage": usage.fields(), **head.prompt_fields()}

    def opening(self, head: AnswerHead) -> dict[str, Any] | None:
        """The first chunk, which names the role."""
        return self._chunk(head, {"role": "assistant", "content": "", "refusal": None}, None) | head.prompt_fields()

    def delta(self, head: AnswerHead, piece: Piece) -> dict[str, Any]:
        """A chunk of content."""
        return self._chunk(head, {"content": piece.text}, None, piece.token_fields())

    def closing(self, head: AnswerHead, reason: FinishReason) -> dict[str, Any]:
        """The chunk that carries the finish reason and no content."""
        return self._chunk(head, {}, reason)

    def usage(self, head: AnswerHead, usage: Usage) -> dict[str, Any]:
        """The chunk that ``stream_options.include_usage`` asks for."""
        return {**head.fields("chat.completion.chunk"), "choices": [], "usage": usage.fields()}

    def _chunk(
        self,
        head: AnswerHead,
        delta: dict[str, Any],
        reason: FinishReason | None,
        token_fields: Mapping[str, Any] = NO_FIELDS,
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason and reason.value}
        choice |= token_fields
        return {**head.fields("chat.completion.chunk"), "choices": [choice], **head.usage_placeholder()}
