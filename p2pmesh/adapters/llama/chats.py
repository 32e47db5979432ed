"""Conversations on their way into a child, and what a chat template is given of them."""

from typing import Any

from p2pmesh.core.tool_calls.conversation import Shown, show_natively, show_plainly
from p2pmesh.core.tool_calls.formats import PLAIN, CallFormat
from p2pmesh.core.tool_calls.tools import decode_tools
from p2pmesh.wire.generation import ChatMessage, ToolCall, ToolUse


def message_fields(message: ChatMessage) -> dict[str, Any]:
    """A message for the socket pair."""
    calls = [[call.id, call.name, call.arguments] for call in message.calls]
    facts = {"calls": calls, "answers": message.answers, "name": message.name}
    return {"role": message.role, "content": message.content, **facts}


def read_messages(fields: list[dict[str, Any]]) -> list[ChatMessage]:
    """What ``message_fields`` wrote."""
    return [
        ChatMessage(
            one["role"],
            one["content"],
            tuple(ToolCall(*call) for call in one["calls"]),
            one["answers"],
            one["name"],
        )
        for one in fields
    ]


def show_conversation(
    messages: list[ChatMessage], tools: str, form: CallFormat
) -> tuple[list[Shown], list[Shown] | None]:
    """Messages as a template takes them, and the tools that are handed to it: none to one that knows none."""
    shown = [tool.shown() for tool in decode_tools(ToolUse(tools))] if tools else []
    has_tools = bool(shown) or any(message.calls or message.role == "tool" for message in messages)
    if has_tools and form is PLAIN:
        return show_plainly(messages, shown, form), None
    return show_natively(messages, form), shown or None
