"""Two live nodes with one peer id (a copied disk image): who finds it out, and which of them gives way.

Owns both sides of it. ``IdentityWatch`` weighs announcements that our own key signed and this process did not write:
the node that started later gives way, the other one tells its operator and, once the other is silent, takes its place
back. ``TwinBook`` keeps at every other peer what the node that asks about itself wants to see: gossip carries nothing
back to the peer that it is from. Signatures are checked before anything comes here; what is done about an effect is
the node's.

A quick restart is no twin: a process that is dead issues nothing. So the later node believes only what was issued
after its own start, beyond the skew of clocks, *and* a sequence that it saw grow meanwhile.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CLOCK_SKEW_MS
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """When a sign is proof, and when a twin is taken for gone."""

    skew_ms: int = CLOCK_SKEW_MS
    """Clocks may differ by this much; also bounds an echo that a wrong clock dated ahead."""
    grown_us: int = 3 * MICROS_PER_SECOND
    """Between two hearings of a sequence that grows: two echoes of one dead process come closer together."""
    silent_us: int = 30 * MICROS_PER_SECOND
    """A later twin that was not heard for so long has given way. It asks, and so speaks, three times within it; until
    the earlier one takes its place back, others hold it for an echo of the one that has gone."""
    repeat_us: int = 600 * MICROS_PER_SECOND
    """A twin that stays is told again this often."""
    capacity: int = 8
    """Other incarnations that are remembered; the lowest goes first."""


@dataclass(frozen=True, slots=True)
class OwnAnnouncementHeard:
    """A checked announcement of our own peer id, as a peer heard it; of this incarnation or of another."""

    incarnation: int
    sequence: int
    issued_unix_ms: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = OwnAnnouncementHeard | DeadlinePassed


@dataclass(frozen=True, slots=True)
class GiveWay:
    """A node that started earlier is alive under our id: this one ends."""

    other_incarnation: int


@dataclass(frozen=True, slots=True)
class TwinFound:
    """A node that started later runs under our id: the operator is told, this one goes on."""

    other_incarnation: int


@dataclass(frozen=True, slots=True)
class TwinGone:
    """The later one is silent. Others believe it to be our newest self, so we must announce a higher incarnation."""

    other_incarnation: int


Effect = GiveWay | TwinFound | TwinGone


@dataclass(slots=True)
class _Twin:
    """What was heard of one other incarnation."""

    sequence: int
    first_heard: Micros
    last_grown: Micros
    told: Micros | None = None
    is_gone: bool = False


class IdentityWatch:
    """Announcements under our own peer id that are not ours.

    ``incarnation`` is this process's at its start, and ``started_unix_ms`` that moment by its own clock.
    """

    def __init__(self, incarnation: int, started_unix_ms: int, policy: WatchPolicy | None = None) -> None:
        self._started_as = incarnation
        self._own = {incarnation}
        self._started_unix_ms = started_unix_ms
        self._policy = policy or WatchPolicy()
        self._twins: dict[int, _Twin] = {}
        self._has_given_way = False

    @property
    def twin_count(self) -> int:
        """Other incarnations that are remembered."""
        return len(self._twins)

    def raised_to(self, incarnation: int) -> None:
        """We announce a higher incarnation from now on; it is no twin's. Bounded: a raise follows a twin."""
        if len(self._own) >= self._policy.capacity:
            self._own.discard(min(self._own - {self._started_as}, default=incarnation))
        self._own.add(incarnation)

    def deadline(self) -> Micros | None:
        """When the next later twin counts as gone."""
        return min((self._silent_at(twin) for twin in self._twins.values() if _is_awaited(twin)), default=None)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case OwnAnnouncementHeard():
                return self._on_heard(event, now)
            case DeadlinePassed():
                return self._on_deadline(now)

    def _silent_at(self, twin: _Twin) -> Micros:
        return Micros(twin.last_grown + self._policy.silent_us)

    def _on_heard(self, heard: OwnAnnouncementHeard, now: Micros) -> tuple[Effect, ...]:
        if heard.incarnation in self._own or self._has_given_way:
            return ()
        twin = self._twins.get(heard.incarnation)
        if twin is None:
            twin = self._twins[heard.incarnation] = _Twin(heard.sequence, now, now)
            self._forget_surplus()
        has_grown = heard.sequence > twin.sequence
        if has_grown:
            twin.sequence, twin.last_grown, twin.is_gone = heard.sequence, now, False
        if heard.incarnation > self._started_as:
            return self._on_later(heard.incarnation, twin, now)
        return self._on_earlier(heard, twin, now) if has_grown else ()

    def _on_later(self, incarnation: int, twin: _Twin, now: Micros) -> tuple[Effect, ...]:
        if incarnation not in self._twins:
            return ()  # the surplus that was just forgotten
        if twin.told is not None and (now - twin.told < self._policy.repeat_us or twin.last_grown <= twin.told):
            return ()
        twin.told = now
        return (TwinFound(incarnation),)

    def _on_earlier(self, heard: OwnAnnouncementHeard, twin: _Twin, now: Micros) -> tuple[Effect, ...]:
        is_issued_since = heard.issued_unix_ms > self._started_unix_ms + self._policy.skew_ms
        if not is_issued_since or now - twin.first_heard < self._policy.grown_us:
            return ()
        self._has_given_way = True
        return (GiveWay(heard.incarnation),)

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        silent = [
            incarnation
            for incarnation in sorted(self._twins)
            if _is_awaited(self._twins[incarnation]) and self._silent_at(self._twins[incarnation]) <= now
        ]
        for incarnation in silent:
            self._twins[incarnation].is_gone = True  # kept: an echo of it is no news
        return (TwinGone(silent[-1]),) if silent else ()

    def _forget_surplus(self) -> None:
        if len(self._twins) > self._policy.capacity:
            del self._twins[min(self._twins)]


def _is_awaited(twin: _Twin) -> bool:
    """Whether a later twin was told of and has not gone silent yet."""
    return twin.told is not None and not twin.is_gone


MAX_TWIN_RECORDS = 64
TWIN_RECORD_LIFE_US = 300 * MICROS_PER_SECOND


class TwinBook:
    """The freshest announcement of an *older* incarnation per peer: what the board does not keep, sealed as it came.

    Bounded: the peer that was heard longest ago goes first.
    """

    def __init__(self, capacity: int = MAX_TWIN_RECORDS, life_us: int = TWIN_RECORD_LIFE_US) -> None:
        self._capacity = capacity
        self._life_us = life_us
        self._records: dict[PeerId, tuple[tuple[int, int], bytes, Micros]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, peer: PeerId, freshness: tuple[int, int], sealed: bytes, now: Micros) -> None:
        """Takes in an announcement that is behind a higher incarnation of its peer."""
        kept = self._records.get(peer)
        if kept is not None and kept[0] >= freshness:
            return
        self._records.pop(peer, None)  # the newest stands last
        self._records[peer] = (freshness, sealed, now)
        if len(self._records) > self._capacity:
            del self._records[next(iter(self._records))]

    def find(self, peer: PeerId, now: Micros) -> bytes | None:
        """The sealed announcement, unless it is long ago."""
        kept = self._records.get(peer)
        return kept[1] if kept is not None and now - kept[2] <= self._life_us else None
