"""One node: its services started in order, its drain, and what it tells of itself.

The concrete ports come from ``app``; the HTTP surface sees a ``Node`` as ``api.backend.Backend``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.core.ownership import TrustStore
from p2pmesh.core.relaying import ReachSettings
from p2pmesh.core.retry_after import LEAST_S
from p2pmesh.core.sharing import SharingRules
from p2pmesh.node.adopted_run import SuccessionParts
from p2pmesh.node.announcements import Neighbours, OwnLoad
from p2pmesh.node.artifacts import ArtifactPorts, Artifacts, Grants
from p2pmesh.node.claims import Claims
from p2pmesh.node.connections import Connections
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.driver import Drivers
from p2pmesh.node.driver_choices import DriverChoices
from p2pmesh.node.exchanges import DriverExchanges
from p2pmesh.node.hop_costs import HopCosts
from p2pmesh.node.ingress import Ingress
from p2pmesh.node.lan import LanMeetings
from p2pmesh.node.links import Links
from p2pmesh.node.liveness import Liveness
from p2pmesh.node.machine_watch import MachineWatch
from p2pmesh.node.on_demand import OnDemand, OnDemandOptions, OnDemandParts
from p2pmesh.node.overlay import Overlay, OverlaySettings
from p2pmesh.node.own_identity import IdentityGuard
from p2pmesh.node.peers_view import describe_peers
from p2pmesh.node.pool import PoolService
from p2pmesh.node.profiles import Profiles
from p2pmesh.node.reach import Reach
from p2pmesh.node.records import Records
from p2pmesh.node.reporting import Report
from p2pmesh.node.route_queries import RouteQueries
from p2pmesh.node.router import MAX_TOLD_MODELS, Router
from p2pmesh.node.run import CoordinatorParts
from p2pmesh.node.run_table import RunTable
from p2pmesh.node.servable import Servable, ServableFile, ServableRun
from p2pmesh.node.serving_options import ServingOptions, check_split
from p2pmesh.node.sharing import Sharing, SharingParts
from p2pmesh.node.speeds import Speeds
from p2pmesh.node.stages import StageParts, Stages
from p2pmesh.node.status import ModelCoordinator, describe_node, describe_reach
from p2pmesh.node.succession import Successions
from p2pmesh.node.tokenizing import TextOrTokens, TokenizeExchanges
from p2pmesh.node.traffic import MeteredNetwork, Traffic
from p2pmesh.node.usage import UsageBook, UsageParts
from p2pmesh.node.vigil import Vigils
from p2pmesh.ports.engine import EngineLauncher
from p2pmesh.ports.grants import GrantStore
from p2pmesh.ports.lan import Lan
from p2pmesh.ports.machine import Machine, SpeedStore
from p2pmesh.ports.models import ModelFile, ModelShelf, ModelStore
from p2pmesh.ports.network import Network
from p2pmesh.ports.owner import Owner
from p2pmesh.ports.usage import UsageStore
from p2pmesh.wire.announcement import HeldModel, ServedModel
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
    machine: Machine | None = None
    """None where nobody looks at it."""
    shelf: ModelShelf | None = None
    """Models that may be served without being named; None for none."""
    memory_left: Callable[[], int | None] = lambda: None
    """Bytes that the machine, or the container of this process, has left; None if that is not known."""
    on_demand: OnDemandOptions = field(default_factory=OnDemandOptions)
    speeds: SpeedStore | None = None
    lan: Lan | None = None
    """None where nothing is to be sent or heard on the local network."""
    reach: ReachSettings = field(default_factory=ReachSettings)
    usage: UsageStore | None = None
    owner: Owner | None = None
    """None where nobody can be asked: what is given is given at all times."""
    discovery: str = ""
    """By whom the operator lets this node look for others, for the status."""


class Node:
    """All services of one node."""

    def __init__(self, parts: NodeParts, settings: OverlaySettings, report: Report) -> None:
        self.traffic = Traffic(parts.neighbours.clock)
        network = cast(Network, MeteredNetwork(parts.neighbours.network, self.traffic))
        parts = replace(parts, neighbours=replace(parts.neighbours, network=network))
        ports = parts.neighbours
        if parts.owner is None:
            settings = replace(settings, sharing=SharingRules())
        self._parts = parts
        self._report = report
        self.store = parts.store
        self.overlay = Overlay(ports, settings, self._report_overlay)
        self.table = RunTable(self.overlay, ports.network)
        self.vigils = Vigils(self.overlay, ports.clock, ports.entropy, ports.network)
        self.drivers = Drivers(ports.clock, ports.entropy, self.vigils, self._announce_models, report)
        self.links = Links(self.overlay, ports, self._is_generating)
        self.reach = Reach(self.overlay, ports, parts.reach, report)
        self.reach.on_upgraded = self.links.look_again
        if self.overlay.credentials.desk is not None:  # its invite says where we are
            self.reach.on_announced = self.overlay.credentials.desk.revoked.mark
        self.liveness = Liveness(self.overlay, ports, report)
        self.lan = LanMeetings(self.overlay, ports, parts.lan, report)
        self._connections = Connections(self.overlay, ports)
        self._identity_guard = IdentityGuard(self.overlay, ports, report)
        self.claims = Claims(self.overlay, ports.clock, parts.grants)
        self.traffic.limit(settings.wishes.up_bytes_per_s, settings.wishes.down_bytes_per_s)
        artifact_ports = ArtifactPorts(
            parts.store, ports.clock, self.links.note_transfer, report, self.traffic.wait_to_send_file,
            self.traffic.wait_to_receive_file,
        )  # fmt: skip
        self.artifacts = Artifacts(self.overlay, artifact_ports, settings.artifact_transfer)
        self.speeds = Speeds(ports.clock, parts.speeds)
        self._machine = MachineWatch(parts.machine, self.overlay.board, settings.wishes, self.speeds)
        self.profiles = Profiles(self.overlay, ports.clock, self._machine.tell)
        self._hop_costs = HopCosts()
        self.stages = Stages(
            self.overlay,
            StageParts(
                parts.store,
                self.artifacts,
                parts.launcher,
                self.table,
                self.drivers,
                self.claims,
                self.speeds,
                self.vigils,
            ),
            settings.memory_bytes if settings.sharing.is_always else 0,
            report,
            settings.wishes,
        )
        sharing_parts = SharingParts(
            parts.owner, self.stages, ports.clock, self._is_generating, lambda: self.overlay.board.own().is_busy, report
        )
        usage_parts = UsageParts(
            self.overlay, self.stages, self.traffic, ports.clock, lambda: self.sharing.is_giving, parts.usage, report
        )
        self.usage = UsageBook(usage_parts)
        self.drivers.clients.most = settings.wishes.max_clients
        self.drivers.used = self.stages.used = self.usage.note_tokens
        self.sharing = Sharing(sharing_parts, settings.memory_bytes, settings.sharing)
        DriverExchanges(self.overlay, self.drivers, self.claims)
        TokenizeExchanges(self.overlay, self.drivers)
        self.records = Records(self.overlay, ports, self._held_files)
        choices = DriverChoices(ports.clock, self._round_trips)
        self.router = Router(self.overlay, self.drivers, self.vigils, self.records.search_model, choices)
        self.ingress = Ingress(self.router, self.overlay.board, ports.clock, ports.entropy, report)
        self._resolved: dict[Digest, ModelFile] = {}
        self._names: dict[str, Digest] = {}
        """Of the files that were resolved; one may have several."""
        on_demand = OnDemandParts(
            self.overlay, self.router, self.drivers, self.stages, ports.clock, ports.entropy, parts.shelf,
            parts.memory_left, self._make_coordinator, self._note_name,
        )  # fmt: skip
        self.on_demand = OnDemand(on_demand, parts.on_demand, report)
        self.artifacts.search_by(self.records.search_file)
        self.artifacts.grants = Grants(self._is_granted, self._is_generating, self._resolved.get)
        self.overlay.board.read_load = self._read_load
        RouteQueries(self.overlay, self.router.models)
        succession = SuccessionParts(
            self.overlay, parts.store, self.stages, self.drivers, self.claims, self.vigils, self._serve_unless_served,
            self.on_demand.coordinator_of, self._make_successor,
        )  # fmt: skip
        self.successions = Successions(succession, self._report_placing)
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
            await nursery.start(self.successions.run)
            nursery.start_soon(self.claims.run)
            await nursery.start(self.overlay.run)
            await nursery.start(self.liveness.run)
            nursery.start_soon(self._report_ready)
            nursery.start_soon(self.links.run)
            nursery.start_soon(self.reach.run)
            nursery.start_soon(self._connections.run)
            nursery.start_soon(self.records.run)
            nursery.start_soon(self._identity_guard.run)
            nursery.start_soon(self._machine.run)
            nursery.start_soon(self.on_demand.run)
            nursery.start_soon(self.lan.run)
            nursery.start_soon(self.sharing.run)
            nursery.start_soon(self.usage.run)
            task_status.started()

    @property
    def coordinators(self) -> tuple[Coordinator, ...]:
        """Of the models that are coordinated here now."""
        return (*self.on_demand.coordinators, *self.successions.coordinators)

    async def serve_model(self, model: ModelFile, options: ServingOptions) -> None:
        """Serves one model until cancelled; raises when it can never be placed.

        Returns at once for a file that is served here already: what is claimed of peers is the file, and the second
        name of it is routed to the first.
        """
        check_split(model, options)
        same = self.on_demand.find(model.digest)
        if same is not None:
            self._note_name(model)
            if same.name != model.name:
                self.router.forget(model.name)
                self._report("model_aliased", {"model": model.name, "served_as": same.name})
            return
        self.router.expect(model.name)
        await self.on_demand.serve(model, options)

    def _make_coordinator(self, model: ModelFile, options: ServingOptions) -> Coordinator:
        self._note_name(model)
        servable = ServableFile.of(self.overlay, self._parts.store, model, options)
        return self._coordinator_of(servable, options)

    def _coordinator_of(self, model: Servable, options: ServingOptions) -> Coordinator:
        parts = CoordinatorParts(
            self.overlay, self._parts.store, self.stages, self.drivers,
            self._parts.neighbours.clock, self._parts.neighbours.entropy, self.links, self.claims,
            self.vigils, self.profiles, self._hop_costs,
        )  # fmt: skip
        return Coordinator(parts, model, options, self._report_placing)

    def _note_name(self, model: ModelFile) -> None:
        """Others hear which file is here, and under which names it may be asked for."""
        self._resolved.setdefault(model.digest, model)
        self._names[model.name] = model.digest
        self.overlay.board.change_own(on_disk=tuple(HeldModel(name, digest) for name, digest in self._names.items()))

    async def _serve_unless_served(self, model: ModelFile, options: ServingOptions) -> None:
        """A model whose run was taken over here, unless it is given to this node anyway: who serves it stands by."""
        if self.on_demand.find(model.digest) is not None:
            return
        try:
            await self.serve_model(model, self._as_taken_over(options))
        finally:  # another coordinates it, or it cannot be placed here
            self.router.forget(model.name)

    async def _make_successor(self, model: ServableRun) -> Coordinator | None:
        """For a run that was taken over here, unless whoever has the model's file here will place it anew."""
        if self.on_demand.find(model.digest) is not None:
            return None
        if await self._parts.store.find_by_digest(model.digest, model.size_bytes) is not None:
            return None
        return self._coordinator_of(model, self._as_taken_over(model.options))

    def _as_taken_over(self, options: ServingOptions) -> ServingOptions:
        """As a run was served, and moved as the operator of this node wants it."""
        return replace(options, replan_after_s=self._parts.on_demand.replan_after_s)

    async def drain(self, timeout_s: float, answered: Callable[[], Awaitable[None]] | None = None) -> None:
        """Takes no new request, hands over the stages here where others take them, and goes.

        That takes at most ``HAND_OVER_S``; then requests that still run through a stage here have ``timeout_s``,
        and so have those of our clients, which ``answered`` waits for: whoever serves them, they end with this node.
        """
        self._is_draining = True
        with trio.move_on_after(HAND_OVER_S):
            await self.stages.hand_over()
            for coordinator in self.coordinators:
                await coordinator.leave_run()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.liveness.leave)
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
            self.overlay.board.change_own(wanted=tuple(self.router.awaited(names)))
            await self.overlay.board.changes.wait_beyond(seen)

    def _report_overlay(self, name: str, fields: dict[str, Any]) -> None:
        """Names whoever joins, where gossip or its hello has told the name by then."""
        if name == "peer_joined":
            known = self.overlay.board.find(PeerId(fields["peer_id"]))
            fields = {**fields, "name": "" if known is None else known.name}
        self._report(name, fields)

    def _report_placing(self, name: str, fields: dict[str, Any]) -> None:
        """Clients that ask for a model hear what the operator does of what it waits for."""
        if name in ("waiting_for_peers", "placement"):
            self.router.note_waiting(fields["model"], fields["message"] if name == "waiting_for_peers" else None)
        self._report(name, fields)

    def _report_models(self, name: str, models: frozenset[str]) -> None:
        if models:
            self._report(name, {"models": sorted(models)[:MAX_TOLD_MODELS], "count": len(models)})

    def _is_generating(self) -> bool:
        """Whether tokens pass through here: then nothing is spent on measuring links."""
        return any(run.open_sequences for run in self.table.runs()) or any(
            driver.active_sequences for driver in self.drivers.all()
        )

    def _held_files(self) -> tuple[Digest, ...]:
        """Files that others can fetch here: whole models that we resolved, the stages that we run, what came lately."""
        if self.artifacts.mode is ArtifactTransfer.OFF:
            return ()
        stages = (Digest(run.load.artifact_digest) for run in self.table.runs())
        return tuple(dict.fromkeys((*self._resolved, *stages, *self.artifacts.held())))

    def _is_granted(self, digest: Digest, peer: PeerId) -> bool:
        """Whether a run that we coordinate gives the file to the peer."""
        return any(coordinator.gives(digest, peer) for coordinator in self.coordinators)

    def _read_load(self) -> OwnLoad:
        """Lanes of the runs that are driven here, the speed of the fastest, and that of our engines."""
        driven = [driver for driver in self.drivers.all() if driver.is_published]
        lanes = sum(driver.load.lanes for driver in driven)
        busy = sum(min(driver.load.lanes, driver.active_sequences) for driver in driven)
        steps_us = [driver.step_us for driver in driven if driver.step_us]
        speed_milli = 1000 * MICROS_PER_SECOND // min(steps_us) if steps_us else 0
        return OwnLoad(lanes, lanes - busy, speed_milli, self.stages.decode_bytes_per_s)

    def _announce_models(self) -> None:
        """What is published here, in the announcement; the newest run of a name."""
        published = {
            driver.load.model: ServedModel(
                driver.load.model,
                driver.load.model_digest,
                driver.load.run_id,
                len(driver.load.stages),
                driver.load.context_tokens,
            )
            for driver in self.drivers.all()
            if driver.is_published and not driver.is_leaving
        }
        self.overlay.board.change_own(models=tuple(published[name] for name in sorted(published)))

    # --- what the HTTP surface asks ------------------------------------------------
    def routable_models(self) -> dict[str, ServedModel]:
        """Models that can be routed from here."""
        return self.router.models()

    def retry_after_s(self) -> int:
        """When a request that is refused for now is worth sending again, by what was measured here."""
        if not self.routable_models():
            return self.router.retry_after_s()
        return max((driver.lanes.retry_after_s for driver in self.drivers.all()), default=LEAST_S)

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
        await self.on_demand.await_served(request.model)
        with self.on_demand.demand.under_way(request.model):
            async with self.ingress.generate(request, asker) as events:
                yield events

    async def tokenize(
        self, model: str, key: bytes, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> TextOrTokens:
        """Ids of a prompt, or the text of one that is ids."""
        await self.on_demand.await_served(model)
        return await self.router.tokenize(model, key, prompt, tools, add_special=add_special)

    def _round_trips(self) -> dict[PeerId, int]:
        """To the peers whose links were measured, and to this node itself."""
        measured = {peer: link.rtt_us for peer, link in self.links.estimates() if link.rtt_us}
        return measured | {self.overlay.own_peer: 0}

    def status(self) -> dict[str, Any]:
        """Facts for the console."""
        placing = (
            one
            for one in self.coordinators
            if one.run is not None or not (one.is_minding_adopted or one in self.successions.coordinators)
        )
        coordinating: tuple[ModelCoordinator, ...] = (*placing, *self.successions.runs)
        return describe_node(
            self.overlay, self.stages, self.table, coordinating, self.routable_models(), self.links.estimates(),
            self.liveness,
        ) | {
            "artifacts": self.artifacts.describe(),
            "on_demand": self.on_demand.describe(),
            "driven": self.drivers.describe(),
            "machine": asdict(self._machine.profile()),
            "pool": None if self.pool is None else self.pool.describe(),
            "lan": self.lan.describe(),
            "discovery": self._parts.discovery,
            "clock": self.overlay.clock_offsets.describe(),
            "reach": describe_reach(self.reach.report()),
            "sharing": self.sharing.describe(),
            "usage": self.usage.describe(),
        }  # fmt: skip

    async def peers(self) -> dict[str, Any]:
        """What a plan is made from; peers are asked for what is not known of them."""
        await self.profiles.refresh()
        return describe_peers(
            self.overlay, self.stages, self.links.matrix(), self.profiles, self._hop_costs.policy.hop_overhead_us
        )

    def change_trust(self, trust: TrustStore) -> None:
        """The operator trusts differently from now on."""
        self.overlay.trust.change(trust)
        self.overlay.board.changes.mark()  # other models may be routable, other peers be placed on

    async def change_wishes(self, memory_bytes: int, wishes: OwnerWishes, rules: SharingRules) -> None:
        """The owner gives otherwise from now on; others hear of it, and move what is not wanted here any more."""
        self.stages.wishes = self._machine.wishes = wishes
        self.traffic.limit(wishes.up_bytes_per_s, wishes.down_bytes_per_s)
        self.drivers.clients.most = wishes.max_clients
        await self.sharing.change(memory_bytes, rules)

    def change_ownership(self, claim: bytes) -> None:
        """Our owner signed us again; empty: nobody claims us any more."""
        self.overlay.board.change_own(ownership=claim)

    def note_failure(self, model: str, error: P2PMeshError) -> None:
        """A model of ours cannot be served; requests for it hear why."""
        self.router.expect(model, error.message)
