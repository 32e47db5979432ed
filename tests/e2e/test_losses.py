"""Who dies or leaves: its ingress, a stage without a like one, a stage without any; what their clients are told."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import TINY
from tests.e2e.peers import NodeProcess, Peers, next_tokens, tokens_in, tokens_of, wait_until

PROMPT = "The seven seas are wide and deep and cold. " * 8
LONG = 3_000
FREED_S = 5.0
"""A step takes milliseconds; the machine may be busy."""
STALL_S = 100.0
"""Above the minute that a stall may last."""


class Chain:
    """A coordinator without memory that is the ingress, and the peers of its two stages in order."""

    def __init__(self, peers: Peers, model: Path) -> None:
        self.peers = peers
        self.ingress = peers.found("coordinator", "--model", str(model), "--split", "2", "--max-memory", "0")
        self.nodes = [self.join(f"peer-{number}") for number in range(2)]
        self.ready = self.ingress.wait_for("pipeline_ready")
        self.ingress.wait_for("ready")

    def join(self, name: str, *arguments: str) -> NodeProcess:
        return self.peers.join(name, self.ingress.invite, "--max-memory", "1GiB", *arguments)

    def stages(self) -> list[NodeProcess]:
        by_id = {node.peer_id: node for node in self.nodes}
        return [by_id[stage["peer_id"]] for stage in self.ready["stages"]]

    def open_sequences(self) -> list[int]:
        return [stage["open_sequences"] for node in self.stages() for stage in node.status()["stages"]]


def read_until(lines: Iterator[str], tokens: int) -> int:
    """Reads that many events of a stream, or all."""
    seen = 0
    while seen < tokens:
        seen += next(lines).startswith("data: {")
    return seen


def body(**more: Any) -> dict[str, Any]:
    return {"model": TINY, "prompt": PROMPT, "temperature": 0, "return_token_ids": True, **more}


def test_a_killed_ingress_frees_every_stage_behind_it(peers: Peers, tiny_model: Path) -> None:
    chain = Chain(peers, tiny_model)
    other = peers.join("ingress", chain.ingress.invite, "--max-memory", "0")
    other.wait_for("ready")
    with (
        other.client() as client,
        client.stream("POST", "/v1/completions", json=body(max_tokens=LONG, stream=True)) as got,
    ):
        lines = got.iter_lines()
        read_until(lines, 5)
        assert chain.open_sequences() == [1, 1]
        other.kill()
        with pytest.raises(httpx.TransportError):
            list(lines)
    assert wait_until(lambda: chain.open_sequences() == [0, 0], FREED_S), chain.open_sequences()
    assert len(tokens_of(chain.ingress.complete(TINY, PROMPT, max_tokens=8, temperature=0))) == 8
    assert not chain.ingress.find("model_withdrawn")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="another number of threads needs a second CPU")
def test_an_engine_that_computes_otherwise_goes_on_and_the_client_is_told(peers: Peers, tiny_model: Path) -> None:
    chain = Chain(peers, tiny_model)
    spare = chain.join("spare")
    os.sched_setaffinity(spare.process.pid, {min(os.sched_getaffinity(0))})
    mark = chain.ingress.mark()
    with chain.ingress.client() as client:
        with client.stream("POST", "/v1/completions", json=body(max_tokens=400, stream=True)) as got:
            lines = got.iter_lines()
            read_until(lines, 20)
            chain.stages()[1].kill()
            rest = list(lines)
        again = client.post("/v1/completions", json=body(max_tokens=8))
    assert ": x-p2pmesh-recovery: inexact" in rest
    assert "data: [DONE]" in rest
    told = chain.ingress.wait_for("request_recovered", after=mark)
    assert told["is_exact"] is False
    assert len(tokens_of(again.json())) == 8


def test_a_stage_that_leaves_in_the_middle_of_an_answer_is_followed_by_another(peers: Peers, tiny_model: Path) -> None:
    chain = Chain(peers, tiny_model)
    undisturbed = tokens_of(chain.ingress.complete(TINY, PROMPT, max_tokens=1000, temperature=0))
    chain.join("spare").wait_for("ready")
    leaver = chain.stages()[0]
    with chain.ingress.stream(TINY, PROMPT, max_tokens=1000, temperature=0) as chunks:
        told = next_tokens(chunks, 5)
        leaver.send_signal(signal.SIGTERM)
        told += tokens_in(chunks)
    assert told == undisturbed
    assert leaver.wait_ended() == 0


@pytest.mark.slow
def test_without_a_placement_nobody_gets_half_an_answer(peers: Peers, tiny_model: Path) -> None:
    """A stream ends with an error event, a whole answer is an HTTP error, both within the deadline of a stall."""
    chain = Chain(peers, tiny_model)
    with ThreadPoolExecutor(1) as pool, chain.ingress.client(STALL_S) as client:
        whole = pool.submit(client.post, "/v1/completions", json=body(max_tokens=LONG))
        with client.stream("POST", "/v1/completions", json=body(max_tokens=LONG, stream=True)) as got:
            lines = got.iter_lines()
            read_until(lines, 5)
            chain.stages()[1].kill()
            rest = list(lines)
        answer = whole.result(STALL_S)
    assert any(line.startswith(": keep-alive") for line in rest)
    errors = [line for line in rest if line.startswith('data: {"error"')]
    assert len(errors) == 1
    assert "nobody took over in time" in errors[0]
    assert "data: [DONE]" not in rest
    assert answer.status_code == 503
    assert "nobody took over in time" in answer.json()["error"]["message"]
    assert chain.ingress.find("request_recovered") is None
