"""The world ``claims``: both machines of run claims at every peer, over messages that are late, lost and cut off.

Placement, loading and stages are modelled, as far as claims depend on them; who coordinates, who stands by and who
takes over is decided by the machines alone. What must hold is looked at each second, and whenever a claim is held.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import claims, grants
from p2pmesh.core.claims import Claim, Claimant, ClaimPolicy, quorum
from p2pmesh.sim.alarm import Alarm
from p2pmesh.sim.calendar import CALL, Calendar
from p2pmesh.sim.chance import PER_MILLION, Draws
from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.peer import number_of, peer_id_of
from p2pmesh.sim.scenario import SECOND_US, Churn, Crash, Partition

TEND_US = SECOND_US
CUT_OFF_US = 10 * SECOND_US
"""A coordinator that reaches none of its stages gives the run up after so long."""
MAX_VIOLATIONS = 20
UNSERVED_BAR_US = 60 * SECOND_US


@dataclass(slots=True)
class SimRun:
    """A placement in effect: its stages, by peer number in order."""

    run_id: bytes
    model: int
    stages: tuple[int, ...]
    is_published: bool = False
    is_broken: bool = False


@dataclass(slots=True)
class Seat:
    """What a peer does as coordinator of one model: from its claim to the end of it."""

    claimant: Claimant
    run: SimRun
    is_takeover: bool
    alarm: Alarm = field(default_factory=Alarm)


@dataclass(slots=True)
class ClaimsPeer:
    """One peer; what is kept on its disk survives ``life`` after ``life``."""

    number: int
    rate: int
    life: int = 0
    is_up: bool = True
    started_us: int = 0
    kept: tuple[grants.KeptGrant, ...] = ()
    grantor: grants.Grantor = field(init=False)
    alarm: Alarm = field(default_factory=Alarm)
    seats: dict[int, Seat] = field(default_factory=dict)
    stages: dict[int, SimRun] = field(default_factory=dict)
    taken_until: dict[tuple[int, int], int] = field(default_factory=dict)

    def clock(self, now_us: int) -> Micros:
        """What its own monotonic clock shows."""
        return Micros((now_us - self.started_us) * self.rate // PER_MILLION)

    def real(self, local_us: int) -> int:
        """When that clock shows ``local_us``."""
        return self.started_us - -local_us * PER_MILLION // self.rate + 1


@dataclass(frozen=True, slots=True)
class ClaimsReport:
    """What came of it. ``served_per_million`` of the time in which a model could be served it was."""

    scenario: str
    peers: int
    seed: int
    simulated_us: int
    events: int
    steps: int
    digest: str
    claims_held: int
    takeovers: int
    step_downs: int
    served_per_million: int
    longest_unserved_us: int
    violations: tuple[str, ...]


class ClaimsWorld:
    """One simulation; ``run`` it once."""

    def __init__(self, scenario: ClaimsScenario, peers: int, seed: int, policy: ClaimPolicy | None = None) -> None:
        if peers < max(2, scenario.holders):
            raise ValueError(f"{peers} peers are too few for {scenario.holders} holders")
        self._scenario = scenario
        self._seed = seed
        self._policy = policy or ClaimPolicy()
        self._calendar = Calendar()
        self._journal = Journal()
        self._draws = Draws(seed, "claims")
        self._peers = [self._make_peer(number) for number in range(peers)]
        self._seated: dict[int, dict[int, ClaimsPeer]] = {model: {} for model in range(scenario.models)}
        self._boundary = 0
        self._counts = {"held": 0, "takeovers": 0, "step_downs": 0, "runs": 0}
        self._served_us = 0
        self._servable_us = 0
        self._unserved_since = dict.fromkeys(range(scenario.models), 0)
        self._longest_unserved_us = 0
        self._violations: list[str] = []

    # --- running -----------------------------------------------------------------
    def run(self) -> ClaimsReport:
        """From nothing to the scenario's end."""
        for model in range(self._scenario.models):
            for holder in self._holders(model):
                self._later(self._draws.below(SECOND_US), partial(self._tend, self._peers[holder], 0, model))
        for fault in self._scenario.faults:
            self._schedule(fault)
        self._later(SECOND_US, self._look)
        while (entry := self._calendar.take(self._scenario.duration_us)) is not None:
            entry[4]()
        return self._report()

    def _report(self) -> ClaimsReport:
        scenario = self._scenario
        if self._longest_unserved_us > UNSERVED_BAR_US:
            self._violate(f"a model that could be served was not for {self._longest_unserved_us / 1e6:.0f} s")
        return ClaimsReport(
            scenario.name, len(self._peers), self._seed, scenario.duration_us, self._journal.events,
            self._calendar.taken, self._journal.digest(), self._counts["held"], self._counts["takeovers"],
            self._counts["step_downs"], PER_MILLION * self._served_us // max(1, self._servable_us),
            self._longest_unserved_us, tuple(self._violations),
        )  # fmt: skip

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        self._calendar.put(self._calendar.now_us + delay_us, CALL, 0, action)

    def _make_peer(self, number: int) -> ClaimsPeer:
        drift = self._scenario.drift
        peer = ClaimsPeer(number, PER_MILLION - drift + self._draws.below(2 * drift + 1))
        peer.grantor = grants.Grantor(peer_id_of(number), self._policy)
        return peer

    def _holders(self, model: int) -> list[int]:
        return [(model * 7 + index * 3 + 1) % len(self._peers) for index in range(self._scenario.holders)]

    def _pool(self, model: int) -> list[int]:
        count = min(self._scenario.pool, len(self._peers))
        return [(model * 7 + 5 + index) % len(self._peers) for index in range(count)]

    def _reach(self, one: int, other: int) -> bool:
        return (one < self._boundary) == (other < self._boundary)

    # --- messages ----------------------------------------------------------------
    def _send(self, source: ClaimsPeer, target: int, action: Callable[[ClaimsPeer], None]) -> None:
        """To the life that the target has when it arrives; one's own messages are never lost."""
        if source.number == target:
            self._later(0, partial(self._arrive, source.number, target, action))
            return
        delay = self._scenario.latency_us + self._draws.below(self._scenario.jitter_us + 1)
        if not self._draws.happens(self._scenario.drop):
            self._later(delay, partial(self._arrive, source.number, target, action))

    def _arrive(self, source: int, target: int, action: Callable[[ClaimsPeer], None]) -> None:
        peer = self._peers[target]
        if peer.is_up and self._reach(source, target):
            action(peer)

    # --- the grantor of a peer -----------------------------------------------------
    def _grant(self, peer: ClaimsPeer, event: grants.Event) -> grants.Grant | grants.Deny | None:
        """One event, with all effects but the answer."""
        now = self._calendar.now_us
        effects = peer.grantor.handle(event, peer.clock(now))
        self._journal.note(Micros(now), f"{peer.number} grants", event, effects)
        answer = None
        for effect in effects:
            match effect:
                case grants.KeepGrant(kept):
                    peer.kept = kept
                case grants.ClaimMoved(old, new):
                    if old.run_id != new.run_id:
                        self._drop_stage(peer, old)
                case grants.RunReleased(claim):
                    self._drop_stage(peer, claim)
                case grants.SuccessionDue(claim):
                    self._later(0, partial(self._succeed, peer, peer.life, claim))
                case _:
                    answer = effect
        due = peer.grantor.deadline()
        if due is not None:
            ring = partial(self._wake_grantor, peer, peer.life)
            peer.alarm.set_at(self._calendar, peer.real(due), ring)
        return answer

    def _wake_grantor(self, peer: ClaimsPeer, life: int) -> None:
        if peer.is_up and peer.life == life:
            self._grant(peer, grants.DeadlinePassed())

    def _drop_stage(self, peer: ClaimsPeer, claim: Claim) -> None:
        model = int(claim.model, 16)
        run = peer.stages.get(model)
        if run is not None and run.run_id == claim.run_id:
            if run.is_published and not run.is_broken and self._is_whole(run):
                self._violate(f"{self._calendar.now_us} us: a run of model {model} that served was ended")
            self._end_stage(peer, run)
            self._break(run)

    def _end_stage(self, peer: ClaimsPeer, run: SimRun) -> None:
        if peer.stages.get(run.model) is run:
            del peer.stages[run.model]
            self._grant(peer, grants.StageEnded(f"{run.model:064x}", run.run_id))

    # --- coordinating ----------------------------------------------------------------
    def _tend(self, peer: ClaimsPeer, life: int, model: int) -> None:
        """A peer that was given a model: it stands by, or claims."""
        if not peer.is_up or peer.life != life:
            return
        self._later(TEND_US, partial(self._tend, peer, life, model))
        now, digest = self._calendar.now_us, f"{model:064x}"
        promised = peer.grantor.promised(digest)
        if promised is not None and (
            peer.grantor.is_kept(digest, promised.run_id) or peer.grantor.leased_to(digest, peer.clock(now))
        ):
            return
        if model not in peer.seats:
            free = [n for n in self._pool(model) if self._is_candidate(peer, n, model)]
            if len(free) >= self._scenario.stages:
                self._claim(peer, model, tuple(free[: self._scenario.stages]))

    def _is_candidate(self, peer: ClaimsPeer, number: int, model: int) -> bool:
        is_free = peer.taken_until.get((model, number), 0) <= self._calendar.now_us
        return is_free and self._peers[number].is_up and self._reach(peer.number, number)

    def _claim(self, peer: ClaimsPeer, model: int, stages: tuple[int, ...]) -> None:
        self._counts["runs"] += 1
        run = SimRun(self._counts["runs"].to_bytes(16, "big"), model, stages)
        self._sit(peer, run, is_takeover=False)

    def _succeed(self, peer: ClaimsPeer, life: int, claim: Claim) -> None:
        model = int(claim.model, 16)
        if not peer.is_up or peer.life != life or model in peer.seats:
            return
        run = peer.stages.get(model)
        if run is None or run.run_id != claim.run_id:
            self._grant(peer, grants.StageEnded(claim.model, claim.run_id))
        else:
            self._sit(peer, run, is_takeover=True)

    def _sit(self, peer: ClaimsPeer, run: SimRun, *, is_takeover: bool) -> None:
        digest = f"{run.model:064x}"
        promised = peer.grantor.promised(digest)
        term = promised.term + 1 if promised is not None else 1
        others = (number for number in run.stages if number != peer.number)
        peers = tuple(map(peer_id_of, (peer.number, *others)))
        claim = Claim(digest, run.run_id, term, peers, self._policy.lease_us, is_serving=is_takeover)
        policy = replace(self._policy, claiming_us=self._policy.takeover_us) if is_takeover else self._policy
        seat = peer.seats[run.model] = Seat(Claimant(claim, policy, is_takeover=is_takeover), run, is_takeover)
        self._seated[run.model][peer.number] = peer
        self._feed(peer, seat, claims.ClaimWanted())

    def _feed(self, peer: ClaimsPeer, seat: Seat, event: claims.Event) -> None:
        if not peer.is_up or peer.seats.get(seat.run.model) is not seat:
            return
        now = self._calendar.now_us
        effects = seat.claimant.handle(event, peer.clock(now))
        self._journal.note(Micros(now), f"{peer.number} claims", event, effects)
        for effect in effects:
            self._perform(peer, seat, effect)
        due = seat.claimant.deadline()
        if due is not None:
            wake = partial(self._feed, peer, seat, claims.DeadlinePassed())
            seat.alarm.set_at(self._calendar, peer.real(due), wake)

    def _perform(self, peer: ClaimsPeer, seat: Seat, effect: claims.Effect) -> None:
        match effect:
            case claims.AskClaim(to, claim, number):
                ask = partial(self._answer, peer=peer, seat=seat, claim=claim, number=number)
                self._send(peer, number_of(to), ask)
            case claims.ReleaseClaim(to, claim, is_over):
                event = grants.ClaimReleased(claim.coordinator, claim.model, claim.run_id, claim.term, is_over)
                self._send(peer, number_of(to), partial(self._hear_release, event=event))
            case claims.ClaimHeld(_, absent):
                self._on_held(peer, seat, absent)
            case claims.ClaimLost(_, _, ungranted):
                self._counts["step_downs"] += seat.run.is_published
                self._note_taken(peer, seat, ungranted)
                self._stand_up(peer, seat)

    def _hear_release(self, asked: ClaimsPeer, event: grants.ClaimReleased) -> None:
        self._grant(asked, event)

    def _answer(self, asked: ClaimsPeer, peer: ClaimsPeer, seat: Seat, claim: Claim, number: int) -> None:
        event: claims.Event
        match self._grant(asked, grants.ClaimAsked(claim.coordinator, claim)):
            case grants.Deny(code, _, term, wait_us):
                event = claims.PeerDenied(peer_id_of(asked.number), number, code, term, wait_us)
            case _:
                event = claims.PeerGranted(peer_id_of(asked.number), number)
        self._send(asked, peer.number, lambda to: self._feed(to, seat, event))

    def _on_held(self, peer: ClaimsPeer, seat: Seat, absent: tuple[PeerId, ...]) -> None:
        self._counts["held"] += 1
        if absent:
            self._note_taken(peer, seat, absent)
            self._leave(peer, seat, is_over=not seat.is_takeover)
        elif seat.is_takeover:
            self._counts["takeovers"] += 1
            seat.run.is_published = True
            self._mind(peer, seat)
        else:
            self._later(self._scenario.load_us, partial(self._load, peer, seat))
        self._check_exclusive(seat.run.model)

    def _note_taken(self, peer: ClaimsPeer, seat: Seat, who: tuple[PeerId, ...]) -> None:
        until = self._calendar.now_us + self._policy.lease_us
        peer.taken_until |= {(seat.run.model, number_of(one)): until for one in who}

    def _load(self, peer: ClaimsPeer, seat: Seat) -> None:
        """All stages at once, each fenced by its own peer."""
        if not self._is_seated(peer, seat):
            return
        claim, run = seat.claimant.claim, seat.run
        for number in run.stages:
            holder = self._peers[number]
            now = holder.clock(self._calendar.now_us)
            is_there = holder.is_up and self._reach(peer.number, number) and run.model not in holder.stages
            if not is_there or holder.grantor.why_fenced(claim.coordinator, claim.model, run.run_id, claim.term, now):
                run.is_broken = True
                self._leave(peer, seat, is_over=True)
                return
            holder.stages[run.model] = run
        self._feed(peer, seat, claims.RunServes())
        self._later(2 * (self._scenario.latency_us + self._scenario.jitter_us), partial(self._publish, peer, seat))
        self._mind(peer, seat)

    def _publish(self, peer: ClaimsPeer, seat: Seat) -> None:
        if self._is_seated(peer, seat):
            seat.run.is_published = True

    def _is_seated(self, peer: ClaimsPeer, seat: Seat) -> bool:
        return peer.is_up and peer.seats.get(seat.run.model) is seat

    def _mind(self, peer: ClaimsPeer, seat: Seat, lost_for_us: int = 0) -> None:
        """A coordinator follows its stages: one that says that it ended ends the run, one out of reach in a while."""
        if not self._is_seated(peer, seat):
            return
        run = seat.run
        is_heard = any(self._reach(peer.number, number) for number in run.stages)
        lost_for_us = 0 if is_heard else lost_for_us + TEND_US
        if (run.is_broken and is_heard) or lost_for_us >= CUT_OFF_US:
            self._leave(peer, seat, is_over=True)
        else:
            self._later(TEND_US, partial(self._mind, peer, seat, lost_for_us))

    def _leave(self, peer: ClaimsPeer, seat: Seat, *, is_over: bool) -> None:
        self._feed(peer, seat, claims.ClaimWithdrawn(is_over))
        self._stand_up(peer, seat)

    def _stand_up(self, peer: ClaimsPeer, seat: Seat) -> None:
        """Stages of a run that does not serve yet end with their coordinator's streams."""
        if peer.seats.get(seat.run.model) is seat:
            del peer.seats[seat.run.model]
            del self._seated[seat.run.model][peer.number]
        if not seat.run.is_published:
            self._break(seat.run)

    # --- stages and faults -------------------------------------------------------------
    def _break(self, run: SimRun) -> None:
        """A stage is gone: its neighbours notice, and theirs."""
        if not run.is_broken:
            run.is_broken = True
            self._later(self._scenario.detect_us, partial(self._end_stages, run))

    def _end_stages(self, run: SimRun) -> None:
        for number in run.stages:
            if self._peers[number].is_up:
                self._end_stage(self._peers[number], run)

    def _schedule(self, fault: Crash | Churn | Partition) -> None:
        match fault:
            case Crash(at_us, number, down_us):
                self._later(at_us, partial(self._crash, number, down_us))
            case Churn(every_us, _):
                self._later(every_us, partial(self._churn, fault))
            case Partition(at_us, until_us, percent):
                boundary = len(self._peers) * percent // 100
                self._later(at_us, partial(self._part, boundary))
                self._later(until_us, partial(self._part, 0))

    def _churn(self, fault: Churn) -> None:
        self._crash(self._draws.below(len(self._peers)), fault.down_us)
        self._later(fault.every_us, partial(self._churn, fault))

    def _crash(self, number: int, down_us: int | None) -> None:
        peer = self._peers[number % len(self._peers)]
        if not peer.is_up:
            return
        self._journal.write(f"{self._calendar.now_us} crash {peer.number}")
        peer.is_up = False
        peer.life += 1
        for run in peer.stages.values():
            self._break(run)
        for seat in peer.seats.values():
            del self._seated[seat.run.model][peer.number]
            if not seat.run.is_published and not seat.claimant.claim.is_serving:
                self._break(seat.run)
        peer.stages.clear()
        peer.seats.clear()
        peer.taken_until.clear()
        if down_us is not None:
            self._later(down_us, partial(self._restart, peer, peer.life))

    def _restart(self, peer: ClaimsPeer, life: int) -> None:
        if peer.is_up or peer.life != life:
            return
        peer.is_up = True
        peer.started_us = self._calendar.now_us
        peer.alarm = Alarm()
        peer.grantor = grants.Grantor(peer_id_of(peer.number), self._policy, peer.kept)
        for model in range(self._scenario.models):
            if peer.number in self._holders(model):
                self._later(self._draws.below(SECOND_US), partial(self._tend, peer, life, model))

    def _part(self, boundary: int) -> None:
        self._journal.write(f"{self._calendar.now_us} boundary {boundary}")
        self._boundary = boundary
        for peer in self._peers:
            for run in tuple(peer.stages.values()):
                if len({number < boundary for number in run.stages}) > 1:
                    self._break(run)

    # --- what must hold ------------------------------------------------------------------
    def _look(self) -> None:
        self._later(SECOND_US, self._look)
        for model in range(self._scenario.models):
            self._check_exclusive(model)
            self._note_served(model)

    def _is_whole(self, run: SimRun) -> bool:
        return all(
            self._peers[number].is_up
            and self._peers[number].stages.get(run.model) is run
            and self._reach(number, run.stages[0])
            for number in run.stages
        )

    def _note_served(self, model: int) -> None:
        runs = {id(run): run for n in self._pool(model) if (run := self._peers[n].stages.get(model)) is not None}
        is_served = any(run.is_published and self._is_whole(run) for run in runs.values())
        since = self._unserved_since[model]
        if is_served or not self._is_servable(model):
            self._unserved_since[model] = self._calendar.now_us
        else:
            self._longest_unserved_us = max(self._longest_unserved_us, self._calendar.now_us - since)
        self._servable_us += SECOND_US * (is_served or self._is_servable(model))
        self._served_us += SECOND_US * is_served

    def _is_servable(self, model: int) -> bool:
        """Somebody that was given it is up, and reaches enough peers that are up."""
        pool = [number for number in self._pool(model) if self._peers[number].is_up]
        return any(
            sum(self._reach(holder, number) for number in pool) >= self._scenario.stages
            for holder in self._holders(model)
            if self._peers[holder].is_up
        )

    def _check_exclusive(self, model: int) -> None:
        """Of claims of a model that are held, each has a quorum of its own, and no list stands twice."""
        now = self._calendar.now_us
        seats = [(peer, peer.seats[model]) for peer in self._seated[model].values()]
        held = [seat.claimant.claim for peer, seat in seats if seat.claimant.is_valid(peer.clock(now))]
        for claim in held:
            promised = sum(self._has_promised(number_of(peer), claim) for peer in claim.peers)
            if promised < quorum(len(claim.peers)):
                self._violate(f"{self._calendar.now_us} us: model {model}, term {claim.term} is held without a quorum")
        if len({frozenset(claim.peers) for claim in held}) < len(held):
            self._violate(f"{self._calendar.now_us} us: model {model} is held twice by one list")

    def _has_promised(self, number: int, claim: Claim) -> bool:
        """A peer that is down keeps its promise on disk."""
        peer = self._peers[number]
        if not peer.is_up:
            return any(kept.model == claim.model and kept.run_id == claim.run_id for kept in peer.kept)
        leased = peer.grantor.leased_to(claim.model, peer.clock(self._calendar.now_us))
        return leased is not None and (leased.run_id, leased.term) == (claim.run_id, claim.term)

    def _violate(self, text: str) -> None:
        if len(self._violations) < MAX_VIOLATIONS:
            self._violations.append(text)


def simulate_claims(scenario: ClaimsScenario, peers: int, seed: int) -> ClaimsReport:
    """Runs a scenario of the world ``claims``."""
    return ClaimsWorld(scenario, peers, seed).run()
