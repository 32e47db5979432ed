"""A machine under trio: in which order events reach it. Its deadlines: ``tests/sim/test_runner_contract``."""

import pytest
import trio
import trio.testing

from p2pmesh.adapters.clock import TrioClock
from p2pmesh.base.quantities import Micros
from p2pmesh.node.runner import MachineRunner


class Echo:
    """Gives each event back."""

    def handle(self, event: str, now: Micros) -> tuple[str, ...]:
        return (event,)

    def deadline(self) -> Micros | None:
        return None


def runner_of(done: list[str], capacity: int = 4) -> MachineRunner[str, str]:
    async def perform(effect: str) -> None:
        done.append(effect)

    return MachineRunner(Echo(), TrioClock(), perform, "deadline", capacity)


async def test_an_event_is_handled_at_once_where_none_is_before_it() -> None:
    done: list[str] = []
    runner = runner_of(done)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        await trio.testing.wait_all_tasks_blocked()
        await runner.handle_here("token")
        assert done == ["token"]
        nursery.cancel_scope.cancel()


async def test_an_event_waits_for_those_that_were_posted_before_it() -> None:
    done: list[str] = []
    runner = runner_of(done)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        await trio.testing.wait_all_tasks_blocked()
        runner.post("credit")  # on its way to the task that runs the machine, which has not had its turn
        await runner.handle_here("token")
        assert done == []
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["credit", "token"]
        await runner.handle_here("next")
        assert done[-1] == "next"
        nursery.cancel_scope.cancel()


async def test_an_event_that_never_found_room_is_not_waited_for() -> None:
    done: list[str] = []
    runner = runner_of(done, capacity=1)
    runner.post("first")
    with pytest.raises(trio.WouldBlock):
        runner.post("flood")
    with trio.move_on_after(0):
        await runner.put("given up")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        await trio.testing.wait_all_tasks_blocked()
        await runner.handle_here("second")
        assert done == ["first", "second"]
        nursery.cancel_scope.cancel()
