"""A thousand useless connections of several kinds against a node, and what they cost those that are admitted.

``python -m tests.adapters.p2p.garbage [--connections N]`` prints the figures. The node under attack and its admitted
peers are real hosts in this process; the attackers are bare sockets, and real noise with nonsense behind it.
"""

import argparse
import gc
import json
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

import psutil
import trio
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.io.exceptions import ConnectionClosedError, IOException
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID

from p2pmesh.adapters.clock import TrioClock
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.p2p.keys import libp2p_key_pair
from p2pmesh.adapters.p2p.negotiation import NegotiationRefused, propose
from p2pmesh.adapters.p2p.noise import NoiseChannel, NoiseTransport
from p2pmesh.adapters.p2p.yamux import PROTOCOL_ID as YAMUX
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, PROTOCOL_GENERATION
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.overlay import Overlay, OverlaySettings
from p2pmesh.ports.network import ByteStream
from p2pmesh.wire.control import encode_control
from p2pmesh.wire.messages.admission import Hello
from tests.fakes.clock import FakeEntropy
from tests.fakes.credentials import FakeCredentialStore
from tests.fakes.identity import FakeVerifier, fake_identity

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
ECHO = "/test/echo/1"
EXCHANGE_INTERVAL_S = 0.1
EXCHANGE_TIMEOUT_S = 10.0
KEPT_OPEN = 200
"""Garbage connections that stay open at a time; older ones are closed by the attacker."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What an attack did."""

    connections: int
    by_kind: dict[str, int]
    seconds: float
    exchanges: int
    failed_exchanges: int
    exchanges_during: int
    slowest_exchange_ms: float
    median_exchange_ms_during: float
    undisturbed_median_exchange_ms: float
    are_connections_the_same: bool
    left_over_connections: int
    grown_bytes: int
    grown_file_descriptors: int
    most_handshakes: int
    most_strangers: int
    banned: int


class Member:
    """An admitted peer that exchanges something every 100 ms."""

    def __init__(self, network: Libp2pNetwork, target: PeerId) -> None:
        self._network = network
        self._target = target
        self.took_s: list[float] = []
        self.failures: list[str] = []

    async def exchange_for_ever(self) -> None:
        while True:
            began = trio.current_time()
            try:
                with trio.fail_after(EXCHANGE_TIMEOUT_S):
                    await self._exchange()
                self.took_s.append(trio.current_time() - began)
            except (P2PMeshError, trio.TooSlowError) as error:
                self.failures.append(repr(error))
            await trio.sleep(EXCHANGE_INTERVAL_S)

    async def _exchange(self) -> None:
        stream = await self._network.open_stream(self._target, ECHO, EXCHANGE_TIMEOUT_S)
        try:
            await stream.send(b"ping")
            assert await stream.receive_exactly(4) == b"ping"
        finally:
            await stream.reset()


async def echo(stream: ByteStream) -> None:
    with suppress(P2PMeshError):
        while True:
            await stream.send(await stream.receive_exactly(4))


# --- attackers


@dataclass(frozen=True, slots=True)
class Victim:
    """Where to attack."""

    peer: PeerId
    port: int
    hello: bytes


Socket = trio.SocketStream
Attack = Callable[[Socket, Victim, int], Awaitable[None]]


async def stay_silent(socket: Socket, victim: Victim, number: int) -> None:
    await trio.lowlevel.checkpoint()


async def send_random_bytes(socket: Socket, victim: Victim, number: int) -> None:
    await socket.send_all(number.to_bytes(4, "big") * 4096)


async def shake_half_a_hand(socket: Socket, victim: Victim, number: int) -> None:
    await socket.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n" + b"\x00\x20" + number.to_bytes(4, "big") * 8)


async def negotiate_for_ever(socket: Socket, victim: Victim, number: int) -> None:
    await socket.send_all(b"\x13/multistream/1.0.0\n" + b"\x05/tls\n" * 500)


async def send_garbage_frames(socket: Socket, victim: Victim, number: int) -> None:
    channel = await secured(socket, victim, number)
    await channel.write(b"\xff" * 64)


async def fill_a_window(socket: Socket, victim: Victim, number: int) -> None:
    channel = await secured(socket, victim, number)
    for stream_id in range(1, 41, 2):
        await channel.write(struct.pack("!BBHII", 0, 0, 1, stream_id, 60_000) + bytes(60_000))


async def say_a_bad_hello(socket: Socket, victim: Victim, number: int) -> None:
    channel = await secured(socket, victim, number)
    said = b"\x13/multistream/1.0.0\n" + bytes((len(CONTROL_PROTOCOL) + 1,)) + CONTROL_PROTOCOL.encode() + b"\n"
    said += victim.hello
    await channel.write(struct.pack("!BBHII", 0, 0, 1, 1, len(said)) + said)
    with trio.move_on_after(2), suppress(ConnectionClosedError):
        while await channel.receive():
            pass


ATTACKS: tuple[Attack, ...] = (
    stay_silent,
    send_random_bytes,
    shake_half_a_hand,
    negotiate_for_ever,
    send_garbage_frames,
    fill_a_window,
    say_a_bad_hello,
)


async def secured(socket: Socket, victim: Victim, number: int) -> NoiseChannel:
    """Real noise and an agreed yamux under an identity of its own."""
    keys = libp2p_key_pair(fake_identity(f"attacker {number}"))
    noise = NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)
    raw = RawConnection(TrioTCPStream(socket), True)
    await propose(raw, "/noise")
    channel = await noise.secure_outbound(raw, ID.from_base58(victim.peer))
    assert isinstance(channel, NoiseChannel)
    await propose(channel, YAMUX)
    return channel


async def attack(victim: Victim, count: int, at_once: int = 24) -> dict[str, int]:
    """``count`` connections, ``at_once`` being set up at a time, the last ``KEPT_OPEN`` left open; how many of each."""
    made: dict[str, int] = {}
    kept: list[Socket] = []
    limiter = trio.CapacityLimiter(at_once)

    async def one(number: int, kind: Attack) -> None:
        async with limiter:
            socket = await trio.open_tcp_stream("127.0.0.1", victim.port)
            kept.append(socket)
            made[kind.__name__] = made.get(kind.__name__, 0) + 1
            with suppress(OSError, trio.BrokenResourceError, IOException, NegotiationRefused, Exception):
                await kind(socket, victim, number)
            while len(kept) > KEPT_OPEN:
                await trio.aclose_forcefully(kept.pop(0))

    async with trio.open_nursery() as nursery:
        for number, kind in enumerate(islice(cycle(ATTACKS), count)):
            nursery.start_soon(one, number, kind)
    for socket in kept:
        await trio.aclose_forcefully(socket)
    return made


# --- the node and its members


class Nodes:
    """A node under attack, with its overlay, and two members."""

    def __init__(self, node: Libp2pNetwork, overlay: Overlay, members: list[Libp2pNetwork]) -> None:
        self.node = node
        self.overlay = overlay
        self.members = members
        self.events: list[tuple[str, dict[str, Any]]] = []

    def victim(self) -> Victim:
        said = Hello(PROTOCOL_GENERATION, self.overlay.mesh_id, "p2pmesh1-nothing", (), b"\x80")
        return Victim(self.node.peer_id, int(self.node.addresses()[0].split("/")[4]), encode_control(said))

    def connections(self) -> set[int]:
        """The admitted peers' connections, by identity of the objects."""
        return {
            id(muxed)
            for member in self.members
            for muxed in self.node._swarm.connections_of(ID.from_base58(member.peer_id))
            if not muxed.is_closed
        }


@asynccontextmanager
async def open_nodes(count: int = 2) -> AsyncIterator[Nodes]:
    """Real hosts with real overlays, admitted."""
    events: list[tuple[str, dict[str, Any]]] = []
    identities = [fake_identity(name) for name in ("node", *(f"member {number}" for number in range(count)))]
    async with AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(open_network(identity, LISTEN)) for identity in identities]
        async with trio.open_nursery() as nursery:
            overlays: list[Overlay] = []
            for number, (identity, network) in enumerate(zip(identities, networks, strict=True)):
                chance, kept = FakeEntropy(number), FakeCredentialStore()
                ports = Neighbours(network, identity, FakeVerifier(), TrioClock(), chance, kept)
                invite = overlays[0].make_invite() if overlays else None
                settings = OverlaySettings(f"node {number}", "0", 0, invite)
                overlay = Overlay(ports, settings, lambda event, fields: events.append((event, fields)))
                network.serve(ECHO, echo)
                await nursery.start(overlay.run)
                if overlays:
                    await overlay.join()
                overlays.append(overlay)
            nodes = Nodes(networks[0], overlays[0], networks[1:])
            nodes.events = events
            yield nodes
            nursery.cancel_scope.cancel()


async def measure(connections: int, calm_s: float = 1.0) -> Figures:
    """Attacks a node whose members go on exchanging, before, during and after."""
    process = psutil.Process()
    async with open_nodes() as nodes, trio.open_nursery() as nursery:
        members = [Member(network, nodes.node.peer_id) for network in nodes.members]
        for member in members:
            nursery.start_soon(member.exchange_for_ever)
        await trio.sleep(calm_s)
        undisturbed = _median([took for member in members for took in member.took_s])
        before, victim = nodes.connections(), nodes.victim()
        gc.collect()
        start_bytes, start_fds = process.memory_info().rss, process.num_fds()
        peak = {"handshakes": 0, "strangers": 0}
        nursery.start_soon(_watch, nodes, peak)
        counts = [len(member.took_s) for member in members]
        began = trio.current_time()
        by_kind = await attack(victim, connections)
        seconds = trio.current_time() - began
        during = [took for member, count in zip(members, counts, strict=True) for took in member.took_s[count:]]
        await _wait_until_gone(nodes, process, start_fds)
        await trio.sleep(calm_s)
        gc.collect()
        took = [took for member in members for took in member.took_s]
        failed = [failure for member in members for failure in member.failures]
        figures = Figures(
            connections=sum(by_kind.values()),
            by_kind=dict(sorted(by_kind.items())),
            seconds=round(seconds, 2),
            exchanges=len(took),
            failed_exchanges=len(failed),
            exchanges_during=len(during),
            slowest_exchange_ms=round(1000 * max(took), 1),
            median_exchange_ms_during=round(1000 * _median(during), 1),
            undisturbed_median_exchange_ms=round(1000 * undisturbed, 1),
            are_connections_the_same=nodes.connections() == before and bool(before),
            left_over_connections=len(nodes.node._swarm.get_connections()) - len(nodes.members),
            grown_bytes=process.memory_info().rss - start_bytes,
            grown_file_descriptors=process.num_fds() - start_fds,
            most_handshakes=peak["handshakes"],
            most_strangers=peak["strangers"],
            banned=sum(name == "peer_banned" for name, _ in nodes.events),
        )
        nursery.cancel_scope.cancel()
    return figures


async def _wait_until_gone(nodes: Nodes, process: psutil.Process, file_descriptors: int) -> None:
    swarm = nodes.node._swarm
    with trio.move_on_after(20):
        while process.num_fds() > file_descriptors or len(swarm._strangers) or len(swarm.doorway):  # noqa: ASYNC110
            await trio.sleep(0.1)


async def _watch(nodes: Nodes, peak: dict[str, int]) -> None:
    while True:
        swarm = nodes.node._swarm
        peak["handshakes"] = max(peak["handshakes"], len(swarm.doorway))
        peak["strangers"] = max(peak["strangers"], len(swarm._strangers))
        await trio.sleep(0.01)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Prints the figures of one attack as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    figures = trio.run(measure, parser.parse_args().connections)
    sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")


if __name__ == "__main__":
    main()
