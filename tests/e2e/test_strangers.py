"""Peers that are no members, or no more, and gossip all the same: real hosts against real nodes."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import trio

from p2pmesh.adapters.identity import NodeIdentity, new_identity
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.errors import PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, PROTOCOL_GENERATION
from p2pmesh.node.channels import MessageStream
from p2pmesh.ports.network import Subscription
from p2pmesh.wire import liveness
from p2pmesh.wire.announcement import Announcement, ServedModel, encode_announcement, topic_of
from p2pmesh.wire.messages.admission import Hello, Welcome
from tests.e2e.peers import NodeProcess, Peers, run_command

NO_MODEL = ("--max-memory", "0")
PATIENCE_S = 60.0
REPEAT_S = 0.3
MADE_UP = 10


class Speaker:
    """A host with a key that says what it likes."""

    def __init__(self, network: Libp2pNetwork, identity: NodeIdentity, mesh_id: str) -> None:
        self.network = network
        self.identity = identity
        self.mesh_id = MeshId(mesh_id)
        self.passes: tuple[bytes, ...] = ()
        self.heard: list[Subscription] = []

    def word(self, identity: NodeIdentity | None = None, model: str = "") -> bytes:
        """A fresh announcement, of this host or of another key."""
        identity = identity or self.identity
        now = time.time_ns() // 1_000_000
        models = (ServedModel(model, "ab" * 32, bytes(16), 1, 4096),) if model else ()
        said = Announcement(
            peer_id=identity.peer_id, mesh_id=self.mesh_id, name="speaker", version="0.1.0", incarnation=now,
            sequence=1, expires_unix_ms=now + 90_000, addresses=("/ip4/127.0.0.1/tcp/9",), memory_bytes=0, free_bytes=0,
            models=models, passes=self.passes,
        )  # fmt: skip
        return encode_announcement(said, identity.public_key, identity.sign)

    async def publish(self, data: bytes) -> None:
        await self.network.publish(topic_of(self.mesh_id), data)
        await trio.sleep(REPEAT_S)

    async def connect(self, node: NodeProcess) -> PeerId:
        """Takes the node for a fellow member, whatever the node thinks."""
        peer = PeerId(node.peer_id)
        status = await trio.to_thread.run_sync(node.status)
        await self.network.dial(peer, tuple(status["addresses"]), 10)
        self.network.admit(peer)
        return peer

    async def join(self, node: NodeProcess, invite: str) -> None:
        peer = await self.connect(node)
        stream = MessageStream(await self.network.open_stream(peer, CONTROL_PROTOCOL, 10))
        try:
            await stream.send(Hello(PROTOCOL_GENERATION, self.mesh_id, invite, (), self.word()))
            welcome = await stream.expect(Welcome, 10)
        finally:
            await stream.reset()
        self.passes = (welcome.granted, *welcome.passes)


@asynccontextmanager
async def speaker(mesh_id: str, identity: NodeIdentity | None = None) -> AsyncIterator[Speaker]:
    identity = identity or new_identity()
    async with open_network(identity, ("/ip4/127.0.0.1/tcp/0",)) as network:
        one = Speaker(network, identity, mesh_id)
        for topic in (topic_of(one.mesh_id), liveness.topic_of(one.mesh_id)):
            one.heard.append(await network.subscribe(topic, lambda data: True))
        yield one


async def sights(node: NodeProcess) -> tuple[set[str], set[str]]:
    """Ids of the peers and of the models that a node shows."""

    def look() -> tuple[set[str], set[str]]:
        models: dict[str, Any] = httpx.get(node.api_url + "/v1/models", timeout=20, trust_env=False).json()
        return {peer["peer_id"] for peer in node.status()["peers"]}, {model["id"] for model in models["data"]}

    return await trio.to_thread.run_sync(look)


async def gossip_until_shown(speaker: Speaker, model: str, nodes: list[NodeProcess]) -> None:
    with trio.fail_after(PATIENCE_S):
        for node in nodes:
            while model not in (await sights(node))[1]:
                await speaker.publish(speaker.word(model=model))


@pytest.fixture(scope="module")
def crowd(module_peers: Peers) -> list[NodeProcess]:
    founder = module_peers.found("founder", *NO_MODEL)
    member = module_peers.start("member", "--join", founder.invite, *NO_MODEL)
    member.wait_for("joined")
    return [founder, member]


async def test_a_stranger_that_gossips_is_not_heard_and_hears_nothing(crowd: list[NodeProcess]) -> None:
    founder, member = crowd
    mesh_id = str(founder.status()["mesh_id"])
    async with speaker(mesh_id) as stranger, speaker(mesh_id) as insider:
        await stranger.connect(member)
        ghosts = [new_identity() for _ in range(MADE_UP)]
        for ghost in ghosts:
            await stranger.publish(stranger.word(ghost, model=f"ghost {ghost.peer_id}"))
        await insider.join(member, founder.invite)
        await gossip_until_shown(insider, "of a member", crowd)
        for node in crowd:
            peers, models = await sights(node)
            assert not peers & {stranger.identity.peer_id, *(ghost.peer_id for ghost in ghosts)}
            assert models == {"of a member"}
        for heard in stranger.heard:
            with trio.move_on_after(1):
                publisher, _ = await heard.receive()
                raise AssertionError(f"the stranger heard {publisher}")


async def test_a_removed_peer_that_gossips_another_life_is_in_no_view(crowd: list[NodeProcess]) -> None:
    founder, member = crowd
    mesh_id = str(founder.status()["mesh_id"])
    async with speaker(mesh_id) as removed, speaker(mesh_id) as insider:
        await removed.join(member, founder.invite)
        await gossip_until_shown(removed, "of the removed", crowd)
        done = run_command("peer", "remove", removed.identity.peer_id, home=founder.home)
        assert done.returncode == 0, done.stderr
        with trio.fail_after(PATIENCE_S):
            for node in crowd:
                while removed.identity.peer_id in (await sights(node))[0]:
                    await trio.lowlevel.checkpoint()
        await insider.join(member, founder.invite)
        for _ in range(5):
            for node in crowd:
                with suppress(PeerUnavailable, RemoteProtocolError):
                    await removed.connect(node)
            await removed.publish(removed.word(model="of the removed"))
            # and a member passes its word on, as one would that has not heard of the removal
            await insider.publish(removed.word(model="of the removed"))
        await gossip_until_shown(insider, "of a later member", crowd)
        for node in crowd:
            peers, models = await sights(node)
            assert removed.identity.peer_id not in peers
            assert "of the removed" not in models
