"""Finding a public pool among those that are listed, over fake relays and a fake overlay."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import trio
from trio.testing import MockClock

from p2pmesh.core.pool_choice import Checked, Wanted
from p2pmesh.core.standing import Founding
from p2pmesh.node.pool_finder import FoundPool, claims_of
from p2pmesh.wire.invite import Invite, encode_invite
from p2pmesh.wire.listing import (
    KIND,
    Listing,
    ListingContent,
    ListingEvent,
    ReadingRules,
    decode_listing,
    encode_content,
    listing_tags,
)
from p2pmesh.wire.requirements import MeshRequirements
from tests.fakes.identity import FakeVerifier, fake_identity
from tests.fakes.mesh import UNIX_MS_AT_START
from tests.node.pool_world import PoolWorld, open_pool_world

NOW_S = UNIX_MS_AT_START // 1000


class Told:
    """What a search reports."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))


def event_of(key: str, content: str, created_s: int = NOW_S, expires_s: int = NOW_S + 120) -> ListingEvent:
    publisher = hashlib.sha256(key.encode()).hexdigest()
    return ListingEvent(f"{key:0>64}"[:64], publisher, created_s, KIND, listing_tags(expires_s), content)


def made_up(name: str, **changes: Any) -> ListingContent:
    """A listing that looks as good as can be, of a pool that is nowhere."""
    terms = MeshRequirements(fake_identity(name).public_key, is_public=changes.pop("is_public", True))
    addresses = changes.pop("addresses", ("/ip4/127.0.0.1/tcp/1",))
    invite = Invite(bytes(16), terms, UNIX_MS_AT_START, UNIX_MS_AT_START + 600_000, addresses)
    line = encode_invite(invite, fake_identity(name).public_key, fake_identity(name).sign)
    made = ListingContent(line, tuple(f"m{n}" for n in range(64)), 2**50, 9999, invite.mesh_id, 1, ("w",) * 16)
    return replace(made, **changes)


def hostile(count: int, at_s: int = NOW_S) -> Iterator[ListingEvent]:
    """Of ten kinds, in turn."""
    for n in range(count):
        yield hostile_one(n % 10, f"hostile {n}", at_s)


def hostile_one(kind: int, key: str, at_s: int) -> ListingEvent:
    listing = made_up(key)
    contents = {
        0: "{" * 200,
        1: json.dumps({"invite_token": "x" * 20_000}),
        2: encode_content(replace(listing, invite_token=listing.invite_token[:-9])),
        3: encode_content(made_up(key, is_public=False)),
        4: encode_content(replace(listing, name="another")),
        5: encode_content(made_up(key, addresses=("/dns4/router.local/tcp/80",))),
    }
    times = {6: (-500, -380), 7: (86_400, 86_520), 8: (0, 10**6)}
    created, expires = times.get(kind, (0, 120))
    return event_of(key, contents.get(kind, encode_content(listing)), at_s + created, at_s + expires)


async def listed_pool(world: PoolWorld, name: str = "founder", **options: Any) -> ListingContent:
    node = await world.found(name, **options)
    await node.wait_told("pool_listed")
    invite = node.node.overlay.credentials.listed_invite(node.network.addresses())
    assert invite is not None
    return ListingContent(invite, (), 1, 1, node.node.overlay.mesh_id, 1)


async def test_the_one_good_pool_among_five_hundred_is_found(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        good = await listed_pool(world)
        world.relay.hostile_events = list(hostile(500, NOW_S + int(trio.current_time())))
        told = Told()
        found = await world.finder("searcher", told).search(Wanted())
        assert [one.mesh_id for one in found.pools] == [good.mesh_id]
        assert found.took_ms < 12_000
        rejected = [fields for name, fields in told.events if name == "listings_rejected"]
        assert len({fields["reason"] for fields in rejected}) >= 6
        keys = [(fields["reason"], fields["publisher"]) for fields in rejected]
        assert len(keys) == len(set(keys))
        again = Told()
        await world.finder("another", again).search(Wanted())
        assert len(again.events) == len(told.events)


async def test_each_reason_is_told_once(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        world.relay.hostile_events = list(hostile(30))
        told = Told()
        finder = world.finder("searcher", told)
        await finder.search(Wanted())
        count = len(told.events)
        assert count > 0
        await finder.search(Wanted())
        assert len(told.events) == count


async def test_a_pool_that_answers_counts_by_what_it_says_itself(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        await listed_pool(world, "modest")
        boaster = await world.found("boaster")
        await boaster.wait_told("pool_listed")
        two = await world.found("of two")
        await two.wait_told("pool_listed")
        await world.join("member", two)
        content = made_up("boaster")
        line = boaster.node.overlay.credentials.listed_invite(boaster.network.addresses())
        assert line is not None
        world.relay.hostile_events = [
            event_of("boast", encode_content(replace(content, invite_token=line, mesh_id=boaster.node.overlay.mesh_id)))
        ]
        found = await world.finder("searcher", Told()).search(Wanted())
        assert found.pools[0].mesh_id == two.node.overlay.mesh_id
        assert {one.checked.claims.serving for one in found.pools} == {0}


async def test_a_copied_listing_leads_to_the_pool_that_was_copied(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        good = await listed_pool(world)
        world.relay.hostile_events = [event_of("thief", encode_content(replace(good, wanted=("w",) * 16)))]
        found = await world.finder("searcher", Told()).search(Wanted())
        assert {one.mesh_id for one in found.pools} == {good.mesh_id}


async def test_addresses_that_a_copy_puts_before_lead_nobody_astray(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        good = await listed_pool(world)
        thief = await world.mesh.found("thief")
        world.relay.events.clear()
        world.relay.hostile_events = [
            event_of(
                "thief", encode_content(replace(good, addresses=thief.network.addresses())), NOW_S + 60, NOW_S + 180
            )
        ]
        found = await world.finder("searcher", Told()).search(Wanted())
        assert [one.mesh_id for one in found.pools] == [good.mesh_id]


async def test_a_name_is_looked_for_exactly(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        await listed_pool(world, "unnamed")
        bob = await listed_pool(world, "bobs", pool_name="bob")
        finder = world.finder("searcher", Told())
        assert [one.mesh_id for one in (await finder.search(Wanted("bob"))).pools] == [bob.mesh_id]
        assert bob.mesh_id not in [one.mesh_id for one in (await finder.search(Wanted())).pools]
        assert (await finder.search(Wanted("Bob"))).pools == ()


async def test_relays_that_are_dead_are_no_empty_list(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        world.relay.is_dead = True
        finder = world.finder("searcher", Told())
        found = await finder.search(Wanted())
        assert (found.pools, found.has_answer) == ((), False)
        assert (await finder.fetch()).answered == ()


async def test_what_a_relay_gave_counts_though_it_never_comes_to_an_end(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        good = await listed_pool(world)
        world.relay.is_endless = True
        found = await world.finder("searcher", Told()).search(Wanted())
        assert ([one.mesh_id for one in found.pools], found.has_answer) == ([good.mesh_id], True)


async def test_a_peer_of_another_mesh_than_its_listing_says_is_no_pool(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        other = await world.mesh.found("other", founding=Founding(MeshRequirements(fake_identity("other").public_key)))
        listing = made_up("other", addresses=other.network.addresses())
        world.relay.hostile_events = [event_of("liar", encode_content(listing))]
        found = await world.finder("searcher", Told()).search(Wanted())
        assert (found.pools, found.listed) == ((), 1)


def found_at(name: str, address: str) -> FoundPool:
    event = event_of(name, encode_content(made_up(name, addresses=(address,))))
    listing = decode_listing(event, ReadingRules(UNIX_MS_AT_START, FakeVerifier().is_signature_of))
    assert isinstance(listing, Listing)
    return FoundPool(listing, Checked(listing.publisher, claims_of(listing), 1))


async def test_a_host_that_answers_for_many_pools_and_admits_to_none_costs_one_attempt(
    autojump_clock: MockClock,
) -> None:
    many, good = "/ip4/93.184.215.14/tcp/4001", "/ip4/93.184.215.15/tcp/4001"
    found = [found_at("one", many), found_at("two", many), found_at("good", good), found_at("three", many)]
    async with open_pool_world() as world:
        finder = world.finder("searcher", Told())
        ranked = finder.spread(found)
        assert ranked == (found[0], found[2], found[1], found[3])
        finder.note_shut(found[0].listing.addresses)
        assert finder.spread(found)[0] == found[2]
        await trio.sleep(700)
        assert finder.spread(found) == ranked
