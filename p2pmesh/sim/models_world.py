"""The world ``models``: the planner, claims, runs and moves of thousands of peers that come, go, crash and part.

What must hold is looked at each second: no claim is held twice, no run that served is ended but by its coordinator, and
no model that could be served stays unserved for long. *Could* means that a planner which knows all finds room for it on
live peers that a live holder of its file reaches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import nlargest

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import GIB, MIB
from p2pmesh.core import claims
from p2pmesh.core.claims import Claim, ClaimPolicy
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest, ShapeBytes
from p2pmesh.sim.calendar import Calendar
from p2pmesh.sim.chance import PER_MILLION, Draws
from p2pmesh.sim.claim_peers import ClaimPeers, ClaimsPeer, Seat, SimRun
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.models_coordinator import ModelCoordinator, SimModel
from p2pmesh.sim.models_hosts import Hosts, share_of
from p2pmesh.sim.models_scenario import Join, Leave, ModelsScenario
from p2pmesh.sim.models_stages import SimStages
from p2pmesh.sim.scenario import SECOND_US, Churn, Crash, Partition

LOOK_US = SECOND_US
SERVABLE_US = 5 * SECOND_US
"""Whether a model could be served is asked again after so long."""
CUT_OFF_US = 10 * SECOND_US
PARTING_US = SECOND_US // 5
MAX_VIOLATIONS = 20
UNSERVED_BAR_US = 60 * SECOND_US
LARGEST = 64


@dataclass(frozen=True, slots=True)
class ModelsReport:
    """What came of it. ``served_per_million`` of the time in which models could be served they were.

    ``moves`` are runs that were replaced by better placements, ``moves_per_model_hour_milli`` how many thousandths of
    one a model took in an hour.
    """

    scenario: str
    peers: int
    seed: int
    simulated_us: int
    events: int
    steps: int
    digest: str
    models: int
    runs: int
    published: int
    claims_held: int
    takeovers: int
    plans: int
    refused_loads: int
    moves: int
    moves_per_model_hour_milli: int
    served_per_million: int
    longest_unserved_us: int
    longest_by_model_us: tuple[int, ...]
    violations: tuple[str, ...]


class ModelsWorld:
    """One simulation; ``run`` it once."""

    def __init__(self, scenario: ModelsScenario, peers: int, seed: int, policy: ClaimPolicy | None = None) -> None:
        if peers < max(2, scenario.holders):
            raise ValueError(f"{peers} peers are too few for {scenario.holders} holders")
        self.scenario = scenario
        self.calendar = Calendar()
        self.journal = Journal()
        self.draws = Draws(seed, "models")
        self.hosts = Hosts(scenario, seed)
        self.claims = ClaimPeers(self, self.calendar, self.journal, policy or ClaimPolicy())
        self.stages = SimStages(scenario, self.claims, self.hosts, self.is_reached)
        self._seed = seed
        self._later = self.claims.later
        self._boundary = 0
        for _ in range(peers):
            self._add_peer()
        self._models = [self._make_model(number, peers) for number in range(scenario.models)]
        self._coordinators: dict[tuple[int, int], ModelCoordinator] = {}
        self._published: dict[int, list[SimRun]] = {number: [] for number in range(scenario.models)}
        self._given_up: set[bytes] = set()
        self._counts: dict[str, int] = {}
        self._ledger = ServiceLedger(scenario.models, self._is_servable)
        self._violations: list[str] = []

    # --- running --------------------------------------------------------------------
    def run(self) -> ModelsReport:
        """From nothing to the scenario's end."""
        first_peers = len(self.claims.peers)
        for model in self._models:
            for holder in model.holders:
                self._coordinate(self.claims.peers[holder], model)
        for fault in self.scenario.faults:
            self._schedule(fault)
        self._later(LOOK_US, self._look)
        while (entry := self.calendar.take(self.scenario.duration_us)) is not None:
            entry[4]()
        return self._report(first_peers)

    def _report(self, peers: int) -> ModelsReport:
        scenario, count, ledger = self.scenario, self._counts, self._ledger
        longest_us = max(ledger.longest_us)
        if longest_us > UNSERVED_BAR_US:
            model = ledger.longest_us.index(longest_us)
            self._violate(f"model {model} could be served and was not for {longest_us / 1e6:.0f} s")
        model_hours_milli = scenario.models * scenario.duration_us // (3600 * SECOND_US // 1000)
        return ModelsReport(
            scenario.name, peers, self._seed, scenario.duration_us, self.journal.events, self.calendar.taken,
            self.journal.digest(), scenario.models, count.get("runs", 0), count.get("published", 0),
            count.get("held", 0), count.get("takeovers", 0), count.get("plans", 0), self.stages.refused,
            count.get("moves", 0), 1_000_000 * count.get("moves", 0) // max(1, model_hours_milli),
            share_of(ledger.served_us, ledger.servable_us), longest_us, tuple(ledger.longest_us),
            tuple(self._violations),
        )  # fmt: skip

    def _add_peer(self) -> ClaimsPeer:
        drift = self.scenario.drift
        self.hosts.add()
        return self.claims.add(PER_MILLION - drift + self.draws.below(2 * drift + 1))

    def _make_model(self, number: int, peers: int) -> SimModel:
        gib, layers = self.scenario.models_gib[number % len(self.scenario.models_gib)]
        layer_bytes = gib * GIB // (layers + 2)
        shape = ShapeBytes((layer_bytes,) * layers, layer_bytes, layer_bytes, 128 * MIB, 0, 4096, 4)
        holders: list[int] = []
        while len(holders) < self.scenario.holders:
            holder = self.draws.below(peers)
            if holder not in holders:
                holders.append(holder)
        planning = PlanningModel((shape,), tuple(range(1, layers)), activation_bytes=16384)
        return SimModel(number, planning, tuple(holders))

    def _coordinate(self, peer: ClaimsPeer, model: SimModel) -> None:
        coordinator = self._coordinators[peer.number, model.number] = ModelCoordinator(self, peer, model)
        coordinator.start()

    # --- what coordinators ask of their world ------------------------------------------
    def make_run(self, model: int, placement: Placement) -> SimRun:
        """A new run."""
        self.count("runs")
        numbers = tuple(self.hosts.numbers[stage.peer_id] for stage in placement.stages)
        needed = tuple(stage.needed_bytes for stage in placement.stages)
        return SimRun(self._counts["runs"].to_bytes(16, "big"), model, numbers, needed)

    def count(self, what: str, by: int = 1) -> None:
        """For the report."""
        self._counts[what] = self._counts.get(what, 0) + by

    def publish(self, run: SimRun) -> None:
        """Requests are routed to it."""
        self.count("published")
        run.is_published = True
        alive = [other for other in self._published[run.model] if not other.is_broken]
        self._published[run.model] = [*alive, run]

    def give_up(self, run: SimRun) -> None:
        """Its coordinator means its end."""
        self._given_up.add(run.run_id)

    def break_run(self, run: SimRun) -> None:
        """A stage is gone: its neighbours notice, then its coordinator."""
        if not run.is_broken:
            run.is_broken = True
            self._later(self.scenario.detect_us, partial(self._end_stages, run))

    def _end_stages(self, run: SimRun) -> None:
        peers = self.claims.peers
        lost = next((i for i, number in enumerate(run.stages) if peers[number].stages.get(run.model) is not run), 0)
        self.stages.end_all(run)
        for holder in self._models[run.model].holders:
            coordinator = self._coordinators[holder, run.model]
            self._later(self.hosts.way_us(holder, run.stages[0]), partial(coordinator.on_stage_lost, run, lost))

    # --- what claims ask of their world -------------------------------------------------
    def is_reached(self, source: int, target: int) -> bool:
        """Whether both are on one side."""
        return (source < self._boundary) == (target < self._boundary)

    def way_us(self, source: int, target: int) -> int | None:
        """By regions, jitter and losses."""
        return None if self.draws.happens(self.scenario.drop) else self.hosts.way_us(source, target)

    def room_for(self, run: SimRun, number: int) -> tuple[int, int]:
        """A stage of the run before it will have ended by then."""
        if number not in run.stages or run.is_published:
            return (0, 0)
        host = self.hosts.all[number]
        return (run.needed[run.stages.index(number)], host.free_bytes + host.used.get(run.model, 0))

    def on_run_moved(self, peer: ClaimsPeer, old: Claim) -> None:
        """Its stage ends, and with it the run, which must not be one that serves against its coordinator's will."""
        run = peer.stages.get(int(old.model, 16))
        if run is None or run.run_id != old.run_id:
            return
        is_serving = run.is_published and not run.is_broken and self.claims.is_whole(run)
        if is_serving and run.run_id not in self._given_up:
            self._violate(f"{self.calendar.now_us} us: a run of model {run.model} that served was ended")
        self.stages.end(peer, run)
        self.break_run(run)

    def on_held(self, peer: ClaimsPeer, seat: Seat, absent: tuple[PeerId, ...]) -> None:
        """Loads, or minds what it took over."""
        self.count("held")
        if not seat.is_takeover:
            self._coordinators[peer.number, seat.run.model].on_held(seat, absent)
        elif absent:
            self._leave(peer, seat, is_over=False)
        else:
            self.count("takeovers")
            if not seat.run.is_published:
                self.publish(seat.run)
            self._mind(peer, seat)
        self._note_conflicts(seat.run.model)

    def on_lost(self, peer: ClaimsPeer, seat: Seat, ungranted: tuple[PeerId, ...]) -> None:
        """Steps down."""
        coordinator = self._coordinators.get((peer.number, seat.run.model))
        self.claims.stand_up(peer, seat)
        if coordinator is not None and not seat.is_takeover:
            coordinator.on_lost(seat, ungranted)

    def _mind(self, peer: ClaimsPeer, seat: Seat, lost_for_us: int = 0) -> None:
        """A run that was taken over is followed: a stage that ended ends it, and so does being cut off for a while."""
        if not self.claims.is_seated(peer, seat):
            return
        is_heard = all(self.is_reached(peer.number, number) for number in seat.run.stages)
        lost_for_us = 0 if is_heard else lost_for_us + LOOK_US
        if seat.run.is_broken or lost_for_us >= CUT_OFF_US:
            self.give_up(seat.run)
            self._leave(peer, seat, is_over=True)
        else:
            self._later(LOOK_US, partial(self._mind, peer, seat, lost_for_us))

    def _leave(self, peer: ClaimsPeer, seat: Seat, *, is_over: bool) -> None:
        self.claims.feed(peer, seat, claims.ClaimWithdrawn(is_over))
        self.claims.stand_up(peer, seat)

    # --- faults --------------------------------------------------------------------------
    def _schedule(self, fault: Crash | Churn | Partition | Leave | Join) -> None:
        match fault:
            case Crash(at_us, number, down_us):
                self._later(at_us, partial(self._crash, number, down_us))
            case Churn(every_us, down_us):
                self._every(every_us, lambda: self._crash(self._draw_peer(), down_us))
            case Leave(every_us):
                self._every(every_us, lambda: self._go_politely(self._draw_peer()))
            case Join(every_us):
                self._every(every_us, self._join)
            case Partition(at_us, until_us, percent):
                boundary = len(self.claims.peers) * percent // 100
                self._later(at_us, partial(self._part, boundary))
                self._later(until_us, partial(self._part, 0))

    def _every(self, every_us: int, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self._later(every_us, again)

        self._later(every_us, again)

    def _draw_peer(self) -> int:
        return self.draws.below(len(self.claims.peers))

    def _join(self) -> None:
        host = self.hosts.all[self._add_peer().number]
        host.is_said_up = False
        self._later(self.scenario.gossip_us, partial(self._say_up, host.number, 0))

    def _say_up(self, number: int, life: int) -> None:
        peer, host = self.claims.peers[number], self.hosts.all[number]
        if peer.is_up and peer.life == life:
            host.is_said_up, host.said_free_bytes = True, host.free_bytes

    def _say_down(self, number: int, life: int) -> None:
        if self.claims.peers[number].life == life:
            self.hosts.all[number].is_said_up = False

    def _go_politely(self, number: int) -> None:
        """Runs that it coordinates are left to their other peers first; those that it has a stage of end."""
        peer = self.claims.peers[number]
        for seat in tuple(peer.seats.values()) if peer.is_up else ():
            is_here = number in seat.run.stages
            self.claims.feed(peer, seat, claims.ClaimWithdrawn(is_over=is_here or not seat.run.is_published))
        self._stop(peer, PARTING_US)

    def _crash(self, number: int, down_us: int | None) -> None:
        peer = self.claims.peers[number % len(self.claims.peers)]
        if self._stop(peer, self.scenario.forget_us) and down_us is not None:
            self._later(down_us, partial(self._restart, peer, peer.life))

    def _stop(self, peer: ClaimsPeer, forget_us: int) -> bool:
        if not peer.is_up:
            return False
        self.journal.write(f"{self.calendar.now_us} stops {peer.number}")
        for run in peer.stages.values():
            self.break_run(run)
        for seat in peer.seats.values():
            if not seat.run.is_published and not seat.claimant.claim.is_serving:
                self.break_run(seat.run)
        self.stages.forget(peer)
        self.claims.stop(peer)
        self._later(forget_us, partial(self._say_down, peer.number, peer.life))
        return True

    def _restart(self, peer: ClaimsPeer, life: int) -> None:
        if peer.is_up or peer.life != life:
            return
        self.claims.restart(peer)
        self._later(self.scenario.gossip_us, partial(self._say_up, peer.number, life))
        for model in self._models:
            if peer.number in model.holders:
                self._coordinate(peer, model)

    def _part(self, boundary: int) -> None:
        self.journal.write(f"{self.calendar.now_us} boundary {boundary}")
        self._boundary = boundary
        self._later(self.scenario.forget_us, partial(self._notice_part, boundary))
        for peer in self.claims.peers:
            for run in tuple(peer.stages.values()):
                if len({number < boundary for number in run.stages}) > 1:
                    self.break_run(run)
            for seat in peer.seats.values():
                self._cut_off(peer, seat)

    def _cut_off(self, peer: ClaimsPeer, seat: Seat) -> None:
        """A coordinator that does not reach a stage notices by itself."""
        index = next((i for i, n in enumerate(seat.run.stages) if not self.is_reached(peer.number, n)), None)
        coordinator = self._coordinators.get((peer.number, seat.run.model))
        if index is not None and coordinator is not None and not seat.is_takeover:
            self._later(2 * self.scenario.detect_us, partial(coordinator.on_stage_lost, seat.run, index))

    def _notice_part(self, boundary: int) -> None:
        self.hosts.known_boundary = boundary

    # --- what must hold ------------------------------------------------------------------
    def _look(self) -> None:
        self._later(LOOK_US, self._look)
        for number in range(self.scenario.models):
            self._note_conflicts(number)
            is_served = any(not run.is_broken and self.claims.is_whole(run) for run in self._published[number])
            self._ledger.note(number, is_served, self.calendar.now_us)

    def _is_servable(self, number: int) -> bool:
        """By a planner that knows all; what runs of the model itself take counts as free."""
        model = self._models[number]
        sides = {self._side(holder) for holder in model.holders if self.claims.peers[holder].is_up}
        return any(self._fits(model, side) for side in sorted(sides))

    def _side(self, number: int) -> bool:
        return number < self._boundary

    def _fits(self, model: SimModel, side: bool) -> bool:
        peers = self.claims.peers
        offers = (
            (host.free_bytes + host.used.get(model.number, 0), host.peer_id)
            for host in self.hosts.all
            if peers[host.number].is_up and not host.is_lying and self._side(host.number) == side
        )
        largest = tuple(PlanningPeer(peer_id, free) for free, peer_id in nlargest(LARGEST, offers))
        return isinstance(plan_placement(PlanRequest(model.planning, largest)), Placement)

    def _note_conflicts(self, model: int) -> None:
        for text in self.claims.find_conflicts(model):
            self._violate(text)

    def _violate(self, text: str) -> None:
        if len(self._violations) < MAX_VIOLATIONS:
            self._violations.append(text)


class ServiceLedger:
    """For how long each model was unserved while it could be served."""

    def __init__(self, models: int, is_servable: Callable[[int], bool]) -> None:
        self._is_servable = is_servable
        self._asked: dict[int, tuple[int, bool]] = {}
        self._unserved_since = [0] * models
        self.longest_us = [0] * models
        self.served_us = 0
        self.servable_us = 0

    def note(self, model: int, is_served: bool, now_us: int) -> None:
        """Once each ``LOOK_US``."""
        if is_served or not self._could_be(model, now_us):
            self._unserved_since[model] = now_us
            self.served_us += LOOK_US * is_served
            self.servable_us += LOOK_US * is_served
            return
        self.servable_us += LOOK_US
        self.longest_us[model] = max(self.longest_us[model], now_us - self._unserved_since[model])

    def _could_be(self, model: int, now_us: int) -> bool:
        until, answer = self._asked.get(model, (0, False))
        if now_us >= until:
            answer = self._is_servable(model)
            self._asked[model] = (now_us + SERVABLE_US, answer)
        return answer


def simulate_models(scenario: ModelsScenario, peers: int, seed: int) -> ModelsReport:
    """Runs a scenario of the world ``models``."""
    return ModelsWorld(scenario, peers, seed).run()
