"""The coordinators of one node: of models that it was given, that it loads for a request, and whose runs it took over.

Makes them, and sees to it that a file has one of them here, whatever it is called. When a model is loaded and unloaded
is ``node.on_demand``'s, which runs are taken over ``node.succession``'s, where layers go ``node.coordinator``'s.
"""

from dataclasses import replace
from typing import Any

from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.node.adopted_run import SuccessionParts
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.on_demand import LoadableModels, OnDemand, OnDemandParts
from p2pmesh.node.own_files import OwnFiles
from p2pmesh.node.replicas import Replicas
from p2pmesh.node.reporting import Report
from p2pmesh.node.router import Router
from p2pmesh.node.run import CoordinatorParts
from p2pmesh.node.servable import Servable, ServableFile, ServableRun
from p2pmesh.node.serving_options import ServingOptions, check_split
from p2pmesh.node.status import ModelCoordinator
from p2pmesh.node.succession import Successions
from p2pmesh.ports.models import ModelFile


class Coordinators:
    """Of one node."""

    def __init__(
        self,
        parts: CoordinatorParts,
        router: Router,
        files: OwnFiles,
        replicas: Replicas,
        loadable: LoadableModels,
        report: Report,
    ) -> None:
        self._parts = parts
        self._router = router
        self._files = files
        self._replan_after_s = loadable.options.replan_after_s
        self._report = report
        on_demand = OnDemandParts(
            parts.overlay, router, parts.drivers, parts.stages, parts.clock, parts.entropy, self._make, files.note,
            replicas,
        )  # fmt: skip
        self.on_demand = OnDemand(on_demand, loadable, report)
        succession = SuccessionParts(
            parts.overlay, parts.store, parts.stages, parts.drivers, parts.claims, parts.vigils,
            self._serve_unless_served, self.on_demand.coordinator_of, self._make_successor,
        )  # fmt: skip
        self.successions = Successions(succession, self._report_placing)

    def all(self) -> tuple[Coordinator, ...]:
        """Of the models that are coordinated here now."""
        return (*self.on_demand.coordinators, *self.successions.coordinators)

    def shown(self) -> tuple[ModelCoordinator, ...]:
        """For the status: whoever places a model or has a run of it, and the runs that were taken over."""
        placing = (
            one
            for one in self.all()
            if one.run is not None or not (one.is_minding_adopted or one in self.successions.coordinators)
        )
        return (*placing, *self.successions.runs)

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether a run that is coordinated here gives the file to the peer."""
        return any(coordinator.gives(digest, peer) for coordinator in self.all())

    async def leave_runs(self) -> None:
        """The node is about to go: its runs are left to their successors."""
        for coordinator in self.all():
            await coordinator.leave_run()

    async def serve_model(self, model: ModelFile, options: ServingOptions) -> None:
        """Serves one model until cancelled; raises when it can never be placed.

        Returns at once for a file that is served here already: what is claimed of peers is the file, and the second
        name of it is routed to the first.
        """
        check_split(model, options)
        same = self.on_demand.find(model.digest)
        if same is not None:
            self._files.note(model)
            if same.name != model.name:
                self._router.forget(model.name)
                self._report("model_aliased", {"model": model.name, "served_as": same.name})
            return
        self._router.expect(model.name)
        await self.on_demand.serve(model, options)

    def _make(self, model: ModelFile, options: ServingOptions) -> Coordinator:
        self._files.note(model)
        servable = ServableFile.of(self._parts.overlay, self._parts.store, model, options)
        return self._coordinator_of(servable, options)

    def _coordinator_of(self, model: Servable, options: ServingOptions) -> Coordinator:
        return Coordinator(self._parts, model, options, self._report_placing)

    async def _serve_unless_served(self, model: ModelFile, options: ServingOptions) -> None:
        """A model whose run was taken over here, unless it is given to this node anyway: who serves it stands by."""
        if self.on_demand.find(model.digest) is not None:
            return
        try:
            await self.serve_model(model, self._as_taken_over(options))
        finally:  # another coordinates it, or it cannot be placed here
            self._router.forget(model.name)

    async def _make_successor(self, model: ServableRun) -> Coordinator | None:
        """For a run that was taken over here, unless whoever has the model's file here will place it anew."""
        if self.on_demand.find(model.digest) is not None:
            return None
        if await self._parts.store.find_by_digest(model.digest, model.size_bytes) is not None:
            return None
        return self._coordinator_of(model, self._as_taken_over(model.options))

    def _as_taken_over(self, options: ServingOptions) -> ServingOptions:
        """As a run was served, and moved as the operator of this node wants it."""
        return replace(options, replan_after_s=self._replan_after_s)

    def _report_placing(self, name: str, fields: dict[str, Any]) -> None:
        """Clients that ask for a model hear what the operator does of what it waits for."""
        if name in ("waiting_for_peers", "placement"):
            self._router.note_waiting(fields["model"], fields["message"] if name == "waiting_for_peers" else None)
        self._report(name, fields)
