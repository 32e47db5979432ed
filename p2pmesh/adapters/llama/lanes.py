"""The sequences of an engine: their lanes, parameters, token history, and what is left of a run that is over.

The history holds a token for every position whose cells the lane holds; each stage receives the ids with the rows.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from p2pmesh.core.batching import SequenceKey
from p2pmesh.core.grammar.constraint import Constraint
from p2pmesh.core.pooling import RowPool
from p2pmesh.core.prefix_index import PrefixIndex
from p2pmesh.wire.begin import Begin, Prefix, digest_tokens

_REMEMBERED_ENDS = 1024


@dataclass(slots=True)
class Lane:
    """A sequence in lane ``index`` (llama.cpp's sequence id). ``constraint`` None: any token may follow."""

    index: int
    begin: Begin
    constraint: Constraint | None = None
    history: list[int] = field(default_factory=list)
    pool: RowPool | None = None
    """Where an embedding was asked for, at the last stage."""

    @property
    def prompt(self) -> list[int]:
        """What is held of the prompt, whose rows other sequences may have; none of one that is only read."""
        return [] if self.begin.wants_embedding else self.history[: self.begin.prompt_tokens]

    def begins_with(self, prefix: Prefix) -> bool:
        """Whether its prompt's first rows are those."""
        rows = self.prompt[: prefix.rows]
        return len(rows) == prefix.rows and digest_tokens(rows) == prefix.digest


class LaneTable:
    """Sequence -> lane, at most ``lanes`` of them; remembers which sequences have ended.

    A *parked* lane is that of a sequence whose run is over: nothing but ``adopt`` finds it, and it gives way to others.
    A *kept* one is that of a sequence which is over itself, in a run that goes on: others that begin alike copy its
    prompt's rows. It gives way before parked ones do. Without ``prefixes`` none is kept.
    """

    def __init__(self, lanes: int, prefixes: PrefixIndex | None = None) -> None:
        self._prefixes = prefixes
        self._kept: dict[SequenceKey, Lane] = {}
        self._free = list(range(lanes - 1, -1, -1))
        self._lanes: dict[SequenceKey, Lane] = {}
        self._parked: dict[SequenceKey, Lane] = {}
        self._ended: OrderedDict[SequenceKey, None] = OrderedDict()

    def __len__(self) -> int:
        """Sequences that are served."""
        return len(self._lanes)

    def finish(self, key: SequenceKey) -> tuple[Lane | None, tuple[Lane, ...]]:
        """A sequence is over: its lane if it is kept, and the lanes that are free now; the caller frees their cells."""
        if self._prefixes is None or key not in self._lanes:
            lane = self.release(key)
            return None, () if lane is None else (lane,)
        self.remember_end(key)
        earlier = (key,) if key in self._kept else ()  # ids are the clients' peers' to choose: one may come twice
        freed = [self._free_kept(each) for each in earlier]
        lane = self._kept[key] = self._lanes.pop(key)
        freed += [self._free_kept(dropped) for dropped in self._prefixes.keep(key, lane.prompt)]
        return self._kept.get(key), tuple(freed)

    def kept_rows(self, key: SequenceKey) -> int:
        """Rows that are kept of a sequence that is over."""
        return 0 if self._prefixes is None else self._prefixes.rows(key)

    def find_source(self, prefix: Prefix) -> tuple[SequenceKey, Lane] | None:
        """A sequence of this run, served or kept, whose prompt begins with these rows; it gives way last from now on.

        The one that is named, or another: the named lane may be another sequence's by now, which begins alike.
        """
        if self._prefixes is None:
            return None
        for key in (prefix.key, *self._lanes, *reversed(self._kept)):
            lane = self._lanes.get(key) or self._kept.get(key)
            if lane is not None and lane.begins_with(prefix):
                self._prefixes.use(key)
                return key, lane
        return None

    def free_oldest_kept(self, besides: SequenceKey | None = None) -> Lane | None:
        """Frees the kept lane that is the first to go; the caller frees its cells."""
        oldest = None if self._prefixes is None else self._prefixes.oldest(besides)
        return None if oldest is None else self._free_kept(oldest)

    def take_over(self, kept: SequenceKey, key: SequenceKey, begin: Begin) -> Lane | None:
        """A kept lane as another sequence's, which begins alike; None where it is not kept."""
        lane = self._kept.pop(kept, None)
        if lane is not None and self._prefixes is not None:
            self._prefixes.drop(kept)
            lane.begin = begin
            self._ended.pop(key, None)
            self._lanes[key] = lane
        return lane

    def _free_kept(self, key: SequenceKey) -> Lane:
        lane = self._kept.pop(key)
        if self._prefixes is not None:
            self._prefixes.drop(key)
        self._free.append(lane.index)
        return lane

    def park(self) -> None:
        """The run is over: every sequence of it waits for one that continues it."""
        for key in self._lanes:
            self.remember_end(key)
        self._parked |= self._lanes
        self._lanes = {}

    def oldest_parked(self) -> SequenceKey | None:
        """The parked sequence that is the first to go."""
        return next(iter(self._parked), None)

    def unpark(self, key: SequenceKey) -> Lane:
        """Frees a parked lane; the caller frees its cells."""
        lane = self._parked.pop(key)
        self._free.append(lane.index)
        return lane

    def adopt(self, parked: SequenceKey, key: SequenceKey, begin: Begin) -> Lane | None:
        """The lane of a parked sequence, as another's from now on; None where it is not kept."""
        lane = self._parked.pop(parked, None)
        if lane is not None:
            lane.begin = begin
            self._ended.pop(key, None)
            self._lanes[key] = lane
        return lane

    def find(self, key: SequenceKey) -> Lane | None:
        """The lane of a sequence."""
        return self._lanes.get(key)

    def has_ended(self, key: SequenceKey) -> bool:
        """Whether a sequence was here lately: what still arrives for it means nothing."""
        return key in self._ended

    def take(self, key: SequenceKey, begin: Begin) -> Lane | None:
        """A lane for a new sequence; None when all are taken."""
        if not self._free:
            return None
        self._ended.pop(key, None)
        self._lanes[key] = Lane(self._free.pop(), begin)
        return self._lanes[key]

    def release(self, key: SequenceKey) -> Lane | None:
        """Frees the lane of a sequence; the caller frees its cells."""
        self.remember_end(key)
        lane = self._lanes.pop(key, None)
        if lane is not None:
            self._free.append(lane.index)
        return lane

    def remember_end(self, key: SequenceKey) -> None:
        """Notes that a sequence is over (or was never let in)."""
        self._ended[key] = None
        while len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)
