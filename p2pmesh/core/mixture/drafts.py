"""What one model answered, as far as answers are compared: what it says or calls, and how sure it was.

Two drafts *agree* when they call the same functions with equal arguments, or say the same words: letter case, marks and
spaces do not count, every word does, since one more may turn the meaning round. How sure a model was is the geometric
mean of the probabilities that it gave its own tokens.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from p2pmesh.core.json_schema.checking import nests_beyond
from p2pmesh.core.reasoning import ReasoningSplitter
from p2pmesh.core.tool_calls.formats import find_format
from p2pmesh.core.tool_calls.reading import CallReader, Step
from p2pmesh.core.tool_calls.tools import decode_tools
from p2pmesh.wire.generation import GenerationDelta, GenerationEvent, GenerationFinished, GenerationStarted, ToolUse

MAX_ARGUMENTS_DEPTH = 128
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Call:
    """A function and the text of its arguments."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer. ``is_whole``: its model ended it, or the client's own limit did; ``confidence_milli`` of 1000."""

    text: str
    calls: tuple[Call, ...] = ()
    confidence_milli: int = 0
    is_whole: bool = True

    @property
    def is_usable(self) -> bool:
        """Whether it can be given to a client as it is."""
        return self.is_whole and (
            all(read_arguments(call.arguments) is not None for call in self.calls)
            if self.calls
            else bool(self.text.strip())
        )

    @property
    def called(self) -> tuple[str, ...]:
        """The functions that it calls, none where it talks."""
        return tuple(call.name for call in self.calls)

    @property
    def meaning(self) -> str:
        """Equal where two drafts agree."""
        if self.calls:
            calls = [[call.name, read_arguments(call.arguments)] for call in self.calls]
            return "calls " + json.dumps(calls, sort_keys=True)
        words = " ".join(_WORDS.findall(self.text.casefold()))
        return "says " + (words or self.text.strip())

    def shown(self) -> str:
        """For whoever makes one answer of several."""
        calls = (f"(calls {call.name} with {call.arguments})" for call in self.calls)
        return "\n".join(part for part in (self.text.strip(), *calls) if part)


def read_draft(events: Iterable[GenerationEvent], tools: ToolUse | None, *, is_own_limit: bool) -> Draft:
    """The draft that the events of a generation make, also of one that was broken off.

    ``is_own_limit``: an answer that ends at its limit ends at the one that the client set.
    """
    splitter, reader, content = ReasoningSplitter(), None, ""
    steps: list[Step] = []
    logprobs: list[float] = []
    is_whole = False
    for event in events:
        match event:
            case GenerationStarted():
                splitter = ReasoningSplitter(is_inside=event.is_reasoning)
                reader = None if tools is None else _reader(event, tools)
            case GenerationDelta():
                content = splitter.add(event.text).content
                logprobs += [one.logprob for one in event.logprobs]
            case GenerationFinished():
                content = splitter.add(event.text).content + splitter.finish().content
                is_whole = is_own_limit or event.reason.value == "stop"
        steps.append(Step(content) if reader is None else reader.add(content))
        content = ""
    if reader is not None:
        steps.append(reader.finish())
    text = "".join(step.content for step in steps)
    return Draft(text, _calls_of(steps), _confidence_milli(logprobs), is_whole)


def _reader(started: GenerationStarted, tools: ToolUse) -> CallReader:
    names = [tools.only] if tools.only else [tool.name for tool in decode_tools(tools)]
    return CallReader(find_format(started.call_format), names)


def _calls_of(steps: Iterable[Step]) -> tuple[Call, ...]:
    names: list[str] = []
    arguments: list[str] = []
    for part in (part for step in steps for part in step.calls):
        if part.name:
            names.append(part.name)
            arguments.append("")
        arguments[part.index] += part.arguments
    return tuple(Call(name, text) for name, text in zip(names, arguments, strict=True))


def _confidence_milli(logprobs: list[float]) -> int:
    if not logprobs:
        return 0
    return round(1000 * math.exp(min(0.0, max(-100.0, math.fsum(logprobs) / len(logprobs)))))


def read_arguments(text: str) -> dict[str, object] | None:
    """Arguments of a call as a client reads them; None where they are no JSON object.

    NaN and infinity, which only Python takes for JSON, are none, nor is what nests so deep that others give up on it.
    """
    try:
        found = STRICT_JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not nests_beyond(found, MAX_ARGUMENTS_DEPTH) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:32]} is beyond the range of a double")
    return number


STRICT_JSON = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
"""Raises ``ValueError`` for what is no JSON, ``RecursionError`` for what nests too deep to be read."""
