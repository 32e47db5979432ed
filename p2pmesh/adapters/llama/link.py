"""The node's end of an engine's socket pair: bytes out whole, bytes in, and how long nothing came.

This is the path of every token, so it is made of the fewest steps: one wait and one system call to read, one system
call and no wait to write while the socket takes all. What the bytes mean is ``launcher``'s.
"""

import socket

import trio

_READ_BYTES = 1 << 16


class EngineLink:
    """A connected stream socket. One task reads; any may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._descriptor = connection.fileno()
        self._is_sending = False
        self._senders = trio.lowlevel.ParkingLot()
        self._waiting_since: float | None = None
        self._is_closed = False

    async def receive(self) -> bytes:
        """What has arrived, at least one byte; empty once the other end is gone."""
        self._waiting_since = trio.current_time()
        try:
            while True:
                await trio.lowlevel.wait_readable(self._descriptor)
                try:
                    return self._connection.recv(_READ_BYTES)
                except BlockingIOError:
                    continue
        except (OSError, trio.ClosedResourceError):
            return b""
        finally:
            self._waiting_since = None

    async def send(self, message: bytes) -> None:
        """The whole message, after those before it; raises ``trio.BrokenResourceError`` when the other end is gone.

        A message that has begun is finished even if the caller is cancelled, since half of one would be read as
        nonsense; a reader that takes nothing any more is ended by whoever watches ``silent_s``.
        """
        while self._is_sending:
            await self._senders.park()
        self._is_sending = True
        try:
            sent = self._send_now(message)
            if sent < len(message):
                with trio.CancelScope(shield=sent > 0):
                    await self._send_rest(memoryview(message)[sent:])
        finally:
            self._is_sending = False
            self._senders.unpark()

    async def _send_rest(self, rest: memoryview) -> None:
        while rest:
            try:
                await trio.lowlevel.wait_writable(self._descriptor)
            except trio.ClosedResourceError:
                raise trio.BrokenResourceError from None
            rest = rest[self._send_now(rest) :]

    def _send_now(self, data: bytes | memoryview) -> int:
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    def silent_s(self) -> float:
        """Seconds for which the reader has waited in vain; 0 while it does not wait or bytes are there for it."""
        if self._waiting_since is None or self._is_closed or self._has_bytes():
            return 0.0
        return trio.current_time() - self._waiting_since

    def _has_bytes(self) -> bool:
        """A node that was itself asleep must not blame the engine for what it has not read yet."""
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the reader will hear of it
        return True

    def close(self) -> None:
        """Closes the socket; whoever waits on it is told."""
        if not self._is_closed:
            self._is_closed = True
            trio.lowlevel.notify_closing(self._descriptor)
            self._connection.close()
