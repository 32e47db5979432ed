"""A public pool stays listed by one of its members, over fake relays and a fake overlay."""

import json
from dataclasses import replace

import trio
from trio.testing import MockClock

from p2pmesh.ports.relays import PublishOutcome
from tests.fakes.mesh import MeshNode
from tests.node.pool_world import PoolWorld, open_pool_world


def publisher_of(node: MeshNode) -> str:
    assert node.node.pool is not None
    return node.node.pool._parts.relays.publisher


def invite_of(node: MeshNode) -> str:
    line = node.node.overlay.credentials.listed_invite(node.network.addresses())
    assert line is not None
    return line


async def pool_of_three(world: PoolWorld) -> tuple[MeshNode, MeshNode, MeshNode]:
    founder = await world.found()
    await founder.wait_told("pool_listed")
    members = [await world.join(name, founder) for name in ("one", "two")]
    for member in members:
        assert (await member.wait_told("pool_watched"))["peer_id"] == founder.peer
    return founder, members[0], members[1]


async def test_a_pool_that_serves_nothing_is_listed_after_a_minute_and_tells_so(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder = await world.found(region="attic")
        await trio.sleep(50)
        assert world.listed() == []
        told = await founder.wait_told("pool_listed")
        assert (told["relays"], told["region"]) == (1, "attic")
        assert world.listed() == [publisher_of(founder)]
        await trio.sleep(300)
        assert len(founder.told("pool_listed")) == 1
        status = founder.node.status()["pool"]
        assert (status["phase"], status["publisher"]) == ("publishing", founder.peer)
        assert 0 <= status["next_publish_s"] <= 60


async def test_a_member_takes_the_listing_over_when_its_publisher_dies(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder, one, two = await pool_of_three(world)
        await world.mesh.kill(founder)
        await trio.sleep(60)  # the listing lives for 120 s: the membership knew
        assert len(one.told("pool_listed") + two.told("pool_listed")) == 1
        await trio.sleep(120)
        heir, other = (one, two) if one.told("pool_listed") else (two, one)
        assert world.listed() == [*sorted({publisher_of(heir), publisher_of(founder)})]
        assert other.told("pool_listed") == []
        assert other.told("pool_watched")[-1]["peer_id"] == heir.peer
        stranger = await world.join("stranger", heir)
        assert stranger.node.overlay.is_admitted(heir.peer)


async def test_who_leaves_takes_its_listing_along(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder, _, _ = await pool_of_three(world)
        assert founder.node.pool is not None
        await founder.node.pool.leave()
        assert world.listed() == []
        assert founder.told("pool_unlisted")[-1]["reason"] == "leaving"


async def test_an_operator_may_unpublish_while_the_node_runs(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder = await world.found(region="attic")
        await founder.wait_told("pool_listed")
        assert founder.node.pool is not None
        await founder.node.pool.change(is_publishing=False, max_clients=0, region=None)
        assert (await founder.wait_told("pool_unlisted"))["reason"] == "unpublished"
        await trio.sleep(300)
        assert world.listed() == []
        await founder.node.pool.change(is_publishing=True, max_clients=0, region="cellar")
        assert (await founder.wait_told("pool_listed", 2))["region"] == "cellar"
        assert world.listed() == [publisher_of(founder)]


async def test_at_the_client_cap_the_pool_is_listed_no_more_until_a_client_goes(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder = await world.found(max_clients=1)
        await founder.wait_told("pool_listed")
        client = await world.mesh.start("client", invite_of(founder), memory_bytes=0)
        await client.node.overlay.join()
        assert (await founder.wait_told("pool_unlisted"))["reason"] == "full"
        assert world.listed() == []
        await world.mesh.kill(client)
        await founder.wait_told("pool_listed", 2)
        assert world.listed() == [publisher_of(founder)]


async def test_a_copy_with_a_cap_keeps_nobody_from_listing(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder, one, two = await pool_of_three(world)
        client = await world.mesh.start("client", invite_of(founder), memory_bytes=0)
        await client.node.overlay.join()
        genuine = world.relay.events[publisher_of(founder)]
        content = json.loads(genuine.content) | {"max_clients": 1, "client_count": 1}
        world.relay.hostile_events = [
            replace(genuine, event_id="f" * 64, publisher="e" * 64, content=json.dumps(content))
        ]
        await trio.sleep(60)
        await world.mesh.kill(founder)
        await trio.sleep(60)
        assert len(one.told("pool_listed") + two.told("pool_listed")) == 1


async def test_relays_that_refuse_are_told_of_once_and_tried_again(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        world.relay.outcome = PublishOutcome.RATE_LIMITED
        founder = await world.found()
        assert (await founder.wait_told("pool_unlisted"))["reason"] == "no_relay"
        await trio.sleep(60)
        assert len(founder.told("pool_unlisted")) == 1
        world.relay.outcome = PublishOutcome.ACCEPTED
        await founder.wait_told("pool_listed")


async def test_who_publishes_is_told_that_no_relay_answers(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        world.relay.is_dead = True
        founder = await world.found()
        told = await founder.wait_told("pool_unlisted")
        assert (told["reason"], world.relay.url in told["message"]) == ("no_relay", True)
        await trio.sleep(200)
        assert len(founder.told("pool_unlisted")) == 1
        world.relay.is_dead = False
        await founder.wait_told("pool_listed")


async def test_dead_relays_stop_nothing_and_the_listing_is_back_when_they_are(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder, one, two = await pool_of_three(world)
        world.relay.is_dead = True
        world.relay.events.clear()
        await trio.sleep(200)
        assert one.told("pool_listed") == two.told("pool_listed") == []
        world.relay.is_dead = False
        await trio.sleep(60)
        assert publisher_of(founder) in world.listed()


async def test_two_parts_of_a_pool_find_each_other_by_their_listings(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        founder, one, two = await pool_of_three(world)
        for node in (founder, two):
            world.mesh.overlay.cut(one.peer, node.peer)
        await one.wait_told("pool_listed")
        for node in (founder, two):
            world.mesh.overlay.mend(one.peer, node.peer)
        await trio.sleep(300)
        assert one.node.overlay.is_admitted(founder.peer)
        assert world.listed() == [publisher_of(founder)]


async def test_a_node_that_is_alone_finds_the_larger_pool_and_company_stays(autojump_clock: MockClock) -> None:
    async with open_pool_world() as world:
        large, member, _ = await pool_of_three(world)
        alone = await world.found("alone", is_searching=True)
        assert alone.node.pool is not None
        with trio.fail_after(300):
            await alone.node.pool.has_found.wait()
        assert alone.node.pool.found is not None
        assert alone.node.pool.found.mesh_id == large.node.overlay.mesh_id
        searching = world.serve_pool(member, "member too", is_searching=True)
        await trio.sleep(600)
        assert searching.found is None
