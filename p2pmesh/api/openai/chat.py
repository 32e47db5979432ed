"""``/v1/chat/completions``: its requests parsed, its answers shaped.

How answers are sent stays in ``endpoint``; parameters shared with the older endpoint in ``parameters``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from p2pmesh.api.errors import error_body, invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, as_fields, check_text, wrong_type
from p2pmesh.api.openai.logprobs import chat_logprobs
from p2pmesh.api.openai.parameters import (
    CHAT_HARMLESS,
    IMPLEMENTED,
    Call,
    check_names,
    fan_out,
    read_max_tokens,
    read_model,
    read_n,
    read_sampling,
    read_stop,
    read_stream,
)
from p2pmesh.api.openai.reading import chat_reader
from p2pmesh.api.openai.response_format import read_response_format
from p2pmesh.api.openai.shape import AnswerHead, Choice, ChoiceReader, Events, Piece, ServerEvent, TextTemplate, Usage
from p2pmesh.api.openai.tools import (
    FINISHED_BY_CALLS,
    TOOL_PARAMETERS,
    read_answered,
    read_calls,
    read_tools,
    show_calls,
    show_delta,
)
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.limits import MAX_CHAT_MESSAGES, MAX_TEXT_BYTES, MAX_TOOL_NAME_BYTES, MAX_TOP_LOGPROBS
from p2pmesh.wire.generation import ChatMessage, FinishReason, GenerationRequest, GenerationStarted, Prompt
from p2pmesh.wire.schema import is_line

CHAT_IMPLEMENTED = IMPLEMENTED | {
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "reasoning_effort",
    "prediction",
    "response_format",
    *TOOL_PARAMETERS,
}
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_UNSUPPORTED_ROLES = frozenset({"function"})
_OF_ROLE = {"assistant": ("tool_calls", "refusal"), "tool": ("tool_call_id",)}
"""What a message of a role may hold besides."""
_EMPTY_IN_HISTORY = frozenset({"tool_calls", "annotations"})
_KEPT_OUT_OF_HISTORY = frozenset({"reasoning_content", "reasoning"})
"""What an earlier answer was thought up by: clients send it back with the message, models are not to see it again."""
_MAX_PARTS = 1024


def parse_chat(body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
    """A chat request; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, CHAT_IMPLEMENTED, CHAT_HARMLESS)
    is_streamed, wants_usage_chunk = read_stream(fields)
    _check_prediction(fields)
    top_logprobs = _read_top_logprobs(fields)
    prompt = Prompt(messages=read_messages(fields), reasoning_effort=read_effort(fields, "reasoning_effort"))
    n = read_n(fields)
    request = GenerationRequest(
        request_id=request_id,
        model=read_model(fields),
        prompt=prompt,
        sampling=read_sampling(fields, random_seed),
        stop=read_stop(fields),
        max_tokens=_read_limit(fields),
        top_logprobs=top_logprobs,
        grammar=read_response_format(fields),
        tools=read_tools(fields),
    )
    return Call(
        fan_out(request, (prompt,), n),
        is_streamed,
        wants_usage_chunk,
        fields.boolean("return_token_ids"),
        shows_logprobs=top_logprobs is not None,
        n=n,
        candidates=n,
    )


def read_effort(fields: Fields, name: str) -> str:
    """A reasoning effort in OpenAI's words; empty without one."""
    if not fields.has(name):
        return ""
    param = fields.param(name)
    effort = check_text(fields.values[name], param, MAX_TEXT_BYTES)
    if effort not in REASONING_EFFORTS:
        raise invalid_parameter(param, f"{param} must be one of {', '.join(REASONING_EFFORTS)}")
    return effort


def _read_top_logprobs(fields: Fields) -> int | None:
    count = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if fields.boolean("logprobs"):
        return count or 0
    if count:
        raise invalid_parameter("top_logprobs", "top_logprobs may be given only when logprobs is true")
    return None


def _check_prediction(fields: Fields) -> None:
    """A prediction makes an answer faster at best, never another one; no use is made of it yet, and usage says so."""
    prediction = fields.object("prediction")
    if prediction is None:
        return
    check_names(prediction, frozenset({"type", "content"}), {})
    if prediction.required_text("type", 64) != "content":
        raise unsupported_parameter("prediction.type", "prediction.type is supported only as 'content'")
    _read_content(prediction, may_be_null=False)


def _read_limit(fields: Fields) -> int | None:
    older = read_max_tokens(fields, "max_tokens")
    newer = read_max_tokens(fields, "max_completion_tokens")
    if older is not None and newer is not None and older != newer:
        raise invalid_parameter("max_tokens", "max_tokens and max_completion_tokens contradict each other")
    return older if newer is None else newer


def read_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    """The conversation; developers speak as the system."""
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
    said = (_read_content(message, may_be_null=role == "assistant"), _read_refusal(message))
    content = "\n".join(text for text in said if text)
    name = _read_name(message)
    if role == "tool":
        return ChatMessage(role, content, answers=read_answered(message), name=name)
    return ChatMessage(_ROLES[role], content, read_calls(message) if role == "assistant" else (), name=name)


def _read_refusal(message: Fields) -> str:
    """What an assistant said instead of an answer: models of others tell it apart, chat templates do not."""
    if not message.has("refusal"):
        return ""
    return check_text(message.values["refusal"], message.param("refusal"), MAX_TEXT_BYTES, may_be_empty=True)


def _read_name(message: Fields) -> str:
    """Of the participant, or of the function that a tool's message is from; for the chat template."""
    if not message.values.get("name"):
        return ""
    param = message.param("name")
    name = check_text(message.values["name"], param, MAX_TOOL_NAME_BYTES)
    if not is_line(name):
        raise invalid_parameter(param, f"{param} must be one line of text")
    return name


def _check_message_names(message: Fields) -> None:
    for name, value in message.values.items():
        if name in _KEPT_OUT_OF_HISTORY and message.values.get("role") == "assistant" and value is not None:
            check_text(value, message.param(name), MAX_TEXT_BYTES, may_be_empty=True)
            continue
        is_empty = value is None or (name in _EMPTY_IN_HISTORY and value == [])
        known = {"role", "content", "name", *_OF_ROLE.get(str(message.values.get("role")), ())}
        if name not in known and not is_empty:
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
    if kind == "refusal":
        check_names(part, frozenset({"type", "refusal"}), {})
        return check_text(part.values.get("refusal"), part.param("refusal"), MAX_TEXT_BYTES, may_be_empty=True)
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

    def reader(self, call: Call, started: GenerationStarted) -> ChoiceReader:
        """A reader that tells reasoning apart."""
        return chat_reader(call, started)

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        shown = [_whole_choice(head, choice) for choice in choices]
        return {
            **head.fields("chat.completion"),
            "choices": shown,
            "usage": usage.fields(),
            **choices[0].prompt_fields(),
        }

    def stream(self, call: Call) -> "ChatStream":
        """The answer in chunks."""
        return ChatStream(call)

    def error(self, error: P2PMeshError) -> dict[str, Any]:
        """OpenAI's error object."""
        return error_body(error, self.prompt_param)


def _whole_choice(head: AnswerHead, choice: Choice) -> dict[str, Any]:
    piece = choice.piece
    message = {"role": "assistant", "content": piece.text, "refusal": None, **_reasoning_fields(piece)}
    if piece.calls:
        message["content"] = piece.text or None
        message["tool_calls"] = show_calls(piece.calls, _answer_id(head, choice.index))
    return {
        "index": choice.index,
        "message": message,
        "logprobs": chat_logprobs(piece.logprobs) if piece.logprobs else None,
        "finish_reason": _reason(choice.reason, has_calls=bool(piece.calls)),
        **piece.token_fields(),
    }


def _answer_id(head: AnswerHead, index: int) -> str:
    """For the ids of calls, which clients send back: short, and no two alike."""
    return f"{head.id.removeprefix(ChatShape.id_prefix)[:24]}{index}"


def _reason(reason: FinishReason, *, has_calls: bool) -> str:
    return FINISHED_BY_CALLS if has_calls and reason is FinishReason.STOP else reason.value


def _reasoning_fields(piece: Piece) -> dict[str, Any]:
    """Under the names of DeepSeek's API and of OpenRouter's, since clients read either."""
    return {"reasoning_content": piece.reasoning, "reasoning": piece.reasoning} if piece.reasoning else {}


class ChatStream:
    """Chunks of a chat answer."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._head: AnswerHead | None = None
        self._calling: set[int] = set()
        """Choices that call tools."""
        self._saying: dict[int, TextTemplate] = {}
        """Of each choice, what is said."""

    def begin(self, head: AnswerHead) -> Events:
        """Nothing before the first choice."""
        self._head = head
        return ()

    def open(self, index: int, prompt_token_ids: tuple[int, ...] | None) -> Events:
        """The chunk that names the role."""
        chunk = self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
        if prompt_token_ids is not None and index == 0:
            chunk["prompt_token_ids"] = list(prompt_token_ids)
        return (ServerEvent(chunk),)

    def add(self, index: int, piece: Piece) -> Events:
        """A chunk of what is thought, one of what is said; neither without any."""
        if piece.is_text_alone:
            return (self._say(index, piece.text),)
        events: list[ServerEvent] = []
        if piece.reasoning:
            events.append(ServerEvent(self._chunk(index, _reasoning_fields(piece))))
        if piece.text or piece.logprobs or self._call.wants_token_ids:
            chunk = self._chunk(index, {"content": piece.text})
            chunk["choices"][0] |= piece.token_fields()
            if piece.logprobs:
                chunk["choices"][0]["logprobs"] = chat_logprobs(piece.logprobs)
            events.append(ServerEvent(chunk))
        if piece.calls:
            assert self._head is not None
            self._calling.add(index)
            answer_id = _answer_id(self._head, index)
            deltas = [show_delta(part, answer_id) for part in piece.calls]
            events += [ServerEvent(self._chunk(index, {"tool_calls": [delta]})) for delta in deltas]
        return events

    def _say(self, index: int, text: str) -> ServerEvent:
        template = self._saying.get(index)
        if template is None:
            template = self._saying[index] = TextTemplate(self._chunk(index, {"content": TextTemplate.PLACE}))
        return template.event(text)

    def close(self, index: int, reason: FinishReason, stop: str = "") -> Events:
        """The chunk that carries the finish reason and no content."""
        return (ServerEvent(self._chunk(index, {}, _reason(reason, has_calls=index in self._calling))),)

    def finish(self, usage: Usage) -> Events:
        """The usage, if ``stream_options.include_usage`` asks for it, and the end mark."""
        assert self._head is not None
        end = ServerEvent("[DONE]")
        if not self._head.wants_usage_chunk:
            return (end,)
        return (
            ServerEvent({**self._head.fields("chat.completion.chunk"), "choices": [], "usage": usage.fields()}),
            end,
        )

    def fail(self, error: P2PMeshError) -> Events:
        """The error as an event, without an end mark."""
        return (ServerEvent(error_body(error, ChatShape.prompt_param)),)

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        assert self._head is not None
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head.fields("chat.completion.chunk"), "choices": [choice], **self._head.usage_placeholder()}
