"""Bans and throttles in whole nodes over the fake network: who is blamed, what follows, what is told."""

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.limits import CONTROL_PROTOCOL, STAGE_PROTOCOL
from p2pmesh.core.conduct import Offence
from p2pmesh.node.conduct import MAX_THROTTLED_STREAMS
from p2pmesh.ports.network import FaultKind, PeerFault
from p2pmesh.wire.control import encode_control
from p2pmesh.wire.messages.generation import Cancel
from p2pmesh.wire.varint import decode_varint
from tests.fakes.mesh import MeshNode, MockedClock, open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()
GARBAGE = b"\x05\xff\xff\xff\xff\xff"


async def speak(to: MeshNode, by: MeshNode, data: bytes, protocol: str = CONTROL_PROTOCOL) -> bytes:
    """The first byte of what ``to`` answers to ``data``; empty if it answers nothing."""
    try:
        stream = await by.network.open_stream(to.peer, protocol, 5)
        await stream.send(data)
        await stream.finish()
        return await stream.receive_exactly(1)
    except PeerUnavailable:
        return b""


async def test_garbage_is_throttled_then_banned_and_the_ban_ends(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        assert member.peer in founder.network.admitted
        for _ in range(5):
            await speak(founder, member, GARBAGE)
        throttled = await founder.wait_told("peer_throttled")
        assert throttled["offence"] == "message_malformed"
        assert throttled["seconds"] > 0
        assert await founder.wait_told("peer_banned") == {
            "peer_id": member.peer, "offence": "message_malformed", "seconds": 600,
        }  # fmt: skip
        assert member.peer not in founder.network.connected_peers()
        assert founder.node.status()["bans"] == [
            {"peer_id": member.peer, "offence": "message_malformed", "ends_in_s": 600}
        ]
        await member.wait_told("peer_suspected")
        with pytest.raises(PeerUnavailable):
            await member.node.overlay.ensure_admitted(founder.peer, founder.network.addresses())
        with trio.fail_after(700):
            while not founder.told("peer_unbanned"):
                await founder.changes.wait_beyond(founder.changes.count)
        assert founder.node.status()["bans"] == []
        await member.node.overlay.ensure_admitted(founder.peer, founder.network.addresses())
        assert founder.node.overlay.is_admitted(member.peer)


async def test_garbage_on_a_stage_stream_counts_too(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        for _ in range(5):
            await speak(founder, member, b"\xff\xff\xff\xff", STAGE_PROTOCOL)
        assert (await founder.wait_told("peer_banned"))["offence"] == "frame_invalid"


async def test_a_stage_stream_that_opens_with_a_body_is_refused_before_the_body_is_held(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        assert await speak(founder, member, (60 << 20).to_bytes(4, "little"), STAGE_PROTOCOL) == b""
        assert founder.node.overlay.conduct._machine.points(member.peer, MockedClock().now()) > 0


async def test_unexpected_openings_are_answered_and_forgiven_for_long(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        for _ in range(7):
            assert await speak(founder, member, encode_control(Cancel())) != b""
        assert founder.told("peer_throttled") == []
        await speak(founder, member, encode_control(Cancel()))
        assert founder.told("peer_throttled") != []
        assert founder.told("peer_banned") == []


async def test_a_throttled_peers_streams_wait_their_turn_and_few_wait(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        conduct = founder.node.overlay.conduct
        for _ in range(2):
            conduct.note(member.peer, Offence.MESSAGE_MALFORMED)
        answers: list[float] = []

        async def ask() -> None:
            began = trio.current_time()
            await speak(founder, member, encode_control(Cancel()))
            answers.append(round(trio.current_time() - began))

        async with trio.open_nursery() as nursery:
            for _ in range(MAX_THROTTLED_STREAMS + 2):
                nursery.start_soon(ask)
        assert sorted(answers) == [0, 0, 1, 2, 3, 4]
        assert not conduct._queues


async def test_an_expired_invite_is_a_mistake_that_an_accepted_one_makes_up_for(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        expired = founder.node.overlay.make_invite(life_ms=1)
        late = await mesh.start("late", expired)
        await trio.sleep(3600)
        for _ in range(20):
            with pytest.raises(RemoteProtocolError):
                await late.node.overlay.join()
            await trio.sleep(1)
        assert founder.told("peer_throttled") == []
        assert founder.told("peer_banned") == []


async def test_what_a_peer_refused_is_nobodys_offence(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        conduct = founder.node.overlay.conduct
        for _ in range(50):
            conduct.note_error(RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "said by a refusal"))
            conduct.note_error(PeerUnavailable(ErrorCode.PEER_LOST, "gone"))
        error = RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "x", culprit=member.peer)
        conduct.note_error(error)
        conduct.note_error(error)
        assert conduct._machine.points(member.peer, MockedClock().now()) == 20


async def test_faults_of_connections_are_counted(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        for _ in range(3):
            founder.network.put_fault(PeerFault(member.peer, FaultKind.INVALID))
        assert (await founder.wait_told("peer_banned"))["offence"] == "connection_invalid"
        founder.node.overlay.conduct.forgive(member.peer)
        assert not founder.node.overlay.conduct.is_banned(member.peer)
        assert founder.told("peer_unbanned") == [{"peer_id": member.peer}]


async def test_a_source_of_wrong_bytes_is_blamed_and_one_that_was_announced_wrongly_is_not(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver)
        driver.store.damage = lambda data: data[:-1] + b"?"
        mesh.serve(driver, MODEL, stage_count=2)
        assert (await other.wait_told("peer_banned"))["offence"] == "artifact_wrong"
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        other = await mesh.join("other", driver)
        driver.store.damage = lambda data: data[:-1]
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("model_withdrawn", times=5)
        assert other.told("peer_banned") == []


def test_the_garbage_of_these_tests_is_a_whole_message() -> None:
    assert decode_varint(GARBAGE[:1], 64) == len(GARBAGE) - 1


async def test_a_member_that_connects_again_and_again_is_banned_for_the_flood(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        for _ in range(9):
            founder.node.overlay.conduct.note_admitted(member.peer)
        assert founder.told("peer_throttled") == []
        for _ in range(20):
            founder.node.overlay.conduct.note_admitted(member.peer)
        assert (await founder.wait_told("peer_banned"))["offence"] == "flood"


async def test_a_banned_peer_is_in_no_view_again_by_what_others_say_of_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member, _ = await mesh.join("member", founder), await mesh.join("helper", founder)
        for _ in range(5):
            await speak(founder, member, GARBAGE)
        await founder.wait_told("peer_banned")
        for _ in range(50):  # it announces, lives, and the helper reaches it
            await trio.sleep(10)
            assert founder.node.overlay.board.find(member.peer) is None
