"""Open pools of the local network behind the port of public listings: published and found by DNS-SD, no relay asked."""

import hashlib
from dataclasses import replace

import trio

from p2pmesh.adapters.mdns.lan import MdnsLan
from p2pmesh.core.listings import RejectionCount
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.relays import (
    FoundListings,
    ListingQuery,
    PublishOutcome,
    PublishReport,
    RelayPhase,
    RelayReply,
    RelayState,
)
from p2pmesh.wire.lan_record import LanRecord, without_loopback
from p2pmesh.wire.listing import (
    KIND,
    LIFE_S,
    Listing,
    ListingContent,
    ListingEvent,
    ReadingRules,
    Rejection,
    RejectionReason,
    decode_listing,
    encode_content,
    listing_tags,
)
from p2pmesh.wire.signed import Verify

URL = "mdns"
SEARCH_S = 3.0
"""Answers to a question on the link take a second or two; a fetch that finds nothing waits for them."""
SETTLE_S = 0.3
"""After the first: all that are there answer within a tenth of a second or two."""


class LanListings:
    """Implements ``ports.relays.Relays``. A publisher is known by its peer: there is no Nostr key here."""

    def __init__(self, lan: MdnsLan, own_peer: str, clock: Clock, verify: Verify) -> None:
        self._lan = lan
        self._clock = clock
        self._verify = verify
        self.publisher = publisher_of(own_peer)

    async def publish(self, content: ListingContent, timeout_s: float) -> PublishReport:
        """Puts the listing on the link; it stands until it is deleted."""
        encode_content(content)  # refused here, as at any relay
        self._lan.list_pool(content)
        await trio.lowlevel.checkpoint()
        return self._report()

    async def delete(self, timeout_s: float) -> PublishReport:
        """Takes it off the link."""
        self._lan.list_pool(None)
        await trio.lowlevel.checkpoint()
        return self._report()

    async def fetch(self, query: ListingQuery, timeout_s: float) -> FoundListings:
        """What is on the link now, or comes within a moment where nothing is. Private addresses count here."""
        with trio.move_on_after(min(timeout_s, SEARCH_S)):
            while not any(record.listing for record in self._lan.seen()):
                await self._lan.wait_changed_beyond(self._lan.changes)
            await trio.sleep(SETTLE_S)
        read = [self._read(record) for record in self._lan.seen() if record.listing is not None]
        found = tuple(one for one in read if isinstance(one, Listing))
        rejected = tuple(RejectionCount(one, 1) for one in read if isinstance(one, Rejection))
        wanted = tuple(one for one in found if not query.publishers or one.publisher in query.publishers)
        return FoundListings(wanted, rejected, (URL,) if self._lan.state().is_listening else ())

    def states(self) -> tuple[RelayState, ...]:
        """One, for the link."""
        state = self._lan.state()
        phase = RelayPhase.ANSWERING if state.is_listening else RelayPhase.WAITING
        return (RelayState(URL, phase, state.detail),)

    def _read(self, record: LanRecord) -> Listing | Rejection:
        """By the rules of a public listing, as if it were one of now."""
        assert record.listing is not None
        now = self._clock.unix_ms()
        created = now // 1000
        event = ListingEvent(
            "", publisher_of(record.peer), created, KIND, listing_tags(created + LIFE_S),
            encode_content(record.listing),
        )  # fmt: skip
        listing = decode_listing(event, ReadingRules(now, self._verify, takes_private=True))
        return listing if self._lan.is_alone or isinstance(listing, Rejection) else _without_loopback(listing)

    def _report(self) -> PublishReport:
        state = self._lan.state()
        outcome = PublishOutcome.ACCEPTED if state.is_listening else PublishOutcome.UNREACHABLE
        return PublishReport((RelayReply(URL, outcome, state.detail),))


def _without_loopback(listing: Listing) -> Listing | Rejection:
    """A record of another machine must not lead to services of this one."""
    content = replace(listing.content, addresses=without_loopback(listing.content.addresses))
    invite = replace(
        listing.invite,
        addresses=without_loopback(listing.invite.addresses),
        relay_addresses=without_loopback(listing.invite.relay_addresses),
    )
    if not (content.addresses or invite.addresses or invite.relay_addresses):
        return Rejection(RejectionReason.NO_ADDRESS, "it names no address of another machine", listing.publisher)
    return replace(listing, content=content, invite=invite)


def publisher_of(peer: str) -> str:
    """64 hex digits, as the port has them, that stand for a peer."""
    return hashlib.sha256(peer.encode()).hexdigest()
