"""What holds an answer to its tools, to a schema, or to both: the grammar that a driver sends to the last stage.

A tool whose schema cannot be translated may be called with any object: only ``strict`` ones promise more, and those are
refused at the API.
"""

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_GRAMMAR_BYTES, MAX_TOOL_CALLS
from p2pmesh.core.grammar.notation import prefix_rules
from p2pmesh.core.json_schema.rules import RuleBook, either, literal
from p2pmesh.core.json_schema.translate import Unsupported, add_schema
from p2pmesh.core.reasoning import CLOSING
from p2pmesh.core.tool_calls.formats import CallFormat
from p2pmesh.core.tool_calls.tools import Tool, decode_tools
from p2pmesh.wire.generation import Grammar, ToolChoice, ToolUse

_ANSWER = "answer-"
_CALLS = "calls-"


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
    ways = [
        f"{literal(tool.name + form.middle)} {_arguments(book, tool) if with_schemas else 'object'}" for tool in tools
    ]
    call = book.add("call", f"{literal(form.head)} {either(ways)} {literal(form.tail)}")
    more = MAX_TOOL_CALLS - 1 if use.may_repeat and form.may_repeat and not use.only else 0
    return book.text(
        f"{literal(form.opening)} {call} ({literal(form.separator)} {call}){{0,{more}}} {literal(form.closing)}"
    )


def _arguments(book: RuleBook, tool: Tool) -> str:
    """What may be passed, always an object."""
    if tool.parameters is None:
        return literal("{}")
    schema = tool.parameters if "type" in tool.parameters else {**tool.parameters, "type": "object"}
    if schema["type"] != "object":
        return "object"
    found = add_schema(book, schema)
    return "object" if isinstance(found, Unsupported) else found
