"""Relays without a network: what several nodes list, at relays that can be dead or refuse."""

import hashlib
from dataclasses import dataclass, field

from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.listings import ListingsView
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
    KIND,
    LIFE_S,
    ListingContent,
    ListingEvent,
    ReadingRules,
    encode_content,
    event_id_of,
    listing_tags,
)
from tests.fakes.clock import FakeClock
from tests.wire.keys import verify


@dataclass
class FakeRelay:
    """One relay. ``outcome`` is its answer to every event; it is ``is_dead`` where it answers nothing."""

    url: str
    outcome: PublishOutcome = PublishOutcome.ACCEPTED
    is_dead: bool = False
    is_endless: bool = False
    """It never says that it gave all."""
    events: dict[str, ListingEvent] = field(default_factory=dict)
    """The newest of each publisher."""
    hostile_events: list[ListingEvent] = field(default_factory=list)


class FakeRelays:
    """Implements ``ports.relays.Relays`` for one node; nodes that share ``FakeRelay`` objects find each other."""

    def __init__(self, name: str, clock: FakeClock, relays: list[FakeRelay]) -> None:
        self.publisher = hashlib.sha256(name.encode()).hexdigest()
        self.published: list[ListingContent] = []
        self.deletions = 0
        self._clock = clock
        self._relays = relays
        self._last_created_s = 0

    async def publish(self, content: ListingContent, timeout_s: float) -> PublishReport:
        text = encode_content(content)
        created = max(self._now() // 1000, self._last_created_s + 1)
        self._last_created_s = created
        tags = listing_tags(created + LIFE_S)
        event_id = event_id_of(self.publisher, created, KIND, tags, text)
        event = ListingEvent(event_id, self.publisher, created, KIND, tags, text)
        for relay in self._relays:
            if self._reply(relay).outcome is PublishOutcome.ACCEPTED:
                relay.events[self.publisher] = event
        self.published.append(content)
        return self._report()

    async def delete(self, timeout_s: float) -> PublishReport:
        for relay in self._relays:
            if self._reply(relay).outcome is PublishOutcome.ACCEPTED:
                relay.events.pop(self.publisher, None)
        self.deletions += 1
        return self._report()

    async def fetch(self, query: ListingQuery, timeout_s: float) -> FoundListings:
        rules = ReadingRules(self._now(), verify, query.takes_private)
        alive = [relay for relay in self._relays if not relay.is_dead]
        view = ListingsView()
        for event in (event for relay in alive for event in (*relay.events.values(), *relay.hostile_events)):
            if not query.publishers or event.publisher in query.publishers:
                view.take_event(event, rules)
        return FoundListings(
            view.listings(rules.now), view.rejections(), tuple(relay.url for relay in alive if not relay.is_endless)
        )

    def states(self) -> tuple[RelayState, ...]:
        return tuple(
            RelayState(relay.url, RelayPhase.WAITING, "it does not answer", 1, 1.0)
            if relay.is_dead
            else RelayState(relay.url, RelayPhase.ANSWERING)
            for relay in self._relays
        )

    def _now(self) -> UnixMillis:
        return self._clock.unix_ms()

    def _report(self) -> PublishReport:
        return PublishReport(tuple(self._reply(relay) for relay in self._relays))

    @staticmethod
    def _reply(relay: FakeRelay) -> RelayReply:
        outcome = PublishOutcome.UNREACHABLE if relay.is_dead else relay.outcome
        return RelayReply(relay.url, outcome)
