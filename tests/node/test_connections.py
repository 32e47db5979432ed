"""Connections of whole nodes over the fake network: kept where they are needed, ended by agreement where not."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.limits import CONTROL_PROTOCOL
from p2pmesh.core import connections
from p2pmesh.node import liveness
from p2pmesh.node.connections import LOOK_EVERY_S
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.liveness import Parting
from tests.fakes.mesh import Mesh, MeshNode, open_mesh

SMALL = replace(connections.DEFAULT_POLICY, all_up_to=3, opened_below=5, standing=5, near_kept=4)
"""Among eight peers, four connections each cannot make two islands."""


async def crowd(mesh: Mesh, count: int) -> list[MeshNode]:
    """A founder and members, each connected to all."""
    founder = await mesh.found()
    nodes = [founder]
    for number in range(count - 1):
        node = await mesh.join(f"member {number}", founder)
        for other in nodes:
            await node.node.overlay.ensure_admitted(other.peer, other.network.addresses())
        nodes.append(node)
    return nodes


def make_large(nodes: list[MeshNode], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the overlay were large: what counts as large, and as many connections, is little here."""
    choose = connections.choose_idle
    monkeypatch.setattr(connections, "choose_idle", lambda standing: choose(standing, SMALL))
    monkeypatch.setattr(connections, "is_large", lambda live, has_shards: live > SMALL.all_up_to)
    monkeypatch.setattr(liveness, "CONNECTION_POLICY", SMALL)


def health_told(nodes: list[MeshNode]) -> set[str]:
    names = ("peer_suspected", "peer_recovered", "peer_failed", "peer_left")
    return {name for node in nodes for name, _ in node.reports if name in names}


async def test_a_small_overlay_stays_connected_all_over(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await crowd(mesh, 6)
        await trio.sleep(600)
        assert {len(node.network.connected_peers()) for node in nodes} == {5}


async def test_in_a_large_overlay_idle_connections_end_and_nobody_is_doubted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mesh() as mesh:
        nodes = await crowd(mesh, 8)
        make_large(nodes, monkeypatch)
        await trio.sleep(1200)
        counts = [len(node.network.connected_peers()) for node in nodes]
        assert sum(counts) < 7 * 8
        assert min(counts) >= SMALL.near_kept
        assert health_told(nodes) == set()
        for node in nodes:
            assert len(node.node.overlay.board.others()) == 7
            assert {peer["health"] for peer in node.node.status()["peers"]} == {"alive"}


async def test_what_gossip_goes_over_or_an_exchange_is_open_on_stays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mesh() as mesh:
        nodes = await crowd(mesh, 8)
        make_large(nodes, monkeypatch)
        founder, gossiping, exchanging, *_ = nodes
        founder.network.gossip_mesh.add(gossiping.peer)
        opened = await founder.network.open_stream(exchanging.peer, CONTROL_PROTOCOL, 5)
        await trio.sleep(1200)
        assert {gossiping.peer, exchanging.peer} <= founder.network.connected_peers()
        assert len(founder.network.connected_peers()) < 7
        await opened.reset()


async def test_whoever_needs_the_connection_does_not_agree_to_its_end(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, member = await crowd(mesh, 2)
        founder.network.gossip_mesh.add(member.peer)
        stream = await member.node.overlay.open_exchange(founder.peer, Parting())
        with pytest.raises(P2PMeshError):
            await stream.expect(Done, 5)
        founder.network.gossip_mesh.clear()
        stream = await member.node.overlay.open_exchange(founder.peer, Parting())
        assert await stream.expect(Done, 5) == Done()


async def test_nobody_is_dialled_in_order_to_part(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member, other = await mesh.join("member", founder), await mesh.join("other", founder)
        await member.node.control_plane.connections._part(other.peer)
        assert other.peer not in {told["peer_id"] for told in member.told("peer_joined")}


async def test_an_agreement_does_not_hide_an_end_that_comes_long_after(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, member = await crowd(mesh, 2)
        stream = await member.node.overlay.open_exchange(founder.peer, Parting())
        await stream.expect(Done, 5)
        await trio.sleep(60)
        await mesh.kill(member)
        assert await founder.wait_told("peer_suspected") == {"peer_id": member.peer, "name": "member 0"}


async def test_a_peer_that_dies_right_after_parting_is_found_out_by_a_probe(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, member, other = await crowd(mesh, 3)
        stream = await member.node.overlay.open_exchange(founder.peer, Parting())
        await stream.expect(Done, 5)
        await mesh.kill(member)
        for node in (founder, other):
            assert (await node.wait_told("peer_failed"))["peer_id"] == member.peer


async def test_a_node_of_a_large_overlay_does_not_cling_to_those_it_came_in_by(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mesh() as mesh:
        nodes = await crowd(mesh, 8)
        member = nodes[-1]
        monkeypatch.setattr(connections, "is_large", lambda live, has_shards: True)
        entrance = ((nodes[0].peer, nodes[0].network.addresses()),)
        monkeypatch.setattr(member.node.overlay.credentials, "bootstrap", lambda: entrance)
        assert member.node.overlay._is_joined()
        mesh.overlay.cut(member.peer, nodes[0].peer)
        await trio.sleep(0.1)
        assert not member.node.overlay.is_admitted(nodes[0].peer)
        assert member.node.overlay._is_joined()
        monkeypatch.setattr(connections, "is_large", lambda live, has_shards: False)
        assert not member.node.overlay._is_joined()


async def test_one_look_walks_the_connections_once(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_mesh() as mesh:
        network = (await crowd(mesh, 6))[0].network
        walks: list[int] = []
        ask = network.uses
        monkeypatch.setattr(network, "uses", lambda: walks.append(len(network.connected_peers())) or ask())
        await trio.sleep(1.1 * LOOK_EVERY_S)
        assert walks == [5]
