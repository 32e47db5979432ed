"""Reasoning inside generated text: ``<think>`` … ``</think>`` at the beginning of an answer, told apart from the rest.

Total and incremental, like ``core.text``: what has been given out never changes, and the marks are given out nowhere.
Which endpoint shows reasoning, and where, is the API's business.
"""

from dataclasses import dataclass
from enum import StrEnum

OPENING = "<think>"
CLOSING = "</think>"
"""The marks of DeepSeek R1, Qwen 3 and those that followed them."""


def opens_reasoning(prompt: str) -> bool:
    """Whether a template's text leaves a block of reasoning open, so that the answer begins inside it."""
    return prompt.rstrip().endswith(OPENING)


@dataclass(frozen=True, slots=True)
class Split:
    """A step's text: what was thought, what is said."""

    reasoning: str
    content: str


class _Phase(StrEnum):
    """Where the text is."""

    BEFORE = "before"  # only white space so far: an opening mark may come
    INSIDE = "inside"
    AFTER = "after"  # between the closing mark and the first character that is no white space
    SAYING = "saying"


class ReasoningSplitter:
    """Takes the text of one answer apart. An answer without marks is content, to the letter."""

    def __init__(self, *, is_inside: bool = False) -> None:
        self._phase = _Phase.INSIDE if is_inside else _Phase.BEFORE
        self._held = ""
        self._has_reasoned = False

    @property
    def is_inside(self) -> bool:
        """Whether the text so far ends within a block of reasoning."""
        return self._phase is _Phase.INSIDE

    def add(self, text: str) -> Split:
        """What more text brings."""
        if self._phase is _Phase.SAYING:  # nothing is held any more: most tokens by far
            return Split("", text)
        self._held += text
        return self._release(is_end=False)

    def finish(self) -> Split:
        """What was held back; a block that never closes is reasoning."""
        return self._release(is_end=True)

    def _release(self, *, is_end: bool) -> Split:
        reasoning = content = ""
        while True:
            before = self._phase
            match self._phase:
                case _Phase.BEFORE:
                    self._look_for_opening(is_end=is_end)
                case _Phase.INSIDE:
                    reasoning += self._take_reasoning(is_end=is_end)
                case _Phase.AFTER:
                    self._held = self._held.lstrip()
                    self._phase = _Phase.SAYING if self._held else _Phase.AFTER
                case _Phase.SAYING:
                    content, self._held = content + self._held, ""
            if self._phase is before:
                return Split(reasoning, content)

    def _look_for_opening(self, *, is_end: bool) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPENING):
            self._held = begun[len(OPENING) :]
            self._phase = _Phase.INSIDE
        elif is_end or not OPENING.startswith(begun):
            self._phase = _Phase.SAYING

    def _take_reasoning(self, *, is_end: bool) -> str:
        at = self._held.find(CLOSING)
        if at >= 0:
            text, self._held = self._held[:at], self._held[at + len(CLOSING) :]
            self._phase = _Phase.AFTER
            return self._trimmed(text.rstrip())
        kept = 0 if is_end else _tail_to_keep(self._held)
        cut = len(self._held) - kept
        text, self._held = self._held[:cut], self._held[cut:]
        return self._trimmed(text)

    def _trimmed(self, text: str) -> str:
        """Without the white space that templates and models put around a block."""
        text = text if self._has_reasoned else text.lstrip()
        self._has_reasoned = self._has_reasoned or bool(text)
        return text


def _tail_to_keep(text: str) -> int:
    """Characters at the end that may become the closing mark, with the white space in front of them."""
    for length in range(min(len(CLOSING) - 1, len(text)), 0, -1):
        if CLOSING.startswith(text[-length:]):
            return length + _white_tail(text[:-length])
    return _white_tail(text)


def _white_tail(text: str) -> int:
    return len(text) - len(text.rstrip())
