"""A node built from concrete parts: its network opened, its stores and engines bound, what the operator gave handed on.

Which mesh it lives in is decided before (``app.joining``, ``app.pools``), what it does from then on by ``app.up``.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from p2pmesh import __version__
from p2pmesh.adapters.cgroups import processor_quota
from p2pmesh.adapters.clock import SystemEntropy, TrioClock
from p2pmesh.adapters.credential_files import HomeCredentials
from p2pmesh.adapters.grant_file import HomeGrants
from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity
from p2pmesh.adapters.listen_port_file import keep_port, kept_port
from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.adapters.llama.speed_file import SpeedFile
from p2pmesh.adapters.machine import ThisMachine
from p2pmesh.adapters.owner import ThisOwner
from p2pmesh.adapters.p2p.addresses import every_interface
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.adapters.usage_file import HomeUsage
from p2pmesh.app.config import UpOptions
from p2pmesh.app.joining import Standing
from p2pmesh.app.machine_memory import available_memory_bytes, offered_of_bytes
from p2pmesh.app.model_access import ModelAccess
from p2pmesh.app.model_shelf import OwnersModels
from p2pmesh.app.ownership import OwnershipWatch
from p2pmesh.core.artifact_policy import default_transfer
from p2pmesh.core.devices import DeviceChoice
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.giving import OwnersMachine
from p2pmesh.node.gossip_trace import TracedNetwork
from p2pmesh.node.node import Node, NodeParts
from p2pmesh.node.on_demand import LoadableModels, OnDemandOptions
from p2pmesh.node.overlay import OverlaySettings
from p2pmesh.node.reporting import Report
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.lan import Lan
from p2pmesh.wire.dtype import WireDtype

MAX_ENGINE_BYTES = 64

AlterNetwork = Callable[[Libp2pNetwork], Any]


@dataclass(frozen=True, slots=True)
class HomeParts:
    """What a home and its machine have for every node that is built of them."""

    identity: NodeIdentity
    ownership: OwnershipWatch
    models: ModelAccess
    shelf: OwnersModels
    devices: DeviceChoice
    offered_bytes: int
    """Memory that is offered where the operator names no bound, as it was found at the start."""

    def memory_bytes(self, options: UpOptions) -> int:
        """What is offered to the overlay."""
        return self.offered_bytes if options.max_memory_bytes is None else options.max_memory_bytes


@dataclass(frozen=True, slots=True)
class BuiltNode:
    """A node that is not run yet, on a network that is open."""

    node: Node
    network: Libp2pNetwork
    neighbours: Neighbours
    """The ports that it stands on, which services beside it use, too."""


@dataclass(frozen=True, slots=True)
class NodeBuilder:
    """Builds the nodes of one ``up``, one after the other. ``alter`` stands between a node and its network in tests."""

    home: HomeParts
    report: Report
    alter: AlterNetwork | None = None

    @asynccontextmanager
    async def open(self, options: UpOptions, standing: Standing, lan: Lan | None) -> AsyncIterator[BuiltNode]:
        """A node of a mesh; its network ends with the scope."""
        listen = options.listen or every_interface(kept_port(options.home))
        async with open_network(self.home.identity, listen, announce=options.announce) as network:
            if not options.listen:
                keep_port(options.home, int(listen[0].split("/")[4]))
            neighbours = self._neighbours(options, standing, network)
            parts = NodeParts(
                neighbours,
                self.home.models.store,
                self._launcher(options),
                HomeGrants(options.home),
                self._owners_machine(options),
                LoadableModels(self.home.shelf, available_memory_bytes, _on_demand_options(options)),
                lan,
                options.reach,
                options.discovery.value,
            )
            yield BuiltNode(Node(parts, self._settings(options, standing), self.report), network, neighbours)

    def _neighbours(self, options: UpOptions, standing: Standing, network: Libp2pNetwork) -> Neighbours:
        clock = TrioClock()
        if options.is_tracing_gossip:
            network = cast(Libp2pNetwork, TracedNetwork(network, clock, self.report))
        kept = HomeCredentials(options.home, standing.is_public)
        if self.alter is not None:
            network = cast(Libp2pNetwork, self.alter(network))
        return Neighbours(network, self.home.identity, Ed25519Verifier(), clock, SystemEntropy(), kept)

    def _launcher(self, options: UpOptions) -> LlamaEngineLauncher:
        cache = str(options.home / "cache" / "engine")
        return LlamaEngineLauncher(LauncherOptions(cache, self.home.devices, niceness=options.niceness))

    def _owners_machine(self, options: UpOptions) -> OwnersMachine:
        devices, threads = self.home.devices, usable_threads()
        folder = options.home / "cache" / "speeds"
        machine = ThisMachine(folder, devices, threads, processor_quota(), offered_of_bytes(devices))
        return OwnersMachine(machine, ThisOwner(), SpeedFile(folder, threads, devices), HomeUsage(options.home))

    def _settings(self, options: UpOptions, standing: Standing) -> OverlaySettings:
        return OverlaySettings(
            name=options.name or socket.gethostname()[:200],
            version=__version__,
            memory_bytes=self.home.memory_bytes(options),
            invite_text=standing.invite_text,
            trust=self.home.ownership.trust,
            ownership=self.home.ownership.claim,
            membership=standing.membership,
            founding=standing.founding,
            ways_in=standing.ways_in,
            engine=_engine_kind(self.home.devices),
            wishes=options.wishes,
            sharing=options.sharing,
            artifact_transfer=options.artifact_transfer or default_transfer(is_public=standing.is_public),
        )


def _on_demand_options(options: UpOptions) -> OnDemandOptions:
    """Models that nobody named are served whole or cut where the family permits, with what costs no bits."""
    replan_after_s = options.replan_after_s
    serving = ServingOptions(None, options.context_tokens, options.lanes, WireDtype.F32, replan_after_s=replan_after_s)
    return OnDemandOptions(serving if options.serves_on_demand else None, options.idle_unload_s, replan_after_s)


def _engine_kind(devices: DeviceChoice) -> str:
    """What peers are told that stages run on."""
    return f"llama.cpp {'+'.join(devices.backends).lower()}"[:MAX_ENGINE_BYTES]
