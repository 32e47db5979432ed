"""A traced network tells of gossip and is otherwise the network that it wraps."""

import hashlib
from typing import Any

import trio
from trio.testing import MockClock

from p2pmesh.node.gossip_trace import TracedNetwork
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import MockedClock
from tests.fakes.network import FakeOverlay


async def test_each_message_is_told_where_it_leaves_and_where_it_arrives(autojump_clock: MockClock) -> None:
    overlay, told = FakeOverlay(), list[tuple[str, str, dict[str, Any]]]()
    one, other = fake_identity("one").peer_id, fake_identity("other").peer_id
    async with overlay.open_network(one) as here, overlay.open_network(other) as there:
        a = TracedNetwork(here, MockedClock(), lambda event, fields: told.append(("a", event, fields)))
        b = TracedNetwork(there, MockedClock(), lambda event, fields: told.append(("b", event, fields)))
        assert a.peer_id == one
        await a.dial(other, b.addresses(), 5)
        a.admit(other)
        b.admit(one)
        subscription = await b.subscribe("topic", lambda data: data != b"bad")
        await a.publish("topic", b"bad")
        await a.publish("topic", b"good")
        with trio.fail_after(5):
            assert await subscription.receive() == (one, b"good")
    ids = {data: hashlib.sha256(data).hexdigest()[:32] for data in (b"bad", b"good")}
    assert [(where, event, fields["message_id"]) for where, event, fields in told] == [
        ("a", "gossip_published", ids[b"bad"]),
        ("a", "gossip_published", ids[b"good"]),
        ("b", "gossip_delivered", ids[b"good"]),
    ]
    assert all(fields["topic"] == "topic" and fields["unix_ms"] > 0 for _, _, fields in told)
