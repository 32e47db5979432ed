"""One node: its services built, started in order and drained, and what the HTTP surface asks of it.

The concrete ports come from ``app``; the HTTP surface sees a ``Node`` as ``api.backend.Backend``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.core.ownership import TrustStore
from p2pmesh.core.relaying import ReachSettings
from p2pmesh.core.sharing import SharingRules
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.artifacts import ArtifactPorts, Artifacts, Grants
from p2pmesh.node.claims import Claims
from p2pmesh.node.control_plane import ControlPlane
from p2pmesh.node.coordinators import Coordinators
from p2pmesh.node.driver import Drivers
from p2pmesh.node.driver_choices import DriverChoices
from p2pmesh.node.exchanges import DriverExchanges
from p2pmesh.node.giving import Giving, GivingParts, OwnersMachine
from p2pmesh.node.hop_costs import HopCosts
from p2pmesh.node.ingress import Ingress
from p2pmesh.node.on_demand import LoadableModels
from p2pmesh.node.overlay import Overlay, OverlaySettings
from p2pmesh.node.own_files import OwnFiles
from p2pmesh.node.own_work import OwnWork
from p2pmesh.node.peers_view import describe_peers
from p2pmesh.node.pool import PoolService
from p2pmesh.node.profiles import Profiles
from p2pmesh.node.records import Records
from p2pmesh.node.replicas import ReplicaParts, Replicas
from p2pmesh.node.reporting import Report
from p2pmesh.node.route_queries import RouteQueries
from p2pmesh.node.router import MAX_TOLD_MODELS, Router
from p2pmesh.node.run import CoordinatorParts
from p2pmesh.node.run_table import RunTable
from p2pmesh.node.speeds import Speeds
from p2pmesh.node.stages import StageParts, Stages
from p2pmesh.node.status import describe_node
from p2pmesh.node.tokenizing import TextOrTokens, TokenizeExchanges
from p2pmesh.node.traffic import MeteredNetwork, Traffic
from p2pmesh.node.vigil import Vigils
from p2pmesh.ports.engine import EngineLauncher
from p2pmesh.ports.grants import GrantStore
from p2pmesh.ports.lan import Lan
from p2pmesh.ports.models import ModelStore
from p2pmesh.ports.network import Network
from p2pmesh.wire.announcement import ServedModel
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest, Prompt, ToolUse

HAND_OVER_S = 30.0
"""A peer that takes over loads the stage, perhaps fetches it; whoever cannot say so by then may be slow or gone."""


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The world that a node lives in."""

    neighbours: Neighbours
    store: ModelStore
    launcher: EngineLauncher
    grants: GrantStore
    owners: OwnersMachine = field(default_factory=OwnersMachine)
    loadable: LoadableModels = field(default_factory=LoadableModels)
    lan: Lan | None = None
    """None where nothing is to be sent or heard on the local network."""
    reach: ReachSettings = field(default_factory=ReachSettings)
    discovery: str = ""
    """By whom the operator lets this node look for others, for the status."""


class Node:
    """All services of one node."""

    def __init__(self, parts: NodeParts, settings: OverlaySettings, report: Report) -> None:
        traffic = Traffic(parts.neighbours.clock)
        ports = replace(parts.neighbours, network=cast(Network, MeteredNetwork(parts.neighbours.network, traffic)))
        if parts.owners.owner is None:
            settings = replace(settings, sharing=SharingRules())
        self._discovery = parts.discovery
        self._report = report
        self.overlay = Overlay(ports, settings, self._report_overlay)
        self.table = RunTable(self.overlay, ports.network)
        self.vigils = Vigils(self.overlay, ports.clock, ports.entropy, ports.network)
        self.drivers = Drivers(ports.clock, ports.entropy, self.vigils, lambda: self.work.announce_models(), report)
        speeds = Speeds(ports.clock, parts.owners.speeds)
        self.work = OwnWork(self.overlay.board, self.table, self.drivers, speeds)
        self.control_plane = ControlPlane(self.overlay, ports, parts.reach, parts.lan, self.work.is_generating, report)
        self.claims = Claims(self.overlay, ports.clock, parts.grants)
        links = self.control_plane.links
        artifact_ports = ArtifactPorts(
            parts.store, ports.clock, links.note_transfer, report, traffic.wait_to_send_file,
            traffic.wait_to_receive_file,
        )  # fmt: skip
        self.artifacts = Artifacts(self.overlay, artifact_ports, settings.artifact_transfer)
        self.files = OwnFiles(self.overlay.board, self.table, self.artifacts)
        stage_parts = StageParts(
            parts.store, self.artifacts, parts.launcher, self.table, self.drivers, self.claims, speeds, self.vigils
        )
        memory_bytes = settings.memory_bytes if settings.sharing.is_always else 0
        self.stages = Stages(self.overlay, stage_parts, memory_bytes, report, settings.wishes)
        giving_parts = GivingParts(
            self.overlay, self.stages, self.drivers, traffic, speeds, ports.clock, self.work.is_generating
        )
        self.giving = Giving(giving_parts, parts.owners, settings, report)
        self.profiles = Profiles(self.overlay, ports.clock, self.giving.machine.tell)
        DriverExchanges(self.overlay, self.drivers, self.claims)
        TokenizeExchanges(self.overlay, self.drivers)
        self.records = Records(self.overlay, ports, self.files.given)
        choices = DriverChoices(ports.clock, self.control_plane.round_trips)
        self.router = Router(self.overlay, self.drivers, self.vigils, self.records.search_model, choices)
        self.ingress = Ingress(self.router, self.overlay.board, ports.clock, ports.entropy, report)
        self._hop_costs = HopCosts()
        coordinator_parts = CoordinatorParts(
            self.overlay, parts.store, self.stages, self.drivers, ports.clock, ports.entropy, links, self.claims,
            self.vigils, self.profiles, self._hop_costs,
        )  # fmt: skip
        replica_parts = ReplicaParts(
            self.overlay, self.artifacts, parts.store, self.files.find, parts.loadable.options.serving
        )
        self.replicas = Replicas(replica_parts, report)
        self.coordinators = Coordinators(
            coordinator_parts, self.router, self.files, self.replicas, parts.loadable, report
        )
        self.artifacts.search_by(self.records.search_file)
        self.artifacts.grants = Grants(self.coordinators.gives, self.work.is_generating, self.files.find)
        RouteQueries(self.overlay, self.router.models)
        self.pool: PoolService | None = None
        """Where the node has to do with public pools."""
        self._is_draining = False

    # --- running ---------------------------------------------------------------
    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serves the overlay and the drivers until cancelled; started when peers can say hello."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.vigils.run)
            await nursery.start(self.drivers.run)
            await nursery.start(self.stages.run)
            await nursery.start(self.coordinators.successions.run)
            nursery.start_soon(self.claims.run)
            await nursery.start(self.control_plane.run)
            nursery.start_soon(self._report_ready)
            nursery.start_soon(self.records.run)
            nursery.start_soon(self.coordinators.on_demand.run)
            nursery.start_soon(self.replicas.run)
            nursery.start_soon(self.giving.run)
            task_status.started()

    async def drain(self, timeout_s: float, answered: Callable[[], Awaitable[None]] | None = None) -> None:
        """Takes no new request, hands over the stages here where others take them, and goes.

        That takes at most ``HAND_OVER_S``; then requests that still run through a stage here have ``timeout_s``,
        and so have those of our clients, which ``answered`` waits for: whoever serves them, they end with this node.
        """
        self._is_draining = True
        with trio.move_on_after(HAND_OVER_S):
            await self.stages.hand_over()
            await self.coordinators.leave_runs()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.control_plane.liveness.leave)
            with trio.move_on_after(timeout_s):
                await self.drivers.wait_idle()
                await self.table.wait_idle()
                if answered is not None:
                    await answered()

    async def _report_ready(self) -> None:
        """Tells which models can be routed and which no longer, whenever that changes: the difference alone."""
        told: frozenset[str] = frozenset()
        while True:
            seen = self.overlay.board.changes.count
            names = frozenset(self.router.models())
            self._report_models("ready", names - told)
            self._report_models("not_routable", told - names)
            self.router.note_routable(told, names)
            told = names
            coming = self.coordinators.on_demand.coming()
            self.overlay.board.change_own(wanted=tuple(self.router.awaited(names, coming)))
            await self.overlay.board.changes.wait_beyond(seen)

    def _report_overlay(self, name: str, fields: dict[str, Any]) -> None:
        """Names whoever joins, where gossip or its hello has told the name by then."""
        if name == "peer_joined":
            known = self.overlay.board.find(PeerId(fields["peer_id"]))
            fields = {**fields, "name": "" if known is None else known.name}
        self._report(name, fields)

    def _report_models(self, name: str, models: frozenset[str]) -> None:
        if models:
            self._report(name, {"models": sorted(models)[:MAX_TOLD_MODELS], "count": len(models)})

    # --- what the HTTP surface asks ------------------------------------------------
    def routable_models(self) -> dict[str, ServedModel]:
        """Models that can be routed from here."""
        return self.router.models()

    def retry_after_s(self) -> int:
        """When a request that is refused for now is worth sending again, by what was measured here."""
        if not self.routable_models():
            return self.router.retry_after_s()
        return self.work.retry_after_s()

    def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """Events of a request, wherever it is driven, and whatever is lost meanwhile."""
        if self._is_draining:
            raise Refused(ErrorCode.SHUTTING_DOWN, "this node is stopping; ask another peer")
        return self._generate(request, asker)

    @asynccontextmanager
    async def _generate(
        self, request: GenerationRequest, asker: Asker
    ) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        request = self.router.settle_model(request, asker)
        await self.coordinators.on_demand.await_served(request.model)
        with self.coordinators.on_demand.demand.under_way(request.model):
            async with self.ingress.generate(request, asker) as events:
                yield events

    async def tokenize(
        self, model: str, key: bytes, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> TextOrTokens:
        """Ids of a prompt, or the text of one that is ids."""
        await self.coordinators.on_demand.await_served(model)
        return await self.router.tokenize(model, key, prompt, tools, add_special=add_special)

    def status(self) -> dict[str, Any]:
        """Facts for the console."""
        plane = self.control_plane
        return {
            **describe_node(
                self.overlay, self.stages, self.table, self.coordinators.shown(), self.routable_models(),
                plane.links.estimates(), plane.liveness,
            ),
            "artifacts": self.artifacts.describe(),
            "on_demand": self.coordinators.on_demand.describe(),
            "driven": self.drivers.describe(),
            "pool": None if self.pool is None else self.pool.describe(),
            "discovery": self._discovery,
            **plane.describe(),
            **self.giving.describe(),
        }  # fmt: skip

    async def peers(self) -> dict[str, Any]:
        """What a plan is made from; peers are asked for what is not known of them."""
        await self.profiles.refresh()
        return describe_peers(
            self.overlay, self.stages, self.control_plane.links.matrix(), self.profiles,
            self._hop_costs.policy.hop_overhead_us,
        )  # fmt: skip

    def change_trust(self, trust: TrustStore) -> None:
        """The operator trusts differently from now on."""
        self.overlay.trust.change(trust)
        self.overlay.board.changes.mark()  # other models may be routable, other peers be placed on

    def change_ownership(self, claim: bytes) -> None:
        """Our owner signed us again; empty: nobody claims us any more."""
        self.overlay.board.change_own(ownership=claim)

    def note_failure(self, model: str, error: P2PMeshError) -> None:
        """A model of ours cannot be served; requests for it hear why."""
        self.router.expect(model, error.message)
