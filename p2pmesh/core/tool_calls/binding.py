"""What holds an answer to its tools, to a schema, or to both: the grammar that a driver sends to the last stage.

A tool whose schema cannot be translated may be called with any object: only ``strict`` ones promise more, and where
that cannot be kept (``find_unkept``) the API refuses them.
"""

from collections.abc import Collection, Sequence

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_GRAMMAR_BYTES, MAX_TOOL_CALLS
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.grammar.notation import prefix_rules
from p2pmesh.core.json_schema.rules import RuleBook, either, literal
from p2pmesh.core.json_schema.translate import Unsupported, add_schema
from p2pmesh.core.reasoning import CLOSING
from p2pmesh.core.tool_calls.formats import CallFormat
from p2pmesh.core.tool_calls.tools import Tool, decode_tools
from p2pmesh.wire.generation import Grammar, ToolChoice, ToolUse

_ANSWER = "answer-"
_CALLS = "calls-"
_WRITTEN_BYTES = 192
"""Of a tool's name and what stands around it, in any format: what else a grammar of calls is made of."""


def bind_answer(grammar: str, use: ToolUse | None, form: CallFormat, *, is_reasoning: bool) -> Grammar | None:
    """The grammar of an answer; None for any text.

    ``grammar`` is what an answer without calls must be, empty for any text. ``is_reasoning``: the answer begins inside
    a block of reasoning, and nothing holds before its end.
    """
    calls = "" if use is None else _calls_grammar(decode_tools(use), use, form)
    must_call = use is not None and use.choice is ToolChoice.REQUIRED
    if not grammar and not calls:
        return None
    if calls and not grammar and not must_call:  # text, or calls: what comes first decides
        return _checked(calls, (form.trigger,), is_at_start=form.is_at_start and not is_reasoning)
    if calls and grammar and not must_call:
        both = f"root ::= {_CALLS}root | {_ANSWER}root\n"
        text = both + prefix_rules(calls, _CALLS) + prefix_rules(grammar, _ANSWER)
    else:
        text = calls if must_call else grammar
    if not is_reasoning:
        return _checked(text)
    return _checked(f'root ::= "{CLOSING}" [ \\n]{{0,4}} {_ANSWER}root\n' + prefix_rules(text, _ANSWER), (CLOSING,))


def find_unkept(tools: Sequence[Tool], strict: Collection[str]) -> tuple[str, str] | None:
    """Why arguments cannot be held to the schemas of the tools with ``strict`` names; None where they can.

    The name of the tool that stands in the way, empty where it is all of them together, and the problem.
    """
    book = RuleBook()
    promised: list[str] = []
    for tool in tools:
        found = _arguments(book, tool)
        if tool.name in strict:
            if isinstance(found, Unsupported):
                return tool.name, found.describe()
            promised.append(found)
    text = book.text(" ".join(promised))
    if len(text.encode()) + _WRITTEN_BYTES * len(tools) > MAX_GRAMMAR_BYTES:
        return "", f"with strict ones among them their schemas may make {MAX_GRAMMAR_BYTES} bytes of grammar; use fewer"
    try:
        compile_grammar(text)
    except RemoteProtocolError as error:  # more nodes than a grammar may have, or nothing that satisfies it
        return (next(iter(strict)) if len(strict) == 1 else ""), error.message
    return None


def _checked(text: str, triggers: tuple[str, ...] = (), *, is_at_start: bool = False) -> Grammar:
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        problem = f"the schemas of tools and answer make a grammar of more than {MAX_GRAMMAR_BYTES} bytes; use fewer"
        raise RemoteProtocolError(ErrorCode.GRAMMAR_INVALID, problem)
    return Grammar(text, triggers, is_at_start)


def _calls_grammar(tools: tuple[Tool, ...], use: ToolUse, form: CallFormat) -> str:
    """Calls of the tools and nothing else."""
    chosen = [tool for tool in tools if use.only in ("", tool.name)]
    text = _written(chosen, use, form, with_schemas=True)
    return text if len(text.encode()) <= MAX_GRAMMAR_BYTES else _written(chosen, use, form, with_schemas=False)


def _written(tools: list[Tool], use: ToolUse, form: CallFormat, *, with_schemas: bool) -> str:
    book = RuleBook()
    ways = [f"{literal(tool.name + form.middle)} {_held(book, tool) if with_schemas else 'object'}" for tool in tools]
    call = book.add("call", f"{literal(form.head)} {either(ways)} {literal(form.tail)}")
    more = MAX_TOOL_CALLS - 1 if use.may_repeat and form.may_repeat and not use.only else 0
    return book.text(
        f"{literal(form.opening)} {call} ({literal(form.separator)} {call}){{0,{more}}} {literal(form.closing)}"
    )


def _held(book: RuleBook, tool: Tool) -> str:
    """What may be passed to a tool; any object where its schema promises nothing."""
    found = _arguments(book, tool)
    return "object" if isinstance(found, Unsupported) else found


def _arguments(book: RuleBook, tool: Tool) -> str | Unsupported:
    """What satisfies a tool's schema, always an object."""
    if tool.parameters is None:
        return literal("{}")
    schema = tool.parameters if "type" in tool.parameters else {**tool.parameters, "type": "object"}
    if schema["type"] != "object":
        return Unsupported("/type", "a type of arguments that is not just object")
    return add_schema(book, schema)
