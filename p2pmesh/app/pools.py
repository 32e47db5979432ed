"""Public pools for ``up``: relays, the search before a node is built, and the service that lists the node's pool.

Decides which mesh the next node lives in: the best pool that can be joined, else the home's own. Nothing here waits
longer than its own deadline, and a pool that did not let us in is not tried again for a while.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2pmesh.adapters.clock import SystemEntropy, TrioClock
from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity
from p2pmesh.adapters.nostr.urls import checked_relays, is_of_own_network
from p2pmesh.adapters.p2p.host import open_network
from p2pmesh.app.config import UpOptions
from p2pmesh.app.events import Event, EventName
from p2pmesh.app.joining import Standing, last_pool, standing_in_pool
from p2pmesh.app.pool_options import MAX_AVOIDED
from p2pmesh.base.ids import MeshId
from p2pmesh.core.pool_choice import Wanted
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.node import Node
from p2pmesh.node.pool import PoolOptions, PoolParts, PoolService
from p2pmesh.node.pool_finder import FinderParts, FoundPool, PoolFinder
from p2pmesh.node.reporting import Report
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.network import Network
from p2pmesh.ports.relays import Relays, why_silent

if TYPE_CHECKING:
    from p2pmesh.adapters.mdns.lan import MdnsLan

JOIN_S = 8.0
"""A pool that was reached lets us in within this time, or the next one is tried."""
MAX_TRIED = 3
"""Pools of one search; beyond them the node serves alone and looks again."""
AVOID_S = 900.0
WARNING = (
    "strangers run stages of a public pool: they see the activations that pass their stages, and may guess prompts",
    "outputs are not checked: a stage of a stranger can change an answer",
)


def check_relays(options: UpOptions) -> tuple[str, ...]:
    """The relays to use; ``ConfigError`` for one that is none. Nobody is contacted."""
    return checked_relays(options.pool.relays_to_use, "--nostr-relay")


class Pools:
    """What one ``up`` has to do with public pools. ``next_standing`` says how the next node begins."""

    def __init__(
        self, options: UpOptions, identity: NodeIdentity, report: Report, lan: "MdnsLan | None" = None
    ) -> None:
        self._options = options
        self._identity = identity
        self._report = report
        clock, entropy, verifier = TrioClock(), SystemEntropy(), Ed25519Verifier()
        self._takes_private = lan is not None or all(is_of_own_network(url) for url in check_relays(options))
        self._relays = _relays(options, clock, entropy) if lan is None else _listings_of(lan, identity, clock)
        parts = FinderParts(self._relays, open_fresh_network, verifier, clock, entropy, self._takes_private)
        self.finder = PoolFinder(parts, report)
        self._candidates: list[FoundPool] = []
        self._avoided: dict[MeshId, float] = {}

    def warn(self) -> None:
        """What a volunteer has to know before strangers come."""
        self._report(EventName.POOL_WARNING.value, {"lines": list(WARNING)})

    async def search(self) -> None:
        """Looks for pools to join; ``next_standing`` takes them in turn."""
        choice = self._options.pool
        if not choice.is_searching:
            return
        wanted = Wanted(choice.name, last_pool(self._options.home), self._besides())
        found = await self.finder.search(wanted)
        self._candidates = list(found.pools[:MAX_TRIED])
        facts = {"listed": found.listed, "reached": len(found.pools), "took_ms": found.took_ms}
        detail = "" if found.has_answer else why_silent(self._relays.states())
        self._report(EventName.POOLS_SEARCHED.value, {**facts, "has_answer": found.has_answer, "detail": detail})

    def follow(self, found: FoundPool) -> None:
        """The next standing is in this pool."""
        self._candidates = [found]

    def next_standing(self, own: Standing) -> tuple[Standing, FoundPool | None]:
        """The best pool that was found and not tried, else the home's own mesh."""
        while self._candidates:
            found = self._candidates.pop(0)
            standing = standing_in_pool(self._options.home, found.listing, self._identity)
            if standing is not None:
                return standing, found
        return own, None

    async def come_in(self, node: Node, found: FoundPool) -> None:
        """Joins the pool; its own founder dials whoever listed it. Raises why not."""
        if node.overlay.is_founder:
            peer, addresses = found.listing.peers(node.overlay.own_peer)[0]
            await node.overlay.ensure_admitted(peer, addresses)
        else:
            await node.overlay.join()

    def avoid(self, mesh_id: MeshId, addresses: tuple[str, ...] = ()) -> None:
        """It did not let us in: for a while it is not looked for, and others at its hosts are tried last."""
        self.finder.note_shut(addresses)
        self._avoided.pop(mesh_id, None)
        while len(self._avoided) >= MAX_AVOIDED:
            del self._avoided[next(iter(self._avoided))]
        self._avoided[mesh_id] = trio.current_time() + AVOID_S

    def _besides(self) -> frozenset[MeshId]:
        now = trio.current_time()
        unwanted = frozenset(map(MeshId, self._options.pool.avoided))
        return unwanted | {mesh_id for mesh_id, until in self._avoided.items() if until > now}

    def service(self, node: Node, ports: Neighbours) -> PoolService:
        """What keeps the node's pool listed, and looks for a better one while the node is alone."""
        choice = self._options.pool
        options = PoolOptions(
            choice.is_publishing, choice.is_searching, choice.name, choice.region, choice.max_clients,
            self._takes_private,
        )  # fmt: skip
        parts = PoolParts(
            node.overlay, ports, self._relays, self.finder, lambda: tuple(node.routable_models()),
            lambda: tuple(node.router.awaited(node.routable_models())), self._besides,
        )  # fmt: skip
        return PoolService(parts, options, self._report)


def _relays(options: UpOptions, clock: Clock, entropy: Entropy) -> Relays:
    # here: who does not ask for it should not load it, a tenth of what an idle node takes
    from p2pmesh.adapters.nostr.keys import load_publisher_key
    from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings

    settings = RelaySettings(check_relays(options), load_publisher_key(options.home), Ed25519Verifier().is_signature_of)
    return NostrRelays(settings, clock, entropy)


def _listings_of(lan: "MdnsLan", identity: NodeIdentity, clock: Clock) -> Relays:
    """Pools of the local network alone: no relay is asked."""
    from p2pmesh.adapters.mdns.listings import LanListings  # here: who does not ask for it should not load it

    return LanListings(lan, identity.peer_id, clock, Ed25519Verifier().is_signature_of)


def joined_event(found: FoundPool) -> Event:
    """Which pool, and how it was found to be."""
    claims = found.checked.claims
    facts = {"mesh_id": claims.mesh_id, "name": claims.name, "nodes": claims.nodes, "rtt_us": found.checked.rtt_us}
    return Event(EventName.POOL_JOINED, facts)


@asynccontextmanager
async def open_fresh_network() -> AsyncIterator[Network]:
    """Under a key for one search, which listens nowhere."""
    async with open_network(NodeIdentity(Ed25519PrivateKey.generate()), ()) as network:
        yield network
