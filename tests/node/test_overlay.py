"""Hello and admission between whole nodes, and what a peer hears that does not keep to the rules."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.base.errors import ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.ids import Digest, MeshId
from p2pmesh.base.limits import CONTROL_PROTOCOL, PROTOCOL_GENERATION, STAGE_PROTOCOL
from p2pmesh.node.channels import FrameStream, MessageStream
from p2pmesh.ports.network import PeerDisconnected
from p2pmesh.wire.announcement import Announcement, encode_announcement
from p2pmesh.wire.control import Done, FetchArtifact, Hello, ProbeRun, Welcome, encode_varint
from p2pmesh.wire.stage import FrameKind, StageFrame
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import PATIENCE_S, UNIX_MS_AT_START, Mesh, MeshNode, open_mesh
from tests.fakes.network import FakeNetwork

DAY_MS = 24 * 3600 * 1000


class Stranger:
    """A bare network with a key, which says what it likes."""

    def __init__(self, network: FakeNetwork, identity: NodeIdentity, host: MeshNode) -> None:
        self.network = network
        self.identity = identity
        self.host = host

    def announcement(self, **changes: Any) -> bytes:
        said = Announcement(
            peer_id=self.identity.peer_id, mesh_id=self.host.node.overlay.mesh_id, name="stranger", version="0",
            incarnation=1, sequence=1, expires_unix_ms=UNIX_MS_AT_START + DAY_MS, addresses=(), memory_bytes=0,
            free_bytes=0, models=(),
        )  # fmt: skip
        return encode_announcement(replace(said, **changes), self.identity.public_key, self.identity.sign)

    def hello(self, **changes: Any) -> Hello:
        invite = self.host.node.overlay.make_invite()
        hello = Hello(PROTOCOL_GENERATION, self.host.node.overlay.mesh_id, invite, (), self.announcement())
        return replace(hello, **changes)

    async def open(self, protocol: str = CONTROL_PROTOCOL) -> MessageStream:
        await self.network.dial(self.host.peer, self.host.network.addresses(), 10)
        return MessageStream(await self.network.open_stream(self.host.peer, protocol, 10))

    async def say(self, message: Any, answer: type = Welcome) -> Any:
        stream = await self.open()
        await stream.send(message)
        return await stream.expect(answer, 20)


async def refused(mesh: Mesh, host: MeshNode, **changes: Any) -> P2PMeshError:
    """The error that a stranger's hello is answered with."""
    identity = fake_identity("stranger")
    async with mesh.overlay.open_network(identity.peer_id) as network:
        stranger = Stranger(network, identity, host)
        with pytest.raises(P2PMeshError) as raised:
            await stranger.say(stranger.hello(**changes))
        assert not host.node.overlay.is_admitted(identity.peer_id)
        await put_out(network)
    return raised.value


async def put_out(network: FakeNetwork) -> None:
    """Until the only other peer has ended the connection."""
    with trio.fail_after(60):
        while not isinstance(await network.connection_event(), PeerDisconnected):
            pass
    assert not network.connected_peers()


async def test_both_sides_of_a_hello_admit_each_other_and_learn_the_others(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        first = await mesh.join("first", founder)
        second = await mesh.join("second", founder)
        assert founder.node.overlay.is_admitted(first.peer)
        assert first.node.overlay.is_admitted(founder.peer)
        assert second.node.overlay.board.find(first.peer) is not None
        assert second.node.overlay.mesh_id == founder.node.overlay.mesh_id
        await second.node.overlay.ensure_admitted(first.peer)
        assert first.node.overlay.is_admitted(second.peer)


async def test_a_member_hands_on_the_invite_it_came_with(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = founder.node.overlay.make_invite()
        member = await mesh.start("member", invite)
        await member.node.overlay.join()
        assert member.node.overlay.make_invite() == invite
        await mesh.join("third", member)
        assert len(founder.told("peer_joined")) == 2


async def test_an_invite_that_expired_for_the_host_is_refused(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        old = founder.node.overlay.make_invite(life_ms=60_000)
        await trio.sleep(60 + 31)
        late = await mesh.start("late", old, wall_offset_ms=-DAY_MS)
        with pytest.raises(P2PMeshError) as raised:
            await late.node.overlay.join()
        assert raised.value.code is ErrorCode.INVITE_EXPIRED
        assert founder.told("peer_refused")[0]["code"] == "invite_expired"


async def test_an_expired_invite_is_refused_before_anybody_is_dialled(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        old = founder.node.overlay.make_invite(life_ms=60_000)
        await trio.sleep(60 + 31)
        with pytest.raises(ExceptionGroup) as raised:
            async with open_mesh() as other:
                await other.start("late", old)
        assert raised.group_contains(RemoteProtocolError, match="expired")
        assert founder.told("peer_refused") == []


async def test_an_invite_of_another_mesh_is_refused(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        other = await mesh.found("other founder")
        error = await refused(mesh, founder, invite=other.node.overlay.make_invite())
        assert error.code is ErrorCode.INVITE_FOREIGN


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"invite": ""}, ErrorCode.INVITE_MISSING),
        ({"invite": "p2pmesh2-AAAA"}, ErrorCode.INVITE_MALFORMED),
        ({"generation": PROTOCOL_GENERATION + 1}, ErrorCode.GENERATION_UNSUPPORTED),
        ({"mesh_id": MeshId("0" * 32)}, ErrorCode.INVITE_FOREIGN),
    ],
)
async def test_a_hello_without_a_proof_is_refused(
    autojump_clock: MockClock, changes: dict[str, Any], code: ErrorCode
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        assert (await refused(mesh, founder, **changes)).code is code
        assert founder.told("peer_refused")[0]["code"] == code.value


async def test_nobody_comes_in_under_anothers_announcement(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        assert (await refused(mesh, founder, announcement=member.node.overlay.board.seal_own())).code is (
            ErrorCode.SIGNATURE_INVALID
        )


async def test_a_peer_that_is_not_admitted_is_told_to_say_hello(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            stranger = Stranger(network, identity, founder)
            for message in (ProbeRun(bytes(16)), FetchArtifact(Digest("0" * 64), 0)):
                with pytest.raises(P2PMeshError) as raised:
                    await stranger.say(message)
                assert raised.value.code is ErrorCode.NOT_ADMITTED
            frames = FrameStream(await network.open_stream(founder.peer, STAGE_PROTOCOL, 10))
            with suppress(P2PMeshError):  # the stream may be gone already
                await frames.send(StageFrame(FrameKind.OPEN, bytes(16), bytes(16)))
            with pytest.raises(P2PMeshError):
                await frames.receive()


async def test_a_peer_that_is_not_admitted_may_send_little(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            stranger = Stranger(network, identity, founder)
            await stranger.open()
            raw = await network.open_stream(founder.peer, CONTROL_PROTOCOL, 10)
            await raw.send(encode_varint(100_000))
            with pytest.raises(P2PMeshError) as raised:
                await MessageStream(raw).expect(Welcome, 20)
            assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_a_silent_peer_is_put_out(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            await network.dial(founder.peer, founder.network.addresses(), 10)
            await put_out(network)


async def test_a_message_that_opens_nothing_is_refused_and_the_peer_stays(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            stranger = Stranger(network, identity, founder)
            await stranger.say(stranger.hello())
            with pytest.raises(P2PMeshError) as raised:
                await stranger.say(Done())
            assert raised.value.code is ErrorCode.MESSAGE_UNEXPECTED
            assert founder.node.overlay.is_admitted(identity.peer_id)


async def test_a_peer_that_is_gone_is_forgotten_and_comes_back(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        mesh.overlay.cut(founder.peer, member.peer)
        await founder.wait_told("peer_suspected")
        board = founder.node.overlay.board
        with trio.fail_after(PATIENCE_S):
            while board.find(member.peer) is not None:
                await board.changes.wait_beyond(board.changes.count)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.node.overlay.stay_joined)
            await member.wait_told("join_failed", times=2)
            mesh.overlay.mend(founder.peer, member.peer)
            await founder.wait_told("peer_joined", times=2)
            nursery.cancel_scope.cancel()
        assert founder.node.overlay.board.find(member.peer) is not None
