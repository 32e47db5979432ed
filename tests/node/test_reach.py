"""How a node is reached, over fakes: witnesses, reservations, guests, direct paths."""

import trio
from trio.testing import MockClock

from p2pmesh.base.limits import MAX_ADDRESS_BYTES
from p2pmesh.core.reachability import DialBack, NatKind, Reachability
from p2pmesh.core.relaying import ReachSettings, RelayService
from p2pmesh.node.reach import GRACE_S, HOSTS_EVERY_S, LOOK_EVERY_S, Reach
from p2pmesh.ports.reach import Sight
from tests.fakes.mesh import Mesh, MeshNode, open_mesh

OURS, NAT = "10.0.0.2", "203.0.113.7"
HOSTS = ("198.51.100.10", "192.0.2.5")


async def seen_by_two(mesh: Mesh) -> tuple[MeshNode, MeshNode, MeshNode]:
    """A node with direct connections to two others, of different networks, that it has dialled."""
    founder = await mesh.found()
    witness, node = await mesh.join("witness", founder), await mesh.join("node", founder)
    await node.node.overlay.ensure_admitted(witness.peer, witness.network.addresses())
    reach = node.network.reach
    reach.hosts, reach.port = frozenset({OURS}), 4001
    await trio.sleep(HOSTS_EVERY_S + LOOK_EVERY_S)
    for other, host in zip((founder, witness), HOSTS, strict=True):
        reach.remote_hosts[other.peer] = host
        reach.dialled[other.peer] = f"/ip4/{host}/tcp/4001"
        reach.change_paths(other.peer, direct=True)
    return founder, witness, node


def translate(node: MeshNode, *others: MeshNode) -> None:
    """Others see the node at its router, with the ports that it has."""
    for number, other in enumerate(others):
        node.network.reach.sights[other.peer] = Sight(NAT, 50_000 + number, 50_000 + number)


async def test_a_node_that_nobody_translates_asks_for_no_relay(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, witness, node = await seen_by_two(mesh)
        for number, other in enumerate((founder, witness)):
            node.network.reach.sights[other.peer] = Sight(OURS, 50_000 + number, 50_000 + number)
            node.network.reach.dial_backs[other.peer] = DialBack.REACHED
        await trio.sleep(60)
        report = node.node.control_plane.reach.report()
        assert (report.verdict, report.nat, report.needs_relay) == (Reachability.PUBLIC, NatKind.NONE, False)
        assert report.relaying.is_announced
        assert node.node.overlay.board.own().is_relay
        assert ("reserve", founder.peer) not in node.network.reach.asked
        assert node.network.reach.offered is not None
        assert node.node.status()["reach"]["reachability"] == "public"


async def test_behind_a_nat_it_keeps_places_at_relays_and_announces_them(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, witness, node = await seen_by_two(mesh)
        reach = node.network.reach
        translate(node, founder, witness)
        reach.dial_backs = dict.fromkeys((founder.peer, witness.peer), DialBack.FAILED)
        reach.grants = dict.fromkeys((founder.peer, witness.peer), 3600)
        await trio.sleep(60)
        report = node.node.control_plane.reach.report()
        assert (report.verdict, report.nat, report.needs_relay) == (Reachability.PRIVATE, NatKind.CONE, True)
        assert sorted(held.relay for held in report.reservations) == sorted((founder.peer, witness.peer))
        assert reach.besides[1] == tuple(
            f"/ip4/{host}/tcp/4001/p2p/{peer}/p2p-circuit"
            for peer, host in sorted(zip((founder.peer, witness.peer), HOSTS, strict=True))
        )
        assert f"/ip4/{NAT}/tcp/4001" in reach.own  # where it may be met, by the ports that stay
        assert reach.offered is None  # nobody could be led through it
        assert len(node.told("relays_changed")) == 2


async def test_the_only_relay_is_asked_again_after_it_was_away(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, _, node = await seen_by_two(mesh)
        reach = node.network.reach
        translate(node, founder)
        reach.grants = {founder.peer: 3600}
        await trio.sleep(30)
        assert [held.relay for held in node.node.control_plane.reach.report().reservations] == [founder.peer]
        assert founder.peer in reach.guests
        reach.grants = {}
        reach.change_paths(founder.peer)
        await trio.sleep(1)
        assert node.node.control_plane.reach.report().reservations == ()
        assert founder.peer not in reach.guests
        assert reach.besides[1] == ()
        reach.grants = {founder.peer: 3600}
        reach.change_paths(founder.peer, direct=True)
        await trio.sleep(10)
        assert [held.relay for held in node.node.control_plane.reach.report().reservations] == [founder.peer]


async def test_an_address_of_a_relay_that_would_make_our_own_too_long_is_left_out(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, witness, node = await seen_by_two(mesh)
        reach = node.network.reach
        translate(node, founder, witness)
        reach.grants = dict.fromkeys((founder.peer, witness.peer), 3600)
        reach.dialled[founder.peer] = f"/dns4/{'a' * 450}/tcp/4001"
        await trio.sleep(60)
        assert {held.relay for held in node.node.control_plane.reach.report().reservations} >= {witness.peer}
        assert reach.besides[1]
        assert all(len(f"{text}/p2p/{node.peer}") <= MAX_ADDRESS_BYTES for text in reach.besides[1])


async def test_a_relay_that_is_full_gives_way_to_another(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, witness, node = await seen_by_two(mesh)
        translate(node, founder, witness)
        node.network.reach.grants = {witness.peer: 3600}
        await trio.sleep(30)
        assert [held.relay for held in node.node.control_plane.reach.report().reservations] == [witness.peer]


async def test_a_witness_cannot_have_us_seen_on_our_own_machine(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, _, node = await seen_by_two(mesh)
        node.network.reach.sights[founder.peer] = Sight("127.0.0.1", 50_000, 50_000)
        await trio.sleep(60)
        report = node.node.control_plane.reach.report()
        assert (report.observed_hosts, report.needs_relay) == ((), False)
        assert "/ip4/127.0.0.1/tcp/4001" not in node.network.reach.own


async def test_a_guest_of_a_relay_may_stay_unadmitted_and_no_other_may(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        guest, other = await mesh.found("guest"), await mesh.found("other")
        founder.network.reach.guests.add(guest.peer)
        for stranger in (guest, other):
            await stranger.network.dial(founder.peer, founder.network.addresses(), 5)
            stranger.node.overlay.is_guest = lambda peer: True
        await trio.sleep(60)
        assert guest.peer in founder.network.connected_peers()
        assert other.peer not in founder.network.connected_peers()
        founder.network.reach.guests.clear()
        await trio.sleep(30)
        assert guest.peer not in founder.network.connected_peers()


async def test_a_relayed_peer_is_tried_directly_and_the_relayed_connection_ends_later(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        node = await mesh.join("node", founder)
        reach = node.network.reach
        reach.punchable.add(founder.peer)
        reach.change_paths(founder.peer, relayed=True)
        told = await node.wait_told("path_upgraded")
        assert (told["peer_id"], told["path"], told["tries"]) == (founder.peer, "direct", 1)
        assert ("close relayed", founder.peer) not in reach.asked
        await trio.sleep(GRACE_S + 11)
        assert reach.asked[-1] == ("close relayed", founder.peer)


async def test_the_end_that_dialled_waits_for_the_other_to_try(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        node = await mesh.join("node", founder)
        node.network.reach.change_paths(founder.peer, relayed=True, inbound=False)
        await trio.sleep(100)
        assert node.network.reach.asked == []
        assert node.node.control_plane.reach.report().relayed_peers == 1


async def test_what_the_operator_says_of_relaying_holds_whatever_witnesses_say(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        for service, is_offered in ((RelayService.ON, True), (RelayService.OFF, False)):
            node = await mesh.found(service.value)
            settings = ReachSettings(service=service)
            reach = Reach(node.node.overlay, node.node.overlay._ports, settings, node.report)
            with trio.move_on_after(1):
                await reach.run()
            assert (node.network.reach.offered is not None) is is_offered
            assert node.node.overlay.board.own().is_relay is is_offered


async def test_a_relay_that_the_operator_names_is_asked_before_anybody_is_met(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        relay, node = await mesh.found("relay"), await mesh.found("node")
        named = f"{relay.network.addresses()[0].partition('/p2p/')[0]}/p2p/{relay.peer}"
        node.network.reach.grants = {relay.peer: 3600}
        await node.network.dial(relay.peer, relay.network.addresses(), 5)
        node.network.reach.change_paths(relay.peer, direct=True)
        reach = Reach(node.node.overlay, node.node.overlay._ports, ReachSettings(relays=(named,)), node.report)
        told: list[int] = []
        reach.on_announced = lambda: told.append(1)
        with trio.move_on_after(5):
            await reach.run()
        assert ("reserve", relay.peer) in node.network.reach.asked
        assert told
        assert node.network.reach.besides[1] == (f"{named}/p2p-circuit",)
        assert not relay.node.overlay.is_admitted(node.peer)  # it belongs to another mesh, and is no member of ours
