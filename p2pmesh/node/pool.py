"""A member's part in its public pool: lists it when it is its turn, watches the listing otherwise, finds a lost part.

Runs ``core.publishing`` over relays and the overlay. What is listed is gathered here from what the node knows; a
search for other pools is ``node.pool_finder``'s, and to move to one the node ends and another is built, by ``app``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import (
    MAX_LISTED_CLIENTS,
    MAX_LISTED_MODELS,
    MAX_LISTED_WISHES,
    MAX_NAME_BYTES,
    MAX_PEERS,
    PROTOCOL_GENERATION,
)
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import publishing
from p2pmesh.core.draws import Draws
from p2pmesh.core.pool_choice import PoolClaims, Wanted, is_worth_moving
from p2pmesh.core.publishing import Lister, Phase, PublishingMachine, Seen
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.pool_finder import FoundPool, PoolFinder, lister_of
from p2pmesh.node.reporting import Report
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.relays import PublishReport, Relays, why_silent
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.listing import Listing, ListingContent, is_public_address

PUBLISH_S = 10.0
WITHDRAW_S = 2.0
SEARCH_FIRST_S = 15.0
SEARCH_LONGEST_S = 300.0
"""Between searches of a node that is alone, doubling; each with up to half of it more, by chance."""
MAX_SUMMED_BYTES = 2**53


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What the operator asked for. ``is_publishing``: list the pool; ``is_searching``: join a better one while alone.

    ``name`` is that of the pool that is looked for, empty for any open one; ``max_clients`` 0 is no cap.
    """

    is_publishing: bool = False
    is_searching: bool = False
    name: str = ""
    region: str | None = None
    max_clients: int = 0
    takes_private: bool = False


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What a pool service stands on; ``models`` are the names that can be routed now, ``wanted`` those asked for."""

    overlay: Overlay
    ports: Neighbours
    relays: Relays
    finder: PoolFinder
    models: Callable[[], tuple[str, ...]]
    wanted: Callable[[], tuple[str, ...]]
    besides: Callable[[], frozenset[MeshId]] = frozenset
    """Meshes that are not looked for."""


class PoolService:
    """One node's."""

    def __init__(self, parts: PoolParts, options: PoolOptions, report: Report) -> None:
        self._parts = parts
        self._options = options
        self._report = report
        seed = int.from_bytes(parts.ports.entropy.random_bytes(8), "big")
        self._draws = Draws(seed)
        self._machine = PublishingMachine(
            self._own_lister(), Draws(seed + 1), parts.ports.clock.now(), options.is_publishing, options.max_clients
        )
        self._runner: MachineRunner[publishing.Event, publishing.Effect] = MachineRunner(
            self._machine, parts.ports.clock, self._perform, publishing.DeadlinePassed()
        )
        self._was_told_to_publish = options.is_publishing
        self._nursery: trio.Nursery | None = None
        self._ours: dict[PeerId, Listing] = {}
        """The listings of our mesh that were seen last, by who made them."""
        self._told: tuple[str, str] = ("", "")
        self._replies: PublishReport | None = None
        self.found: FoundPool | None = None
        self.has_found = trio.Event()
        """Set when the node had better be in another pool, which is ``found``."""

    @property
    def is_public(self) -> bool:
        """Whether our mesh may be listed at all."""
        return self._parts.overlay.credentials.requirements.is_public

    # --- running ---------------------------------------------------------------------
    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.is_public:
                nursery.start_soon(self._runner.run)
                nursery.start_soon(self._follow)
            if self._options.is_searching:
                nursery.start_soon(self._search)

    async def change(self, *, is_publishing: bool, max_clients: int, region: str | None) -> None:
        """What the operator wants of the listing from now on. Who never was told to publish goes on watching."""
        self._was_told_to_publish = self._was_told_to_publish or is_publishing
        self._options = replace(self._options, is_publishing=is_publishing, max_clients=max_clients, region=region)
        is_listing = is_publishing or not self._was_told_to_publish
        await self._runner.handle_here(publishing.WishChanged(is_listing, max_clients))

    async def leave(self) -> None:
        """Takes our listing away, if there is one, as the node ends or moves; over within ``WITHDRAW_S``."""
        effects = self._machine.handle(publishing.Leave(), self._parts.ports.clock.now())
        if publishing.Withdraw() in effects:
            await self._parts.relays.delete(WITHDRAW_S)
            why = "this node ends" if self.found is None else "this node moves to another pool"
            self._tell("pool_unlisted", "leaving", why)

    async def _follow(self) -> None:
        """What the membership says, whenever it says something else."""
        told: publishing.PoolChanged | None = None
        changes = self._parts.overlay.board.changes
        while True:
            seen = changes.count
            change = self._read_change()
            if change != told:
                await self._runner.handle_here(change)
                told = change
            await changes.wait_beyond(seen)

    def _read_change(self) -> publishing.PoolChanged:
        others = self._parts.overlay.board.others()
        listers = [lister for one in others if (lister := self._lister_of(one)) is not None]
        clients = sum(one.memory_bytes == 0 for one in others)
        return publishing.PoolChanged(
            tuple(sorted([self._own_lister(), *listers])), clients, is_serving=bool(self._parts.models())
        )

    def _own_lister(self) -> Lister:
        credentials = self._parts.overlay.credentials
        return Lister(credentials.depth, self._parts.overlay.own_peer)

    def _lister_of(self, said: Announcement) -> Lister | None:
        """None for a member that has no passes, and could not invite."""
        peer = PeerId(said.peer_id)
        if not said.passes and peer != self._parts.overlay.credentials.founder:
            return None
        return Lister(len(said.passes), peer)

    async def _perform(self, effect: publishing.Effect) -> None:
        assert self._nursery is not None
        match effect:
            case publishing.Check():
                self._nursery.start_soon(self._check)
            case publishing.Publish():
                self._nursery.start_soon(self._publish)
            case publishing.Withdraw():
                self._nursery.start_soon(self._withdraw)
            case publishing.Dial(peer):
                self._nursery.start_soon(self._dial, peer)

    # --- relays ------------------------------------------------------------------------
    async def _check(self) -> None:
        found = await self._parts.finder.fetch()
        ours = [one for one in found.listings if one.mesh_id == self._parts.overlay.mesh_id]
        if not found.answered and not ours:
            if self._options.is_publishing and self._machine.publisher is None:
                silence = why_silent(self._parts.relays.states())
                self._tell("pool_unlisted", "no_relay", f"no relay answered ({silence}); they are asked again")
            await self._runner.handle_here(publishing.CheckFailed())
            return
        by_lister: dict[Lister, list[Listing]] = {}
        for one in ours:
            if one.publisher != self._parts.relays.publisher:
                by_lister.setdefault(self._lister_in(one), []).append(one)
        self._ours = {lister.peer: listings[0] for lister, listings in by_lister.items()}
        seen = tuple(Seen(lister, _loosest_cap(listings)) for lister, listings in sorted(by_lister.items()))
        await self._runner.handle_here(publishing.Checked(seen))
        if self._machine.phase is Phase.WATCHING and self._machine.publisher is not None:
            self._tell("pool_watched", self._machine.publisher, "")

    def _lister_in(self, listing: Listing) -> Lister:
        return Lister(len(listing.invite.passes), lister_of(listing, self._parts.ports.verifier))

    async def _publish(self) -> None:
        content = self._content()
        if content is None:
            await self._runner.handle_here(publishing.Published(is_taken=False))
            return
        self._replies = await self._parts.relays.publish(content, PUBLISH_S)
        if self._machine.phase is not Phase.PUBLISHING:  # it was withdrawn meanwhile, and may have come after that
            await self._parts.relays.delete(WITHDRAW_S)
            return
        taken = self._replies.accepted
        await self._runner.handle_here(publishing.Published(is_taken=taken > 0))
        if taken:
            facts = {"name": content.name or "", "region": content.region or "", "relays": taken}
            self._tell("pool_listed", "", "", facts)
        else:
            refused = "; ".join(f"{one.url}: {one.detail or one.outcome.value}" for one in self._replies.replies)
            self._tell("pool_unlisted", "no_relay", f"no relay took the listing ({refused}); it is tried again")

    async def _withdraw(self) -> None:
        await self._parts.relays.delete(PUBLISH_S)
        if self._machine.phase is Phase.FULL:
            self._tell("pool_unlisted", "full", "the pool has as many clients as --max-clients allows")
        elif self._machine.phase is Phase.UNLISTED:
            self._tell("pool_unlisted", "unpublished", "its operator wants no listing by it any more")
        else:
            self._tell("pool_unlisted", "another", "another member lists the pool")

    async def _dial(self, peer: PeerId) -> None:
        listing = self._ours.get(peer)
        is_reached = False
        if listing is not None:
            addresses = dict(listing.peers(self._parts.overlay.credentials.founder)).get(peer, ())
            try:
                await self._parts.overlay.ensure_admitted(peer, addresses)
                is_reached = True
            except P2PMeshError:
                pass  # it is gone, or no member: the machine hears so
        await self._runner.handle_here(publishing.Dialled(peer, is_reached))
        await self._runner.handle_here(self._read_change())

    # --- what is listed ------------------------------------------------------------------
    def _content(self) -> ListingContent | None:
        """What there is to list now; None, and a word why, where strangers could not join by it."""
        overlay = self._parts.overlay
        addresses = tuple(text for text in self._parts.ports.network.addresses() if self._is_listable(text))
        if not addresses:
            text = "no address of this node can be dialled from outside; open a port and give it with --announce"
            self._tell("pool_unlisted", "no_address", text)
            return None
        invite = overlay.credentials.listed_invite(addresses)
        if invite is None:
            text = "this node may not invite into the pool: its way to the founder is too long, or over"
            self._tell("pool_unlisted", "no_invite", text)
            return None
        members = (overlay.board.own(), *overlay.board.others())
        nodes = [one for one in members if one.memory_bytes or one.peer_id == overlay.own_peer]
        on_disk = dict.fromkeys(held.name for one in nodes for held in one.on_disk)
        return ListingContent(
            invite_token=invite,
            serving=_names(self._parts.models(), MAX_LISTED_MODELS),
            total_vram_bytes=min(MAX_SUMMED_BYTES, sum(one.memory_bytes for one in nodes)),
            node_count=min(MAX_PEERS, len(nodes)),
            mesh_id=overlay.mesh_id,
            protocol_generation=PROTOCOL_GENERATION,
            wanted=_names(self._parts.wanted(), MAX_LISTED_WISHES),
            on_disk=_names(tuple(on_disk), MAX_LISTED_MODELS),
            client_count=min(MAX_LISTED_CLIENTS, len(members) - len(nodes)),
            max_clients=self._options.max_clients or self._machine.learned_cap,
            name=overlay.credentials.requirements.pool_name or None,
            region=self._options.region or self._listed_region(),
        )

    def _listed_region(self) -> str | None:
        """What whoever listed the pool before us said."""
        return next((one.content.region for one in self._ours.values() if one.content.region), None)

    def _is_listable(self, address: str) -> bool:
        return self._options.takes_private or is_public_address(address)

    def _tell(self, name: str, reason: str, message: str, facts: dict[str, Any] | None = None) -> None:
        """Only what is new: a listing is renewed each minute."""
        if self._told == (name, reason):
            return
        self._told = (name, reason)
        if name == "pool_watched":
            facts = {"peer_id": reason}
        elif facts is None:
            facts = {"reason": reason, "message": message}
        self._report(name, {"mesh_id": self._parts.overlay.mesh_id, **facts})

    # --- other pools -----------------------------------------------------------------------
    async def _search(self) -> None:
        """While nobody else is here: a pool that is larger, or of two that are alone the one to go to."""
        wait_s = SEARCH_FIRST_S
        while True:
            await trio.sleep(wait_s * (1 + self._draws.below(1000) / 2000))
            if self._parts.overlay.board.others():
                wait_s = SEARCH_FIRST_S
                continue
            besides = self._parts.besides() | {self._parts.overlay.mesh_id}
            found = await self._parts.finder.search(Wanted(self._options.name, besides=besides))
            better = next((one for one in found.pools if self._is_better(one)), None)
            if better is not None and not self._parts.overlay.board.others():
                self.found = better
                self.has_found.set()
                return
            wait_s = min(2 * wait_s, SEARCH_LONGEST_S)

    def _is_better(self, found: FoundPool) -> bool:
        own = PoolClaims(MeshId(self._parts.overlay.mesh_id), self._options.name)
        return not self.is_public or is_worth_moving(own, found.checked.claims)

    # --- what is shown -----------------------------------------------------------------------
    def describe(self) -> dict[str, Any]:
        """For the status: the pool, who lists it, and when that is due again."""
        machine, requirements = self._machine, self._parts.overlay.credentials.requirements
        due, now = machine.next_publish_at, self._parts.ports.clock.now()
        return {
            "is_public": self.is_public,
            "name": requirements.pool_name,
            "phase": machine.phase.value if self.is_public else None,
            "publisher": machine.publisher,
            "next_publish_s": None if due is None else max(0, due - now) / MICROS_PER_SECOND,
            "relays": [
                {"url": one.url, "phase": one.phase.value, "detail": one.detail, "retry_s": one.retry_s}
                for one in self._parts.relays.states()
            ],
        }


def _loosest_cap(listings: list[Listing]) -> int:
    """Of one member's listing and copies of it: whoever copies it with a low cap is to keep nobody from listing."""
    caps = [one.content.max_clients for one in listings]
    return 0 if 0 in caps else max(caps)


def _names(names: tuple[str, ...], limit: int) -> tuple[str, ...]:
    return tuple(name for name in names if len(name.encode()) <= MAX_NAME_BYTES)[:limit]
