"""The world ``claims``: ``sim.claim_peers`` over messages that are late, lost and cut off.

Placement, loading and stages are modelled, as far as claims depend on them. What must hold is looked at each second,
and whenever a claim is held.
"""

from dataclasses import dataclass
from functools import partial

from p2pmesh.base.ids import PeerId
from p2pmesh.core import claims
from p2pmesh.core.claims import Claim, ClaimPolicy
from p2pmesh.sim.calendar import Calendar
from p2pmesh.sim.chance import PER_MILLION, Draws
from p2pmesh.sim.claim_peers import ClaimPeers, ClaimsPeer, Seat, SimRun
from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.peer import number_of
from p2pmesh.sim.scenario import SECOND_US, Churn, Crash, Partition

TEND_US = SECOND_US
CUT_OFF_US = 10 * SECOND_US
"""A coordinator that reaches none of its stages gives the run up after so long."""
MAX_VIOLATIONS = 20
UNSERVED_BAR_US = 60 * SECOND_US


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
        self._calendar = Calendar()
        self._journal = Journal()
        self._draws = Draws(seed, "claims")
        self._claims = ClaimPeers(self, self._calendar, self._journal, policy or ClaimPolicy())
        self._later = self._claims.later
        for _ in range(peers):
            self._claims.add(PER_MILLION - scenario.drift + self._draws.below(2 * scenario.drift + 1))
        self._peers = self._claims.peers
        self._boundary = 0
        self._counts = {"held": 0, "takeovers": 0, "step_downs": 0, "runs": 0}
        self._served_us = 0
        self._servable_us = 0
        self._unserved_since = dict.fromkeys(range(scenario.models), 0)
        self._longest_unserved_us = 0
        self._given_up: set[bytes] = set()
        """Runs whose own coordinator ended them; one that is cut off may be heard only when it is not any more."""
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

    def _holders(self, model: int) -> list[int]:
        return [(model * 7 + index * 3 + 1) % len(self._peers) for index in range(self._scenario.holders)]

    def _pool(self, model: int) -> list[int]:
        count = min(self._scenario.pool, len(self._peers))
        return [(model * 7 + 5 + index) % len(self._peers) for index in range(count)]

    # --- what claims ask of their world ---------------------------------------------
    def is_reached(self, source: int, target: int) -> bool:
        """Whether both are on one side."""
        return (source < self._boundary) == (target < self._boundary)

    def way_us(self, source: int, target: int) -> int | None:
        """By the scenario's latency, jitter and losses."""
        delay_us = self._scenario.latency_us + self._draws.below(self._scenario.jitter_us + 1)
        return None if self._draws.happens(self._scenario.drop) else delay_us

    def room_for(self, run: SimRun, number: int) -> tuple[int, int]:
        """Memory is no matter here."""
        return (0, 0)

    def on_run_moved(self, peer: ClaimsPeer, old: Claim) -> None:
        """Its stage ends, and with it the run, which must not be one that serves."""
        model = int(old.model, 16)
        run = peer.stages.get(model)
        if run is not None and run.run_id == old.run_id:
            is_serving = run.is_published and not run.is_broken and self._claims.is_whole(run)
            if is_serving and run.run_id not in self._given_up:
                self._violate(f"{self._calendar.now_us} us: a run of model {model} that served was ended")
            self._claims.end_stage(peer, run)
            self._break(run)

    # --- coordinating ----------------------------------------------------------------
    def _tend(self, peer: ClaimsPeer, life: int, model: int) -> None:
        """A peer that was given a model: it stands by, or claims."""
        if not peer.is_up or peer.life != life:
            return
        self._later(TEND_US, partial(self._tend, peer, life, model))
        if model not in peer.seats and not self._claims.is_promised(peer, model):
            free = [n for n in self._pool(model) if self._is_candidate(peer, n, model)]
            if len(free) >= self._scenario.stages:
                self._claim(peer, model, tuple(free[: self._scenario.stages]))

    def _is_candidate(self, peer: ClaimsPeer, number: int, model: int) -> bool:
        is_free = peer.taken_until.get((model, number), 0) <= self._calendar.now_us
        return is_free and self._peers[number].is_up and self.is_reached(peer.number, number)

    def _claim(self, peer: ClaimsPeer, model: int, stages: tuple[int, ...]) -> None:
        self._counts["runs"] += 1
        run = SimRun(self._counts["runs"].to_bytes(16, "big"), model, stages)
        self._claims.sit(peer, run, is_takeover=False)

    def on_lost(self, peer: ClaimsPeer, seat: Seat, ungranted: tuple[PeerId, ...]) -> None:
        """Steps down."""
        self._counts["step_downs"] += seat.run.is_published
        self._note_taken(peer, seat, ungranted)
        self._stand_up(peer, seat)

    def on_held(self, peer: ClaimsPeer, seat: Seat, absent: tuple[PeerId, ...]) -> None:
        """Loads, or minds what it took over."""
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
        self._note_conflicts(seat.run.model)

    def _note_taken(self, peer: ClaimsPeer, seat: Seat, who: tuple[PeerId, ...]) -> None:
        until = self._calendar.now_us + self._claims.policy.lease_us
        peer.taken_until |= {(seat.run.model, number_of(one)): until for one in who}

    def _load(self, peer: ClaimsPeer, seat: Seat) -> None:
        """All stages at once, each fenced by its own peer."""
        if not self._claims.is_seated(peer, seat):
            return
        claim, run = seat.claimant.claim, seat.run
        for number in run.stages:
            holder = self._peers[number]
            now = holder.clock(self._calendar.now_us)
            is_there = holder.is_up and self.is_reached(peer.number, number) and run.model not in holder.stages
            if not is_there or holder.grantor.why_fenced(claim.coordinator, claim.model, run.run_id, claim.term, now):
                run.is_broken = True
                self._leave(peer, seat, is_over=True)
                return
            holder.stages[run.model] = run
        self._claims.feed(peer, seat, claims.RunServes())
        self._later(2 * (self._scenario.latency_us + self._scenario.jitter_us), partial(self._publish, peer, seat))
        self._mind(peer, seat)

    def _publish(self, peer: ClaimsPeer, seat: Seat) -> None:
        if self._claims.is_seated(peer, seat):
            seat.run.is_published = True

    def _mind(self, peer: ClaimsPeer, seat: Seat, lost_for_us: int = 0) -> None:
        """A coordinator follows its stages: one that says that it ended ends the run, one out of reach in a while."""
        if not self._claims.is_seated(peer, seat):
            return
        run = seat.run
        is_heard = any(self.is_reached(peer.number, number) for number in run.stages)
        lost_for_us = 0 if is_heard else lost_for_us + TEND_US
        if (run.is_broken and is_heard) or lost_for_us >= CUT_OFF_US:
            self._leave(peer, seat, is_over=True)
        else:
            self._later(TEND_US, partial(self._mind, peer, seat, lost_for_us))

    def _leave(self, peer: ClaimsPeer, seat: Seat, *, is_over: bool) -> None:
        if is_over:
            self._given_up.add(seat.run.run_id)
        self._claims.feed(peer, seat, claims.ClaimWithdrawn(is_over))
        self._stand_up(peer, seat)

    def _stand_up(self, peer: ClaimsPeer, seat: Seat) -> None:
        """Stages of a run that does not serve yet end with their coordinator's streams."""
        self._claims.stand_up(peer, seat)
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
                self._claims.end_stage(self._peers[number], run)

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
        for run in peer.stages.values():
            self._break(run)
        for seat in peer.seats.values():
            if not seat.run.is_published and not seat.claimant.claim.is_serving:
                self._break(seat.run)
        self._claims.stop(peer)
        if down_us is not None:
            self._later(down_us, partial(self._restart, peer, peer.life))

    def _restart(self, peer: ClaimsPeer, life: int) -> None:
        if peer.is_up or peer.life != life:
            return
        self._claims.restart(peer)
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
            self._note_conflicts(model)
            self._note_served(model)

    def _note_served(self, model: int) -> None:
        runs = {id(run): run for n in self._pool(model) if (run := self._peers[n].stages.get(model)) is not None}
        is_served = any(run.is_published and self._claims.is_whole(run) for run in runs.values())
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
            sum(self.is_reached(holder, number) for number in pool) >= self._scenario.stages
            for holder in self._holders(model)
            if self._peers[holder].is_up
        )

    def _note_conflicts(self, model: int) -> None:
        for text in self._claims.find_conflicts(model):
            self._violate(text)

    def _violate(self, text: str) -> None:
        if len(self._violations) < MAX_VIOLATIONS:
            self._violations.append(text)


def simulate_claims(scenario: ClaimsScenario, peers: int, seed: int) -> ClaimsReport:
    """Runs a scenario of the world ``claims``."""
    return ClaimsWorld(scenario, peers, seed).run()
