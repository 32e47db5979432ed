"""A coordinator that holds no stage is killed: nothing of what it placed depends on it."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY
from tests.e2e.peers import (
    Event,
    NodeProcess,
    Peers,
    assert_a_stream_outlives,
    next_tokens,
    tokens_in,
    tokens_of,
)

PROMPT = "hello"
LONG = 500
TAKEN_OVER_S = 60.0


def placed(peers: Peers, model: Path) -> tuple[NodeProcess, list[NodeProcess], Event]:
    """A hub, a coordinator without memory, and the peers of its two stages in order."""
    hub = peers.found("hub", "--max-memory", "0")
    coordinator = peers.join("coordinator", hub.invite, "--model", str(model), "--split", "2", "--max-memory", "0")
    nodes = [peers.join(f"peer-{n}", hub.invite, "--max-memory", "1GiB") for n in range(2)]
    ready = coordinator.wait_for("pipeline_ready")
    by_id = {node.peer_id: node for node in nodes}
    stages = [by_id[stage["peer_id"]] for stage in ready["stages"]]
    stages[0].wait_for("ready")
    return coordinator, stages, ready


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_answers_go_on_without_their_coordinator_and_a_peer_takes_over(
    peers: Peers, tiny_model: Path, number: signal.Signals
) -> None:
    coordinator, (first, second), ready = placed(peers, tiny_model)
    undisturbed = first.complete(TINY, PROMPT, max_tokens=LONG, temperature=0)
    with first.stream(TINY, PROMPT, max_tokens=LONG, temperature=0) as chunks:
        seen = next_tokens(chunks, 5)
        coordinator.send_signal(number)
        coordinator.wait_ended()
        assert len(seen + tokens_in(chunks)) == len(tokens_of(undisturbed))
    taken = first.wait_for("run_taken_over", timeout_s=TAKEN_OVER_S)
    assert (taken["run_id"], taken["from"], taken["term"]) == (ready["run_id"], coordinator.peer_id, 2)
    assert len(tokens_of(first.complete(TINY, PROMPT, max_tokens=8, temperature=0))) == 8
    assert not first.find("model_withdrawn")
    if number is signal.SIGKILL:  # nobody here has the model's file
        (engine,) = second.children()
        os.kill(engine, signal.SIGKILL)
        again = first.wait_for("pipeline_ready")
        assert [stage["peer_id"] for stage in again["stages"]] == [stage["peer_id"] for stage in ready["stages"]]
        assert first.complete(TINY, PROMPT, max_tokens=LONG, temperature=0)["choices"] == undisturbed["choices"]


@pytest.mark.slow
def test_a_peer_of_a_run_that_was_taken_over_leaves_and_no_byte_of_a_stream_changes(
    peers: Peers, tiny_model: Path
) -> None:
    coordinator, (first, second), _ = placed(peers, tiny_model)
    request = {"model": TINY, "prompt": PROMPT, "max_tokens": LONG, "temperature": 0}
    undisturbed = first.complete(**request)
    coordinator.send_signal(signal.SIGTERM)  # at once another's, and nobody here has the model's file
    coordinator.wait_ended()
    first.wait_for("run_taken_over", timeout_s=TAKEN_OVER_S)
    spare = peers.join("spare", first.invite, "--max-memory", "1GiB")
    spare.wait_for("ready")
    assert_a_stream_outlives(second, spare, first, undisturbed, **request)
