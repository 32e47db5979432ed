"""Plans of one model over the peers at hand, and what they are made from: peers, links, costs, as known at the moment.

Which peers are at hand is ``node.candidates``', where layers go ``core.planning``'s, when a plan is due and what comes
of it ``node.coordinator``'s.
"""

from collections.abc import Callable
from dataclasses import replace

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.core import replanning
from p2pmesh.core.owner_wishes import excludes
from p2pmesh.core.planning.kept import plan_kept, plan_replacement
from p2pmesh.core.planning.outcome import MeasuredRun, Placement, PlacementRefusal, PlannedStage, StepEstimate
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.pricing import Prices
from p2pmesh.core.planning.request import LeftOut, PlanningPeer, PlanRequest
from p2pmesh.node.candidates import Candidates, is_spared
from p2pmesh.node.run import CoordinatorParts
from p2pmesh.node.servable import Servable

ReadyAt = Callable[[LayerRange], PeerId | None]
"""At which peer an engine stands ready for a stage."""


class Plans:
    """Of one model. ``stage_count`` None is as few as fit."""

    def __init__(
        self, parts: CoordinatorParts, model: Servable, candidates: Candidates, stage_count: int | None
    ) -> None:
        self._parts = parts
        self._model = model
        self._candidates = candidates
        self._stage_count = stage_count
        self.last: tuple[PlannedStage, ...] = ()
        """Stages of the run that serves or served last, which a family with states goes back to."""

    # --- plans
    def make(self) -> Placement | PlacementRefusal:
        """Over peers whose stages did not fail lately, where those suffice."""
        if self._candidates.has_failed:
            planned = plan_placement(self.request(with_failed=False))
            if isinstance(planned, Placement):
                return planned
        return plan_placement(self.request())

    def of_stages(self, stages: tuple[PlannedStage, ...]) -> Placement | None:
        """Stages that stand as a placement, while the peers of all of them are known."""
        request = self.request()
        known = {peer.peer_id for peer in request.peers}
        planned = plan_kept(replace(request, kept=stages)) if known >= {stage.peer_id for stage in stages} else None
        return planned if isinstance(planned, Placement) else None

    def replacing(
        self, broken: Placement, lost: int | None, out: tuple[PeerId, ...], ready_at: ReadyAt
    ) -> Placement | None:
        """The stages that are whole where they were, the lost one at a peer that did not fail lately if that can be."""
        for request in (self.request_beside(broken), self.request()):
            planned = plan_replacement(request, broken, lost, out, ready_at)
            if isinstance(planned, Placement):
                return planned
        return None

    def without_leaving(self, standing: Placement, ready_at: ReadyAt) -> Placement | None:
        """The stages of peers that leave elsewhere, those of the others where they are."""
        request = self.request()
        by_id = {peer.peer_id: peer for peer in request.peers}
        leaving = tuple(
            stage.peer_id for stage in standing.stages if replanning.is_unwanted(by_id.get(stage.peer_id), stage)
        )
        planned = plan_replacement(request, standing, None, leaving, ready_at)
        return planned if isinstance(planned, Placement) else None

    def estimate(self, placement: Placement, measured: MeasuredRun | None) -> StepEstimate:
        """What a token takes in a placement that stands, by what is known of links and speeds now."""
        return Prices(self.request()).estimate(placement.stages, measured)

    # --- what they are made from
    def request_for_spares(self) -> PlanRequest:
        """Peers whose stages failed lately are to be spared: engines are kept ready at others first."""
        request = self.request()
        well = {peer.peer_id for peer in self.request(with_failed=False).peers}
        peers = (replace(peer, is_spared=peer.is_spared or peer.peer_id not in well) for peer in request.peers)
        return replace(request, peers=tuple(peers))

    def request_beside(self, run: Placement) -> PlanRequest:
        """The run's own peers, and others whose stages did not fail lately."""
        request = self.request()
        if not self._candidates.has_failed:
            return request
        kept = {stage.peer_id for stage in run.stages}
        kept |= {peer.peer_id for peer in self.request(with_failed=False).peers}
        return replace(request, peers=tuple(peer for peer in request.peers if peer.peer_id in kept))

    def request(self, *, with_failed: bool = True) -> PlanRequest:
        """Over all peers at hand; those whose stages failed lately only where that is wanted."""
        others = self._candidates.admitted(self._model.digest, with_failed=with_failed)
        reads = sum(self._model.planning.reads) + self._model.planning.output_reads
        peers = self._parts.profiles.refined((self._own_peer(), *others), self._model, reads)
        links = self._parts.links.matrix()
        willing = {peer.peer_id for peer in peers if not peer.is_excluded}
        kept = tuple(stage for stage in self.last if stage.peer_id in willing)
        policy = self._parts.hop_costs.policy
        left_out = LeftOut(self._candidates.leased_count, self._parts.claims.policy.lease_us)
        return PlanRequest(
            self._model.planning, peers, self._parts.overlay.own_peer, self._stage_count, links, kept, policy=policy,
            left_out=left_out,
        )  # fmt: skip

    def _own_peer(self) -> PlanningPeer:
        stages = self._parts.stages
        return PlanningPeer(
            self._parts.overlay.own_peer,
            stages.free_bytes,
            has_model=True,
            most_bytes=stages.memory_bytes,
            decode_bytes_per_s=stages.decode_bytes_per_s,
            most_layers=stages.wishes.max_layers,
            is_excluded=stages.is_leaving
            or excludes(stages.wishes.excluded_models, self._model.name, self._model.digest),
            is_spared=is_spared(self._parts.overlay.board.own()),
        )
