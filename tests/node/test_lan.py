"""Members of one mesh find each other on a link; whoever only pretends to be one sees no invite."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.limits import CONTROL_PROTOCOL
from p2pmesh.node.channels import MessageStream
from p2pmesh.ports.network import ByteStream
from p2pmesh.wire.invite import Invite, encode_invite
from p2pmesh.wire.lan_record import LanRecord, fingerprint_of
from p2pmesh.wire.messages.admission import Hello, Proof, ProofQuery
from tests.fakes.identity import fake_identity
from tests.fakes.lan import FakeLink
from tests.fakes.mesh import UNIX_MS_AT_START, Mesh, MeshNode, open_mesh


def invite_without_address(founder: MeshNode, **changes: Any) -> str:
    """What a person has who was told nothing of where the mesh is."""
    identity = fake_identity("founder")
    invite = Invite(
        bytes(16), founder.node.overlay.credentials.requirements, UNIX_MS_AT_START, UNIX_MS_AT_START + 3_600_000
    )
    return encode_invite(replace(invite, **changes), identity.public_key, identity.sign)


async def start_two(mesh: Mesh, link: FakeLink) -> tuple[MeshNode, MeshNode]:
    founder = await mesh.found("founder", lan=link.open())
    member = await mesh.join("member", founder, lan=link.open())
    return founder, member


async def test_an_invite_without_any_address_is_enough_on_the_link(autojump_clock: trio.abc.Clock) -> None:
    link = FakeLink()
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", lan=link.open())
        joiner = await mesh.start("joiner", invite_without_address(founder), lan=link.open())
        await joiner.node.overlay.join()
        assert joiner.node.overlay.is_admitted(founder.peer)
        assert joiner.told("lan_peer_met")


async def test_a_member_lets_in_while_the_founder_is_away(autojump_clock: trio.abc.Clock) -> None:
    link = FakeLink()
    async with open_mesh() as mesh:
        founder, member = await start_two(mesh, link)
        invite = invite_without_address(founder)
        link.lans[0].tell(None)
        await mesh.kill(founder)
        joiner = await mesh.start("joiner", invite, lan=link.open())
        await joiner.node.overlay.join()
        assert joiner.node.overlay.admitted_peers() == (member.peer,)


async def test_without_anybody_there_joining_fails_after_a_while_with_the_old_reason(
    autojump_clock: trio.abc.Clock,
) -> None:
    link = FakeLink()
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        invite = founder.node.overlay.make_invite()
        await mesh.kill(founder)
        joiner = await mesh.start("joiner", invite, lan=link.open())
        with pytest.raises(PeerUnavailable) as raised:
            await joiner.node.overlay.join()
        assert raised.value.code is ErrorCode.PEER_UNREACHABLE


async def test_nodes_of_another_mesh_are_passed_over(autojump_clock: trio.abc.Clock) -> None:
    link = FakeLink()
    async with open_mesh() as mesh:
        first = await mesh.found("founder", lan=link.open())
        second = await mesh.found("other", lan=link.open())
        await trio.sleep(100)
        assert not first.network.connected_peers()
        assert not second.told("lan_peer_missed")


async def test_whoever_pretends_to_be_a_member_gets_no_invite(autojump_clock: trio.abc.Clock) -> None:
    """It knows the mesh id, so that its record is right; it has no pass."""
    link = FakeLink()
    heard: list[object] = []

    async def serve(raw: ByteStream) -> None:
        stream = MessageStream(raw)
        message = await stream.receive(60)
        heard.append(message)
        if isinstance(message, ProofQuery):
            await stream.send(Proof(()))
            await stream.finish()

    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        invite = invite_without_address(founder)
        thief = fake_identity("thief").peer_id
        async with mesh.overlay.open_network(thief) as network:
            network.serve(CONTROL_PROTOCOL, serve)
            mesh_id, challenge = founder.node.overlay.mesh_id, bytes(8)
            address = network.addresses()[0].partition("/p2p/")[0]
            link.forge(LanRecord(thief, (address,), challenge, fingerprint_of(mesh_id, thief, challenge)))
            joiner = await mesh.start("joiner", invite, lan=link.open())
            with pytest.raises(ConfigError):
                await joiner.node.overlay.join()
            await trio.sleep(60)
            assert ProofQuery(mesh_id) in heard
            assert not any(isinstance(message, Hello) for message in heard)
            assert joiner.told("lan_peer_missed")[0]["code"] == ErrorCode.INVITE_MISSING
            assert 2 <= len(heard) <= 4  # tried again, ever more rarely


async def test_two_halves_of_a_mesh_that_do_not_know_each_other_find_together(autojump_clock: trio.abc.Clock) -> None:
    link = FakeLink()
    async with open_mesh() as mesh:
        founder, member = await start_two(mesh, link)
        mesh.overlay.cut(founder.peer, member.peer)
        await trio.sleep(400)  # long enough that neither has the other in view
        assert not member.node.overlay.admitted_peers()
        mesh.overlay.mend(founder.peer, member.peer)
        await trio.sleep(400)
        assert member.node.overlay.is_admitted(founder.peer)


async def test_a_question_about_another_mesh_is_refused(autojump_clock: trio.abc.Clock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        stranger = fake_identity("stranger").peer_id
        async with mesh.overlay.open_network(stranger) as network:
            await network.dial(founder.peer, founder.network.addresses(), 5.0)
            stream = MessageStream(await network.open_stream(founder.peer, CONTROL_PROTOCOL, 5.0))
            await stream.send(ProofQuery("0" * 32))
            with pytest.raises(RemoteProtocolError) as raised:
                await stream.expect(Proof, 5.0)
            assert raised.value.code is ErrorCode.INVITE_FOREIGN


async def test_without_the_port_nothing_is_told(autojump_clock: trio.abc.Clock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        assert founder.node.control_plane.lan.describe() is None
        with_lan = await mesh.found("other", lan=FakeLink().open())
        await trio.sleep(1)
        described = with_lan.node.control_plane.lan.describe()
        assert described is not None
        assert described["is_told"]
