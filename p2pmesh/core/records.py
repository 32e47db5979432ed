"""When which provider records are told: at once when something is new, again before they end, a few at a time.

Owns that schedule and the rule by which a node takes itself for dialable. Keys are ``wire.records``'; telling is the
network's.
"""

from dataclasses import dataclass

from p2pmesh.base.limits import MAX_PROVIDED_KEYS, RECORD_REPEAT_S
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.draws import Draws
from p2pmesh.wire.records import RecordKey


@dataclass(frozen=True, slots=True)
class RecordsPolicy:
    """Times and bounds."""

    repeat_us: int = RECORD_REPEAT_S * MICROS_PER_SECOND
    jitter_percent: int = 10
    """Repeats come earlier by up to so much, so that peers that started together drift apart."""
    retry_us: int = 15 * MICROS_PER_SECOND
    """After nobody took a record."""
    spacing_us: int = 1_200_000
    """Between two records: a server takes ten of one peer in ten seconds."""
    at_once: int = 2
    max_keys: int = MAX_PROVIDED_KEYS


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """What is to be provided now, the most useful first; what goes beyond the bound is left out."""

    keys: tuple[RecordKey, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A record was told to so many servers."""

    key: RecordKey
    taken: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = KeysChanged | Told | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Provide:
    """Tell the servers of a key that we provide it; answered by ``Told``."""

    key: RecordKey


@dataclass(frozen=True, slots=True)
class StopProviding:
    """Forget our own record of a key."""

    key: RecordKey


Effect = Provide | StopProviding


class RecordsMachine:
    """The provider records of one node."""

    def __init__(self, seed: int, policy: RecordsPolicy | None = None) -> None:
        self._policy = policy or RecordsPolicy()
        self._draws = Draws(seed)
        self._due: dict[RecordKey, Micros] = {}
        """When a key is told next; in the order of their worth."""
        self._telling: dict[RecordKey, None] = {}
        self._next_slot = Micros(0)

    @property
    def keys(self) -> tuple[RecordKey, ...]:
        """What is provided."""
        return tuple(self._due)

    def deadline(self) -> Micros | None:
        """When the next record may and should be told."""
        waiting = [due for key, due in self._due.items() if key not in self._telling]
        if not waiting or len(self._telling) >= self._policy.at_once:
            return None
        return max(self._next_slot, min(waiting))

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        effects: tuple[Effect, ...] = ()
        match event:
            case KeysChanged(keys):
                effects = self._change(keys, now)
            case Told(key, taken):
                self._telling.pop(key, None)
                if key in self._due:
                    self._due[key] = Micros(now + (self._repeat_us() if taken else self._policy.retry_us))
            case DeadlinePassed():
                pass
        return (*effects, *self._tell(now))

    def _change(self, keys: tuple[RecordKey, ...], now: Micros) -> tuple[Effect, ...]:
        wanted = tuple(dict.fromkeys(keys))[: self._policy.max_keys]
        gone = [key for key in self._due if key not in wanted]
        self._due = {key: self._due.get(key, now) for key in wanted}
        return tuple(StopProviding(key) for key in gone)

    def _tell(self, now: Micros) -> tuple[Effect, ...]:
        """One at most: the next follows ``spacing_us`` later."""
        deadline = self.deadline()
        if deadline is None or deadline > now:
            return ()
        waiting = [(due, index, key) for index, (key, due) in enumerate(self._due.items()) if key not in self._telling]
        key = min(waiting)[2]
        self._telling[key] = None
        self._next_slot = Micros(now + self._policy.spacing_us)
        return (Provide(key),)

    def _repeat_us(self) -> int:
        earlier_percent = self._draws.below(self._policy.jitter_percent + 1)
        return self._policy.repeat_us * (100 - earlier_percent) // 100


WITNESSES = 3
ADMITTED_PER_WITNESS = 4


def is_dialable(dialled_by: int, admitted: int) -> bool:
    """Whether a node may take itself for one that others can dial, since so many of those admitted have dialled it.

    One is enough among a few; among many three are asked for: a neighbour on the same network proves little to the
    others. Those that we dialled ourselves prove nothing either way.
    """
    return dialled_by >= min(WITNESSES, 1 + admitted // ADMITTED_PER_WITNESS)
