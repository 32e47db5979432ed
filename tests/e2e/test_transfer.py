"""Files between real nodes: killed receivers, killed and hostile sources. The test itself is a peer: it names a file,
as a coordinator does, and gives it at a pace of its own, so that it knows every byte that was sent."""

import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from p2pmesh.adapters.identity import NodeIdentity, identity_of_seed
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import Digest, MeshId, PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, MAX_LEASE_MS
from p2pmesh.base.quantities import KIB, MIB
from p2pmesh.node.channels import MessageStream, refusal_of
from p2pmesh.ports.network import ByteStream, Provider
from p2pmesh.wire.messages.artifacts import ArtifactChunk, FetchArtifact, FetchPieceList
from p2pmesh.wire.messages.claims import ClaimGranted, ClaimRun
from p2pmesh.wire.messages.runs import LoadStage, StageEntry
from p2pmesh.wire.pieces import PieceHasher, PieceList
from p2pmesh.wire.records import artifact_key
from tests.e2e.hello import say_hello
from tests.e2e.peers import Event, NodeProcess, Peers, wait_until

SEED = 4
CHUNK_BYTES = 64 * KIB
KILLS = 10
WAIT_S = 120.0


@dataclass(frozen=True)
class File:
    """Bytes that travel; no node can load them, which they find out when they have them."""

    data: bytes
    digest: Digest
    pieces: PieceList

    @staticmethod
    def of(size_bytes: int) -> "File":
        chance = random.Random(SEED)
        data = b"".join(chance.randbytes(MIB) for _ in range(size_bytes // MIB))
        hasher = PieceHasher(size_bytes)
        hasher.update(data)
        return File(data, Digest(hashlib.sha256(data).hexdigest()), hasher.finish())


Answer = Callable[["Member", MessageStream, FetchArtifact], Awaitable[None]]


@dataclass
class Member:
    """A member that is no node. ``pause_s`` lies between two chunks of one answer."""

    network: Libp2pNetwork
    identity: NodeIdentity
    file: File
    pause_s: float
    answer: Answer
    sent_bytes: int = 0
    orders: int = 0
    grown: trio.Event = field(default_factory=trio.Event)

    async def serve(self, raw: ByteStream) -> None:
        stream = MessageStream(raw)
        with suppress(P2PMeshError):
            asked = await stream.receive(20)
            match asked:
                case FetchPieceList():
                    await stream.send(ArtifactChunk(self.file.pieces.hashes))
                case FetchArtifact():
                    await self.answer(self, stream, asked)
                case _:
                    await stream.send(refusal_of(ErrorCode.MESSAGE_UNEXPECTED, "this is a test"))
            await stream.finish()

    async def send(self, stream: MessageStream, data: bytes) -> None:
        await stream.send(ArtifactChunk(data))
        self.sent_bytes += len(data)
        self.grown.set()
        self.grown = trio.Event()

    async def wait_sent(self, beyond_bytes: int) -> None:
        with trio.fail_after(WAIT_S):
            while self.sent_bytes < beyond_bytes:
                await self.grown.wait()

    async def meet(self, node: NodeProcess, mesh_id: str, invite: str) -> PeerId:
        status = await trio.to_thread.run_sync(node.status)
        peer = PeerId(node.peer_id)
        await self.network.dial(peer, tuple(status["addresses"]), 10)
        await say_hello(self.network, self.identity, peer, mesh_id, invite)
        return peer

    async def order(self, peer: PeerId) -> MessageStream:
        """Has a node fetch the file for a stage that is never to be."""
        self.orders += 1
        size, run_id = len(self.file.data), self.orders.to_bytes(16, "big")
        model = hashlib.sha256(self.identity.peer_id.encode()).hexdigest()
        claim = ClaimRun(model, run_id, self.orders, MAX_LEASE_MS, (self.identity.peer_id, peer), False)
        stream = MessageStream(await self.network.open_stream(peer, CONTROL_PROTOCOL, 10))
        await stream.send(claim)
        await stream.expect(ClaimGranted, 10)
        load = LoadStage(
            run_id=run_id, term=self.orders, model="no-model", model_digest=model, model_bytes=size, layer_count=4,
            index=0, stages=(StageEntry(peer, 0, 4, ()),), artifact_digest=self.file.digest, artifact_bytes=size,
            needed_bytes=size, context_tokens=64, lanes=1, wire_dtype=1, pieces_digest=self.file.pieces.digest,
        )  # fmt: skip
        stream = MessageStream(await self.network.open_stream(peer, CONTROL_PROTOCOL, 10))
        await stream.send(load)
        return stream


async def give(peer: Member, stream: MessageStream, asked: FetchArtifact) -> None:
    end = asked.offset + asked.size_bytes
    for start in range(asked.offset, end, CHUNK_BYTES):
        await trio.sleep(peer.pause_s)
        await peer.send(stream, peer.file.data[start : min(end, start + CHUNK_BYTES)])


@asynccontextmanager
async def a_peer(seed: int, file: File, pause_s: float = 0.0, answer: Answer = give) -> AsyncIterator[Member]:
    identity = identity_of_seed(bytes([seed]) * 32)
    async with open_network(identity, ("/ip4/127.0.0.1/tcp/0",)) as network:
        made = Member(network, identity, file, pause_s, answer)
        network.serve(CONTROL_PROTOCOL, made.serve)
        yield made


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(lambda: call(*arguments))


async def wait_fetched(node: NodeProcess, after: int = 0) -> Event:
    return await in_thread(lambda: node.wait_for("stage_fetched", after=after, timeout_s=WAIT_S))


class Records:
    """The records that a member may ask for: those of nodes that it has met."""

    def __init__(self, met: list[Provider]) -> None:
        self.met = met

    def is_admitted(self, peer: PeerId) -> bool:
        return peer in {one.peer for one in self.met}

    def record_servers(self) -> tuple[Provider, ...]:
        return tuple(self.met)

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if not self.is_admitted(peer):
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "not met")


async def wait_provided(file: File, founder: NodeProcess, holders: list[NodeProcess]) -> None:
    """Until the file is found at all holders."""
    mesh_id = founder.status()["mesh_id"]
    async with a_peer(63, file) as asker:
        met = [Provider(await asker.meet(node, mesh_id, founder.invite), ()) for node in (founder, *holders)]
        asker.network.serve_records(Records(met), is_server=False)
        wanted = {node.peer_id for node in holders}
        with trio.fail_after(WAIT_S):
            found: set[PeerId] = set()
            while not wanted <= found:
                found = {one.peer for one in await asker.network.find_providers(key_of(mesh_id, file), 8, 10)}
                await trio.sleep(0.1)


def key_of(mesh_id: str, file: File) -> bytes:
    return artifact_key(MeshId(mesh_id), file.digest)


def given_by(node: NodeProcess) -> int:
    return int(node.status()["artifacts"]["given_bytes"])


def content_of(node: NodeProcess, file: File) -> bytes:
    return (node.home / "cache" / "stages" / f"{file.digest}.gguf").read_bytes()


@pytest.mark.slow
async def test_ten_kills_of_the_receiver_cost_less_than_a_tenth(peers: Peers) -> None:
    file = File.of(96 * MIB)
    founder = peers.found("founder", "--max-memory", "0")
    mesh_id = founder.status()["mesh_id"]
    node = peers.join("receiver", founder.invite, "--max-memory", "1GiB")
    chance = random.Random(SEED)
    kills = sorted(chance.uniform(0.02, 0.95) for _ in range(KILLS))
    async with a_peer(60, file, pause_s=0.02) as source:
        for share in kills:
            peer = await source.meet(node, mesh_id, founder.invite)
            await source.order(peer)
            await source.wait_sent(int(share * len(file.data)))
            await in_thread(node.kill)
            node = await in_thread(lambda: peers.start("receiver", "--join", founder.invite, "--max-memory", "1GiB"))
            await in_thread(node.wait_for, "joined")
        peer = await source.meet(node, mesh_id, founder.invite)
        await source.order(peer)
        told = await wait_fetched(node)
    assert content_of(node, file) == file.data
    assert told["resumed_bytes"] + told["fetched_bytes"] == len(file.data)
    assert told["resumed_bytes"] > 0.8 * len(file.data)
    twice = source.sent_bytes - len(file.data)
    print(f"{KILLS} kills: {100 * twice / len(file.data):.2f} % of the bytes were sent twice")
    assert twice <= 0.1 * len(file.data)


async def wrong(peer: Member, stream: MessageStream, asked: FetchArtifact) -> None:
    data = bytearray(peer.file.data[asked.offset : asked.offset + asked.size_bytes])
    data[-1] ^= 1
    for start in range(0, len(data), CHUNK_BYTES):
        await peer.send(stream, bytes(data[start : start + CHUNK_BYTES]))


async def test_a_source_that_is_killed_and_one_that_lies_stop_nothing(peers: Peers) -> None:
    """Two nodes have the file and are found in the records; one is killed. Whoever names it gives wrong bytes."""
    file = File.of(192 * MIB)
    founder = peers.found("founder", "--max-memory", "0")
    mesh_id = founder.status()["mesh_id"]
    holders = [peers.join(f"holder-{n}", founder.invite, "--max-memory", "1GiB") for n in range(2)]
    async with a_peer(61, file) as source:
        for holder in holders:
            await source.order(await source.meet(holder, mesh_id, founder.invite))
        for holder in holders:
            assert (await wait_fetched(holder))["wasted_bytes"] == 0
    receiver = peers.join("receiver", founder.invite, "--max-memory", "1GiB")
    await wait_provided(file, founder, holders)
    async with a_peer(62, file, answer=wrong) as liar:
        await liar.order(await liar.meet(receiver, mesh_id, founder.invite))
        given = given_by(holders[0])
        assert await in_thread(wait_until, lambda: given_by(holders[0]) > given, WAIT_S)
        await in_thread(holders[0].kill)
        assert receiver.find("stage_fetched") is None
        told = await wait_fetched(receiver)
    assert content_of(receiver, file) == file.data
    dropped = {
        event["peer_id"]: event["cause"] for event in receiver.events if event["event"] == "artifact_source_dropped"
    }
    assert dropped[liar.identity.peer_id] == "wrong"
    assert dropped.get(holders[0].peer_id) in ("lost", "slow")
    assert {source["peer_id"] for source in told["sources"]} >= {holder.peer_id for holder in holders}
    assert told["wasted_bytes"] <= 0.1 * len(file.data)


async def short(peer: Member, stream: MessageStream, asked: FetchArtifact) -> None:
    await peer.send(stream, peer.file.data[asked.offset : asked.offset + 1000])


async def endless(peer: Member, stream: MessageStream, asked: FetchArtifact) -> None:
    await give(peer, stream, asked)
    while True:
        await peer.send(stream, bytes(CHUNK_BYTES))


async def trickle(peer: Member, stream: MessageStream, asked: FetchArtifact) -> None:
    for offset in range(asked.offset, asked.offset + asked.size_bytes):
        await peer.send(stream, peer.file.data[offset : offset + 1])
        await trio.sleep(1)


async def silence(peer: Member, stream: MessageStream, asked: FetchArtifact) -> None:
    await trio.sleep_forever()


@pytest.mark.slow
async def test_hostile_sources_cost_little_and_a_damaged_file_is_fetched_again(peers: Peers) -> None:
    file = File.of(24 * MIB)
    founder = peers.found("founder", "--max-memory", "0")
    mesh_id = founder.status()["mesh_id"]
    holder, receiver = [peers.join(name, founder.invite, "--max-memory", "1GiB") for name in ("holder", "receiver")]
    async with a_peer(70, file) as source:
        await source.order(await source.meet(holder, mesh_id, founder.invite))
        await wait_fetched(holder)
    cached = receiver.home / "cache" / "stages" / f"{file.digest}.gguf"
    for seed, answer in enumerate((give, short, endless, trickle, silence, wrong), 71):
        after = receiver.mark()
        async with a_peer(seed, file, answer=answer) as source:
            await source.order(await source.meet(receiver, mesh_id, founder.invite))
            told = await wait_fetched(receiver, after)
        assert content_of(receiver, file) == file.data
        assert told["fetched_bytes"] == len(file.data), answer
        assert told["wasted_bytes"] <= 24 * file.pieces.piece_bytes, (answer, told)
        damage(cached)
    assert len(list((receiver.home / "cache" / "quarantine").iterdir())) == 5
    assert not [line for line in receiver.errors if "Traceback" in line], receiver.errors


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
