"""The queue of a subscription; what peers do to gossip is in ``test_hardening``."""

import pytest

from p2pmesh.adapters.p2p.gossip import MAX_MESSAGE_BYTES, MAX_QUEUED_MESSAGES, TopicSubscription
from p2pmesh.adapters.p2p.host import open_network
from p2pmesh.base.errors import ErrorCode, LocalProtocolError
from p2pmesh.base.ids import PeerId
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
