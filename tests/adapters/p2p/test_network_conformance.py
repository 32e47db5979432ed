"""What any ``ports.network.Network`` must do; the fake and the libp2p adapter both do it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from p2pmesh.adapters.p2p.host import open_network
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_STREAMS_PER_PEER
from p2pmesh.ports.network import (
    ByteStream,
    ConnectionUse,
    Network,
    PathKind,
    PeerConnected,
    PeerDisconnected,
    Provider,
    Subscription,
)
from tests.fakes.identity import fake_identity
from tests.fakes.network import FakeNetwork, FakeOverlay

ECHO = "/test/echo/1"
DEADLINE_S = 20.0

OpenNodes = Callable[[int], AbstractAsyncContextManager[list[Network]]]


@asynccontextmanager
async def fake_nodes(count: int) -> AsyncIterator[list[Network]]:
    overlay = FakeOverlay()
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(overlay.open_network(fake_identity(f"node {n}").peer_id))
            for n in range(count)
        ]


@asynccontextmanager
async def real_nodes(count: int) -> AsyncIterator[list[Network]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_network(fake_identity(f"node {n}"), ("/ip4/127.0.0.1/tcp/0",)))
            for n in range(count)
        ]


@pytest.fixture(params=[fake_nodes, real_nodes], ids=["fake", "libp2p"])
def open_nodes(request: pytest.FixtureRequest) -> OpenNodes:
    return request.param


async def connect(one: Network, other: Network) -> None:
    await one.dial(other.peer_id, other.addresses(), DEADLINE_S)
    while one.peer_id not in other.connected_peers():
        await other.connection_event()
    one.admit(other.peer_id)
    other.admit(one.peer_id)


async def echo(stream: ByteStream) -> None:
    while True:
        length = int.from_bytes(await stream.receive_exactly(4), "big")
        await stream.send(await stream.receive_exactly(length))


async def ask(stream: ByteStream, data: bytes) -> bytes:
    answer: list[bytes] = []

    async def receive() -> None:
        answer.append(await stream.receive_exactly(len(data)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        nursery.start_soon(stream.send, len(data).to_bytes(4, "big") + data)
    return answer[0]


async def expect_lost(stream: ByteStream, code: ErrorCode = ErrorCode.PEER_LOST) -> None:
    with pytest.raises(PeerUnavailable) as failure:
        await stream.receive_exactly(1)
    assert failure.value.code == code


def deadline() -> trio.CancelScope:
    return trio.fail_after(DEADLINE_S)


async def test_both_ends_hear_of_a_connection(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            await a.dial(b.peer_id, b.addresses(), DEADLINE_S)
            assert await a.connection_event() == PeerConnected(b.peer_id, is_inbound=False)
            assert await b.connection_event() == PeerConnected(a.peer_id, is_inbound=True)
        assert a.connected_peers() == {b.peer_id}
        assert b.connected_peers() == {a.peer_id}


async def test_the_use_of_a_connection_is_the_exchanges_that_are_open_on_it(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        b.serve(ECHO, echo)
        with deadline():
            assert a.uses() == {}
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            assert await ask(stream, b"x") == b"x"
            for network, other in ((a, b), (b, a)):
                assert list(network.uses()) == [other.peer_id]
                assert network.uses()[other.peer_id].exchanges == 1
            await stream.reset()
            assert a.uses() == {b.peer_id: ConnectionUse(0, is_in_gossip_mesh=False)}


async def test_addresses_name_their_peer(open_nodes: OpenNodes) -> None:
    async with open_nodes(1) as (a,):
        assert a.addresses()
        for address in a.addresses():
            assert address.endswith(f"/p2p/{a.peer_id}")
            assert "/tcp/0/" not in address


async def test_dialling_a_connected_peer_does_nothing(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            await connect(a, b)
            await a.dial(b.peer_id, (), DEADLINE_S)
            await b.dial(a.peer_id, a.addresses(), DEADLINE_S)
        assert a.connected_peers() == {b.peer_id}


async def test_dialling_each_other_at_once_connects_once_for_each(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        b.serve(ECHO, echo)
        with deadline():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.dial, b.peer_id, b.addresses(), DEADLINE_S)
                nursery.start_soon(b.dial, a.peer_id, a.addresses(), DEADLINE_S)
            assert isinstance(await a.connection_event(), PeerConnected)
            assert isinstance(await b.connection_event(), PeerConnected)
            assert await ask(await a.open_stream(b.peer_id, ECHO, DEADLINE_S), b"x") == b"x"


@pytest.mark.parametrize("bad", ["", "nonsense", "/ip4/1.2.3.4", "/ip4/127.0.0.1/udp/1", "/ip4/300.1.1.1/tcp/1"])
async def test_a_malformed_address_is_refused_with_its_text(open_nodes: OpenNodes, bad: str) -> None:
    async with open_nodes(2) as (a, b):
        with pytest.raises(ConfigError) as failure:
            await a.dial(b.peer_id, (bad,), DEADLINE_S)
        assert failure.value.code == ErrorCode.ADDRESS_INVALID
        assert repr(bad) in failure.value.message
        assert "\n" not in failure.value.message


async def test_one_usable_address_among_bad_and_dead_ones_is_enough(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            addresses = ("nonsense", "/ip4/127.0.0.1/tcp/9", *b.addresses())
            await a.dial(b.peer_id, addresses, DEADLINE_S)
        assert b.peer_id in a.connected_peers()


async def test_nobody_there(open_nodes: OpenNodes) -> None:
    stranger = fake_identity("stranger").peer_id
    async with open_nodes(2) as (a, b):
        for addresses in ((), ("/ip4/127.0.0.1/tcp/9",), b.addresses()):
            with pytest.raises(PeerUnavailable) as failure:
                await a.dial(stranger, addresses, 5.0)
            assert failure.value.code == ErrorCode.PEER_UNREACHABLE
        assert not a.connected_peers()


async def test_another_peer_at_the_address_is_not_taken_for_the_one_we_want(open_nodes: OpenNodes) -> None:
    stranger = fake_identity("stranger").peer_id
    async with open_nodes(2) as (a, b):
        bare = tuple(address.partition("/p2p/")[0] for address in b.addresses())
        with pytest.raises(PeerUnavailable) as failure:
            await a.dial(stranger, bare, 5.0)
        assert failure.value.code == ErrorCode.PEER_UNREACHABLE
        assert stranger not in a.connected_peers()


async def test_a_node_does_not_dial_itself(open_nodes: OpenNodes) -> None:
    async with open_nodes(1) as (a,):
        with pytest.raises(PeerUnavailable):
            await a.dial(a.peer_id, a.addresses(), 5.0)


@pytest.mark.parametrize("size", [0, 1, 2400, 70_000, 4_000_000])
async def test_bytes_arrive_whole_and_in_order(open_nodes: OpenNodes, size: int) -> None:
    data = bytes(n * 7 % 251 for n in range(min(size, 5000))) * max(1, size // 5000)
    async with open_nodes(2) as (a, b):
        b.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            assert await ask(stream, data) == data


async def test_each_end_knows_who_the_other_is(open_nodes: OpenNodes) -> None:
    callers: list[PeerId] = []

    async def note_caller(stream: ByteStream) -> None:
        callers.append(stream.remote_peer)
        await stream.send(b"!")

    async with open_nodes(2) as (a, b):
        b.serve(ECHO, note_caller)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            await stream.receive_exactly(1)
        assert stream.remote_peer == b.peer_id
        assert callers == [a.peer_id]


async def test_the_peer_that_was_dialled_can_open_streams_too(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        a.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            assert await ask(await b.open_stream(a.peer_id, ECHO, DEADLINE_S), b"back") == b"back"


async def test_half_close_lets_the_answer_come(open_nodes: OpenNodes) -> None:
    async def count_then_answer(stream: ByteStream) -> None:
        count = 0
        try:
            while True:
                await stream.receive_exactly(1)
                count += 1
        except PeerUnavailable:
            await stream.send(count.to_bytes(2, "big"))

    async with open_nodes(2) as (a, b):
        b.serve(ECHO, count_then_answer)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            await stream.send(b"x" * 300)
            await stream.finish()
            await stream.finish()
            assert await stream.receive_exactly(2) == (300).to_bytes(2, "big")
            await expect_lost(stream)
            with pytest.raises(PeerUnavailable):
                await stream.send(b"more")


async def test_what_was_sent_before_the_server_returned_still_arrives(open_nodes: OpenNodes) -> None:
    async def speak_and_go(stream: ByteStream) -> None:
        await stream.send(b"y" * 100_000)

    async with open_nodes(2) as (a, b):
        b.serve(ECHO, speak_and_go)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            assert await stream.receive_exactly(100_000) == b"y" * 100_000
            await expect_lost(stream)


async def test_reset_ends_both_ends(open_nodes: OpenNodes) -> None:
    ended = trio.Event()

    async def wait_for_more(stream: ByteStream) -> None:
        with pytest.raises(PeerUnavailable):
            await stream.receive_exactly(10)
        ended.set()

    async with open_nodes(2) as (a, b):
        b.serve(ECHO, wait_for_more)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            await stream.send(b"12345")
            await stream.reset()
            await stream.reset()
            await ended.wait()
            await expect_lost(stream)
            with pytest.raises(PeerUnavailable):
                await stream.send(b"x")


@pytest.mark.parametrize("fault", [RuntimeError("bug"), PeerUnavailable(ErrorCode.PEER_LOST, "gone")])
async def test_a_server_that_raises_costs_its_stream_and_nothing_else(open_nodes: OpenNodes, fault: Exception) -> None:
    async def fail(stream: ByteStream) -> None:
        raise fault

    async with open_nodes(2) as (a, b):
        b.serve("/test/fail/1", fail)
        b.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            sound = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            await expect_lost(await a.open_stream(b.peer_id, "/test/fail/1", DEADLINE_S))
            assert await ask(sound, b"alive") == b"alive"


async def test_a_protocol_that_the_peer_does_not_speak(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            await connect(a, b)
            with pytest.raises(PeerUnavailable) as failure:
                await a.open_stream(b.peer_id, "/test/unknown/1", DEADLINE_S)
        assert failure.value.code == ErrorCode.PEER_UNREACHABLE
        assert "/test/unknown/1" in failure.value.message


async def test_no_stream_without_a_connection(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with pytest.raises(PeerUnavailable) as failure:
            await a.open_stream(b.peer_id, ECHO, 5.0)
        assert failure.value.code == ErrorCode.PEER_LOST


async def test_cancelled_reads_lose_nothing(open_nodes: OpenNodes) -> None:
    piece, total = 300, 12_000
    expected = bytes(n % 251 for n in range(total))

    async def send_on_request(stream: ByteStream) -> None:
        for start in range(0, total, piece):
            await stream.receive_exactly(1)
            await stream.send(expected[start : start + piece])

    async with open_nodes(2) as (a, b):
        b.serve(ECHO, send_on_request)
        received = bytearray()
        cancelled = 0
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            for _ in range(total // piece):
                await stream.send(b"?")
                with trio.move_on_after(0.005) as scope:
                    received += await stream.receive_exactly(1000)
                cancelled += scope.cancelled_caught
            received += await stream.receive_exactly(total - len(received))
        assert bytes(received) == expected
        assert cancelled


async def test_cancelled_writes_leave_the_connection_sound(open_nodes: OpenNodes) -> None:
    async def never_read(stream: ByteStream) -> None:
        await trio.sleep_forever()

    async with open_nodes(2) as (a, b):
        b.serve("/test/mute/1", never_read)
        b.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            sound = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            for _ in range(20):
                stream = await a.open_stream(b.peer_id, "/test/mute/1", DEADLINE_S)
                with trio.move_on_after(0.01) as scope:
                    await stream.send(bytes(8_000_000))
                assert scope.cancelled_caught
                await stream.reset()
            assert await ask(sound, b"alive") == b"alive"
        assert a.connected_peers() == {b.peer_id}


async def test_a_slow_reader_holds_the_writer_back_and_loses_nothing(open_nodes: OpenNodes) -> None:
    size = 20_000_000
    may_read = trio.Event()
    outcome: list[int] = []

    async def read_late(stream: ByteStream) -> None:
        await may_read.wait()
        outcome.append(len(await stream.receive_exactly(size)))

    async with open_nodes(2) as (a, b):
        b.serve(ECHO, read_late)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            is_sent = trio.Event()

            async def send() -> None:
                await stream.send(bytes(size))
                is_sent.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                with trio.move_on_after(0.3):
                    await is_sent.wait()
                assert not is_sent.is_set()
                may_read.set()
            await stream.finish()
            await expect_lost(stream)
        assert outcome == [size]


async def test_many_streams_at_once(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        b.serve(ECHO, echo)
        answers: list[bytes] = []

        async def one(n: int) -> None:
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            data = bytes([n]) * 5000
            assert await ask(stream, data) == data
            answers.append(data)
            await stream.finish()

        with deadline():
            await connect(a, b)
            async with trio.open_nursery() as nursery:
                for n in range(100):
                    nursery.start_soon(one, n)
        assert len(answers) == 100


async def test_a_peer_may_open_only_so_many_streams(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        b.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            streams: list[ByteStream] = []
            with suppress(PeerUnavailable):
                while len(streams) <= MAX_STREAMS_PER_PEER:
                    streams.append(await a.open_stream(b.peer_id, ECHO, DEADLINE_S))
            assert len(streams) <= MAX_STREAMS_PER_PEER
            assert len(streams) >= MAX_STREAMS_PER_PEER * 3 // 4
            assert await ask(streams[0], b"alive") == b"alive"
            for stream in streams[1:]:
                await stream.reset()
            assert await ask(await open_again(a, b), b"again") == b"again"


async def open_again(a: Network, b: Network) -> ByteStream:
    while True:
        try:
            return await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
        except PeerUnavailable:
            await trio.lowlevel.checkpoint()


async def test_disconnect_ends_streams_at_both_ends_and_may_be_undone(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        b.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            assert await ask(stream, b"x") == b"x"
            assert await a.connection_event() == PeerConnected(b.peer_id, is_inbound=False)
            await b.disconnect(a.peer_id)
            await b.disconnect(a.peer_id)
            await expect_lost(stream)
            assert await a.connection_event() == PeerDisconnected(b.peer_id)
            assert not a.connected_peers()
            await a.dial(b.peer_id, b.addresses(), DEADLINE_S)
            assert await a.connection_event() == PeerConnected(b.peer_id, is_inbound=False)
            assert await ask(await a.open_stream(b.peer_id, ECHO, DEADLINE_S), b"y") == b"y"


async def test_a_connection_has_a_path_and_soon_a_round_trip(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (one, other):
        assert (one.path_of(other.peer_id), one.round_trip_s(other.peer_id)) == (None, None)
        other.serve(ECHO, echo)
        await connect(one, other)
        assert one.path_of(other.peer_id) is other.path_of(one.peer_id) is PathKind.DIRECT
        with trio.fail_after(DEADLINE_S):
            stream = await one.open_stream(other.peer_id, ECHO, DEADLINE_S)
            while (round_trip_s := one.round_trip_s(other.peer_id)) is None:
                await ask(stream, b"x")
        assert 0 < round_trip_s < DEADLINE_S


async def test_disconnecting_a_stranger_does_nothing(open_nodes: OpenNodes) -> None:
    async with open_nodes(1) as (a,):
        await a.disconnect(fake_identity("stranger").peer_id)
        await a.disconnect(PeerId("not a peer id"))


async def test_a_loss_nobody_listened_to_is_told_before_the_new_connection(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            await connect(a, b)
            assert isinstance(await a.connection_event(), PeerConnected)
            for _ in range(3):
                await b.disconnect(a.peer_id)
                while a.connected_peers():
                    await trio.lowlevel.checkpoint()
                await a.dial(b.peer_id, b.addresses(), DEADLINE_S)
            assert await a.connection_event() == PeerDisconnected(b.peer_id)
            assert await a.connection_event() == PeerConnected(b.peer_id, is_inbound=False)
            with trio.move_on_after(0.05) as scope:
                await a.connection_event()
            assert scope.cancelled_caught


async def hear(publisher: Network, topic: str, data: bytes, listener: Subscription) -> tuple[PeerId, bytes]:
    """Repeats an announcement until it is heard, as nodes do: joining a topic takes time to get around."""
    while True:
        await publisher.publish(topic, data)
        with trio.move_on_after(0.2):
            return await listener.receive()


async def test_gossip_reaches_others_over_peers_between_and_names_its_publisher(open_nodes: OpenNodes) -> None:
    async with open_nodes(3) as (a, b, c):
        with deadline():
            await connect(a, b)
            await connect(b, c)
            for node in (a, b):
                await node.subscribe("topic", lambda data: True)
            listener = await c.subscribe("topic", lambda data: True)
            assert await hear(a, "topic", b"hello", listener) == (a.peer_id, b"hello")


async def test_gossip_that_a_validator_refuses_is_neither_kept_nor_forwarded(open_nodes: OpenNodes) -> None:
    def refuse(data: bytes) -> bool:
        if data == b"raise":
            raise ValueError("a validator's bug")
        return data != b"refuse"

    async with open_nodes(3) as (a, b, c):
        with deadline():
            await connect(a, b)
            await connect(b, c)
            await a.subscribe("topic", lambda data: True)
            middle = await b.subscribe("topic", refuse)
            far = await c.subscribe("topic", lambda data: True)
            await hear(a, "topic", b"warm up", far)
            for data in (b"refuse", b"raise"):
                await a.publish("topic", data)
            assert await next_but(b"warm up", a, far) == b"last"
            assert await next_but(b"warm up", a, middle) == b"last"


async def test_gossip_is_with_admitted_peers_alone_until_they_are_dismissed(open_nodes: OpenNodes) -> None:
    async with open_nodes(3) as (a, b, c):
        with deadline():
            await connect(a, b)
            await c.dial(b.peer_id, b.addresses(), DEADLINE_S)
            c.admit(b.peer_id)
            heard_a, heard_b, heard_c = [await node.subscribe("topic", lambda data: True) for node in (a, b, c)]
            await c.publish("topic", b"made up")
            assert await hear(a, "topic", b"of members", heard_b) == (a.peer_id, b"of members")
            assert await hear(b, "topic", b"of members", heard_a) == (b.peer_id, b"of members")
            while c.peer_id not in b.connected_peers():
                await b.connection_event()
            b.admit(c.peer_id)
            # What a stranger said waits; once it is admitted, that is a member's word as well.
            assert await next_but((b"of members", b"made up"), c, heard_a) == b"last"
            assert await next_but((b"of members", b"made up"), a, heard_c) == b"last"
            b.dismiss(c.peer_id)
            await c.publish("topic", b"made up")
            while (await hear(a, "topic", b"end", heard_b))[1] != b"end":
                pass
            with trio.move_on_after(0.3):
                while True:
                    assert (await heard_c.receive())[1] != b"end"


async def next_but(skipped: tuple[bytes, ...], publisher: Network, listener: Subscription) -> bytes:
    while True:
        _, data = await hear(publisher, "topic", b"last", listener)
        if data not in skipped:
            return data


async def test_a_node_does_not_hear_itself(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            await connect(a, b)
            own = await a.subscribe("topic", lambda data: True)
            other = await b.subscribe("topic", lambda data: True)
            await hear(a, "topic", b"from a", other)
            assert await hear(b, "topic", b"from b", own) == (b.peer_id, b"from b")


async def test_a_topic_that_was_left_is_heard_no_more_and_can_be_joined_again(open_nodes: OpenNodes) -> None:
    async with open_nodes(2) as (a, b):
        with deadline():
            await connect(a, b)
            kept = await b.subscribe("kept", lambda data: True)
            for name in (b"first", b"second"):
                topic = await b.subscribe("topic", lambda data: True)
                assert await hear(a, "topic", name, topic) == (a.peer_id, name)
                await topic.close()
                await topic.close()
            await a.publish("topic", b"late")
            await hear(a, "kept", b"kept", kept)
            with trio.move_on_after(0.05) as scope:
                while (await topic.receive())[1] != b"late":
                    pass
            assert scope.cancelled_caught


class Everybody:
    """Implements ``RecordPeers``: whoever is connected is admitted and serves records."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def is_admitted(self, peer: PeerId) -> bool:
        return peer in self.network.connected_peers()

    def record_servers(self) -> tuple[Provider, ...]:
        return tuple(Provider(peer, ()) for peer in sorted(self.network.connected_peers()))

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        await self.network.dial(peer, addresses, DEADLINE_S)


async def test_a_record_of_one_peer_is_found_by_another(open_nodes: OpenNodes) -> None:
    key, other_key = bytes(32), b"k" * 32
    async with open_nodes(3) as (a, b, c):
        assert await a.provide(key, DEADLINE_S) == 0
        for node in (a, b, c):
            node.serve_records(Everybody(node), is_server=True)
        with deadline():
            await connect(a, b)
            await connect(b, c)
            assert await a.provide(key, DEADLINE_S) > 0
            found: tuple[Provider, ...] = ()
            while not found:
                found = await c.find_providers(key, 4, DEADLINE_S)
            assert [provider.peer for provider in found] == [a.peer_id]
            await c.dial(found[0].peer, found[0].addresses, DEADLINE_S)
            assert await c.find_providers(other_key, 4, DEADLINE_S) == ()
            assert await c.find_providers(key, 0, DEADLINE_S) == ()
            assert await a.find_providers(key, 4, DEADLINE_S) == ()


async def test_a_node_that_ends_is_seen_to_end(open_nodes: OpenNodes) -> None:
    async with open_nodes(1) as (a,), trio.open_nursery() as nursery:
        may_end = trio.Event()
        guests: list[Network] = []

        async def run_guest() -> None:
            async with open_guest(a) as guest:
                guest.serve(ECHO, echo)
                guests.append(guest)
                await connect(guest, a)
                await may_end.wait()

        nursery.start_soon(run_guest)
        with deadline():
            assert isinstance(await a.connection_event(), PeerConnected)
            stream = await a.open_stream(guests[0].peer_id, ECHO, DEADLINE_S)
            assert await ask(stream, b"x") == b"x"
            may_end.set()
            await expect_lost(stream)
            assert await a.connection_event() == PeerDisconnected(guests[0].peer_id)


def open_guest(host: Network) -> AbstractAsyncContextManager[Network]:
    identity = fake_identity("guest")
    if isinstance(host, FakeNetwork):
        return host.overlay.open_network(identity.peer_id)
    return open_network(identity, ("/ip4/127.0.0.1/tcp/0",))


async def test_errors_of_the_node_come_out_as_they_are(open_nodes: OpenNodes) -> None:
    opening = partial(open_nodes, 1)
    with pytest.raises(P2PMeshError) as failure:
        async with opening():
            raise ConfigError(ErrorCode.CONFIG_INVALID, "the node's own")
    assert failure.value.message == "the node's own"


async def test_a_banned_peer_is_cut_off_and_neither_way_leads_back_until_it_is_unbanned(open_nodes: OpenNodes) -> None:
    async with open_nodes(3) as (a, b, c):
        b.serve(ECHO, echo)
        with deadline():
            await connect(a, b)
            await connect(c, b)
            stream = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            assert await ask(stream, b"before") == b"before"
            b.ban(a.peer_id)
            await expect_lost(stream)
            await wait_apart(a, b)
            with pytest.raises(PeerUnavailable):
                await b.dial(a.peer_id, a.addresses(), 2.0)
            with suppress(PeerUnavailable):
                await a.dial(b.peer_id, b.addresses(), 2.0)
                with pytest.raises(PeerUnavailable):
                    await ask(await a.open_stream(b.peer_id, ECHO, 2.0), b"again")
            assert a.peer_id not in b.connected_peers()
            assert await ask(await c.open_stream(b.peer_id, ECHO, DEADLINE_S), b"others") == b"others"
            b.unban(a.peer_id)
            await wait_apart(a, b)
            await connect(a, b)
            assert await ask(await a.open_stream(b.peer_id, ECHO, DEADLINE_S), b"after") == b"after"


async def wait_apart(one: Network, other: Network) -> None:
    for node, peer in ((one, other.peer_id), (other, one.peer_id)):
        while peer in node.connected_peers():
            await node.connection_event()


async def test_admitting_and_banning_unknown_peers_never_raises(open_nodes: OpenNodes) -> None:
    async with open_nodes(1) as (a,):
        stranger = fake_identity("stranger").peer_id
        a.admit(stranger)
        a.ban(stranger)
        a.ban(stranger)
        a.unban(stranger)
        a.unban(stranger)
