"""Links with a delay, for measurements: a process that passes on connections, each byte so much later than it came.

``python -m p2pmesh.app.delay_links MICROSECONDS PORT …`` opens a front for each loopback port, prints the fronts' ports
as a JSON list, and passes on until its standard input ends. Both directions are delayed; order stays, and so does the
rate, as long as no more than ``MAX_HELD_BYTES`` is on its way in one direction. A process of its own with a plain loop:
trio waits in whole milliseconds, and a benchmark that reads tokens would be in the way of its own links.
"""

import json
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.quantities import MIB, MICROS_PER_SECOND

LOOPBACK = "127.0.0.1"
MAX_HELD_BYTES = 16 * MIB
"""In one direction of a connection; beyond that its sender waits, as at the end of a full pipe."""
CHUNK_BYTES = 1 << 16
STOP_S = 5.0
CONNECT_TIMEOUT_S = 1.0
_ECHOES = 200


class DelayLine:
    """Bytes in one direction, in order, each due a fixed time after it came; ``now`` is any monotonic microseconds."""

    def __init__(self, delay_us: int) -> None:
        self._delay_us = delay_us
        self._held: deque[tuple[int, memoryview]] = deque()
        self.held_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether more may come in."""
        return self.held_bytes < MAX_HELD_BYTES

    @property
    def due_us(self) -> int | None:
        """When the next bytes are due; None while nothing is held."""
        return self._held[0][0] if self._held else None

    def put(self, data: bytes, now_us: int) -> None:
        """Bytes that came now."""
        self._held.append((now_us + self._delay_us, memoryview(data)))
        self.held_bytes += len(data)

    def deliver(self, now_us: int, send: Callable[[memoryview], int]) -> bool:
        """Hands what is due to ``send``, which tells how many bytes it took; whether it took all."""
        while self._held and self._held[0][0] <= now_us:
            due_us, data = self._held[0]
            sent = send(data)
            self.held_bytes -= sent
            if sent < len(data):
                self._held[0] = (due_us, data[sent:])
                return False
            self._held.popleft()
        return True


class _Direction:
    """From one socket to another."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_us: int) -> None:
        self.source, self.sink = source, sink
        self.line = DelayLine(delay_us)
        self.has_ended = False
        self.is_blocked = False

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more and all was passed on."""
        return self.has_ended and not self.line.held_bytes

    def take_in(self, now_us: int) -> None:
        """What has come; an end or an error is an end."""
        try:
            data = self.source.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.has_ended = not data
        if data:
            self.line.put(data, now_us)

    def pass_on(self, now_us: int) -> None:
        """What is due."""
        self.is_blocked = not self.line.deliver(now_us, self._send)

    def _send(self, data: memoryview) -> int:
        try:
            return self.sink.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # nobody reads it any more
            self.has_ended = True
            return len(data)


class _Fronts:
    """All fronts and what passes through them, in one loop."""

    def __init__(self, delay_us: int, listeners: dict[socket.socket, int]) -> None:
        self._delay_us = delay_us
        self._listeners = listeners
        self._directions: list[_Direction] = []

    def serve(self, ending: socket.socket | int) -> None:
        """Until ``ending`` is readable."""
        while True:
            reading = [one.source for one in self._directions if not one.has_ended and one.line.has_room]
            writing = [one.sink for one in self._directions if one.is_blocked]
            # unlike epoll, select counts in microseconds
            readable, _, _ = select.select([ending, *self._listeners, *reading], writing, [], self._wait_s())
            now_us = time.monotonic_ns() // 1000
            if ending in readable:
                return
            for listener in [one for one in readable if one in self._listeners]:
                self._accept(listener)
            ready = set(readable)
            for one in self._directions:
                if one.source in ready:
                    one.take_in(now_us)
                one.pass_on(now_us)
            self._drop_ended()

    def _wait_s(self) -> float | None:
        dues = [due for one in self._directions if not one.is_blocked and (due := one.line.due_us) is not None]
        return max(0.0, (min(dues) - time.monotonic_ns() // 1000) / MICROS_PER_SECOND) if dues else None

    def _accept(self, listener: socket.socket) -> None:
        near, _ = listener.accept()
        try:
            far = socket.create_connection((LOOPBACK, self._listeners[listener]), CONNECT_TIMEOUT_S)
        except OSError:  # the node is gone, or not there yet
            near.close()
            return
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        self._directions += [_Direction(near, far, self._delay_us), _Direction(far, near, self._delay_us)]

    def _drop_ended(self) -> None:
        """A connection that has ended in one direction ends in both: nodes half-close no connection."""
        for one in [one for one in self._directions if one.is_over]:
            for end in (one.source, one.sink):
                end.close()
        self._directions = [one for one in self._directions if one.source.fileno() >= 0]


def main() -> None:
    """Serves until standard input ends."""
    delay_us, ports = int(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    listeners = {socket.create_server((LOOPBACK, 0)): port for port in ports}
    sys.stdout.write(json.dumps([one.getsockname()[1] for one in listeners]) + "\n")
    sys.stdout.flush()
    _Fronts(delay_us, listeners).serve(sys.stdin.fileno())


@contextmanager
def open_delayed_fronts(delay_us: int, ports: Sequence[int]) -> Iterator[list[int]]:
    """Ports to dial instead of ``ports`` on loopback; blocking, for a moment at its start and its end."""
    command = [sys.executable, "-m", "p2pmesh.app.delay_links", str(delay_us), *map(str, ports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise Refused(ErrorCode.INTERNAL, "the process of the delayed links did not start; see above")
            yield json.loads(line)
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


# --- what the links add of their own ------------------------------------------------------
def measure_excess_us(delay_us: int) -> int:
    """Microseconds that one way takes beyond ``delay_us`` and what it takes without us: the median of some echoes."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        echo = [sys.executable, "-c", _ECHO, str(listener.getsockname()[1])]
        with subprocess.Popen(echo) as process:
            try:
                server, _ = listener.accept()
                with server:
                    port = int(server.recv(16))
                direct_us = _echo_us(port)
                with open_delayed_fronts(delay_us, [port]) as fronts:
                    return (_echo_us(fronts[0]) - direct_us) // 2 - delay_us
            finally:
                process.kill()


_ECHO = """
import socket, sys
told = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
listener = socket.create_server(("127.0.0.1", 0))
told.sendall(str(listener.getsockname()[1]).encode())
while True:
    one, _ = listener.accept()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := one.recv(65536):
        one.sendall(data)
"""


def _echo_us(port: int) -> int:
    times_us = []
    with socket.create_connection((LOOPBACK, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_ECHOES):
            began = time.perf_counter_ns()
            connection.sendall(bytes(64))
            connection.recv(64)
            times_us.append((time.perf_counter_ns() - began) // 1000)
    return sorted(times_us)[_ECHOES // 2]


if __name__ == "__main__":
    main()
