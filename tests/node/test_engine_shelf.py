"""Engines that are lent, kept and let go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import EngineError, ErrorCode, Refused
from p2pmesh.base.ids import LayerRange
from p2pmesh.node.engine_shelf import KEPT_S, MAX_WAITING, EngineShelf
from p2pmesh.ports.engine import EngineSpec
from p2pmesh.wire.stage import WireDtype
from tests.fakes.engine import FakeLauncher


def spec(start: int = 0, end: int = 2) -> EngineSpec:
    return EngineSpec("/stage.gguf", "d" * 64, LayerRange(start, end), 8, 512, 4, WireDtype.F32)


class Room:
    """Memory for engines that wait."""

    def __init__(self) -> None:
        self.free_bytes = 1000
        self.launcher = FakeLauncher()
        self.shelf = EngineShelf(self.launcher, lambda: self.free_bytes)


@asynccontextmanager
async def open_room() -> AsyncIterator[Room]:
    room = Room()
    async with trio.open_nursery() as nursery:
        await nursery.start(room.shelf.run)
        yield room
        nursery.cancel_scope.cancel()


async def test_an_engine_is_kept_for_a_stage_like_its_last_one_and_for_no_other(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        async with room.shelf.borrow(spec(), 100) as first:
            assert room.shelf.waiting_bytes == 0
        assert room.shelf.waiting_bytes == 100
        assert room.shelf.has(spec())
        assert not room.shelf.has(spec(2, 4))
        async with room.shelf.borrow(spec(2, 4), 100) as other, room.shelf.borrow(spec(), 100) as again:
            assert again is first
            assert other is not first
            assert room.shelf.waiting_bytes == 0


async def test_two_stages_alike_have_an_engine_each(autojump_clock: MockClock) -> None:
    async with open_room() as room, room.shelf.borrow(spec(), 100) as one, room.shelf.borrow(spec(), 100) as two:
        assert one is not two


async def test_nobody_waits_for_ever(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        async with room.shelf.borrow(spec(), 100):
            pass
        await trio.sleep(KEPT_S - 1)
        assert len(room.launcher.engines) == 1
        await trio.sleep(2)
        assert room.launcher.engines == []
        assert room.shelf.waiting_bytes == 0


async def test_an_engine_that_broke_is_not_kept(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        with pytest.raises(EngineError):
            async with room.shelf.borrow(spec(), 100):
                raise EngineError(ErrorCode.ENGINE_CRASHED, "SIGSEGV")
        assert room.launcher.engines == []
        assert not room.shelf.has(spec())


async def test_an_engine_that_dies_while_it_waits_is_forgotten(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        async with room.shelf.borrow(spec(), 100):
            pass
        room.launcher.engines[0].kill()
        await trio.testing.wait_all_tasks_blocked()
        assert room.launcher.engines == []
        async with room.shelf.borrow(spec(), 100) as fresh:
            assert fresh is room.launcher.engines[0]


async def test_whoever_was_cancelled_leaves_its_engine_to_others(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        with trio.move_on_after(1):
            async with room.shelf.borrow(spec(), 100):
                await trio.sleep_forever()
        assert room.shelf.has(spec())


async def test_a_load_that_is_cancelled_or_fails_leaves_nothing(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with room.shelf.borrow(spec(), 100):
                raise AssertionError("not reached")
        await trio.testing.wait_all_tasks_blocked()
        assert room.launcher.engines == []
        room.launcher.failure = EngineError(ErrorCode.ENGINE_LOAD_FAILED, "no such file")
        with pytest.raises(EngineError, match="no such file"):
            async with room.shelf.borrow(spec(), 100):
                raise AssertionError("not reached")


async def test_room_is_made_by_those_that_have_waited_longest(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        for start in (0, 2, 4):
            async with room.shelf.borrow(spec(start, start + 2), 300):
                pass
        await room.shelf.make_room(100)
        assert room.shelf.waiting_bytes == 900
        await room.shelf.make_room(101)
        assert [room.shelf.has(spec(start, start + 2)) for start in (0, 2, 4)] == [False, True, True]
        room.free_bytes = 0
        await room.shelf.make_room(0)
        assert room.launcher.engines == []


async def test_not_more_wait_than_there_are_places(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        for start in range(MAX_WAITING + 3):
            async with room.shelf.borrow(spec(start, start + 1), 1):
                pass
        assert len(room.launcher.engines) == MAX_WAITING


async def test_a_spare_engine_waits_until_a_stage_takes_it_up(autojump_clock: MockClock) -> None:
    async with open_room() as room, trio.open_nursery() as nursery:
        is_ready, has_ended = trio.Event(), trio.Event()

        async def ready() -> None:
            is_ready.set()

        async def keep() -> None:
            await room.shelf.keep_ready(spec(), 100, ready)
            has_ended.set()

        nursery.start_soon(keep)
        await is_ready.wait()
        await trio.sleep(100 * KEPT_S)
        (engine,) = room.launcher.engines
        async with room.shelf.borrow(spec(), 100) as taken:
            assert taken is engine
            await has_ended.wait()


async def test_a_spare_engine_goes_with_whoever_asked_for_it(autojump_clock: MockClock) -> None:
    async def ready() -> None:
        await trio.lowlevel.checkpoint()

    async with open_room() as room:
        with trio.move_on_after(5), suppress(trio.Cancelled):
            await room.shelf.keep_ready(spec(), 100, ready)
        await trio.testing.wait_all_tasks_blocked()
        assert room.launcher.engines == []


async def test_an_engine_whose_taker_is_cancelled_is_nobodys_no_longer(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        async with room.shelf.borrow(spec(), 100):
            pass
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with room.shelf.borrow(spec(), 100):
                raise AssertionError("not reached")
        await trio.testing.wait_all_tasks_blocked()
        assert room.launcher.engines == []


async def test_whoever_makes_room_never_waits_for_a_stage_that_was_quicker(autojump_clock: MockClock) -> None:
    async with open_room() as room:
        room.free_bytes = 0

        async def make_room() -> None:
            with trio.fail_after(10):
                await room.shelf.make_room(0)

        async def use() -> None:
            async with room.shelf.borrow(spec(), 100):
                await trio.sleep(20)

        for _ in range(12):  # which of the two comes first is trio's
            async with room.shelf.borrow(spec(), 100):
                pass
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make_room)
                nursery.start_soon(use)


async def test_spare_engines_count_while_they_load(autojump_clock: MockClock) -> None:
    async with open_room() as room, trio.open_nursery() as nursery:
        room.free_bytes = 150
        refused: list[str] = []

        async def ready() -> None:
            await trio.lowlevel.checkpoint()

        async def keep(start: int) -> None:
            try:
                await room.shelf.keep_ready(spec(start, start + 2), 100, ready)
            except Refused as refusal:
                refused.append(refusal.message)

        nursery.start_soon(keep, 0)
        nursery.start_soon(keep, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert refused == ["there is no room for a spare engine here"]
        assert len(room.launcher.engines) == 1
        assert room.shelf.waiting_bytes == 100
        nursery.cancel_scope.cancel()


async def test_a_spare_engine_goes_if_its_room_was_reserved_while_it_loaded(autojump_clock: MockClock) -> None:
    room = Room()
    rooms = iter((150, 50))
    room.shelf = EngineShelf(room.launcher, lambda: next(rooms))
    async with trio.open_nursery() as nursery:
        await nursery.start(room.shelf.run)
        with pytest.raises(Refused, match="no room"), trio.fail_after(10):
            await room.shelf.keep_ready(spec(), 100, trio.lowlevel.checkpoint)
        assert room.launcher.engines == []
        assert room.shelf.waiting_bytes == 0
        nursery.cancel_scope.cancel()
