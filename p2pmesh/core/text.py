"""Token ids -> text that may be shown: bytes across tokens, stop sequences across tokens.

Total and incremental: what has been given out never changes, no part of the stop sequence that ends a text is ever
given out, and the text does not depend on where one token ends and the next begins.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextStep:
    """Text that is now certain, and the stop sequence that ended it; empty where none did."""

    text: str
    stop: str = ""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop sequence ended the text."""
        return bool(self.stop)


class TextAssembler:
    """Turns the tokens of one choice into text.

    ``pieces`` holds the bytes of every token by id. ``stops`` are non-empty. Bytes that never complete a character
    come out as U+FFFD at the end, not before.
    """

    def __init__(self, pieces: Sequence[bytes], stops: tuple[str, ...] = ()) -> None:
        self._pieces = pieces
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def add(self, token: int) -> TextStep:
        """The step that ``token`` brings; an id outside the vocabulary has no bytes."""
        piece = self._pieces[token] if 0 <= token < len(self._pieces) else b""
        text = self._decoder.decode(piece)
        if not self._stops:  # then nothing is ever held
            return TextStep(text)
        self._held += text
        return self._release(is_end=False)

    def finish(self) -> TextStep:
        """What was held back, at the end of the generation."""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(is_end=True)

    def _release(self, *, is_end: bool) -> TextStep:
        found = self._first_stop()
        if found is not None:
            stop_at, stop = found
            text, self._held = self._held[:stop_at], ""
            return TextStep(text, stop)
        kept = 0 if is_end else self._suffix_that_may_become_a_stop()
        cut = len(self._held) - kept
        text, self._held = self._held[:cut], self._held[cut:]
        return TextStep(text)

    def _first_stop(self) -> tuple[int, str] | None:
        """Where the text ends, and by which: the stop that completes first counts, so that token boundaries change
        nothing."""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def _suffix_that_may_become_a_stop(self) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if stop.startswith(self._held[-length:]):
                    longest = length
                    break
        return longest
