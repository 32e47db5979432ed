"""What is known of public listings: of each publisher the newest that is of now, and what was left out and why.

Relays are not trusted: one may give what was replaced, or a thousand made up listings. So the newest of a publisher is
remembered also when it is over, as long as there is room, and the number of publishers is bounded. Form and signature
of a listing are ``wire.listing``'s; which pool is the best is not decided here.
"""

from dataclasses import dataclass, replace

from p2pmesh.base.limits import MAX_LISTINGS
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire.listing import (
    Listing,
    ListingEvent,
    ReadingRules,
    Rejection,
    RejectionReason,
    VerifyEvent,
    decode_event,
    decode_listing,
)

_NOT_WORTH_TELLING = frozenset({RejectionReason.SUPERSEDED})
"""Every relay has the same listing: most come more than once."""


@dataclass(frozen=True, slots=True)
class _Known:
    listing: Listing
    event_id: str
    round: int
    """Of the fetch that gave it last."""

    def is_replaced_by(self, event: ListingEvent) -> bool:
        """The rule of NIP-01: the later one; of the same second, the one with the lower id."""
        return (-event.created_unix_s, event.event_id) < (-self.listing.created_unix_s, self.event_id)


@dataclass(frozen=True, slots=True)
class RejectionCount:
    """How often a reason was met, with the first case of it."""

    first: Rejection
    count: int


class ListingsView:
    """The listings of one reader, over any number of fetches.

    What is shown is what the last fetch gave; what earlier ones gave keeps older listings out.
    """

    __slots__ = ("_known", "_max_listings", "_rejected", "_round")

    def __init__(self, max_listings: int = MAX_LISTINGS) -> None:
        self._max_listings = max_listings
        self._known: dict[str, _Known] = {}
        self._rejected: dict[RejectionReason, RejectionCount] = {}
        self._round = 0

    def begin(self) -> None:
        """A new fetch: what it does not give was taken away at the relays."""
        self._rejected.clear()
        self._round += 1

    def take(self, event_text: str, rules: ReadingRules, verify_event: VerifyEvent) -> Rejection | None:
        """Takes in the JSON text of an event as it came from a relay; None where it counts from now on."""
        event = decode_event(event_text, verify_event)
        if isinstance(event, Rejection):
            self.reject(event)
            return event
        return self.take_event(event, rules)

    def take_event(self, event: ListingEvent, rules: ReadingRules) -> Rejection | None:
        """The same of an event whose id and signature were checked."""
        rejection = self._take(event, rules)
        if rejection is not None:
            self.reject(rejection)
        return rejection

    def reject(self, rejection: Rejection) -> None:
        """Counts what was left out elsewhere."""
        if rejection.reason not in _NOT_WORTH_TELLING:
            before = self._rejected.get(rejection.reason)
            first = rejection if before is None else before.first
            self._rejected[rejection.reason] = RejectionCount(first, 1 if before is None else before.count + 1)

    def listings(self, now: UnixMillis) -> tuple[Listing, ...]:
        """Those of now that this fetch gave, newest first, then by publisher."""
        current = (known.listing for known in self._known.values() if known.round == self._round)
        listings = (listing for listing in current if not listing.is_over(now))
        return tuple(sorted(listings, key=lambda one: (-one.created_unix_s, one.publisher)))

    def rejections(self) -> tuple[RejectionCount, ...]:
        """What was left out of this fetch, the commonest reason first."""
        return tuple(sorted(self._rejected.values(), key=lambda one: (-one.count, one.first.reason)))

    def _take(self, event: ListingEvent, rules: ReadingRules) -> Rejection | None:
        known = self._known.get(event.publisher)
        if known is not None and not known.is_replaced_by(event):
            if known.event_id == event.event_id:
                self._known[event.publisher] = replace(known, round=self._round)
            return Rejection(RejectionReason.SUPERSEDED, "a newer one is known", event.publisher)
        listing = decode_listing(event, rules)
        if isinstance(listing, Rejection):
            return listing
        if known is None and not self._has_room(rules.now):
            text = f"listings of {self._max_listings} publishers are known"
            return Rejection(RejectionReason.TOO_MANY, text, event.publisher)
        self._known[event.publisher] = _Known(listing, event.event_id, self._round)
        return None

    def _has_room(self, now: UnixMillis) -> bool:
        if len(self._known) >= self._max_listings:
            # Only now, because what is over still keeps an older one out that a relay might give.
            self._known = {key: known for key, known in self._known.items() if not known.listing.is_over(now)}
        return len(self._known) < self._max_listings
