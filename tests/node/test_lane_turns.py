"""Requests that wait for a lane: granted in turn, refused in time, forgotten when they give up."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.core.lane_queue import Claimant, LaneQueuePolicy
from p2pmesh.node.lane_turns import LaneTurns
from tests.fakes.mesh import MockedClock

A, B = Claimant("", b"a"), Claimant("", b"b")


def turns(lanes: int = 1, max_waiting: int = 2) -> LaneTurns:
    return LaneTurns(LaneQueuePolicy(lanes, max_waiting, 10_000_000), MockedClock())


async def test_clients_take_turns(autojump_clock: MockClock) -> None:
    lanes, order = turns(max_waiting=9), []

    async def ask(name: str, claimant: Claimant) -> None:
        ticket = await lanes.take(claimant)
        order.append(name)
        await trio.sleep(1)
        lanes.give_back(ticket)

    async with trio.open_nursery() as nursery:
        for name, claimant in (("a1", A), ("a2", A), ("a3", A), ("b1", B)):
            nursery.start_soon(ask, name, claimant)
            await trio.testing.wait_all_tasks_blocked()
        assert (lanes.taken, lanes.waiting) == (1, 3)
    assert order == ["a1", "a2", "b1", "a3"]
    assert (lanes.taken, lanes.waiting) == (0, 0)


async def test_a_wait_has_an_end(autojump_clock: MockClock) -> None:
    lanes = turns()
    await lanes.take(A)
    begin = trio.current_time()
    with pytest.raises(Refused, match="no lane came free in 10 s") as raised:
        await lanes.take(A)
    assert raised.value.code is ErrorCode.OVERLOADED
    assert raised.value.retry_after_s == 10  # the lane is held for so long, and nobody else waits
    assert trio.current_time() - begin == pytest.approx(10, abs=0.1)
    assert (lanes.taken, lanes.waiting) == (1, 0)


async def test_a_full_queue_refuses_at_once_and_makes_room_for_another_client(autojump_clock: MockClock) -> None:
    lanes = turns()
    refused: list[Refused] = []

    async def ask(claimant: Claimant) -> None:
        try:
            lanes.give_back(await lanes.take(claimant))
        except Refused as refusal:
            refused.append(refusal)

    held = await lanes.take(A)
    async with trio.open_nursery() as nursery:
        for claimant in (A, A):
            nursery.start_soon(ask, claimant)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Refused, match="2 requests wait"):
            await lanes.take(A)
        assert not refused
        nursery.start_soon(ask, B)
        await trio.testing.wait_all_tasks_blocked()
        assert len(refused) == 1
        lanes.give_back(held)
    assert (lanes.taken, lanes.waiting, len(refused)) == (0, 0, 1)


async def test_who_gives_up_leaves_neither_a_place_nor_a_lane(autojump_clock: MockClock) -> None:
    lanes = turns()
    held = await lanes.take(A)
    with trio.move_on_after(1):
        await lanes.take(B)
    assert lanes.waiting == 0
    lanes.give_back(held)
    with trio.CancelScope() as scope:
        scope.cancel()
        await lanes.take(B)
    assert lanes.taken == int(not scope.cancelled_caught)
