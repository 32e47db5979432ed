"""Tells of every gossip message that leaves and arrives, for measurements: a network that reports and passes on.

The events name a message by the first half of its digest, so that those of many nodes can be put together. Nothing
of it runs unless it was asked for.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from p2pmesh.base.ids import PeerId
from p2pmesh.node.reporting import Report
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.network import Network, Subscription


class TracedNetwork:
    """Implements ``ports.network.Network`` by another one; ``gossip_published`` and ``gossip_delivered`` are told."""

    def __init__(self, network: Network, clock: Clock, report: Report) -> None:
        self._network = network
        self._clock = clock
        self._report = report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def publish(self, topic: str, data: bytes) -> None:
        """Tells, then publishes."""
        self._tell("gossip_published", topic, data)
        await self._network.publish(topic, data)

    async def subscribe(self, topic: str, validator: Callable[[bytes], bool]) -> Subscription:
        """A subscription that tells of each message as it is received."""
        return _TracedSubscription(
            await self._network.subscribe(topic, validator),
            lambda data: self._tell("gossip_delivered", topic, data),
        )

    def _tell(self, event: str, topic: str, data: bytes) -> None:
        message_id = hashlib.sha256(data).hexdigest()[:32]
        fields = {"topic": topic, "message_id": message_id, "size_bytes": len(data), "unix_ms": self._clock.unix_ms()}
        self._report(event, fields)


class _TracedSubscription:
    """Implements ``ports.network.Subscription``."""

    def __init__(self, subscription: Subscription, tell: Callable[[bytes], None]) -> None:
        self._subscription = subscription
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscription, name)

    async def receive(self) -> tuple[PeerId, bytes]:
        """Receives, then tells."""
        peer, data = await self._subscription.receive()
        self._tell(data)
        return peer, data
