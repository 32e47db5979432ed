"""Finds a public pool to join: asks relays, dials what they list, and says which pools answered, the best first.

Runs ``core.pool_choice`` over a network of its own, under a key for this one search: strangers that are asked learn
nothing of the node, and its own connections are left alone. It needs no node, so a pool can be found before one is
built. Joining is ``app``'s and ``node.overlay``'s.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.hosts import hosts_of
from p2pmesh.core.pool_choice import (
    Candidate,
    Checked,
    DeadlinePassed,
    Effect,
    Event,
    Listed,
    PoolClaims,
    PoolRace,
    Probe,
    Reached,
    Unreached,
    Wanted,
    by_turns,
)
from p2pmesh.core.refusals import TELL_AGAIN_US
from p2pmesh.node.reporting import Report
from p2pmesh.node.route_queries import query_routes
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.identity import Verifier
from p2pmesh.ports.network import Network
from p2pmesh.ports.relays import FoundListings, ListingQuery, Relays
from p2pmesh.wire.listing import Listing, RejectionReason
from p2pmesh.wire.messages.admission import RouteTable

FETCH_S = 4.0
PROBE_DIAL_S = 2.5
MAX_TOLD_REASONS = 256
DOUBTED_FOR_US = 600 * MICROS_PER_SECOND
MAX_DOUBTED = 2048

OpenNetwork = Callable[[], AbstractAsyncContextManager[Network]]
"""A network under a fresh key that listens nowhere."""


@dataclass(frozen=True, slots=True)
class FinderParts:
    """The world that pools are looked for in. ``takes_private``: relays and pools are of the operator's own network."""

    relays: Relays
    open_network: OpenNetwork
    verifier: Verifier
    clock: Clock
    entropy: Entropy
    takes_private: bool = False


@dataclass(frozen=True, slots=True)
class FoundPool:
    """A pool that answered: its listing, and what it said itself."""

    listing: Listing
    checked: Checked

    @property
    def mesh_id(self) -> MeshId:
        """The overlay."""
        return self.listing.mesh_id


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found, the best first, of ``listed`` pools; ``has_answer`` where a relay answered at all."""

    pools: tuple[FoundPool, ...]
    listed: int
    has_answer: bool
    took_ms: int


class RejectionTeller:
    """Tells of each reason once an hour, with the first case and how many there were."""

    def __init__(self, clock: Clock, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._told: dict[tuple[RejectionReason | str, str], int] = {}

    def tell(self, reason: RejectionReason | str, detail: str, publisher: str, count: int = 1) -> None:
        """A case, unless the like of the same publisher was told lately."""
        now = self._clock.now()
        key = (reason, publisher)
        if key in self._told and now - self._told[key] < TELL_AGAIN_US:
            return
        self._told.pop(key, None)
        while len(self._told) >= MAX_TOLD_REASONS:
            del self._told[next(iter(self._told))]
        self._told[key] = now
        facts = {"reason": str(reason), "detail": detail, "publisher": publisher, "count": count}
        self._report("listings_rejected", facts)


class PoolFinder:
    """Searches, one after another."""

    def __init__(self, parts: FinderParts, report: Report) -> None:
        self._parts = parts
        self.rejections = RejectionTeller(parts.clock, report)
        self._doubted: dict[str, Micros] = {}
        """Listings, by publisher, that were asked and not reached, and until when that counts."""
        self._shut_hosts: dict[str, Micros] = {}
        """Where pools were reached that did not let us in, and until when that counts."""

    async def fetch(self) -> FoundListings:
        """Public pools that relays list now, checked but for what only dialling shows.

        What a relay gave counts also where it never came to an end: it may be flooded.
        """
        found = await self._parts.relays.fetch(ListingQuery(takes_private=self._parts.takes_private), FETCH_S)
        for rejected in found.rejections:
            first = rejected.first
            self.rejections.tell(first.reason, first.detail, first.publisher, rejected.count)
        return found

    async def search(self, wanted: Wanted) -> Search:
        """Ends within the time of a fetch and of a race (4 + 7 s), whatever is listed."""
        started = self._parts.clock.now()
        found = await self.fetch()
        ranked = await self.rank(found.listings, wanted)
        took_ms = (self._parts.clock.now() - started) // 1000
        return Search(ranked, len(found.listings), bool(found.answered or found.listings), took_ms)

    async def rank(self, listings: tuple[Listing, ...], wanted: Wanted) -> tuple[FoundPool, ...]:
        """Those whose pools answer and may be joined, the best first; ends within the time of a race."""
        by_key = {one.publisher: one for one in listings}
        race = PoolRace(wanted, self._parts.clock.now(), self._parts.entropy.random_bytes(16))
        ranked = await self._run(race, by_key) if by_key else ()
        return self.spread([FoundPool(by_key[one.key], one) for one in ranked])

    def spread(self, ranked: list[FoundPool]) -> tuple[FoundPool, ...]:
        """The same pools: of several at one public host all but the best after those elsewhere, and last whatever is at
        a host that did not let us in lately. One that answers for a hundred pools and admits to none costs an attempt.
        """
        spread = by_turns(ranked, lambda one: one.listing.addresses, 1)
        return tuple(sorted(spread, key=lambda one: self._is_shut(one.listing.addresses)))

    def note_shut(self, addresses: tuple[str, ...]) -> None:
        """A pool at these addresses was reached, and did not let us in."""
        _note_until(self._shut_hosts, hosts_of(addresses), Micros(self._parts.clock.now() + DOUBTED_FOR_US))

    def _is_shut(self, addresses: tuple[str, ...]) -> bool:
        now = self._parts.clock.now()
        return any(self._shut_hosts.get(host, now) > now for host in hosts_of(addresses))

    async def _run(self, race: PoolRace, listings: dict[str, Listing]) -> tuple[Checked, ...]:
        async with self._parts.open_network() as network:
            running = _Running(self._parts, network, listings, self._doubts())
            async with trio.open_nursery() as nursery:
                running.start(race, nursery)
                await running.is_over.wait()
                nursery.cancel_scope.cancel()
        self._doubt(running.unreached)
        return running.ranked

    def _doubts(self) -> frozenset[str]:
        now = self._parts.clock.now()
        return frozenset(key for key, until in self._doubted.items() if now < until)

    def _doubt(self, keys: set[str]) -> None:
        _note_until(self._doubted, keys, Micros(self._parts.clock.now() + DOUBTED_FOR_US))


def _note_until(noted: dict[str, Micros], keys: Iterable[str], until: Micros) -> None:
    """The oldest go where there are too many."""
    for key in sorted(keys):
        noted.pop(key, None)
        noted[key] = until
    while len(noted) > MAX_DOUBTED:
        del noted[next(iter(noted))]


class _Running:
    """One race under trio."""

    def __init__(
        self, parts: FinderParts, network: Network, listings: dict[str, Listing], doubted: frozenset[str]
    ) -> None:
        self._doubted = doubted
        self.unreached: set[str] = set()
        """Asked, and not answered so far."""
        self._parts = parts
        self._network = network
        self._listings = listings
        self._nursery: trio.Nursery
        self._runner: MachineRunner[Event, Effect]
        self.ranked: tuple[Checked, ...] = ()
        self.is_over = trio.Event()

    def start(self, race: PoolRace, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._runner = MachineRunner(race, self._parts.clock, self._perform, DeadlinePassed(), 2048)
        self._runner.post(Listed(tuple(map(self._candidate, self._listings.values()))))
        nursery.start_soon(self._runner.run)

    async def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Probe):
            self.unreached.add(effect.key)
            self._nursery.start_soon(self._probe, self._listings[effect.key])
        else:
            self.ranked = effect.ranked
            self.is_over.set()

    def _candidate(self, listing: Listing) -> Candidate:
        addresses = tuple(text for _, found in self._peers(listing) for text in found)
        return Candidate(listing.publisher, claims_of(listing), addresses, listing.publisher in self._doubted)

    def _peers(self, listing: Listing) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
        founder = self._parts.verifier.peer_id_of(listing.invite.requirements.founder_key)
        return listing.peers(founder)

    async def _probe(self, listing: Listing) -> None:
        """Whoever made its invite is asked: anybody may copy a listing and put addresses of their own before."""
        known = self._peers(listing)
        lister = lister_of(listing, self._parts.verifier)
        peer, addresses = next((one for one in known if one[0] == lister), known[0])
        try:
            started = self._parts.clock.now()
            await self._network.dial(peer, addresses, PROBE_DIAL_S)
            asked = self._parts.clock.now()
            table = await query_routes(self._network, peer, addresses)
        except P2PMeshError:
            await self._runner.put(Unreached(listing.publisher))
            return
        answer_us = self._parts.clock.now() - asked
        rtt_s = self._network.round_trip_s(peer)
        rtt_us = answer_us if rtt_s is None else int(rtt_s * MICROS_PER_SECOND)
        checked = _checked(listing, table, max(1, min(rtt_us, self._parts.clock.now() - started)))
        if checked is None:
            await self._runner.put(Unreached(listing.publisher))
        else:
            self.unreached.discard(listing.publisher)
            await self._runner.put(Reached(checked))


def lister_of(listing: Listing, verifier: Verifier) -> PeerId:
    """The member that made the invite of a listing, the founder or another."""
    invite = listing.invite
    return verifier.peer_id_of(invite.issuer_key or invite.requirements.founder_key)


def claims_of(listing: Listing) -> PoolClaims:
    """What a listing claims of its pool; the name is its mesh's own."""
    said = listing.content
    return PoolClaims(
        listing.mesh_id, listing.invite.requirements.pool_name, said.node_count, len(said.serving), len(said.wanted),
        said.client_count, said.max_clients,
    )  # fmt: skip


def _checked(listing: Listing, table: RouteTable, rtt_us: int) -> Checked | None:
    """What the pool says itself; of its cap alone the listing is believed, which can only harm itself by it."""
    if table.mesh_id != listing.mesh_id:
        return None
    said = claims_of(listing)
    claims = PoolClaims(
        said.mesh_id, said.name, max(1, table.node_count), len(table.routes), 0, said.clients, said.max_clients
    )
    return Checked(listing.publisher, claims, rtt_us)
