"""Links that fall silent, break and lie, between sockets of this process."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
import trio

from p2pmesh.app.chaos_links import LOOPBACK, Links, free_port, has_socket, inode_of_connection, spoiled

PATIENCE_S = 10.0
A_B = frozenset(("a", "b"))
A_C = frozenset(("a", "c"))


@dataclass
class Wire:
    """A connection from the node ``a`` through the front of ``b``."""

    links: Links
    near: trio.SocketStream
    far: trio.SocketStream


@asynccontextmanager
async def wired(names: dict[int, str] | None = None) -> AsyncIterator[Wire]:
    accepted, taken = trio.open_memory_channel[trio.SocketStream](1)
    finished = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await accepted.send(stream)
        await finished.wait()

    known = {os.getpid(): "a"} if names is None else names
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            links = Links(nursery, lambda: known)
            (listener,) = await trio.open_tcp_listeners(0, host=LOOPBACK)
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            front = await links.open_front("b", listener.socket.getsockname()[1])
            async with await trio.open_tcp_stream(LOOPBACK, front) as near:
                far = await taken.receive()
                await passes(near, far)
                yield Wire(links, near, far)
            finished.set()
            nursery.cancel_scope.cancel()


async def passes(near: trio.SocketStream, far: trio.SocketStream) -> None:
    for source, sink in ((near, far), (far, near)):
        await source.send_all(b"hello")
        assert await sink.receive_some(5) == b"hello"


async def test_an_end_reaches_the_other_side() -> None:
    async with wired() as wire:
        await wire.near.send_eof()
        assert await wire.far.receive_some(1) == b""
        await wire.far.send_all(b"rest")
        assert await wire.near.receive_some(4) == b"rest"


async def test_a_silent_link_loses_nothing_and_says_nothing() -> None:
    async with wired() as wire:
        with wire.links.silence([A_B, A_C]):
            with wire.links.silence([A_B]):
                await wire.near.send_all(b"later")
            with trio.move_on_after(0.2) as waited:
                await wire.far.receive_some(5)
            assert waited.cancelled_caught
        assert await wire.far.receive_some(5) == b"later"
        await passes(wire.near, wire.far)


async def test_other_links_go_on() -> None:
    async with wired() as wire:
        with wire.links.silence([A_C]):
            assert wire.links.reset(A_C) == wire.links.spoil(A_C) == 0
            await passes(wire.near, wire.far)


async def test_a_link_that_is_cut_is_gone_at_both_ends() -> None:
    async with wired() as wire:
        assert wire.links.reset(A_B) == 1
        for end in (wire.near, wire.far):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some(1)


async def test_one_byte_is_changed_once() -> None:
    async with wired() as wire:
        assert wire.links.spoil(A_B) == 1
        await wire.near.send_all(b"abc")
        got = await wire.far.receive_some(3)
        assert len(got) == 3
        assert [x == y for x, y in zip(b"abc", got, strict=True)] == [True, False, True]
        await passes(wire.near, wire.far)


async def test_a_dialler_that_is_no_node_has_no_link() -> None:
    async with wired({}) as wire:
        assert wire.links.reset(A_B) == 0
        assert wire.links.reset(frozenset(("", "b"))) == 1


async def test_a_front_without_its_node_closes_what_it_takes() -> None:
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            links = Links(nursery, dict)
            front = await links.open_front("b", free_port("127.66.0.9"), "127.66.0.9")
            async with await trio.open_tcp_stream(LOOPBACK, front) as stream:
                with suppress(trio.BrokenResourceError):
                    assert await stream.receive_some(1) == b""
            nursery.cancel_scope.cancel()


def test_a_connection_is_found_among_others() -> None:
    heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    lines = [
        f"   {n}: {ends} 01 00000000:00000000 00:00000000 00000000  0  0 {n}00 1 0000000000000000 20 4 30 10 -1"
        for n, ends in enumerate(("0100007F:0050 0100007F:1F90", "0100007F:1F90 0100007F:0050"), 1)
    ]
    table = "\n".join([heading, *lines])
    assert inode_of_connection(table, 0x1F90, 0x50) == "200"
    assert inode_of_connection(table, 0x1F90, 0x51) is None
    assert not has_socket(os.getpid(), "0")


def test_what_is_spoiled_differs_in_one_byte() -> None:
    assert sum(x != y for x, y in zip(bytes(9), spoiled(bytes(9)), strict=True)) == 1
    assert spoiled(b"a") != b"a"
