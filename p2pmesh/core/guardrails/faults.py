"""What is wrong with an answer, and how it is asked for anew.

An answer that its limit cut off is not looked at: another one would be cut off as well.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.guardrails.policy import GuardrailPolicy
from p2pmesh.core.json_schema.checking import find_mismatch
from p2pmesh.core.mixture.drafts import Call, Draft, read_arguments
from p2pmesh.core.tool_calls.formats import MARKERS, CallFormat
from p2pmesh.core.tool_calls.tools import Tool, decode_tools
from p2pmesh.wire.generation import ChatMessage, GenerationRequest, ToolCall, ToolChoice

_MATCHING_WORK = 200_000
"""Of one check: tenths of a second. What takes more is taken as it is."""
_SHOWN_CHARACTERS = 8192
"""Of an answer that is put to its model again."""


class FaultKind(StrEnum):
    """Which retries count."""

    TOOL = "tool"
    STRUCTURE = "structure"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, as a sentence's part for the model."""

    kind: FaultKind
    problem: str


def find_fault(draft: Draft, request: GenerationRequest) -> Fault | None:
    """What is wrong with an answer; None where nothing is found, or it was cut off."""
    if not draft.is_whole:
        return None
    tools = () if request.tools is None else decode_tools(request.tools)
    if draft.calls:
        return _wrong_call(draft.calls, {tool.name: tool for tool in tools})
    if tools and request.tools is not None and request.tools.choice is ToolChoice.REQUIRED:
        return Fault(FaultKind.TOOL, "it calls no function, and it must")
    if tools and _begins_call(draft.text):
        return Fault(FaultKind.TOOL, "it begins a call of a function that cannot be read")
    if request.grammar:
        return _wrong_structure(draft.text, request.grammar)
    return None


def _begins_call(text: str) -> bool:
    """On a line of its own, as models do it; in the midst of one a marker is spoken of."""
    return any(line.lstrip().startswith(tuple(sorted(MARKERS))) for line in text.splitlines())


def retries_of(fault: Fault, policy: GuardrailPolicy) -> int:
    """How often an answer with such a fault is asked for anew."""
    return policy.tool_retries if fault.kind is FaultKind.TOOL else policy.structured_retries


def ask_anew(
    request: GenerationRequest, draft: Draft, fault: Fault, form: CallFormat, request_id: bytes
) -> GenerationRequest:
    """The conversation, the answer as it was written, and what is wrong with it."""
    written = form.write([ToolCall("", call.name, call.arguments) for call in draft.calls]) if draft.calls else ""
    answer = "\n".join(part for part in (draft.text.strip(), written) if part)[:_SHOWN_CHARACTERS]
    how = "Call the function anew, correctly." if fault.kind is FaultKind.TOOL else "Write it anew, and nothing else."
    told = f"Your last answer cannot be used: {fault.problem}. {how}"
    messages = request.prompt.messages or ()
    more = (ChatMessage("assistant", answer or "(nothing)"), ChatMessage("user", told))
    prompt = replace(request.prompt, messages=(*messages, *more))
    return replace(request, request_id=request_id, prompt=prompt)


def _wrong_call(calls: Sequence[Call], tools: dict[str, Tool]) -> Fault | None:
    for call in calls:
        problem = _problem_of(call, tools.get(call.name))
        if problem is not None:
            return Fault(FaultKind.TOOL, f"the call of {call.name}: {problem}")
    return None


def _problem_of(call: Call, tool: Tool | None) -> str | None:
    if tool is None:
        return "there is no such function"
    arguments = read_arguments(call.arguments)
    if arguments is None:
        return "its arguments are no JSON object"
    return find_mismatch(arguments, tool.parameters or {})


def _wrong_structure(text: str, grammar: str) -> Fault | None:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return Fault(FaultKind.STRUCTURE, "it is no JSON")
    try:
        matcher = Matcher(compile_grammar(grammar))
        matcher.grant(_MATCHING_WORK)
        state = matcher.walk(matcher.start, text.strip().encode("utf-8", "replace"))
    except RemoteProtocolError:  # a grammar that takes more work than is granted
        return None
    if state is None or not state.is_complete:
        return Fault(FaultKind.STRUCTURE, "it does not fit the schema that was asked for")
    return None
