"""Who misbehaves: offences by weight, forgotten by half-lives; throttled first, then banned, each time for longer.

Only what a peer did itself on its own connection is an offence, never what another peer says of it: whoever calls is
answerable for that (``node.conduct``). Refusing the connections of a banned peer is the network's.

Strangers and members are kept apart, each in a table with a bound: whoever makes up identities by the thousand can
crowd out other strangers that did little, neither a member nor anyone who is banned.
"""

from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

_MINUTE_US = 60 * MICROS_PER_SECOND
_HOUR_US = 60 * _MINUTE_US
POINT = 1_000
"""One point, in the integers that scores are kept in."""


class Offence(StrEnum):
    """What a peer can do wrong; the names are those of events and of the status."""

    MESSAGE_MALFORMED = "message_malformed"
    MESSAGE_OVERSIZE = "message_oversize"
    MESSAGE_UNEXPECTED = "message_unexpected"
    SIGNATURE_INVALID = "signature_invalid"
    FRAME_INVALID = "frame_invalid"
    CONNECTION_INVALID = "connection_invalid"
    PROOF_REFUSED = "proof_refused"
    FLOOD = "flood"
    REPORT_FALSE = "report_false"
    ARTIFACT_WRONG = "artifact_wrong"


WEIGHTS: dict[Offence, int] = {
    Offence.SIGNATURE_INVALID: 50,
    Offence.ARTIFACT_WRONG: 50,
    Offence.CONNECTION_INVALID: 40,
    Offence.MESSAGE_MALFORMED: 20,
    Offence.MESSAGE_OVERSIZE: 20,
    Offence.FRAME_INVALID: 20,
    Offence.REPORT_FALSE: 10,
    Offence.MESSAGE_UNEXPECTED: 5,
    Offence.FLOOD: 5,
    Offence.PROOF_REFUSED: 1,
}
"""Points. Garbage counts much. An invite that has expired is a person's mistake: asked again every minute for ever it
stays below any throttle."""

_OFFENCE_OF_CODE: dict[ErrorCode, Offence] = {
    ErrorCode.MESSAGE_MALFORMED: Offence.MESSAGE_MALFORMED,
    ErrorCode.MESSAGE_KIND_UNKNOWN: Offence.MESSAGE_UNEXPECTED,
    ErrorCode.MESSAGE_UNEXPECTED: Offence.MESSAGE_UNEXPECTED,
    ErrorCode.MESSAGE_TOO_LARGE: Offence.MESSAGE_OVERSIZE,
    ErrorCode.SIGNATURE_INVALID: Offence.SIGNATURE_INVALID,
    ErrorCode.ARTIFACT_CORRUPT: Offence.ARTIFACT_WRONG,
    ErrorCode.NOT_ADMITTED: Offence.PROOF_REFUSED,
    ErrorCode.NOT_IN_PLACEMENT: Offence.MESSAGE_UNEXPECTED,
    ErrorCode.FRAME_UNEXPECTED: Offence.MESSAGE_UNEXPECTED,
    ErrorCode.FRAME_LENGTH_INVALID: Offence.FRAME_INVALID,
    ErrorCode.FRAME_VERSION_UNSUPPORTED: Offence.FRAME_INVALID,
    ErrorCode.FRAME_KIND_UNKNOWN: Offence.FRAME_INVALID,
    ErrorCode.FRAME_DTYPE_INVALID: Offence.FRAME_INVALID,
    ErrorCode.FRAME_COUNT_INVALID: Offence.FRAME_INVALID,
    ErrorCode.FRAME_POSITION_INVALID: Offence.FRAME_INVALID,
    ErrorCode.FRAME_FLAGS_INVALID: Offence.FRAME_INVALID,
}
"""Not among them: credits and values of activations, which a stage passes on from those before it."""


def offence_of(code: ErrorCode) -> Offence | None:
    """The offence that breaking a rule of the wire is; None for a code that is nobody's fault or one of ours."""
    return _OFFENCE_OF_CODE.get(code)


@dataclass(frozen=True, slots=True)
class ConductPolicy:
    """When what a peer did is too much, and for how long.

    Points are halved every ``half_life_us``. A ban lasts ``first_ban_us``, twice as long each time after, at most
    ``longest_ban_us``; after ``reform_us`` without one the next is a first one again.
    """

    half_life_us: int = 10 * _MINUTE_US
    throttle_points: int = 40
    ban_points: int = 100
    first_ban_us: int = 10 * _MINUTE_US
    longest_ban_us: int = 24 * _HOUR_US
    reform_us: int = 48 * _HOUR_US
    capacity: int = 1024
    """Of strangers, and as many members."""


# --- events


@dataclass(frozen=True, slots=True)
class Offended:
    """A peer broke a rule."""

    peer: PeerId
    offence: Offence


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer's proof was accepted: refused ones before it were mistakes. It counts as a member from now on."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Forgiven:
    """The operator wants all of it forgotten."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = Offended | Admitted | Forgiven | DeadlinePassed


# --- effects


@dataclass(frozen=True, slots=True)
class Throttle:
    """Serve the peer slowly until then; said once, also when it goes on and the time gets longer."""

    peer: PeerId
    until: Micros
    reason: Offence


@dataclass(frozen=True, slots=True)
class Ban:
    """Disconnect the peer, and let it in no more until then."""

    peer: PeerId
    until: Micros
    reason: Offence


@dataclass(frozen=True, slots=True)
class Unban:
    """The ban is over."""

    peer: PeerId


Effect = Throttle | Ban | Unban


_STEPS = 16
_SCALE_BITS = 20
_DECAY: tuple[int, ...] = tuple(round((1 << _SCALE_BITS) * 0.5 ** (step / _STEPS)) for step in range(_STEPS))


def decayed(points: int, steps: int) -> int:
    """``points`` after so many sixteenths of a half-life, in integers."""
    halvings, step = divmod(steps, _STEPS)
    return int(points * _DECAY[step] >> _SCALE_BITS) >> halvings


@dataclass(slots=True)
class _Record:
    """What one peer did, in thousandths of points as of ``step``."""

    step: int
    points: int = 0
    proof_points: int = 0
    bans: int = 0
    throttled_until: int = 0
    banned_until: int | None = None
    unbanned_at: int = 0
    reason: Offence = Offence.FLOOD


class ConductMachine:
    """Scores, throttles and bans of all peers."""

    def __init__(self, policy: ConductPolicy | None = None) -> None:
        self._policy = policy or ConductPolicy()
        self._step_us = max(1, self._policy.half_life_us // _STEPS)
        self._strangers: dict[PeerId, _Record] = {}
        self._members: dict[PeerId, _Record] = {}
        self._next_unban: int | None = None

    # --- what others ask

    def is_banned(self, peer: PeerId) -> bool:
        """Whether a ban stands (until its ``Unban``)."""
        record = self._find(peer)
        return record is not None and record.banned_until is not None

    def is_throttled(self, peer: PeerId, now: Micros) -> bool:
        """Whether the peer is to be served slowly."""
        record = self._find(peer)
        return record is not None and record.throttled_until > now

    def points(self, peer: PeerId, now: Micros) -> int:
        """Whole points that are not forgotten yet."""
        record = self._find(peer)
        return 0 if record is None else decayed(record.points, self._step(now) - record.step) // POINT

    def bans(self) -> tuple[Ban, ...]:
        """All that stand, the first to end first."""
        found = [
            (record.banned_until, peer, record.reason)
            for table in (self._strangers, self._members)
            for peer, record in table.items()
            if record.banned_until is not None
        ]
        return tuple(Ban(peer, Micros(until), reason) for until, peer, reason in sorted(found))

    @property
    def known_count(self) -> int:
        """Peers of which anything is remembered."""
        return len(self._strangers) + len(self._members)

    def deadline(self) -> Micros | None:
        """When the next ban is over."""
        return None if self._next_unban is None else Micros(self._next_unban)

    # --- events

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case Offended(peer, offence):
                return self._on_offended(peer, offence, now)
            case Admitted(peer):
                return self._on_admitted(peer, now)
            case Forgiven(peer):
                return self._on_forgiven(peer)
            case DeadlinePassed():
                return self._on_deadline(now)

    def _on_offended(self, peer: PeerId, offence: Offence, now: Micros) -> tuple[Effect, ...]:
        record = self._find(peer) or self._remember(peer, now)
        # A ban counts once: what was on its way when the peer was cut off does not lengthen it.
        if record is None or record.banned_until is not None:
            return ()
        self._forget_by_time(record, now)
        weight = WEIGHTS[offence] * POINT
        record.points += weight
        record.reason = offence
        if offence is Offence.PROOF_REFUSED:
            record.proof_points += weight
        if record.points >= self._policy.ban_points * POINT:
            return (self._ban(peer, record, now),)
        if record.points >= self._policy.throttle_points * POINT:
            return self._throttle(peer, record, now)
        return ()

    def _on_admitted(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        record = self._strangers.get(peer)
        if record is not None and self._make_room(self._members, now):
            self._members[peer] = self._strangers.pop(peer)
        record = self._find(peer)
        if record is None or record.banned_until is not None:
            return ()
        self._forget_by_time(record, now)
        record.points -= record.proof_points
        record.proof_points = 0
        if record.points < self._policy.throttle_points * POINT:
            record.throttled_until = 0
        return ()

    def _on_forgiven(self, peer: PeerId) -> tuple[Effect, ...]:
        was_banned = self.is_banned(peer)
        self._strangers.pop(peer, None)
        self._members.pop(peer, None)
        self._find_next_unban()
        return (Unban(peer),) if was_banned else ()

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        over = [ban.peer for ban in self.bans() if ban.until <= now]
        for peer in over:
            record = self._find(peer)
            assert record is not None
            record.banned_until, record.unbanned_at = None, now
        self._find_next_unban()
        return tuple(Unban(peer) for peer in over)

    # --- scores

    def _step(self, now: Micros) -> int:
        return now // self._step_us

    def _forget_by_time(self, record: _Record, now: Micros) -> None:
        steps = self._step(now) - record.step
        record.points = decayed(record.points, steps)
        record.proof_points = min(record.points, decayed(record.proof_points, steps))
        record.step += steps
        if record.bans and now - record.unbanned_at >= self._policy.reform_us:
            record.bans = 0

    def _throttle(self, peer: PeerId, record: _Record, now: Micros) -> tuple[Effect, ...]:
        """Until the points are below the threshold again."""
        was_throttled = record.throttled_until > now
        steps = 1
        while decayed(record.points, steps) >= self._policy.throttle_points * POINT:
            steps += 1
        record.throttled_until = (record.step + steps) * self._step_us
        return () if was_throttled else (Throttle(peer, Micros(record.throttled_until), record.reason),)

    def _ban(self, peer: PeerId, record: _Record, now: Micros) -> Effect:
        doublings = min(record.bans, 40)
        length_us = min(self._policy.first_ban_us << doublings, self._policy.longest_ban_us)
        record.bans += 1
        record.points = record.proof_points = record.throttled_until = 0
        record.banned_until = now + length_us
        self._find_next_unban()
        return Ban(peer, Micros(record.banned_until), record.reason)

    # --- the tables

    def _find(self, peer: PeerId) -> _Record | None:
        return self._members.get(peer) or self._strangers.get(peer)

    def _remember(self, peer: PeerId, now: Micros) -> _Record | None:
        """A new stranger's record; None if everything that could make room is banned."""
        if not self._make_room(self._strangers, now):
            return None
        record = self._strangers[peer] = _Record(self._step(now))
        return record

    def _make_room(self, table: dict[PeerId, _Record], now: Micros) -> bool:
        """Gives up the least bad in a full table; whoever is banned stays."""
        if len(table) < self._policy.capacity:
            return True
        step = self._step(now)
        least: tuple[int, int, int, PeerId] | None = None
        for peer, record in table.items():
            if record.banned_until is None:
                badness = (record.bans, decayed(record.points, step - record.step), record.step, peer)
                least = badness if least is None else min(least, badness)
        if least is None:
            return False
        del table[least[3]]
        return True

    def _find_next_unban(self) -> None:
        bans = self.bans()
        self._next_unban = bans[0].until if bans else None
