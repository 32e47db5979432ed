"""Tools as ``/v1/responses`` and Anthropic's clients write them -> as chats do, which is the shape that is read.

Only shapes are changed here; what a tool may be, and what stands in the way, is ``tools``'. Names in refusals are put
back into the shape that the client wrote.
"""

from collections.abc import Callable
from typing import Any

from p2pmesh.api.errors import RequestError, invalid_parameter
from p2pmesh.api.openai.fields import Fields, as_fields
from p2pmesh.api.openai.tools import read_tools
from p2pmesh.base.limits import MAX_TOOLS
from p2pmesh.wire.generation import ToolUse

_FLAT_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_flat_tools(fields: Fields) -> ToolUse | None:
    """Of ``/v1/responses``: a function's fields stand beside its type, and so does the name in a choice."""
    choice = fields.values.get("tool_choice")
    if isinstance(choice, dict):
        choice = _nested(choice)
    wanted = {"tool_choice": choice, "parallel_tool_calls": fields.values.get("parallel_tool_calls")}
    return _read_translated(fields, wanted, _nested, lambda name: name.replace(".function", ""))


def read_anthropic_tools(fields: Fields) -> ToolUse | None:
    """Of Anthropic's clients: ``input_schema`` for ``parameters``, choices under other names."""
    wanted: dict[str, Any] = {}
    choice = fields.object("tool_choice")
    if choice is not None:
        kind = choice.required_text("type", 64)
        if kind == "tool":
            wanted["tool_choice"] = {"type": "function", "function": {"name": choice.values.get("name")}}
        elif kind in _FLAT_CHOICES:
            wanted["tool_choice"] = _FLAT_CHOICES[kind]
        else:
            raise invalid_parameter("tool_choice.type", "tool_choice.type must be auto, any, tool or none")
        wanted["parallel_tool_calls"] = not choice.boolean("disable_parallel_tool_use")
    return _read_translated(fields, wanted, _of_anthropic, _anthropic_name)


def _anthropic_name(name: str) -> str:
    return name.replace(".function.parameters", ".input_schema").replace(".function", "")


def _read_translated(
    fields: Fields,
    wanted: dict[str, Any],
    translate: Callable[[dict[str, Any]], dict[str, Any]],
    renamed: Callable[[str], str],
) -> ToolUse | None:
    if fields.values.get("tools"):
        items = fields.array("tools", MAX_TOOLS)
        tools = [translate(dict(as_fields(item, f"tools[{index}]").values)) for index, item in enumerate(items)]
        wanted = {**wanted, "tools": tools}
    else:
        wanted = {**wanted, "tools": fields.values.get("tools")}
    try:
        return read_tools(Fields(wanted))
    except RequestError as error:
        param = None if error.param is None else renamed(error.param)
        raise RequestError(error.code, renamed(error.message), param) from None


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    if flat.get("type") != "function":
        return flat
    return {"type": "function", "function": {name: value for name, value in flat.items() if name != "type"}}


def _of_anthropic(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", "input_schema", "cache_control")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}
