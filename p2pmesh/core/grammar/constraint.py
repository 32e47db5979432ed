"""A grammar applied to the tokens of one answer.

Owns what a token may do: keep to the grammar, begin it (a *trigger*, for grammars that wait), end the answer, and leave
room for an end: while the shortest rest still fits the limit of tokens, a token after which it would not is refused, so
that an answer under a grammar is whole whenever it can be. All of it follows from the tokens given, so a rollback or a
replay rebuilds it. How a token is picked among the allowed ones is ``core.sampling``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pmesh.core.grammar.matcher import Matcher, State

_FIRST_TRIES = 64
"""Candidates that are looked at one by one before all are sorted: nearly always one of them is allowed."""
_NO_BYTE = 256


class Words:
    """The tokens of a vocabulary: their bytes by id, and those that end an answer."""

    def __init__(self, pieces: Sequence[bytes], end_tokens: frozenset[int]) -> None:
        self.pieces = pieces
        self.end_tokens = end_tokens
        self.ends = np.array(sorted(end_tokens), dtype=np.int64)
        self.first_bytes = np.array([piece[0] if piece else _NO_BYTE for piece in pieces], dtype=np.int16)
        """The first byte of every token; ``256`` for one without bytes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one answer is held to. ``max_tokens`` is what it may hold, its end token included.

    Without ``triggers`` the grammar holds from the first byte on. With them everything is free until one of them has
    come, and the grammar holds from that trigger's own first byte on; ``is_at_start``: it only counts with nothing but
    white space before it.
    """

    matcher: Matcher
    max_tokens: int
    triggers: tuple[bytes, ...] = ()
    is_at_start: bool = False


@dataclass(frozen=True, slots=True)
class _Progress:
    """After some tokens: a state of the grammar; or what a trigger may have begun in; or neither, and all is free."""

    state: State | None
    tail: bytes | None = None


class Constraint:
    """The rules over one answer's tokens as they come, go back, and come again."""

    def __init__(self, rules: Rules, words: Words) -> None:
        self._rules = rules
        self._words = words
        self._tokens: list[int] = []
        self._passed: list[_Progress] = []
        """One more than tokens, once begun."""

    def follow(self, tokens: Sequence[int]) -> bool:
        """Goes to where the answer so far ends; false, and not all the way, where it does not keep to the rules."""
        self._rules.matcher.grant()
        if not self._passed:
            self._passed.append(self._begin())
        kept = self._count_kept(tokens)
        del self._tokens[kept:]
        del self._passed[kept + 1 :]
        for token in tokens[kept:]:
            self._rules.matcher.grant()
            following = self._after(self._passed[-1], token)
            if following is None:
                return False
            self._tokens.append(token)
            self._passed.append(following)
        return True

    def allows(self, token: int) -> bool:
        """Whether ``token`` may follow."""
        progress = self._passed[-1]
        following = self._after(progress, token)
        return following is not None and (token in self._words.end_tokens or self._leaves_room(progress, following))

    def plausible(self) -> NDArray[np.int64]:
        """Every token whose first byte may follow, and those that end the answer; ascending."""
        state = self._passed[-1].state
        first_bytes = self._words.first_bytes
        if state is None:
            return np.arange(len(first_bytes))
        is_open = np.zeros(_NO_BYTE + 1, dtype=bool)
        for byte in range(_NO_BYTE):
            is_open[byte] = self._rules.matcher.walk(state, bytes((byte,))) is not None
        is_plausible = is_open[first_bytes]
        is_plausible[self._words.ends] = True
        return np.flatnonzero(is_plausible)

    def first_allowed(self, tokens: NDArray[np.int64], keys: NDArray[np.float64]) -> int | None:
        """Of those ``tokens`` (ascending) that may follow the one with the largest key; None without any.

        The lowest id among equals. Minus infinity takes a token out.
        """
        if len(tokens) > _FIRST_TRIES:
            tried = np.argpartition(-keys, _FIRST_TRIES)[:_FIRST_TRIES]
            edge = keys[tried].min()
            found = self._first_of(tokens, keys, tried[keys[tried] > edge])  # of those equal to it some may be missing
            if found is not None:
                return found
        return self._first_of(tokens, keys, np.arange(len(tokens)))

    def _first_of(self, tokens: NDArray[np.int64], keys: NDArray[np.float64], places: NDArray[np.int64]) -> int | None:
        for place in places[np.lexsort((places, -keys[places]))].tolist():
            if keys[place] == -np.inf:
                return None
            if self.allows(int(tokens[place])):
                return int(tokens[place])
        return None

    def _begin(self) -> _Progress:
        return _Progress(None, b"") if self._rules.triggers else _Progress(self._rules.matcher.start)

    def _count_kept(self, tokens: Sequence[int]) -> int:
        """How many of the tokens followed so far are those given now."""
        held = len(self._tokens)
        if list(tokens[:held]) == self._tokens:
            return held
        pairs = zip(self._tokens, tokens, strict=False)
        return next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), min(held, len(tokens)))

    def _after(self, progress: _Progress, token: int) -> _Progress | None:
        """What a token leads to; None where the grammar refuses it."""
        state = progress.state
        if token in self._words.end_tokens:
            return progress if state is None or state.is_complete else None
        piece = self._words.pieces[token] if 0 <= token < len(self._words.pieces) else b""
        if state is None:
            return progress if progress.tail is None or not piece else self._wait(progress.tail + piece)
        following = self._rules.matcher.walk(state, piece) if piece else None
        return None if following is None else _Progress(following)

    def _wait(self, text: bytes) -> _Progress | None:
        """While no trigger has come: whether one is in the ``text`` that may hold it."""
        triggers = self._rules.triggers
        if self._rules.is_at_start:
            text = text.lstrip()
            if any(trigger.startswith(text) for trigger in triggers):
                return self._triggered(text) if text in triggers else _Progress(None, text)
            return self._triggered(text) if text.startswith(triggers) else _Progress(None)
        found = [at for trigger in triggers if (at := text.find(trigger)) >= 0]
        if found:
            return self._triggered(text[min(found) :])
        return _Progress(None, text[-(max(map(len, triggers)) - 1) :] if max(map(len, triggers)) > 1 else b"")

    def _triggered(self, text: bytes) -> _Progress | None:
        matcher = self._rules.matcher
        following = matcher.walk(matcher.start, text)
        return None if following is None else _Progress(following)

    def _leaves_room(self, before: _Progress, after: _Progress) -> bool:
        """Whether an end still fits, one byte a token at worst, or did not fit before either."""
        if before.state is None or after.state is None:
            return True
        left = self._rules.max_tokens - len(self._tokens)
        return before.state.least_bytes + 1 > left or after.state.least_bytes + 1 <= left - 1
