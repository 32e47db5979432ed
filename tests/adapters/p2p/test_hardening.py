"""Attacks that kill or fool a stock py-libp2p host, against ours; and that ours still talks to stock hosts."""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import pytest
import trio
import trio.testing
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.host.ping import PingService
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.utils import encode_varint_prefixed
from libp2p.utils.varint import read_length_prefixed_protobuf

from p2pmesh.adapters.p2p import hardening
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.p2p.keys import peer_id_of
from p2pmesh.adapters.p2p.yamux import YamuxConnection
from p2pmesh.adapters.p2p.yamux_pings import Vigilance
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.ports.network import ByteStream, FaultKind, PeerFault
from tests.adapters.p2p.attacker import dial, open_stream, stock_host
from tests.adapters.p2p.garbage import Victim, secured
from tests.adapters.p2p.test_network_conformance import connect
from tests.fakes.identity import fake_identity

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
ECHO = "/test/echo/1"
MESHSUB = "/meshsub/1.1.0"
DEADLINE_S = 30.0
"""Of what takes moments: an end for a test that hangs."""


async def echo(stream: ByteStream) -> None:
    while True:
        await stream.send(await stream.receive_exactly(4))


async def assert_alive(node: Libp2pNetwork) -> None:
    """A fresh peer connects and is served."""
    node.serve(ECHO, echo)
    with trio.fail_after(DEADLINE_S):
        async with open_network(fake_identity("fresh"), LISTEN) as fresh:
            await fresh.dial(node.peer_id, node.addresses(), 5.0)
            stream = await fresh.open_stream(node.peer_id, ECHO, 5.0)
            await stream.send(b"ping")
            assert await stream.receive_exactly(4) == b"ping"


@pytest.fixture
async def node() -> Libp2pNetwork:
    async with open_network(fake_identity("node"), LISTEN) as network:
        yield network


# --- who gets in


async def test_a_peer_that_proves_nothing_is_not_let_in_under_any_name(node: Libp2pNetwork) -> None:
    keys = create_new_key_pair()
    async with stock_host({TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(keys)}, keys) as liar:
        with pytest.raises(SwarmException):
            await dial(liar, node)
    assert not node.connected_peers()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x13/multistream/1.0.0\n\x07/noise\n" + b"\xff\xff" + bytes(1000),
        b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x00",
        b"\x13/multistream/1.0.0\n" + b"\xff" * 40,
        bytes(4096),
    ],
)
async def test_garbage_on_the_socket(node: Libp2pNetwork, data: bytes) -> None:
    port = int(node.addresses()[0].split("/")[4])
    for _ in range(5):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(data)
        await stream.aclose()
    await assert_alive(node)


async def test_inbound_slots_are_given_back() -> None:
    async with open_network(fake_identity("node"), LISTEN, max_connections=3) as node:
        for n in range(9):
            async with open_network(fake_identity(f"guest {n}"), LISTEN) as guest:
                await guest.dial(node.peer_id, node.addresses(), 5.0)
                await wait_for_connections(node, 1)
            await wait_for_connections(node, 0)


async def wait_for_connections(node: Libp2pNetwork, count: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while len(node.connected_peers()) != count:
            await node.connection_event()


async def test_one_peer_cannot_take_all_slots(node: Libp2pNetwork) -> None:
    async with stock_host() as greedy:
        for _ in range(hardening.MAX_CONNECTIONS_PER_PEER + 6):
            try:
                await dial(greedy, node)
            except SwarmException:
                break
        peer = greedy.get_id()
        assert len(node._swarm.get_connections(peer)) <= hardening.MAX_CONNECTIONS_PER_PEER
        await assert_alive(node)


async def test_a_peer_that_comes_back_is_not_kept_out_by_connections_that_have_gone_silent() -> None:
    patient = Vigilance(interval_s=0.02, max_silent=10_000)
    async with open_network(fake_identity("node"), LISTEN, vigilance=patient) as node, AsyncExitStack() as stack:
        victim = Victim(node.peer_id, int(node.addresses()[0].split("/")[4]), b"")
        for _ in range(hardening.MAX_CONNECTIONS_PER_PEER):
            socket = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", victim.port))
            await secured(socket, victim, 1)  # and never a word again, as of a machine without power
        await wait_for_connections(node, 1)
        (peer,) = node.connected_peers()
        old = await connections_when(
            node, peer, lambda found: len(found) == 2 and all(one.pings.is_silent for one in found)
        )
        socket = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", victim.port))
        await secured(socket, victim, 1)
        await connections_when(node, peer, lambda found: len(found) == 2 and found[-1] not in old)
        assert sum(one.is_closed for one in old) == 1


async def connections_when(
    node: Libp2pNetwork, peer: PeerId, holds: Callable[[list[YamuxConnection]], bool]
) -> list[YamuxConnection]:
    with trio.fail_after(DEADLINE_S):
        while True:
            found = node._swarm.connections_of(ID.from_base58(peer))
            if holds(found):
                return found
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_stranger_that_fills_its_windows_is_cut_off_and_reported_and_a_member_is_not(
    node: Libp2pNetwork,
) -> None:
    async def never_read(stream: ByteStream) -> None:
        await trio.sleep_forever()

    node.serve("/test/idle/1", never_read)
    for is_member in (True, False):
        async with stock_host() as guest:
            await dial(guest, node)
            await wait_for_connections(node, 1)
            (peer,) = node.connected_peers()
            if is_member:
                node.admit(peer)
            with suppress(StreamError, StreamFailure, SwarmException):
                for _ in range(4):
                    stream = await open_stream(guest, node, "/test/idle/1")
                    await stream.write(bytes(200_000))
            if is_member:
                assert peer in node.connected_peers()
            else:
                with trio.fail_after(DEADLINE_S):
                    assert await node.peer_fault() == PeerFault(peer, FaultKind.FLOOD)
                    await wait_for_connections(node, 0)
        await wait_for_connections(node, 0)


async def test_who_is_gone_is_forgotten(node: Libp2pNetwork) -> None:
    async with stock_host() as guest:
        await dial(guest, node)
        await wait_for_connections(node, 1)
        await identify(await open_stream(guest, node, IDENTIFY))
    await wait_for_connections(node, 0)
    assert node._swarm.peerstore.peer_ids() == [ID.from_base58(node.peer_id)]


# --- streams and handlers


async def test_a_handler_of_libp2ps_own_kind_that_raises(node: Libp2pNetwork) -> None:
    async def fail(stream: INetStream) -> None:
        raise RuntimeError("bug")

    node._host.set_stream_handler(TProtocol("/test/fail/1"), fail)
    async with stock_host() as guest:
        await dial(guest, node)
        with pytest.raises((StreamFailure, StreamError)):
            await read_from(guest, node, "/test/fail/1")
    await assert_alive(node)


async def read_from(host: IHost, node: Libp2pNetwork, protocol_id: str) -> bytes:
    return await (await open_stream(host, node, protocol_id)).read(1)


@pytest.mark.parametrize("protocol_id", ["/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", MESHSUB])
@pytest.mark.parametrize("data", [b"\xff" * 11, b"\x05garbage", b"\x00", b"\xff\xff\x7f" + bytes(100)])
async def test_garbage_on_every_protocol_that_strangers_may_speak(
    node: Libp2pNetwork, protocol_id: str, data: bytes
) -> None:
    async with stock_host() as attacker:
        await dial(attacker, node)
        stream = await open_stream(attacker, node, protocol_id)
        await stream.write(data)
        await stream.close()
        await assert_alive(node)


# --- gossip


def rpc(**fields: object) -> bytes:
    return encode_varint_prefixed(rpc_pb2.RPC(**fields).SerializeToString())


def message(**fields: object) -> rpc_pb2.Message:
    defaults: dict[str, object] = {"topicIDs": ["topic"], "data": b"x", "seqno": b"12345678", "signature": b"s" * 64}
    return rpc_pb2.Message(**(defaults | fields))


def hostile_rpcs() -> dict[str, bytes]:
    control = rpc_pb2.ControlMessage
    many = [rpc_pb2.ControlGraft(topicID=f"t{n}") for n in range(5000)]
    return {
        "not protobuf": b"\x08\xff\xff\xff\xff\xff\xff\xff\xff",
        "garbage key": rpc(publish=[message(from_id=b"\x12\x20" + bytes(32), key=b"\xff\xff\xff")]),
        "no sender": rpc(publish=[message(from_id=b"")]),
        "empty message": rpc(publish=[rpc_pb2.Message(topicIDs=["topic"])]),
        "forged": rpc(publish=[message(from_id=bytes.fromhex("002408011220") + bytes(32))]),
        "signed record": rpc(senderRecord=b"\xff" * 30),
        "grafts": rpc(control=control(graft=many)),
        "ihave": rpc(control=control(ihave=[rpc_pb2.ControlIHave(topicID="topic", messageIDs=[b"\xff", b"zz", b""])])),
        "iwant": rpc(control=control(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"\xff" * 99])])),
        "prune": rpc(control=control(prune=[rpc_pb2.ControlPrune(topicID="topic", backoff=2**60)])),
        "subscriptions": rpc(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"s{n}") for n in range(3000)]),
    }


@pytest.mark.parametrize("name", hostile_rpcs())
async def test_hostile_gossip(node: Libp2pNetwork, name: str) -> None:
    heard = await node.subscribe("topic", lambda data: True)
    async with stock_host() as attacker:
        await dial(attacker, node)
        peer = peer_id_of(attacker.get_id())
        while peer not in node.connected_peers():
            await node.connection_event()
        node.admit(peer)  # strangers are not even read
        stream = await open_stream(attacker, node, MESHSUB)
        await stream.write(hostile_rpcs()[name])
        await assert_alive(node)
        async with open_network(fake_identity("honest"), LISTEN) as honest:
            await connect(honest, node)
            await honest.subscribe("topic", lambda data: True)
            with trio.fail_after(DEADLINE_S):
                publisher = None
                while publisher != honest.peer_id:
                    await honest.publish("topic", b"still here")
                    with trio.move_on_after(0.2):
                        publisher, _ = await heard.receive()
                    assert publisher in (None, honest.peer_id)


async def test_control_entries_of_topics_nobody_joined_leave_nothing_behind(node: Libp2pNetwork) -> None:
    await node.subscribe("topic", lambda data: True)
    router = node._gossip._pubsub.router
    async with stock_host() as attacker:
        sender = attacker.get_id()
        prunes = [rpc_pb2.ControlPrune(topicID=f"t{n}", backoff=60) for n in range(1000)]
        await router.handle_rpc(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(prune=prunes)), sender)
    assert set(router.back_off) <= {"topic"}


# --- still a libp2p host


async def identify(stream: INetStream) -> Identify:
    answer = Identify()
    answer.ParseFromString(await read_length_prefixed_protobuf(stream))
    return answer


async def test_a_stock_host_identifies_and_pings_us(node: Libp2pNetwork) -> None:
    async with stock_host() as guest:
        await dial(guest, node)
        answer = await identify(await open_stream(guest, node, IDENTIFY))
        assert answer.agent_version == hardening.AGENT_VERSION
        assert IDENTIFY in answer.protocols
        with trio.fail_after(DEADLINE_S):
            assert len(await PingService(guest).ping(ID.from_base58(node.peer_id), 2)) == 2


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000])
async def test_streams_with_a_stock_host_both_ways(node: Libp2pNetwork, size: int) -> None:
    data = bytes(n % 251 for n in range(251)) * (size // 251 + 1)

    async def return_all(stream: ByteStream) -> None:
        await stream.send(await stream.receive_exactly(len(data)))

    async def return_all_of_stock(stream: INetStream) -> None:
        received = b""
        while len(received) < len(data):
            received += await stream.read(65536)
        await stream.write(received)
        await stream.close()

    node.serve("/test/return/1", return_all)
    async with stock_host() as guest, trio.open_nursery() as nursery:
        guest.set_stream_handler(TProtocol("/test/return/1"), return_all_of_stock)
        await dial(guest, node)
        with trio.fail_after(DEADLINE_S):
            while not node.connected_peers():
                await node.connection_event()
            (peer,) = node.connected_peers()
            node.admit(peer)
            there = await open_stream(guest, node, "/test/return/1")
            nursery.start_soon(there.write, data)
            assert await read_to_end(there) == data
            back = await node.open_stream(peer, "/test/return/1", 5.0)
            nursery.start_soon(back.send, data)
            assert await back.receive_exactly(len(data)) == data


async def read_to_end(stream: INetStream) -> bytes:
    received = b""
    try:
        while True:
            received += await stream.read(65536)
    except StreamEOF:
        return received


# --- the assertion and the log


def test_another_libp2p_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as failure:
        hardening._check_libp2p("0.9.0")
    assert failure.value.code == ErrorCode.CONFIG_INVALID
    assert "pip" in failure.value.message or "install" in failure.value.message
    assert "\n" not in failure.value.message


def test_a_libp2p_without_a_name_we_rest_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("libp2p.pubsub.pubsub.Pubsub._handle_dead_peer")
    with pytest.raises(ConfigError) as failure:
        hardening._check_libp2p(hardening.LIBP2P_VERSION)
    assert "_handle_dead_peer" in failure.value.message


def test_faults_of_peers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = hardening.FaultLog()
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            log.note("a test", ValueError("x"))
    assert len(caplog.records) == 10
