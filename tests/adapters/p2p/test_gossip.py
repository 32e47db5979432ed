"""The queue of a subscription; what peers do to gossip is in ``test_hardening``."""

from collections import deque
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.peerstore import issue_and_cache_local_record
from libp2p.pubsub import gossipsub, pubsub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import maybe_consume_signed_record

from p2pmesh.adapters.p2p.gossip import MAX_MESSAGE_BYTES, MAX_QUEUED_MESSAGES, TopicSubscription
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.p2p.keys import libp2p_id
from p2pmesh.base.errors import ErrorCode, LocalProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.ports.network import Subscription
from tests.adapters.p2p.test_network_conformance import connect
from tests.fakes.identity import fake_identity


async def test_the_queue_drops_the_oldest() -> None:
    subscription = TopicSubscription()
    for n in range(MAX_QUEUED_MESSAGES + 10):
        subscription.put(PeerId("p"), b"%d" % n)
    heard = [(await subscription.receive())[1] for _ in range(MAX_QUEUED_MESSAGES)]
    assert heard[0] == b"10"
    assert heard[-1] == b"%d" % (MAX_QUEUED_MESSAGES + 9)


async def test_a_message_too_large_for_peers_is_not_published() -> None:
    async with open_network(fake_identity("a"), ("/ip4/127.0.0.1/tcp/0",)) as node:
        with pytest.raises(LocalProtocolError) as failure:
            await node.publish("topic", bytes(MAX_MESSAGE_BYTES + 1))
        assert failure.value.code == ErrorCode.MESSAGE_TOO_LARGE


async def test_what_gossipsub_keeps_of_messages_does_not_grow_with_them() -> None:
    async with open_network(fake_identity("a"), ("/ip4/127.0.0.1/tcp/0",)) as node:
        await node.subscribe("topic", lambda data: True)
        router: Any = node._gossip._pubsub.router
        for number in range(50):
            await node.publish("topic", b"%d" % number)
        assert len(router.equivocation_detection) == 0
        assert [len(times) for times in router.recent_message_deliveries.values()] == [1]


async def test_a_peer_is_heard_though_a_newer_record_of_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = ("/ip4/127.0.0.1/tcp/0",)
    async with open_network(fake_identity("a"), listen) as a, open_network(fake_identity("b"), listen) as b:
        old, newer = issue_and_cache_local_record(a._host), issue_and_cache_local_record(a._host)
        for module in (gossipsub, pubsub):
            monkeypatch.setattr(module, "env_to_send_in_RPC", lambda host: (old, False))
        assert maybe_consume_signed_record(rpc_pb2.RPC(senderRecord=newer), b._host, a._host.get_id())
        assert not maybe_consume_signed_record(rpc_pb2.RPC(senderRecord=old), b._host, a._host.get_id())

        subscription = await b.subscribe("topic", lambda data: True)
        await a.subscribe("topic", lambda data: True)
        await connect(a, b)
        with trio.fail_after(20):
            await a._gossip._pubsub.wait_for_subscription(b._host.get_id(), "topic")
            heard = None
            while heard is None:  # gossip is lossy, the first message after a greeting most of all
                await a.publish("topic", b"still here")
                with trio.move_on_after(0.2):
                    heard = await subscription.receive()
            assert heard == (a.peer_id, b"still here")


# --- members alone


LISTEN = ("/ip4/127.0.0.1/tcp/0",)


def queue_of(subscription: Subscription) -> deque[tuple[PeerId, bytes]]:
    assert isinstance(subscription, TopicSubscription)
    return subscription._queue


async def hear_from(publisher: Libp2pNetwork, listener: Subscription, data: bytes) -> None:
    """Until a word arrives; gossip is lossy, and says again."""
    heard = b""
    with trio.fail_after(20):
        while heard != data:
            await publisher.publish("topic", data)
            with trio.move_on_after(0.2):
                _, heard = await listener.receive()


async def test_a_stranger_hears_nothing_is_not_heard_and_catches_up_when_it_is_admitted() -> None:
    async with (
        open_network(fake_identity("a"), LISTEN) as a,
        open_network(fake_identity("b"), LISTEN) as b,
        open_network(fake_identity("stranger"), LISTEN) as stranger,
    ):
        heard_a, heard_b, heard_late = [await one.subscribe("topic", lambda data: True) for one in (a, b, stranger)]
        await connect(a, b)
        await stranger.dial(a.peer_id, a.addresses(), 5)
        stranger.admit(a.peer_id)  # it takes us for a member, and says so at once
        with trio.fail_after(20):
            while not a._gossip._pubsub._parked:
                await trio.testing.wait_all_tasks_blocked(0.01)
            for _ in range(3):
                await stranger.publish("topic", b"made up")
                await hear_from(a, heard_b, b"of members")
                await hear_from(b, heard_a, b"of members")
        assert not queue_of(heard_late)
        assert b"made up" not in [data for _, data in (*queue_of(heard_a), *queue_of(heard_b))]
        assert not a._gossip._pubsub.peer_topics["topic"] & {libp2p_id(stranger.peer_id)}

        a.admit(stranger.peer_id)
        await hear_from(b, heard_late, b"welcome")
        await hear_from(stranger, heard_b, b"thanks")


@pytest.mark.parametrize("end", ["dismiss", "ban"])
async def test_whoever_loses_its_membership_hears_nothing_more_and_is_not_heard(end: str) -> None:
    async with (
        open_network(fake_identity("a"), LISTEN) as a,
        open_network(fake_identity("b"), LISTEN) as b,
        open_network(fake_identity("out"), LISTEN) as out,
    ):
        heard_a, heard_b, heard_out = [await one.subscribe("topic", lambda data: True) for one in (a, b, out)]
        await connect(a, b)
        await connect(out, a)
        await hear_from(a, heard_out, b"first")
        await hear_from(out, heard_a, b"second")
        getattr(a, end)(out.peer_id)
        await trio.testing.wait_all_tasks_blocked(0.1)
        for heard in (heard_a, heard_b, heard_out):
            queue_of(heard).clear()
        for _ in range(3):
            await out.publish("topic", b"made up")
            await hear_from(a, heard_b, b"of members")
        assert not queue_of(heard_out)
        assert not queue_of(heard_a)
        if end == "dismiss":
            a.admit(out.peer_id)
            await hear_from(a, heard_out, b"again")
            await hear_from(out, heard_a, b"again too")
