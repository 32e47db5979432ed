"""Relays, witnesses and direct paths between real hosts on loopback; NATs are in ``tests/e2e/test_reach``."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerField
from libp2p.stream_muxer.exceptions import MuxedStreamEOF
from multiaddr import Multiaddr
from trio.testing import MockClock

from p2pmesh.adapters.p2p import reach
from p2pmesh.adapters.p2p.autonat import AUTONAT_PROTOCOL, IDENTIFY_PROTOCOL
from p2pmesh.adapters.p2p.circuit import circuits_to, parse_circuit
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.p2p.keys import libp2p_id
from p2pmesh.adapters.p2p.punch import DCUTR_PROTOCOL, MESSAGE_TIMEOUT_S, Meetings
from p2pmesh.adapters.p2p.relay import HOP_PROTOCOL, STOP_PROTOCOL, Passage
from p2pmesh.adapters.p2p.yamux import YamuxStream
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros, micros
from p2pmesh.core.reachability import DialBack
from p2pmesh.core.relaying import Circuit, RelayLedger, RelayLimits
from p2pmesh.ports.network import ByteStream, PathKind
from tests.fakes.identity import fake_identity

ECHO = "/test/echo/1"
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
DEADLINE_S = 20.0


async def echo(stream: ByteStream) -> None:
    while True:
        length = int.from_bytes(await stream.receive_exactly(4), "big")
        await stream.send(await stream.receive_exactly(length))


async def ask(network: Libp2pNetwork, peer: PeerId, data: bytes) -> bytes:
    stream = await network.open_stream(peer, ECHO, DEADLINE_S)
    answers: list[bytes] = []

    async def send() -> None:
        with suppress(PeerUnavailable):
            await stream.send(len(data).to_bytes(4, "big") + data)

    async def receive() -> None:
        with suppress(PeerUnavailable):
            answers.append(await stream.receive_exactly(len(data)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        nursery.start_soon(receive)
    await stream.reset()
    if not answers:
        raise PeerUnavailable(ErrorCode.PEER_LOST, "no answer")
    return answers[0]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  what others do with a connection is told to nobody here
        await trio.sleep(0.01)


@asynccontextmanager
async def three() -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork, Libp2pNetwork]]:
    """A relay and two peers that know only the relay."""
    async with AsyncExitStack() as stack:
        names = ("relay", "a", "b")
        nodes = [await stack.enter_async_context(open_network(fake_identity(name), LISTEN)) for name in names]
        relay, a, b = nodes
        for node in (a, b):
            node.serve(ECHO, echo)
            await node.dial(relay.peer_id, relay.addresses(), DEADLINE_S)
            relay.admit(node.peer_id)
            node.admit(relay.peer_id)
        relay.reach.offer_relay(RelayLimits())
        yield relay, a, b


def through(relay: Libp2pNetwork) -> tuple[str, ...]:
    return (f"{relay.addresses()[0]}/p2p-circuit",)


async def admit_each_other(a: Libp2pNetwork, b: Libp2pNetwork) -> None:
    seen = 0
    while not b.reach.paths_of(a.peer_id).has_relayed:
        seen = await b.reach.paths_changed(seen)
    a.admit(b.peer_id)
    b.admit(a.peer_id)


async def test_two_peers_talk_through_a_relay_that_sees_no_word_of_it() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            assert await b.reach.reserve(relay.peer_id, DEADLINE_S) > 100
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
            assert a.path_of(b.peer_id) is PathKind.RELAYED
            await admit_each_other(a, b)
            data = bytes(range(256)) * 2800  # more than a window
            assert await ask(a, b.peer_id, data) == data
            assert await ask(b, a.peer_id, data) == data
            assert relay.reach.relay_use().circuits == 1
            await a.disconnect(b.peer_id)
            await until(lambda: not relay.reach.relay_use().circuits)
            assert relay.reach.relay_use().reservations == 1


async def test_nobody_is_led_to_a_peer_that_keeps_no_place() -> None:
    async with three() as (relay, a, b):
        with pytest.raises(PeerUnavailable) as failure:
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
        assert str(relay.peer_id) in failure.value.message


async def test_a_place_ends_with_its_connection() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, _, b):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            assert relay.reach.uses_relay(b.peer_id)
            assert b.reach.uses_relay(relay.peer_id)
            await b.disconnect(relay.peer_id)
            await until(lambda: not relay.reach.relay_use().reservations and not b.reach.uses_relay(relay.peer_id))


async def test_who_does_not_relay_keeps_no_places() -> None:
    async with three() as (relay, _, b):
        relay.reach.offer_relay(None)
        with pytest.raises(P2PMeshError):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
        assert not b.reach.uses_relay(relay.peer_id)


async def test_only_a_relay_of_ours_leads_others_to_us() -> None:
    """A relay that was given up holds a place for us still, and is not listened to."""
    async with three() as (relay, a, b):
        await b.reach.reserve(relay.peer_id, DEADLINE_S)
        b.reach.give_up_relay(relay.peer_id)
        with pytest.raises(PeerUnavailable):
            await a.dial(b.peer_id, through(relay), DEADLINE_S)


async def test_a_place_ends_with_the_direct_connection_though_a_relayed_one_stands() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            a.reach.offer_relay(RelayLimits())
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await b.dial(a.peer_id, a.addresses(), DEADLINE_S)
            await b.reach.reserve(a.peer_id, DEADLINE_S)
            await a.reach.dial_circuit(libp2p_id(b.peer_id), circuits_to(b.peer_id, through(relay))[0])
            direct = b._swarm.direct_connection(libp2p_id(a.peer_id))
            assert direct is not None
            direct.abort("the cable is out")
            await until(lambda: not a.reach.relay_use().reservations)
            assert a.reach.paths_of(b.peer_id).has_relayed


async def test_a_relay_that_pauses_forgets_nothing_of_what_it_gives() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
            relay.reach.offer_relay(None)
            relay.reach.offer_relay(RelayLimits())
            assert (relay.reach.relay_use().reservations, relay.reach.relay_use().circuits) == (1, 1)


async def test_a_place_that_is_not_renewed_stands_to_its_end() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            relay.reach.offer_relay(RelayLimits(reservations=0))
            with pytest.raises(PeerUnavailable):
                await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, through(relay), DEADLINE_S)


async def test_who_only_asks_a_relay_may_have_it_hold_no_more_than_any_stranger() -> None:
    async def read_nothing(stream: ByteStream) -> None:
        await trio.sleep_forever()

    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            relay.serve("/test/unread/1", read_nothing)
            relay.dismiss(a.peer_id)
            with pytest.raises(PeerUnavailable):
                await a.reach.dial_circuit(libp2p_id(b.peer_id), circuits_to(b.peer_id, through(relay))[0])
            with suppress(PeerUnavailable):
                for _ in range(4):
                    unread = await a.open_stream(relay.peer_id, "/test/unread/1", DEADLINE_S)
                    await unread.send(bytes(250_000))
            await until(lambda: relay.peer_id not in a.connected_peers())


class End:
    """A stream of which each read gives 100 bytes a second later, ``reads`` times."""

    def __init__(self, reads: int, every_s: float) -> None:
        self._reads = reads
        self._every_s = every_s
        self.written = 0

    async def read(self, most: int) -> bytes:
        await trio.sleep(self._every_s)
        if not self._reads:
            raise MuxedStreamEOF("over")
        self._reads -= 1
        return bytes(100)

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.written += len(data)

    def finish(self) -> None:
        """There is nobody to tell."""


async def test_a_circuit_that_grew_for_its_bytes_outlives_the_time_of_a_strangers(autojump_clock: MockClock) -> None:
    now = micros(trio.current_time())
    ledger = RelayLedger(RelayLimits(stranger_circuit_bytes=250, stranger_circuit_s=5))
    ledger.reserve(TARGET, "n", now, is_member=True)
    circuit = ledger.open_circuit(RELAY, TARGET, "n", now, is_of_members=False)
    assert isinstance(circuit, Circuit)
    source, target = End(20, 1.0), End(0, 0.0)
    grow = partial(ledger.extend, now=now)
    await Passage(circuit, grow, cast(YamuxStream, source), cast(YamuxStream, target)).run()
    assert target.written == 2000


async def test_strangers_pass_a_hello_through_a_relay_and_no_model() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            relay.reach.offer_relay(replace(RelayLimits(), stranger_circuit_bytes=200_000))
            relay.dismiss(a.peer_id)
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
            assert await ask(a, b.peer_id, bytes(1000)) == bytes(1000)
            with pytest.raises(PeerUnavailable):
                await ask(a, b.peer_id, bytes(300_000))


async def test_what_began_as_a_strangers_circuit_goes_on_once_both_ends_are_members() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            relay.reach.offer_relay(replace(RelayLimits(), stranger_circuit_bytes=200_000))
            relay.dismiss(a.peer_id)
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
            relay.admit(a.peer_id)
            assert await ask(a, b.peer_id, bytes(300_000)) == bytes(300_000)


async def test_five_addresses_where_nobody_answers_before_a_good_one_cost_less_than_two_seconds() -> None:
    """Sockets that take connections and say nothing: each of them alone would cost a handshake's ten seconds."""
    async with open_network(fake_identity("a"), LISTEN) as a, open_network(fake_identity("b"), LISTEN) as b:
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
            dead = tuple(f"/ip4/127.0.0.1/tcp/{sock.getsockname()[1]}" for sock in silent)
            began = trio.current_time()
            await a.dial(b.peer_id, (*dead, *b.addresses()), DEADLINE_S)
            took_s = trio.current_time() - began
    assert 1.0 < took_s < 9.0  # nominally 1.3; one dead address after the other would be over 50


async def test_a_relay_is_tried_while_direct_addresses_are_silent() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            with ExitStack() as stack:
                silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
                dead = tuple(f"/ip4/127.0.0.1/tcp/{sock.getsockname()[1]}" for sock in silent)
                began = trio.current_time()
                await a.dial(b.peer_id, (*dead, *through(relay)), DEADLINE_S)
                took_s = trio.current_time() - began
            assert a.path_of(b.peer_id) is PathKind.RELAYED
            assert took_s < 8.0


async def test_a_malformed_address_beside_a_relay_is_passed_over() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, ("nonsense", *through(relay)), DEADLINE_S)
            assert a.path_of(b.peer_id) is PathKind.RELAYED


async def test_a_relayed_connection_gives_way_to_a_direct_one() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
            await admit_each_other(a, b)
            own = tuple(address.partition("/p2p/")[0] for address in b.addresses())
            a.reach.set_own_addresses(tuple(address.partition("/p2p/")[0] for address in a.addresses()))
            held = await a.open_stream(b.peer_id, ECHO, DEADLINE_S)
            assert await b.reach.punch(a.peer_id, own, DEADLINE_S)
            await until(lambda: a.reach.paths_of(b.peer_id).has_direct)
            assert a.path_of(b.peer_id) is b.path_of(a.peer_id) is PathKind.DIRECT
            assert await ask(a, b.peer_id, b"directly") == b"directly"
            assert not await a.reach.close_relayed(b.peer_id)  # a stream is open on it
            await held.send(bytes(4))
            await held.reset()
            await until(lambda: not b.reach.uses_relay(a.peer_id))
            assert await a.reach.close_relayed(b.peer_id)
            assert await ask(b, a.peer_id, b"still") == b"still"


async def test_whoever_is_no_member_aims_nobody() -> None:
    async with three() as (relay, a, b):
        await b.reach.reserve(relay.peer_id, DEADLINE_S)
        await a.dial(b.peer_id, through(relay), DEADLINE_S)
        b.dismiss(a.peer_id)
        a.reach.set_own_addresses(("/ip4/127.0.0.1/tcp/1",))
        assert not await b.reach.punch(a.peer_id, ("/ip4/127.0.0.1/tcp/1",), 2.0)


async def meet_through_the_relay(relay: Libp2pNetwork, a: Libp2pNetwork, b: Libp2pNetwork) -> None:
    await b.reach.reserve(relay.peer_id, DEADLINE_S)
    await a.dial(b.peer_id, through(relay), DEADLINE_S)
    await admit_each_other(a, b)


async def test_a_peer_that_starts_while_we_do_ends_no_more_than_its_try() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await meet_through_the_relay(relay, a, b)

            async def start_too(stream: ByteStream) -> None:
                other = await a.open_stream(b.peer_id, DCUTR_PROTOCOL, DEADLINE_S)
                await other.send(b"\x05hello")
                with suppress(PeerUnavailable):
                    await other.receive_exactly(1)

            a.serve(DCUTR_PROTOCOL, start_too)
            assert not await b.reach.punch(a.peer_id, (), DEADLINE_S)


async def test_a_peer_has_one_try_at_a_time() -> None:
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, b):
            await meet_through_the_relay(relay, a, b)
            await a.open_stream(b.peer_id, DCUTR_PROTOCOL, DEADLINE_S)
            second = await a.open_stream(b.peer_id, DCUTR_PROTOCOL, DEADLINE_S)
            with trio.fail_after(MESSAGE_TIMEOUT_S), pytest.raises(PeerUnavailable):  # the first: twice as long
                await second.receive_exactly(1)


def test_a_peer_may_ask_for_a_few_tries_and_then_for_one_now_and_then() -> None:
    meetings = Meetings()
    asker, other = fake_identity("a").peer_id, fake_identity("b").peer_id

    def tries(peer: PeerId, now: int) -> bool:
        is_let = meetings.enter(peer, Micros(now))
        if is_let:
            meetings.leave(peer)
        return is_let

    assert [tries(asker, 0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert tries(other, 0)
    assert tries(asker, 10_000_000)
    assert not tries(asker, 10_000_000)


async def test_nobody_aims_us_at_services_of_our_own_machine() -> None:
    with trio.fail_after(DEADLINE_S), socket.create_server(("127.0.0.1", 0)) as service:
        service.setblocking(False)
        async with three() as (relay, a, _), open_network(fake_identity("c"), ("/ip4/0.0.0.0/tcp/0",)) as c:
            await c.dial(relay.peer_id, relay.addresses(), DEADLINE_S)
            relay.admit(c.peer_id)
            await meet_through_the_relay(relay, a, c)
            a.reach.set_own_addresses((f"/ip4/127.0.0.1/tcp/{service.getsockname()[1]}",))
            assert not await c.reach.punch(a.peer_id, (), 1.0)
        with pytest.raises(BlockingIOError):
            service.accept()


@pytest.mark.parametrize("address", ["/dns4/evil.example/tcp/4001", "/ip4/0.0.0.0/tcp/4001", "/ip4/224.0.0.1/tcp/1"])
async def test_a_peer_that_sees_us_where_nobody_is_says_nothing(address: str) -> None:
    message = Identify(observed_addr=Multiaddr(address).to_bytes()).SerializeToString()

    async def lie(stream: ByteStream) -> None:
        await stream.send(bytes((len(message),)) + message)

    async with three() as (relay, a, _):
        relay.serve(IDENTIFY_PROTOCOL, lie)
        assert await a.reach.observe(relay.peer_id, 5.0) is None


async def test_who_leads_nobody_to_us_and_says_nothing_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reach, "RELAY_TIMEOUT_S", 0.05)
    with trio.fail_after(DEADLINE_S):
        async with three() as (relay, a, _):
            stream = await relay.open_stream(a.peer_id, STOP_PROTOCOL, DEADLINE_S)
            with pytest.raises(PeerUnavailable):
                await stream.receive_exactly(1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_witness_dials_back_where_the_question_came_from_and_nowhere_else() -> None:
    async with three() as (relay, a, _):
        good = a.addresses()[0].partition("/p2p/")[0]
        assert await a.reach.ask_dial_back(relay.peer_id, (good,), 5.0) == (DialBack.REACHED, good)
        dead = "/ip4/127.0.0.1/tcp/1"
        assert await a.reach.ask_dial_back(relay.peer_id, (dead,), 5.0) == (DialBack.FAILED, "")
        elsewhere = "/ip4/127.0.0.2/tcp/4001"
        assert await a.reach.ask_dial_back(relay.peer_id, (elsewhere,), 5.0) == (DialBack.DECLINED, "")
        others = relay.addresses()[0].partition("/p2p/")[0]  # somebody answers there, but not us
        assert await a.reach.ask_dial_back(relay.peer_id, (others,), 5.0) == (DialBack.FAILED, "")


async def test_a_witness_that_is_asked_without_end_declines() -> None:
    async with three() as (relay, a, _):
        good = a.addresses()[0].partition("/p2p/")[0]
        answers = [(await a.reach.ask_dial_back(relay.peer_id, (good,), 5.0))[0] for _ in range(8)]
        assert answers[0] is DialBack.REACHED
        assert answers[-1] is DialBack.DECLINED


async def test_a_peer_says_where_it_sees_us() -> None:
    async with three() as (relay, a, _):
        seen = await a.reach.observe(relay.peer_id, 5.0)
        assert seen is not None
        assert seen.host == "127.0.0.1"
        assert seen.port == seen.local_port
        from_there = await a.reach.observe_listen_port(relay.peer_id, 5.0)
        assert from_there is not None
        assert from_there.port == from_there.local_port == a.reach.listen_port()


async def test_the_port_is_ours_alone_after_it_was_shared_for_a_moment() -> None:
    async with three() as (relay, a, _):
        await a.reach.observe_listen_port(relay.peer_id, 5.0)
        address = a.addresses()[0].partition("/p2p/")[0]
        with pytest.raises(P2PMeshError):
            async with open_network(fake_identity("thief"), (address,)):
                pytest.fail("it listens on our port")


GARBAGE = (
    b"",
    b"\x00",
    b"\xff\xff\xff\xff",
    b"\xff\x7f" + bytes(100),
    b"\x05hello",
    b"\x02\x08\x09",
    bytes(range(256)),
)


@pytest.mark.parametrize("protocol", [HOP_PROTOCOL, STOP_PROTOCOL, AUTONAT_PROTOCOL, DCUTR_PROTOCOL])
async def test_garbage_costs_its_stream(protocol: str) -> None:
    """An empty message is garbage too, and so is one that names a peer by bytes that are no id."""
    with trio.fail_after(60):
        async with three() as (relay, a, b):
            for data in (*GARBAGE, _delimited(HopMessage(type=HopMessage.CONNECT, peer=PeerField(id=b"nobody")))):
                stream = await a.open_stream(relay.peer_id, protocol, DEADLINE_S)
                with suppress(PeerUnavailable):
                    await stream.send(data)
                    await stream.finish()
                    await stream.receive_exactly(1_000)
            assert await b.reach.reserve(relay.peer_id, DEADLINE_S)
            await a.dial(b.peer_id, through(relay), DEADLINE_S)
            assert await ask(a, b.peer_id, b"well") == b"well"


def _delimited(message: HopMessage) -> bytes:
    data = message.SerializeToString()
    return bytes((len(data),)) + data


async def test_uses_of_all_connections_take_walks_that_do_not_grow_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with three() as (relay, a, b):
        await b.reach.reserve(relay.peer_id, DEADLINE_S)
        walks: list[PeerId | None] = []
        get = relay._swarm.get_connections
        monkeypatch.setattr(relay._swarm, "get_connections", lambda peer=None: walks.append(peer) or get(peer))
        uses = relay.uses()
        assert {peer: use.exchanges for peer, use in uses.items()} == {a.peer_id: 0, b.peer_id: 1}
        assert walks == [None, None]
        assert relay.reach.relay_users() == {b.peer_id}


async def test_a_place_is_for_who_asks_whoever_the_message_names() -> None:
    async with three() as (relay, a, b):
        stream = await a.open_stream(relay.peer_id, HOP_PROTOCOL, DEADLINE_S)
        named = PeerField(id=libp2p_id(b.peer_id).to_bytes())
        await stream.send(_delimited(HopMessage(type=HopMessage.RESERVE, peer=named)))
        await stream.receive_exactly(1)
        assert relay.reach.uses_relay(a.peer_id)
        assert not relay.reach.uses_relay(b.peer_id)


RELAY = fake_identity("relay").peer_id
TARGET = fake_identity("target").peer_id


def test_circuit_addresses() -> None:
    text = f"/ip4/198.51.100.7/tcp/4001/p2p/{RELAY}/p2p-circuit"
    found = parse_circuit(TARGET, text)
    assert found is not None
    assert (found.relay, found.via.host, found.via.port) == (RELAY, "198.51.100.7", 4001)
    assert parse_circuit(TARGET, f"{text}/p2p/{TARGET}") == found
    assert circuits_to(TARGET, (text, f"{text}/p2p/{TARGET}", "nonsense")) == (found,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/p2p-circuit",
        "/ip4/198.51.100.7/tcp/4001/p2p-circuit",
        f"/ip4/198.51.100.7/tcp/4001/p2p/{RELAY}",
        f"/ip4/198.51.100.7/tcp/0/p2p/{RELAY}/p2p-circuit",
        f"/ip4/198.51.100.7/udp/4001/p2p/{RELAY}/p2p-circuit",
        f"/ip4/198.51.100.7/tcp/4001/p2p/{TARGET}/p2p-circuit",
        f"/ip4/198.51.100.7/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{RELAY}",
        f"/ip4/198.51.100.7/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{RELAY}/p2p-circuit",
        f"/p2p/{RELAY}/p2p-circuit/p2p/{TARGET}",
    ],
)
def test_no_circuit_address(text: str) -> None:
    assert parse_circuit(TARGET, text) is None
