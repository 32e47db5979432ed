"""What dies costs what depends on it, says why, and comes back; what is told to stop finishes what it has begun."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import TINY
from tests.e2e.peers import Event, NodeProcess, Peers, next_tokens, tokens_of

PROMPT = "hello"
LONG = 3_500
"""Tokens of an answer that is not over when something is made to die."""
BACK_S = 120.0


def pipeline(peers: Peers, model: Path, joiners: int) -> tuple[NodeProcess, list[NodeProcess], Event]:
    """A driver with two stages and some joiners, one of which holds the second."""
    driver = peers.found("driver", "--model", str(model), "--split", "2")
    others = [peers.join(f"joiner-{n}", driver.invite, "--max-memory", "1GiB") for n in range(joiners)]
    ready = driver.wait_for("pipeline_ready")
    return driver, others, ready


def holder_of(ready: Event, index: int, nodes: list[NodeProcess]) -> NodeProcess:
    """The node that holds a stage."""
    return next(node for node in nodes if node.peer_id == ready["stages"][index]["peer_id"])


def assert_serves_again(driver: NodeProcess, after: int) -> Event:
    ready = driver.wait_for("pipeline_ready", after=after, timeout_s=BACK_S)
    assert len(tokens_of(driver.complete(TINY, PROMPT, max_tokens=8, temperature=0))) == 8
    return ready


def test_a_model_waits_for_a_peer_and_comes_back_with_it(peers: Peers, tiny_model: Path) -> None:
    driver, (joiner,), ready = pipeline(peers, tiny_model, joiners=1)
    after = driver.mark()
    joiner.kill()
    driver.wait_for("waiting_for_peers", after=after)
    driver.wait_for("not_routable", after=after)
    with ThreadPoolExecutor(1) as pool, driver.client() as client:
        unknown = client.post("/v1/completions", json={"model": "nobodys", "prompt": PROMPT})
        waits = pool.submit(driver.complete, TINY, PROMPT, max_tokens=8, temperature=0)
        peers.join("another", driver.invite, "--max-memory", "1GiB")
        again = assert_serves_again(driver, after)
        assert len(tokens_of(waits.result(BACK_S))) == 8
    assert unknown.status_code == 503  # while no model is in view nobody can tell
    assert again["run_id"] != ready["run_id"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_is_told_to_stop_finishes_what_it_has_begun(
    peers: Peers, tiny_model: Path, number: signal.Signals
) -> None:
    driver, _, _ = pipeline(peers, tiny_model, joiners=1)
    with driver.stream(TINY, PROMPT, max_tokens=100, temperature=0) as chunks:
        next_tokens(chunks, 5)
        driver.send_signal(number)
        told = list(chunks)
    assert told[-1]["choices"][0]["finish_reason"] == "length"
    assert driver.wait_ended() == 0
    assert driver.find("stopped")
    assert not (driver.home / "run.json").exists()


def test_a_stage_that_is_told_to_stop_finishes_what_it_has_begun(peers: Peers, tiny_model: Path) -> None:
    driver, (joiner,), _ = pipeline(peers, tiny_model, joiners=1)
    with driver.stream(TINY, PROMPT, max_tokens=100, temperature=0) as chunks:
        next_tokens(chunks, 5)
        joiner.send_signal(signal.SIGTERM)
        told = list(chunks)
    assert told[-1].get("choices", [{}])[0].get("finish_reason") == "length", told[-1]
    assert joiner.wait_ended() == 0


def test_a_second_signal_ends_a_drain_at_once(peers: Peers, tiny_model: Path) -> None:
    driver, _, _ = pipeline(peers, tiny_model, joiners=1)
    with driver.stream(TINY, PROMPT, max_tokens=LONG, temperature=0) as chunks:
        next_tokens(chunks, 5)
        driver.send_signal(signal.SIGINT)
        driver.wait_for("stopping")
        driver.send_signal(signal.SIGINT)
        assert driver.wait_ended() == 130


def test_a_node_that_is_killed_leaves_no_engine(peers: Peers, tiny_model: Path) -> None:
    node = peers.found("node", "--model", str(tiny_model))
    node.wait_for("pipeline_ready")
    assert len(node.children()) == 1
    with node.stream(TINY, PROMPT, max_tokens=LONG, temperature=0) as chunks:
        next_tokens(chunks, 5)
        node.kill()
        with pytest.raises(httpx.TransportError):
            list(chunks)
