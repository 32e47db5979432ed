"""Where nodes announce and listen, over the fake network."""

from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import MAX_ANNOUNCEMENT_BYTES
from p2pmesh.core.membership import ConnectionOpened
from p2pmesh.core.shards import shard_bits_of, shared_bits
from p2pmesh.node import announcements
from p2pmesh.node.announcements import AnnouncementBoard, Neighbours, OwnLoad
from p2pmesh.wire.announcement import (
    Announcement,
    HeldModel,
    Link,
    ServedModel,
    decode_announcement,
    encode_announcement,
    life_ms,
    model_topic_of,
    peer_hash_of,
    topic_of,
)
from tests.fakes.clock import FakeEntropy
from tests.fakes.identity import FakeVerifier, fake_identity
from tests.fakes.mesh import UNIX_MS_AT_START, MockedClock, open_mesh
from tests.fakes.network import FakeNetwork, FakeOverlay

MESH = MeshId("ab" * 16)
MODEL = ServedModel("m", "cd" * 32, bytes(16), 1, 4096)
PATIENCE_S = 3600.0


def word_of(identity: NodeIdentity, **changes: Any) -> Announcement:
    said = Announcement(
        peer_id=identity.peer_id, mesh_id=MESH, name="n", version="0", incarnation=1, sequence=1,
        expires_unix_ms=UNIX_MS_AT_START + 10**9, addresses=(), memory_bytes=0, free_bytes=0, models=(),
    )  # fmt: skip
    return replace(said, **changes)


def sealed(identity: NodeIdentity, **changes: Any) -> bytes:
    return encode_announcement(word_of(identity, **changes), identity.public_key, identity.sign)


def read(data: bytes) -> Announcement:
    return decode_announcement(data, FakeVerifier().is_signature_of, FakeVerifier().peer_id_of)


class Listener:
    """A network that hears a topic without a validator, connected to a board's."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.network: FakeNetwork
        self.heard: list[Announcement] = []

    async def run(self, stage: "Stage", name: str, *, task_status: Any) -> None:
        async with stage.overlay.open_network(fake_identity(name).peer_id) as self.network:
            await self.network.dial(stage.network.peer_id, stage.network.addresses(), 1)
            self.network.admit(stage.network.peer_id)
            stage.network.admit(self.network.peer_id)
            subscription = await self.network.subscribe(self.topic, lambda data: True)
            task_status.started()
            while True:
                _, data = await subscription.receive()
                self.heard.append(read(data))


class Stage:
    """One board on a network, and listeners around it."""

    def __init__(self, overlay: FakeOverlay, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        self.overlay = overlay
        self.nursery = nursery
        self.stack = stack
        self.identity = fake_identity("board")
        self.network: FakeNetwork
        self.board: AnnouncementBoard

    async def open(self) -> None:
        self.network = await self.stack.enter_async_context(self.overlay.open_network(self.identity.peer_id))
        ports = Neighbours(self.network, self.identity, FakeVerifier(), MockedClock(), FakeEntropy(1), None)  # type: ignore[arg-type]
        self.board = AnnouncementBoard(ports, word_of(self.identity))
        await self.nursery.start(self.board.run)

    async def listener(self, name: str, topic: str) -> Listener:
        listener = Listener(topic)
        await self.nursery.start(listener.run, self, name)
        return listener

    def crowd(self, count: int, shared: int = 0, **changes: Any) -> list[PeerId]:
        """Hands the board so many peers that share so many bits with it, as a welcome does."""
        own = self.identity.peer_id
        found = (fake_identity(f"peer {n}") for n in range(100_000))
        crowd = list(islice((one for one in found if shared_bits(one.peer_id, own) >= shared), count))
        self.board.learn_handed(tuple(sealed(identity, **changes) for identity in crowd))
        return [identity.peer_id for identity in crowd]

    def topics(self) -> set[str]:
        return {topic for topic, heard in self.network.subscriptions.items() if heard}


def own_topic(stage: Stage, depth: int) -> str:
    return topic_of(MESH, shard_bits_of(stage.identity.peer_id, depth))


async def run_stage(test: Any) -> None:
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        stage = Stage(FakeOverlay(), nursery, stack)
        await stage.open()
        with trio.fail_after(PATIENCE_S):
            await test(stage)
        nursery.cancel_scope.cancel()


async def test_a_small_overlay_announces_every_twenty_seconds_on_one_topic(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        assert stage.topics() == {own_topic(stage, 0), own_topic(stage, 1)}
        listener = await stage.listener("listener", own_topic(stage, 0))
        deeper = await stage.listener("deeper", own_topic(stage, 1))
        await trio.sleep(101)
        assert len(listener.heard) == 5
        assert {said.interval_ms for said in listener.heard} == {20_000}
        assert {said.expires_unix_ms - said.issued_unix_ms for said in listener.heard} == {90_000}
        assert deeper.heard == []

    await run_stage(test)


async def test_a_change_is_said_at_once_and_again(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        listener = await stage.listener("listener", own_topic(stage, 0))
        await trio.sleep(5)
        stage.board.change_own(free_bytes=7)
        await trio.sleep(0.1)
        assert [said.free_bytes for said in listener.heard] == [7]
        await trio.sleep(16)
        assert len(listener.heard) == 6

    await run_stage(test)


async def test_what_changes_with_each_request_goes_along_and_is_no_change(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        listener = await stage.listener("listener", own_topic(stage, 0))
        stage.board.read_load = lambda: OwnLoad(4, 3, 12_500)
        stage.board.share_links((Link(peer_hash_of("x"), 5, 6, False),))
        await trio.sleep(19)
        assert listener.heard == []
        await trio.sleep(2)
        (said,) = listener.heard
        assert (said.lanes, said.lanes_free, said.decode_tokens_per_s_milli, len(said.links)) == (4, 3, 12_500, 1)

    await run_stage(test)


async def test_in_a_crowd_a_node_moves_to_its_shard_tells_the_one_it_leaves_and_speaks_rarely(
    autojump_clock: MockClock,
) -> None:
    async def test(stage: Stage) -> None:
        root = await stage.listener("root", own_topic(stage, 0))
        own = await stage.listener("own", own_topic(stage, 1))
        await trio.sleep(1)
        stage.crowd(200)
        await trio.sleep(20)
        assert stage.topics() == {own_topic(stage, depth) for depth in (0, 1, 2)}
        assert [said.shard_depth for said in root.heard] == [1, 1, 1]
        assert {said.shard_depth for said in own.heard} == {1}
        assert len({said.sequence for said in (*root.heard, *own.heard)}) == len(root.heard) + len(own.heard)
        interval_ms = own.heard[-1].interval_ms
        assert interval_ms == 900_000
        assert own.heard[-1].expires_unix_ms - own.heard[-1].issued_unix_ms == life_ms(interval_ms)
        before = len(own.heard)
        await trio.sleep(interval_ms / 1000 - 40)
        assert len(own.heard) == before

    await run_stage(test)


async def test_a_newcomer_takes_the_depth_of_those_it_is_handed_and_keeps_the_peers_of_its_shards(
    autojump_clock: MockClock,
) -> None:
    async def test(stage: Stage) -> None:
        handed = stage.crowd(64, shared=2, shard_depth=3)
        await trio.sleep(1)
        assert stage.board.topics.depth == 3
        own = shard_bits_of(stage.identity.peer_id, 3)
        near = {peer for peer in handed if shard_bits_of(peer, 3) == own}
        assert {PeerId(said.peer_id) for said in stage.board.others()} == near
        assert 0 < len(near) < 64
        assert all(stage.board.sealed_of(peer) for peer in near)
        assert not any(stage.board.sealed_of(peer) for peer in set(handed) - near)

    await run_stage(test)


async def test_who_is_no_newcomer_takes_no_depth_from_what_it_is_handed(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        stage.crowd(20)
        assert len(stage.board.others()) == 20
        made_up = tuple(sealed(fake_identity(f"made up {n}"), shard_depth=9) for n in range(64))
        stage.board.learn_handed(made_up)
        await trio.sleep(1)
        assert stage.board.topics.depth == 0
        assert len(stage.board.others()) == 20

    await run_stage(test)


async def test_made_up_peers_that_say_16_drive_no_node_of_a_small_mesh_off_its_topic(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        made_up = [fake_identity(f"made up {n}") for n in range(24)]
        stage.board.learn_handed(tuple(sealed(one, shard_depth=16) for one in made_up))
        assert stage.board.topics.depth == 0
        stage.crowd(4)
        for sequence in range(2, 8):
            for one in made_up:
                stage.board.learn(sealed(one, shard_depth=16, sequence=sequence))
            await trio.sleep(60)
        assert stage.board.topics.depth == 0
        assert len(stage.board.others()) == 4

    await run_stage(test)


async def test_a_peer_that_announces_elsewhere_is_kept_while_it_is_connected_only(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        stage.crowd(64, shared=2, shard_depth=3)
        await trio.sleep(1)
        own = shard_bits_of(stage.identity.peer_id, 3)
        far = next(one for n in range(99) if shard_bits_of((one := fake_identity(f"far {n}")).peer_id, 3) != own)
        stage.board.learn(sealed(far, shard_depth=3))
        assert stage.board.find(far.peer_id) is None
        stage.board.learn(sealed(far, shard_depth=3, sequence=2), is_admitted=True)
        assert stage.board.find(far.peer_id) is not None
        assert stage.board.sealed_of(far.peer_id)

    await run_stage(test)


async def test_whoever_goes_deeper_is_forgotten_by_those_that_stay(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        (peer, *_) = stage.crowd(12)
        bits, ours = shard_bits_of(peer, 3), shard_bits_of(stage.identity.peer_id, 3)
        assert bits != ours
        stage.board.learn(sealed(fake_identity("peer 0"), shard_depth=3, sequence=2))
        assert stage.board.find(peer) is None
        assert len(stage.board.others()) == 11

    await run_stage(test)


async def test_made_up_peers_of_one_host_do_not_fill_a_view(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        stage.crowd(70)
        at = ("/ip4/203.0.114.7/tcp/4001", "/ip4/192.168.1.2/tcp/4001")
        made_up = [fake_identity(f"made up {n}") for n in range(40)]
        for one in made_up:
            stage.board.learn(sealed(one, addresses=at))
        assert len(stage.board.others()) == 70 + 8
        for one in made_up:
            stage.board.learn(sealed(one, addresses=at, sequence=2))
        assert len(stage.board.others()) == 70 + 8
        late = made_up[-1]
        assert stage.board.find(late.peer_id) is None
        stage.board.learn(sealed(late, addresses=at, sequence=3), is_admitted=True)
        assert stage.board.find(late.peer_id) is not None

    await run_stage(test)


async def test_a_newcomer_is_handed_nobody_who_may_be_gone(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        lost, *sound = stage.crowd(4)
        stage.board.tell(ConnectionOpened(lost))
        assert len(stage.board.sealed_others(fake_identity("newcomer").peer_id)) == 4
        stage.board.note_lost(lost)
        handed = stage.board.sealed_others(fake_identity("newcomer").peer_id)
        assert {read(data).peer_id for data in handed} == set(sound)

    await run_stage(test)


async def test_a_driver_is_heard_on_the_topic_of_its_model_once_there_are_shards(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        listener = await stage.listener("listener", model_topic_of(MESH, MODEL.digest))
        stage.board.change_own(models=(MODEL,))
        await trio.sleep(60)
        assert listener.heard == []
        stage.crowd(40, shared=2, shard_depth=3)
        await trio.sleep(5)
        assert listener.heard[-1].models == (MODEL,)

    await run_stage(test)


async def test_the_drivers_of_a_routed_model_are_listened_to_for_a_while(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        topic = model_topic_of(MESH, MODEL.digest)
        stage.board.topics.hear_model(MODEL.digest)
        await trio.sleep(1)
        assert topic not in stage.topics()
        stage.crowd(40, shared=2, shard_depth=3)
        stage.board.topics.hear_model(MODEL.digest)
        await trio.sleep(1)
        assert topic in stage.topics()
        driver = await stage.listener("driver", topic)
        far = fake_identity("far")
        await driver.network.publish(topic, sealed(far, models=(MODEL,)))
        await trio.sleep(1)
        found = stage.board.find(far.peer_id)
        assert found is not None
        assert found.models == (MODEL,)
        await trio.sleep(700)
        assert topic not in stage.topics()

    await run_stage(test)


async def test_only_so_many_models_are_listened_to(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        stage.crowd(40, shared=2, shard_depth=3)
        for n in range(40):
            stage.board.topics.hear_model(f"{n:064x}"[::-1])
        await trio.sleep(1)
        assert len(stage.topics()) == 3 + 16

    await run_stage(test)


async def test_who_does_not_belong_in_a_shard_is_not_passed_on_there(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        ours = shard_bits_of(stage.identity.peer_id, 1)
        topic = topic_of(MESH, ours)
        friend = await stage.listener("friend", "nothing")
        names = [fake_identity(f"speaker {n}") for n in range(20)]
        for speaker in names:
            await friend.network.publish(topic, sealed(speaker))
        await trio.sleep(1)
        known = {PeerId(said.peer_id) for said in stage.board.others()}
        assert known == {one.peer_id for one in names if shard_bits_of(one.peer_id, 1) == ours}

    await run_stage(test)


async def test_a_replay_an_expired_word_and_a_flood_are_not_passed_on(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        topic = own_topic(stage, 0)
        (subscription,) = stage.network.subscriptions[topic]
        speaker = fake_identity("speaker")
        assert subscription.accepts(sealed(speaker, sequence=5))
        assert not subscription.accepts(sealed(speaker, sequence=5))
        assert not subscription.accepts(sealed(speaker, sequence=4))
        assert not subscription.accepts(sealed(speaker, sequence=6, expires_unix_ms=UNIX_MS_AT_START - 40_000))
        assert not subscription.accepts(sealed(speaker, sequence=6, mesh_id="cd" * 16))
        passed = sum(subscription.accepts(sealed(speaker, sequence=10 + n)) for n in range(100))
        assert passed == 15

    await run_stage(test)


async def test_a_word_that_gossip_brings_is_verified_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bytes] = []

    def look(data: bytes, *given: Any) -> Announcement:
        looked.append(data)
        return decode_announcement(data, *given)

    monkeypatch.setattr(announcements, "decode_announcement", look)

    async def test(stage: Stage) -> None:
        far = fake_identity("far")
        speaker = await stage.listener("speaker", own_topic(stage, 0))
        await speaker.network.publish(own_topic(stage, 0), sealed(far))
        await trio.sleep(1)
        assert stage.board.find(far.peer_id) is not None
        assert looked == [sealed(far)]
        for number in range(2, 200):  # what no topic takes is not kept for long
            stage.board._check_gossip(sealed(far, sequence=number))
        assert len(stage.board._judged) == 64

    await run_stage(test)


async def test_a_node_is_told_to_move_only_where_it_listens_elsewhere(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        topics = stage.board.topics
        marked = topics.moved.count
        stage.crowd(3)
        topics._wishes.mark()
        await trio.sleep(1)
        assert topics.moved.count == marked
        stage.crowd(40, shared=2, shard_depth=3)
        await trio.sleep(1)
        assert topics.moved.count > marked

    await run_stage(test)


async def test_a_node_that_leaves_announces_nothing_more(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        listener = await stage.listener("listener", own_topic(stage, 0))
        stage.board.stop_announcing()
        stage.board.change_own(free_bytes=1)
        await trio.sleep(100)
        assert listener.heard == []

    await run_stage(test)


async def test_an_announcement_that_does_not_fit_leaves_out_what_matters_least(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        board = stage.board
        models = tuple(replace(MODEL, name="m" * 250 + f"{n:03}") for n in range(64))
        board.change_own(
            models=models,
            on_disk=tuple(HeldModel("f" * 250, MODEL.digest) for _ in range(40)),
            wanted=("w" * 250,) * 20,
        )
        board.share_links(tuple(Link(peer_hash_of(str(n)), 1, 1, False) for n in range(64)))
        said = read(board.seal_own())
        assert said.models == models
        assert len(said.on_disk) < 32
        assert len(board.sealed_own) <= MAX_ANNOUNCEMENT_BYTES

    await run_stage(test)


async def test_addresses_go_without_the_peer_id_and_still_lead_there(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        known = member.node.overlay.board.find(founder.peer)
        assert known is not None
        assert known.addresses == tuple(a.partition("/p2p/")[0] for a in founder.network.addresses())
        await member.network.disconnect(founder.peer)
        await member.node.overlay.ensure_admitted(founder.peer)


async def test_a_newcomer_is_handed_its_nearest_by_shard(autojump_clock: MockClock) -> None:
    async def test(stage: Stage) -> None:
        known = stage.crowd(150)
        newcomer = fake_identity("newcomer").peer_id
        handed = [PeerId(read(data).peer_id) for data in stage.board.sealed_others(newcomer)]
        assert len(handed) == 64
        nearest = sorted(known, key=lambda peer: -shared_bits(peer, newcomer))
        assert min(shared_bits(peer, newcomer) for peer in handed) == shared_bits(nearest[63], newcomer)

    await run_stage(test)


async def test_in_a_mesh_of_nodes_everybody_hears_everybody(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        members = [await mesh.join(f"member {n}", founder) for n in range(5)]
        nodes = [founder, *members]
        await trio.sleep(30)
        for node in nodes:
            known = {said.peer_id for said in node.node.overlay.board.others()}
            assert known == {other.peer for other in nodes} - {node.peer}
