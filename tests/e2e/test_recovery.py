"""Streams that lose a stage, whichever it is, give the bytes of undisturbed ones."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SMOLLM, TINY, require_models
from tests.e2e.peers import Event, NodeProcess, Peers

LAST_S = 120.0
PROMPT = "The seven seas are " + "wide and deep and cold and " * 60
TOKENS = {TINY: 600, SMOLLM: 48}
"""Enough that an answer is not over when something is made to die."""
SAMPLED = {"temperature": 0.8, "seed": 77, "top_p": 0.95, "frequency_penalty": 0.2}
GREEDY = {"temperature": 0}


@dataclass
class Overlay:
    """A coordinator without memory that is the ingress, and peers that hold three stages, one of them spare."""

    peers: Peers
    model: str
    coordinator: NodeProcess
    ready: Event
    joined: int = 0

    def join(self) -> NodeProcess:
        self.joined += 1
        return self.peers.join(f"peer-{self.joined}", self.coordinator.invite, "--max-memory", "1GiB")

    def holder(self, stage: int) -> NodeProcess:
        peer = self.ready["stages"][stage]["peer_id"]
        return next(node for node in self.peers.nodes if node.process.poll() is None and node.peer_id == peer)


@pytest.fixture(scope="module", params=[TINY, pytest.param(SMOLLM, marks=pytest.mark.slow)])
def overlay(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Overlay]:
    model = request.param
    if model == SMOLLM:
        require_models(SMOLLM)
    peers = Peers(tmp_path_factory.mktemp(model))
    try:
        name = str(tiny_model) if model == TINY else model
        coordinator = peers.found("coordinator", "--model", name, "--split", "3", "--max-memory", "0")
        made = Overlay(peers, model, coordinator, {})
        for _ in range(4):
            made.join()
        made.ready = coordinator.wait_for("pipeline_ready")
        coordinator.wait_for("ready")
        yield made
        peers.stop_all()
    finally:
        peers.clean_up()


def body_of(overlay: Overlay, parameters: dict[str, Any], strike: Callable[[], object], at: int) -> tuple[str, str]:
    """The data and the comments of a whole stream; ``strike`` after ``at`` tokens, or right behind the headers (-1)."""
    body = {"model": overlay.model, "prompt": PROMPT, "stream": True, "return_token_ids": True}
    body["max_tokens"] = TOKENS[overlay.model]
    data, comments = [], []
    with overlay.coordinator.client(LAST_S) as client:
        with client.stream("POST", "/v1/completions", json={**body, **parameters}) as answer:
            assert answer.status_code == 200, answer.read()
            if at < 0:
                strike()
            for line in lines_of(answer):
                if line.startswith("data: "):
                    data.append(line)
                    if len(data) == at:
                        strike()
                else:
                    comments.append(line)
    return undated("\n".join(data)), "\n".join(comments)


def lines_of(answer: httpx.Response) -> Iterator[str]:
    return (line for line in answer.iter_lines() if line)


def undated(text: str) -> str:
    """Without the request's id and the second it came in, which belong to the request."""
    head, _, rest = text.partition('"id":"cmpl-')
    request_id, created = rest[:32], rest.partition('"created":')[2].partition(",")[0]
    return (head + '"id":"cmpl-' + rest).replace(request_id, "ID").replace(f'"created":{created},', "")


@pytest.fixture(scope="module")
def undisturbed(overlay: Overlay) -> dict[str, str]:
    return {
        name: body_of(overlay, parameters, lambda: None, 0)[0]
        for name, parameters in (("greedy", GREEDY), ("sampled", SAMPLED))
    }


@pytest.mark.parametrize(
    ("stage", "what", "at", "name"),
    [(1, "engine", -1, "greedy"), (2, "node", 20, "sampled"), (0, "node", 31, "sampled")],
)
def test_a_stream_that_loses_a_stage_gives_the_same_bytes(
    overlay: Overlay, undisturbed: dict[str, str], stage: int, what: str, at: int, name: str
) -> None:
    victim = overlay.holder(stage)
    after = overlay.coordinator.mark()

    def strike() -> None:
        if what == "node":
            victim.kill()
        else:
            (engine,) = victim.children()
            os.kill(engine, signal.SIGKILL)

    data, comments = body_of(overlay, SAMPLED if name == "sampled" else GREEDY, strike, at)
    assert data == undisturbed[name]
    assert ": x-p2pmesh-recovery: exact" in comments
    told = overlay.coordinator.wait_for("request_recovered", after=after)
    assert told["is_exact"] is True
    overlay.ready = overlay.coordinator.wait_for("pipeline_ready", after=after)
    if stage == 2:  # the next loss needs a spare again
        overlay.join()


def cached_tokens(node: NodeProcess) -> int:
    """Tokens of its clients' prompts that were not computed."""
    with node.client() as client:
        counted = re.search(
            r"^p2pmesh_cached_prompt_tokens_total\{.*\} (\d+)", client.get("/metrics").text, re.MULTILINE
        )
    return int(counted[1]) if counted else 0


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_a_stream_that_began_from_kept_rows_loses_a_stage_and_gives_the_same_bytes(
    overlay: Overlay, undisturbed: dict[str, str], name: str
) -> None:
    body_of(overlay, {**GREEDY, "max_tokens": 1}, lambda: None, 0)  # this run has the prompt's rows from now on
    cached = cached_tokens(overlay.coordinator)
    after = overlay.coordinator.mark()

    def strike() -> None:
        (engine,) = overlay.holder(1).children()
        os.kill(engine, signal.SIGKILL)

    data, comments = body_of(overlay, SAMPLED if name == "sampled" else GREEDY, strike, 20)
    assert cached_tokens(overlay.coordinator) > cached
    assert data == undisturbed[name]
    assert ": x-p2pmesh-recovery: exact" in comments
    overlay.ready = overlay.coordinator.wait_for("pipeline_ready", after=after)
