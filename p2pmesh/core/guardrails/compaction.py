"""Which messages of a conversation go when it nearly fills the context: the oldest, in whole exchanges.

What never goes: instructions, wherever they stand, the last message of the user, and what is newest behind it. A call
and its results go together or stay together, and so does a message of the user with all that answers it: roles go on
taking turns. Tools are no messages, and stay. How many tokens a conversation has is for its model's tokenizer to say.
"""

from collections.abc import Sequence

from p2pmesh.core.guardrails.policy import GuardrailPolicy
from p2pmesh.core.mixture.asking import INSTRUCTING
from p2pmesh.wire.generation import ChatMessage, Prompt, ToolUse

_MESSAGE_BYTES = 64
"""Around a message, in any template; as bytes they are more than its marks have tokens."""
_TEMPLATE_BYTES = 1024
"""Of what a template says by itself."""


def removable_parts(messages: Sequence[ChatMessage]) -> tuple[tuple[int, ...], ...]:
    """The places of messages that may go, part by part, the oldest first."""
    turns = [index for index, message in enumerate(messages) if message.role not in INSTRUCTING]
    last_asked = max((index for index in turns if messages[index].role == "user"), default=None)
    parts: list[list[int]] = []
    for index in turns:
        if index == last_asked:
            continue
        begins = not parts or _begins(messages, index, last_asked)
        if begins or (last_asked is not None and parts[-1][-1] < last_asked < index):
            parts.append([index])
        else:
            parts[-1].append(index)
    if parts and turns[-1] == parts[-1][-1]:
        parts.pop()  # the newest is what the answer goes on from
    return tuple(tuple(part) for part in parts)


def _begins(messages: Sequence[ChatMessage], index: int, last_asked: int | None) -> bool:
    """Before the last question an exchange begins with a user, behind it with anybody but a tool."""
    if last_asked is not None and index > last_asked:
        return messages[index].role != "tool"
    return messages[index].role == "user"


def without_parts(messages: Sequence[ChatMessage], parts: Sequence[Sequence[int]]) -> tuple[ChatMessage, ...]:
    """The messages that are left."""
    gone = {index for part in parts for index in part}
    return tuple(message for index, message in enumerate(messages) if index not in gone)


def may_fill(prompt: Prompt, tools: ToolUse | None, context_tokens: int, policy: GuardrailPolicy) -> bool:
    """Whether it is worth counting tokens: no text has more of them than bytes."""
    if prompt.messages is None:
        return False
    size = _TEMPLATE_BYTES + sum(_size(message) + _MESSAGE_BYTES for message in prompt.messages)
    size += 0 if tools is None else len(tools.tools.encode("utf-8", "replace"))
    return 100 * size >= policy.compact_from_percent * context_tokens


def is_full(prompt_tokens: int, context_tokens: int, policy: GuardrailPolicy) -> bool:
    """Whether messages must go."""
    return 100 * prompt_tokens >= policy.compact_from_percent * context_tokens


def fits(prompt_tokens: int, context_tokens: int, policy: GuardrailPolicy) -> bool:
    """Whether enough have gone."""
    return 100 * prompt_tokens <= policy.compact_to_percent * context_tokens


def _size(message: ChatMessage) -> int:
    texts = [message.content, message.name, *(text for call in message.calls for text in (call.name, call.arguments))]
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
