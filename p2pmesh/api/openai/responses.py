"""``/v1/responses``: its requests parsed, its answers shaped, whole and as the sequence of events that clients follow.

Stateless: nothing is stored, and what refers to something stored is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from p2pmesh.api.errors import error_body, http_error, invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.chat import read_effort
from p2pmesh.api.openai.fields import Fields, as_fields, check_text, wrong_type
from p2pmesh.api.openai.logprobs import chat_logprobs
from p2pmesh.api.openai.parameters import (
    HARMLESS,
    STREAM_OPTIONS_HARMLESS,
    Call,
    Harmless,
    check_names,
    only,
    read_max_tokens,
    read_model,
    read_sampling,
)
from p2pmesh.api.openai.reading import chat_reader
from p2pmesh.api.openai.response_format import read_text_format
from p2pmesh.api.openai.shape import AnswerHead, Choice, ChoiceReader, Events, Piece, ServerEvent, Usage
from p2pmesh.api.openai.tool_shapes import read_flat_tools
from p2pmesh.api.openai.tools import read_tool_name
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.limits import MAX_CHAT_MESSAGES, MAX_TEXT_BYTES, MAX_TOOL_NAME_BYTES, MAX_TOP_LOGPROBS
from p2pmesh.core.tool_calls.reading import CallPart
from p2pmesh.wire.generation import (
    ChatMessage,
    FinishReason,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    TokenLogprob,
    ToolCall,
)

RESPONSES_IMPLEMENTED = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "reasoning",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "parallel_tool_calls",
        "top_logprobs",
        "top_p",
    }
)


RESPONSES_HARMLESS: Mapping[str, Harmless] = MappingProxyType(
    {
        **HARMLESS,
        "background": Harmless((bool,), only(False), "false"),
        "truncation": Harmless((str,), only("disabled"), "'disabled'"),
    }
)
_REASONING_HARMLESS = {"summary": Harmless((str,), only("auto"), "'auto'")}
_TEXT_HARMLESS = {"verbosity": Harmless((str,), only("medium"), "'medium'")}
_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (_LOGPROBS, "reasoning.encrypted_content")
"""The second is for servers that hide reasoning from their clients; here it stands in the item."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text")
_OF_ITEMS = frozenset({"id", "status", "phase", "type"})
_MAX_PARTS = 1024
_ITEMS = ("message", "reasoning", "function_call", "function_call_output")


def parse_responses(body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
    """A request; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, RESPONSES_IMPLEMENTED, RESPONSES_HARMLESS)
    options = fields.object("stream_options")
    if options is not None:
        check_names(options, frozenset(), STREAM_OPTIONS_HARMLESS)
    effort = _read_effort(fields)
    top_logprobs = _read_logprobs(fields)
    text = fields.object("text") or Fields({})
    check_names(text, frozenset({"format"}), _TEXT_HARMLESS)
    request = GenerationRequest(
        request_id=request_id,
        model=read_model(fields),
        prompt=Prompt(messages=_read_conversation(fields), reasoning_effort=effort),
        sampling=read_sampling(fields, random_seed),
        max_tokens=read_max_tokens(fields, "max_output_tokens"),
        top_logprobs=top_logprobs,
        grammar=read_text_format(text),
        tools=read_flat_tools(fields),
    )
    return Call(
        (request,),
        fields.boolean("stream"),
        wants_usage_chunk=False,
        shows_logprobs=top_logprobs is not None,
        given=_given(fields, request),
    )


def _read_effort(fields: Fields) -> str:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return ""
    check_names(reasoning, frozenset({"effort"}), _REASONING_HARMLESS)
    return read_effort(reasoning, "effort")


def _read_logprobs(fields: Fields) -> int | None:
    count = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    wanted = fields.array("include", len(_INCLUDES)) if fields.values.get("include") else []
    for index, name in enumerate(wanted):
        if name not in _INCLUDES:
            raise unsupported_parameter(f"include[{index}]", f"include is supported for {', '.join(_INCLUDES)}")
    if _LOGPROBS in wanted:
        return count or 0
    return count or None


def _read_conversation(fields: Fields) -> tuple[ChatMessage, ...]:
    messages: list[ChatMessage] = []
    if fields.has("instructions"):
        text = check_text(fields.values["instructions"], "instructions", MAX_TEXT_BYTES, may_be_empty=True)
        messages.append(ChatMessage("system", text))
    if not fields.has("input"):
        raise invalid_parameter("input", "input is required")
    if isinstance(fields.values["input"], str):
        return (*messages, ChatMessage("user", check_text(fields.values["input"], "input", MAX_TEXT_BYTES)))
    for index, item in enumerate(fields.array("input", MAX_CHAT_MESSAGES)):
        _add(messages, _read_item(as_fields(item, f"input[{index}]")))
    return tuple(messages)


def _add(messages: list[ChatMessage], message: ChatMessage | None) -> None:
    """Calls stand in the message of the assistant that made them, which templates expect."""
    if message is None:
        return
    if message.calls and messages and messages[-1].role == "assistant":
        messages[-1] = replace(messages[-1], calls=messages[-1].calls + message.calls)
    else:
        messages.append(message)


def _read_item(item: Fields) -> ChatMessage | None:
    kind = item.values.get("type") or "message"
    if kind == "reasoning":  # of an earlier answer: kept out of the prompt
        return None
    if kind == "function_call":
        return ChatMessage("assistant", "", (_read_call(item),))
    if kind == "function_call_output":
        check_names(item, _OF_ITEMS | {"call_id", "output"}, {})
        return ChatMessage("tool", _read_content(item, "output"), answers=_read_call_id(item))
    if kind != "message":
        param = item.param("type")
        raise unsupported_parameter(param, f"{param} is supported only as {', '.join(_ITEMS)}")
    check_names(item, _OF_ITEMS | {"role", "content"}, {})
    role = item.required_text("role", 64)
    if role not in _ROLES:
        raise invalid_parameter(item.param("role"), f"{item.param('role')} must be one of {', '.join(_ROLES)}")
    return ChatMessage(_ROLES[role], _read_content(item, "content"))


def _read_call(item: Fields) -> ToolCall:
    check_names(item, _OF_ITEMS | {"call_id", "name", "arguments"}, {})
    arguments = check_text(item.values.get("arguments"), item.param("arguments"), MAX_TEXT_BYTES, may_be_empty=True)
    return ToolCall(_read_call_id(item), read_tool_name(item), arguments)


def _read_call_id(item: Fields) -> str:
    return item.required_text("call_id", MAX_TOOL_NAME_BYTES)


def _read_content(item: Fields, name: str) -> str:
    param = item.param(name)
    content = item.values.get(name)
    if isinstance(content, str):
        return check_text(content, param, MAX_TEXT_BYTES, may_be_empty=True)
    if not isinstance(content, list):
        raise wrong_type(content, param, "a string or an array of parts")
    parts = [as_fields(part, f"{param}[{index}]") for index, part in enumerate(item.array(name, _MAX_PARTS))]
    return check_text("\n".join(map(_read_part, parts)), param, MAX_TEXT_BYTES, may_be_empty=True)


def _read_part(part: Fields) -> str:
    kind = part.required_text("type", 64)
    if kind == "refusal":  # of an earlier answer, which was this instead
        check_names(part, frozenset({"type", "refusal"}), {})
        return check_text(part.values.get("refusal"), part.param("refusal"), MAX_TEXT_BYTES, may_be_empty=True)
    if kind not in _TEXT_PARTS:
        param = part.param("type")
        raise unsupported_parameter(param, f"{param} {kind!r} is not supported, only {', '.join(_TEXT_PARTS)}")
    check_names(part, frozenset({"type", "text", "annotations", "logprobs"}), {})
    return check_text(part.values.get("text"), part.param("text"), MAX_TEXT_BYTES, may_be_empty=True)


def _given(fields: Fields, request: GenerationRequest) -> dict[str, Any]:
    """What a response object says of its request."""
    values = fields.values
    return {
        "background": False,
        "instructions": values.get("instructions"),
        "max_output_tokens": request.max_tokens,
        "metadata": values.get("metadata") or {},
        "parallel_tool_calls": values.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": {"effort": request.prompt.reasoning_effort or None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": request.sampling.temperature,
        "text": values.get("text") or {"format": {"type": "text"}},
        "tool_choice": values.get("tool_choice") or "auto",
        "tools": values.get("tools") or [],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "user": values.get("user"),
    }


class ResponsesShape:
    """Answers as response objects."""

    prompt_param = "input"
    id_prefix = "resp_"

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """See ``parse_responses``."""
        return parse_responses(body, request_id, random_seed)

    def reader(self, call: Call, started: GenerationStarted) -> ChoiceReader:
        """A reader that tells reasoning apart."""
        return chat_reader(call, started)

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer in one piece: what its last event holds."""
        stream = ResponsesStream()
        stream.begin(head)
        stream.add(0, choices[0].piece)
        stream.close(0, choices[0].reason)
        return stream.response(usage)

    def stream(self, call: Call) -> "ResponsesStream":
        """The answer as events."""
        return ResponsesStream()

    def error(self, error: P2PMeshError) -> dict[str, Any]:
        """OpenAI's error object."""
        return error_body(error, self.prompt_param)


class _Item:
    """An output item as it grows: reasoning, or the message."""

    def __init__(self, answer_id: str, index: int, *, is_reasoning: bool) -> None:
        self.index = index
        self.is_reasoning = is_reasoning
        self.id = ("rs_" if is_reasoning else "msg_") + answer_id + str(index)
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []

    def place(self) -> dict[str, Any]:
        """Where its one part stands."""
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def part(self) -> dict[str, Any]:
        """The part as it is now."""
        if self.is_reasoning:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}

    def fields(self, status: str) -> dict[str, Any]:
        """The item as it is now; one in progress shows no part yet."""
        content = [] if status == "in_progress" else [self.part()]
        if self.is_reasoning:
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "status": status}


class _CallItem(_Item):
    """An output item that calls a function."""

    def __init__(self, answer_id: str, index: int, name: str) -> None:
        super().__init__(answer_id, index, is_reasoning=False)
        self._name = name
        self._call_id = f"call_{answer_id[:24]}_{index}"
        self.id = f"fc_{answer_id}{index}"

    def fields(self, status: str) -> dict[str, Any]:
        """The item as it is now; ``text`` is what there is of its arguments."""
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
            "status": status,
        }

    def done(self) -> dict[str, Any]:
        """What tells that the arguments are whole."""
        return {"item_id": self.id, "output_index": self.index, "name": self._name, "arguments": self.text}


class ResponsesStream:
    """The events of a response, numbered, from ``response.created`` to the one that ends it."""

    def __init__(self) -> None:
        self._head: AnswerHead | None = None
        self._number = 0
        self._item: _Item | None = None
        self._done: list[dict[str, Any]] = []
        self._early_logprobs: tuple[TokenLogprob, ...] = ()
        """Of text that is held back: ``<`` may begin a mark."""
        self._reason = FinishReason.STOP

    def begin(self, head: AnswerHead) -> Events:
        """The response as it begins."""
        self._head = head
        response = self._response("in_progress", None)
        return [
            self._event("response.created", {"response": response}),
            self._event("response.in_progress", {"response": response}),
        ]

    def open(self, index: int, prompt_token_ids: tuple[int, ...] | None) -> Events:
        """Items open with their first text."""
        return ()

    def add(self, index: int, piece: Piece) -> Events:
        """Part of the reasoning, or of the message."""
        events: list[ServerEvent] = []
        if piece.reasoning:
            events += self._say(piece.reasoning, (), is_reasoning=True)
        if piece.text:
            events += self._say(piece.text, (*self._early_logprobs, *piece.logprobs), is_reasoning=False)
            self._early_logprobs = ()
        elif not piece.reasoning:
            self._early_logprobs += piece.logprobs
        for part in piece.calls:
            events += self._call(part)
        return events

    def close(self, index: int, reason: FinishReason, stop: str = "") -> Events:
        """The open item is complete; an answer without text has an empty message."""
        self._reason = reason
        if self._item is None and self._done:
            return ()
        events = [] if self._item is not None else self._open_item(is_reasoning=False)
        return [*events, *self._close_item("incomplete" if reason is FinishReason.LENGTH else "completed")]

    def finish(self, usage: Usage) -> Events:
        """``response.completed``, or ``response.incomplete`` where the limit ended it."""
        return (self._event(f"response.{self._status()}", {"response": self.response(usage)}),)

    def fail(self, error: P2PMeshError) -> Events:
        """``response.failed``; of a response that never began, an ``error``."""
        said = error_body(error, ResponsesShape.prompt_param)["error"]
        if self._head is None:
            told = {"code": said["code"], "message": error.message, "param": said["param"]}
            return (self._event("error", told),)
        told = {"code": said["code"] if http_error(error).status < 500 else "server_error", "message": error.message}
        return (self._event("response.failed", {"response": self._response("failed", None) | {"error": told}}),)

    def response(self, usage: Usage) -> dict[str, Any]:
        """The whole response object."""
        return self._response(self._status(), usage)

    def _status(self) -> str:
        return "incomplete" if self._reason is FinishReason.LENGTH else "completed"

    def _say(self, text: str, logprobs: tuple[TokenLogprob, ...], *, is_reasoning: bool) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        item = self._item
        if item is not None and (isinstance(item, _CallItem) or item.is_reasoning is not is_reasoning):
            events += self._close_item("completed")
        if self._item is None:
            events += self._open_item(is_reasoning=is_reasoning)
        item = self._item
        assert item is not None
        item.text += text
        if is_reasoning:
            return [*events, self._event("response.reasoning_text.delta", {**item.place(), "delta": text})]
        told = chat_logprobs(logprobs)["content"]
        item.logprobs += told
        delta = {**item.place(), "delta": text, "logprobs": told}
        return [*events, self._event("response.output_text.delta", delta)]

    def _call(self, part: CallPart) -> list[ServerEvent]:
        """Part of a call: its name opens it."""
        events: list[ServerEvent] = []
        if part.name:
            events += [] if self._item is None else self._close_item("completed")
            opened = self._item = _CallItem(self._answer_id(), len(self._done), part.name)
            added = {"output_index": opened.index, "item": opened.fields("in_progress")}
            events.append(self._event("response.output_item.added", added))
        item = self._item
        assert item is not None
        if part.arguments:
            item.text += part.arguments
            delta = {"item_id": item.id, "output_index": item.index, "delta": part.arguments}
            events.append(self._event("response.function_call_arguments.delta", delta))
        return events

    def _answer_id(self) -> str:
        assert self._head is not None
        return self._head.id.removeprefix(ResponsesShape.id_prefix)

    def _open_item(self, *, is_reasoning: bool) -> list[ServerEvent]:
        item = self._item = _Item(self._answer_id(), len(self._done), is_reasoning=is_reasoning)
        added = {"output_index": item.index, "item": item.fields("in_progress")}
        return [
            self._event("response.output_item.added", added),
            self._event("response.content_part.added", {**item.place(), "part": item.part()}),
        ]

    def _close_item(self, status: str) -> list[ServerEvent]:
        item = self._item
        assert item is not None
        self._item = None
        self._done.append(item.fields(status))
        ended = self._event_of_end(item)
        return [*ended, self._event("response.output_item.done", {"output_index": item.index, "item": self._done[-1]})]

    def _event_of_end(self, item: _Item) -> list[ServerEvent]:
        if isinstance(item, _CallItem):
            return [self._event("response.function_call_arguments.done", item.done())]
        name = "response.reasoning_text.done" if item.is_reasoning else "response.output_text.done"
        done = {**item.place(), "text": item.text} | ({} if item.is_reasoning else {"logprobs": list(item.logprobs)})
        return [
            self._event(name, done),
            self._event("response.content_part.done", {**item.place(), "part": item.part()}),
        ]

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        head = self._head
        assert head is not None
        is_cut = status == "incomplete"
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created_unix_s,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": head.model,
            "output": list(self._done),
            "usage": None if usage is None else _usage_fields(usage),
            **(head.given or {}),
        }

    def _event(self, kind: str, fields: dict[str, Any]) -> ServerEvent:
        event = ServerEvent({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1
        return event


def _usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
