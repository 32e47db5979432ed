"""The links between the nodes of ``p2pmesh chaos``: every connection goes through here, where it can be made to fail.

A node listens at an address of its own and tells the others a *front* instead, a port of ours. Who dials a front is
read from ``/proc`` by the port it dials from, so that it needs no privileges and no node knows of it. Which link fails
when is ``app.chaos_faults``'.
"""

import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 65_536
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_ENDED = (trio.BrokenResourceError, trio.ClosedResourceError)

Link = frozenset[str]
"""The names of two nodes."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection between two nodes, as two of ours."""

    link: Link
    ends: tuple[trio.SocketStream, trio.SocketStream]
    is_to_be_spoiled: bool = False

    def reset(self) -> None:
        """Both ends learn at once that it is gone."""
        for end in self.ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            end.socket.close()


class Links:
    """Fronts of all nodes. ``processes`` tells the nodes' names by process id."""

    def __init__(self, nursery: trio.Nursery, processes: Callable[[], Mapping[int, str]]) -> None:
        self._nursery = nursery
        self._processes = processes
        self._connections: set[_Connection] = set()
        self._silent: Counter[Link] = Counter()
        self._spoken = trio.Event()

    async def open_front(self, name: str, port: int, host: str = LOOPBACK) -> int:
        """The port to tell others, for a node that listens on ``host`` and ``port``."""
        (listener,) = await trio.open_tcp_listeners(0, host=LOOPBACK)
        front = int(listener.socket.getsockname()[1])

        async def serve(stream: trio.SocketStream) -> None:
            await self._serve(stream, name, host, port)

        self._nursery.start_soon(trio.serve_listeners, serve, [listener])
        return front

    # --- faults --------------------------------------------------------------------------
    @contextmanager
    def silence(self, links: Iterable[Link]) -> Iterator[None]:
        """Nothing passes and nobody is told, as where packets are lost; what waited goes on afterwards."""
        chosen = tuple(links)
        self._silent.update(chosen)
        try:
            yield
        finally:
            self._silent.subtract(chosen)
            self._spoken.set()
            self._spoken = trio.Event()

    def reset(self, link: Link) -> int:
        """Ends the connections of a link; they may be made again at once. How many there were."""
        chosen = [connection for connection in self._connections if connection.link == link]
        for connection in chosen:
            connection.reset()
        return len(chosen)

    def spoil(self, link: Link) -> int:
        """Changes one byte of what passes next on each connection of a link. How many there are."""
        chosen = [connection for connection in self._connections if connection.link == link]
        for connection in chosen:
            connection.is_to_be_spoiled = True
        return len(chosen)

    # --- passing on ------------------------------------------------------------------------
    async def _serve(self, near: trio.SocketStream, name: str, host: str, port: int) -> None:
        dialler = self._name_of_port(int(near.socket.getpeername()[1]), int(near.socket.getsockname()[1]))
        link = frozenset((dialler or "", name))
        await self._wait_while_silent(link)
        try:
            far = await trio.open_tcp_stream(host, port)
        except OSError:
            return  # the node is gone: its front closes what it took
        connection = _Connection(link, (near, far))
        self._connections.add(connection)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, connection, near, far)
                nursery.start_soon(self._pass_on, connection, far, near)
        finally:
            self._connections.discard(connection)
            connection.reset()

    async def _pass_on(self, connection: _Connection, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(CHUNK_BYTES):
                await self._wait_while_silent(connection.link)
                if connection.is_to_be_spoiled:
                    connection.is_to_be_spoiled = False
                    data = spoiled(data)
                await sink.send_all(data)
            await self._wait_while_silent(connection.link)
            await sink.send_eof()
        except _ENDED:
            connection.reset()

    async def _wait_while_silent(self, link: Link) -> None:
        while self._silent[link] > 0:
            await self._spoken.wait()

    def _name_of_port(self, port: int, front: int) -> str | None:
        inode = inode_of_connection(Path("/proc/net/tcp").read_text(), port, front)
        if inode is None:
            return None
        return next((name for pid, name in self._processes().items() if has_socket(pid, inode)), None)


def spoiled(data: bytes | bytearray) -> bytes:
    """``data`` with one byte changed, in its middle."""
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 0x55
    return bytes(changed)


def inode_of_connection(table: str, local_port: int, remote_port: int) -> str | None:
    """The socket of a loopback connection in the text of ``/proc/net/tcp``."""
    wanted = [f"0100007F:{port:04X}" for port in (local_port, remote_port)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return fields[9]
    return None


def has_socket(pid: int, inode: str) -> bool:
    """Whether a process holds that socket; False where it is gone or another user's."""
    wanted = f"socket:[{inode}]"
    with suppress(OSError):
        folder = f"/proc/{pid}/fd"
        for entry in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{entry}") == wanted:
                    return True
    return False


def free_port(host: str = LOOPBACK) -> int:
    """A port that nobody listens on; on an address of its own it stays so, as nothing is dialled from there."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
