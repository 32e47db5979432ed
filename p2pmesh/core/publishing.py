"""Who lists a public pool, and when: one member does, the others watch, and one of them takes over when it is gone.

Owns the rhythm of publishing, the client cap, the takeover watchdog and what two listings of one mesh mean. What a
listing holds and which relays it goes to is ``node.pool``'s; which pool a node belongs to is ``core.pool_choice``'s.

The timings are Mesh LLM's (published every 60 s; first check after 10 to 29 s, then every 20 to 34 s; a missing listing
is looked for again after 3 to 9 s). Three things keep a large pool from publishing all at once. Whoever watches is told
by the members that are alive: the first eight by depth and peer id; all others look ten times less often. Within the 3
to 9 s each has a place of its own, by the same order. And of two that publish all the same the later one in that order
withdraws. A publisher that the membership knows to be gone is missing at once, before its listing expires; one that
nobody here knows may be of a part of the mesh that was cut off, so it is dialled first.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.draws import Draws

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PublishingPolicy:
    """Times in microseconds; pairs are from and to."""

    interval_us: int = 60 * MICROS_PER_SECOND
    first_wait_us: int = 60 * MICROS_PER_SECOND
    """A pool that serves nothing yet is listed only after so long."""
    retry_us: int = 15 * MICROS_PER_SECOND
    first_check_us: Range = (10 * MICROS_PER_SECOND, 29 * MICROS_PER_SECOND)
    check_us: Range = (20 * MICROS_PER_SECOND, 34 * MICROS_PER_SECOND)
    rare_check_us: Range = (200 * MICROS_PER_SECOND, 340 * MICROS_PER_SECOND)
    takeover_us: Range = (3 * MICROS_PER_SECOND, 9 * MICROS_PER_SECOND)
    watchers: int = 8
    unreached_for_us: int = 120 * MICROS_PER_SECOND
    """A publisher that was not reached is no member for as long as its last listing lives."""
    reached_for_us: int = 600 * MICROS_PER_SECOND
    """One that was reached is a member beyond the view of a large pool; nobody dials it at each look."""
    max_dialled: int = 64
    cap_kept_us: int = 600 * MICROS_PER_SECOND
    """A cap outlives the member that listed the pool with it for so long: whoever is gone closes no pool for ever."""


class Phase(StrEnum):
    """What a node does for the listing of its pool."""

    WATCHING = "watching"
    TAKING_OVER = "taking_over"
    """It was missing; a second look decides."""
    PUBLISHING = "publishing"
    FULL = "full"
    """We list it, but for the client cap."""
    UNLISTED = "unlisted"
    """Our operator wants no listing by this node now: it neither lists the pool nor looks."""
    OVER = "over"


@dataclass(frozen=True, slots=True, order=True)
class Lister:
    """A member that may list the pool, in the order in which members are asked to: ``depth`` is passes to the
    founder, whose invites are the shortest."""

    depth: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class Seen:
    """A listing of our mesh that a relay holds: who made its invite, and its client cap."""

    lister: Lister
    max_clients: int = 0


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """What the membership says now: who is alive, us included, how many only use the pool, whether it serves."""

    alive: tuple[Lister, ...]
    clients: int
    is_serving: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """Relays answered with the listings of our mesh."""

    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """No relay answered; so nothing is known to be missing."""


@dataclass(frozen=True, slots=True)
class Published:
    """A listing was taken by a relay, or by none."""

    is_taken: bool


@dataclass(frozen=True, slots=True)
class Dialled:
    """A publisher that we did not know was reached and let us in, or was not."""

    peer: PeerId
    is_reached: bool


@dataclass(frozen=True, slots=True)
class WishChanged:
    """The operator wants the pool listed by this node, or not, below so many clients (0: no cap)."""

    is_listing: bool
    max_clients: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The node ends."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline."""


@dataclass(frozen=True, slots=True)
class Check:
    """Ask the relays for the listings of our mesh."""


@dataclass(frozen=True, slots=True)
class Publish:
    """List the pool, with what is so now."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete our listing."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Join the publisher of a listing of our mesh: a part of it that we are cut off from."""

    peer: PeerId


Event = PoolChanged | Checked | CheckFailed | Published | Dialled | WishChanged | Leave | DeadlinePassed
Effect = Check | Publish | Withdraw | Dial


@dataclass(slots=True)
class PublishingMachine:
    """One member's part in keeping its pool listed.

    ``is_eager`` is who was told to list the pool, and does so without waiting while it is alone; ``max_clients`` 0 is
    no cap of its own, and another member's is kept while it is known.
    """

    own: Lister
    draws: Draws
    now: Micros
    is_eager: bool = False
    max_clients: int = 0
    policy: PublishingPolicy = field(default_factory=PublishingPolicy)
    phase: Phase = field(default=Phase.WATCHING, init=False)
    publisher: PeerId | None = field(default=None, init=False)
    """Who lists the pool, as far as we know."""
    _alive: tuple[Lister, ...] = field(default=(), init=False)
    _clients: int = field(default=0, init=False)
    _is_serving: bool = field(default=False, init=False)
    _check_at: Micros = field(default=Micros(0), init=False)
    _is_checking: bool = field(default=False, init=False)
    _publish_at: Micros | None = field(default=None, init=False)
    _dialled: dict[PeerId, tuple[bool, Micros]] = field(default_factory=dict, init=False)
    """Whether a publisher beyond our view was reached, and until when that counts."""
    _learned_cap: int = field(default=0, init=False)
    _cap_seen: tuple[PeerId, Micros] | None = field(default=None, init=False)
    """Whose listing had it, and when that was seen last."""
    _was_listed: bool = field(default=False, init=False)
    """Whether anybody's listing of the pool was ever seen: then it is one, whatever it serves now."""

    def __post_init__(self) -> None:
        self._alive = (self.own,)
        self._check_at = self.now if self.is_eager else self._after(self.now, self.policy.first_check_us)

    # --- the machine ----------------------------------------------------------------
    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """See the module."""
        if self.phase is Phase.OVER:
            return ()
        match event:
            case PoolChanged():
                self._alive, self._clients, self._is_serving = event.alive, event.clients, event.is_serving
                self.own = next((one for one in event.alive if one.peer == self.own.peer), self.own)
                return self._follow_pool(now)
            case WishChanged():
                return self._take_wish(event, now)
            case Checked(seen):
                self._is_checking = False
                return () if self.phase is Phase.UNLISTED else self._judge(seen, now)
            case CheckFailed():
                self._is_checking = False
                self._check_at = self._after(now, self.policy.check_us)
            case Published(is_taken):
                return self._note_published(now, is_taken=is_taken)
            case Dialled(peer, is_reached):
                return self._note_dialled(peer, now, is_reached=is_reached)
            case Leave():
                return self._leave()
            case DeadlinePassed():
                return self._tick(now)
        return ()

    def deadline(self) -> Micros | None:
        """When something is due."""
        if self.phase in (Phase.OVER, Phase.UNLISTED):
            return None
        due = [] if self._is_checking else [self._check_at]
        due += [self._publish_at] if self._publish_at is not None else []
        return min(due, default=None)

    @property
    def learned_cap(self) -> int:
        """The client cap of the listing that was seen last of a member before us; 0: none."""
        return self._learned_cap

    @property
    def next_publish_at(self) -> Micros | None:
        """When our listing is due again; None where another lists the pool, or it is full."""
        return self._publish_at

    # --- time -----------------------------------------------------------------------
    def _tick(self, now: Micros) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        if self.phase is Phase.UNLISTED:
            return ()
        if self._publish_at is not None and now >= self._publish_at:
            self._publish_at = Micros(now + self.policy.interval_us)
            effects.append(Publish())
        if not self._is_checking and now >= self._check_at:
            self._is_checking = True
            effects.append(Check())
        return tuple(effects)

    def _after(self, now: Micros, span: Range) -> Micros:
        first, last = span
        return Micros(now + first + self.draws.below(max(1, last - first)))

    def _next_check(self, now: Micros) -> Micros:
        is_watcher = self._place() < self.policy.watchers or self.phase is not Phase.WATCHING
        return self._after(now, self.policy.check_us if is_watcher else self.policy.rare_check_us)

    def _place(self) -> int:
        """How many members are asked to list the pool before us."""
        return sum(one < self.own for one in self._alive)

    def _takeover_at(self, now: Micros) -> Micros:
        """Our place within the 3 to 9 s; who comes after the watchers shares the last one."""
        first, last = self.policy.takeover_us
        width = (last - first) // (self.policy.watchers + 1)
        place = min(self._place(), self.policy.watchers)
        return Micros(now + first + place * width + self.draws.below(max(1, width // 2)))

    # --- what the membership says -----------------------------------------------------
    def _take_wish(self, event: WishChanged, now: Micros) -> tuple[Effect, ...]:
        self.max_clients = event.max_clients
        if event.is_listing and self.phase is Phase.UNLISTED:
            self.phase, self.is_eager, self._check_at = Phase.WATCHING, True, now
        elif not event.is_listing and self.phase is not Phase.UNLISTED:
            is_listed = self.phase is Phase.PUBLISHING
            self.phase, self.publisher, self._publish_at = Phase.UNLISTED, None, None
            return (Withdraw(),) if is_listed else ()
        return self._follow_pool(now)

    def _follow_pool(self, now: Micros) -> tuple[Effect, ...]:
        if self.phase is Phase.PUBLISHING and self._is_full():
            self.phase, self._publish_at = Phase.FULL, None
            return (Withdraw(),)
        if self.phase is Phase.FULL and not self._is_full():
            self.phase, self._publish_at = Phase.PUBLISHING, now
        elif self.phase is Phase.PUBLISHING and self._is_serving and self._publish_at == self._first_due():
            self._publish_at = now
        elif self.phase is Phase.WATCHING and self._is_orphaned(now) and self._place() < self.policy.watchers:
            self._miss(now)
        return ()

    def _is_orphaned(self, now: Micros) -> bool:
        """Whether the member that listed the pool is gone."""
        return self.publisher is not None and not self._is_member(self.publisher, now)

    def _is_member(self, peer: PeerId, now: Micros) -> bool:
        is_reached, until = self._dialled.get(peer, (False, Micros(0)))
        return any(one.peer == peer for one in self._alive) or (is_reached and now < until)

    def _is_full(self) -> bool:
        cap = self.max_clients or self._learned_cap
        return bool(cap) and self._clients >= cap

    def _miss(self, now: Micros) -> None:
        self.phase, self.publisher = Phase.TAKING_OVER, None
        self._check_at = self._takeover_at(now)

    # --- what relays hold ---------------------------------------------------------------
    def _judge(self, seen: tuple[Seen, ...], now: Micros) -> tuple[Effect, ...]:
        others = sorted((one for one in seen if one.lister.peer != self.own.peer), key=lambda one: one.lister)
        known = [one for one in others if self._is_member(one.lister.peer, now)]
        unknown = [one for one in others if one not in known and self._is_worth_dialling(one.lister.peer, now)]
        effects: list[Effect] = [Dial(one.lister.peer) for one in unknown[:1]]
        self._was_listed = self._was_listed or bool(others)
        if known and known[0].lister < self.own:
            self._learned_cap, self._cap_seen = known[0].max_clients, (known[0].lister.peer, now)
        if self.phase in (Phase.PUBLISHING, Phase.FULL):
            effects += self._yield_to(known)
        elif known:
            self.phase, self.publisher = Phase.WATCHING, known[0].lister.peer
        elif self._is_second_look():
            self._become_publisher(now)
        elif not unknown:
            self._miss(now)
            return tuple(effects)
        self._check_at = self._next_check(now)
        return tuple(effects)

    def _is_second_look(self) -> bool:
        """Nobody else is there to be asked first, or all had their turn."""
        return self.phase is Phase.TAKING_OVER or (self.is_eager and len(self._alive) == 1)

    def _is_worth_dialling(self, peer: PeerId, now: Micros) -> bool:
        return self._dialled.get(peer, (False, Micros(0)))[1] <= now

    def _yield_to(self, known: list[Seen]) -> list[Effect]:
        """Of two that list one pool the later one in the order of members withdraws."""
        if not known or known[0].lister > self.own:
            return []
        is_listed = self.phase is Phase.PUBLISHING
        self.phase, self.publisher, self._publish_at = Phase.WATCHING, known[0].lister.peer, None
        return [Withdraw()] if is_listed else []

    def _become_publisher(self, now: Micros) -> None:
        self._forget_cap_of_the_gone(now)
        if self._is_full():  # whoever listed it lists it again; several of us would do so at once
            self.phase = Phase.WATCHING
            return
        self.phase, self.publisher = Phase.PUBLISHING, self.own.peer
        is_due = self._is_serving or self._was_listed
        self._publish_at = now if is_due else Micros(max(now, self._first_due()))

    def _forget_cap_of_the_gone(self, now: Micros) -> None:
        if self._cap_seen is None:
            return
        peer, at = self._cap_seen
        if now - at >= self.policy.cap_kept_us and not self._is_member(peer, now):
            self._learned_cap, self._cap_seen = 0, None

    def _first_due(self) -> Micros:
        return Micros(self.now + self.policy.first_wait_us)

    # --- outcomes -------------------------------------------------------------------------
    def _note_published(self, now: Micros, *, is_taken: bool) -> tuple[Effect, ...]:
        if not is_taken and self.phase is Phase.PUBLISHING:
            self._publish_at = Micros(now + self.policy.retry_us)
        return ()

    def _note_dialled(self, peer: PeerId, now: Micros, *, is_reached: bool) -> tuple[Effect, ...]:
        """A part of the mesh that is found again is seen at the next look; one that is not reached is gone for us."""
        self._dialled.pop(peer, None)
        while len(self._dialled) >= self.policy.max_dialled:
            del self._dialled[next(iter(self._dialled))]
        lasts_us = self.policy.reached_for_us if is_reached else self.policy.unreached_for_us
        self._dialled[peer] = (is_reached, Micros(now + lasts_us))
        if self.phase is Phase.WATCHING:
            self._check_at = min(self._check_at, self._takeover_at(now))
        return ()

    def _leave(self) -> tuple[Effect, ...]:
        is_listed = self.phase is Phase.PUBLISHING
        self.phase, self._publish_at = Phase.OVER, None
        return (Withdraw(),) if is_listed else ()
