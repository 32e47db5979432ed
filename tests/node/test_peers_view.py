"""What a node tells of peers is a file of peers."""

import json
from dataclasses import replace

import trio
from trio.testing import MockClock

from p2pmesh.app.peers_file import decode_peers
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningModel, PlanRequest, ShapeBytes
from p2pmesh.node.peers_view import MAX_TOLD_PEERS, choose_told
from tests.fakes.engine import DECODE_US
from tests.fakes.mesh import open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()


async def test_of_a_large_overlay_the_peers_are_told_that_a_plan_would_take_first(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        own = (await mesh.found("founder")).node.overlay.board.own()
        others = [replace(own, peer_id=f"peer-{n}", free_bytes=n, is_busy=n >= 900) for n in range(1000)]
        told = choose_told(others, lambda one: int(one.free_bytes % 2))
        sizes = [one.free_bytes for one in told]
        assert sizes == list(range(390, 900, 2))
        assert len(told) == MAX_TOLD_PEERS - 1


async def test_a_plan_can_be_made_from_what_a_running_node_tells(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL))
        joiner = await mesh.join("joiner", founder)
        mesh.serve(founder, MODEL, stage_count=2)
        ready = await founder.wait_told("pipeline_ready")
        [placement] = founder.node.status()["placements"]
        assert placement["predicted_tpot_us"] == ready["predicted_tpot_us"]
        assert ready["predicted_tpot_us"] >= 2 * DECODE_US
        await trio.sleep(60)  # until the speed was announced
        told = await founder.node.peers()
        known = decode_peers(json.loads(json.dumps(told)), "the node")
        assert known.coordinator == founder.peer
        assert [peer.peer_id for peer in known.peers] == [founder.peer, joiner.peer]
        assert known.labels[joiner.peer] == "joiner"
        assert [peer.has_model for peer in known.having(MODEL, 0)] == [True, False]
        assert [peer.decode_bytes_per_s > 0 for peer in known.peers] == [True, True]
        assert known.policy == DEFAULT_POLICY
        free = [peer.free_bytes for peer in known.peers]
        assert free[0] == founder.node.stages.free_bytes
        model = PlanningModel((ShapeBytes((min(free) // 3,) * 4),), (1, 2, 3))
        assert isinstance(
            plan_placement(PlanRequest(model, known.peers, known.coordinator, None, known.links)), Placement
        )


async def test_a_plan_counts_what_hops_of_the_nodes_own_runs_took(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL))
        await mesh.join("joiner", founder)
        mesh.serve(founder, MODEL, stage_count=2)
        await founder.wait_told("pipeline_ready")
        await trio.sleep(60)  # until links were announced
        [coordinator] = founder.node.coordinators
        assert coordinator.run is not None
        timed = replace(coordinator.run.predicted, overhead_us=DEFAULT_POLICY.step_overhead_us + 2 * 5_500)
        coordinator.run.settled(timed)
        told = await founder.node.peers()
        assert told["hop_overhead_ms"] == 3.5
        assert decode_peers(told, "the node").policy.hop_overhead_us == 3_500
        assert coordinator.run.planned.overhead_us == DEFAULT_POLICY.step_overhead_us + 2 * 3_500
