"""Runs that go on without the coordinator that loaded them: claimed anew by the next peer of their list.

A run that serves needs nobody for its requests. Its successor watches its stages, and ends it when one is lost. What
any run of a coordinator has, spare engines, a better placement, another peer for one that leaves, and what follows when
it ends, it has from ``node.coordinator``: with the model's own file as any model here, else with the same stages by
their orders, whose files are had from whoever has them. Leases and turns are ``core.grants``'.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.core.claims import Claim, ClaimHeld
from p2pmesh.core.coordination import RunPhase
from p2pmesh.node.adopted_run import AdoptedRun, SuccessionParts
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.reporting import Report
from p2pmesh.node.servable import ServableRun
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.node.stages import HeldStage
from p2pmesh.wire.messages.runs import LoadStage
from p2pmesh.wire.stage import WireDtype

LOOK_AGAIN_S = 30.0
PLACED_AGAIN_S = 600.0
"""A model whose file nobody here has is tried to be placed for so long."""


class Successions:
    """The runs that this node took over."""

    def __init__(self, parts: SuccessionParts, report: Report) -> None:
        self._parts = parts
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._attempted: set[bytes] = set()
        self.runs: list[AdoptedRun] = []
        self.coordinators: list[Coordinator] = []
        """Of models whose files are not here."""
        parts.claims.on_succession_due = self._note_due

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Takes runs over until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _note_due(self, claim: Claim) -> None:
        held = self._parts.stages.find(claim.run_id)
        if held is None or not held.is_ready:
            self._parts.claims.note_stage_ended(claim.model, claim.run_id)
        elif self._nursery is not None and claim.run_id not in self._attempted:
            self._nursery.start_soon(self._attempt, claim, held)

    async def _attempt(self, silent: Claim, held: HeldStage) -> None:
        """One at a time of a run; if it fails, a later turn brings another."""
        self._attempted.add(silent.run_id)
        try:
            await self._take_over(silent, held)
        finally:
            self._attempted.discard(silent.run_id)

    async def _take_over(self, silent: Claim, held: HeldStage) -> None:
        known = ServableRun(self._parts.overlay, held.load)
        coordinator = await self._parts.make_coordinator(known)
        async with trio.open_nursery() as nursery:
            if coordinator is not None:
                self.coordinators.append(coordinator)
                nursery.start_soon(coordinator.mind)
            run = AdoptedRun(self._parts, held, known, coordinator)
            if coordinator is None:
                run.begun = partial(nursery.start_soon, self._place_anew, held.load)
            try:
                is_over = await self._adopt(silent, run)
                if is_over and coordinator is not None:
                    await self._place_again(coordinator, known)
            finally:
                if coordinator is not None:
                    self.coordinators.remove(coordinator)
            if coordinator is not None or not is_over:
                nursery.cancel_scope.cancel()

    async def _adopt(self, silent: Claim, run: AdoptedRun) -> bool:
        """Whether a run ended under our claim; otherwise it is not ours, or goes on under another's."""
        claims, own, load = self._parts.claims, self._parts.overlay.own_peer, run.load
        others = (PeerId(stage.peer_id) for stage in load.stages if stage.peer_id != own)
        claim = Claim(
            silent.model, silent.run_id, claims.next_term(silent.model), (own, *others), claims.policy.lease_us,
            is_serving=True,
        )  # fmt: skip
        async with claims.claiming(claim, is_takeover=True) as holder:
            holder.is_run_over = False
            outcome = await holder.settled()
            if not isinstance(outcome, ClaimHeld) or outcome.absent:
                return False
            facts = {"model": load.model, "run_id": load.run_id.hex()}
            # the term that was granted: a higher one than was asked for first where others were further
            self._report("run_taken_over", {**facts, "term": holder.claim.term, "from": silent.coordinator})
            self.runs.append(run)
            try:
                ending = await run.serve(holder)
            finally:
                self.runs.remove(run)
            self._report("model_withdrawn", {**facts, **ending.fields()})
        return holder.is_run_over

    async def _place_again(self, coordinator: Coordinator, known: ServableRun) -> None:
        """The same stages, by their orders, until another coordinates the model or no placement is found."""
        if not known.is_whole:
            text = "not every stage has told its order: a peer that has the model's file must place it anew"
            self._report("waiting_for_peers", {"model": known.name, "message": text})
            return
        with trio.CancelScope() as scope, unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._give_way, coordinator, scope)
                try:
                    await coordinator.go_on()
                except P2PMeshError as error:  # nobody gave this node the model: that it cannot be placed ends nothing
                    self._report("waiting_for_peers", {"model": known.name, "message": error.message})
                nursery.cancel_scope.cancel()

    async def _give_way(self, coordinator: Coordinator, scope: trio.CancelScope) -> None:
        """Nobody asked this node to serve the model: whoever else does comes first, and it is not tried for ever."""
        claims, own = self._parts.claims, self._parts.overlay.own_peer
        served_at = trio.current_time()
        while trio.current_time() - served_at < PLACED_AGAIN_S:
            seen = claims.changes.count
            claim = claims.leased(coordinator.digest)
            if claim is not None and claim.coordinator != own:
                break
            if coordinator.run is not None and coordinator.run.phase is RunPhase.SERVING:
                served_at = trio.current_time()
            with trio.move_on_after(LOOK_AGAIN_S):
                await claims.changes.wait_beyond(seen)
        scope.cancel()

    async def _place_anew(self, load: LoadStage) -> None:
        """As any model of this node, by a coordinator that stands by while the run is up, and minds it."""
        model = await self._parts.store.find_by_digest(Digest(load.model_digest), load.model_bytes)
        if model is None:
            text = "its file is not on this peer: one that has it, or is started with --model, must place it anew"
            self._report("waiting_for_peers", {"model": load.model, "message": text})
            return
        options = ServingOptions(None, load.context_tokens, load.lanes, WireDtype(load.wire_dtype))
        try:
            await self._parts.serve_model(replace(model, name=load.model), options)
        except P2PMeshError as error:  # nobody gave this node the model: that it cannot be placed ends nothing here
            self._report("waiting_for_peers", {"model": load.model, "message": error.message})
