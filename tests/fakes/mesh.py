"""Whole nodes in one process: the real services over the fake ports, on trio's clock.

With ``autojump_clock`` a day passes in no time, so nothing here waits for real.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import GIB, Micros, UnixMillis
from p2pmesh.core.ownership import TrustStore
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.changes import Changes
from p2pmesh.node.giving import OwnersMachine
from p2pmesh.node.node import Node, NodeParts
from p2pmesh.node.on_demand import LoadableModels, OnDemandOptions
from p2pmesh.node.overlay import OverlaySettings
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.generation import (
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    Prompt,
    SamplingParameters,
)
from p2pmesh.wire.stage import WireDtype
from tests.fakes.clock import FakeEntropy
from tests.fakes.credentials import FakeCredentialStore
from tests.fakes.engine import FakeEngine, FakeLauncher, expected_tokens
from tests.fakes.grants import FakeGrantStore
from tests.fakes.identity import FakeVerifier, fake_identity
from tests.fakes.models import FakeModelStore
from tests.fakes.network import FakeNetwork, FakeOverlay

PATIENCE_S = 600.0
"""On trio's mock clock; far above every deadline of the node."""
UNIX_MS_AT_START = 1_700_000_000_000
GREEDY = SamplingParameters(temperature=0.0)


class MockedClock:
    """Implements ``ports.clock.Clock`` on trio's clock; the wall clock may be set wrong."""

    def __init__(self, wall_offset_ms: int = 0) -> None:
        self._wall_offset_ms = wall_offset_ms

    def now(self) -> Micros:
        return Micros(int(trio.current_time() * 1_000_000))

    def pass_wall_time(self, milliseconds: int) -> None:
        """The calendar goes on; nobody sleeps through the seconds."""
        self._wall_offset_ms += milliseconds

    def unix_ms(self) -> UnixMillis:
        return UnixMillis(UNIX_MS_AT_START + self._wall_offset_ms + int(trio.current_time() * 1000))


@dataclass
class MeshNode:
    """A node, its fakes, and all that it has told."""

    node: Node
    network: FakeNetwork
    launcher: FakeLauncher
    store: FakeModelStore
    credentials: FakeCredentialStore = field(default_factory=FakeCredentialStore)
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    is_dead: trio.Event = field(default_factory=trio.Event)

    @property
    def peer(self) -> PeerId:
        return self.network.peer_id

    @property
    def engine(self) -> FakeEngine:
        """Its newest engine."""
        return self.launcher.engines[-1]

    def report(self, name: str, fields: dict[str, Any]) -> None:
        self.reports.append((name, fields))
        self.changes.mark()

    def told(self, name: str) -> list[dict[str, Any]]:
        """Fields of every event of a name so far."""
        return [fields for told, fields in self.reports if told == name]

    async def wait_told(self, name: str, times: int = 1) -> dict[str, Any]:
        """The fields of the ``times``-th event of a name."""
        with trio.fail_after(PATIENCE_S):
            while len(self.told(name)) < times:
                await self.changes.wait_beyond(self.changes.count)
        return self.told(name)[times - 1]

    async def wait_routable(self, model: str = "fake") -> None:
        """Until requests for a model can be routed from here."""
        board = self.node.overlay.board
        with trio.fail_after(PATIENCE_S):
            while model not in self.node.routable_models():
                await board.changes.wait_beyond(board.changes.count)

    async def ask(self, request: GenerationRequest) -> list[int]:
        """The tokens of a whole generation."""
        with trio.fail_after(PATIENCE_S):
            async with self.node.generate(request) as events:
                return await read_tokens(events)


async def read_tokens(events: AsyncIterator[GenerationEvent], at_most: int = 1_000_000) -> list[int]:
    """Tokens up to the end, or up to ``at_most``."""
    tokens: list[int] = []
    async for event in events:
        if isinstance(event, GenerationDelta):
            tokens += event.tokens
        if isinstance(event, GenerationFinished) or len(tokens) >= at_most:
            break
    return tokens


class Mesh:
    """The nodes of a test; made by ``open_mesh``."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.overlay = FakeOverlay()
        self._nursery = nursery
        self._requests = 0
        self._clocks: list[MockedClock] = []
        self._days_ms = 0

    def pass_days(self, days: float) -> None:
        """For every node, those to come too: only the calendar, since days of heartbeats would take minutes."""
        passed_ms = int(days * 24 * 3600 * 1000)
        self._days_ms += passed_ms
        for clock in self._clocks:
            clock.pass_wall_time(passed_ms)

    async def found(self, name: str = "founder", **given: Any) -> MeshNode:
        """The first node of a mesh."""
        made: MeshNode = await self._nursery.start(self._live, name, None, given)
        return made

    async def join(self, name: str, founder: MeshNode, **given: Any) -> MeshNode:
        """A node that has joined with an invite of ``founder``."""
        node = await self.start(name, founder.node.overlay.make_invite(), **given)
        await node.node.overlay.join()
        return node

    async def start(self, name: str, invite: str | None, **given: Any) -> MeshNode:
        """A node that has an invite and has not joined yet."""
        made: MeshNode = await self._nursery.start(self._live, name, invite, given)
        return made

    async def kill(self, node: MeshNode) -> None:
        """The node's process is gone at an instant."""
        self.overlay.kill(node.peer)
        await node.is_dead.wait()

    def serve(self, node: MeshNode, model: ModelFile, **given: Any) -> None:
        """Has a node coordinate a model until the test ends."""
        options = {"stage_count": None, "context_tokens": 4096, "lanes": 4, "wire_dtype": WireDtype.F32} | given
        self._nursery.start_soon(node.node.coordinators.serve_model, model, ServingOptions(**options))

    def request(
        self, text: str = "hello", max_tokens: int = 20, sampling: SamplingParameters = GREEDY, model: str = "fake"
    ) -> GenerationRequest:
        """A fresh request."""
        self._requests += 1
        prompt = Prompt(tokens=tuple(text.encode()))
        return GenerationRequest(self._requests.to_bytes(16, "big"), model, prompt, sampling, (), max_tokens)

    async def _live(self, name: str, invite: str | None, given: dict[str, Any], *, task_status: Any) -> None:
        identity = fake_identity(name)
        store = given.get("store") or FakeModelStore()
        launcher = FakeLauncher()
        async with self.overlay.open_network(identity.peer_id) as network:
            clock = MockedClock(given.get("wall_offset_ms", 0) + self._days_ms)
            self._clocks.append(clock)
            credentials = given.get("credentials") or FakeCredentialStore()
            entropy = FakeEntropy(int.from_bytes(name.encode()[:8]))
            altered = given.get("alter", lambda network: network)(network)
            ports = Neighbours(altered, identity, FakeVerifier(), clock, entropy, credentials)
            settings = OverlaySettings(
                name, given.get("version", "0"), given.get("memory_bytes", GIB), invite,
                given.get("trust", TrustStore()), given.get("ownership", b""),
                given.get("membership"), given.get("founding"), **given.get("settings", {}),
            )  # fmt: skip
            reports: list[MeshNode] = []
            parts = NodeParts(
                ports, store, launcher, given.get("grants") or FakeGrantStore(),
                OwnersMachine(given.get("machine"), given.get("owner"), usage=given.get("usage")),
                LoadableModels(
                    given.get("shelf"), given.get("memory_left", lambda: None),
                    given.get("on_demand", OnDemandOptions()),
                ),
                lan=given.get("lan"),
            )  # fmt: skip
            node = Node(parts, settings, lambda event, f: reports[0].report(event, f))
            made = MeshNode(node, network, launcher, store, credentials)
            reports.append(made)
            # in the network's own nursery, so that killing the node there ends all of it at once
            await network.nursery.start(node.run)
            task_status.started(made)
            try:
                await trio.sleep_forever()
            finally:
                made.is_dead.set()


def expected(request: GenerationRequest) -> list[int]:
    """What any pipeline must answer to a request that no stop ends."""
    assert request.prompt.tokens is not None
    assert request.max_tokens is not None
    return expected_tokens(request.prompt.tokens, request.max_tokens, request.sampling)


@asynccontextmanager
async def open_mesh() -> AsyncIterator[Mesh]:
    """Nodes live as long as the scope."""
    async with trio.open_nursery() as nursery:
        yield Mesh(nursery)
        nursery.cancel_scope.cancel()
