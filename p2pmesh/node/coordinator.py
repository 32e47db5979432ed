"""The coordinator of one model: waits for peers, plans, claims, puts a run into effect, and replaces it when it breaks.

While another peer coordinates the model with this one's help, it stands by (``node.succession`` takes serving runs
over). One run's life is ``node.run``'s; the decision where layers go is ``core.planning``'s.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import ID_BYTES, Digest, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import replanning
from p2pmesh.core.claims import Claim, ClaimHeld, ClaimLost
from p2pmesh.core.coordination import accused_stage
from p2pmesh.core.next_run import RunOutcome, RunPacing
from p2pmesh.core.planning.outcome import Placement, PlacementRefusal, StepEstimate
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanRequest
from p2pmesh.node.candidates import MEET_AGAIN_S, Candidates
from p2pmesh.node.changes import Changes
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.moving import MovableRun, Mover, Planning
from p2pmesh.node.plans import Plans
from p2pmesh.node.predictions import describe_sum
from p2pmesh.node.reporting import Report
from p2pmesh.node.run import CoordinatorParts, Run, RunEnding, ranges_of
from p2pmesh.node.servable import Servable
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.node.standby import Standbys
from p2pmesh.wire.messages.runs import LoadStage

PROBE_STEPS = 16
"""Tokens of a run that nobody has been served by yet, timed to predict what others will take."""
_ENGINE_DEATHS = frozenset({ErrorCode.ENGINE_CRASHED, ErrorCode.ENGINE_UNRESPONSIVE})
_SYMPTOMS = frozenset({ErrorCode.PEER_LOST, ErrorCode.PEER_UNREACHABLE})
FAILED_S = 120.0
"""A peer whose stage did not load, or broke, is passed over for so long where others can hold the model."""
LEAVES_S = 45.0
"""A peer that said that it leaves gets no stage for so long, if it is still there."""
ACCUSED_S = 30.0
"""A peer that accuses one after another so fast is the one that lies."""
PEERS_SETTLE_S = 0.5
"""Peers that start together are waited for this long before a plan, so that the first does not get all."""


class Coordinator:
    """Serves one model for as long as it runs."""

    def __init__(self, parts: CoordinatorParts, model: Servable, options: ServingOptions, report: Report) -> None:
        self._parts = parts
        self._model = model
        self.options = options
        self._report = report
        self._candidates = Candidates(parts.overlay, parts.clock)
        self.plans = Plans(parts, model, self._candidates, options.stage_count)
        self._standbys = Standbys(parts.overlay, self.plans.request_for_spares, self._standby_order)
        self._mover = self._make_mover()
        self.run: Run | None = None
        self._adopted: MovableRun | None = None
        """Another's run that was taken over here, and is minded as one of our own."""
        self._inherited: tuple[Placement, RunEnding, Placement | None] | None = None
        """Stages of such a run, how it ended, and what it gave way to, if it did: what comes next follows from that."""
        self._is_moving = False
        self._settled = Changes()
        """Runs that began to serve, or are over."""
        self._blamed: tuple[PeerId, ...] = ()
        """Who answered garbage in the run that ended last."""

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self._model.name

    @property
    def digest(self) -> Digest:
        """Of the whole model."""
        return self._model.digest

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether the peer needs this file for a stage, now or in case."""
        is_of_run = self.run is not None and self.run.gives(digest, peer)
        return is_of_run or self._standbys.gives(digest, peer) or self._mover.gives(digest, peer)

    def _make_mover(self) -> Mover:
        parts, wait_s = self._parts, self.options.replan_after_s
        draw = int.from_bytes(parts.entropy.random_bytes(4), "big") % replanning.MAX_JITTER
        machine = replanning.Replanner(replanning.ReplanPolicy.after(wait_s), draw)
        planning = Planning(
            self._request_for_move, plan_placement, self._standby_order,
            lambda standing: self.plans.without_leaving(standing, self._standbys.peer_for),
            lambda layers: self._standbys.peer_for(layers), self._candidates.meet, self._model.is_by_orders,
        )  # fmt: skip
        return Mover(parts.overlay, parts.drivers, (machine, parts.clock), planning, self._report)

    @asynccontextmanager
    async def _standby_order(self, placement: Placement, index: int) -> AsyncIterator[LoadStage]:
        """For an engine that shall wait, under an id of no run."""
        orders = self._model.make_orders()
        try:
            order = await orders.make(placement, index, (self._parts.entropy.random_bytes(ID_BYTES), 1))
            yield replace(order, is_standby=True)
        finally:
            orders.release()

    async def serve(self) -> None:
        """Until cancelled; raises ``Refused`` only when no further peer could ever help."""
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.mind)
                await self._serve()

    def described_standbys(self) -> list[dict[str, object]]:
        """Engines that spare peers keep ready for stages of it, as plain values."""
        return self._standbys.described()

    async def mind(self) -> None:
        """Whatever serves has spare engines, and gives way to a better placement, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._standbys.keep)
            nursery.start_soon(self._mover.keep)

    async def go_on(self) -> None:
        """As ``serve``, for a model that is minded already: after the end of a run that was adopted."""
        await self._serve()

    def adopt(self, run: MovableRun) -> None:
        """A run that was taken over here serves: it is minded as one of our own until ``note_adopted_over``."""
        self._adopted = run
        self._note_serving(run, run.placement)

    def note_adopted_over(self, placement: Placement | None, ending: RunEnding) -> None:
        """It is over, or (``is_left``) another's by now; ``placement`` holds its stages, where they are known.

        Its claim is still held, so that this coordinator stands by until that is given back.
        """
        self._adopted = None
        self._mover.note_ended()
        moved = self._take_move()
        if placement is None or ending.is_left:
            self._forget_inherited()
            return
        self._blame(placement, ending)
        self._inherited = (placement, ending, moved)

    @property
    def is_minding_adopted(self) -> bool:
        """Whether a run that was taken over here serves, and this coordinator minds it."""
        return self._adopted is not None

    def _forget_inherited(self) -> None:
        self._inherited = None
        self._is_moving = False
        self._settled.mark()

    def _inherit(self) -> Placement | None:
        """What follows a run that was adopted and is over, as after one of our own."""
        inherited, self._inherited = self._inherited, None
        if inherited is None:
            return None
        broken, ending, moved = inherited
        return moved or self._replace(broken, ending)

    async def _serve(self) -> None:
        pacing = RunPacing()
        placement: Placement | None = None
        while True:
            # Clients may wait for a run that replaces one; nobody waits for a first one to be timed.
            placement, probe_steps = await self._place() if placement is None else (placement, 0)
            ending = await self._claim_and_serve(placement, probe_steps)
            following = pacing.after(_outcome_of(ending))
            if following.wait_us:
                await trio.sleep(following.wait_us / MICROS_PER_SECOND)
            is_kept = ending is not None and following.keeps_stages
            moved = self._take_move() if self._adopted is None else None
            placement = moved or (self._replace(placement, ending) if is_kept and ending else None)

    def _take_move(self) -> Placement | None:
        """What a run that has ended gave way to, if it did."""
        moved = self._mover.take_next()
        self._is_moving = moved is not None
        self._settled.mark()
        return moved

    def _replace(self, broken: Placement, ending: RunEnding) -> Placement | None:
        """The stages that are whole where they were, the lost one elsewhere; None where all must be planned anew."""
        out = (*ending.silent, *self._blamed)
        # everybody is here, but one stage does not reach the next: at another peer it may
        is_cut_off = ending.code is ErrorCode.PEER_UNREACHABLE and not out
        planned: Placement | None = None
        if is_cut_off and ending.index is not None:
            planned = self.plans.replacing(
                broken, None, (broken.stages[ending.index].peer_id,), self._standbys.peer_for
            )
        lost = ending.index if ending.code in _ENGINE_DEATHS else None
        planned = planned or self.plans.replacing(broken, lost, out, self._standbys.peer_for)
        if planned is None:
            return None
        self._report("placement", describe_placement(self._model.name, planned))
        return planned

    async def leave_run(self) -> None:
        """This node goes: a run that serves without it is left to its other peers, once it has moved off this node."""
        while self._is_moving or self._mover.next is not None:
            await self._settled.wait_beyond(self._settled.count)
        if self.run is not None:
            await self.run.leave()

    async def _claim_and_serve(self, placement: Placement, probe_steps: int) -> RunEnding | None:
        """One run from its claim to its end; None if it could not be claimed, and a new plan is due."""
        own, claims, digest = self._parts.overlay.own_peer, self._parts.claims, self._model.digest
        peers = (own, *(stage.peer_id for stage in placement.stages if stage.peer_id != own))
        run_id = self._parts.entropy.random_bytes(16)
        claim = Claim(digest, run_id, claims.next_term(digest), peers, claims.policy.lease_us)
        needed_bytes = {stage.peer_id: stage.needed_bytes for stage in placement.stages}
        async with claims.claiming(claim, needed_bytes) as held:
            outcome = await held.settled()
            if not self._is_claimed(outcome):
                return None
            run = self.run = Run(self._parts, self._model.make_orders(), placement, self._report, held)
            run.estimate = partial(self.plans.estimate, placement)
            run.probe_steps = probe_steps
            run.serves = partial(self._note_serving, run)
            run.leaves = self.note_leaving
            run.settled = partial(self._learn_overhead, placement)
            ending = await run.serve()
            self.run = None
            self._mover.note_ended()
            self._report("model_withdrawn", {"model": self._model.name, "run_id": run_id.hex(), **ending.fields()})
        self._blame(placement, ending)
        return ending

    def _note_serving(self, run: MovableRun, placement: Placement) -> None:
        self._standbys.want(placement)
        self.plans.last = placement.stages
        self._mover.note_serving(run)
        self._is_moving = False
        self._settled.mark()

    def note_leaving(self, peer: PeerId) -> None:
        """The peer of a stage of what serves is about to go."""
        if peer != self._parts.overlay.own_peer:
            self._candidates.note_leaving(peer, LEAVES_S)
        self._mover.note_leaving()

    def _learn_overhead(self, placement: Placement, timed: StepEstimate) -> None:
        if self._parts.links.matrix().knows_ring([stage.peer_id for stage in placement.stages]):
            self._parts.hop_costs.note(timed)

    def _blame(self, placement: Placement, ending: RunEnding) -> None:
        """Who only lost its neighbours is as good as before; those that are silent are out by that alone.

        Who was given garbage is as good as before, too: whoever gave it is to be replaced.
        """
        self._blamed = ()
        if ending.index is None or (ending.had_served and ending.code in _SYMPTOMS):
            return
        failed = placement.stages[ending.index].peer_id
        accused = accused_stage(ending.index, ending.code, len(placement.stages))
        if accused is not None:
            failed = self._candidates.choose_blamed(failed, placement.stages[accused].peer_id, ACCUSED_S)
            self._blamed = (failed,)
        if failed != self._parts.overlay.own_peer:
            self._candidates.note_failed(failed, FAILED_S)

    def _is_claimed(self, outcome: ClaimHeld | ClaimLost) -> bool:
        """Whether every peer of the placement granted; those that did not are left out of the next plan."""
        own, lease_s = self._parts.overlay.own_peer, self._parts.claims.policy.lease_us / MICROS_PER_SECOND
        missing, leased = (
            (outcome.absent, ()) if isinstance(outcome, ClaimHeld) else (outcome.ungranted, outcome.leased)
        )
        for peer in missing:
            if peer != own:
                self._candidates.note_taken(peer, lease_s, is_leased=peer in leased)
        if isinstance(outcome, ClaimLost):
            self._report("waiting_for_peers", {"model": self._model.name, "message": outcome.text})
        return not missing and isinstance(outcome, ClaimHeld)

    async def _stand_by(self) -> None:
        """As long as this peer has promised the model to another's run, or to one that was taken over here."""
        told = ""
        while True:
            seen = self._parts.claims.changes.count
            claim = self._parts.claims.leased(self._model.digest)
            if claim is None:
                return
            if claim.coordinator != self._parts.overlay.own_peer:
                self._forget_inherited()
            if self._adopted is None:
                self._standbys.forget()  # whoever coordinates it keeps its own
            text = self._why_standing_by(claim)
            if text != told and not self._is_taken_over(claim):
                self._report("waiting_for_peers", {"model": self._model.name, "message": text})
            told = text
            with trio.move_on_after(claim.lease_us / MICROS_PER_SECOND):
                await self._parts.claims.changes.wait_beyond(seen)

    def _is_taken_over(self, claim: Claim) -> bool:
        """Whether it is for a run that serves and was taken over here, which was told then."""
        is_own = claim.coordinator == self._parts.overlay.own_peer
        return is_own and self._parts.claims.is_kept(claim.model, claim.run_id)

    def _why_standing_by(self, claim: Claim) -> str:
        if claim.coordinator != self._parts.overlay.own_peer:
            return f"peer {claim.coordinator} coordinates it, and this node stands by"
        lease_s = claim.lease_us // MICROS_PER_SECOND
        return f"this node coordinated it until a moment ago; that claim must run out first, in {lease_s} s at most"

    async def _place(self) -> tuple[Placement, int]:
        """A placement and how many tokens of it are to be timed, waiting for peers as long as they could help."""
        told = ""
        while True:
            await self._stand_by()
            inherited = self._inherit()
            if inherited is not None:
                return inherited, 0
            seen = self._parts.overlay.board.changes.count
            await self._parts.profiles.refresh()
            planned = self.plans.make()
            if isinstance(planned, Placement):
                self._report("placement", describe_placement(self._model.name, planned))
                return planned, PROBE_STEPS
            self._standbys.forget()
            if not planned.could_peers_help:
                raise _refused(self._model, planned)
            if await self._candidates.meet():
                continue
            text = self._why_waiting(planned)
            if text != told:
                told = text
                self._report("waiting_for_peers", {"model": self._model.name, "message": text})
            with trio.move_on_after(min(MEET_AGAIN_S, self._candidates.next_free_s())):
                await self._parts.overlay.board.changes.wait_beyond(seen)
            await trio.sleep(PEERS_SETTLE_S)

    def _why_waiting(self, refusal: PlacementRefusal) -> str:
        digest = self._model.digest
        is_served = any(one.digest == digest for peer in self._parts.overlay.board.others() for one in peer.models)
        meanwhile = "; until then requests here are answered through that run"
        return refusal.text + meanwhile * (is_served and self._candidates.leased_count > 0)

    def _request_for_move(self) -> PlanRequest:
        """No run that serves moves to a peer that failed lately."""
        standing = self._mover.standing
        return self.plans.request() if standing is None else self.plans.request_beside(standing)


def _outcome_of(ending: RunEnding | None) -> RunOutcome:
    if ending is None:
        return RunOutcome(is_claimed=False)
    served_us = round(ending.served_s * MICROS_PER_SECOND)
    return RunOutcome(True, ending.had_served, ending.is_left, served_us)


def describe_placement(model: str, placement: Placement) -> dict[str, object]:
    """As event fields: the stages, and what a step is predicted to take."""
    stages = [
        {**ranges, "needed_bytes": stage.needed_bytes, "free_bytes": stage.free_bytes}
        for ranges, stage in zip(ranges_of(placement), placement.stages, strict=True)
    ]
    return {
        "model": model,
        "stages": stages,
        **describe_sum(placement.estimate),
    }


def _refused(model: Servable, refusal: PlacementRefusal) -> P2PMeshError:
    return Refused(ErrorCode.PLACEMENT_REFUSED, f"{model.name} cannot be placed: {refusal.text}")
