"""Whether a machine gives anything now: by the hours of its owner, and by whether the owner uses it.

Owns when a machine stops giving, and how politely: first nothing new comes and others are asked to take over what is
here; whoever still uses it has until a deadline; what is left then is ended. How stages are moved is
``core.replanning``'s, at their coordinators; how a request survives the end of one is ``core.recovery``'s.
"""

from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.share_hours import LocalTime, ShareHours

DEFAULT_LEAVE_S = 120
DEFAULT_IDLE_AFTER_S = 300


class SharingPhase(StrEnum):
    """What a machine does for others."""

    GIVING = "giving"
    LEAVING = "leaving"
    RESTING = "resting"


class RestReason(StrEnum):
    """Why nothing is given."""

    HOURS = "hours"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class SharingRules:
    """What an owner wants: hours, and whether only an idle machine is shared; an owner who touched nothing for
    ``idle_after_s`` is away. Whoever uses the machine has ``leave_us`` to go."""

    hours: ShareHours = ShareHours()
    is_only_idle: bool = False
    idle_after_s: int = DEFAULT_IDLE_AFTER_S
    leave_us: int = DEFAULT_LEAVE_S * MICROS_PER_SECOND
    quiet_us: int = 10 * MICROS_PER_SECOND
    """So long others have to load what nobody uses here before it is ended."""

    @property
    def is_always(self) -> bool:
        """Whether the machine gives at all times."""
        return not self.hours.spans and not self.is_only_idle


@dataclass(frozen=True, slots=True)
class OwnerSigns:
    """What tells of the owner. ``idle_s`` since a key or a mouse was last used, None where nothing tells that;
    ``told_by`` names what does."""

    idle_s: int | None = None
    told_by: tuple[str, ...] = ()

    def is_owner_here(self, rules: SharingRules, *, is_busy: bool) -> bool:
        """Whether the owner uses the machine. Other programs that keep it busy count as much as a key does."""
        return is_busy or (self.idle_s is not None and self.idle_s < rules.idle_after_s)


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Looked:
    """How things are: the local time, whether the owner is here, whether any stage is, and whether one works."""

    local: LocalTime
    is_owner_here: bool = False
    is_holding: bool = False
    is_working: bool = False


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The owner wants otherwise from now on; ``seen`` is how things are."""

    rules: SharingRules
    seen: Looked


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = Looked | RulesChanged | DeadlinePassed


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Give:
    """Offer again what the owner allows."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Take nothing new, and say so, so that others take over; at ``until`` what is left is ended."""

    reason: RestReason
    until: Micros


@dataclass(frozen=True, slots=True)
class EndStages:
    """End every stage that is still here."""

    reason: RestReason


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing of others is here any more, and nothing is taken; told again when the reason becomes another."""

    reason: RestReason


Effect = Give | Leave | EndStages | Rest


class SharingMachine:
    """Of one node. Before the first look it gives nothing, unless it gives at all times."""

    def __init__(self, rules: SharingRules) -> None:
        self._rules = rules
        self._seen: Looked | None = None
        self._phase = SharingPhase.GIVING if rules.is_always else SharingPhase.RESTING
        self._reason: RestReason | None = None
        self._since = Micros(0)

    @property
    def rules(self) -> SharingRules:
        """What the owner wants now."""
        return self._rules

    @property
    def phase(self) -> SharingPhase:
        """What is done now."""
        return self._phase

    @property
    def reason(self) -> RestReason | None:
        """Why nothing is given; None while something is, and before the first look."""
        return self._reason

    def deadline(self) -> Micros | None:
        """When stages that are left are ended."""
        return self._until if self._phase is SharingPhase.LEAVING else None

    def next_change(self) -> LocalTime | None:
        """When the hours begin or end, for whoever asks; None without hours."""
        return None if self._seen is None else self._rules.hours.next_change(self._seen.local)

    @property
    def _until(self) -> Micros:
        return Micros(self._since + self._rules.leave_us)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case Looked():
                self._seen = event
            case RulesChanged(rules, seen):
                self._rules, self._seen = rules, seen
            case DeadlinePassed():
                return self._on_deadline(now)
        return self._decide(self._seen, now)

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        if self._phase is not SharingPhase.LEAVING or self._reason is None or now < self._until:
            return ()
        return self._end(self._reason)

    def _decide(self, seen: Looked, now: Micros) -> tuple[Effect, ...]:
        reason = self._why_not(seen)
        if reason is None:
            return self._give()
        before, self._reason = self._reason, reason
        match self._phase:
            case SharingPhase.GIVING:
                self._phase, self._since = SharingPhase.LEAVING, now
                return (Leave(reason, self._until), *self._go_on_leaving(reason, seen, now))
            case SharingPhase.LEAVING:
                return self._go_on_leaving(reason, seen, now)
            case SharingPhase.RESTING:
                return () if before is reason else (Rest(reason),)

    def _why_not(self, seen: Looked) -> RestReason | None:
        if not self._rules.hours.is_open(seen.local):
            return RestReason.HOURS
        return RestReason.OWNER if self._rules.is_only_idle and seen.is_owner_here else None

    def _give(self) -> tuple[Effect, ...]:
        if self._phase is SharingPhase.GIVING:
            return ()
        self._phase, self._reason = SharingPhase.GIVING, None
        return (Give(),)

    def _go_on_leaving(self, reason: RestReason, seen: Looked, now: Micros) -> tuple[Effect, ...]:
        if not seen.is_holding:
            self._phase = SharingPhase.RESTING
            return (Rest(reason),)
        is_quiet = not seen.is_working and now >= self._since + self._rules.quiet_us
        return self._end(reason) if is_quiet or now >= self._until else ()

    def _end(self, reason: RestReason) -> tuple[Effect, ...]:
        self._phase = SharingPhase.RESTING
        return (EndStages(reason), Rest(reason))
