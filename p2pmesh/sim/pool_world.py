"""The world ``pool``: ``core.publishing`` in every member of one public pool, over relays that are slow or away.

The relays are one, with what they store; who knows of whose death, and when, is modelled. What must hold is looked at
four times a second.
"""

from dataclasses import dataclass, field
from functools import partial

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import publishing
from p2pmesh.core.draws import Draws as MachineDraws
from p2pmesh.core.publishing import Lister, Phase, PublishingMachine, Seen
from p2pmesh.sim.calendar import CALL, Calendar
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.peer import number_of, peer_id_of
from p2pmesh.sim.pool_scenario import KillPublisher, PoolFault, PoolScenario, RelayOutage
from p2pmesh.sim.scenario import SECOND_US, Crash, Partition

LOOK_US = SECOND_US // 4
RELAY_TIMEOUT_US = 5 * SECOND_US
DIAL_US = 2 * SECOND_US
MAX_VIEW = 256
MAX_VIOLATIONS = 20
LISTERS_BAR = 4
"""So few members of a pool may begin to list it after one death."""
UNLISTED_BAR_US = 60 * SECOND_US
TWICE_LISTED_BAR_US = 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What came of it. A pool is unlisted while no relay holds a listing of a member that lives."""

    scenario: str
    peers: int
    seed: int
    simulated_us: int
    events: int
    steps: int
    digest: str
    deaths: int
    most_listers: int
    """Members that began to list the pool after one death, at most."""
    longest_unlisted_us: int
    unlisted_us: int
    twice_listed_us: int
    checks: int
    publishes: int
    violations: tuple[str, ...]


@dataclass(slots=True)
class _Member:
    number: int
    machine: PublishingMachine
    view: tuple[int, ...]
    life: int = 0
    is_up: bool = True
    thinks_dead: set[int] = field(default_factory=set)
    woken_at: Micros | None = None


class PoolWorld:
    """One simulation; ``run`` it once."""

    def __init__(self, scenario: PoolScenario, peers: int, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._calendar = Calendar()
        self._journal = Journal()
        self._draws = Draws(seed, "pool")
        self._members = [self._make(number, peers) for number in range(peers)]
        self._stored: dict[int, int] = {}
        """By member: until when relays hold its listing."""
        self._listers: set[int] = set()
        self._boundary = 0
        self._away_until = 0
        self._counts = dict.fromkeys(("deaths", "checks", "publishes", "unlisted", "twice"), 0)
        self._most_listers = 0
        self._longest_unlisted_us = 0
        self._unlisted_since: int | None = None
        self._twice_since: int | None = None
        self._has_been_listed = False
        self._violations: list[str] = []

    def _make(self, number: int, peers: int) -> _Member:
        others = [self._draws.below(peers) for _ in range(MAX_VIEW)] if peers > MAX_VIEW else range(peers)
        view = tuple(dict.fromkeys((number, *others)))
        return _Member(number, self._machine(number, 0, is_eager=number == 0), view)

    def _machine(self, number: int, life: int, *, is_eager: bool) -> PublishingMachine:
        draws = MachineDraws(self._seed * 1_000_003 + number * 1009 + life)
        return PublishingMachine(self._lister(number), draws, Micros(self._calendar.now_us), is_eager=is_eager)

    def _lister(self, number: int) -> Lister:
        return Lister(0 if number == 0 else 1 + number % 3, peer_id_of(number))

    # --- running -------------------------------------------------------------------
    def run(self) -> PoolReport:
        """From a founder that was told to publish to the scenario's end."""
        for member in self._members:
            self._later(self._draws.below(SECOND_US), partial(self._tell, member, member.life))
        for fault in self._scenario.faults:
            self._schedule(fault)
        self._later(LOOK_US, self._look)
        while (entry := self._calendar.take(self._scenario.duration_us)) is not None:
            entry[4]()
        self._note_end()
        counts, scenario = self._counts, self._scenario
        return PoolReport(
            scenario.name, len(self._members), self._seed, scenario.duration_us, self._journal.events,
            self._calendar.taken, self._journal.digest(), counts["deaths"], self._most_listers,
            self._longest_unlisted_us, counts["unlisted"], counts["twice"], counts["checks"], counts["publishes"],
            tuple(self._violations),
        )  # fmt: skip

    def _later(self, wait_us: int, action: object) -> None:
        self._calendar.put(self._calendar.now_us + wait_us, CALL, 0, action)

    def _feed(self, member: _Member, life: int, event: publishing.Event) -> None:
        if not member.is_up or member.life != life:
            return
        now = Micros(self._calendar.now_us)
        effects = member.machine.handle(event, now)
        self._journal.note(now, f"{member.number}", event, effects)
        for effect in effects:
            self._perform(member, effect)
        self._wake_later(member)

    def _wake_later(self, member: _Member) -> None:
        at = member.machine.deadline()
        if at is not None and at != member.woken_at:
            member.woken_at = at
            self._calendar.put(at, CALL, 0, partial(self._wake, member, member.life, at))

    def _wake(self, member: _Member, life: int, at: Micros) -> None:
        if member.woken_at == at and member.life == life:
            member.woken_at = None
            self._feed(member, life, publishing.DeadlinePassed())

    def _tell(self, member: _Member, life: int) -> None:
        """What the membership says, as the member knows it."""
        others = (n for n in member.view if n == member.number or n not in member.thinks_dead)
        alive = tuple(sorted(self._lister(number) for number in others))
        self._feed(member, life, publishing.PoolChanged(alive, 0, is_serving=True))

    # --- relays ----------------------------------------------------------------------
    def _way_us(self) -> int:
        return (self._scenario.relay_us + self._draws.below(self._scenario.jitter_us + 1)) // 2

    def _perform(self, member: _Member, effect: publishing.Effect) -> None:
        is_away = self._calendar.now_us < self._away_until
        answer = partial(self._feed, member, member.life)
        match effect:
            case publishing.Check() if is_away:
                self._later(RELAY_TIMEOUT_US, partial(answer, publishing.CheckFailed()))
            case publishing.Check():
                self._counts["checks"] += 1
                self._later(self._way_us(), partial(self._read, member, member.life))
            case publishing.Publish() if is_away:
                self._later(RELAY_TIMEOUT_US, partial(answer, publishing.Published(is_taken=False)))
            case publishing.Publish():
                self._counts["publishes"] += 1
                if member.number not in self._listers:
                    self._listers.add(member.number)
                    self._most_listers = max(self._most_listers, len(self._listers))
                self._later(self._way_us(), partial(self._store, member, member.life))
            case publishing.Withdraw():
                self._later(self._way_us(), partial(self._stored.pop, member.number, None))
            case publishing.Dial(peer):
                self._later(DIAL_US, partial(self._dial, member, member.life, peer))

    def _read(self, member: _Member, life: int) -> None:
        now = self._calendar.now_us
        seen = tuple(Seen(self._lister(number)) for number, until in sorted(self._stored.items()) if until > now)
        self._later(self._way_us(), partial(self._feed, member, life, publishing.Checked(seen)))

    def _store(self, member: _Member, life: int) -> None:
        self._stored[member.number] = self._calendar.now_us + self._scenario.life_us
        self._later(self._way_us(), partial(self._feed, member, life, publishing.Published(is_taken=True)))

    def _dial(self, member: _Member, life: int, peer: PeerId) -> None:
        number = number_of(peer)
        is_reached = self._members[number].is_up and self._is_one_side(member.number, number)
        if is_reached:
            member.thinks_dead.discard(number)
        self._feed(member, life, publishing.Dialled(peer, is_reached))
        self._tell(member, life)

    def _is_one_side(self, one: int, other: int) -> bool:
        return (one < self._boundary) == (other < self._boundary)

    # --- faults -------------------------------------------------------------------------
    def _schedule(self, fault: PoolFault) -> None:
        match fault:
            case Crash(at_us, number, down_us):
                self._later(at_us, partial(self._kill, number % len(self._members), down_us))
            case KillPublisher(every_us, _):
                self._later(every_us, partial(self._kill_publisher, fault))
            case RelayOutage(at_us, until_us):
                self._later(at_us, partial(setattr, self, "_away_until", until_us))
            case Partition(at_us, until_us, percent):
                self._later(at_us, partial(self._part, len(self._members) * percent // 100))
                self._later(until_us, partial(self._part, 0))

    def _kill_publisher(self, fault: KillPublisher) -> None:
        listing = [one.number for one in self._members if one.is_up and one.machine.phase is Phase.PUBLISHING]
        if listing:
            self._kill(listing[0], fault.down_us)
        self._later(fault.every_us, partial(self._kill_publisher, fault))

    def _kill(self, number: int, down_us: int | None) -> None:
        member = self._members[number]
        if not member.is_up:
            return
        self._journal.write(f"{self._calendar.now_us} kill {number}")
        self._counts["deaths"] += 1
        self._listers = set()
        member.is_up = False
        member.life += 1
        self._spread((number,), is_dead=True)
        if down_us is not None:
            self._later(down_us, partial(self._restart, member, member.life))

    def _restart(self, member: _Member, life: int) -> None:
        member.is_up, member.woken_at, member.thinks_dead = True, None, set()
        member.machine = self._machine(member.number, life, is_eager=False)
        self._tell(member, life)
        self._spread((member.number,), is_dead=False)

    def _spread(self, numbers: tuple[int, ...], *, is_dead: bool) -> None:
        """Each member hears it at a time of its own; members of the other side of a partition do not."""
        detect_us = self._scenario.detect_us
        if not detect_us:
            return
        for member in self._members:
            heard = tuple(n for n in numbers if n in member.view and (is_dead or self._is_one_side(n, member.number)))
            if heard:
                self._later(detect_us + self._draws.below(detect_us), partial(self._hear, member, heard, is_dead))

    def _hear(self, member: _Member, numbers: tuple[int, ...], is_dead: bool) -> None:
        true_of = [n for n in numbers if self._is_gone_for(member, n) == is_dead]
        member.thinks_dead = member.thinks_dead | set(true_of) if is_dead else member.thinks_dead - set(true_of)
        self._tell(member, member.life)

    def _is_gone_for(self, member: _Member, number: int) -> bool:
        return not self._members[number].is_up or not self._is_one_side(member.number, number)

    def _part(self, boundary: int) -> None:
        self._journal.write(f"{self._calendar.now_us} boundary {boundary}")
        self._boundary = boundary
        numbers = tuple(range(len(self._members)))
        for member in self._members:
            gone = tuple(n for n in numbers if n in member.view and self._is_gone_for(member, n))
            back = tuple(n for n in numbers if n in member.view and not self._is_gone_for(member, n))
            wait_us = self._scenario.detect_us + self._draws.below(max(1, self._scenario.detect_us))
            for heard, is_dead in ((gone, True), (back, False)):
                self._later(wait_us, partial(self._hear, member, heard, is_dead))

    # --- what must hold -------------------------------------------------------------------
    def _look(self) -> None:
        self._later(LOOK_US, self._look)
        now = self._calendar.now_us
        live = [n for n, until in self._stored.items() if until > now and self._members[n].is_up]
        self._has_been_listed = self._has_been_listed or bool(live)
        self._note_unlisted(now, is_listed=bool(live) or not self._has_been_listed)
        self._note_twice(now, is_twice=len(live) > 1 and not self._boundary)

    def _note_unlisted(self, now: int, *, is_listed: bool) -> None:
        if is_listed or now < self._away_until:
            self._unlisted_since = None
            return
        self._counts["unlisted"] += LOOK_US
        self._unlisted_since = now if self._unlisted_since is None else self._unlisted_since
        self._longest_unlisted_us = max(self._longest_unlisted_us, now - self._unlisted_since + LOOK_US)

    def _note_twice(self, now: int, *, is_twice: bool) -> None:
        if not is_twice:
            self._twice_since = None
            return
        self._counts["twice"] += LOOK_US
        self._twice_since = now if self._twice_since is None else self._twice_since
        if now - self._twice_since == TWICE_LISTED_BAR_US:
            self._violate(f"{now} us: more than one member lists the pool for a minute")

    def _note_end(self) -> None:
        bar_us = UNLISTED_BAR_US + (0 if self._scenario.detect_us else self._scenario.life_us)
        if self._longest_unlisted_us > bar_us:
            self._violate(f"the pool was unlisted for {self._longest_unlisted_us / 1e6:.1f} s")
        if self._most_listers > LISTERS_BAR and not any(isinstance(f, Partition) for f in self._scenario.faults):
            self._violate(f"{self._most_listers} members began to list the pool after one death")

    def _violate(self, text: str) -> None:
        if len(self._violations) < MAX_VIOLATIONS:
            self._violations.append(text)


def simulate_pool(scenario: PoolScenario, peers: int, seed: int) -> PoolReport:
    """Runs a scenario of the world ``pool``."""
    return PoolWorld(scenario, peers, seed).run()
