"""One run of a model over simulated stages: the very ``RunMachine``, and rows that travel through the pipeline."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import Micros
from p2pmesh.core import coordination
from p2pmesh.core.coordination import StageState
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.sim.chance import Chance
from p2pmesh.sim.peer import Character, SimPeer, Surroundings, number_of, peer_id_of
from p2pmesh.sim.runner import MachineRunner
from p2pmesh.sim.scenario import ModelLoad
from p2pmesh.sim.sequence import Rows, SimRequest, SimSequence, sampled_token
from p2pmesh.sim.snapshot import RunSnapshot

PUBLISH_US = 1000


@dataclass(slots=True)
class SimStage:
    """A stage at its peer. ``kept`` is the position up to which each sequence's rows are held."""

    peer: int
    layers: LayerRange
    needed_bytes: int
    free_bytes: int
    incarnation: int
    busy_until: Micros = Micros(0)
    kept: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunTexture:
    """What chance and data decide about a run: stream resets per million frames, the model, the run's own draws."""

    model: ModelLoad
    reset: int
    chance: Chance


@dataclass(frozen=True, slots=True)
class RunListener:
    """Where a run's news goes; ``on_over`` gets the peer at fault, if one is."""

    on_publish: Callable[["SimRun"], None]
    on_serving: Callable[["SimRun"], None]
    on_over: Callable[["SimRun", int | None], None]
    on_outcome: Callable[[SimRequest, str, int], None]


class SimRun:
    """A placement that is put into effect by the coordinator, which is also the driver."""

    def __init__(
        self, number: int, placement: Placement, home: SimPeer, world: Surroundings, texture: RunTexture,
        listener: RunListener,
    ) -> None:  # fmt: skip
        self.number = number
        self._home = home
        self._world = world
        self._texture = texture
        self._listener = listener
        self._lost: dict[int, None] = {}
        self._effects_to_lost = 0
        self._sequences: dict[int, SimSequence] = {}
        self.stages = [
            SimStage(peer, stage.layers, stage.needed_bytes, stage.free_bytes, world.network.incarnation(peer))
            for stage in placement.stages
            for peer in (number_of(stage.peer_id),)
        ]
        self.machine = coordination.RunMachine(len(self.stages))
        self._runner = MachineRunner[coordination.Event, coordination.Effect](
            world.scheduler, self.machine, coordination.DeadlinePassed(), self._perform, self._note
        )

    @property
    def is_serving(self) -> bool:
        """Whether requests may be submitted."""
        return self.machine.phase is coordination.RunPhase.SERVING

    @property
    def live_count(self) -> int:
        """Sequences that have not ended."""
        return len(self._sequences)

    def start(self) -> None:
        """Puts the placement into effect."""
        self._runner.post(coordination.RunStarted())

    def stop(self) -> None:
        """The coordinator has crashed; its sequences are nobody's."""
        self._runner.stop()
        for sequence in list(self._sequences.values()):
            sequence.stop()
            self._listener.on_outcome(sequence.request, "driver_lost", 0)
        self._sequences.clear()

    def submit(self, request: SimRequest) -> SimSequence:
        """Starts a sequence."""
        sequence = SimSequence(
            request, self._world.scheduler, self._world.journal, self._send_rows, self._on_sequence_end
        )
        self._sequences[request.number] = sequence
        sequence.start()
        return sequence

    def on_lost(self, peer: int) -> None:
        """The coordinator has noticed the loss of a peer; if it holds a stage, the run is over."""
        for index, stage in enumerate(self.stages):
            if stage.peer == peer:
                self._lost[index] = None
                text = f"{peer_id_of(peer)} is gone"
                self._runner.post(coordination.StageFailed(index, ErrorCode.PEER_LOST, text))

    def snapshot(self) -> RunSnapshot:
        """For the invariants."""
        return RunSnapshot(
            self.number, self._texture.model.layers, tuple(stage.layers for stage in self.stages),
            tuple(stage.needed_bytes for stage in self.stages), tuple(stage.free_bytes for stage in self.stages),
            self._effects_to_lost,
        )  # fmt: skip

    # --- the run machine's effects ----------------------------------------------
    def _perform(self, effect: coordination.Effect) -> None:
        match effect:
            case coordination.StartLoad(index):
                self._effects_to_lost += index in self._lost
                self._world.network.send(self._home.number, self.stages[index].peer, partial(self._load, index))
            case coordination.StartProbe():
                self._effects_to_lost += bool(self._lost)
                self.submit(SimRequest(-self.number, self._home.number, 1, 1, 0))
            case coordination.StartPublish():
                self._listener.on_publish(self)
                self._world.scheduler.after(PUBLISH_US, partial(self._runner.post, coordination.PublishSucceeded()))
            case coordination.ReportServing():
                self._listener.on_serving(self)
            case coordination.EndRun(code, text, index):
                self._end(code, text, index)

    def _end(self, code: ErrorCode, text: str, index: int | None) -> None:
        for sequence in list(self._sequences.values()):
            sequence.fail(code, text)
        self._listener.on_over(self, None if index is None else self.stages[index].peer)

    # --- at a stage's peer ------------------------------------------------------
    def _load(self, index: int) -> None:
        self._report(index, StageState.LOADING)
        peer = self._world.peer(self.stages[index].peer)
        if peer is None:
            return
        is_lie = peer.traits.character is Character.LYING
        result = StageState.FAILED if is_lie else StageState.READY
        self._world.scheduler.after(
            self._texture.model.load_us * peer.traits.slowness, partial(self._report, index, result)
        )

    def _report(self, index: int, state: StageState) -> None:
        if self._holds(self.stages[index]):
            post = partial(self._runner.post, coordination.StageReported(index, state))
            self._world.network.send(self.stages[index].peer, self._home.number, post)

    def _holds(self, stage: SimStage) -> bool:
        network = self._world.network
        return network.is_up(stage.peer) and network.incarnation(stage.peer) == stage.incarnation

    # --- rows through the pipeline ----------------------------------------------
    def _send_rows(self, sequence: SimSequence, rows: Rows) -> None:
        self._effects_to_lost += bool(self._lost)
        self._arrive(sequence, rows, 0)

    def _arrive(self, sequence: SimSequence, rows: Rows, index: int) -> None:
        stage = self.stages[index]
        peer = self._world.peer(stage.peer)
        if sequence.machine.is_over or peer is None or not self._holds(stage):
            return
        number = sequence.request.number
        if rows.position > stage.kept.get(number, 0):
            self._fail(sequence, index, ErrorCode.FRAME_POSITION_INVALID, f"a hole before {rows.position}")
            return
        stage.kept[number] = rows.position + rows.count
        compute_us = rows.count * len(stage.layers) * self._texture.model.layer_token_us * peer.traits.slowness
        stage.busy_until = Micros(max(stage.busy_until, self._world.scheduler.now) + compute_us)
        self._world.scheduler.at(stage.busy_until, partial(self._leave, sequence, rows, index))

    def _leave(self, sequence: SimSequence, rows: Rows, index: int) -> None:
        stage = self.stages[index]
        if not self._holds(stage):
            return
        if index == len(self.stages) - 1:
            self._return(sequence, rows, stage)
        elif self._texture.chance.happens(self._texture.reset):
            self._fail(sequence, index, ErrorCode.PEER_LOST, "the stream was reset")
        else:
            following = partial(self._arrive, sequence, rows, index + 1)
            self._world.network.send(stage.peer, self.stages[index + 1].peer, following)

    def _return(self, sequence: SimSequence, rows: Rows, stage: SimStage) -> None:
        end = rows.position + rows.count
        send = partial(self._world.network.send, stage.peer, self._home.number)
        if rows.position < sequence.request.prompt_tokens:
            send(partial(sequence.on_credit, end))
        if rows.is_sampled:
            send(partial(sequence.on_token, end, sampled_token(sequence.request.number, end)))

    def _fail(self, sequence: SimSequence, index: int, code: ErrorCode, text: str) -> None:
        fail = partial(sequence.fail, code, f"stage {index}: {text}")
        self._world.network.send(self.stages[index].peer, self._home.number, fail)

    def _on_sequence_end(self, sequence: SimSequence, outcome: str, tokens: int) -> None:
        number = sequence.request.number
        self._sequences.pop(number, None)
        for stage in self.stages:
            stage.kept.pop(number, None)
        if number >= 0:
            self._listener.on_outcome(sequence.request, outcome, tokens)
        elif tokens:
            self._runner.post(coordination.ProbeSucceeded())
        else:
            self._runner.post(coordination.ProbeFailed(ErrorCode(outcome), "the probe ended"))

    def _note(self, now: Micros, event: object, effects: tuple[object, ...]) -> None:
        self._world.journal.note(now, f"run {self.number}", event, effects)
