"""Provider records between real hosts, and what peers may try with them."""

import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio
import varint  # type: ignore[import-untyped]
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID

from p2pmesh.adapters.p2p import dht
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_RECORD_KEYS_PER_PEER, MAX_RECORD_MESSAGE_BYTES, RECORDS_PROTOCOL
from p2pmesh.ports.network import ByteStream, Provider
from tests.fakes.identity import fake_identity

DEADLINE_S = 30.0
KEY = hashlib.sha256(b"a model").digest()
MULTIHASH = b"\x12\x20" + KEY


class Member:
    """A network whose hello is a mere connection to another member; implements ``RecordPeers``."""

    def __init__(self, network: Libp2pNetwork, members: "dict[PeerId, Member]", *, is_server: bool = True) -> None:
        self.network = network
        self.members = members
        self.is_server = is_server
        self.met: list[PeerId] = []
        members[network.peer_id] = self
        network.serve_records(self, is_server=is_server)

    def is_admitted(self, peer: PeerId) -> bool:
        return peer in self.members and peer in self.network.connected_peers()

    def record_servers(self) -> tuple[Provider, ...]:
        return tuple(
            Provider(peer, member.network.addresses())
            for peer, member in self.members.items()
            if member.is_server and self.is_admitted(peer)
        )

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        self.met.append(peer)
        if peer not in self.members:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "no member")
        await self.network.dial(peer, addresses, 5)


@asynccontextmanager
async def open_members(count: int, clients: int = 0) -> AsyncIterator[list[Member]]:
    """Each is connected to the one before it; the last ``clients`` serve nobody."""
    members: dict[PeerId, Member] = {}
    async with AsyncExitStack() as stack:
        opened: list[Member] = []
        for n in range(count):
            network = await stack.enter_async_context(
                open_network(fake_identity(f"member {n}"), ("/ip4/127.0.0.1/tcp/0",))
            )
            opened.append(Member(network, members, is_server=n < count - clients))
            if n:
                await network.dial(opened[n - 1].network.peer_id, opened[n - 1].network.addresses(), 10)
        with trio.fail_after(DEADLINE_S):
            for one, other in itertools.pairwise(opened):
                while not one.is_admitted(other.network.peer_id):
                    await one.network.connection_event()
            yield opened


async def find_soon(member: Member, key: bytes = KEY, count: int = 1) -> dict[PeerId, tuple[str, ...]]:
    """Asks again until so many are found: a record travels without an answer."""
    with trio.fail_after(DEADLINE_S):
        while True:
            found = await member.network.find_providers(key, 8, 10)
            if len(found) >= count:
                return {provider.peer: provider.addresses for provider in found}


async def test_a_provider_is_found_along_a_chain_of_eight_hosts() -> None:
    async with open_members(8) as members:
        provider = members[0].network
        assert await provider.provide(KEY, 20) >= 1
        found = await find_soon(members[7])
        assert found == {provider.peer_id: tuple(a.partition("/p2p/")[0] for a in provider.addresses())}
        assert await members[7].network.find_providers(hashlib.sha256(b"another").digest(), 8, 10) == ()


async def test_every_provider_of_a_key_is_found_by_the_providers_too_and_the_limit_holds() -> None:
    async with open_members(5) as members:
        for member in members[:4]:
            await member.network.provide(KEY, 20)
        peers = {member.network.peer_id for member in members[:4]}
        assert set(await find_soon(members[4], count=4)) == peers
        own = members[0].network.peer_id
        assert set(await find_soon(members[0], count=3)) == peers - {own}
        assert len(await members[4].network.find_providers(KEY, 2, 10)) == 2


async def test_a_client_finds_and_provides_but_is_asked_by_nobody() -> None:
    async with open_members(4, clients=1) as members:
        client = members[3].network
        await client.provide(KEY, 20)
        assert set(await find_soon(members[0])) == {client.peer_id}
        with pytest.raises(PeerUnavailable, match="does not speak"):
            await members[2].network.open_stream(client.peer_id, RECORDS_PROTOCOL, 5)


async def test_a_client_becomes_a_server_and_a_client_again() -> None:
    async with open_members(2, clients=1) as (one, other):
        for is_server in (True, False, True):
            other.network.serve_records(other, is_server=is_server)
            if is_server:
                stream = await one.network.open_stream(other.network.peer_id, RECORDS_PROTOCOL, 5)
                await stream.reset()
            else:
                with pytest.raises(PeerUnavailable):
                    await one.network.open_stream(other.network.peer_id, RECORDS_PROTOCOL, 5)


async def test_a_record_ends_and_our_own_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_members(2) as (one, other):
        await one.network.provide(KEY, 20)
        await find_soon(other)
        one.network.stop_providing(KEY)
        store = one.network.records._store
        assert MULTIHASH not in store.providers or not store.providers[MULTIHASH]
        monkeypatch.setitem(vars(dht.kad_providers), "PROVIDER_RECORD_EXPIRATION_INTERVAL", -1)
        assert await other.network.find_providers(KEY, 8, 10) == ()


async def test_nothing_is_found_without_anybody_to_ask() -> None:
    async with open_network(fake_identity("alone"), ("/ip4/127.0.0.1/tcp/0",)) as network:
        assert await network.find_providers(KEY, 8, 10) == ()
        assert await network.provide(KEY, 10) == 0
        Member(network, {})
        assert await network.find_providers(KEY, 8, 10) == ()


# --- what peers may try ---------------------------------------------------------
def framed(message: Message) -> bytes:
    data = message.SerializeToString()
    return bytes(varint.encode(len(data))) + data


def add_provider(peer: PeerId, key: bytes = MULTIHASH, count: int = 1) -> Message:
    message = Message(type=Message.MessageType.ADD_PROVIDER, key=key)
    for _ in range(count):
        entry = message.providerPeers.add()
        entry.id = ID.from_base58(peer).to_bytes()
        entry.addrs.append(b"\x04\x7f\x00\x00\x01\x06\x0f\xa1")
    return message


async def say(member: Member, to: Member, data: bytes) -> None:
    """Sends bytes on a stream of the protocol and waits for its end."""
    stream = await member.network.open_stream(to.network.peer_id, RECORDS_PROTOCOL, 5)
    await stream.send(data)
    await stream.finish()
    await wait_for_end(stream)


async def wait_for_end(stream: ByteStream) -> None:
    with suppress(P2PMeshError):
        while True:
            await stream.receive_exactly(1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 11,
        bytes(varint.encode(MAX_RECORD_MESSAGE_BYTES + 1)),
        b"\x05\xff\xff\xff\xff\xff",
        b"\x7f\x08",
        framed(Message(type=Message.MessageType.FIND_NODE)),
        framed(Message(type=Message.MessageType.FIND_NODE, key=b"k" * 60_000)),
        framed(Message(type=Message.MessageType.PUT_VALUE)),
        framed(Message(type=Message.MessageType.PUT_VALUE, key=b"/pk/x", record={"key": b"/pk/x", "value": b"v"})),
        framed(Message(type=Message.MessageType.PUT_VALUE, key=b"k", record={"key": b"k", "value": b"v"})),
        framed(Message(type=Message.MessageType.GET_PROVIDERS, key=b"")),
        framed(Message(type=Message.MessageType.GET_PROVIDERS, key=b"k", senderRecord=b"\xff" * 99)),
        framed(Message(type=Message.MessageType.ADD_PROVIDER, key=b"k" * 81)),
        bytes(range(256)) * 8,
    ],
)
async def test_garbage_costs_its_stream_and_is_not_kept(data: bytes) -> None:
    async with open_members(2) as (attacker, member):
        await say(attacker, member, data)
        kad = member.network.records._kad
        assert kad.value_store.size() == 0
        assert member.network.records._store.size() == 0
        await attacker.network.provide(KEY, 10)
        await find_soon(member)


async def test_nobody_provides_in_anothers_name_and_only_hashes_are_keys() -> None:
    async with open_members(3) as (attacker, member, victim):
        await say(attacker, member, framed(add_provider(victim.network.peer_id)))
        await say(attacker, member, framed(add_provider(attacker.network.peer_id, b"x" * 34)))
        await say(attacker, member, framed(add_provider(attacker.network.peer_id, b"short")))
        assert member.network.records._store.size() == 0
        await say(attacker, member, framed(add_provider(attacker.network.peer_id, count=50)))
        assert member.network.records._store.size() == 1


async def test_one_peer_cannot_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_members(2) as (attacker, member):
        monkeypatch.setattr(member.network.records._kad, "_provider_rate_max", 10_000)
        many = b"".join(
            framed(add_provider(attacker.network.peer_id, b"\x12\x20" + hashlib.sha256(bytes([n])).digest()))
            for n in range(MAX_RECORD_KEYS_PER_PEER + 20)
        )
        await say(attacker, member, many)
        assert member.network.records._store.size() == MAX_RECORD_KEYS_PER_PEER
        member.network.records._store.cleanup_expired()
        await say(attacker, member, many)
        assert member.network.records._store.size() == MAX_RECORD_KEYS_PER_PEER


async def test_who_is_not_admitted_is_not_answered() -> None:
    async with open_members(2) as (member, _):
        async with open_network(fake_identity("stranger"), ("/ip4/127.0.0.1/tcp/0",)) as stranger:
            await stranger.dial(member.network.peer_id, member.network.addresses(), 10)
            stream = await stranger.open_stream(member.network.peer_id, RECORDS_PROTOCOL, 5)
            with suppress(PeerUnavailable):  # it may be reset by now
                await stream.send(framed(add_provider(stranger.peer_id)))
            await wait_for_end(stream)
        assert member.network.records._store.size() == 0


async def test_peers_that_a_lookup_reads_of_are_met_first_and_not_remembered() -> None:
    """A liar names a thousand peers that do not exist."""
    made_up = [fake_identity(f"made up {n}").peer_id for n in range(60)]
    answer = Message(type=Message.MessageType.FIND_NODE)
    for peer in made_up:
        entry = answer.closerPeers.add()
        entry.id = ID.from_base58(peer).to_bytes()
        entry.addrs.append(b"\x04\x7f\x00\x00\x01\x06\x0f\xa1")

    async def lie(stream: ByteStream) -> None:
        await stream.send(framed(answer))

    async with open_members(2) as (member, liar):
        liar.network.serve(RECORDS_PROTOCOL, lie)
        assert await member.network.find_providers(KEY, 8, 10) == ()
        assert set(member.met) <= set(made_up)
        assert len(member.met) <= 40
        book = member.network.records._kad_host.book
        assert {str(peer) for peer in book.peer_ids()} <= {member.network.peer_id, liar.network.peer_id}
        assert member.network.connected_peers() == {liar.network.peer_id}


async def test_a_silent_stream_is_ended_and_one_peer_has_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht, "STREAM_TIMEOUT_S", 0.3)
    async with open_members(2) as (attacker, member):
        streams = [
            await attacker.network.open_stream(member.network.peer_id, RECORDS_PROTOCOL, 5)
            for _ in range(dht.STREAMS_PER_PEER + 3)
        ]
        with trio.fail_after(DEADLINE_S):
            for stream in streams:
                await wait_for_end(stream)
            while member.network.records._busy:
                await trio.lowlevel.checkpoint()
