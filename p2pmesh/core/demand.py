"""How much models are asked for: what this node's clients ask, and what other peers say that theirs do.

Owns the windows (a minute, 24 hours), their decay, and how much one peer's word counts for. Models are named by
``wire.announcement.model_hash_of``. What a node makes of demand is ``core.serving``'s.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ANNOUNCED_DEMANDS, MAX_DEMAND_COUNT, MAX_KNOWN_PEERS
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.wire.announcement import ModelDemand

_MINUTE_SLOT_US = 10 * MICROS_PER_SECOND
_DAY_SLOT_US = 3600 * MICROS_PER_SECOND
_MINUTE_SLOTS = 6
_DAY_SLOTS = 24


@dataclass(frozen=True, slots=True)
class DemandPolicy:
    """Bounds; ``source_*`` cap what one peer's word counts for, so that one alone cannot make the overlay load a model
    everywhere. ``word_life_us`` is how long ``waiting`` and ``per_minute`` of a peer count that says nothing newer.
    """

    most_models: int = 64
    source_waiting: int = 8
    source_per_minute: int = 60
    source_per_day: int = 4096
    word_life_us: int = 120 * MICROS_PER_SECOND
    telling_per_minute: int = 3
    """From here on others are told of requests for a model that is served."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests for one model: those that wait now, of the last minute, of the last 24 hours."""

    waiting: int = 0
    per_minute: int = 0
    per_day: int = 0

    @property
    def is_none(self) -> bool:
        """Whether nobody asked for a day."""
        return not (self.waiting or self.per_minute or self.per_day)

    @property
    def weight(self) -> tuple[int, int, int]:
        """Orders demand: who waits comes first, then what is asked now, then what was asked of late."""
        return (self.waiting, self.per_minute, self.per_day)

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(self.waiting + other.waiting, self.per_minute + other.per_minute, self.per_day + other.per_day)


NO_DEMAND = Demand()


class _Window:
    """Counts in slots of time, of which the newest ``kept`` are kept: what is older decays a slot at a time."""

    __slots__ = ("_kept", "_slot_us", "_slots")

    def __init__(self, slot_us: int, kept: int) -> None:
        self._slot_us = slot_us
        self._kept = kept
        self._slots: deque[tuple[int, int]] = deque(maxlen=kept + 1)

    def count(self, now: Micros) -> None:
        number = now // self._slot_us
        if self._slots and self._slots[-1][0] >= number:
            last, counted = self._slots.pop()
            self._slots.append((last, min(counted + 1, MAX_DEMAND_COUNT)))
        else:
            self._slots.append((number, 1))

    def total(self, now: Micros) -> int:
        oldest = now // self._slot_us - self._kept
        return min(sum(counted for number, counted in self._slots if number >= oldest), MAX_DEMAND_COUNT)


class _OwnCount:
    """What this node's clients ask of one model."""

    __slots__ = ("day", "minute", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.minute = _Window(_MINUTE_SLOT_US, _MINUTE_SLOTS)
        self.day = _Window(_DAY_SLOT_US, _DAY_SLOTS)

    def demand(self, now: Micros) -> Demand:
        return Demand(self.waiting, self.minute.total(now), self.day.total(now))


class DemandCounters:
    """Requests of this node's own clients, for a bounded number of models: the one asked for longest ago goes first."""

    def __init__(self, policy: DemandPolicy | None = None) -> None:
        self._policy = policy or DemandPolicy()
        self._counts: dict[bytes, _OwnCount] = {}

    def count(self, model: bytes, now: Micros) -> None:
        """A client asks for a model."""
        counts = self._counts.pop(model, None) or _OwnCount()
        self._make_room()
        self._counts[model] = counts
        counts.minute.count(now)
        counts.day.count(now)

    def begin_waiting(self, model: bytes) -> None:
        """A request waits until the model is served."""
        if model not in self._counts:
            self._make_room()
        self._counts.setdefault(model, _OwnCount()).waiting += 1

    def end_waiting(self, model: bytes) -> None:
        """It waits no longer, whatever came of it."""
        counts = self._counts.get(model)
        if counts is not None:
            counts.waiting = max(0, counts.waiting - 1)

    def _make_room(self) -> None:
        """Who waits is not forgotten unless nobody else is left."""
        while len(self._counts) >= self._policy.most_models:
            idle = (model for model, counts in self._counts.items() if not counts.waiting)
            del self._counts[next(idle, next(iter(self._counts)))]

    def models(self) -> tuple[bytes, ...]:
        """Every model that is counted, by hash."""
        return tuple(sorted(self._counts))

    def demand(self, model: bytes, now: Micros) -> Demand:
        """For one model."""
        counts = self._counts.get(model)
        return NO_DEMAND if counts is None else counts.demand(now)

    def waited_for(self) -> tuple[bytes, ...]:
        """Models that a request waits for."""
        return tuple(sorted(model for model, counts in self._counts.items() if counts.waiting))

    def told(self, served: Collection[bytes], loadable: Collection[bytes], now: Micros) -> tuple[ModelDemand, ...]:
        """What others are told: of models that nobody serves, and of those that are much asked for.

        ``served`` are models that somebody serves, ``loadable`` those that somebody would load: a name that nobody
        knows stands behind all others, so that made-up names push none out.
        """
        rows = [(model, counts.demand(now)) for model, counts in self._counts.items()]
        worth = [
            (model, demand)
            for model, demand in rows
            if demand.per_minute >= self._policy.telling_per_minute or (model not in served and not demand.is_none)
        ]
        worth.sort(key=lambda row: row[0])
        worth.sort(key=lambda row: (row[0] in loadable or row[0] in served, *row[1].weight), reverse=True)
        return tuple(ModelDemand(model, *demand.weight) for model, demand in worth[:MAX_ANNOUNCED_DEMANDS])


@dataclass(frozen=True, slots=True)
class _Word:
    """What a peer said last, and when it was first read."""

    freshness: tuple[int, int]
    rows: tuple[ModelDemand, ...]
    since: Micros


class DemandBook:
    """What other peers say that their clients ask for."""

    def __init__(self, policy: DemandPolicy | None = None) -> None:
        self._policy = policy or DemandPolicy()
        self._words: dict[PeerId, _Word] = {}

    def note(self, source: PeerId, freshness: tuple[int, int], rows: tuple[ModelDemand, ...], now: Micros) -> None:
        """The freshest word of a peer; one that says nothing of demand takes no room."""
        known = self._words.get(source)
        if not rows:
            self._words.pop(source, None)
        elif known is None or freshness > known.freshness:
            if known is None and len(self._words) >= MAX_KNOWN_PEERS:
                return
            self._words[source] = _Word(freshness, rows[:MAX_ANNOUNCED_DEMANDS], now)

    def keep_only(self, sources: Collection[PeerId]) -> None:
        """Who is not in the view any more asks for nothing."""
        self._words = {source: word for source, word in self._words.items() if source in sources}

    def models(self) -> tuple[bytes, ...]:
        """Every model that somebody asks for, by hash."""
        return tuple(sorted({row.model for word in self._words.values() for row in word.rows}))

    def totals(self, now: Micros) -> dict[bytes, Demand]:
        """For every model, of all peers, each within its caps; what a peer lists twice counts once."""
        totals: dict[bytes, Demand] = {}
        for word in self._words.values():
            is_recent = now - word.since < self._policy.word_life_us
            for model, row in {row.model: row for row in reversed(word.rows)}.items():
                totals[model] = totals.get(model, NO_DEMAND) + self._capped(row, is_recent=is_recent)
        return totals

    def _capped(self, row: ModelDemand, *, is_recent: bool) -> Demand:
        policy = self._policy
        return Demand(
            min(row.waiting, policy.source_waiting) if is_recent else 0,
            min(row.per_minute, policy.source_per_minute) if is_recent else 0,
            min(row.per_day, policy.source_per_day),
        )


def count_serving(models: Iterable[Iterable[bytes]]) -> dict[bytes, int]:
    """How many peers serve each model, given the models of each."""
    served: dict[bytes, int] = {}
    for of_one in models:
        for model in set(of_one):
            served[model] = served.get(model, 0) + 1
    return served
