"""One request for ``mesh``: who is asked when, which answer is the client's, and when waiting is over.

Drafts come first. The answer is, in this order:

- *agreement*: what more than half of all who were asked mean alike, as soon as nobody who is still out can change that;
- *only*: the one draft, where all others failed;
- *arbitrated*: of the drafts that are whole the one with the most votes, then one whose model was sure enough, then
  that of the strongest; it must have two votes or be sure enough, and all must call the same functions or none;
- *reduced*: what a model makes of the drafts, the strongest that did not fail; a second one is asked beside it when it
  is slow, and the first that begins is the answer;
- *fallback*: the best draft where nobody reduces them.

A turn that answers calls of tools goes to that ladder at once (*continued*): what there is to decide was decided when
the tools were called. Which drafts are there when time is up depends on time; the decision is a function of them alone.
What a draft is stays in ``drafts``, what models are asked in ``asking``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.quantities import Micros
from p2pmesh.core.mixture.drafts import Draft
from p2pmesh.core.mixture.roles import MixturePolicy, Role, Worker

MAX_REDUCERS = 2
"""That run at a time."""


class Decision(StrEnum):
    """How the answer came to be."""

    AGREEMENT = "agreement"
    ONLY = "only"
    ARBITRATED = "arbitrated"
    REDUCED = "reduced"
    FALLBACK = "fallback"
    CONTINUED = "continued"


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begin:
    """The request has come."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker's draft is there."""

    index: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Failed:
    """Whoever was asked under this index gives nothing."""

    index: int
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class Begun:
    """Who reduces the drafts has begun to answer."""

    index: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = Begin | Answered | Failed | Begun | DeadlinePassed


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a model for a draft, or without a ``role`` for the answer that the drafts are reduced to."""

    index: int
    model: str
    role: Role | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Nothing more is wanted of it: cancel it."""

    index: int


@dataclass(frozen=True, slots=True)
class Give:
    """The draft of this index is the answer. Nothing follows."""

    index: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Follow:
    """What comes from this index is the answer, to its end. Nothing follows."""

    index: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request ends with this error. Nothing follows."""

    code: ErrorCode
    text: str


Effect = Ask | Drop | Give | Follow | GiveUp


class Phase(StrEnum):
    """Where a request is."""

    NEW = "new"
    DRAFTING = "drafting"
    REDUCING = "reducing"
    OVER = "over"


class MixtureMachine:
    """One request. ``workers`` are those of ``roles.assign_roles``: each has its place in them as its index."""

    def __init__(
        self, workers: Sequence[Worker], policy: MixturePolicy, *, has_tools: bool = False, is_continuing: bool = False
    ) -> None:
        self._workers = tuple(workers)
        self._policy = policy
        self._has_tools = has_tools
        self._is_continuing = is_continuing
        self._phase = Phase.NEW
        self._began_at = Micros(0)
        self._pending: dict[int, Micros] = {}
        """Those that are out, in the order of asking, and since when."""
        self._drafts: dict[int, Draft] = {}
        self._meanings: dict[int, str] = {}
        """Of those that could be the answer, read once: each comparison would parse every call's arguments again."""
        self._failures: dict[int, Failed] = {}
        self._first_at: Micros | None = None
        """When the first draft came that could be the answer."""
        self._ladder: list[str] = []
        """Models that may still be asked to reduce, the next one first."""
        self._next_index = 0 if is_continuing else len(self._workers)

    @property
    def phase(self) -> Phase:
        """Where the request is."""
        return self._phase

    @property
    def pending(self) -> tuple[int, ...]:
        """Those that are out."""
        return tuple(self._pending)

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due."""
        match self._phase:
            case Phase.DRAFTING:
                return self._drafts_due()
            case Phase.REDUCING:
                return self._reducing_due()
            case _:
                return None

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event; none of one that comes late."""
        if isinstance(event, Begin):
            return self._begin(now) if self._phase is Phase.NEW else ()
        if isinstance(event, DeadlinePassed):
            due = self.deadline()
            return () if due is None or now < due else self._on_deadline(now)
        if event.index not in self._pending:
            return ()
        match event:
            case Answered():
                return self._on_draft(event, now)
            case Failed():
                return self._on_failure(event, now)
            case Begun():
                return self._on_begun(event)

    def _begin(self, now: Micros) -> tuple[Effect, ...]:
        self._began_at = now
        if self._is_continuing:
            return self._reduce(now)
        self._phase = Phase.DRAFTING
        self._pending = dict.fromkeys(range(len(self._workers)), now)
        return tuple(Ask(index, one.model, one.role) for index, one in enumerate(self._workers))

    # --- drafting --------------------------------------------------------------
    def _on_draft(self, event: Answered, now: Micros) -> tuple[Effect, ...]:
        if self._phase is not Phase.DRAFTING:
            return ()
        del self._pending[event.index]
        self._drafts[event.index] = event.draft
        if event.draft.is_usable:
            self._meanings[event.index] = event.draft.meaning
        if event.draft.is_usable and self._first_at is None:
            self._first_at = now
        return self._decide_early(now)

    def _on_failure(self, event: Failed, now: Micros) -> tuple[Effect, ...]:
        del self._pending[event.index]
        self._failures[event.index] = event
        return self._climb(now) if self._phase is Phase.REDUCING else self._decide_early(now)

    def _decide_early(self, now: Micros) -> tuple[Effect, ...]:
        agreed = self._agreed()
        if agreed is not None:
            return self._give(agreed, Decision.AGREEMENT)
        return () if self._pending else self._decide(now)

    def _agreed(self) -> int | None:
        """A draft that has most of the votes whatever becomes of those that are out."""
        most = len(self._pending) + len(self._drafts)
        best = self._best()
        if best is None or len(self._drafts) < 2 or 2 * self._votes(best) <= most:
            return None
        return best

    def _drafts_due(self) -> Micros:
        latest = self._began_at + self._policy.worker_us
        if self._has_tools or self._first_at is None:
            return Micros(latest)
        due = self._first_at + self._policy.grace_us
        if any(self._workers[index].role is Role.STRONG for index in self._pending):
            due = max(due, self._began_at + self._policy.patience_us)
        return Micros(min(due, latest))

    def _decide(self, now: Micros) -> tuple[Effect, ...]:
        """Of the drafts that are there."""
        dropped = self._drop_pending()
        best = self._best()
        if best is not None:
            if len(self._failures) == len(self._workers) - 1:
                return (*dropped, *self._give(best, Decision.ONLY))
            if self._is_clear(best):
                return (*dropped, *self._give(best, Decision.ARBITRATED))
        elif len(self._failures) == len(self._workers):
            return self._give_up()
        return (*dropped, *self._reduce(now))

    def _is_clear(self, best: int) -> bool:
        if self._has_tools and len({self._drafts[index].called for index in self._usable()}) > 1:
            return False
        return self._votes(best) > 1 or self._is_sure(best)

    def _best(self) -> int | None:
        """Workers stand in the order of their strength."""
        return min(
            self._usable(),
            key=lambda index: (-self._votes(index), not self._is_sure(index), index),
            default=None,
        )

    def _usable(self) -> list[int]:
        return sorted(self._meanings)

    def _votes(self, index: int) -> int:
        return list(self._meanings.values()).count(self._meanings[index])

    def _is_sure(self, index: int) -> bool:
        policy = self._policy
        least = policy.tool_confidence_milli if self._has_tools else policy.confidence_milli
        return self._drafts[index].confidence_milli >= least

    # --- reducing --------------------------------------------------------------
    def _reduce(self, now: Micros) -> tuple[Effect, ...]:
        self._phase = Phase.REDUCING
        self._began_at = now
        well = [one.model for index, one in enumerate(self._workers) if index not in self._failures]
        failed = [one.model for index, one in enumerate(self._workers) if index in self._failures]
        self._ladder = [*well, *failed]
        return self._climb(now)

    def _climb(self, now: Micros) -> tuple[Effect, ...]:
        """Asks the next model, or ends what cannot be reduced."""
        if self._ladder and len(self._pending) < MAX_REDUCERS:
            index, self._next_index = self._next_index, self._next_index + 1
            self._pending[index] = now
            return (Ask(index, self._ladder.pop(0), None),)
        return () if self._pending else self._fall_back()

    def _reducing_due(self) -> Micros:
        latest = self._began_at + self._policy.reducer_us
        if not self._ladder or len(self._pending) >= MAX_REDUCERS:
            return Micros(latest)
        return Micros(min(latest, max(self._pending.values()) + self._policy.hedge_us))

    def _on_begun(self, event: Begun) -> tuple[Effect, ...]:
        if self._phase is not Phase.REDUCING:
            return ()
        del self._pending[event.index]
        dropped = self._drop_pending()
        self._phase = Phase.OVER
        decision = Decision.CONTINUED if self._is_continuing else Decision.REDUCED
        return (*dropped, Follow(event.index, decision))

    def _fall_back(self) -> tuple[Effect, ...]:
        best = self._best()
        if best is None:  # what broke off at a role's limit is better than nothing
            best = min((index for index, one in self._drafts.items() if one.text.strip()), default=None)
        return self._give_up() if best is None else self._give(best, Decision.FALLBACK)

    # --- the end ---------------------------------------------------------------
    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        if self._phase is Phase.DRAFTING:
            return self._decide(now)
        if now < self._began_at + self._policy.reducer_us:
            return self._climb(now)
        return (*self._drop_pending(), *self._fall_back())

    def _give(self, index: int, decision: Decision) -> tuple[Effect, ...]:
        dropped = self._drop_pending()
        self._phase = Phase.OVER
        return (*dropped, Give(index, decision))

    def _give_up(self) -> tuple[Effect, ...]:
        """With what the strongest of those that said anything failed of."""
        self._phase = Phase.OVER
        if not self._failures:
            return (GiveUp(ErrorCode.DEADLINE_EXCEEDED, "no model began to answer in time; try again, or name one"),)
        cause = self._failures[min(self._failures)]
        return (GiveUp(cause.code, cause.text),)

    def _drop_pending(self) -> tuple[Effect, ...]:
        dropped = tuple(Drop(index) for index in self._pending)
        self._pending = {}
        return dropped
