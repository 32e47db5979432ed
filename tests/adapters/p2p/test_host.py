"""Start, stop and loss of real hosts; what any network does is in ``test_network_conformance``."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters.p2p.addresses import every_interface
from p2pmesh.adapters.p2p.host import STOP_TIMEOUT_S, Libp2pNetwork, open_network
from p2pmesh.adapters.p2p.yamux_pings import Vigilance
from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.core.addresses import InterfaceAddress
from p2pmesh.ports.network import ByteStream, PeerConnected, PeerDisconnected
from tests.adapters.p2p.peer_process import ECHO
from tests.fakes.identity import fake_identity

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0


# --- addresses


@pytest.mark.parametrize(
    "address", ["", "nonsense", "/ip4/127.0.0.1/udp/1", "/ip4/127.0.0.1/tcp/99999", "/dns4/a.b/tcp/1"]
)
async def test_a_malformed_listen_address(address: str) -> None:
    failure = await opening_fails(address)
    assert failure.code == ErrorCode.ADDRESS_INVALID
    assert repr(address) in failure.message


async def test_an_address_of_another_machine() -> None:
    failure = await opening_fails("/ip4/192.0.2.254/tcp/0")
    assert failure.code == ErrorCode.ADDRESS_INVALID


async def test_a_port_in_use_by_a_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"
        failure = await opening_fails(address)
    assert failure.code == ErrorCode.PORT_IN_USE
    assert address in failure.message
    assert "--listen" in failure.message


async def test_a_port_in_use_by_another_node_of_ours() -> None:
    async with open_network(fake_identity("a"), LISTEN) as first:
        address = first.addresses()[0].partition("/p2p/")[0]
        failure = await opening_fails(address)
        assert failure.code == ErrorCode.PORT_IN_USE


async def test_a_node_behind_a_forwarded_port_tells_that_port() -> None:
    told = "/ip4/203.0.113.7/tcp/4001"
    async with open_network(fake_identity("a"), LISTEN, announce=(told,)) as node:
        assert node.addresses() == (f"{told}/p2p/{node.peer_id}",)


@pytest.mark.parametrize("address", ["/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001", "/ip4/203.0.113.7/tcp/0", "nonsense"])
async def test_nobody_is_told_an_address_that_leads_nowhere(address: str) -> None:
    with pytest.raises(ConfigError) as failure:
        async with open_network(fake_identity("a"), LISTEN, announce=(address,)):
            pass
    assert failure.value.code == ErrorCode.ADDRESS_INVALID
    assert repr(address) in failure.value.message


async def opening_fails(address: str) -> ConfigError:
    with pytest.raises(ConfigError) as failure:
        async with open_network(fake_identity("b"), (address,)):
            pytest.fail("it opened")
    assert "\n" not in failure.value.message
    return failure.value


async def test_any_interface_is_announced_as_the_interfaces_there_are() -> None:
    async with open_network(fake_identity("a"), ("/ip4/0.0.0.0/tcp/0",)) as network:
        addresses = network.addresses()
        assert addresses
        assert not any("0.0.0.0" in address or "/tcp/0/" in address for address in addresses)
        assert all(address.endswith(f"/p2p/{network.peer_id}") for address in addresses)


async def test_several_addresses_at_once() -> None:
    async with open_network(fake_identity("a"), (*LISTEN, "/ip4/127.0.0.2/tcp/0")) as network:
        assert {address.split("/")[2] for address in network.addresses()} == {"127.0.0.1", "127.0.0.2"}


class OneBridge:
    """As on every machine with a container engine."""

    def survey(self) -> tuple[InterfaceAddress, ...]:
        return (InterfaceAddress("docker0", "127.0.0.1", 8, is_bridge=True), InterfaceAddress("eth0", "127.0.0.9", 8))


async def test_who_answers_with_another_identity_is_passed_over_and_nobody_is_the_worse_for_it() -> None:
    async with (
        open_network(fake_identity("a"), LISTEN) as a,
        open_network(fake_identity("b"), LISTEN) as b,
        open_network(fake_identity("c"), LISTEN) as c,
    ):
        of_b, of_c = (node.addresses()[0].partition("/p2p/")[0] for node in (b, c))
        for _ in range(3):
            with pytest.raises(PeerUnavailable, match="another peer answers there"):
                await a.dial(c.peer_id, (of_b,), 5.0)
        await a.dial(c.peer_id, (of_b, of_c), 5.0)
        await a.dial(b.peer_id, (of_b,), 5.0)
        assert a.connected_peers() == {b.peer_id, c.peer_id}
        with trio.move_on_after(0.2) as waiting:
            await b.peer_fault()
        assert waiting.cancelled_caught


async def test_an_address_where_only_this_node_listens_is_not_dialled_for_another() -> None:
    every = ("/ip4/0.0.0.0/tcp/0",)
    async with (
        open_network(fake_identity("a"), every, interfaces=OneBridge()) as a,
        open_network(fake_identity("b"), LISTEN) as b,
    ):
        port = a.bound_addresses()[0].split("/")[4]
        with pytest.raises(PeerUnavailable, match="only addresses of this node"):
            await a.dial(b.peer_id, (f"/ip4/127.0.0.9/tcp/{port}",), 5.0)
        assert not a.connected_peers()


async def test_what_a_failed_dial_met_is_told_of_each_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with open_network(fake_identity("a"), LISTEN) as a:
        with pytest.raises(PeerUnavailable, match=rf"/tcp/{port} \(connection refused\)"):
            await a.dial(fake_identity("b").peer_id, (f"/ip4/127.0.0.1/tcp/{port}",), 5.0)


async def test_both_address_families_at_once() -> None:
    async with open_network(fake_identity("a"), every_interface()) as a:
        assert len(a.bound_addresses()) == len(every_interface())
        port = a.bound_addresses()[-1].split("/")[4]
        async with open_network(fake_identity("b"), ("/ip6/::1/tcp/0",)) as b:
            await b.dial(a.peer_id, (f"/ip6/::1/tcp/{port}",), 5.0)
            await a.dial(b.peer_id, b.addresses(), 5.0)
            assert a.connected_peers() == {b.peer_id}


# --- the end


async def test_the_port_is_free_again_after_the_end_however_it_comes() -> None:
    address = "/ip4/127.0.77.1/tcp/0"  # where no other program's connections take the port meanwhile
    for _ in range(3):
        async with open_network(fake_identity("a"), (address,)) as network:
            address = network.addresses()[0].partition("/p2p/")[0]
    with trio.CancelScope() as scope:
        async with open_network(fake_identity("a"), (address,)):
            scope.cancel()
            await trio.sleep_forever()
    async with open_network(fake_identity("a"), (address,)):
        pass


async def test_the_end_comes_in_time_with_streams_open_and_servers_that_hang() -> None:
    async def hang(stream: ByteStream) -> None:
        await trio.sleep_forever()

    async with open_network(fake_identity("a"), LISTEN) as a:
        with trio.fail_after(STOP_TIMEOUT_S):
            async with open_network(fake_identity("b"), LISTEN) as b:
                b.serve(ECHO, hang)
                await a.dial(b.peer_id, b.addresses(), 5.0)
                for _ in range(10):
                    await a.open_stream(b.peer_id, ECHO, 5.0)


# --- loss of a peer

IMPATIENT = Vigilance(interval_s=0.2, max_silent=8)
"""More silence than a live peer may need for its turn on a busy machine."""


@asynccontextmanager
async def peer_process(network: Libp2pNetwork) -> AsyncIterator[tuple[int, PeerId, ByteStream]]:
    """A connected peer in a process: its pid, its id, an open stream to it."""
    command = [sys.executable, "-m", "tests.adapters.p2p.peer_process"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = b""
        with trio.fail_after(PATIENCE_S):
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some(4096)
        peer_id, address = line.decode().split()
        await network.dial(PeerId(peer_id), (address,), 10.0)
        yield process.pid, PeerId(peer_id), await network.open_stream(PeerId(peer_id), ECHO, 10.0)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        if process.stdout is not None:
            await process.stdout.aclose()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_blocked_read_ends_when_the_peer_is(how: signal.Signals) -> None:
    async with open_network(fake_identity("a"), LISTEN, vigilance=IMPATIENT) as network:
        async with peer_process(network) as (pid, peer, stream):
            await stream.send(b"\0\0\0\x02hi")
            assert await stream.receive_exactly(2) == b"hi"
            assert isinstance(await network.connection_event(), PeerConnected)
            os.kill(pid, how)
            with trio.fail_after(PATIENCE_S):
                with pytest.raises(PeerUnavailable) as failure:
                    await stream.receive_exactly(1)
                assert failure.value.code == ErrorCode.PEER_LOST
                assert await network.connection_event() == PeerDisconnected(peer)
            assert network.connected_peers() == frozenset()


async def test_a_blocked_write_ends_when_the_peer_freezes() -> None:
    async with open_network(fake_identity("a"), LISTEN, vigilance=IMPATIENT) as network:
        async with peer_process(network) as (pid, _, stream):
            os.kill(pid, signal.SIGSTOP)
            with trio.fail_after(PATIENCE_S), pytest.raises(PeerUnavailable):
                await stream.send(bytes(50_000_000))
            with pytest.raises(PeerUnavailable):
                await stream.send(b"x")


async def test_a_peer_that_lives_is_kept_through_many_pings() -> None:
    vigilance = Vigilance(interval_s=0.01, max_silent=50)  # 100 pings, and its turn may be late by half a second
    async with open_network(fake_identity("a"), LISTEN, vigilance=vigilance) as network:
        async with peer_process(network) as (_, peer, stream):
            for _ in range(50):
                await stream.send(b"\0\0\0\x02hi")
                assert await stream.receive_exactly(2) == b"hi"
                with trio.move_on_after(0.02):
                    await stream.receive_exactly(1)
            assert network.connected_peers() == {peer}
            assert (network.round_trip_s(peer) or 0) > 0
