"""A peer that comes back under the same id, before and after its last connection has ended, as gossip sees it.

Time is counted in messages of a publisher, ``PER_HEARTBEAT`` to a gossip heartbeat: a loaded machine slows both.
"""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters.identity import new_identity
from p2pmesh.adapters.p2p.gossip import HEARTBEAT_S
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.p2p.yamux_pings import Vigilance
from p2pmesh.ports.network import PeerConnected
from tests.adapters.p2p.gossip_process import REPEAT_S, TOPIC
from tests.fakes.identity import fake_identity

ROOT = Path(__file__).parents[3]
PER_HEARTBEAT = round(HEARTBEAT_S / REPEAT_S)
DEADLINE_S = 60.0
GAP_MESSAGES = 2 * PER_HEARTBEAT
"""Two seconds between the lives."""


class Witness:
    """A node that stays: it publishes numbered messages, and notes what it hears of whom."""

    def __init__(self, network: Libp2pNetwork) -> None:
        self.network = network
        self.published = 0
        self.heard_at: dict[str, int] = {}
        """Number of our message at which a life was heard first."""
        self.news = trio.Condition()

    async def run(self) -> None:
        subscription = await self.network.subscribe(TOPIC, lambda data: True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish)
            nursery.start_soon(self._admit)
            while True:
                _, data = await subscription.receive()
                self.heard_at.setdefault(data.decode().split()[0], self.published)
                await self._tell()

    async def _publish(self) -> None:
        while True:
            self.published += 1
            await self.network.publish(TOPIC, f"witness {self.published}".encode())
            await self._tell()
            await trio.sleep(REPEAT_S)

    async def _admit(self) -> None:
        while True:
            event = await self.network.connection_event()
            if isinstance(event, PeerConnected):
                self.network.admit(event.peer)

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def wait_heard(self, name: str) -> int:
        async with self.news:
            while name not in self.heard_at:
                await self.news.wait()
        return self.heard_at[name]

    async def wait_published(self, count: int) -> None:
        async with self.news:
            while self.published < count:
                await self.news.wait()


class Life:
    """One process of the peer."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def next_of(self, name: str) -> int:
        """The number of the next message of ``name`` that it heard."""
        assert self.process.stdout is not None
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if not found:
                more = await self.process.stdout.receive_some()
                assert more, "the peer has ended"
                self._buffer += more
                continue
            self._buffer = rest
            words = line.decode().split()
            if words[0] == name:
                return int(words[1])


@asynccontextmanager
async def life_of(seed: bytes, name: str, witness: Witness) -> AsyncIterator[Life]:
    arguments = ["-m", "tests.adapters.p2p.gossip_process", seed.hex(), witness.network.addresses()[0], name]
    process = await trio.lowlevel.open_process([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        yield Life(process)
    finally:
        process.kill()
        assert process.stdout is not None
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


async def wait_connected(witness: Witness, peer: str, count: int) -> int:
    """The number of our message at which the peer's newest connection was here."""
    async with witness.news:
        while len([c for c in witness.network._swarm.get_connections() if str(c.muxed_conn.peer_id) == peer]) < count:
            await witness.news.wait()
    return witness.published


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "its connection still stands"])
async def test_a_restarted_peer_is_heard_and_hears_within_two_heartbeats(end: signal.Signals) -> None:
    seed = new_identity().private_seed
    # The old connection is cut some seconds after the restart, when the new life has long been talking.
    vigilance = Vigilance(interval_s=1.0, max_silent=5)
    async with open_network(fake_identity("witness"), ("/ip4/127.0.0.1/tcp/0",), vigilance=vigilance) as network:
        witness = Witness(network)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(witness.run)
            with trio.fail_after(DEADLINE_S):
                async with life_of(seed, "first", witness) as first:
                    await witness.wait_heard("first")
                    await first.next_of("witness")
                    peer = next(iter(network.connected_peers()))
                    first.process.send_signal(end)
                    await witness.wait_published(witness.published + GAP_MESSAGES)
                    async with life_of(seed, "second", witness) as second:
                        start = await wait_connected(witness, peer, 2 if end is signal.SIGSTOP else 1)
                        assert await witness.wait_heard("second") - start <= 2 * PER_HEARTBEAT
                        assert await second.next_of("witness") - start <= 2 * PER_HEARTBEAT
                        # and goes on when the old connection ends
                        while len(network._swarm.get_connections()) > 1:
                            await second.next_of("witness")
                        last = witness.published
                        while await second.next_of("witness") <= last + 2 * PER_HEARTBEAT:
                            pass
                        witness.heard_at.clear()
                        await witness.wait_heard("second")
            nursery.cancel_scope.cancel()


async def test_gossip_lives_on_when_one_of_two_connections_ends() -> None:
    """Two peers that dial each other at once have two; which of them ends first is nobody's choice."""
    for ended in (0, 1):
        async with (
            open_network(fake_identity("a"), ("/ip4/127.0.0.1/tcp/0",)) as a,
            open_network(fake_identity("b"), ("/ip4/127.0.0.1/tcp/0",)) as b,
        ):
            with trio.fail_after(DEADLINE_S):
                heard_a = await a.subscribe(TOPIC, lambda data: True)
                heard_b = await b.subscribe(TOPIC, lambda data: True)
                await a.dial(b.peer_id, b.addresses(), 10)
                await b._swarm.dial_addr(a._host.get_addrs()[0], a._host.get_id())
                a.admit(b.peer_id)
                b.admit(a.peer_id)
                await both_hear(a, b, heard_a, heard_b, b"two")
                await b._swarm.get_connections()[ended].close()
                await both_hear(a, b, heard_a, heard_b, b"one")


async def both_hear(a: Libp2pNetwork, b: Libp2pNetwork, heard_a: object, heard_b: object, word: bytes) -> None:
    for publisher, listener in ((a, heard_b), (b, heard_a)):
        data = b""
        while data != word:
            await publisher.publish(TOPIC, word)
            with trio.move_on_after(0.2):
                _, data = await listener.receive()  # type: ignore[attr-defined]
