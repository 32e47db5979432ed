"""What ``ports.relays.Relays`` promises, of the real ones and of the fake."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from p2pmesh.base.errors import LocalProtocolError
from p2pmesh.ports.relays import ListingQuery, PublishOutcome, RelayPhase, Relays
from tests.adapters.nostr.real_relays import local_relay
from tests.adapters.nostr.test_relays import NOWHERE, TIMEOUT_S, Wall, content_at, outcomes, relays_at
from tests.fakes.relays import FakeRelay, FakeRelays

Join = Callable[[str], Relays]
"""One more node at the same two relays, of which the second is dead."""
World = Callable[[Wall], AbstractAsyncContextManager[Join]]
QUERY = ListingQuery()


@asynccontextmanager
async def real(clock: Wall) -> AsyncIterator[Join]:
    async with local_relay() as url:
        yield lambda name: relays_at(url, NOWHERE, clock=clock)


@asynccontextmanager
async def fake(clock: Wall) -> AsyncIterator[Join]:
    relays = [FakeRelay("ws://alive"), FakeRelay("ws://dead", is_dead=True)]
    yield lambda name: FakeRelays(name, clock, relays)


worlds = pytest.mark.parametrize("world", [real, fake])


def names(found: Any) -> list[str | None]:
    return [listing.content.name for listing in found.listings]


@worlds
async def test_a_listing_is_found_by_others_until_it_is_deleted(world: World) -> None:
    clock = Wall()
    async with world(clock) as join:
        one, other = join("one"), join("other")
        report = await one.publish(content_at(clock.seconds, "first"), TIMEOUT_S)
        assert outcomes(report) == [PublishOutcome.ACCEPTED, PublishOutcome.UNREACHABLE]
        assert report.accepted == 1
        found = await other.fetch(QUERY, TIMEOUT_S)
        assert names(found) == ["first"]
        assert found.listings[0].publisher == one.publisher
        assert len(found.answered) == 1
        await one.publish(content_at(clock.seconds, "second"), TIMEOUT_S)
        assert names(await other.fetch(QUERY, TIMEOUT_S)) == ["second"]
        assert (await one.delete(TIMEOUT_S)).accepted == 1
        assert names(await other.fetch(QUERY, TIMEOUT_S)) == []
        await one.publish(content_at(clock.seconds, "third"), TIMEOUT_S)
        assert names(await other.fetch(QUERY, TIMEOUT_S)) == ["third"]


@worlds
async def test_a_listing_is_over_after_its_life_and_the_skew(world: World) -> None:
    clock = Wall()
    async with world(clock) as join:
        await join("one").publish(content_at(clock.seconds), TIMEOUT_S)
        clock.advance_s(150)
        assert len((await join("two").fetch(QUERY, TIMEOUT_S)).listings) == 1
        clock.advance_s(1)
        found = await join("three").fetch(QUERY, TIMEOUT_S)
        assert found.listings == ()
        assert [(one.first.reason.value, one.count) for one in found.rejections] == [("expired", 1)]


@worlds
async def test_publishers_have_keys_of_their_own_and_can_be_asked_for(world: World) -> None:
    clock = Wall()
    async with world(clock) as join:
        nodes = [join(name) for name in ("one", "two", "three")]
        for node in nodes:
            await node.publish(content_at(clock.seconds), TIMEOUT_S)
        assert len({node.publisher for node in nodes}) == 3
        found = await nodes[0].fetch(ListingQuery(publishers=(nodes[1].publisher,)), TIMEOUT_S)
        assert [listing.publisher for listing in found.listings] == [nodes[1].publisher]


@worlds
async def test_states_are_in_order_and_tell_the_dead(world: World) -> None:
    clock = Wall()
    async with world(clock) as join:
        node = join("one")
        await node.publish(content_at(clock.seconds), TIMEOUT_S)
        assert [state.phase for state in node.states()] == [RelayPhase.ANSWERING, RelayPhase.WAITING]
        assert node.states()[1].detail
        assert node.states()[1].retry_s is not None


@worlds
async def test_what_no_reader_takes_is_the_callers_fault(world: World) -> None:
    clock = Wall()
    async with world(clock) as join:
        broken = replace(content_at(clock.seconds), name="a\nb")
        with pytest.raises(LocalProtocolError):
            await join("one").publish(broken, TIMEOUT_S)
