"""Conversations with tools as templates take them: in OpenAI's shape, or spelled out for those that know no tools."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from p2pmesh.core.tool_calls.formats import MISTRAL, MISTRAL_ARGS, CallFormat
from p2pmesh.wire.generation import ChatMessage, ToolCall

Shown = dict[str, Any]
_MISTRAL_ID_CHARACTERS = 9
"""Its templates refuse ids of any other length."""


def show_natively(messages: Sequence[ChatMessage], form: CallFormat) -> list[Shown]:
    """For a template that knows tools. Arguments are objects, which is what nearly all of them write out."""
    names = {call.id: call.name for message in messages for call in message.calls}
    return [_native(message, names, form) for message in messages]


def show_plainly(messages: Sequence[ChatMessage], tools: Sequence[Shown], form: CallFormat) -> list[Shown]:
    """For a template that knows none: tools in the first message, calls and their answers as text.

    Messages of one role and name that follow one another are joined: many templates insist that roles take turns.
    """
    shown = [_plain(message, form) for message in messages]
    if tools:
        lesson = _teach(tools, form)
        if shown and shown[0]["role"] == "system":
            shown[0]["content"] = f"{shown[0]['content']}\n\n{lesson}".strip()
        else:
            shown.insert(0, {"role": "system", "content": lesson})
    joined: list[Shown] = []
    for message in shown:
        if joined and _author(joined[-1]) == _author(message) and message["role"] != "system":
            joined[-1]["content"] += f"\n{message['content']}"
        else:
            joined.append(message)
    return joined


def without_system(shown: Sequence[Shown]) -> list[Shown]:
    """The same for a template that refuses the role: what it says stands before the first message of the user."""
    if len(shown) < 2 or shown[0]["role"] != "system" or shown[1]["role"] != "user":
        return list(shown)
    first = {**shown[1], "content": f"{shown[0]['content']}\n\n{shown[1]['content']}"}
    return [first, *shown[2:]]


def _author(shown: Shown) -> tuple[str, str]:
    return shown["role"], shown.get("name", "")


def _named(message: ChatMessage) -> Shown:
    """Templates ask whether there is a name, so that none must be no empty one."""
    return {"name": message.name} if message.name else {}


def _native(message: ChatMessage, names: dict[str, str], form: CallFormat) -> Shown:
    shown: Shown = {"role": message.role, "content": message.content, **_named(message)}
    if message.calls:
        shown["tool_calls"] = [
            {
                "id": _id(call.id, form),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        name = names.get(message.answers, message.name)
        shown |= {"tool_call_id": _id(message.answers, form), "name": name}
    return shown


def _id(call_id: str, form: CallFormat) -> str:
    if form not in (MISTRAL, MISTRAL_ARGS):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_MISTRAL_ID_CHARACTERS]


def _arguments(call: ToolCall) -> Any:
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return found if isinstance(found, dict) else call.arguments


def _plain(message: ChatMessage, form: CallFormat) -> Shown:
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
    if message.calls:
        text = f"{message.content}\n{form.write(message.calls)}".strip()
        return {"role": message.role, "content": text, **_named(message)}
    return {"role": message.role, "content": message.content, **_named(message)}


def _teach(tools: Sequence[Shown], form: CallFormat) -> str:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.write([ToolCall("", "NAME", "ARGUMENTS")])
    return (
        f"These functions can be called, one a line, each with a JSON Schema of its arguments:\n{lines}\n\n"
        f"To call one, write exactly this, with its name and a JSON object of arguments:\n{example}\n"
        "What it returns follows in the next message, between <tool_response> and </tool_response>. "
        "Where no function helps, answer in plain words."
    )
