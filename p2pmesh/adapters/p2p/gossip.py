"""Publish and subscribe over gossipsub v1.1.

Gossip is for members: ``admit`` opens it to a peer, and whoever was not admitted neither hears nor says anything.
Owns the parameters (libp2p's defaults beat every two minutes and drop our own messages), the wrapping of validators and
the bounded queue of each subscription. Nothing in a message, and no validator, can raise out of here.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain

import trio
from libp2p.abc import IHost, ISubscriptionAPI
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2
from libp2p.tools.anyio_service import background_trio_service

from p2pmesh.adapters.p2p.hardening import HardenedGossipSub, HardenedPubsub, faults
from p2pmesh.adapters.p2p.keys import peer_id_of
from p2pmesh.base.errors import ErrorCode, LocalProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import KIB, MIB

MAX_MESSAGE_BYTES = 64 * KIB
MAX_RPC_BYTES = MIB
MAX_QUEUED_MESSAGES = 256
"""Per subscription; the oldest go first, since announcements are repeated."""
HEARTBEAT_S = 1

Validator = Callable[[bytes], bool]


class TopicSubscription:
    """Implements ``ports.network.Subscription``: one queue, filled by a task of its own."""

    def __init__(self, leave: Callable[[], Awaitable[None]] | None = None) -> None:
        self._leave = leave
        self._queue: deque[tuple[PeerId, bytes]] = deque(maxlen=MAX_QUEUED_MESSAGES)
        self._arrival = trio.Event()

    async def receive(self) -> tuple[PeerId, bytes]:
        """The next message and the peer that published it."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._queue:
            await self._arrival.wait()
        return self._queue.popleft()

    async def close(self) -> None:
        """Leaves the topic."""
        leave, self._leave = self._leave, None
        if leave is not None:
            await leave()

    def put(self, publisher: PeerId, data: bytes) -> None:
        """Appends; drops the oldest when full."""
        self._queue.append((publisher, data))
        self._arrival.set()
        self._arrival = trio.Event()


class Gossip:
    """Gossipsub of one host."""

    def __init__(self, pubsub: HardenedPubsub, router: HardenedGossipSub, nursery: trio.Nursery) -> None:
        self._pubsub = pubsub
        self._router = router
        self._nursery = nursery
        self._own_id = pubsub.host.get_id()

    def admit(self, peer: ID) -> None:
        """Gossip with a member begins."""
        self._pubsub.admit(peer)

    def dismiss(self, peer: ID) -> None:
        """Gossip with a peer that is a member no more ends at once."""
        self._pubsub.dismiss(peer)

    def meshed_peers(self) -> frozenset[ID]:
        """Peers to which messages of any topic that we joined go straight."""
        return frozenset(chain.from_iterable(self._router.mesh.values()))

    async def publish(self, topic: str, data: bytes) -> None:
        """Signs and gossips ``data``; ``LocalProtocolError(MESSAGE_TOO_LARGE)``."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise LocalProtocolError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a gossip message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES}"
            )
        try:
            await self._pubsub.publish(topic, data)
        except Exception as error:  # noqa: BLE001  gossip is lossy by contract; libp2p raises what its peers cause
            faults.note("publish", error)

    async def subscribe(self, topic: str, validator: Validator) -> TopicSubscription:
        """Joins ``topic``; from then on nothing that ``validator`` refuses is kept or forwarded."""
        self._pubsub.set_topic_validator(topic, _guarded_validator(self._own_id, validator), is_async_validator=False)
        source = await self._pubsub.subscribe(topic)
        subscription = TopicSubscription(partial(self._leave, topic))
        self._nursery.start_soon(self._drain, source, subscription)
        return subscription

    async def _leave(self, topic: str) -> None:
        try:
            await self._pubsub.unsubscribe(topic)
        except Exception as error:  # noqa: BLE001  it tells every peer, and raises what one of them causes
            faults.note("leaving a topic", error)
        self._pubsub.remove_topic_validator(topic)

    async def _drain(self, source: ISubscriptionAPI, subscription: TopicSubscription) -> None:
        """libp2p's own queue holds 32 messages and then drops in silence, so it is emptied at once."""
        with suppress(trio.EndOfChannel):  # the topic was left
            while True:
                message = await source.get()
                if message.from_id != self._own_id.to_bytes():
                    subscription.put(peer_id_of(ID(message.from_id)), message.data)


def _guarded_validator(own_id: ID, validator: Validator) -> Callable[[ID, rpc_pb2.Message], bool]:
    def is_valid(forwarder: ID, message: rpc_pb2.Message) -> bool:
        if len(message.data) > MAX_MESSAGE_BYTES:
            return False
        try:
            return bool(validator(message.data))
        except Exception as error:  # noqa: BLE001  a validator sees peers' bytes; raising means no
            if forwarder != own_id:
                faults.note("a gossip validator", error)
            return False

    return is_valid


@asynccontextmanager
async def open_gossip(host: IHost) -> AsyncIterator[Gossip]:
    """Gossipsub on a running host."""
    router = HardenedGossipSub(
        protocols=[PROTOCOL_ID_V11],
        degree=6,
        degree_low=4,
        degree_high=12,
        heartbeat_interval=HEARTBEAT_S,
        adaptive_gossip_enabled=False,
        spam_protection_enabled=False,
        eclipse_protection_enabled=False,
        do_px=False,
    )
    pubsub = HardenedPubsub(host, router, strict_signing=True, max_inbound_rpc_size=MAX_RPC_BYTES)
    # Sequence numbers never go back after a restart: a repeated one is dropped as a duplicate.
    pubsub.counter = time.time_ns()
    try:
        async with background_trio_service(pubsub), background_trio_service(router), trio.open_nursery() as nursery:
            await pubsub.wait_until_ready()
            yield Gossip(pubsub, router, nursery)
            nursery.cancel_scope.cancel()
    finally:
        pubsub.seen_messages.stop()
