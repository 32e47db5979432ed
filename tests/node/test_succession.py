"""Runs that were taken over have what any run has, over fake engines: spares, better placements, no haste to leave."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode
from p2pmesh.node.on_demand import OnDemandOptions
from p2pmesh.node.run import RunEnding
from tests.fakes.mesh import Mesh, MeshNode, expected, open_mesh, read_tokens
from tests.fakes.models import FakeModelStore
from tests.node.test_moving import MODEL, SMALL_BYTES, WHOLE_BYTES, leaves

MINDED_S = 20.0
"""Until a successor has heard of all stages, and opened the file if it has one."""


@dataclass
class TakenOver:
    """A run of two small peers, whose coordinator is dead and whose first peer coordinates it now."""

    mesh: Mesh
    hub: MeshNode
    first: MeshNode
    second: MeshNode

    async def spare_joins(self, **given: Any) -> MeshNode:
        return await self.mesh.join("spare", self.hub, **({"memory_bytes": SMALL_BYTES} | given))

    async def next_peers(self, times: int = 1) -> list[str]:
        """Of the run that the successor has loaded."""
        ready = await self.first.wait_told("pipeline_ready", times)
        return [stage["peer_id"] for stage in ready["stages"]]

    async def ask(self) -> None:
        await self.hub.wait_routable()
        request = self.mesh.request()
        assert await self.hub.ask(request) == expected(request)


@asynccontextmanager
async def taken_over(*, has_file: bool, serves: bool = False, **serving: Any) -> AsyncIterator[TakenOver]:
    """``has_file``: the model is on the successor's disk; ``serves``: it was started with it, too, and stood by."""
    async with open_mesh() as mesh:
        hub = await mesh.found("hub", memory_bytes=0)
        with_file = {"store": FakeModelStore(MODEL)}
        coordinator = await mesh.join("coordinator", hub, memory_bytes=0, **with_file)
        await mesh.join("holder", hub, memory_bytes=0, **with_file)
        given = {"memory_bytes": SMALL_BYTES, "on_demand": OnDemandOptions(replan_after_s=20.0)}
        given |= with_file if has_file else {}
        peers = [await mesh.join(f"peer-{n}", hub, **given) for n in range(2)]
        mesh.serve(coordinator, MODEL)
        ready = await coordinator.wait_told("pipeline_ready")
        by_id = {node.peer: node for node in peers}
        first, second = (by_id[stage["peer_id"]] for stage in ready["stages"])
        if serves:
            mesh.serve(first, MODEL, replan_after_s=20.0, **serving)
            await first.wait_told("waiting_for_peers")
        await mesh.kill(coordinator)
        await first.wait_told("run_taken_over")
        await trio.sleep(MINDED_S)
        yield TakenOver(mesh, hub, first, second)


async def check_the_stage_of_a_peer_that_leaves_is_replaced(run: TakenOver) -> None:
    spare = await run.spare_joins()
    await run.hub.wait_routable()
    request = run.mesh.request(max_tokens=200)
    async with run.hub.node.generate(request) as events:
        assert await read_tokens(events, 3) == expected(request)[:3]
        run.first.engine.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaves, run.second)
            moved = await run.first.wait_told("replanned")
            run.first.engine.go_on()
            assert await read_tokens(events) == expected(request)[3:]
    assert moved["reason"] == "peer_leaves"
    assert await run.next_peers() == [run.first.peer, spare.peer]
    assert run.first.told("stage_failed") == []
    await run.ask()


async def test_a_peer_that_leaves_is_replaced_by_the_orders_of_the_run(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=False) as run:
        await check_the_stage_of_a_peer_that_leaves_is_replaced(run)


async def test_a_peer_that_leaves_is_replaced_with_the_models_file(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=True) as run:
        await check_the_stage_of_a_peer_that_leaves_is_replaced(run)


async def test_a_peer_that_leaves_is_replaced_by_who_stood_by_for_the_model(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=True, serves=True) as run:
        (placement,) = run.first.node.status()["placements"]
        assert placement["phase"] == "serving"
        assert placement["predicted_tpot_us"] > 0
        await check_the_stage_of_a_peer_that_leaves_is_replaced(run)


async def test_a_peer_that_leaves_does_not_wait_where_nobody_takes_over(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=False) as run:
        assert await leaves(run.second) < 1
        assert run.first.told("replanned") == []


async def test_a_run_is_not_moved_by_who_would_serve_it_otherwise(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=True, serves=True, context_tokens=1024) as run:
        await run.mesh.join("large", run.hub, memory_bytes=4 * WHOLE_BYTES)
        await trio.sleep(300)
        assert run.first.told("replanned") == []
        assert await leaves(run.second) < 1


async def test_spare_engines_are_ready_for_a_run_whose_successor_has_the_file(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=True) as run:
        spare = await run.spare_joins()
        await trio.sleep(60)
        (placement,) = run.first.node.status()["placements"]
        assert {standby["peer_id"] for standby in placement["standbys"]} == {spare.peer}
        assert run.first.told("placement") == []
        await run.mesh.kill(run.second)
        assert await run.next_peers() == [run.first.peer, spare.peer]
        assert len(spare.told("stage_ready")) == 1
        await run.ask()


async def test_a_run_that_was_taken_over_moves_to_a_better_placement(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=True) as run:
        large = await run.mesh.join("large", run.hub, memory_bytes=4 * WHOLE_BYTES)
        moved = await run.first.wait_told("replanned")
        assert moved["reason"] in ("fewer_peers", "faster")
        assert await run.next_peers() == [large.peer]
        await run.ask()
        await trio.sleep(600)
        assert len(run.first.told("replanned")) == 1
        assert len(run.first.told("pipeline_ready")) == 1


def tells_speed(node: MeshNode, bytes_per_s: int) -> None:
    """What peers hear of how fast its engines are."""
    board = node.node.overlay.board
    read_load = board.read_load
    board.read_load = lambda: replace(read_load(), decode_bytes_per_s=bytes_per_s)


SLOW, FAST = 10_000, 1_000_000


async def test_a_run_moves_to_a_faster_peer_by_its_orders(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=False) as run:
        tells_speed(run.second, SLOW)
        tells_speed(await run.spare_joins(memory_bytes=4 * WHOLE_BYTES), FAST)
        moved = await run.first.wait_told("replanned")
        assert moved["reason"] == "faster"
        assert run.second.peer not in await run.next_peers()
        await run.ask()


@pytest.mark.parametrize("has_file", [False, True])
async def test_nothing_is_ended_by_orders_before_what_follows_stands_ready(
    autojump_clock: MockClock, has_file: bool
) -> None:
    async with taken_over(has_file=has_file) as run:
        spare = await run.spare_joins()  # a spare engine for the larger stage leaves it no room for the other one
        tells_speed(run.second, SLOW)
        tells_speed(spare, FAST)
        await trio.sleep(400)
        assert bool(run.first.told("replanned")) is has_file
        await run.ask()


async def test_a_successor_that_leaves_gives_its_stage_and_the_run_away(autojump_clock: MockClock) -> None:
    for has_file in (False, True):
        async with taken_over(has_file=has_file) as run:
            spare = await run.spare_joins()
            await run.hub.wait_routable()
            assert await leaves(run.first) < 30
            assert sorted(await run.next_peers()) == sorted((run.second.peer, spare.peer))
            await run.mesh.kill(run.first)
            await run.ask()


async def test_who_loses_a_run_that_it_took_over_serves_its_model_no_more(autojump_clock: MockClock) -> None:
    async with taken_over(has_file=True) as run:
        node = run.first.node
        assert node.coordinators.on_demand.find(MODEL.digest) is not None
        assert [coordinator.is_minding_adopted for coordinator in node.coordinators.all()] == [True]
        (adopted,) = node.coordinators.successions.runs
        ending = RunEnding(ErrorCode.TERM_STALE, "2 of 2 peers have granted a later claim", None, True)
        adopted._end(ending, is_over=False)
        await run.first.wait_told("model_withdrawn")
        await trio.sleep(1)
        assert node.coordinators.all() == ()
        assert node.coordinators.on_demand.find(MODEL.digest) is None
        assert node.router.expected_reason("fake") is None
        await run.ask()
