"""Public pools of fake nodes: real services over a fake overlay and fake relays, on trio's clock."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from p2pmesh.core.standing import Founding
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.pool import PoolOptions, PoolParts, PoolService
from p2pmesh.node.pool_finder import FinderParts, PoolFinder
from p2pmesh.ports.network import Network
from p2pmesh.wire.requirements import MeshRequirements
from tests.fakes.clock import FakeEntropy
from tests.fakes.identity import FakeVerifier, fake_identity
from tests.fakes.mesh import Mesh, MeshNode, MockedClock, open_mesh
from tests.fakes.relays import FakeRelay, FakeRelays


class PoolWorld:
    """Nodes, relays, and the searches among them."""

    def __init__(self, mesh: Mesh, nursery: trio.Nursery) -> None:
        self.mesh = mesh
        self.relay = FakeRelay("ws://one")
        self._nursery = nursery
        self._searches = 0
        self.probes: list[str] = []

    async def found(self, name: str = "founder", pool_name: str = "", **options: Any) -> MeshNode:
        """A founder that lists its pool."""
        terms = replace(MeshRequirements(fake_identity(name).public_key), is_public=True, pool_name=pool_name)
        node = await self.mesh.found(name, founding=Founding(terms))
        self.serve_pool(node, name, is_publishing=True, **options)
        return node

    async def join(self, name: str, by: MeshNode, **options: Any) -> MeshNode:
        """A node that came by a listing of ``by``."""
        line = by.node.overlay.credentials.listed_invite(by.network.addresses())
        node = await self.mesh.start(name, line)
        await node.node.overlay.join()
        self.serve_pool(node, name, **options)
        return node

    def serve_pool(self, node: MeshNode, name: str, **options: Any) -> PoolService:
        """The node's part in its pool, until the node is dead."""
        finder = self.finder(name, node.report)
        clock = MockedClock()
        ports = Neighbours(
            node.network, fake_identity(name), FakeVerifier(), clock, FakeEntropy(len(name)), node.credentials
        )
        parts = PoolParts(
            node.node.overlay, ports, finder._parts.relays, finder,
            lambda: tuple(node.node.routable_models()), lambda: (),
        )  # fmt: skip
        service = PoolService(parts, PoolOptions(takes_private=True, **options), node.report)
        node.node.pool = service
        self._nursery.start_soon(self._run, node, service)
        return service

    async def _run(self, node: MeshNode, service: PoolService) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            await node.is_dead.wait()
            nursery.cancel_scope.cancel()

    def finder(self, name: str, report: Callable[[str, dict[str, Any]], None]) -> PoolFinder:
        """A search from the outside, by a key of its own."""
        clock = MockedClock()
        relays = FakeRelays(name, clock, [self.relay])  # type: ignore[arg-type]
        parts = FinderParts(relays, self._open_network, FakeVerifier(), clock, FakeEntropy(7), takes_private=True)
        return PoolFinder(parts, report)

    def _open_network(self) -> AbstractAsyncContextManager[Network]:
        self._searches += 1
        return self._open(f"searcher {self._searches}")

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Network]:
        async with self.mesh.overlay.open_network(fake_identity(name).peer_id) as network:
            yield network

    def listed(self) -> list[str]:
        """Whose listings the relay holds, by name of the pool's serving member; dead ones too until they expire."""
        return sorted(self.relay.events)


@asynccontextmanager
async def open_pool_world() -> AsyncIterator[PoolWorld]:
    """Nodes and services live as long as the scope."""
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        yield PoolWorld(mesh, nursery)
        nursery.cancel_scope.cancel()
