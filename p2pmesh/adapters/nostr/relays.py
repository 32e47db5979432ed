"""``ports.relays`` over the configured relays: each visited by a task of its own, with its own pauses and limits.

Owns who is asked when and what is made of the answers. One visit is ``session``'s, what a listing must be like
``wire.listing``'s.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import trio

from p2pmesh.adapters.nostr.keys import PublisherKey, verify_event
from p2pmesh.adapters.nostr.limits import NOTHING_STATED, StatedLimits, fetch_limits
from p2pmesh.adapters.nostr.messages import EventMessage
from p2pmesh.adapters.nostr.session import RelaySession, visit
from p2pmesh.adapters.nostr.streams import RelayUnavailable
from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_LISTING_CONTENT_BYTES, MAX_LISTING_EVENTS, MAX_LISTING_LIFE_S
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, micros
from p2pmesh.core.listings import ListingsView, NewestEvents
from p2pmesh.core.relay_pace import CHANCES, RelayPace
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.relays import (
    FoundListings,
    ListingQuery,
    PublishOutcome,
    PublishReport,
    RelayPhase,
    RelayReply,
    RelayState,
)
from p2pmesh.wire.listing import (
    DELETION_KIND,
    KIND,
    LIFE_S,
    SERVICE,
    ListingContent,
    ReadingRules,
    Rejection,
    RejectionReason,
    deletion_tags,
    encode_content,
    fitted,
    listing_tags,
)
from p2pmesh.wire.signed import Verify

_T = TypeVar("_T")

LIMITS_KEPT_S = 3600.0
GRACE_S = 1.5
"""What slower relays get once one has given all it had."""

_PAGE_EVENTS = 500
_SHORT_PAGE = 20
"""After fewer new ones there are no more: no relay gives less at a time where it has more."""
_MAX_PAGES = 8
_EVENT_FRAME_BYTES = 1024
"""What stands round a content in a message: ids, tags, signature; quotes in it are escaped besides."""
_REFUSALS = frozenset(
    {
        PublishOutcome.BLOCKED,
        PublishOutcome.AUTH_REQUIRED,
        PublishOutcome.POW_REQUIRED,
        PublishOutcome.INVALID,
        PublishOutcome.TOO_LARGE,
    }
)


@dataclass
class _Relay:
    """What is known of one relay."""

    url: str
    reach: RelayPace = field(default_factory=RelayPace)
    taking: RelayPace = field(default_factory=RelayPace)
    limits: StatedLimits = NOTHING_STATED
    limits_until: Micros | None = None
    was_asked: bool = False
    event_id: str = ""
    """Of our listing there."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Which relays, under which key, and who checks invites in listings."""

    urls: tuple[str, ...]
    key: PublisherKey
    verify: Verify


def trust_of_relays() -> ssl.SSLContext:
    """Whose certificates are believed of a relay: those of the package that HTTP clients here use."""
    return httpx.create_ssl_context(trust_env=False)


class NostrRelays:
    """Implements ``ports.relays.Relays``. Nothing is contacted before the first call."""

    def __init__(self, settings: RelaySettings, clock: Clock, entropy: Entropy) -> None:
        self._key = settings.key
        self._verify = settings.verify
        self._relays = tuple(_Relay(url) for url in settings.urls)
        self._clock = clock
        self._entropy = entropy
        self._trust = trust_of_relays()
        self._newest = NewestEvents()
        self._last_created_s = 0

    @property
    def publisher(self) -> str:
        """Our own public key."""
        return self._key.public

    async def publish(self, content: ListingContent, timeout_s: float) -> PublishReport:
        """Puts our listing at every relay that answers in time."""
        encode_content(content)
        created = self._next_created()

        async def put(relay: _Relay) -> RelayReply:
            return await self._put_listing(relay, content, created)

        return await self._at_each(put, timeout_s, keeps_pause=True)

    async def delete(self, timeout_s: float) -> PublishReport:
        """Asks every relay that we published at, or might have in an earlier life, to forget our listing."""
        created = self._next_created()
        ids = tuple(dict.fromkeys(relay.event_id for relay in self._relays if relay.event_id))
        event = self._key.sign(DELETION_KIND, "", deletion_tags(self.publisher, ids), created)

        async def put(relay: _Relay) -> RelayReply:
            reply = await self._put(relay, event)
            if reply.outcome is PublishOutcome.ACCEPTED:
                relay.event_id = ""
            return reply

        return await self._at_each(put, timeout_s, keeps_pause=False)

    async def fetch(self, query: ListingQuery, timeout_s: float) -> FoundListings:
        """What the relays have, as far as it came in time."""
        view = ListingsView(self._newest)
        answered: set[str] = set()
        known: set[int] = set()

        async def read(relay: _Relay, scope: trio.CancelScope) -> None:
            if await self._read(relay, query, _Taken(view, known)):
                answered.add(relay.url)
                scope.deadline = min(scope.deadline, trio.current_time() + GRACE_S)

        with trio.move_on_after(timeout_s) as scope:
            async with trio.open_nursery() as nursery:
                for relay in self._relays:
                    if not relay.reach.wait_us(self._clock.now()):
                        nursery.start_soon(read, relay, scope)
        late = scope.cancelled_caught and not answered
        for relay in self._relays if late else ():
            self._note_late(relay)
        in_order = tuple(relay.url for relay in self._relays if relay.url in answered)
        return FoundListings(view.listings(self._clock.unix_ms()), view.rejections(), in_order)

    def states(self) -> tuple[RelayState, ...]:
        """Of each relay."""
        return tuple(self._state_of(relay) for relay in self._relays)

    # --- one relay ------------------------------------------------------------
    async def _put_listing(self, relay: _Relay, content: ListingContent, created: int) -> RelayReply:
        await self._learn_limits(relay)
        limits = relay.limits
        ahead_s = created - self._clock.unix_ms() // 1000
        if limits.max_ahead_s is not None and ahead_s > limits.max_ahead_s:
            return RelayReply(relay.url, PublishOutcome.WAITING, f"it takes nothing dated {ahead_s} s ahead")
        room = _content_room(limits)
        smaller = fitted(content, room)
        if smaller is None:
            text = f"a listing needs more than the {room} bytes that it takes"
            self._note_reply(relay, PublishOutcome.TOO_LARGE, text)
            return RelayReply(relay.url, PublishOutcome.TOO_LARGE, text)
        event = self._key.sign(KIND, encode_content(smaller), listing_tags(created + LIFE_S), created)
        reply = await self._put(relay, event)
        if reply.outcome is PublishOutcome.ACCEPTED:
            relay.event_id = event[0]
        return reply

    async def _put(self, relay: _Relay, event: tuple[str, str]) -> RelayReply:
        async def say(session: RelaySession) -> RelayReply:
            ok = await session.publish(*event)
            detail = _with_hint(ok.outcome, ok.detail)
            self._note_reply(relay, ok.outcome, detail)
            return RelayReply(relay.url, ok.outcome, detail)

        try:
            return await self._visit(relay, say)
        except RelayUnavailable as error:
            return RelayReply(relay.url, PublishOutcome.UNREACHABLE, str(error))

    async def _read(self, relay: _Relay, query: ListingQuery, taken: "_Taken") -> bool:
        """Whether the relay gave all it had."""
        rules = ReadingRules(self._clock.unix_ms(), self._verify, query.takes_private)
        reading = _Reading(taken, rules)

        async def ask(session: RelaySession) -> bool:
            until: int | None = None
            for _ in range(_MAX_PAGES):
                end = await session.request(_filter_of(query, rules, until), reading.take)
                if not end.is_complete:
                    relay.reach.detail = end.detail
                    return False
                until = reading.next_page()
                if until is None:
                    return True
            return False

        try:
            return await self._visit(relay, ask)
        except RelayUnavailable:
            return False

    async def _visit(self, relay: _Relay, act: Callable[[RelaySession], Awaitable[_T]]) -> _T:
        relay.was_asked = True

        def answer(challenge: str) -> tuple[str, str]:
            return self._key.answer(relay.url, challenge, self._clock.unix_ms() // 1000)

        try:
            result = await visit(relay.url, self._trust, answer, act)
        except RelayUnavailable as error:
            relay.reach.fail(str(error), self._clock.now(), self._chance())
            raise
        relay.reach.succeed()
        return result

    async def _learn_limits(self, relay: _Relay) -> None:
        now = self._clock.now()
        if relay.limits_until is None or relay.limits_until <= now:
            relay.limits = await fetch_limits(relay.url, self._trust)
            relay.limits_until = Micros(now + micros(LIMITS_KEPT_S))

    def _note_reply(self, relay: _Relay, outcome: PublishOutcome, detail: str) -> None:
        if outcome is PublishOutcome.ACCEPTED:
            relay.taking.succeed()
        else:
            text = detail or outcome.value.replace("_", " ")
            relay.taking.fail(text, self._clock.now(), self._chance(), is_refusal=outcome in _REFUSALS)

    def _note_late(self, relay: _Relay) -> None:
        relay.reach.fail("no answer in time", self._clock.now(), self._chance())

    def _state_of(self, relay: _Relay) -> RelayState:
        now = self._clock.now()
        for pace in (relay.reach, relay.taking):
            if pace.failures:
                phase = RelayPhase.REFUSING if pace.is_refusing else RelayPhase.WAITING
                return RelayState(relay.url, phase, pace.detail, pace.failures, pace.wait_us(now) / MICROS_PER_SECOND)
        return RelayState(relay.url, RelayPhase.ANSWERING if relay.was_asked else RelayPhase.UNUSED)

    # --- all of them ----------------------------------------------------------
    async def _at_each(
        self, act: Callable[[_Relay], Awaitable[RelayReply]], timeout_s: float, *, keeps_pause: bool
    ) -> PublishReport:
        replies: dict[str, RelayReply] = {}

        async def put(relay: _Relay) -> None:
            replies[relay.url] = await act(relay)

        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for relay in self._relays:
                    if keeps_pause and self._pause_us(relay):
                        replies[relay.url] = RelayReply(relay.url, PublishOutcome.WAITING, self._state_of(relay).detail)
                    else:
                        nursery.start_soon(put, relay)
        for relay in self._relays:
            if relay.url not in replies:
                self._note_late(relay)
                replies[relay.url] = RelayReply(relay.url, PublishOutcome.UNREACHABLE, "no answer in time")
        return PublishReport(tuple(replies[relay.url] for relay in self._relays))

    def _pause_us(self, relay: _Relay) -> int:
        now = self._clock.now()
        return max(relay.reach.wait_us(now), relay.taking.wait_us(now))

    def _next_created(self) -> int:
        """Now, and later than all that we said before: of one second relays keep whichever has the lower id."""
        self._last_created_s = max(self._clock.unix_ms() // 1000, self._last_created_s + 1)
        return self._last_created_s

    def _chance(self) -> int:
        return int.from_bytes(self._entropy.random_bytes(4), "big") % CHANCES


@dataclass(frozen=True, slots=True)
class _Taken:
    """What all relays of a fetch gave: what several have (``known``, by hash) is looked at, and told of, once."""

    view: ListingsView
    known: set[int]


class _Reading:
    """What one relay gave so far, over its pages."""

    def __init__(self, taken: _Taken, rules: ReadingRules) -> None:
        self._view = taken.view
        self._known = taken.known
        self._rules = rules
        self._seen: set[int] = set()
        self._new_in_page = 0
        self._oldest_s: int | None = None
        self._until_s: int | None = None

    def take(self, event: EventMessage) -> bool:
        """Whether another one is wanted."""
        if len(self._seen) >= MAX_LISTING_EVENTS:
            text = f"a relay has more than {MAX_LISTING_EVENTS} listings"
            self._view.reject(Rejection(RejectionReason.TOO_MANY, text))
            return False
        digest = hash(event.text)
        if digest in self._seen:
            return True
        self._seen.add(digest)
        self._new_in_page += 1
        if event.created_unix_s is not None and (self._oldest_s is None or event.created_unix_s < self._oldest_s):
            self._oldest_s = event.created_unix_s
        if digest not in self._known:
            self._known.add(digest)
            self._look_at(event)
        return True

    def _look_at(self, event: EventMessage) -> None:
        if event.text:
            self._view.take(event.text, self._rules, verify_event)
        else:
            self._view.reject(Rejection(RejectionReason.EVENT_TOO_LARGE, "an event that is too large to be looked at"))

    def next_page(self) -> int | None:
        """The ``until`` of the next page; None where this one was the last."""
        was_short, self._new_in_page = self._new_in_page < _SHORT_PAGE, 0
        if was_short or self._oldest_s is None:
            return None
        is_stuck = self._until_s is not None and self._oldest_s >= self._until_s
        self._until_s = self._oldest_s - 1 if is_stuck else self._oldest_s
        return self._until_s


def _filter_of(query: ListingQuery, rules: ReadingRules, until_s: int | None) -> dict[str, Any]:
    """NIP-01; nothing older than the longest life is asked for, so that what is over does not crowd out what is not."""
    since_s = (rules.now - CLOCK_SKEW_MS) // 1000 - MAX_LISTING_LIFE_S
    asked: dict[str, Any] = {"kinds": [KIND], "#k": [SERVICE], "since": since_s, "limit": _PAGE_EVENTS}
    if query.publishers:
        asked["authors"] = list(query.publishers)
    if until_s is not None:
        asked["until"] = until_s
    return asked


def _with_hint(outcome: PublishOutcome, detail: str) -> str:
    """What the relay said, and what its owner may not think of: most refuse what seems to come from another time."""
    is_of_time = any(word in detail.lower() for word in ("created_at", "future", "too old", "expired"))
    return f"{detail}; check the clock of this machine" if outcome in _REFUSALS and is_of_time else detail


def _content_room(limits: StatedLimits) -> int:
    room = MAX_LISTING_CONTENT_BYTES
    if limits.max_content_bytes is not None:
        room = min(room, limits.max_content_bytes)
    if limits.max_message_bytes is not None:
        room = min(room, max(0, limits.max_message_bytes - _EVENT_FRAME_BYTES) * 4 // 5)
    return room
