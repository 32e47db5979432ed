"""A prompt that begins like an earlier one, on two stages of real processes: less to compute, the same tokens."""

from typing import Any

import pytest

from tests.e2e.conftest import SMOLLM, require_models
from tests.e2e.peers import NodeProcess, Peers, tokens_of

NEW_TOKENS = 24
PREFIX = [100 + (7 * index + index // 13) % 1000 for index in range(500)]
ENDS = ([2000, 2001, 2002], [3000, 3001, 3002, 3003])
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def alone(module_peers: Peers) -> list[list[int]]:
    """Answers of one machine that has seen none of the prompts before."""
    require_models(SMOLLM)
    answers = []
    for number, end in enumerate(ENDS):
        whole = module_peers.found(f"whole-{number}", "--model", SMOLLM, "--split", "1")
        whole.wait_for("pipeline_ready")
        answers.append(tokens_of(_ask(whole, end)))
        whole.stop()
    return answers


@pytest.fixture(scope="module")
def driver(module_peers: Peers) -> NodeProcess:
    driver = module_peers.found("driver", "--model", SMOLLM, "--split", "2")
    module_peers.join("joiner", driver.invite, "--max-memory", "4GiB")
    driver.wait_for("pipeline_ready")
    return driver


def _ask(node: NodeProcess, end: list[int]) -> dict[str, Any]:
    return node.complete(SMOLLM, [*PREFIX, *end], max_tokens=NEW_TOKENS, **SAMPLED)


def _cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_tokens_are_those_of_a_machine_that_shares_nothing(alone: list[list[int]], driver: NodeProcess) -> None:
    answers = [_ask(driver, end) for end in (*ENDS, ENDS[0])]
    assert [tokens_of(answer) for answer in answers] == [*alone, alone[0]]
    assert [_cached(answer) for answer in answers] == [0, 480, 480]
    with driver.client() as client:
        assert 'p2pmesh_cached_prompt_tokens_total{model="' in client.get("/metrics").text


def test_choices_share_their_prompt_and_its_count(alone: list[list[int]], driver: NodeProcess) -> None:
    prompt = [*PREFIX[::-1], 4000]
    parameters = {"max_tokens": NEW_TOKENS, **SAMPLED, "return_token_ids": True}
    one = driver.complete(SMOLLM, [*PREFIX, *ENDS[1]], **parameters, n=3)
    assert one["choices"][0]["token_ids"] == alone[1]
    several, again = (driver.complete(SMOLLM, prompt, **parameters, n=3) for _ in range(2))
    assert several["choices"] == again["choices"]
    assert len({tuple(choice["token_ids"]) for choice in several["choices"]}) == 3
    assert [answer["usage"]["prompt_tokens"] for answer in (several, again)] == [len(prompt)] * 2
    assert [_cached(answer) for answer in (several, again)] == [0, 480]  # what other choices had computed is not cached
