"""Bytes to and from peers on the streams of our protocols: counted, and held to what the owner allows.

A network that counts and passes on. Activations wait here; files ask before each chunk (``node.artifacts``,
``node.transfer``), since they share streams' protocol with messages, which never wait. What may go when is
``core.rate_cap``'s. Gossip, records and the connections' own bytes are not counted.
"""

from typing import Any

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import STAGE_PROTOCOL
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.rate_cap import RateCap
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.network import ByteStream, Network, StreamServer


class Traffic:
    """Both directions of one node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.sent_bytes = 0
        self.received_bytes = 0
        self.up = RateCap()
        self.down = RateCap()

    def limit(self, up_bytes_per_s: int, down_bytes_per_s: int) -> None:
        """From now on; 0 is no cap."""
        self.up.bytes_per_s, self.down.bytes_per_s = up_bytes_per_s, down_bytes_per_s

    def note_sent(self, size_bytes: int, *, is_first: bool) -> None:
        """They have left."""
        self.sent_bytes += size_bytes
        if self.up.bytes_per_s:
            self.up.note(size_bytes, self._clock.now(), is_first=is_first)

    def note_received(self, size_bytes: int, *, is_first: bool) -> None:
        """They came."""
        self.received_bytes += size_bytes
        if self.down.bytes_per_s:
            self.down.note(size_bytes, self._clock.now(), is_first=is_first)

    def may_go(self, cap: RateCap) -> bool:
        """Whether an activation need not wait."""
        return not cap.bytes_per_s or not cap.wait_us(self._clock.now(), is_first=True)

    async def wait(self, cap: RateCap, *, is_first: bool) -> None:
        """Until the next bytes may go."""
        while True:
            wait_us = cap.wait_us(self._clock.now(), is_first=is_first)
            if not wait_us:
                return
            await trio.sleep(wait_us / MICROS_PER_SECOND)

    async def wait_to_send_file(self) -> None:
        """Before each chunk."""
        await self.wait(self.up, is_first=False)

    async def wait_to_receive_file(self) -> None:
        """Before each chunk is read: what is not read holds its sender back."""
        await self.wait(self.down, is_first=False)


class MeteredNetwork:
    """Implements ``ports.network.Network`` by another one."""

    def __init__(self, network: Network, traffic: Traffic) -> None:
        self._network = network
        self._traffic = traffic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def open_stream(self, peer: PeerId, protocol_id: str, timeout_s: float) -> ByteStream:
        """See ``ports.network``."""
        stream = await self._network.open_stream(peer, protocol_id, timeout_s)
        return MeteredStream(stream, self._traffic, is_stage=protocol_id == STAGE_PROTOCOL)

    def serve(self, protocol_id: str, server: StreamServer) -> None:
        """See ``ports.network``."""

        async def metered(stream: ByteStream) -> None:
            await server(MeteredStream(stream, self._traffic, is_stage=protocol_id == STAGE_PROTOCOL))

        self._network.serve(protocol_id, metered)


class MeteredStream:
    """Implements ``ports.network.ByteStream`` by another one; what stages say to each other waits for its turn."""

    def __init__(self, stream: ByteStream, traffic: Traffic, *, is_stage: bool) -> None:
        self._stream = stream
        self._traffic = traffic
        self._is_stage = is_stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def remote_peer(self) -> PeerId:
        """See ``ports.network``."""
        return self._stream.remote_peer

    async def receive_exactly(self, count: int) -> bytes:
        """See ``ports.network``."""
        if self._is_stage and self._traffic.down.bytes_per_s:
            await self._traffic.wait(self._traffic.down, is_first=True)
        data = await self._stream.receive_exactly(count)
        self._traffic.note_received(count, is_first=self._is_stage)
        return data

    def receive_nowait(self, count: int) -> bytes | None:
        """See ``ports.network``; what must wait for its turn is not read."""
        if self._is_stage and not self._traffic.may_go(self._traffic.down):
            return None
        data = self._stream.receive_nowait(count)
        if data is not None:
            self._traffic.note_received(count, is_first=self._is_stage)
        return data

    async def send(self, data: bytes) -> None:
        """See ``ports.network``."""
        if self._is_stage and self._traffic.up.bytes_per_s:
            await self._traffic.wait(self._traffic.up, is_first=True)
        await self._stream.send(data)
        self._traffic.note_sent(len(data), is_first=self._is_stage)

    def send_nowait(self, data: bytes) -> bool:
        """See ``ports.network``; what must wait for its turn is not sent."""
        if self._is_stage and not self._traffic.may_go(self._traffic.up):
            return False
        is_sent = self._stream.send_nowait(data)
        if is_sent:
            self._traffic.note_sent(len(data), is_first=self._is_stage)
        return is_sent

    async def finish(self) -> None:
        """See ``ports.network``."""
        await self._stream.finish()

    async def reset(self) -> None:
        """See ``ports.network``."""
        await self._stream.reset()
