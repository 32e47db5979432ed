"""Listings at real relays: put, replaced, taken away, found; and relays that are dead, refuse, or lie."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import nostr_sdk
import pytest
import trio

from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings
from p2pmesh.base.errors import LocalProtocolError
from p2pmesh.base.limits import MAX_LISTING_EVENTS
from p2pmesh.ports.relays import ListingQuery, PublishOutcome, PublishReport, RelayPhase
from p2pmesh.wire import invite
from p2pmesh.wire.listing import ListingContent, RejectionReason, encode_content, listing_tags
from tests.adapters.nostr.real_relays import (
    Say,
    Script,
    answering_server,
    local_relay,
    scripted_relay,
    silent_server,
    stored_at,
)
from tests.fakes.clock import FakeClock, FakeEntropy
from tests.wire.keys import FOUNDER, JOINER, verify
from tests.wire.listing_vectors import ADDRESS, event_of
from tests.wire.schnorr import NostrKey

TIMEOUT_S = 20.0
QUERY = ListingQuery()
OURS = {"kinds": [31990], "#k": ["p2pmesh"]}
NOWHERE = "ws://127.0.0.1:9"
NOW_S = 1_780_000_000


class Wall(FakeClock):
    """A clock that stands at the time of the relays' own: what is written and read with it is of one second."""

    def __init__(self) -> None:
        super().__init__(unix_ms=int(time.time()) * 1000)

    @property
    def seconds(self) -> int:
        return self.unix_ms() // 1000

    def advance_s(self, seconds: int) -> None:
        self.advance(micros=seconds * 1_000_000)


def content_at(now_s: int, name: str = "the attic") -> ListingContent:
    """A listing with an invite of ``now_s``."""
    terms = replace(FOUNDER.requirements, is_public=True, pool_name=name)
    made = invite.Invite(bytes(16), terms, now_s * 1000, now_s * 1000 + invite.LIFE_MS, (ADDRESS,))
    line = invite.encode_invite(made, FOUNDER.public_key, FOUNDER.sign)
    peer = f"{ADDRESS}/p2p/{JOINER.peer_id}"
    return ListingContent(line, ("smollm2-135m",), 8 << 30, 2, made.mesh_id, 1, name=name, addresses=(peer,))


def relays_at(*urls: str, clock: Any = None, key: PublisherKey | None = None) -> NostrRelays:
    return NostrRelays(RelaySettings(urls, key or PublisherKey.fresh(), verify), clock or Wall(), FakeEntropy())


def outcomes(report: PublishReport) -> list[PublishOutcome]:
    return [reply.outcome for reply in report.replies]


async def test_what_is_published_is_stored_as_the_protocol_says_and_found() -> None:
    clock = Wall()
    async with local_relay() as url:
        publisher = relays_at(url, clock=clock)
        assert publisher.states()[0].phase is RelayPhase.UNUSED
        content = content_at(clock.seconds)
        assert outcomes(await publisher.publish(content, TIMEOUT_S)) == [PublishOutcome.ACCEPTED]
        (event,) = await stored_at(url, OURS)
        assert (event["pubkey"], event["kind"], event["created_at"]) == (publisher.publisher, 31990, clock.seconds)
        assert event["tags"] == [["d", "p2pmesh"], ["k", "p2pmesh"], ["expiration", str(clock.seconds + 120)]]
        assert json.loads(event["content"])["name"] == "the attic"
        assert await stored_at(url, {"kinds": [31990], "#k": ["mesh-llm"]}) == []
        found = await relays_at(url, clock=clock).fetch(QUERY, TIMEOUT_S)
        assert [(one.content, one.publisher) for one in found.listings] == [(content, publisher.publisher)]
        assert (found.rejections, found.answered) == ((), (url,))
        assert publisher.states()[0].phase is RelayPhase.ANSWERING


async def test_a_later_listing_takes_the_place_of_the_earlier_also_within_a_second() -> None:
    clock = Wall()
    async with local_relay() as url:
        publisher = relays_at(url, clock=clock)
        for name in ("first", "second", "third"):
            report = await publisher.publish(content_at(clock.seconds, name), TIMEOUT_S)
            assert outcomes(report) == [PublishOutcome.ACCEPTED]
        (event,) = await stored_at(url, OURS)
        assert json.loads(event["content"])["name"] == "third"


async def test_what_is_deleted_is_gone_at_the_relay_and_can_be_listed_again() -> None:
    clock = Wall()
    async with local_relay() as url:
        publisher, reader = relays_at(url, clock=clock), relays_at(url, clock=clock)
        await publisher.publish(content_at(clock.seconds), TIMEOUT_S)
        assert len((await reader.fetch(QUERY, TIMEOUT_S)).listings) == 1
        assert outcomes(await publisher.delete(TIMEOUT_S)) == [PublishOutcome.ACCEPTED]
        assert await stored_at(url, OURS) == []
        assert (await reader.fetch(QUERY, TIMEOUT_S)).listings == ()
        assert outcomes(await publisher.publish(content_at(clock.seconds, "again"), TIMEOUT_S)) == [
            PublishOutcome.ACCEPTED
        ]
        (event,) = await stored_at(url, OURS)
        assert json.loads(event["content"])["name"] == "again"


async def test_a_node_that_died_deletes_in_its_next_life_what_it_left() -> None:
    clock, key = Wall(), PublisherKey.fresh()
    async with local_relay() as url:
        await relays_at(url, clock=clock, key=key).publish(content_at(clock.seconds), TIMEOUT_S)
        clock.advance_s(2)
        assert (await relays_at(url, clock=clock, key=key).delete(TIMEOUT_S)).accepted == 1
        assert await stored_at(url, OURS) == []


async def test_a_listing_that_is_over_is_not_shown() -> None:
    clock = Wall()
    async with local_relay() as url:
        await relays_at(url, clock=clock).publish(content_at(clock.seconds), TIMEOUT_S)
        clock.advance_s(120)
        assert len((await relays_at(url, clock=clock).fetch(QUERY, TIMEOUT_S)).listings) == 1
        clock.advance_s(31)
        found = await relays_at(url, clock=clock).fetch(QUERY, TIMEOUT_S)
        assert found.listings == ()
        assert [one.first.reason for one in found.rejections] == [RejectionReason.EXPIRED]


async def test_only_listings_of_the_publishers_asked_for_come() -> None:
    clock = Wall()
    async with local_relay() as url:
        one, other = relays_at(url, clock=clock), relays_at(url, clock=clock)
        for publisher in (one, other):
            await publisher.publish(content_at(clock.seconds), TIMEOUT_S)
        reader = relays_at(url, clock=clock)
        assert len((await reader.fetch(QUERY, TIMEOUT_S)).listings) == 2
        found = await reader.fetch(ListingQuery(publishers=(other.publisher,)), TIMEOUT_S)
        assert [listing.publisher for listing in found.listings] == [other.publisher]


async def test_dead_relays_delay_nobody_and_are_left_alone_for_their_pause() -> None:
    clock = Wall()
    async with local_relay() as url, silent_server() as silent:
        relays = relays_at(NOWHERE, url, silent, clock=clock)
        with trio.fail_after(TIMEOUT_S):
            report = await relays.publish(content_at(clock.seconds), 3.0)
            found = await relays.fetch(QUERY, TIMEOUT_S)
        assert outcomes(report) == [PublishOutcome.UNREACHABLE, PublishOutcome.ACCEPTED, PublishOutcome.UNREACHABLE]
        assert len(found.listings) == 1
        assert found.answered == (url,)
        first, second, third = relays.states()
        assert (first.phase, second.phase, third.phase) == (
            RelayPhase.WAITING, RelayPhase.ANSWERING, RelayPhase.WAITING,
        )  # fmt: skip
        assert third.detail == "no answer in time"


async def test_a_relay_in_its_pause_is_not_asked_and_is_when_it_is_over() -> None:
    clock = FakeClock(unix_ms=NOW_S * 1000)
    relays = relays_at(NOWHERE, clock=clock)
    content = content_at(NOW_S)
    assert outcomes(await relays.publish(content, TIMEOUT_S)) == [PublishOutcome.UNREACHABLE]
    assert outcomes(await relays.publish(content, TIMEOUT_S)) == [PublishOutcome.WAITING]
    assert relays.states()[0].failures == 1
    clock.advance(micros=1_000_000)
    assert outcomes(await relays.publish(content, TIMEOUT_S)) == [PublishOutcome.UNREACHABLE]
    assert relays.states()[0].failures == 2
    assert 1 <= (relays.states()[0].retry_s or 0) <= 2


def saying(*answers: Callable[[str], Any]) -> Script:
    """A relay that answers the n-th event with the n-th of ``answers``, of its id; later ones as the last."""
    heard: list[str] = []

    async def script(message: list[Any], say: Say) -> None:
        if message[0] in ("EVENT", "AUTH"):
            heard.append(message[1]["id"])
            await say(answers[min(len(heard), len(answers)) - 1](message[1]["id"]))
        elif message[0] == "REQ":
            await say(["EOSE", message[1]])

    return script


@pytest.mark.parametrize(
    ("is_accepted", "reason", "outcome", "phase"),
    [
        (True, "", PublishOutcome.ACCEPTED, RelayPhase.ANSWERING),
        (False, "duplicate: have it", PublishOutcome.ACCEPTED, RelayPhase.ANSWERING),
        (False, "rate-limited: slow down", PublishOutcome.RATE_LIMITED, RelayPhase.WAITING),
        (False, "error: no disk", PublishOutcome.FAILED, RelayPhase.WAITING),
        (False, "anything else", PublishOutcome.FAILED, RelayPhase.WAITING),
        (False, "blocked: by \x1b[2J policy\n", PublishOutcome.BLOCKED, RelayPhase.REFUSING),
        (False, "restricted: members only", PublishOutcome.BLOCKED, RelayPhase.REFUSING),
        (False, "pow: 24 bits", PublishOutcome.POW_REQUIRED, RelayPhase.REFUSING),
        (False, "invalid: created_at too late", PublishOutcome.INVALID, RelayPhase.REFUSING),
    ],
)
async def test_refusals_are_taken_by_their_kind(
    is_accepted: bool, reason: str, outcome: PublishOutcome, phase: RelayPhase
) -> None:
    async with scripted_relay(saying(lambda event_id: ["OK", event_id, is_accepted, reason])) as url:
        relays = relays_at(url)
        report = await relays.publish(content_at(Wall().seconds), TIMEOUT_S)
        assert outcomes(report) == [outcome]
        state = relays.states()[0]
        assert state.phase is phase
        assert "\n" not in state.detail + report.replies[0].detail
        assert "\x1b" not in state.detail
        assert ("check the clock" in state.detail) is ("created_at" in reason)
        # Whoever refuses our listing is still asked for those of others.
        assert (await relays.fetch(QUERY, TIMEOUT_S)).answered == (url,)
        if phase is RelayPhase.REFUSING:
            assert 300 <= (state.retry_s or 0) + 1 <= 302


async def test_a_relay_that_asks_who_we_are_is_told_and_takes_the_listing() -> None:
    builder = nostr_sdk.LocalRelayBuilder().nip42(
        nostr_sdk.LocalRelayBuilderNip42(mode=nostr_sdk.LocalRelayBuilderNip42Mode.BOTH)
    )
    clock = Wall()
    async with local_relay(builder) as url:
        relays = relays_at(url, clock=clock)
        assert outcomes(await relays.publish(content_at(clock.seconds), TIMEOUT_S)) == [PublishOutcome.ACCEPTED]
        assert len((await relays.fetch(QUERY, TIMEOUT_S)).listings) == 1


async def test_a_relay_that_is_not_content_with_who_we_are_is_not_asked_forever() -> None:
    refuse = saying(lambda event_id: ["OK", event_id, False, "auth-required: members"])
    async with scripted_relay(refuse, ["AUTH", "challenge"]) as url:
        report = await relays_at(url).publish(content_at(Wall().seconds), TIMEOUT_S)
        assert outcomes(report) == [PublishOutcome.AUTH_REQUIRED]


def hostile_events(now_s: int) -> list[Any]:
    """What others put at a relay, or a relay makes up."""
    good = json.loads(json.dumps({"a": 1}))
    tags = listing_tags(now_s + 60)
    key = NostrKey("hostile")
    signed = event_of(json.dumps(good), tags=tags, created_unix_s=now_s, key=key)
    return [
        {**signed, "sig": "0" * 128},
        {**signed, "content": "changed"},
        signed,
        event_of("{}", tags=listing_tags(now_s - 100), created_unix_s=now_s - 200, key=key),
        event_of("{}", tags=listing_tags(now_s + 90_000), created_unix_s=now_s + 89_000, key=key),
        event_of("x" * 20_000, tags=tags, created_unix_s=now_s, key=key),
        event_of("x" * 60_000, tags=tags, created_unix_s=now_s, key=key),
        {"id": 1},
        [],
        None,
        "event",
    ]


async def test_each_hostile_event_costs_one_count_and_the_good_one_is_found() -> None:
    clock = Wall()
    content = json.dumps(
        {**json.loads(encode_content(content_at(clock.seconds))), "future_field": True}, separators=(",", ":")
    )
    good = event_of(content, tags=listing_tags(clock.seconds + 100), created_unix_s=clock.seconds - 20)
    old = event_of(
        encode_content(content_at(clock.seconds, "old")),
        tags=listing_tags(clock.seconds + 100), created_unix_s=clock.seconds - 30,
    )  # fmt: skip
    noise = ["no json", "[" * 20_000, "[]", '["NOTICE","\x1b[2J"]', '["EVENT"]', '["EVENT","listings"]', '["OK",1]']

    async def script(message: list[Any], say: Say) -> None:
        if message[0] == "REQ":
            for text in noise:
                await say(text)
            for event in [good, *hostile_events(clock.seconds) * 3, old]:
                await say(["EVENT", message[1], event])
            await say(["EOSE", message[1]])

    async with scripted_relay(script) as url:
        reader = relays_at(url, clock=clock)
        found = await reader.fetch(QUERY, TIMEOUT_S)
        assert [listing.content.name for listing in found.listings] == ["the attic"]
        assert {one.first.reason: one.count for one in found.rejections} == {
            RejectionReason.EVENT_MALFORMED: 4,
            RejectionReason.SIGNATURE_INVALID: 2,
            RejectionReason.CONTENT_MALFORMED: 1,
            RejectionReason.EXPIRED: 1,
            RejectionReason.DATED_AHEAD: 1,
            RejectionReason.EVENT_TOO_LARGE: 2,
        }
        assert found.answered == (url,)


async def test_an_older_listing_that_a_relay_gives_later_does_not_come_back() -> None:
    clock = Wall()
    given = [
        event_of(
            encode_content(content_at(clock.seconds, name)), tags=listing_tags(clock.seconds + 100), created_unix_s=when
        )
        for name, when in (("new", clock.seconds - 5), ("old", clock.seconds - 50))
    ]

    async def script(message: list[Any], say: Say) -> None:
        if message[0] == "REQ":
            await say(["EVENT", message[1], given.pop(0)])
            await say(["EOSE", message[1]])

    async with scripted_relay(script) as url:
        reader = relays_at(url, clock=clock)
        assert [one.content.name for one in (await reader.fetch(QUERY, TIMEOUT_S)).listings] == ["new"]
        assert (await reader.fetch(QUERY, TIMEOUT_S)).listings == ()


async def test_two_questions_at_a_time_do_not_disturb_each_other() -> None:
    clock = Wall()
    async with local_relay() as url:
        await relays_at(url, clock=clock).publish(content_at(clock.seconds), TIMEOUT_S)
        reader = relays_at(url, clock=clock)
        found: list[int] = []

        async def ask() -> None:
            found.append(len((await reader.fetch(QUERY, TIMEOUT_S)).listings))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert found == [1, 1, 1]


async def test_no_relay_gives_more_than_is_taken_and_none_that_never_ends_is_waited_for() -> None:
    clock = Wall()

    async def flood(message: list[Any], say: Say) -> None:
        if message[0] == "REQ":
            for number in range(MAX_LISTING_EVENTS + 100):
                await say(["EVENT", "listings", number])

    async def endless(message: list[Any], say: Say) -> None:
        return

    async with scripted_relay(flood) as first, scripted_relay(endless) as second, local_relay() as good:
        await relays_at(good, clock=clock).publish(content_at(clock.seconds), TIMEOUT_S)
        reader = relays_at(first, second, good, clock=clock)
        with trio.fail_after(TIMEOUT_S):
            found = await reader.fetch(QUERY, TIMEOUT_S * 10)
        assert len(found.listings) == 1
        assert found.answered == (good,)


async def test_many_listings_are_read_page_by_page() -> None:
    clock = Wall()
    events = [
        {**event_of("{}", tags=listing_tags(clock.seconds + 60), created_unix_s=clock.seconds - at // 10), "at": at}
        for at in range(0, 300, 10)
    ]
    pages: list[int | None] = []

    async def script(message: list[Any], say: Say) -> None:
        if message[0] == "REQ":
            until = message[2].get("until")
            pages.append(until)
            page = [event for event in events if until is None or event["created_at"] <= until][:25]
            for event in page:
                await say(["EVENT", message[1], {key: value for key, value in event.items() if key != "at"}])
            await say(["EOSE", message[1]])

    async with scripted_relay(script) as url:
        found = await relays_at(url, clock=clock).fetch(QUERY, TIMEOUT_S)
        assert pages == [None, clock.seconds - 24]
        assert [one.count for one in found.rejections] == [30]


async def test_what_no_reader_takes_is_not_published() -> None:
    with pytest.raises(LocalProtocolError):
        await relays_at(NOWHERE).publish(replace(content_at(NOW_S), node_count=0), TIMEOUT_S)


async def test_cancelling_leaves_nothing_behind() -> None:
    async with silent_server() as silent:
        with trio.move_on_after(0.2) as scope:
            await relays_at(silent).fetch(QUERY, TIMEOUT_S)
        assert scope.cancelled_caught


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\xfe", b"HTTP/1.1 101 Yes\r\n\r\n", b"HTTP/1.1 101 Yes\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\xdf: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nlogin",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxyz",
    ],
)  # fmt: skip
async def test_whoever_speaks_no_websocket_is_a_relay_that_cannot_be_reached(answer: bytes) -> None:
    async with answering_server(answer) as url, local_relay() as good:
        clock = Wall()
        relays = relays_at(url, good, clock=clock)
        report = await relays.publish(content_at(clock.seconds), 2.0)
        assert outcomes(report) == [PublishOutcome.UNREACHABLE, PublishOutcome.ACCEPTED]
        reader = relays_at(url, good, clock=clock)
        assert len((await reader.fetch(QUERY, 3.0)).listings) == 1
