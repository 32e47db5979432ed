"""Clients that go at any moment: no lane, no place in the queue, no row and no task stays behind."""

import random

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.base.limits import DEFAULT_LANES
from p2pmesh.wire.stage import FrameKind
from tests.fakes.mesh import Mesh, MeshNode, open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()
MOMENTS = 50
MOST_CHECKPOINTS = 400
"""A generation of a few tokens over three stages has ended by then."""
IDLE_S = 5.0


async def chain_of_three(mesh: Mesh) -> list[MeshNode]:
    driver = await mesh.found("driver", store=FakeModelStore(MODEL))
    others = [await mesh.join(f"peer-{n}", driver) for n in range(2)]
    mesh.serve(driver, MODEL, stage_count=3)
    ready = await driver.wait_told("pipeline_ready")
    nodes = {node.peer: node for node in (driver, *others)}
    chain = [nodes[stage["peer_id"]] for stage in ready["stages"]]
    for node in chain:
        await node.wait_routable()
    return chain


async def generate_for(node: MeshNode, mesh: Mesh, text: str, checkpoints: int) -> None:
    """A request whose client goes after so many turns of the scheduler."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.ask, mesh.request(text, max_tokens=100_000))
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def wait_idle(nodes: list[MeshNode]) -> None:
    with trio.fail_after(IDLE_S):
        for node in nodes:
            await node.node.drivers.wait_idle()
            await node.node.table.wait_idle()
    await trio.testing.wait_all_tasks_blocked()


def left_behind(nodes: list[MeshNode]) -> dict[str, int]:
    drivers = [driver for node in nodes for driver in node.node.drivers.all()]
    return {
        "lanes": sum(driver.lanes.taken for driver in drivers),
        "places": sum(driver.lanes.waiting for driver in drivers),
        "requests": sum(driver.open_requests for driver in drivers),
        "sequences": sum(run.open_sequences for node in nodes for run in node.node.table.runs()),
        "rows": sum(node.engine.open_sequences for node in nodes),
    }


@pytest.mark.parametrize("ingress", [0, 1])
async def test_clients_that_go_at_any_moment_leave_nothing_behind(autojump_clock: MockClock, ingress: int) -> None:
    moments = random.Random(39 + ingress)
    async with open_mesh() as mesh:
        nodes = await chain_of_three(mesh)
        await generate_for(nodes[ingress], mesh, "hi", 50)
        await wait_idle(nodes)
        tasks = trio.lowlevel.current_statistics().tasks_living
        for _ in range(MOMENTS // 2):
            async with trio.open_nursery() as clients:
                for _ in range(moments.choice((1, 2, DEFAULT_LANES + 2))):
                    text = "x" * moments.choice((2, 2000))
                    clients.start_soon(generate_for, nodes[ingress], mesh, text, moments.randrange(MOST_CHECKPOINTS))
            await wait_idle(nodes)
            assert set(left_behind(nodes).values()) == {0}, left_behind(nodes)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert nodes[2].engine.count(FrameKind.CANCEL) >= MOMENTS // 5  # many went while their answers were on the way
