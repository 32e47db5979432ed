"""``p2pmesh discover``: which public pools relays list, and which of them ``up --auto`` would join. Facts for JSON.

Asks relays under a key for this one question, and dials nobody unless a choice is wanted. It needs no node and no home.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.clock import SystemEntropy, TrioClock
from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings
from p2pmesh.adapters.nostr.urls import checked_relays, is_of_own_network
from p2pmesh.app.joining import last_pool
from p2pmesh.app.pool_options import DEFAULT_RELAYS
from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.listings import RejectionCount
from p2pmesh.core.pool_choice import Wanted, bounded_score
from p2pmesh.node.pool_finder import FinderParts, PoolFinder, claims_of
from p2pmesh.ports.relays import FoundListings, ListingQuery, Relays, why_silent
from p2pmesh.wire.listing import Listing

FETCH_S = 5.0


@dataclass(frozen=True, slots=True)
class DiscoverOptions:
    """What is looked for; None and 0 ask for nothing. ``relays`` empty means the default ones."""

    home: Path
    relays: tuple[str, ...] = ()
    name: str | None = None
    model: str | None = None
    min_memory_bytes: int = 0
    region: str | None = None
    is_choosing: bool = False

    def fits(self, listing: Listing) -> bool:
        """Whether a pool is one of those that are looked for, by its own word."""
        said = listing.content
        return (
            (self.name is None or said.name == self.name)
            and (self.model is None or self.model in said.serving)
            and said.total_vram_bytes >= self.min_memory_bytes
            and (self.region is None or (said.region or "").casefold() == self.region.casefold())
        )


def run_discover(options: DiscoverOptions) -> dict[str, Any]:
    """The facts. ``PeerUnavailable(PEER_UNREACHABLE)`` where no relay answered."""
    for option, text in (("--name", options.name), ("--model", options.model), ("--region", options.region)):
        if text == "":
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"{option} is empty; leave it away to see all pools")
    return trio.run(_discover, options)


async def _discover(options: DiscoverOptions) -> dict[str, Any]:
    urls = checked_relays(options.relays or DEFAULT_RELAYS, "--nostr-relay")
    takes_private = all(is_of_own_network(url) for url in urls)
    clock, verifier = TrioClock(), Ed25519Verifier()
    settings = RelaySettings(urls, PublisherKey.fresh(), verifier.is_signature_of)
    relays = NostrRelays(settings, clock, SystemEntropy())
    found = await relays.fetch(ListingQuery(takes_private=takes_private), FETCH_S)
    if not found.answered and not found.listings:
        raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, _silence(relays))
    pools = _pools_of(found.listings)
    shown = [group for group in pools if options.fits(group[0])]
    facts = {
        "relays": [_describe_relay(relays, url, found) for url in urls],
        "pools": [_describe_pool(group, clock.unix_ms()) for group in shown],
        "hidden": len(pools) - len(shown),
        "rejections": [_describe_rejection(one) for one in found.rejections],
    }
    if options.is_choosing:
        from p2pmesh.app.pools import open_fresh_network  # here, because libp2p takes longer to load than relays to ask

        parts = FinderParts(relays, open_fresh_network, verifier, clock, SystemEntropy(), takes_private)
        facts["choice"] = await _choose(PoolFinder(parts, lambda name, fields: None), options, shown)
    return facts


def _silence(relays: Relays) -> str:
    """Why nothing was heard, in one line."""
    advice = "check the connection to the internet, or name other relays with --nostr-relay"
    return f"no relay answered ({why_silent(relays.states())}); {advice}"


Group = tuple[Listing, ...]
"""Listings of one pool, the newest first."""


def _pools_of(listings: Iterable[Listing]) -> list[Group]:
    """The pools, the best by their own word first."""
    groups: dict[str, Group] = {}
    for listing in listings:
        groups[listing.mesh_id] = (*groups.get(listing.mesh_id, ()), listing)
    return sorted(groups.values(), key=lambda group: (-bounded_score(claims_of(group[0])), group[0].mesh_id))


async def _choose(finder: PoolFinder, options: DiscoverOptions, shown: Iterable[Group]) -> dict[str, Any] | None:
    """The pool that ``up --auto`` would join of those shown; None where none answered that may be joined."""
    wanted = Wanted(options.name or "", last_pool(options.home))
    ranked = await finder.rank(tuple(listing for group in shown for listing in group), wanted)
    if not ranked:
        return None
    claims = ranked[0].checked.claims
    return {
        "mesh_id": claims.mesh_id,
        "name": claims.name or None,
        "nodes": claims.nodes,
        "serving": claims.serving,
        "score": bounded_score(claims, wanted.last_mesh),
        "round_trip_us": ranked[0].checked.rtt_us,
        "answered": len({one.mesh_id for one in ranked}),
    }


# --- facts ----------------------------------------------------------------------
def _describe_relay(relays: NostrRelays, url: str, found: FoundListings) -> dict[str, Any]:
    detail = next(state.detail for state in relays.states() if state.url == url)
    return {"url": url, "answered": url in found.answered, "detail": detail}


def _describe_pool(group: Group, now: UnixMillis) -> dict[str, Any]:
    listing = group[0]
    said = listing.content
    return {
        "mesh_id": listing.mesh_id,
        "name": said.name,
        "is_open": claims_of(listing).is_open,
        "region": said.region,
        "nodes": said.node_count,
        "memory_bytes": said.total_vram_bytes,
        "serving": list(said.serving),
        "wanted": list(said.wanted),
        "on_disk": list(said.on_disk),
        "clients": said.client_count,
        "max_clients": said.max_clients,
        "score": bounded_score(claims_of(listing)),
        "listed_s_ago": max(0, now // 1000 - listing.created_unix_s),
        "publishers": [one.publisher for one in group],
    }


def _describe_rejection(one: RejectionCount) -> dict[str, Any]:
    first = one.first
    return {"reason": first.reason.value, "count": one.count, "detail": first.detail, "publisher": first.publisher}
