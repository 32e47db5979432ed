"""Which pool of those that are listed is joined: the published score, and a race in which claims are checked first.

Owns how a listing counts, in which order pools are asked, and when enough have answered. Whether a listing may be read
at all is ``wire.listing``'s; dialling, asking and joining are ``node.pool``'s.

A listing says what it likes. So before anything is dialled its claims only order the questions, capped where the
published score has no bound; then what a reached peer itself says counts, and the nearest of equals by the round trip.
A pool whose peers cannot be reached loses to every one that can.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from p2pmesh.base.ids import MeshId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.hosts import hosts_of

T = TypeVar("T")

SERVICE_NAMES = frozenset({"mesh-llm", "p2pmesh"})
"""A pool that is called as the service counts as one without a name (the score's rule, any case)."""
BASE_SCORE = 100
OPEN_SCORE = 300
LAST_MESH_SCORE = 500
FULL_SCORE = -1000
MAX_HEADROOM_SCORE = 20
NODE_SCORE = 5
MAX_SCORED_NODES = 10
SERVING_SCORE = 10
WANTED_SCORE = 15
MAX_SCORED_SERVING = 10
"""In our own rank; the published score counts as many as are claimed."""


@dataclass(frozen=True, slots=True)
class PoolClaims:
    """What a pool says of itself, in a listing or when it is asked. ``max_clients`` 0 is no limit."""

    mesh_id: MeshId
    name: str = ""
    nodes: int = 1
    serving: int = 0
    wanted: int = 0
    clients: int = 0
    max_clients: int = 0

    @property
    def is_open(self) -> bool:
        """Whether anybody may join it unasked: it has no name, or the service's."""
        return not self.name or self.name.lower() in SERVICE_NAMES

    @property
    def is_full(self) -> bool:
        """Whether it is at its client cap."""
        return bool(self.max_clients) and self.clients >= self.max_clients


def published_score(claims: PoolClaims, last_mesh: MeshId | None = None) -> int:
    """The score as Mesh LLM publishes it, from claims alone: below 1 a pool is left out."""
    score = BASE_SCORE
    score += OPEN_SCORE * claims.is_open
    score += LAST_MESH_SCORE * (claims.mesh_id == last_mesh)
    if claims.is_full:
        score += FULL_SCORE
    elif claims.max_clients:
        score += min(claims.max_clients - claims.clients, MAX_HEADROOM_SCORE)
    score += NODE_SCORE * min(claims.nodes, MAX_SCORED_NODES)
    return score + SERVING_SCORE * claims.serving + WANTED_SCORE * claims.wanted


def bounded_score(claims: PoolClaims, last_mesh: MeshId | None = None) -> int:
    """Our own rank: the same, where nothing counts that nobody can check, and no count without a bound."""
    serving = min(claims.serving, MAX_SCORED_SERVING)
    return published_score(replace(claims, serving=serving, wanted=0), last_mesh)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: an open pool, or with ``name`` the pools of exactly that name, whatever their score."""

    name: str = ""
    last_mesh: MeshId | None = None
    besides: frozenset[MeshId] = frozenset()
    """Meshes that are not looked for: where the node is already."""

    def takes(self, claims: PoolClaims) -> bool:
        """Whether a pool may be joined unasked."""
        if claims.mesh_id in self.besides:
            return False
        if self.name:
            return claims.name == self.name
        return claims.is_open and bounded_score(claims, self.last_mesh) > 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A listed pool: the ``key`` of its listing, what it claims, and where it would have us dial."""

    key: str
    claims: PoolClaims
    addresses: tuple[str, ...]
    is_doubtful: bool = False
    """An earlier search did not reach it: it is asked after all others."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A pool that was reached: what it said itself, and how far it is."""

    key: str
    claims: PoolClaims
    rtt_us: int


def rank_checked(found: Iterable[Checked], wanted: Wanted) -> tuple[Checked, ...]:
    """Reached pools that may be joined, each once, the best first: by score, then the nearest."""
    fit = (one for one in found if wanted.takes(one.claims))
    best: dict[MeshId, Checked] = {}
    for one in sorted(fit, key=lambda one: (-bounded_score(one.claims, wanted.last_mesh), one.rtt_us, one.key)):
        best.setdefault(one.claims.mesh_id, one)
    return tuple(best.values())


def is_worth_moving(own: PoolClaims, other: PoolClaims) -> bool:
    """Whether a node that is alone in its pool gives it up for another, which was reached and said so itself.

    The other is larger; of two that are alone the one of the higher mesh id goes. So no two change places, and whoever
    has company stays.
    """
    if own.nodes > 1 or own.mesh_id == other.mesh_id or other.is_full:
        return False
    return other.nodes > 1 or other.mesh_id < own.mesh_id


# --- the race -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RacePolicy:
    """How many pools are asked at a time, how long each may take and all together, and how long the first waits.

    ``per_host`` of them may name one public address before all others had their turn.
    """

    parallel: int = 48
    candidates: int = 1024
    probe_us: int = 2_500_000
    total_us: int = 7 * MICROS_PER_SECOND
    grace_us: int = 700_000
    per_host: int = 2
    per_mesh: int = 4
    """Of one mesh so many are asked at a time: anybody may copy a listing, and all copies lead to one peer."""


@dataclass(frozen=True, slots=True)
class Listed:
    """All that relays list. Of listings of one mesh, copies among them, few are asked at a time, and none once one has
    answered."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """A probed pool answered."""

    checked: Checked


@dataclass(frozen=True, slots=True)
class Unreached:
    """A probe failed."""

    key: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Dial a candidate and ask it what it is."""

    key: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The race is over: pools that may be joined, the best first; probes that run are of no use."""

    ranked: tuple[Checked, ...]


Event = Listed | Reached | Unreached | DeadlinePassed
Effect = Probe | Settled


@dataclass(slots=True)
class PoolRace:
    """One search, from what is listed to who is joined. ``salt`` orders equals, so that no key is made to be first."""

    wanted: Wanted
    now: Micros
    salt: bytes = b""
    policy: RacePolicy = field(default_factory=RacePolicy)
    _waiting: list[Candidate] = field(default_factory=list, init=False)
    _known: set[str] = field(default_factory=set, init=False)
    _running: dict[str, tuple[MeshId, Micros]] = field(default_factory=dict, init=False)
    """Which mesh a probe asks for, and until when."""
    _found: dict[str, Checked] = field(default_factory=dict, init=False)
    _first_at: Micros | None = field(default=None, init=False)
    _is_listed: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """See the module."""
        if self._is_over:
            return ()
        match event:
            case Listed(candidates):
                self._take(candidates)
                self._is_listed = True
            case Reached(checked):
                if self._running.pop(checked.key, None) is not None:
                    self._note(checked, now)
            case Unreached(key):
                self._running.pop(key, None)
            case DeadlinePassed():
                late = [key for key, (_, until) in self._running.items() if until <= now]
                for key in late:
                    del self._running[key]
        if self._is_done(now):
            self._is_over = True
            return (Settled(rank_checked(self._found.values(), self.wanted)),)
        return self._start_probes(now)

    def deadline(self) -> Micros | None:
        """When a probe or the race is over."""
        if self._is_over:
            return None
        return min([self._ends_at(), *(until for _, until in self._running.values())])

    def _ends_at(self) -> Micros:
        at_last = self.now + self.policy.total_us
        return Micros(at_last if self._first_at is None else min(at_last, self._first_at + self.policy.grace_us))

    def _is_done(self, now: Micros) -> bool:
        return now >= self._ends_at() or (self._is_listed and not self._waiting and not self._running)

    def _note(self, checked: Checked, now: Micros) -> None:
        """A pool that may not be joined after all stops nobody's search."""
        if self.wanted.takes(checked.claims):
            self._found[checked.key] = checked
            self._first_at = now if self._first_at is None else self._first_at
            mesh_id = checked.claims.mesh_id
            self._waiting = [one for one in self._waiting if one.claims.mesh_id != mesh_id]

    def _take(self, candidates: tuple[Candidate, ...]) -> None:
        for one in sorted(candidates, key=self._order):
            is_new = one.key not in self._known and self.wanted.takes(one.claims)
            if is_new and len(self._known) < self.policy.candidates:
                self._known.add(one.key)
                self._waiting.append(one)
        by_claims = sorted(self._waiting, key=self._order)
        mixed = _alternating(by_claims, sorted(by_claims, key=self._mixed))
        self._waiting = by_turns(mixed, lambda one: one.addresses, self.policy.per_host)
        self._waiting.sort(key=lambda one: one.is_doubtful)

    def _order(self, candidate: Candidate) -> tuple[int, bytes]:
        return (-bounded_score(candidate.claims, self.wanted.last_mesh), self._mixed(candidate))

    def _mixed(self, candidate: Candidate) -> bytes:
        return hashlib.blake2b(candidate.key.encode(), key=self.salt[:64], digest_size=16).digest()

    def _start_probes(self, now: Micros) -> tuple[Effect, ...]:
        effects = []
        asked = Counter(mesh_id for mesh_id, _ in self._running.values())
        left: list[Candidate] = []
        for candidate in self._waiting:
            mesh_id = candidate.claims.mesh_id
            if len(self._running) >= self.policy.parallel or asked[mesh_id] >= self.policy.per_mesh:
                left.append(candidate)
                continue
            asked[mesh_id] += 1
            self._running[candidate.key] = (mesh_id, Micros(now + self.policy.probe_us))
            effects.append(Probe(candidate.key))
        self._waiting = left
        return tuple(effects)


def _alternating(by_claims: list[Candidate], by_chance: list[Candidate]) -> list[Candidate]:
    """Every other one by its claims, the others by chance: or whoever claims most, often enough, were asked alone."""
    taken: dict[str, Candidate] = {}
    for one, other in zip(by_claims, by_chance, strict=True):
        taken.setdefault(one.key, one)
        taken.setdefault(other.key, other)
    return list(taken.values())


def by_turns(ordered: Sequence[T], addresses: Callable[[T], tuple[str, ...]], per_host: int) -> list[T]:
    """The same pools; of those that name one public host only so many in each turn.

    Keys cost nothing and addresses do, so five hundred listings at one address delay nobody else's.
    """
    seen: dict[str, int] = {}
    turns: list[tuple[int, int]] = []
    for number, one in enumerate(ordered):
        hosts = sorted(hosts_of(addresses(one)))
        turn = max((seen.get(host, 0) // per_host for host in hosts), default=0)
        for host in hosts:
            seen[host] = seen.get(host, 0) + 1
        turns.append((turn, number))
    return [ordered[number] for _, number in sorted(turns)]
