"""After a failure at the ingress: is it a loss, when is the next driver asked, and when is it enough.

Owns the meaning of each code for a request that was on its way, the pauses between attempts and the deadline of a
stall. What is asked again is ``core.journal``'s, whom to ask ``core.routing``'s.

A *loss* says nothing against the request: a stage, an engine, a peer or its placement is gone, or answered garbage.
*Not yet* is what a driver or the router says before a new placement serves. Everything else would be the same anywhere.
A request that comes just then, for a model that is *awaited*, waits as one that a loss has stalled.

One request must not take down one placement after another: after ``losses_without_token`` losses in a row that a new
token does not interrupt, its error is the answer. How long a stall may last grows with what was invested: as long as
the request has been running, within bounds.
"""

from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.errors import GARBAGE_CODES, ErrorCode
from p2pmesh.base.quantities import Micros


class Outlook(StrEnum):
    """What a failure says about another attempt."""

    LOSS = "loss"
    NOT_YET = "not_yet"
    FINAL = "final"


_LOSSES = GARBAGE_CODES | frozenset(
    {
        ErrorCode.PEER_LOST,
        ErrorCode.PEER_UNREACHABLE,
        ErrorCode.ENGINE_CRASHED,
        ErrorCode.ENGINE_UNRESPONSIVE,
        ErrorCode.ENGINE_LOAD_FAILED,
        ErrorCode.STAGE_UNKNOWN,
        ErrorCode.TERM_STALE,
        ErrorCode.TERM_CONFLICT,
        ErrorCode.MODEL_LEASED,
        ErrorCode.QUORUM_LOST,
        ErrorCode.NOT_IN_PLACEMENT,
        ErrorCode.NOT_ADMITTED,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.CANNOT_ROLLBACK,
        ErrorCode.INTERNAL,
        # a driver answers garbage
        ErrorCode.MESSAGE_KIND_UNKNOWN,
        ErrorCode.MESSAGE_MALFORMED,
        ErrorCode.MESSAGE_UNEXPECTED,
    }
)
_ABSENT = frozenset({ErrorCode.PEER_LOST, ErrorCode.PEER_UNREACHABLE, ErrorCode.NOT_ADMITTED, ErrorCode.SHUTTING_DOWN})
"""From a driver that has not admitted the request these tell of the driver alone, not of a placement that broke."""
_NOT_YET = frozenset({ErrorCode.MODEL_NOT_READY, ErrorCode.MODEL_UNKNOWN, ErrorCode.OVERLOADED})


def outlook_of(code: ErrorCode) -> Outlook:
    """What a failure with this code says about another attempt of the same request."""
    if code in _LOSSES:
        return Outlook.LOSS
    return Outlook.NOT_YET if code in _NOT_YET else Outlook.FINAL


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """Times in microseconds.

    A request that has met nobody yet waits ``least_wait_us``. A stall may last as long as the request has run before
    it, at least ``least_wait_us`` and at most ``longest_wait_us``; another loss within it grants the least again. A
    run that was lost is asked again only after a pause, which doubles from ``first_pause_us`` to ``longest_pause_us``;
    another one at once.
    """

    least_wait_us: int = 60_000_000
    longest_wait_us: int = 300_000_000
    first_pause_us: int = 1_000_000
    longest_pause_us: int = 8_000_000
    losses_without_token: int = 4
    most_recoveries: int = 256

    def wait_us(self, running_us: int) -> int:
        """How long a stall may last after ``running_us`` of a request."""
        return min(max(self.least_wait_us, running_us), self.longest_wait_us)


# --- events -------------------------------------------------------------------
class Reached(StrEnum):
    """How far an attempt came."""

    NOBODY = "nobody"
    DRIVER = "driver"
    ADMISSION = "admission"


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A driver, or the way to it, failed."""

    code: ErrorCode
    text: str
    reached: Reached = Reached.ADMISSION


@dataclass(frozen=True, slots=True)
class TokenGiven:
    """A token that no attempt before had given."""


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """Other drivers may be announced now."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = AttemptFailed | TokenGiven | RoutesChanged | DeadlinePassed


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Attempt:
    """Ask a driver now; where ``may_repeat`` is false, none of a run that was lost."""

    may_repeat: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request ends with this error."""

    code: ErrorCode
    text: str


Effect = Attempt | GiveUp


class RecoveryMachine:
    """One request that may outlive its drivers; its first attempt is under way when it is made."""

    def __init__(self, started_at: Micros, policy: RecoveryPolicy | None = None, *, is_awaited: bool = False) -> None:
        """``is_awaited``: the model is known, and if nobody serves it just now somebody is about to."""
        self._policy = policy or RecoveryPolicy()
        self._is_awaited = is_awaited
        self._started_at = started_at
        self._cause: AttemptFailed | None = None
        """The loss that the present stall began with; None while tokens come."""
        self._gives_up_at = Micros(0)
        self._repeats_at = Micros(0)
        self._pause_us = self._policy.first_pause_us
        self._losses = 0
        self._recoveries = 0
        self._is_waiting = False
        self.stalled_at = started_at
        """When the present stall began, or the last one."""

    @property
    def is_stalled(self) -> bool:
        """Whether a loss has not been made good yet by a new token."""
        return self._cause is not None

    @property
    def cause(self) -> AttemptFailed | None:
        """What the present stall began with."""
        return self._cause

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due; None while an attempt is under way."""
        return min(self._repeats_at, self._gives_up_at) if self._is_waiting else None

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case AttemptFailed():
                return self._on_failure(event, now)
            case TokenGiven():
                self._cause = None
                self._losses = 0
                self._pause_us = self._policy.first_pause_us
                return ()
            case RoutesChanged():
                return self._attempt(may_repeat=False) if self._is_waiting else ()
            case DeadlinePassed():
                return self._on_deadline(now)

    def _on_failure(self, failure: AttemptFailed, now: Micros) -> tuple[Effect, ...]:
        is_first = self._cause is None
        is_loss = self._is_loss(failure)
        if not is_loss and (
            outlook_of(failure.code) is Outlook.FINAL or (is_first and not self._is_worth_waiting(failure))
        ):
            return (GiveUp(failure.code, failure.text),)
        if is_first:
            self._cause = failure
            self.stalled_at = now
            self._gives_up_at = Micros(now + self._policy.wait_us(now - self._started_at))
        if is_loss and (failure.reached is Reached.ADMISSION or failure.code not in _ABSENT):
            self._losses += 1
            self._recoveries += 1
            if not is_first:
                self._grant_time(now)
        if self._losses >= self._policy.losses_without_token or self._recoveries > self._policy.most_recoveries:
            return (GiveUp(failure.code, failure.text),)
        if now >= self._gives_up_at:
            return self._give_up()
        if failure.reached is not Reached.NOBODY or now >= self._repeats_at:
            self._repeats_at = Micros(now + self._pause_us)
            self._pause_us = min(2 * self._pause_us, self._policy.longest_pause_us)
        self._is_waiting = True
        return self._attempt(may_repeat=False) if is_loss and failure.reached is not Reached.NOBODY else ()

    def _is_worth_waiting(self, failure: AttemptFailed) -> bool:
        """A driver that was found and is not ready has just lost its run; one without room says what is so."""
        if failure.code is ErrorCode.OVERLOADED:
            return False
        return self._is_awaited or (failure.reached is Reached.DRIVER and failure.code is ErrorCode.MODEL_NOT_READY)

    def _grant_time(self, now: Micros) -> None:
        """A run had taken the request up and was lost as well: the one after it gets its time, within the longest."""
        latest = self.stalled_at + self._policy.longest_wait_us
        self._gives_up_at = Micros(min(max(self._gives_up_at, now + self._policy.least_wait_us), latest))

    def _is_loss(self, failure: AttemptFailed) -> bool:
        """A driver that had admitted the request and is not ready any more has lost it."""
        outlook = outlook_of(failure.code)
        return outlook is Outlook.LOSS or (outlook is Outlook.NOT_YET and failure.reached is Reached.ADMISSION)

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        if not self._is_waiting or now < min(self._repeats_at, self._gives_up_at):
            return ()
        if now >= self._gives_up_at:
            return self._give_up()
        return self._attempt(may_repeat=True)

    def _attempt(self, *, may_repeat: bool) -> tuple[Effect, ...]:
        self._is_waiting = False
        return (Attempt(may_repeat),)

    def _give_up(self) -> tuple[Effect, ...]:
        assert self._cause is not None
        self._is_waiting = False
        return (GiveUp(self._cause.code, f"{self._cause.text}; nobody took over in time"),)
