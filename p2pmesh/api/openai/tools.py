"""Tools of chats: what a request offers and says of earlier calls, read; calls of an answer, shown.

How models write calls, and what holds them to it, is ``core.tool_calls``'.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from p2pmesh.api.errors import invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, as_fields, check_text, wrong_type
from p2pmesh.api.openai.parameters import check_names
from p2pmesh.base.limits import MAX_TEXT_BYTES, MAX_TOOL_NAME_BYTES, MAX_TOOLS, MAX_TOOLS_BYTES
from p2pmesh.core.tool_calls.binding import find_unkept
from p2pmesh.core.tool_calls.formats import find_format
from p2pmesh.core.tool_calls.reading import CallPart, CallReader
from p2pmesh.core.tool_calls.tools import TOOL_NAME, Tool, decode_tools, encode_tools
from p2pmesh.wire.generation import GenerationRequest, GenerationStarted, ToolCall, ToolChoice, ToolUse

TOOL_PARAMETERS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
FINISHED_BY_CALLS = "tool_calls"
_CHOICES = ("none", "auto", "required")
_NO_NAMES: Mapping[str, Any] = MappingProxyType({})


def read_tools(fields: Fields) -> ToolUse | None:
    """What of its tools an answer may or must call; None where it calls none."""
    tools = _read_list(fields)
    choice, only = _read_choice(fields, {tool.name for tool in tools})
    may_repeat = fields.values.get("parallel_tool_calls") is None or fields.boolean("parallel_tool_calls")
    if not tools or choice == "none":
        return None
    text = encode_tools(tools)
    if len(text.encode()) > MAX_TOOLS_BYTES:
        raise invalid_parameter("tools", f"tools may hold {MAX_TOOLS_BYTES} bytes together")
    return ToolUse(text, ToolChoice(choice), only, may_repeat)


def read_tool_name(holder: Fields) -> str:
    """The name of a function: of those that are offered, and of those that were called."""
    param = holder.param("name")
    name = holder.required_text("name", 1024)
    if not TOOL_NAME.fullmatch(name):
        raise invalid_parameter(param, f"{param} must be 1 to {MAX_TOOL_NAME_BYTES} letters, digits, '_' and '-'")
    return name


def read_calls(message: Fields) -> tuple[ToolCall, ...]:
    """The calls that an assistant's message made."""
    if not message.values.get("tool_calls"):
        return ()
    items = message.array("tool_calls", MAX_TOOLS)
    param = message.param("tool_calls")
    return tuple(_read_call(as_fields(item, f"{param}[{index}]")) for index, item in enumerate(items))


def read_answered(message: Fields) -> str:
    """Which call a tool's message answers."""
    return message.required_text("tool_call_id", MAX_TOOL_NAME_BYTES)


def reader_of(request: GenerationRequest, started: GenerationStarted) -> CallReader | None:
    """What reads the calls of an answer; None where none can be."""
    if request.tools is None:
        return None
    names = [tool.name for tool in decode_tools(request.tools)]
    offered = [request.tools.only] if request.tools.only else names
    must_call = request.tools.choice is ToolChoice.REQUIRED
    return CallReader(find_format(started.call_format), offered, must_call=must_call)


def show_calls(parts: Iterable[CallPart], answer_id: str) -> list[dict[str, Any]]:
    """Whole calls, as a message has them."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.name:
            calls.append(_opened(part, answer_id))
        calls[part.index]["function"]["arguments"] += part.arguments
    return calls


def show_delta(part: CallPart, answer_id: str) -> dict[str, Any]:
    """Part of a call, as a delta has it: id and name once, then pieces of arguments."""
    opened = _opened(part, answer_id) if part.name else {"function": {}}
    return {"index": part.index, **opened, "function": {**opened["function"], "arguments": part.arguments}}


def _opened(part: CallPart, answer_id: str) -> dict[str, Any]:
    return {
        "id": f"call_{answer_id}_{part.index}",
        "type": "function",
        "function": {"name": part.name, "arguments": ""},
    }


def _read_list(fields: Fields) -> tuple[Tool, ...]:
    if not fields.values.get("tools"):
        return () if fields.values.get("tools") in (None, []) else _refuse_list(fields)
    items = fields.array("tools", MAX_TOOLS)
    tools = tuple(_read_tool(as_fields(item, f"tools[{index}]")) for index, item in enumerate(items))
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            param = f"tools[{index}].function.name"
            raise invalid_parameter(param, f"{param}: {tool.name} is the name of an earlier tool")
        names.add(tool.name)
    _check_promises(tools, [Fields(item["function"]) for item in items])
    return tools


def _check_promises(tools: tuple[Tool, ...], functions: Sequence[Fields]) -> None:
    """What is ``strict`` can be kept to, beside all the other tools."""
    strict = {tool.name for tool, function in zip(tools, functions, strict=True) if function.boolean("strict")}
    unkept = find_unkept(tools, strict) if strict else None
    if unkept is None:
        return
    name, problem = unkept
    at = next((index for index, tool in enumerate(tools) if tool.name == name), None)
    param = "tools" if at is None else f"tools[{at}].function.parameters"
    raise unsupported_parameter(param, f"{param}: {problem}")


def _refuse_list(fields: Fields) -> tuple[Tool, ...]:
    raise wrong_type(fields.values["tools"], "tools", "an array")


def _read_tool(entry: Fields) -> Tool:
    kind = entry.required_text("type", 64)
    if kind != "function":
        raise unsupported_parameter(entry.param("type"), f"{entry.param('type')} is supported only as 'function'")
    check_names(entry, frozenset({"type", "function"}), _NO_NAMES)
    function = entry.object("function")
    if function is None:
        raise invalid_parameter(entry.param("function"), f"{entry.param('function')} is required")
    check_names(function, frozenset({"name", "description", "parameters", "strict"}), _NO_NAMES)
    name = read_tool_name(function)
    description = function.values.get("description")
    function.boolean("strict")
    parameters = function.object("parameters")
    if parameters is not None:
        _check_text_within(parameters)
    text = "" if description is None else check_text(
        description, function.param("description"), MAX_TEXT_BYTES, may_be_empty=True
    )  # fmt: skip
    return Tool(name, text, None if parameters is None else dict(parameters.values))


def _check_text_within(parameters: Fields) -> None:
    """Text that has no UTF-8 form could not be shown to a model, wherever in a schema it stands."""
    try:
        encode_tools((Tool("x", "", dict(parameters.values)),)).encode()
    except UnicodeEncodeError:
        text = f"{parameters.path} holds half of a surrogate pair, which is no character"
        raise invalid_parameter(parameters.path, text) from None


def _read_choice(fields: Fields, names: set[str]) -> tuple[str, str]:
    """A choice, and the name of the function that must be called, or empty."""
    choice = fields.values.get("tool_choice")
    if choice is None:
        return "auto", ""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise invalid_parameter("tool_choice", "tool_choice must be 'none', 'auto', 'required' or name a function")
        if choice == "required" and not names:
            raise invalid_parameter("tool_choice", "tool_choice 'required' needs tools")
        return choice, ""
    named = as_fields(choice, "tool_choice")
    if named.required_text("type", 64) != "function":
        raise unsupported_parameter("tool_choice.type", "tool_choice.type is supported only as 'function'")
    check_names(named, frozenset({"type", "function"}), _NO_NAMES)
    function = named.object("function")
    name = "" if function is None else function.required_text("name", 1024)
    if name not in names:
        raise invalid_parameter("tool_choice.function", "tool_choice names a function that is not among tools")
    return "required", name


def _read_call(call: Fields) -> ToolCall:
    if call.required_text("type", 64) != "function":
        raise unsupported_parameter(call.param("type"), f"{call.param('type')} is supported only as 'function'")
    check_names(call, frozenset({"id", "type", "function", "index"}), _NO_NAMES)
    function = call.object("function")
    if function is None:
        raise invalid_parameter(call.param("function"), f"{call.param('function')} is required")
    check_names(function, frozenset({"name", "arguments"}), _NO_NAMES)
    arguments = check_text(
        function.values.get("arguments"), function.param("arguments"), MAX_TEXT_BYTES, may_be_empty=True
    )
    return ToolCall(call.required_text("id", MAX_TOOL_NAME_BYTES), read_tool_name(function), arguments)
