"""The simulated coordinator of a model: plans over the peers at hand, replaces runs that are over, admits requests."""

from dataclasses import dataclass
from functools import partial

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.limits import DEFAULT_LANES
from p2pmesh.core.planning.outcome import PlacementRefusal
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest, ShapeBytes
from p2pmesh.sim.peer import SimPeer, Surroundings, number_of, peer_id_of
from p2pmesh.sim.run import RunListener, RunTexture, SimRun
from p2pmesh.sim.scenario import SECOND_US, ModelLoad
from p2pmesh.sim.sequence import SimRequest, SimSequence
from p2pmesh.sim.snapshot import RunSnapshot, SequenceSnapshot
from p2pmesh.wire.announcement import ServedModel

MODEL_NAME = "simulated"
BACK_OFF_US = 2 * SECOND_US
MAX_RUNS = 256


@dataclass(slots=True)
class Outcomes:
    """How requests ended, by finish reason or error code, and the tokens that came out."""

    by_name: dict[str, int]
    tokens: int = 0

    def add(self, outcome: str, tokens: int = 0) -> None:
        """One request."""
        self.by_name[outcome] = self.by_name.get(outcome, 0) + 1
        self.tokens += tokens


class SimCoordinator:
    """One run of the coordinating peer, from its start to its crash."""

    def __init__(
        self, home: SimPeer, world: Surroundings, texture: RunTexture, outcomes: Outcomes, first_run: int
    ) -> None:
        self._home = home
        self._world = world
        self._texture = texture
        self._outcomes = outcomes
        self._first_run = first_run
        self._is_stopped = False
        self._blamed: dict[int, None] = {}
        self._runs: list[SimRun] = []
        self._sequences: list[SimSequence] = []
        self._listener = RunListener(self._on_publish, self._on_serving, self._on_over, self._on_outcome)

    @property
    def runs(self) -> tuple[SimRun, ...]:
        """All runs of this coordinator, oldest first."""
        return tuple(self._runs)

    def stop(self) -> None:
        """The peer has crashed. Its sequences end with it, by no fault of their machines."""
        self._is_stopped = True
        for run in self._runs:
            run.stop()
        self._sequences.clear()

    def plan(self) -> None:
        """Plans over the admitted peers that announce memory, or tries again later."""
        if self._is_stopped or len(self._runs) >= MAX_RUNS:
            return
        plan = plan_placement(self._request())
        if isinstance(plan, PlacementRefusal):
            self._world.journal.write(f"{self._world.scheduler.now} refused {plan.reason.value} {plan.text}")
            self._plan_later()
            return
        number = self._first_run + len(self._runs)
        self._runs.append(SimRun(number, plan, self._home, self._world, self._texture, self._listener))
        self._runs[-1].start()

    def submit(self, request: SimRequest) -> None:
        """A request that was routed here."""
        run = self._runs[-1] if self._runs else None
        if run is None or not run.is_serving:
            self._on_outcome(request, ErrorCode.MODEL_NOT_READY.value, 0)
        elif run.live_count >= DEFAULT_LANES:
            self._on_outcome(request, ErrorCode.OVERLOADED.value, 0)
        else:
            self._sequences.append(run.submit(request))

    def on_lost(self, peer: int) -> None:
        """An admitted peer is gone."""
        if self._runs:
            self._runs[-1].on_lost(peer)

    def run_snapshots(self) -> tuple[RunSnapshot, ...]:
        """For the invariants."""
        return tuple(run.snapshot() for run in self._runs)

    def sequence_snapshots(self) -> tuple[SequenceSnapshot, ...]:
        """For the invariants: all sequences since the last look; those that are over are looked at once."""
        found = tuple(sequence.snapshot() for sequence in self._sequences)
        self._sequences = [sequence for sequence in self._sequences if not sequence.machine.is_over]
        return found

    def _request(self) -> PlanRequest:
        model: ModelLoad = self._texture.model
        shape = ShapeBytes(
            (model.layer_bytes,) * model.layers, model.layer_bytes, model.layer_bytes, model.layer_bytes // 4
        )
        others = tuple(
            PlanningPeer(peer_id, said.free_bytes)
            for peer_id in self._home.admission.admitted()
            if (said := self._home.membership.find(peer_id)) is not None and number_of(peer_id) not in self._blamed
        )
        home = peer_id_of(self._home.number)
        peers = (PlanningPeer(home, self._home.traits.free_bytes), *others)
        planning = PlanningModel((shape,), tuple(range(1, model.layers)))
        return PlanRequest(planning, peers, home, model.stage_count)

    def _plan_later(self) -> None:
        self._world.scheduler.after(BACK_OFF_US, self.plan)

    # --- news from a run --------------------------------------------------------
    def _on_publish(self, run: SimRun) -> None:
        served = ServedModel(MODEL_NAME, "0" * 64, run.number.to_bytes(16, "big"), len(run.stages), 4096)
        self._home.models = (served,)

    def _on_serving(self, _: SimRun) -> None:
        self._home.announce()

    def _on_over(self, _: SimRun, peer_at_fault: int | None) -> None:
        if peer_at_fault is not None and peer_at_fault != self._home.number:
            peer = self._world.peer(peer_at_fault)
            if peer is not None and self._world.network.believes_connected(self._home.number, peer_at_fault):
                self._blamed[peer_at_fault] = None  # it is here and could not do it
        if self._home.models:
            self._home.models = ()
            self._home.announce()
        self._plan_later()

    def _on_outcome(self, request: SimRequest, outcome: str, tokens: int) -> None:
        self._world.journal.write(f"{self._world.scheduler.now} request {request.number} {outcome} {tokens}")
        if request.number >= 0:
            self._outcomes.add(outcome, tokens)


def submit_later(world: Surroundings, coordinator: SimCoordinator, request: SimRequest, driver: int) -> None:
    """Sends a request from its ingress to the driver it was routed to."""
    world.network.send(request.ingress, driver, partial(coordinator.submit, request))
