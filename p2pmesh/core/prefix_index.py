"""Which prompts' rows are kept for others that begin alike, and how many rows a new prompt shares with one of them.

Owns what is kept, what gives way to it, and the longest shared prefix, cut to the grid of an engine's calls; and, of
prompts that are open, which one waits for which. The rows lie in the lanes of engines (``adapters.llama.lanes``). A
driver and its engines each run an index over the same sequences, so that they mostly agree; where they do not, a stage
says what it holds, and that counts.

A whole call's rows are a function of the tokens up to its end and of nothing else, so that a row that was copied is the
row that would have been computed. What decoding wrote came in other calls, and is never shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pmesh.core.batching import SequenceKey


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """Bounds, in tokens but for ``most_sequences``.

    Shared rows end at multiples of ``grid_tokens``. Fewer than ``least_tokens`` are not worth asking every stage for.
    """

    grid_tokens: int
    least_tokens: int
    most_sequences: int
    most_tokens: int

    def cut(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Those of whole calls."""
        return tuple(tokens[: len(tokens) - len(tokens) % self.grid_tokens])

    def sharable(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """What another sequence may have of a prompt: whole calls, and never the last token, which is sampled."""
        return self.cut(prompt[:-1])


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The first ``rows`` rows of the sequence ``key`` are those of a new prompt."""

    key: SequenceKey
    rows: int


class PrefixIndex:
    """Prompts by sequence. What is used least recently gives way first."""

    def __init__(self, policy: PrefixPolicy) -> None:
        self._policy = policy
        self._kept: dict[SequenceKey, tuple[int, ...]] = {}
        """The least recently used first; each cut to whole calls."""

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self, key: SequenceKey) -> int:
        """Rows that are kept of a sequence."""
        return len(self._kept.get(key, ()))

    def find(self, prompt: Sequence[int]) -> SharedPrefix | None:
        """The kept sequence that shares most with a prompt, the last used of equals; the last token is never shared."""
        wanted = self._policy.sharable(prompt)
        best: SharedPrefix | None = None
        for key, kept in self._kept.items():
            rows = self._shared(wanted, kept)
            if rows >= max(self._policy.least_tokens, 1) and (best is None or rows >= best.rows):
                best = SharedPrefix(key, rows)
        return best

    def keep(self, key: SequenceKey, prompt: Sequence[int]) -> tuple[SequenceKey, ...]:
        """Adds a sequence; returns what is not kept any more, which may be the sequence itself.

        A prompt that another one begins with adds nothing to it: the longer one stays, the one kept before of equals.
        """
        rows = self._policy.cut(prompt)
        if len(rows) < max(self._policy.least_tokens, 1):
            return (key,)
        for other, kept in self._kept.items():
            if self._shared(rows, kept) == len(rows):
                self.use(other)
                return (key,)
        dropped = [other for other, kept in self._kept.items() if self._shared(rows, kept) == len(kept)]
        for other in dropped:
            del self._kept[other]
        self._kept[key] = rows
        while len(self._kept) > self._policy.most_sequences or self._tokens() > self._policy.most_tokens:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            dropped.append(oldest)
        return tuple(dropped)

    def use(self, key: SequenceKey) -> None:
        """It is the last to give way now."""
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)

    def drop(self, key: SequenceKey) -> None:
        """Its rows are gone."""
        self._kept.pop(key, None)

    def oldest(self, besides: SequenceKey | None = None) -> SequenceKey | None:
        """The first to give way."""
        return next((key for key in self._kept if key != besides), None)

    def _tokens(self) -> int:
        return sum(len(kept) for kept in self._kept.values())

    def _shared(self, one: tuple[int, ...], other: tuple[int, ...]) -> int:
        """How far two prompts are equal, in whole calls: a search by halves, each step a comparison of memory."""
        grid = self._policy.grid_tokens
        equal, unequal = 0, min(len(one), len(other)) // grid + 1
        while unequal - equal > 1:
            middle = (equal + unequal) // 2
            if one[equal * grid : middle * grid] == other[equal * grid : middle * grid]:
                equal = middle
            else:
                unequal = middle
        return equal * grid


@dataclass(slots=True)
class _OpenPrompt:
    sharable: tuple[int, ...]
    is_read: bool = False


class OpenPrompts:
    """Prompts of sequences that have a lane, at most so many: each is computed once, whoever comes with it meanwhile.

    A prompt waits for one whose sharable rows are its own, all of them: then waiting never takes longer than computing
    beside it would. Choices of one request share the least that there is, others what is worth asking every stage for.
    """

    def __init__(self, policy: PrefixPolicy) -> None:
        self._policy = policy
        self._open: dict[SequenceKey, _OpenPrompt] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, key: SequenceKey, prompt: Sequence[int]) -> None:
        """Its rows are being computed from now on."""
        self._open[key] = _OpenPrompt(self._policy.sharable(prompt))

    def note_read(self, key: SequenceKey) -> None:
        """Every stage has its rows."""
        if key in self._open:
            self._open[key].is_read = True

    def remove(self, key: SequenceKey) -> None:
        """It is over."""
        self._open.pop(key, None)

    def find_coming(self, prompt: Sequence[int], request_id: bytes) -> SequenceKey | None:
        """Whom to wait for: its rows are this prompt's, and are being computed."""
        return self._find(prompt, request_id, is_read=False)

    def find_read(self, prompt: Sequence[int], request_id: bytes) -> SharedPrefix | None:
        """An open sequence with all the rows that this prompt can share."""
        key = self._find(prompt, request_id, is_read=True)
        return None if key is None else SharedPrefix(key, len(self._open[key].sharable))

    def _find(self, prompt: Sequence[int], request_id: bytes, *, is_read: bool) -> SequenceKey | None:
        wanted = self._policy.sharable(prompt)
        for key, one in self._open.items():
            least = 1 if key[0] == request_id else self._policy.least_tokens
            if one.is_read is is_read and len(wanted) >= max(least, 1) and one.sharable == wanted:
                return key
        return None
