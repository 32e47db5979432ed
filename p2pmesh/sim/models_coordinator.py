"""A peer that was told to serve a model, in the world ``models``: plans, claims, loads, watches, replaces, moves.

Every decision is a machine's or a function's of ``core``: the planner, ``RunMachine``, ``RunPacing``, ``Replanner``,
and those of claims. This is what ``node.coordinator``, ``node.run`` and ``node.standby`` are around them, in short.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import claims, coordination, replanning
from p2pmesh.core.next_run import RunOutcome, RunPacing
from p2pmesh.core.planning.kept import plan_replacement
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest
from p2pmesh.sim.alarm import Alarm
from p2pmesh.sim.calendar import Calendar
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.claim_peers import ClaimPeers, ClaimsPeer, Seat, SimRun
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.models_hosts import Hosts
from p2pmesh.sim.models_scenario import ModelsScenario
from p2pmesh.sim.models_stages import SimStages, StageOrder
from p2pmesh.sim.peer import number_of
from p2pmesh.sim.scenario import SECOND_US

STAND_BY_US = SECOND_US
PLAN_AGAIN_US = 2 * SECOND_US
FAILED_US = 120 * SECOND_US
STANDBY_AFTER_US = 3 * SECOND_US
STANDBY_AGAIN_US = 10 * SECOND_US
_SYMPTOMS = frozenset({ErrorCode.PEER_LOST, ErrorCode.PEER_UNREACHABLE})


@dataclass(frozen=True, slots=True)
class SimModel:
    """A model of the world: how the planner sees it, and who has its file."""

    number: int
    planning: PlanningModel
    holders: tuple[int, ...]


class CoordinatorWorld(Protocol):
    """What coordinators stand on."""

    scenario: ModelsScenario
    calendar: Calendar
    journal: Journal
    claims: ClaimPeers
    hosts: Hosts
    stages: SimStages
    draws: Draws

    def is_reached(self, source: int, target: int) -> bool:
        """Whether nothing lies between two peers."""

    def make_run(self, model: int, placement: Placement) -> SimRun:
        """A new run."""

    def count(self, what: str, by: int = 1) -> None:
        """For the report."""

    def publish(self, run: SimRun) -> None:
        """Requests are routed to it."""

    def give_up(self, run: SimRun) -> None:
        """Its coordinator means its end."""

    def break_run(self, run: SimRun) -> None:
        """A stage of it is gone."""


class ModelCoordinator:
    """One life of one holder of one model."""

    def __init__(self, world: CoordinatorWorld, peer: ClaimsPeer, model: SimModel) -> None:
        self._world = world
        self._peer = peer
        self._life = peer.life
        self._model = model
        self._pacing = RunPacing()
        self._replanner = replanning.Replanner(None, world.draws.below(replanning.MAX_JITTER))
        self._replan_alarm = Alarm()
        self._placement: Placement | None = None
        self._next: Placement | None = None
        self._out_until: dict[int, int] = {}
        """Peers that promised the model to others, or failed."""
        self._standbys: dict[LayerRange, int] = {}
        self._attempt: _RunAttempt | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its peer still runs."""
        return self._peer.is_up and self._peer.life == self._life

    def start(self) -> None:
        """Begins, in a moment of its own."""
        self._go_later(self._world.draws.below(SECOND_US))

    def _go_later(self, wait_us: int) -> None:
        self._world.claims.later(wait_us, self._go)

    def _go(self) -> None:
        """Stands by, or claims what it planned."""
        if not self.is_alive or self._attempt is not None:
            return
        if self._model.number in self._peer.seats:  # it took a run over
            self._go_later(STAND_BY_US)
            return
        if self._next is None and self._world.claims.is_promised(self._peer, self._model.number):
            self._standbys.clear()
            self._go_later(STAND_BY_US)
            return
        placement = self._next or self._plan()
        self._next = None
        if placement is None:
            self._standbys.clear()
            self._go_later(PLAN_AGAIN_US)
            return
        self._placement = placement
        run = self._world.make_run(self._model.number, placement)
        self._attempt = _RunAttempt(self._world, self._peer, run, placement, self._on_serving, self._on_over)
        self._world.claims.sit(self._peer, run, is_takeover=False)

    # --- news of the claim ------------------------------------------------------------
    def on_held(self, seat: Seat, absent: tuple[PeerId, ...]) -> None:
        """The claim is held."""
        attempt = self._attempt
        if attempt is None or attempt.run is not seat.run:
            return
        if absent:
            self._note_out(absent, self._world.claims.policy.lease_us)
            self._attempt = None
            self._world.claims.feed(self._peer, seat, claims.ClaimWithdrawn(True))
            self._world.claims.stand_up(self._peer, seat)
            self._go_on(RunOutcome(is_claimed=False))
        else:
            attempt.begin(seat)

    def on_lost(self, seat: Seat, ungranted: tuple[PeerId, ...]) -> None:
        """It is not, or no longer."""
        attempt = self._attempt
        if attempt is None or attempt.run is not seat.run:
            return
        self._note_out(ungranted, self._world.claims.policy.lease_us)
        if attempt.has_begun:
            attempt.feed(coordination.ClaimWasLost(ErrorCode.QUORUM_LOST, ""))
        else:
            self._attempt = None
            self._go_on(RunOutcome(is_claimed=False))

    def on_stage_lost(self, run: SimRun, index: int) -> None:
        """A stage of a run is gone, or out of reach."""
        if self._attempt is not None and self._attempt.run is run:
            self._attempt.feed(coordination.StageFailed(index, ErrorCode.PEER_LOST, ""))

    def _note_out(self, peers: tuple[PeerId, ...], for_us: int) -> None:
        until = self._world.calendar.now_us + for_us
        own = self._peer.number
        self._out_until |= {number_of(peer): until for peer in peers if number_of(peer) != own}

    # --- runs ---------------------------------------------------------------------------
    def _on_serving(self) -> None:
        self._feed_replanner(replanning.RunServes())
        assert self._placement is not None
        layers = {stage.layers for stage in self._placement.stages}
        self._standbys = {held: number for held, number in self._standbys.items() if held in layers}
        self._world.claims.later(STANDBY_AFTER_US, partial(self._keep_standbys, self._attempt))

    def _on_over(self, outcome: RunOutcome, end: coordination.EndRun | None, silent: tuple[int, ...]) -> None:
        self._attempt = None
        self._feed_replanner(replanning.RunEnded())
        if end is not None and end.index is not None and not (outcome.had_served and end.code in _SYMPTOMS):
            assert self._placement is not None
            self._note_out((self._placement.stages[end.index].peer_id,), FAILED_US)
        self._go_on(outcome, end, silent)

    def _go_on(self, outcome: RunOutcome, end: coordination.EndRun | None = None, silent: tuple[int, ...] = ()) -> None:
        following = self._pacing.after(outcome)
        if following.keeps_stages and self._next is None and self._placement is not None:
            gone = {self._world.hosts.all[number].peer_id for number in silent}
            planned = plan_replacement(self._request(), self._placement, None, gone, self._spare_for)
            self._next = planned if isinstance(planned, Placement) else None
        self._go_later(following.wait_us)

    # --- planning -----------------------------------------------------------------------
    def _request(self) -> PlanRequest:
        world, now = self._world, self._world.calendar.now_us
        hosts, own = world.hosts, world.hosts.all[self._peer.number]
        boundary, is_low = hosts.known_boundary, self._peer.number < hosts.known_boundary
        free_bytes = own.free_bytes - self._peer.grantor.reserved_bytes(self._peer.clock(now))
        peers = [PlanningPeer(own.peer_id, free_bytes, has_model=True, decode_bytes_per_s=hosts.speed(own, now))]
        for number in hosts.view(self._peer.number):
            host = hosts.all[number]
            is_out = self._out_until.get(number, 0) > now or (number < boundary) != is_low
            if host.is_said_up and not is_out and host.said_free_bytes > 0:
                speed = hosts.speed(host, now)
                offer = PlanningPeer(
                    host.peer_id, host.said_free_bytes, is_behind_nat=host.is_nat, decode_bytes_per_s=speed
                )
                peers.append(offer)
        return PlanRequest(self._model.planning, tuple(peers), own.peer_id, links=hosts.measured(now))

    def _plan(self) -> Placement | None:
        self._world.count("plans")
        planned = plan_placement(self._request())
        return planned if isinstance(planned, Placement) else None

    # --- engines on spare peers ----------------------------------------------------------
    def _spare_for(self, layers: LayerRange) -> PeerId | None:
        number = self._standbys.get(layers)
        if number is None or not self._world.stages.is_ready(number, (self._model.number, layers)):
            return None
        return self._world.hosts.all[number].peer_id

    def _keep_standbys(self, attempt: "_RunAttempt | None") -> None:
        if not self.is_alive or self._attempt is not attempt or self._placement is None:
            return
        self._world.claims.later(STANDBY_AGAIN_US, partial(self._keep_standbys, attempt))
        missing = [stage for stage in self._placement.stages if self._spare_for(stage.layers) is None]
        if not missing:
            return
        busy = {stage.peer_id for stage in self._placement.stages}
        request = self._request()
        rooms = sorted(
            ((request.usable_bytes(peer), peer.peer_id) for peer in request.peers if peer.peer_id not in busy),
            reverse=True,
        )
        for stage, (room, peer_id) in zip(missing, rooms, strict=False):
            if room >= stage.needed_bytes:
                number = self._world.hosts.numbers[peer_id]
                self._standbys[stage.layers] = number
                engine = (self._model.number, stage.layers)
                self._world.stages.keep_ready(number, engine, stage.needed_bytes, lambda is_up: None)

    # --- moving --------------------------------------------------------------------------
    def _feed_replanner(self, event: replanning.Event) -> None:
        if not self.is_alive:
            return
        now = self._world.calendar.now_us
        effects = self._replanner.handle(event, Micros(now))
        for effect in effects:
            self._perform(effect)
        due = self._replanner.deadline()
        if due is not None:
            wake = partial(self._feed_replanner, replanning.DeadlinePassed())
            self._replan_alarm.set_at(self._world.calendar, due, wake)

    def _perform(self, effect: replanning.Effect) -> None:
        match effect:
            case replanning.Look(candidate):
                self._world.claims.later(0, partial(self._look, candidate))
            case replanning.Prepare(placement, attempt):
                self._prepare(placement, attempt)
            case replanning.Drain(_, attempt, quiet_us):
                self._drain(attempt, quiet_us)
            case replanning.Move(placement, reason, old, new):
                self._world.count("moves")
                self._world.journal.write(f"{self._world.calendar.now_us} moves {reason.value} {old} {new}")
                self._next = placement
                if self._attempt is not None:
                    self._attempt.feed(coordination.RunGivenUp(ErrorCode.MODEL_NOT_READY, reason.value))
            case replanning.Abandon():
                self._world.count("abandoned")

    def _look(self, candidate: Placement | None) -> None:
        if self._attempt is None or self._placement is None or not self._attempt.is_serving or not self.is_alive:
            return
        self._world.count("plans")
        request = replanning.request_without_run(self._request(), self._placement)
        standing = replanning.assess_standing(request, self._placement)
        if standing is None:
            return
        best = plan_placement(request)
        offered = None
        if isinstance(best, Placement) and not replanning.is_same_placement(best, self._placement):
            assessed = replanning.assess_candidate(request, best)
            offered = (best, assessed) if assessed is not None else None
        kept = replanning.assess_candidate(request, candidate) if candidate is not None else None
        self._feed_replanner(replanning.Looked(standing, offered, kept))

    def _prepare(self, wanted: Placement, attempt: int) -> None:
        assert self._placement is not None
        if replanning.peers_without_room_beside(self._request(), self._placement, wanted):
            self._feed_replanner_later(replanning.Prepared(attempt, is_beside=False))
            return
        missing = set(replanning.new_stages(self._placement, wanted))
        if not missing:
            self._feed_replanner_later(replanning.Prepared(attempt, is_beside=True))

        def told(index: int, is_up: bool) -> None:
            missing.discard(index)
            if not is_up:
                self._feed_replanner(replanning.AttemptFailed(attempt))
            elif not missing:
                self._feed_replanner(replanning.Prepared(attempt, is_beside=True))

        for index in sorted(missing):
            stage = wanted.stages[index]
            engine = (self._model.number, stage.layers)
            number = self._world.hosts.numbers[stage.peer_id]
            self._world.stages.keep_ready(number, engine, stage.needed_bytes, partial(told, index))

    def _drain(self, attempt: int, quiet_us: int) -> None:
        """A driver that takes no request is idle after the longest one; a quiet moment comes, or does not."""
        draws, longest_us = self._world.draws, self._world.scenario.longest_request_us
        wait_us = quiet_us + draws.below(20 * longest_us) if quiet_us else draws.below(longest_us)
        self._world.claims.later(wait_us, partial(self._feed_replanner, replanning.Drained(attempt)))

    def _feed_replanner_later(self, event: replanning.Event) -> None:
        self._world.claims.later(0, partial(self._feed_replanner, event))


OverListener = Callable[[RunOutcome, coordination.EndRun | None, tuple[int, ...]], None]


class _RunAttempt:
    """One run at its coordinator: ``RunMachine`` and what it wants done."""

    def __init__(
        self,
        world: CoordinatorWorld,
        peer: ClaimsPeer,
        run: SimRun,
        placement: Placement,
        on_serving: Callable[[], None],
        on_over: OverListener,
    ) -> None:
        self.run = run
        self._world = world
        self._peer = peer
        self._placement = placement
        self._on_serving = on_serving
        self._on_over = on_over
        self._machine = coordination.RunMachine(
            len(placement.stages), stage_bytes=[stage.needed_bytes for stage in placement.stages]
        )
        self._alarm = Alarm()
        self._seat: Seat | None = None
        self._serving_since: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether stages were ordered."""
        return self._seat is not None

    @property
    def is_serving(self) -> bool:
        """Whether it serves now."""
        return self._machine.phase is coordination.RunPhase.SERVING

    def begin(self, seat: Seat) -> None:
        """The claim is held."""
        self._seat = seat
        self.feed(coordination.RunStarted())

    def feed(self, event: coordination.Event) -> None:
        """One event of the run."""
        seat = self._seat
        if seat is None or not self._peer.is_up or self._machine.phase is coordination.RunPhase.OVER:
            return
        is_lost = isinstance(event, coordination.ClaimWasLost)
        if not is_lost and not self._world.claims.is_seated(self._peer, seat):
            return
        now = Micros(self._world.calendar.now_us)
        effects = self._machine.handle(event, now)
        self._world.journal.note(now, f"{self._peer.number} runs {self.run.model}", event, effects)
        for effect in effects:
            self._perform(seat, effect)
        due = self._machine.deadline()
        if due is not None:
            self._alarm.set_at(self._world.calendar, due, partial(self.feed, coordination.DeadlinePassed()))

    def _perform(self, seat: Seat, effect: coordination.Effect) -> None:
        world = self._world
        match effect:
            case coordination.StartLoad(index):
                stage = self._placement.stages[index]
                order = StageOrder(self.run, seat.claimant.claim, index, stage.layers, stage.needed_bytes, self.feed)
                world.stages.order(self._peer, order)
            case coordination.StartProbe():
                world.claims.later(self._round_us(), self._probe)
            case coordination.StartPublish():
                world.claims.feed(self._peer, seat, claims.RunServes())
                world.claims.later(self._round_us(), partial(self._publish, seat))
            case coordination.ReportServing():
                self._on_serving()
            case coordination.EndRun():
                world.give_up(self.run)
                silent = self._find_silent()
                world.claims.later(world.scenario.detect_us if silent else 0, partial(self._end, seat, effect, silent))
            case coordination.LeaveRun():
                world.claims.stand_up(self._peer, seat)
                self._over(None, (), is_left=True)

    def _round_us(self) -> int:
        """To the farthest peer and back, and what a token takes."""
        hosts, own = self._world.hosts, self._peer.number
        ways = (hosts.way_us(own, number) for number in self.run.stages)
        return 2 * max(ways) + self._placement.estimate.tpot_us

    def _probe(self) -> None:
        if not self.run.is_broken:  # otherwise a stage says why
            self.feed(coordination.ProbeSucceeded())

    def _publish(self, seat: Seat) -> None:
        if self._world.claims.is_seated(self._peer, seat) and not self.run.is_broken:
            self._world.publish(self.run)
            self._serving_since = self._world.calendar.now_us
            self.feed(coordination.PublishSucceeded())

    def _find_silent(self) -> tuple[int, ...]:
        world, own = self._world, self._peer.number
        return tuple(
            number
            for number in self.run.stages
            if not world.claims.peers[number].is_up or not world.is_reached(own, number)
        )

    def _end(self, seat: Seat, end: coordination.EndRun, silent: tuple[int, ...]) -> None:
        """Gives the claim back; the stages of a run that did not serve end with their coordinator's streams."""
        world = self._world
        if not world.claims.is_seated(self._peer, seat):
            return
        world.claims.feed(self._peer, seat, claims.ClaimWithdrawn(True))
        world.claims.stand_up(self._peer, seat)
        if self._serving_since is None:
            world.break_run(self.run)
        self._over(end, silent, is_left=False)

    def _over(self, end: coordination.EndRun | None, silent: tuple[int, ...], *, is_left: bool) -> None:
        now, since = self._world.calendar.now_us, self._serving_since
        served_us = now - since if since is not None else 0
        self._on_over(RunOutcome(True, since is not None, is_left, served_us), end, silent)
