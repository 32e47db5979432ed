"""A peer joins that can hold alone what two hold: the run moves there, and a stream that is under way is not cut."""

from pathlib import Path

import pytest

from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import DEFAULT_LANES
from p2pmesh.core.planning.bytes import planning_model
from p2pmesh.model.gguf import read_index
from tests.e2e.conftest import TINY
from tests.e2e.peers import Peers, assert_a_stream_outlives, next_tokens, tokens_in, tokens_of
from tests.fakes.memory_source import MemorySource

PROMPT = "hello"
LONG = 400
CONTEXT = 8192


def test_a_run_moves_to_a_larger_peer_and_no_stream_is_cut(peers: Peers, small_bytes: str, tiny_model: Path) -> None:
    coordinator = peers.found(
        "coordinator",
        "--model",
        str(tiny_model),
        "--max-memory",
        "0",
        "--replan-after",
        "2",
        "--ctx-size",
        str(CONTEXT),
    )
    for number in range(2):
        peers.join(f"small-{number}", coordinator.invite, "--max-memory", small_bytes)
    before = coordinator.wait_for("pipeline_ready")
    assert len(before["stages"]) == 2
    undisturbed = coordinator.complete(TINY, PROMPT, max_tokens=LONG, temperature=0)
    with coordinator.stream(TINY, PROMPT, max_tokens=LONG, temperature=0) as chunks:
        seen = next_tokens(chunks, 5)
        large = peers.join("large", coordinator.invite, "--max-memory", "1GiB")
        assert len(seen + tokens_in(chunks)) == len(tokens_of(undisturbed))
    moved = coordinator.wait_for("replanned")
    assert moved["run_id"] == before["run_id"]
    assert [stage["peer_id"] for stage in moved["stages"]] == [large.peer_id]
    large.wait_for("ready")
    after = coordinator.complete(TINY, PROMPT, max_tokens=LONG, temperature=0)
    assert after["choices"] == undisturbed["choices"]


@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_peer_that_leaves_hands_its_stage_over_and_no_byte_of_a_stream_changes(
    peers: Peers, tiny_model: Path, stage: int
) -> None:
    hub = peers.found("hub", "--model", str(tiny_model), "--split", "2", "--max-memory", "0")
    holders = {
        node.peer_id: node for node in (peers.join(f"peer-{n}", hub.invite, "--max-memory", "1GiB") for n in "ab")
    }
    leaver = holders[hub.wait_for("pipeline_ready")["stages"][stage]["peer_id"]]
    request = {"model": TINY, "prompt": PROMPT, "max_tokens": LONG, "temperature": 0}
    undisturbed = hub.complete(**request)
    spare = peers.join("spare", hub.invite, "--max-memory", "1GiB")
    assert_a_stream_outlives(leaver, spare, hub, undisturbed, **request)


@pytest.fixture
def small_bytes(tiny_model: Path) -> str:
    """Memory of a peer that has, with head room, not enough for all of the model, but for half of it."""
    index = read_index(MemorySource(tiny_model.read_bytes()))
    shape = planning_model(index, [(CONTEXT, DEFAULT_LANES)]).least
    return str(shape.bytes_of(LayerRange(0, index.layer_count)))
