"""What is known of public listings: of each publisher the newest that is of now, and what was left out and why.

Relays are not trusted: one may give what was replaced, or a thousand made up listings. So the newest of a publisher is
remembered also when it is over, as long as there is room, and the number of publishers is bounded. Form and signature
of a listing are ``wire.listing``'s; which pool is the best is not decided here.
"""

from dataclasses import dataclass

from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_LISTINGS
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
class RejectionCount:
    """How often a reason was met, with the first case of it."""

    first: Rejection
    count: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """The newest event of a publisher."""

    created_unix_s: int
    event_id: str
    is_over_at: UnixMillis


class NewestEvents:
    """Of each publisher the newest listing that was seen, over any number of fetches.

    Kept also when it is over, as long as there is room: an older one that a relay still gives does not come back.
    """

    __slots__ = ("_marks", "_max_publishers")

    def __init__(self, max_publishers: int = 2 * MAX_LISTINGS) -> None:
        self._max_publishers = max_publishers
        self._marks: dict[str, _Mark] = {}

    def replaces(self, event: ListingEvent) -> bool:
        """Whether a newer one is known, by NIP-01: the later; of the same second, the one with the lower id."""
        mark = self._marks.get(event.publisher)
        if mark is None:
            return False
        return (-mark.created_unix_s, mark.event_id) < (-event.created_unix_s, event.event_id)

    def note(self, event: ListingEvent, listing: Listing, now: UnixMillis) -> None:
        """This one is the newest of its publisher."""
        if event.publisher not in self._marks and len(self._marks) >= self._max_publishers:
            self._marks = {publisher: mark for publisher, mark in self._marks.items() if now <= mark.is_over_at}
            if len(self._marks) >= self._max_publishers:
                return
        over_at = UnixMillis(listing.expires_unix_s * 1000 + CLOCK_SKEW_MS)
        self._marks[event.publisher] = _Mark(event.created_unix_s, event.event_id, over_at)


class ListingsView:
    """The listings of one fetch, from however many relays. ``newest`` is what the reader remembers of earlier ones."""

    __slots__ = ("_listings", "_max_listings", "_newest", "_rejected")

    def __init__(self, newest: NewestEvents | None = None, max_listings: int = MAX_LISTINGS) -> None:
        self._newest = newest or NewestEvents()
        self._max_listings = max_listings
        self._listings: dict[str, Listing] = {}
        self._rejected: dict[RejectionReason, RejectionCount] = {}

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
        """Those of now, newest first, then by publisher."""
        listings = (listing for listing in self._listings.values() if not listing.is_over(now))
        return tuple(sorted(listings, key=lambda one: (-one.created_unix_s, one.publisher)))

    def rejections(self) -> tuple[RejectionCount, ...]:
        """What was left out, the commonest reason first."""
        return tuple(sorted(self._rejected.values(), key=lambda one: (-one.count, one.first.reason)))

    def _take(self, event: ListingEvent, rules: ReadingRules) -> Rejection | None:
        if self._newest.replaces(event):
            return Rejection(RejectionReason.SUPERSEDED, "a newer one is known", event.publisher)
        listing = decode_listing(event, rules)
        if isinstance(listing, Rejection):
            return listing
        if event.publisher not in self._listings and len(self._listings) >= self._max_listings:
            text = f"more than {self._max_listings} publishers have listings"
            return Rejection(RejectionReason.TOO_MANY, text, event.publisher)
        self._listings[event.publisher] = listing
        self._newest.note(event, listing, rules.now)
        return None
