"""The child's end of the socket pair: messages in, messages out, and the thread that beats and watches.

Blocking and without trio. The thread sends a beat every ``ENGINE_BEAT_MS``, also while the main thread is inside a
step (native calls release the interpreter lock), and ends the process at once when the other end is gone.
"""

import os
import select
import socket
import threading
from typing import Any

from p2pmesh.base.limits import ENGINE_BEAT_MS
from p2pmesh.wire.engine import LENGTH_BYTES, EngineKind, decode_kind, decode_length, encode_message

_READ_BYTES = 1 << 16
_HANG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
EXIT_NODE_GONE = 0


class Channel:
    """Messages over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer: bytes | bytearray = b""
        self._taken = 0
        self._send_lock = threading.Lock()

    def start_beating(self) -> None:
        """Starts the thread; it lives as long as the process."""
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def send(self, messages: list[bytes]) -> None:
        """Writes whole messages in one go; waits while the node does not read."""
        with self._send_lock:
            self._connection.sendall(messages[0] if len(messages) == 1 else b"".join(messages))

    def next_message(self, *, wait: bool) -> tuple[EngineKind, memoryview] | None:
        """The next message; None when none is complete and ``wait`` is false. Ends the process on end of file."""
        while True:
            message = self._take()
            if message is not None:
                return decode_kind(message)
            try:
                data = self._connection.recv(_READ_BYTES, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except ConnectionError:
                data = b""
            if not data:
                os._exit(EXIT_NODE_GONE)
            self._keep(data)

    def _take(self) -> memoryview | None:
        """The next whole message as a view."""
        start = self._taken + LENGTH_BYTES
        if len(self._buffer) < start:
            return None
        end = start + decode_length(self._buffer[self._taken : start])
        if len(self._buffer) < end:
            return None
        message = memoryview(self._buffer)[start:end]
        self._taken = end
        return message

    def _keep(self, data: bytes) -> None:
        """Nearly always ``data`` is one message and is kept as it is. Views of earlier messages pin what they show."""
        if self._taken == len(self._buffer):
            self._buffer = data
        elif self._taken or isinstance(self._buffer, bytes):
            self._buffer = bytearray(memoryview(self._buffer)[self._taken :]) + data
        else:
            self._buffer += data
            return
        self._taken = 0

    def _beat(self) -> None:
        beat = encode_message(EngineKind.BEAT, {})
        poll = select.poll()
        poll.register(self._connection, _HANG_UP)
        while True:
            if poll.poll(ENGINE_BEAT_MS):
                os._exit(EXIT_NODE_GONE)
            # While the main thread waits for the node to read, its bytes are in front of any beat anyway.
            if self._send_lock.acquire(blocking=False):
                try:
                    self._connection.send(beat, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    os._exit(EXIT_NODE_GONE)
                finally:
                    self._send_lock.release()


def encode_result(call_id: int, value: Any) -> bytes:
    """A RESULT that answers a CALL."""
    return encode_message(EngineKind.RESULT, {"id": call_id, "value": value})
