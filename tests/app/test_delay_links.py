"""Links with a delay: order, due times and ends; the times themselves are ``bench tpot``'s to tell."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.app.delay_links import LOOPBACK, MAX_HELD_BYTES, DelayLine, free_ports, open_delayed_fronts

WAIT_S = 20.0


# --- one direction, without a socket
def test_bytes_are_due_a_delay_after_they_came_and_not_before() -> None:
    line, sent = DelayLine(10_000), bytearray()
    line.put(b"first", 1_000)
    line.put(b"second", 4_000)
    assert (line.due_us, line.held_bytes) == (11_000, 11)
    assert line.deliver(10_999, taking(sent))
    assert sent == b""
    assert line.deliver(11_000, taking(sent))
    assert (bytes(sent), line.due_us) == (b"first", 14_000)
    assert line.deliver(20_000, taking(sent))
    assert (bytes(sent), line.due_us, line.held_bytes) == (b"firstsecond", None, 0)


def test_a_reader_that_takes_a_part_gets_the_rest_later() -> None:
    line, sent = DelayLine(0), bytearray()
    line.put(b"abcdef", 0)
    assert not line.deliver(0, taking(sent, 4))
    assert (bytes(sent), line.held_bytes) == (b"abcd", 2)
    assert line.deliver(0, taking(sent, 4))
    assert bytes(sent) == b"abcdef"


def test_a_full_line_takes_no_more() -> None:
    line = DelayLine(1)
    line.put(bytes(MAX_HELD_BYTES - 1), 0)
    assert line.has_room
    line.put(b"x", 0)
    assert not line.has_room


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 5_000)), max_size=30), st.integers(1, 17))
def test_whatever_comes_goes_on_in_order_and_whole(came: list[tuple[bytes, int]], most: int) -> None:
    line, sent, now_us = DelayLine(3_000), bytearray(), 0
    for data, pause_us in came:
        now_us += pause_us
        line.put(data, now_us)
        line.deliver(now_us, taking(sent, most))
        due = sum(len(one) for one, _ in came)
        assert line.held_bytes + len(sent) <= due
    while not line.deliver(now_us + 3_000, taking(sent, most)):
        pass
    assert bytes(sent) == b"".join(data for data, _ in came)
    assert line.held_bytes == 0


def taking(sent: bytearray, most: int = 1 << 20):  # type: ignore[no-untyped-def]
    """A reader of so many bytes a call."""

    def send(data: memoryview) -> int:
        taken = data[:most]
        sent.extend(taken)
        return len(taken)

    return send


# --- the process
@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(WAIT_S)
        yield listener


@pytest.mark.slow
def test_a_front_passes_on_both_ways_and_ends_with_either_end() -> None:
    with listening() as node, open_delayed_fronts(1_000, [node.getsockname()[1], *free_ports(1)]) as fronts:
        with socket.create_connection((LOOPBACK, fronts[0]), WAIT_S) as near:
            far, _ = node.accept()
            with far:
                far.settimeout(WAIT_S)
                near.sendall(b"x" * 300_000)
                assert receive(far, 300_000) == b"x" * 300_000
                far.sendall(b"back")
                assert receive(near, 4) == b"back"
            assert near.recv(1) == b""
        with socket.create_connection((LOOPBACK, fronts[1]), WAIT_S) as nobody:
            assert nobody.recv(1) == b""
    with pytest.raises(OSError), socket.create_connection((LOOPBACK, fronts[0]), WAIT_S):
        pass


def receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += connection.recv(65_536)
    return bytes(data)
