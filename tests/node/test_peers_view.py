"""What a node tells of peers is a file of peers."""

import json
from dataclasses import replace

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from p2pmesh.app.peers_file import decode_peers
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import (
    MAX_ANNOUNCED_FILES,
    MAX_DECODE_BYTES_PER_S,
    MAX_EXCLUDED_MODELS,
    MAX_LAYERS,
    MAX_LINK_BYTES_PER_S,
    MAX_LINK_RTT_US,
    MAX_NAME_BYTES,
    MAX_PROFILE_SPEEDS,
)
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningModel, PlanRequest, ShapeBytes
from p2pmesh.node.peers_view import MAX_TOLD_PEERS, _describe, _describe_profile, _links, choose_told
from p2pmesh.wire.announcement import Announcement, HeldModel
from p2pmesh.wire.profile import Profile, SpeedEntry
from p2pmesh.wire.schema import is_line
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
        [coordinator] = founder.node.coordinators.all()
        assert coordinator.run is not None
        timed = replace(coordinator.run.predicted, overhead_us=DEFAULT_POLICY.step_overhead_us + 2 * 5_500)
        coordinator.run.settled(timed)
        told = await founder.node.peers()
        assert told["hop_overhead_ms"] == 3.5
        assert decode_peers(told, "the node").policy.hop_overhead_us == 3_500
        assert coordinator.run.planned.overhead_us == DEFAULT_POLICY.step_overhead_us + 2 * 3_500


def upto(most: int) -> st.SearchStrategy[int]:
    """What a field of so large an integer may hold: its ends above all."""
    return st.sampled_from([0, 1, most]) | st.integers(0, most)


def short(most_bytes: int) -> st.SearchStrategy[str]:
    texts = st.text(max_size=8) | st.sampled_from(["", "x" * most_bytes])
    return texts.filter(lambda text: is_line(text) and len(text.encode()) <= most_bytes)


RATES = upto(MAX_DECODE_BYTES_PER_S)
DIGESTS = st.sampled_from(["ab" * 32, "00" * 32])
ANNOUNCED = st.builds(
    lambda name, memory, free, files, rate, layers: Announcement(
        "peer", "0" * 32, name, "1", 1, 1, 0, (), memory, free, (), on_disk=files, decode_bytes_per_s=rate,
        max_layers=layers,
    ),
    short(MAX_NAME_BYTES), upto(2**53), upto(2**53),
    st.lists(st.builds(HeldModel, short(MAX_NAME_BYTES), DIGESTS), max_size=MAX_ANNOUNCED_FILES).map(tuple),
    RATES, upto(MAX_LAYERS),
)  # fmt: skip
PROFILES = st.builds(
    Profile,
    memory_bytes_per_s=RATES, up_bytes_per_s=RATES, down_bytes_per_s=RATES,
    speeds=st.lists(
        st.builds(SpeedEntry, short(64), upto(64), RATES, RATES), max_size=MAX_PROFILE_SPEEDS
    ).map(tuple),
    excluded_models=st.lists(short(MAX_NAME_BYTES), max_size=MAX_EXCLUDED_MODELS).map(tuple),
)  # fmt: skip
LINKS = st.builds(PairLink, upto(MAX_LINK_RTT_US), upto(MAX_LINK_BYTES_PER_S), st.booleans())


@given(ANNOUNCED, PROFILES, LINKS)
def test_whatever_a_peer_may_tell_of_itself_a_plan_can_be_made(
    said: Announcement, profile: Profile, link: PairLink
) -> None:
    ends = [PeerId("peer"), PeerId("other")]
    peer = _describe(said, 0) | _describe_profile(profile)
    other = _describe(replace(said, peer_id="other"), 1) | _describe_profile(None)
    told = {
        "coordinator": "peer",
        "peers": [peer, other],
        "links": _links(ends, LinkMatrix({(ends[0], ends[1]): link})),
    }
    known = decode_peers(json.loads(json.dumps(told)), "the node")
    assert known.peers[0].offered_bytes == min(said.free_bytes, said.memory_bytes)
    assert known.links.between(*ends) == link
    assert [(one.architecture, one.prefill_bytes_per_s) for one in known.speeds[PeerId("peer")]] == [
        (one.architecture, one.prefill_bytes_per_s) for one in profile.speeds if one.decode_bytes_per_s
    ]
