"""Rows of one machine's run go round together; elsewhere each goes at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.adapters.clock import TrioClock
from p2pmesh.base.errors import ErrorCode, LocalProtocolError, P2PMeshError, PeerUnavailable
from p2pmesh.core.step_group import FIRST_STEP_US
from p2pmesh.node.step_turns import StepTurns
from p2pmesh.wire.messages.runs import StageEntry
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame

HERE = ("/ip4/192.168.0.5/tcp/4001", "/ip4/127.0.0.1/tcp/4001")
BESIDE = ("/ip4/127.0.0.1/tcp/5001", "/ip4/192.168.0.5/tcp/5001")
ELSEWHERE = ("/ip4/192.168.0.6/tcp/4001", "/ip4/127.0.0.1/tcp/4001")


class Taker:
    """Stage 0 as the driver sees it."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.is_gone = False

    async def submit(self, frame: StageFrame) -> None:
        await self.submit_all((frame,))

    async def submit_all(self, frames: tuple[StageFrame, ...]) -> None:
        if self.is_gone:
            raise PeerUnavailable(ErrorCode.PEER_LOST, "gone")
        self.taken.append([frame.request_id[0] for frame in frames])

    def fail(self, error: P2PMeshError) -> None:
        raise AssertionError(error)


def row(number: int, kind: FrameKind = FrameKind.DECODE, flags: FrameFlag = FrameFlag.NONE) -> StageFrame:
    return StageFrame(kind, bytes([number]) * 16, bytes(16), 0, 1, (1,), flags=flags)


@asynccontextmanager
async def turns_of(*addresses: tuple[str, ...]) -> AsyncIterator[tuple[StepTurns, Taker]]:
    async with trio.open_nursery() as nursery:
        entries = [StageEntry(f"peer {index}", index, index + 1, each) for index, each in enumerate(addresses)]
        turns, taker = StepTurns(entries, TrioClock(), nursery), Taker()
        turns.attach(taker)
        yield turns, taker
        nursery.cancel_scope.cancel()


async def test_rows_wait_for_those_on_their_way_and_go_together(autojump_clock: MockClock) -> None:
    async with turns_of(HERE, BESIDE) as (turns, taker):
        for number in (1, 2, 3):
            await turns.submit(row(number))
        assert taker.taken == [[1]]
        await turns.submit(row(1))
        assert taker.taken == [[1], [2, 3, 1]]


async def test_what_is_no_step_passes_at_once(autojump_clock: MockClock) -> None:
    async with turns_of(HERE, BESIDE) as (turns, taker):
        await turns.submit(row(1))
        await turns.submit(row(2, FrameKind.PREFILL))
        await turns.submit(row(3, flags=FrameFlag.REPLAY))
        await turns.submit(row(4, FrameKind.END))
        assert taker.taken == [[1], [2], [3], [4]]


@pytest.mark.parametrize("addresses", [(HERE,), (HERE, ELSEWHERE), (HERE, BESIDE, ELSEWHERE), (HERE, ()), ((), ())])
async def test_machines_of_their_own_take_each_row_at_once(
    autojump_clock: MockClock, addresses: tuple[tuple[str, ...], ...]
) -> None:
    async with turns_of(*addresses) as (turns, taker):
        await turns.submit(row(1))
        await turns.submit(row(2))
        assert taker.taken == [[1], [2]]


async def test_whoever_does_not_come_back_is_waited_for_so_long(autojump_clock: MockClock) -> None:
    async with turns_of(HERE, BESIDE) as (turns, taker):
        await turns.submit(row(1))
        await turns.submit(row(2))
        began_s = trio.current_time()
        await trio.sleep(1)
        assert taker.taken == [[1], [2]]
        assert trio.current_time() - began_s < 2
        assert 2 * FIRST_STEP_US < 1_000_000


async def test_whoever_ends_is_waited_for_no_more(autojump_clock: MockClock) -> None:
    async with turns_of(HERE, BESIDE) as (turns, taker):
        await turns.submit(row(1))
        await turns.submit(row(2))
        turns.leave((bytes([1]) * 16, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert taker.taken == [[1], [2]]


async def test_no_task_stays_once_all_are_over_and_the_next_are_waited_for_again(autojump_clock: MockClock) -> None:
    async with turns_of(HERE, BESIDE) as (turns, taker):
        idle = trio.lowlevel.current_statistics().tasks_living
        for _ in range(3):
            taker.taken.clear()
            await turns.submit(row(1))
            await turns.submit(row(2))
            assert trio.lowlevel.current_statistics().tasks_living == idle + 1
            for number in (2, 1):
                turns.leave((bytes([number]) * 16, 0))
                await turns.submit(row(3))  # at once: the task that ends must not be taken for one that watches
                await turns.submit(row(4))
                await trio.sleep(1)
                turns.leave((bytes([3]) * 16, 0))
                turns.leave((bytes([4]) * 16, 0))
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(number for frames in taker.taken for number in frames) == [1, 3, 3, 4, 4]
            assert trio.lowlevel.current_statistics().tasks_living == idle


async def test_a_run_that_ended_meanwhile_breaks_nobody_else(autojump_clock: MockClock) -> None:
    async with turns_of(HERE, BESIDE) as (turns, taker):
        await turns.submit(row(1))
        await turns.submit(row(2))
        taker.is_gone = True
        await trio.sleep(1)
        assert taker.taken == [[1]]
        with pytest.raises(PeerUnavailable):
            await turns.submit(row(3, FrameKind.PREFILL))


async def test_a_driver_without_its_stage_says_so(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        turns = StepTurns((), TrioClock(), nursery)
        with pytest.raises(LocalProtocolError):
            await turns.submit(row(1))
