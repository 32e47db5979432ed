"""Text of an answer -> what is said and what is called, as it comes.

Total and incremental: what has been given out never changes, and does not depend on how the text was cut. A call is
told once its name is known, its arguments follow piece by piece. What does not keep to the format, or names a function
that was not offered, is text like any other: no such name ever comes out as a call. A call that a limit cuts off before
its name is known is no text either: clients would show its marks to people.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.limits import MAX_TOOL_NAME_BYTES
from p2pmesh.core.tool_calls.formats import CallFormat


@dataclass(frozen=True, slots=True)
class CallPart:
    """Part of call number ``index``: its ``name`` in the first one, more of its ``arguments`` in each."""

    index: int
    arguments: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What more text brings: what is said, and parts of calls."""

    content: str = ""
    calls: tuple[CallPart, ...] = ()


class _Phase(StrEnum):
    """Where the text is."""

    SAYING = "saying"  # a call may begin
    HEAD = "head"  # in the literal before a name
    NAME = "name"
    ARGUMENTS = "arguments"
    TAIL = "tail"  # in the literal after the arguments
    BETWEEN = "between"  # another call, or the end of them
    OVER = "over"  # no call can begin any more: all is said


class CallReader:
    """Reads the calls of one answer to tools with these ``names``; ``must_call``: it is calls and nothing else."""

    def __init__(self, form: CallFormat, names: Collection[str], *, must_call: bool = False) -> None:
        self._form = form
        self._names = frozenset(names)
        self._must_call = must_call
        self._phase = _Phase.SAYING
        self._held = ""
        self._opened = ""
        """What was taken of a call that is not certain yet: it is said if it comes to nothing."""
        self._count = 0
        self._object = _ObjectEnd()
        self._has_said = False
        self._trims = False
        """White space after calls belongs to them."""

    @property
    def call_count(self) -> int:
        """Calls that have begun."""
        return self._count

    def add(self, text: str) -> Step:
        """What more text brings."""
        self._held += text
        return self._read(is_end=False)

    def finish(self, *, is_cut: bool = False) -> Step:
        """What was held back.

        ``is_cut``: the answer ended where it did not want to. Of a call that had begun only the name is told, if it can
        be but one.
        """
        begun = self._begun_names() if is_cut else None
        if begun is None:
            return self._read(is_end=True)
        self._held = self._opened = ""
        self._phase = _Phase.OVER
        if len(begun) != 1:
            return Step()
        self._count += 1
        return Step("", (CallPart(self._count - 1, "", begun[0]),))

    def _begun_names(self) -> list[str] | None:
        """Whose call what is held may be the beginning of; none where it ends the calls, None where it is text."""
        form, held = self._form, self._held
        names = sorted(self._names)
        match self._phase:
            case _Phase.SAYING:
                begun = held.lstrip()
                return names if begun and self._must_call and form.trigger.startswith(begun) else None
            case _Phase.HEAD:
                return names
            case _Phase.NAME:
                return [name for name in names if (name + form.middle).startswith(held)] or None
            case _Phase.BETWEEN if held:
                if (form.separator + form.head).startswith(held):
                    return names if held.strip() else []
                return [] if form.closing.startswith(held) else None
        return None

    def _read(self, *, is_end: bool) -> Step:
        content = ""
        calls: list[CallPart] = []
        while True:
            before = (self._phase, len(self._held))
            match self._phase:
                case _Phase.SAYING:
                    content += self._say(is_end=is_end)
                case _Phase.HEAD:
                    self._take_literal(self._form.opening + self._form.head, _Phase.NAME, is_end=is_end)
                case _Phase.NAME:
                    calls += self._take_name(is_end=is_end)
                case _Phase.ARGUMENTS:
                    calls += self._take_arguments()
                case _Phase.TAIL:
                    self._take_tail()
                case _Phase.BETWEEN:
                    self._take_between(is_end=is_end)
                case _Phase.OVER:
                    content += self._give_up()
            if (self._phase, len(self._held)) == before:
                self._has_said = self._has_said or bool(content)
                return Step(content, tuple(calls))

    def _say(self, *, is_end: bool) -> str:
        """Text up to where a call begins, or might."""
        trigger = self._form.trigger
        at = self._held.find(trigger)
        if self._form.is_at_start:
            begun = self._held.lstrip()
            if self._has_said or not (begun.startswith(trigger) or (trigger.startswith(begun) and not is_end)):
                self._phase = _Phase.OVER
                return ""
            at = len(self._held) - len(begun) if begun.startswith(trigger) else -1
        if at >= 0:
            said = self._held[:at].rstrip()
            self._opened, self._held = self._held[len(said) : at], self._held[at:]
            self._phase = _Phase.HEAD
            return said
        kept = 0 if is_end else _tail_to_keep(self._held, trigger)
        cut = len(self._held) - kept
        said, self._held = self._held[:cut], self._held[cut:]
        return said

    def _take_literal(self, wanted: str, then: _Phase, *, is_end: bool) -> None:
        if self._held.startswith(wanted):
            self._opened, self._held = self._opened + wanted, self._held[len(wanted) :]
            self._phase = then
        elif is_end or not wanted.startswith(self._held):
            self._phase = _Phase.OVER

    def _take_name(self, *, is_end: bool) -> list[CallPart]:
        middle = self._form.middle
        at = self._held.find(middle)
        name = self._held[:at]
        begins = self._held[at + len(middle) : at + len(middle) + 1]
        if at >= 0 and name in self._names and begins == "{":
            part = CallPart(self._count, "", name)
            self._count += 1
            self._opened, self._held = "", self._held[at + len(middle) :]
            self._object = _ObjectEnd()
            self._phase = _Phase.ARGUMENTS
            return [part]
        is_wrong = at >= 0 and (name not in self._names or begins)
        if is_end or is_wrong or len(self._held) > MAX_TOOL_NAME_BYTES + len(middle):
            self._phase = _Phase.OVER
        return []

    def _take_arguments(self) -> list[CallPart]:
        end = self._object.find(self._held)
        taken, self._held = self._held[:end], self._held[end:]
        if self._object.is_over:
            self._phase = _Phase.TAIL
        return [CallPart(self._count - 1, taken)] if taken else []

    def _take_tail(self) -> None:
        """A call that was begun stays one, whatever stands where its end should."""
        tail = self._form.tail
        if self._held.startswith(tail):
            self._held = self._held[len(tail) :]
            self._phase = _Phase.BETWEEN
        elif not tail.startswith(self._held):
            self._phase = _Phase.OVER

    def _take_between(self, *, is_end: bool) -> None:
        following, closing = self._form.separator + self._form.head, self._form.closing
        if not self._held and not is_end:
            return
        if self._held.startswith(following):
            self._opened, self._held = following, self._held[len(following) :]
            self._phase = _Phase.NAME
        elif closing and self._held.startswith(closing):
            self._held = self._held[len(closing) :]
            self._phase, self._trims = _Phase.OVER, True
        elif is_end or not (following.startswith(self._held) or closing.startswith(self._held)):
            self._phase, self._trims = _Phase.OVER, True

    def _give_up(self) -> str:
        said, self._opened, self._held = self._opened + self._held, "", ""
        if self._trims:
            said = said.lstrip()
            self._trims = not said
        return said


class _ObjectEnd:
    """Where a JSON object ends, that text may be cut anywhere in."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False

    def find(self, text: str) -> int:
        """How many characters of ``text`` belong to the object."""
        for index, sign in enumerate(text):
            if self._is_in_text:
                self._step_in_text(sign)
            elif sign == '"':
                self._is_in_text = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.is_over = True
                    return index + 1
        return len(text)

    def _step_in_text(self, sign: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif sign == "\\":
            self._is_escaped = True
        elif sign == '"':
            self._is_in_text = False


def _tail_to_keep(text: str, trigger: str) -> int:
    """Characters at the end that may become the trigger, with the white space in front of it."""
    for length in range(min(len(trigger) - 1, len(text)), 0, -1):
        if trigger.startswith(text[-length:]):
            return length + _white_tail(text[:-length])
    return _white_tail(text)


def _white_tail(text: str) -> int:
    return len(text) - len(text.rstrip())
