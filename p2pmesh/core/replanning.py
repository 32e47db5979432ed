"""Whether a run that serves is to be moved to a better placement: when to look, what is better, when it may be done.

Owns the comparison of two placements, and the machine that waits until a difference is clear, lasts, and can be used
without cutting a request. What placements there are is ``core.planning``'s; that a broken run is replaced is
``node.coordinator``'s; how a run moves is the runner's, too.

A move costs: stages load, requests may wait. Measurements waver, peers come and go. So a placement must be better by
``gain_percent``, and stay so by ``keep_percent`` for ``stable_us`` (hysteresis), and moves of one model lie ``rest_us``
apart, twice as much after each. A run is moved only when its driver, which takes no new request meanwhile, has none
left: where the stages of the new run stand ready beside those of the old one requests wait for at most ``drain_us``,
elsewhere nobody must have asked for anything for ``quiet_us``.

A peer that is about to leave waits for neither: its stage is loaded elsewhere at once, and what is under way after
``leave_drain_us`` is handed over, as after a loss, but to engines that are ready.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.planning.outcome import Placement, PlannedStage
from p2pmesh.core.planning.pricing import Prices
from p2pmesh.core.planning.request import PlanningPeer, PlanRequest

MAX_JITTER = 1_000_000


# --- what is better -------------------------------------------------------------
class ReplanReason(StrEnum):
    """Why a run is moved."""

    OWNERS_WISH = "owners_wish"
    FEWER_PEERS = "fewer_peers"
    FASTER = "faster"
    PEER_LEAVES = "peer_leaves"


@dataclass(frozen=True, slots=True)
class Assessment:
    """A placement by what is known now; ``unwanted`` stages are not what their peers' owners allow any more."""

    stage_count: int
    tpot_us: int
    unwanted: int = 0


@dataclass(frozen=True, slots=True)
class ReplanPolicy:
    """Times in microseconds, gains in per cent of the standing run's time per token."""

    gain_percent: int = 20
    keep_percent: int = 10
    gain_least_us: int = 2_000
    slower_percent: int = 10
    """What fewer peers may cost: times are known no better."""
    settle_us: int = 60_000_000
    """A run that has just begun to serve is left alone."""
    look_us: int = 60_000_000
    stable_us: int = 120_000_000
    rest_us: int = 600_000_000
    most_rest_us: int = 7_200_000_000
    """Also the time without a move after which moves count as rare again."""
    prepare_us: int = 300_000_000
    drain_us: int = 30_000_000
    quiet_us: int = 60_000_000
    quiet_wait_us: int = 600_000_000
    leave_look_us: int = 5_000_000
    leave_drain_us: int = 3_000_000
    is_watching: bool = True
    """Otherwise a run is moved only off a peer that leaves."""

    @classmethod
    def after(cls, stable_s: float) -> "ReplanPolicy":
        """The policy by which something must be better for ``stable_s``; the other times follow from it.

        0: nothing moves but for a peer that leaves.
        """
        if stable_s <= 0:
            return cls(is_watching=False)
        stable_us = int(stable_s * MICROS_PER_SECOND)
        half_us = max(1, stable_us // 2)
        return cls(
            settle_us=half_us, look_us=half_us, stable_us=stable_us, quiet_us=half_us, rest_us=max(1, 5 * stable_us)
        )


def why_better(standing: Assessment, other: Assessment, policy: ReplanPolicy, percent: int) -> ReplanReason | None:
    """Why another placement is better than the standing one by at least so much; None if it is not."""
    if other.unwanted < standing.unwanted:
        return ReplanReason.OWNERS_WISH
    if other.unwanted > standing.unwanted:
        return None
    is_as_fast = 100 * other.tpot_us <= (100 + policy.slower_percent) * standing.tpot_us
    if other.stage_count < standing.stage_count and is_as_fast:
        return ReplanReason.FEWER_PEERS
    gain_us = standing.tpot_us - other.tpot_us
    is_clear = gain_us >= policy.gain_least_us and 100 * gain_us >= percent * standing.tpot_us
    return ReplanReason.FASTER if is_clear else None


def request_without_run(request: PlanRequest, standing: Placement) -> PlanRequest:
    """The request as it would be if the standing run were gone: its memory is free, its stages are the kept ones."""
    held = {stage.peer_id: stage.needed_bytes for stage in standing.stages}
    peers = tuple(replace(peer, free_bytes=peer.free_bytes + held.get(peer.peer_id, 0)) for peer in request.peers)
    by_id = {peer.peer_id: peer for peer in peers}
    kept = tuple(s for s in standing.stages if not is_unwanted(by_id.get(s.peer_id), s))
    return replace(request, peers=peers, kept=kept)


def assess_standing(request: PlanRequest, standing: Placement) -> Assessment | None:
    """The run that serves, under ``request_without_run``; None while not all of its peers are known."""
    by_id = {peer.peer_id: peer for peer in request.peers}
    if any(stage.peer_id not in by_id for stage in standing.stages):
        return None
    unwanted = sum(is_unwanted(by_id[stage.peer_id], stage) for stage in standing.stages)
    return Assessment(len(standing.stages), Prices(request).estimate(standing.stages).tpot_us, unwanted)


def assess_candidate(request: PlanRequest, candidate: Placement) -> Assessment | None:
    """A placement of an earlier look, under ``request_without_run``; None if it has no room any more."""
    by_id = {peer.peer_id: peer for peer in request.peers}
    for stage in candidate.stages:
        peer = by_id.get(stage.peer_id)
        if peer is None or is_unwanted(peer, stage) or request.usable_bytes(peer) < stage.needed_bytes:
            return None
    return Assessment(len(candidate.stages), Prices(request).estimate(candidate.stages).tpot_us)


def is_unwanted(peer: PlanningPeer | None, stage: PlannedStage) -> bool:
    """Whether the peer's owner does not allow a stage that is there; of a peer that is not known nothing is."""
    if peer is None:
        return False
    is_too_large = peer.most_bytes is not None and stage.needed_bytes > peer.most_bytes
    has_too_many = peer.most_layers is not None and len(stage.layers) > peer.most_layers
    return peer.is_excluded or is_too_large or has_too_many


def is_same_placement(one: Placement, other: Placement) -> bool:
    """Whether the same peers hold the same layers."""
    return [(s.peer_id, s.layers) for s in one.stages] == [(s.peer_id, s.layers) for s in other.stages]


def new_stages(standing: Placement, wanted: Placement) -> tuple[int, ...]:
    """Indices of the stages that a move must load: those that no engine of the standing run can go on with."""
    held = {(stage.peer_id, stage.layers) for stage in standing.stages}
    return tuple(i for i, stage in enumerate(wanted.stages) if (stage.peer_id, stage.layers) not in held)


def peers_without_room_beside(request: PlanRequest, standing: Placement, wanted: Placement) -> tuple[PeerId, ...]:
    """Peers that cannot load their new stage while the standing run is up; ``request`` counts its memory as taken."""
    by_id = {peer.peer_id: peer for peer in request.peers}
    stages = (wanted.stages[index] for index in new_stages(standing, wanted))
    return tuple(
        stage.peer_id
        for stage in stages
        if stage.peer_id not in by_id or request.usable_bytes(by_id[stage.peer_id]) < stage.needed_bytes
    )


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RunServes:
    """A run serves from now on."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """It is over, for whatever reason."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What ``Look`` found: the standing run, the best placement if it is another, and how the candidate stands now."""

    standing: Assessment
    best: tuple[Placement, Assessment] | None
    candidate: Assessment | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The stages of ``Prepare`` stand ready (``is_beside``), or there is no room beside the run that serves."""

    attempt: int
    is_beside: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """The driver has no request left and takes none."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """What was asked for by ``Prepare`` or ``Drain`` could not be had."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PeerLeaves:
    """The peer of a stage is about to go; plans rest on it no more."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = RunServes | RunEnded | Looked | Prepared | Drained | AttemptFailed | PeerLeaves | DeadlinePassed


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Look:
    """Plan as if the run were gone, and tell by ``Looked``; ``candidate`` is to be assessed, too.

    Where a peer leaves, the stages of the others are to stay where they are if they can.
    """

    candidate: Placement | None
    is_for_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Load what the placement needs beside the run that serves, where there is room for all of it."""

    placement: Placement
    attempt: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the driver to take nothing new, once nobody asked for anything for ``quiet_us``, and to tell when it has
    nothing left."""

    placement: Placement
    attempt: int
    quiet_us: int


@dataclass(frozen=True, slots=True)
class Move:
    """End the run, and put this placement into effect."""

    placement: Placement
    reason: ReplanReason
    old: Assessment
    new: Assessment


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nothing comes of the attempt: the driver takes requests again, what was loaded beside may go."""

    attempt: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Nobody takes over from the peer that leaves: it need not wait any longer."""


Effect = Look | Prepare | Drain | Move | Abandon | LetGo


class ReplanPhase(StrEnum):
    """Where a replanner stands."""

    IDLE = "idle"
    WATCHING = "watching"
    PREPARING = "preparing"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A placement that was clearly better at ``since``, and ever since; its newest figures."""

    placement: Placement
    reason: ReplanReason
    since: Micros
    old: Assessment
    new: Assessment


class Replanner:
    """Of one model, over all its runs. ``jitter`` is a draw in ``[0, MAX_JITTER)``.

    It makes waits up to half as long again, so that many coordinators do not move to one new peer at once.
    """

    def __init__(self, policy: ReplanPolicy | None = None, jitter: int = 0) -> None:
        if not 0 <= jitter < MAX_JITTER:
            raise ValueError(f"jitter {jitter} is not in [0, {MAX_JITTER})")
        self._policy = policy or ReplanPolicy()
        self._jitter = jitter
        self._phase = ReplanPhase.IDLE
        self._attempt = 0
        self._candidate: _Candidate | None = None
        self._deadline: Micros | None = None
        self._is_leaving = False
        """The attempt is for a peer that leaves."""
        self._not_before = Micros(0)
        self._recent = 0
        """Moves and failed attempts that make the next one wait longer."""

    @property
    def phase(self) -> ReplanPhase:
        """Where it stands."""
        return self._phase

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due."""
        return self._deadline

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case RunServes():
                return self._on_serves(now)
            case RunEnded():
                return self._on_ended()
            case Looked():
                return self._on_looked(event, now)
            case Prepared(attempt, is_beside):
                return self._on_prepared(attempt, is_beside, now)
            case Drained(attempt):
                return self._on_drained(attempt, now)
            case AttemptFailed(attempt):
                return self._on_attempt_failed(now) if self._is_trying(attempt) else ()
            case PeerLeaves():
                return self._on_peer_leaves(now)
            case DeadlinePassed():
                return self._on_deadline(now)

    def _on_serves(self, now: Micros) -> tuple[Effect, ...]:
        abandoned = self._on_ended()
        self._watch(now, self._policy.settle_us)
        return abandoned

    def _watch(self, now: Micros, wait_us: int) -> None:
        self._phase = ReplanPhase.WATCHING
        self._candidate = None
        self._is_leaving = False
        self._deadline = self._after(now, wait_us) if self._policy.is_watching else None

    def _on_ended(self) -> tuple[Effect, ...]:
        abandoned = self._abandoned()
        self._phase = ReplanPhase.IDLE
        self._candidate = None
        self._is_leaving = False
        self._deadline = None
        return abandoned

    def _abandoned(self) -> tuple[Effect, ...]:
        is_under_way = self._phase in (ReplanPhase.PREPARING, ReplanPhase.DRAINING)
        return (Abandon(self._attempt),) if is_under_way else ()

    def _is_trying(self, attempt: int) -> bool:
        is_under_way = self._phase in (ReplanPhase.PREPARING, ReplanPhase.DRAINING)
        return is_under_way and attempt == self._attempt

    # --- watching ------------------------------------------------------------------
    def _on_looked(self, looked: Looked, now: Micros) -> tuple[Effect, ...]:
        if self._phase is not ReplanPhase.WATCHING:
            return ()
        if self._is_leaving:
            return self._on_looked_for_leaving(looked, now)
        self._candidate = self._kept_candidate(looked) or self._new_candidate(looked, now)
        candidate = self._candidate
        if candidate is None or now < self._after(candidate.since, self._policy.stable_us) or now < self._not_before:
            return ()
        return self._prepare(candidate, now)

    def _prepare(self, candidate: _Candidate, now: Micros) -> tuple[Effect, ...]:
        self._candidate = candidate
        self._attempt += 1
        self._phase = ReplanPhase.PREPARING
        self._deadline = Micros(now + self._policy.prepare_us)
        return (Prepare(candidate.placement, self._attempt),)

    def _kept_candidate(self, looked: Looked) -> _Candidate | None:
        """The candidate of before, while it is still better: by less than it takes to become one."""
        if self._candidate is None or looked.candidate is None:
            return None
        reason = why_better(looked.standing, looked.candidate, self._policy, self._policy.keep_percent)
        if reason is None:
            return None
        return replace(self._candidate, reason=reason, old=looked.standing, new=looked.candidate)

    def _new_candidate(self, looked: Looked, now: Micros) -> _Candidate | None:
        if looked.best is None:
            return None
        placement, new = looked.best
        reason = why_better(looked.standing, new, self._policy, self._policy.gain_percent)
        return None if reason is None else _Candidate(placement, reason, now, looked.standing, new)

    # --- a peer that leaves -----------------------------------------------------------
    def _on_peer_leaves(self, now: Micros) -> tuple[Effect, ...]:
        """Whatever was under way rested on it, or can wait."""
        if self._phase is ReplanPhase.IDLE:
            return ()
        abandoned = self._abandoned()
        self._phase = ReplanPhase.WATCHING
        self._candidate = None
        self._is_leaving = True
        self._deadline = Micros(now + self._policy.leave_look_us)
        return (*abandoned, Look(None, is_for_leaving=True))

    def _on_looked_for_leaving(self, looked: Looked, now: Micros) -> tuple[Effect, ...]:
        if looked.best is None or looked.best[1].unwanted >= looked.standing.unwanted:
            return self._let_go(now)
        placement, new = looked.best
        return self._prepare(_Candidate(placement, ReplanReason.PEER_LEAVES, now, looked.standing, new), now)

    def _let_go(self, now: Micros) -> tuple[Effect, ...]:
        abandoned = self._abandoned()
        self._watch(now, self._policy.look_us)
        return (*abandoned, LetGo())

    def _on_attempt_failed(self, now: Micros) -> tuple[Effect, ...]:
        """A peer leaves whether the driver holds its requests or not."""
        if not self._is_leaving:
            return self._fail(now)
        return self._move(now) if self._phase is ReplanPhase.DRAINING else self._let_go(now)

    # --- moving --------------------------------------------------------------------
    def _on_prepared(self, attempt: int, is_beside: bool, now: Micros) -> tuple[Effect, ...]:
        if not self._is_trying(attempt) or self._phase is not ReplanPhase.PREPARING or self._candidate is None:
            return ()
        policy = self._policy
        self._phase = ReplanPhase.DRAINING
        if self._is_leaving:
            self._deadline = Micros(now + policy.leave_drain_us)
            return (Drain(self._candidate.placement, attempt, 0),)
        self._deadline = Micros(now + (policy.drain_us if is_beside else policy.quiet_wait_us))
        return (Drain(self._candidate.placement, attempt, 0 if is_beside else policy.quiet_us),)

    def _on_drained(self, attempt: int, now: Micros) -> tuple[Effect, ...]:
        is_due = self._is_trying(attempt) and self._phase is ReplanPhase.DRAINING
        return self._move(now) if is_due else ()

    def _move(self, now: Micros) -> tuple[Effect, ...]:
        candidate = self._candidate
        if candidate is None:
            return ()
        if not self._is_leaving:
            self._rest(now)
        self._phase = ReplanPhase.IDLE
        self._candidate = None
        self._is_leaving = False
        self._deadline = None
        return (Move(candidate.placement, candidate.reason, candidate.old, candidate.new),)

    def _fail(self, now: Micros) -> tuple[Effect, ...]:
        abandoned = self._abandoned()
        self._watch(now, self._policy.look_us)
        self._rest(now)
        return abandoned

    def _rest(self, now: Micros) -> None:
        """After a move, or an attempt of one: twice as long as after the one before, unless that was long ago."""
        most_us = self._policy.most_rest_us
        if now >= self._not_before + most_us:
            self._recent = 0
        self._not_before = self._after(now, min(most_us, self._policy.rest_us << self._recent))
        self._recent = min(self._recent + 1, 16)

    # --- time ------------------------------------------------------------------------
    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        if self._deadline is None or now < self._deadline:
            return ()
        if self._phase in (ReplanPhase.PREPARING, ReplanPhase.DRAINING):
            return self._on_attempt_failed(now)
        if self._is_leaving:
            return self._let_go(now)
        self._deadline = self._after(now, self._policy.look_us)
        return (Look(self._candidate.placement if self._candidate is not None else None),)

    def _after(self, now: Micros, wait_us: int) -> Micros:
        return Micros(now + wait_us + wait_us * self._jitter // (2 * MAX_JITTER))
