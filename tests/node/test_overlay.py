"""Hello and admission between whole nodes, and what a peer hears that does not keep to the rules."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.base.errors import ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, MAX_UNADMITTED_MESSAGE_BYTES, PROTOCOL_GENERATION, STAGE_PROTOCOL
from p2pmesh.core.admission import AdmissionPolicy
from p2pmesh.core.standing import Founding
from p2pmesh.node import credentials
from p2pmesh.node.announcements import AnnouncementBoard
from p2pmesh.node.channels import FrameStream, MessageStream
from p2pmesh.ports.network import PeerDisconnected
from p2pmesh.wire.announcement import Announcement, ServedModel, encode_announcement, peer_hash_of, topic_of
from p2pmesh.wire.membership_pass import LIFE_MS as PASS_LIFE_MS
from p2pmesh.wire.membership_pass import MembershipPass, decode_pass, encode_pass
from p2pmesh.wire.messages.admission import Hello, Welcome
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.artifacts import FetchArtifact
from p2pmesh.wire.messages.generation import Generate, SamplingEntry
from p2pmesh.wire.messages.runs import ProbeRun
from p2pmesh.wire.requirements import MeshRequirements
from p2pmesh.wire.stage import FrameKind, StageFrame
from p2pmesh.wire.varint import encode_varint
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


async def test_a_welcome_hands_over_whom_the_hello_does_not_know(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        members = [await mesh.join(name, founder) for name in ("first", "second", "third")]
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            stranger = Stranger(network, identity, founder)
            welcome = await stranger.say(stranger.hello(knows=tuple(peer_hash_of(one.peer) for one in members[:2])))
        assert len(welcome.known) == 1
        said: list[tuple[bytes, ...]] = []
        sealed_others = AnnouncementBoard.sealed_others

        def listen(board: AnnouncementBoard, besides: PeerId, knows: tuple[bytes, ...]) -> tuple[bytes, ...]:
            said.append(knows)
            return sealed_others(board, besides, knows)

        monkeypatch.setattr(AnnouncementBoard, "sealed_others", listen)
        first, second, third = members
        await first.node.overlay.ensure_admitted(second.peer)
        assert {*said[0]} >= {peer_hash_of(one.peer) for one in (founder, second, third)}


async def test_a_member_hands_on_the_invite_it_came_with(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = founder.node.overlay.make_invite()
        member = await mesh.start("member", invite)
        await member.node.overlay.join()
        assert member.node.overlay.make_invite() == invite
        await mesh.join("third", member)
        assert len(founder.told("peer_joined")) == 2


async def test_whoever_joins_is_named_at_its_first_connection(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        member = await mesh.join("member", founder)
        assert founder.told("peer_joined") == [{"peer_id": member.peer, "name": "member"}]
        assert member.told("peer_joined") == [{"peer_id": founder.peer, "name": "founder"}]


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
            for message in (ProbeRun(bytes(16)), FetchArtifact("0" * 64, "0" * 64, 0, 1)):
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


async def test_whoever_finds_no_place_is_told_so_and_put_out(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        founder.node.overlay._admission._policy = AdmissionPolicy(max_admitted=0)
        error = await refused(mesh, founder)
        assert error.code is ErrorCode.OVERLOADED
        assert "join by another peer" in error.message


# --- several tasks on the way to one peer


async def test_those_that_wait_for_a_dial_fail_with_it_unless_they_know_other_addresses(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member, other = await mesh.join("member", founder), await mesh.join("other", founder)
        mesh.overlay.cut(member.peer, other.peer)
        dialled = []
        connect = mesh.overlay.connect

        def count(*given: Any) -> bool:
            dialled.append(given[1])
            return connect(*given)

        monkeypatch.setattr(mesh.overlay, "connect", count)
        failures = []

        async def reach(addresses: tuple[str, ...] = ()) -> None:
            with pytest.raises(P2PMeshError) as raised:
                await member.node.overlay.ensure_admitted(other.peer, addresses)
            failures.append(raised.value.code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(reach)
        assert dialled == [other.peer]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reach)
            await trio.lowlevel.checkpoint()  # the turn is its own: trio starts tasks of one moment in any order
            nursery.start_soon(reach, ("/ip4/127.0.0.1/tcp/9",))
        assert dialled == [other.peer] * 3
        assert failures == [ErrorCode.PEER_UNREACHABLE] * 7


async def test_a_peer_whose_welcome_is_on_its_way_may_say_what_a_member_may(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        overlay = founder.node.overlay
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            is_asked = trio.Event()

            async def answer_never(stream: Any) -> None:
                is_asked.set()
                await trio.sleep_forever()

            async def say_hello() -> None:
                with pytest.raises(P2PMeshError):
                    await overlay.ensure_admitted(identity.peer_id, network.addresses())

            network.serve(CONTROL_PROTOCOL, answer_never)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(say_hello)
                await is_asked.wait()
                stream = MessageStream(await network.open_stream(founder.peer, CONTROL_PROTOCOL, 10))
                sampling = SamplingEntry(0.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, 0)
                await stream.send(Generate(bytes(16), "m", sampling, text="x" * 2 * MAX_UNADMITTED_MESSAGE_BYTES))
                with pytest.raises(P2PMeshError) as raised:
                    await stream.expect(Welcome, 20)
                assert raised.value.code is ErrorCode.NOT_ADMITTED
        assert overlay._turns == {}  # whoever waited last leaves nothing behind either


# --- speakers of whom only gossip tells


def phantom(node: MeshNode, name: str, **changes: Any) -> bytes:
    """What a peer of a fresh key announces in the mesh of ``node``."""
    identity = fake_identity(name)
    said = Announcement(
        peer_id=identity.peer_id, mesh_id=node.node.overlay.mesh_id, name=name, version="0",
        incarnation=UNIX_MS_AT_START,
        sequence=1, expires_unix_ms=UNIX_MS_AT_START + DAY_MS, addresses=("/ip4/127.0.0.1/tcp/9",), memory_bytes=0,
        free_bytes=0, models=(ServedModel("phantom", "ab" * 32, bytes(16), 1, 4096),),
    )  # fmt: skip
    return encode_announcement(replace(said, **changes), identity.public_key, identity.sign)


def passed(name: str, by: MeshNode, **changes: Any) -> tuple[bytes, ...]:
    """A chain of ``name``, granted by a node: what an invite that leaked gets."""
    signer = fake_identity(by.node.overlay.board.own().name)
    now = UNIX_MS_AT_START
    granted = MembershipPass(
        by.node.overlay.mesh_id, fake_identity(name).peer_id, b"i" * 16, now, now + PASS_LIFE_MS - DAY_MS
    )
    key = b"" if by.node.overlay.is_founder else signer.public_key
    sealed = encode_pass(replace(granted, **changes), key, signer.sign)
    return (sealed, *by.node.overlay.credentials.passes)


async def publish(node: MeshNode, data: bytes) -> None:
    await node.network.publish(topic_of(node.node.overlay.mesh_id), data)
    await trio.sleep(5)


def listed(nodes: list[MeshNode]) -> set[str]:
    return {model for node in nodes for model in node.node.routable_models()}


async def test_made_up_peers_are_neither_kept_nor_passed_on_even_from_a_member(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member, liar = await mesh.join("member", founder), await mesh.join("liar", founder)
        crowd = [founder, member, liar]
        words = {
            "no passes": phantom(liar, "ghost"),
            "another's passes": phantom(liar, "ghost", passes=liar.node.overlay.credentials.passes),
            "its own pass": phantom(liar, "ghost", passes=(passed("ghost", liar)[0],)),
            "garbage": phantom(liar, "ghost", passes=(b"x",)),
            "a pass that never ends": phantom(
                liar, "ghost", passes=passed("ghost", liar, issued_unix_ms=0, expires_unix_ms=2**53)
            ),
            "a pass of another day": phantom(
                liar, "ghost",
                passes=passed(
                    "ghost", liar, issued_unix_ms=UNIX_MS_AT_START + 2 * DAY_MS,
                    expires_unix_ms=UNIX_MS_AT_START + PASS_LIFE_MS + 2 * DAY_MS,
                ),
            ),
            "a pass that was over before it began": phantom(
                liar, "ghost",
                passes=passed("ghost", liar, issued_unix_ms=UNIX_MS_AT_START + DAY_MS,
                              expires_unix_ms=UNIX_MS_AT_START + DAY_MS - 1),
            ),
        }  # fmt: skip
        for name, word in words.items():
            await publish(liar, word)
            for node in crowd:
                assert node.node.overlay.board.find(fake_identity("ghost").peer_id) is None, name
        assert listed(crowd) == set()


async def test_a_member_that_only_gossip_tells_of_is_known_by_its_passes(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member, sponsor = await mesh.join("member", founder), await mesh.join("sponsor", founder)
        await publish(sponsor, phantom(sponsor, "guest", passes=passed("guest", sponsor)))
        guest = fake_identity("guest").peer_id
        assert all(node.node.overlay.board.find(guest) is not None for node in (founder, member))


@pytest.mark.parametrize("removed", ["guest", "sponsor"])
async def test_a_removed_peer_is_in_no_view_whatever_life_it_announces(removed: str, autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member, sponsor = await mesh.join("member", founder), await mesh.join("sponsor", founder)
        chain = passed("guest", sponsor)
        await publish(sponsor, phantom(sponsor, "guest", passes=chain))
        guest = fake_identity("guest").peer_id
        await founder.node.overlay.revocations.remove_peer(fake_identity(removed).peer_id)
        await trio.sleep(5)
        for life in range(1, 4):
            word = phantom(member, "guest", passes=chain, incarnation=UNIX_MS_AT_START + life * DAY_MS)
            await publish(member, word)
            for node in (founder, member):
                assert node.node.overlay.board.find(guest) is None
                assert node.node.overlay.board._machine.candidate(guest) is None
            await trio.sleep(400)  # its tombstone is gone, too
        assert listed([founder, member]) == set()


async def test_an_owner_that_the_mesh_asks_for_is_asked_of_speakers_too(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        key = fake_identity("founder").public_key
        founder = await mesh.found(founding=Founding(MeshRequirements(key, requires_owner=True)))
        board = founder.node.overlay.board
        board.learn(phantom(founder, "guest", passes=passed("guest", founder)))
        assert board.find(fake_identity("guest").peer_id) is None


async def test_a_repeated_chain_costs_no_signatures(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        sponsor = await mesh.join("sponsor", founder)
        looked: list[bytes] = []

        def look(sealed: bytes, *rest: Any) -> Any:
            looked.append(sealed)
            return decode_pass(sealed, *rest)

        monkeypatch.setattr(credentials, "decode_pass", look)
        monkeypatch.setattr(credentials, "MAX_OPENED_PASSES", 4)
        chain = passed("guest", sponsor)
        for sequence in range(2, 12):
            sponsor.node.overlay.board.learn(phantom(sponsor, "guest", passes=chain, sequence=sequence))
        assert looked == [chain[0]]
        for number in range(20):
            name = f"guest {number}"
            sponsor.node.overlay.board.learn(phantom(sponsor, name, passes=passed(name, sponsor)))
        assert len(sponsor.node.overlay.credentials._opened) == 4
