"""The node's end of the socket pair: whole messages, silence, endings."""

import socket

import pytest
import trio
import trio.testing

from p2pmesh.adapters.llama.link import EngineLink

BIG = 4 << 20


@pytest.fixture
def pair() -> tuple[EngineLink, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return EngineLink(ours), theirs


async def _read_all(theirs: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        await trio.lowlevel.wait_readable(theirs.fileno())
        data += theirs.recv(1 << 20)
    return data


async def test_a_message_that_has_begun_is_finished_although_its_sender_is_cancelled(
    pair: tuple[EngineLink, socket.socket],
) -> None:
    link, theirs = pair
    with theirs:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_once_blocked, scope)
                nursery.start_soon(_expect, theirs, b"a" * BIG + b"after")
                await link.send(b"a" * BIG)
            await link.send(b"after")
    link.close()


async def _cancel_once_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def _expect(theirs: socket.socket, wanted: bytes) -> None:
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(10):
        assert await _read_all(theirs, len(wanted)) == wanted


async def test_messages_of_two_senders_do_not_mix(pair: tuple[EngineLink, socket.socket]) -> None:
    link, theirs = pair
    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.send, b"a" * BIG)
            nursery.start_soon(link.send, b"b" * BIG)
            data = await _read_all(theirs, 2 * BIG)
    assert data in (b"a" * BIG + b"b" * BIG, b"b" * BIG + b"a" * BIG)
    link.close()


async def test_the_end_of_the_other_side_is_empty_to_read_and_broken_to_send(
    pair: tuple[EngineLink, socket.socket],
) -> None:
    link, theirs = pair
    theirs.close()
    assert await link.receive() == b""
    with pytest.raises(trio.BrokenResourceError):
        await link.send(b"x")
    link.close()


async def test_closing_wakes_the_reader(pair: tuple[EngineLink, socket.socket]) -> None:
    link, theirs = pair
    with theirs, trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.receive)
            await trio.testing.wait_all_tasks_blocked()
            link.close()


async def test_silence_counts_only_while_the_reader_waits_in_vain(
    pair: tuple[EngineLink, socket.socket], autojump_clock: trio.testing.MockClock
) -> None:
    link, theirs = pair
    with theirs:
        assert link.silent_s() == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.receive)
            await trio.sleep(7)
            assert link.silent_s() == pytest.approx(7)
            theirs.send(b"beat")
            assert link.silent_s() == 0
    assert link.silent_s() == 0
    link.close()
