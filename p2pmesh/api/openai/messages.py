"""``/v1/messages`` as Anthropic's clients ask for it: requests parsed, answers shaped, tokens counted.

A translation of what is done for chats.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from p2pmesh.api.backend import Backend
from p2pmesh.api.errors import error_headers, http_error, invalid_parameter, unsupported_parameter
from p2pmesh.api.exchange import read_body
from p2pmesh.api.json_response import json_response
from p2pmesh.api.openai.fields import Fields, as_fields, check_text, decode_object, wrong_type
from p2pmesh.api.openai.parameters import (
    MAX_TOKENS,
    Call,
    Harmless,
    check_names,
    only,
    read_model,
    read_sampling,
)
from p2pmesh.api.openai.reading import chat_reader
from p2pmesh.api.openai.shape import AnswerHead, Choice, ChoiceReader, Events, Piece, ServerEvent, Usage
from p2pmesh.api.openai.tool_shapes import read_anthropic_tools
from p2pmesh.api.openai.tools import read_tool_name, show_calls
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.limits import (
    MAX_CHAT_MESSAGES,
    MAX_STOP_BYTES,
    MAX_STOP_SEQUENCES,
    MAX_TEXT_BYTES,
    MAX_TOOL_NAME_BYTES,
)
from p2pmesh.core.tool_calls.reading import CallPart
from p2pmesh.wire.generation import (
    ChatMessage,
    FinishReason,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    ToolCall,
)

MESSAGES_IMPLEMENTED = frozenset(
    {
        "max_tokens",
        "messages",
        "model",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)


MESSAGES_HARMLESS: Mapping[str, Harmless] = MappingProxyType(
    {
        "metadata": Harmless((dict,), lambda _: True, "an object"),
        "service_tier": Harmless((str,), only("auto", "standard_only"), "'auto' or 'standard_only'"),
    }
)
_COUNTED = frozenset({"messages", "model", "system", "thinking", "tool_choice", "tools"})
_ROLES = ("user", "assistant")
_MAX_BLOCKS = 1024
_BLOCK_FIELDS = frozenset({"type", "text", "cache_control", "citations"})
_THINKING = ("thinking", "redacted_thinking")
_REASONS = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def parse_messages(body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
    """A request; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, MESSAGES_IMPLEMENTED, MESSAGES_HARMLESS)
    max_tokens = fields.integer("max_tokens", 1, MAX_TOKENS)
    if max_tokens is None:
        raise invalid_parameter("max_tokens", "max_tokens is required")
    request = GenerationRequest(
        request_id=request_id,
        model=read_model(fields),
        prompt=_read_prompt(fields),
        sampling=read_sampling(fields, random_seed),
        stop=_read_stop(fields),
        max_tokens=max_tokens,
        tools=read_anthropic_tools(fields),
    )
    return Call((request,), fields.boolean("stream"), wants_usage_chunk=False)


def _read_prompt(fields: Fields) -> Prompt:
    system = fields.values.get("system")
    messages = [] if system is None else [ChatMessage("system", _read_content(fields, "system"))]
    for index, item in enumerate(fields.array("messages", MAX_CHAT_MESSAGES)):
        message = as_fields(item, f"messages[{index}]")
        check_names(message, frozenset({"role", "content"}), {})
        role = message.required_text("role", 64)
        if role not in _ROLES:
            raise invalid_parameter(message.param("role"), f"{message.param('role')} must be user or assistant")
        messages += _read_message(message, role)
    return Prompt(messages=tuple(messages), reasoning_effort=_read_thinking(fields))


def _read_message(message: Fields, role: str) -> list[ChatMessage]:
    """One message, or several: what tools gave stands in front of what the user says."""
    content = message.values.get("content")
    if not isinstance(content, list):
        return [ChatMessage(role, _read_content(message, "content"))]
    param = message.param("content")
    blocks = [
        as_fields(block, f"{param}[{index}]") for index, block in enumerate(message.array("content", _MAX_BLOCKS))
    ]
    calls = tuple(_read_call(block) for block in blocks if block.values.get("type") == "tool_use")
    results = [_read_result(block) for block in blocks if block.values.get("type") == "tool_result"]
    if (calls and role != "assistant") or (results and role != "user"):
        raise invalid_parameter(param, f"{param}: an assistant calls tools, and a user brings their results")
    rest = [block for block in blocks if block.values.get("type") not in (*_THINKING, "tool_use", "tool_result")]
    text = check_text("\n".join(map(_read_block, rest)), param, MAX_TEXT_BYTES, may_be_empty=True)
    said = [ChatMessage(role, text, calls)] if rest or calls or not results else []
    return [*results, *said]


def _read_call(block: Fields) -> ToolCall:
    check_names(block, frozenset({"type", "id", "name", "input", "cache_control", "caller"}), {})
    arguments = block.object("input")
    name = read_tool_name(block)
    text = json.dumps({} if arguments is None else dict(arguments.values), ensure_ascii=False)
    check_text(text, block.param("input"), MAX_TEXT_BYTES)
    return ToolCall(block.required_text("id", MAX_TOOL_NAME_BYTES), name, text)


def _read_result(block: Fields) -> ChatMessage:
    check_names(block, frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}), {})
    content = "" if block.values.get("content") in (None, []) else _read_content(block, "content")
    if block.boolean("is_error"):
        content = f"error: {content}"
    return ChatMessage("tool", content, answers=block.required_text("tool_use_id", MAX_TOOL_NAME_BYTES))


def _read_content(holder: Fields, name: str) -> str:
    param = holder.param(name)
    content = holder.values.get(name)
    if isinstance(content, str):
        return check_text(content, param, MAX_TEXT_BYTES, may_be_empty=True)
    if not isinstance(content, list):
        raise wrong_type(content, param, "a string or an array of blocks")
    blocks = [as_fields(block, f"{param}[{index}]") for index, block in enumerate(holder.array(name, _MAX_BLOCKS))]
    texts = [_read_block(block) for block in blocks if block.values.get("type") not in _THINKING]
    return check_text("\n".join(texts), param, MAX_TEXT_BYTES, may_be_empty=True)


def _read_block(block: Fields) -> str:
    kind = block.required_text("type", 64)
    if kind != "text":
        param = block.param("type")
        raise unsupported_parameter(param, f"{param} {kind!r} is not supported, only 'text'")
    check_names(block, _BLOCK_FIELDS, {})
    return check_text(block.values.get("text"), block.param("text"), MAX_TEXT_BYTES, may_be_empty=True)


def _read_thinking(fields: Fields) -> str:
    """For the template: what it does by default where thinking is enabled, none where it is disabled."""
    thinking = fields.object("thinking")
    if thinking is None:
        return ""
    check_names(thinking, frozenset({"type", "budget_tokens"}), {})
    kind = thinking.required_text("type", 64)
    if kind not in ("enabled", "disabled", "adaptive"):
        raise invalid_parameter("thinking.type", "thinking.type must be enabled, adaptive or disabled")
    if thinking.has("budget_tokens"):  # a model thinks for as long as it does: nothing here ends it early
        thinking.integer("budget_tokens", 1, MAX_TOKENS)
    return "none" if kind == "disabled" else ""


def _read_stop(fields: Fields) -> tuple[str, ...]:
    if not fields.values.get("stop_sequences"):
        return ()
    items = fields.array("stop_sequences", MAX_STOP_SEQUENCES)
    return tuple(check_text(item, f"stop_sequences[{index}]", MAX_STOP_BYTES) for index, item in enumerate(items))


def anthropic_error(error: P2PMeshError) -> dict[str, Any]:
    """The body of an error."""
    status = http_error(error).status
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessagesShape:
    """Answers as Anthropic shapes them."""

    prompt_param = "messages"
    id_prefix = "msg_"

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """See ``parse_messages``."""
        return parse_messages(body, request_id, random_seed)

    def reader(self, call: Call, started: GenerationStarted) -> ChoiceReader:
        """A reader that tells reasoning apart."""
        return chat_reader(call, started)

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        piece = choices[0].piece
        content: list[dict[str, Any]] = []
        if piece.reasoning:
            content.append({"type": "thinking", "thinking": piece.reasoning, "signature": ""})
        if piece.text or not (content or piece.calls):
            content.append({"type": "text", "text": piece.text})
        for call in show_calls(piece.calls, head.id.removeprefix(self.id_prefix)[:24]):
            function = call["function"]
            shown = {"id": call["id"], "name": function["name"], "input": _as_object(function["arguments"])}
            content.append({"type": "tool_use", **shown})
        message = _message(head, content, usage.completion_tokens)
        return message | _end_fields(choices[0].reason, choices[0].stop, has_calls=bool(piece.calls))

    def stream(self, call: Call) -> "MessagesStream":
        """The answer as events."""
        return MessagesStream()

    def error(self, error: P2PMeshError) -> dict[str, Any]:
        """Anthropic's error object."""
        return anthropic_error(error)


def _as_object(arguments: str) -> dict[str, Any]:
    """Arguments as a value; what is no object, of a call that was cut short, is none."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _end_fields(reason: FinishReason, stop: str, *, has_calls: bool) -> dict[str, Any]:
    """Why an answer ended, and the stop sequence that ended it."""
    if has_calls and reason is FinishReason.STOP:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


def _message(head: AnswerHead, content: list[dict[str, Any]], output_tokens: int) -> dict[str, Any]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": head.prompt_tokens - head.cached_tokens,
            "output_tokens": output_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": head.cached_tokens,
        },
    }


class MessagesStream:
    """The events of one answer, from ``message_start`` to ``message_stop``."""

    def __init__(self) -> None:
        self._block: str | None = None
        """The kind of the block that is open."""
        self._blocks = 0
        self._answer_id = ""
        self._has_calls = False
        self._reason = FinishReason.STOP
        self._stop = ""

    def begin(self, head: AnswerHead) -> Events:
        """The message as it begins."""
        self._answer_id = head.id.removeprefix(MessagesShape.id_prefix)[:24]
        return (_event("message_start", {"message": _message(head, [], 0)}),)

    def open(self, index: int, prompt_token_ids: tuple[int, ...] | None) -> Events:
        """Blocks open with their first text."""
        return ()

    def add(self, index: int, piece: Piece) -> Events:
        """Part of the thinking, or of the text."""
        events: list[ServerEvent] = []
        if piece.reasoning:
            delta = {"type": "thinking_delta", "thinking": piece.reasoning}
            events += self._say("thinking", {"thinking": "", "signature": ""}, delta)
        if piece.text:
            events += self._say("text", {"text": ""}, {"type": "text_delta", "text": piece.text})
        for part in piece.calls:
            events += self._call(part)
        return events

    def close(self, index: int, reason: FinishReason, stop: str = "") -> Events:
        """The open block is complete; an answer without text has an empty one."""
        self._reason, self._stop = reason, stop
        events = [] if self._block is not None or self._blocks else self._open("text", {"text": ""})
        return [*events, *self._close()]

    def finish(self, usage: Usage) -> Events:
        """Why it ended and what it took, then the end."""
        delta = _end_fields(self._reason, self._stop, has_calls=self._has_calls)
        used = {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }
        return (
            _event("message_delta", {"delta": delta, "usage": used}),
            _event("message_stop", {}),
        )

    def fail(self, error: P2PMeshError) -> Events:
        """The error as an event."""
        return (ServerEvent(anthropic_error(error), "error"),)

    def _call(self, part: CallPart) -> list[ServerEvent]:
        """Part of a call: its name opens a block."""
        events: list[ServerEvent] = []
        if part.name:
            self._has_calls = True
            opened = {"id": f"call_{self._answer_id}_{part.index}", "name": part.name, "input": {}}
            events += [*self._close(), *self._open("tool_use", opened)]
        if part.arguments:
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
            events.append(_event("content_block_delta", {"index": self._blocks - 1, "delta": delta}))
        return events

    def _say(self, kind: str, empty: dict[str, Any], delta: dict[str, Any]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        if self._block != kind:
            events += [*self._close(), *self._open(kind, empty)]
        events.append(_event("content_block_delta", {"index": self._blocks - 1, "delta": delta}))
        return events

    def _open(self, kind: str, empty: dict[str, Any]) -> list[ServerEvent]:
        self._block = kind
        self._blocks += 1
        block = {"type": kind, **empty}
        return [_event("content_block_start", {"index": self._blocks - 1, "content_block": block})]

    def _close(self) -> list[ServerEvent]:
        if self._block is None:
            return []
        self._block = None
        return [_event("content_block_stop", {"index": self._blocks - 1})]


def _event(kind: str, fields: dict[str, Any]) -> ServerEvent:
    return ServerEvent({"type": kind, **fields}, kind)


class CountTokens:
    """``POST /v1/messages/count_tokens``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def answer(self, request: Request) -> Response:
        """How many tokens a conversation has in the model's template."""
        try:
            fields = Fields(decode_object(await read_body(request.scope, request.receive)))
            check_names(fields, _COUNTED, {})
            model = read_model(fields)
            prompt, tools = _read_prompt(fields), read_anthropic_tools(fields)
            tokens = await self._backend.tokenize(model, prompt, tools, add_special=True)
        except P2PMeshError as error:
            pairs = error_headers(error, self._backend.status_retry_after_s())
            headers = {name.decode(): value.decode() for name, value in pairs}
            return json_response(anthropic_error(error), status=http_error(error).status, headers=headers)
        return json_response({"input_tokens": len(tokens)})
