"""Calls that a model wrote in another way than its own: found in the text of an answer, or not at all.

What counts is the end of the answer: nothing may follow the calls. Each must name a tool that was offered and pass what
satisfies its schema, so that an example in prose hardly ever becomes a call. Ways of writing are those of
``core.tool_calls.formats``, a JSON object or a list of them, bare or in a fence, and lines ``TOOL_CALL {…}``, which are
Mesh LLM's.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from p2pmesh.base.limits import MAX_TOOL_CALLS
from p2pmesh.core.json_schema.checking import find_mismatch, nests_beyond
from p2pmesh.core.mixture.drafts import MAX_ARGUMENTS_DEPTH, STRICT_JSON, Call, read_arguments
from p2pmesh.core.tool_calls.formats import MARKERS
from p2pmesh.core.tool_calls.tools import Tool

TOOL_LINE = "TOOL_CALL"
_FENCE = "```"
_OPENINGS = (*sorted(MARKERS - {"</tool_call>", "<|/tool_call|>", "[ARGS]"}), TOOL_LINE, _FENCE, "{", "[")
_BEGINNING = re.compile(r"^[ \t]*(?:" + "|".join(re.escape(opening) for opening in _OPENINGS) + ")", re.MULTILINE)
_NOISE = re.compile(r"(?:</?tool_call>|<\|/?tool_call\|>|\[/?TOOL_CALLS\]|</function>|TOOL_CALL:?|[,\s])*")
_FENCE_LINE = re.compile(r"```[a-zA-Z_]{0,16}[ \t]*\n?")
_FUNCTION = re.compile(r"<function=([a-zA-Z0-9_-]{1,64})>\s*")
_NAMED = re.compile(r"([a-zA-Z0-9_-]{1,64})\[ARGS\]\s*")
_NAME_KEYS = ("name", "function", "tool")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_CALL_KEYS = (*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type")
_FIRST_KEY = re.compile(r'\{\s*(?:"([^"\\]*)("?)|$)')
MAX_BEGINNINGS = 64
"""Lines that may begin with a call that are looked at, from the front."""


@dataclass(frozen=True, slots=True)
class Rescued:
    """What is said before the calls, and the calls."""

    said: str
    calls: tuple[Call, ...]


def rescue_calls(text: str, tools: Sequence[Tool], *, most_bytes: int, may_repeat: bool = True) -> Rescued | None:
    """The calls that an answer ends with; None where it ends with anything else."""
    if len(text.encode("utf-8", "replace")) > most_bytes:
        return None
    known = {tool.name: tool for tool in tools}
    for found in islice(_BEGINNING.finditer(text), MAX_BEGINNINGS):
        if _ends_fence(text, found):
            continue
        if may_become_calls(text[found.start() :]):  # the first that may decides: no call stands behind a broken one
            calls = _read_all(text, found.start(), known)
            is_allowed = calls and (may_repeat or len(calls) == 1)
            return Rescued(text[: found.start()].rstrip(), calls) if is_allowed else None
    return None


def _ends_fence(text: str, found: re.Match[str]) -> bool:
    return found.group().endswith(_FENCE) and text.count(_FENCE, 0, found.start()) % 2 == 1


def may_become_calls(text: str) -> bool:
    """Whether an answer that begins like this may turn out to be calls, in whatever way they are written."""
    begun = text.lstrip()
    if not begun:
        return True
    fence = _FENCE_LINE.match(begun)
    if fence is not None and (begun[: fence.end()].endswith("\n") or fence.end() < len(begun)):
        begun = begun[fence.end() :].lstrip()
        return not begun or _may_be_object(begun)
    return _may_be_object(begun) or any(
        begun.startswith(opening) or opening.startswith(begun) for opening in _OPENINGS if opening not in ("{", "[")
    )


def _may_be_object(begun: str) -> bool:
    """Whether text may go on as the object of a call, or a list of them: its first key says so."""
    inner = begun[1:].lstrip() if begun.startswith("[") else begun
    if not inner:
        return True
    key = _FIRST_KEY.match(inner)
    if key is None:
        return False
    name, is_closed = key.group(1) or "", bool(key.group(2))
    return any(known == name if is_closed else known.startswith(name) for known in _CALL_KEYS)


def _read_all(text: str, at: int, known: dict[str, Tool]) -> tuple[Call, ...]:
    """Calls from there to the end, none where anything else stands between or behind them."""
    calls: list[Call] = []
    while True:
        at = _skip(text, at)
        if at >= len(text):
            return tuple(calls)
        found = _read_one(text, at)
        if found is None:
            return ()
        at, values = found
        for name, arguments in values:
            call = _call_of(name, arguments, known)
            if call is None or len(calls) >= MAX_TOOL_CALLS:
                return ()
            calls.append(call)


def _skip(text: str, at: int) -> int:
    """Past what stands round calls and says nothing."""
    while True:
        begun = at
        at = _match_end(_NOISE, text, at)
        at = _match_end(_FENCE_LINE, text, at)
        if at == begun:
            return at


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _read_one(text: str, at: int) -> tuple[int, list[tuple[Any, Any]]] | None:
    named = _FUNCTION.match(text, at) or _NAMED.match(text, at)
    begin = at if named is None else named.end()
    try:
        value, end = STRICT_JSON.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    if named is not None:
        return end, [(named.group(1), value)]
    return end, [_pair(one) for one in (value if isinstance(value, list) else [value])]


def _pair(value: Any) -> tuple[Any, Any]:
    """Name and arguments of a call's object; OpenAI's shape among them."""
    if not isinstance(value, dict):
        return None, None
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    elif set(value) - set(_CALL_KEYS):
        return None, None
    return _first(value, _NAME_KEYS), _first(value, _ARGUMENT_KEYS)


def _first(value: dict[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _call_of(name: Any, arguments: Any, known: dict[str, Tool]) -> Call | None:
    tool = known.get(name) if isinstance(name, str) else None
    if tool is None:
        return None
    if isinstance(arguments, str):  # as OpenAI's shape has it
        arguments = read_arguments(arguments)
    if not isinstance(arguments, dict) or nests_beyond(arguments, MAX_ARGUMENTS_DEPTH):
        return None
    if find_mismatch(arguments, tool.parameters or {}) is not None:
        return None
    return Call(tool.name, json.dumps(arguments, ensure_ascii=False))
