"""The sequences of an engine: their lanes, parameters, token history, and what is left of a run that is over.

The history holds a token for every position whose cells the lane holds; each stage receives the ids with the rows.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from p2pmesh.core.batching import SequenceKey
from p2pmesh.core.grammar.constraint import Constraint
from p2pmesh.core.pooling import RowPool
from p2pmesh.wire.begin import Begin

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


class LaneTable:
    """Sequence -> lane, at most ``lanes`` of them; remembers which sequences have ended.

    A *parked* lane is that of a sequence whose run is over: nothing but ``adopt`` finds it, and it gives way to others.
    """

    def __init__(self, lanes: int) -> None:
        self._free = list(range(lanes - 1, -1, -1))
        self._lanes: dict[SequenceKey, Lane] = {}
        self._parked: dict[SequenceKey, Lane] = {}
        self._ended: OrderedDict[SequenceKey, None] = OrderedDict()

    def __len__(self) -> int:
        """Sequences that are served."""
        return len(self._lanes)

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
