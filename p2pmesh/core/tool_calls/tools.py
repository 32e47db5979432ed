"""The functions that a request offers, as a driver finds them: JSON text of OpenAI's shape -> ``Tool``."""

import json
import re
from dataclasses import dataclass
from typing import Any

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_TOOL_NAME_BYTES, MAX_TOOLS
from p2pmesh.wire.generation import ToolUse

TOOL_NAME = re.compile(f"[a-zA-Z0-9_-]{{1,{MAX_TOOL_NAME_BYTES}}}")


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. ``parameters`` is a JSON Schema; None: any object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None

    def shown(self) -> dict[str, Any]:
        """OpenAI's shape, as templates expect it."""
        parameters = {"type": "object", "properties": {}} if self.parameters is None else self.parameters
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def encode_tools(tools: tuple[Tool, ...]) -> str:
    """The JSON text of a request."""
    return json.dumps([tool.shown() for tool in tools], ensure_ascii=False)


def decode_tools(use: ToolUse) -> tuple[Tool, ...]:
    """The tools of a request, checked; ``RemoteProtocolError(REQUEST_INVALID)`` for anything else."""
    try:
        entries = json.loads(use.tools)
    except (ValueError, RecursionError):
        raise _wrong("the tools are no JSON") from None
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_TOOLS:
        raise _wrong(f"the tools are no list of 1 to {MAX_TOOLS}")
    tools = tuple(_tool(entry) for entry in entries)
    names = {tool.name for tool in tools}
    if len(names) != len(tools) or (use.only and use.only not in names):
        raise _wrong("a tool's name stands twice, or the one to be called is not among them")
    return tools


def _tool(entry: Any) -> Tool:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict):
        raise _wrong("a tool is no function")
    name, description, parameters = (function.get(key) for key in ("name", "description", "parameters"))
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _wrong("a tool's name is not 1 to 64 letters, digits, '_' and '-'")
    if not isinstance(description, str | None) or not isinstance(parameters, dict | None):
        raise _wrong(f"the tool {name} has a description or parameters of another type")
    return Tool(name, description or "", parameters)


def _wrong(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.REQUEST_INVALID, text)
