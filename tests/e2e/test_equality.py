"""Token for token: whatever the cuts, a pipeline gives the ids that one machine gives.

One hub without memory stays up. Each case starts two peers, and a coordinator with its cuts, which holds stage 0 and
drives unless another peer proved more than twice as fast; all three end with the case, or the two would go on with the
model in cuts of their own. Short prompts are asked of the hub, which forwards them, long ones of the coordinator.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.conftest import GEMMA, SMOLLM, require_models
from tests.e2e.peers import NodeProcess, Peers, stop_at_once, tokens_of, wait_until

LAYERS = {SMOLLM: 30, GEMMA: 18}
LONG_PROMPT_TOKENS = 700
NEW_TOKENS = 48
SENTENCE = "The lighthouse keeper wrote in her book that the storm had come from the north, and that "
WORDS = (
    *("storm", "north", "light", "harbour", "stone", "letter", "winter", "sailor"),
    *("bread", "window", "candle", "salt", "rope", "morning", "gull", "door"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the matrix."""

    name: str
    is_long: bool
    parameters: tuple[tuple[str, Any], ...]


GREEDY = (("temperature", 0),)
SAMPLED = (("temperature", 0.8), ("seed", 20_260_129), ("top_p", 0.95))
REQUESTS = (
    Request("short greedy", False, GREEDY),
    Request("short sampled", False, SAMPLED),
    Request("long greedy", True, GREEDY),
    Request("long sampled", True, SAMPLED),
)
ALONE = (REQUESTS[0], REQUESTS[3])
"""Asked alone of every pipeline; all are asked beside each other. A long prompt costs most of a case's time."""
CUTS = (
    *((model, (cut,)) for model, layers in LAYERS.items() for cut in range(3, layers, 3)),
    (SMOLLM, (6, 21)),
    (SMOLLM, (13, 14)),
    (GEMMA, (5, 11)),
    (GEMMA, (2, 15)),
)
TELLING = frozenset({(GEMMA, (3,)), (SMOLLM, (13, 14))})
"""Two stages, and three with one of a single layer between; the others take minutes."""
Reference = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Fixed:
    """What all cases share: the peer that stays, the answers of a single machine, the long prompts' ids."""

    peers: Peers
    hub: NodeProcess
    references: dict[str, Reference]
    long_prompts: dict[str, list[int]]


@pytest.fixture(scope="module")
def fixed(module_peers: Peers) -> Fixed:
    require_models(SMOLLM, GEMMA)
    references: dict[str, Reference] = {}
    long_prompts: dict[str, list[int]] = {}
    for model in LAYERS:
        whole = module_peers.found(f"whole-{model}", "--model", model, "--split", "1")
        whole.wait_for("pipeline_ready")
        long_prompts[model] = _long_prompt(whole, model)
        references[model] = {r.name: _ask(whole, model, r, long_prompts[model]) for r in REQUESTS}
        whole.stop()
    hub = module_peers.found("hub", "--max-memory", "0")
    return Fixed(module_peers, hub, references, long_prompts)


def _long_text() -> str:
    """Many words in an order that repeats in every run and says nothing, so that sampling matters."""
    state, words = 1, []
    for _ in range(1200):
        state = state * 1_103_515_245 + 12_345 & 0x7FFFFFFF
        words.append(WORDS[state >> 16 & 15])
    return " ".join(words) + "."


def _long_prompt(node: NodeProcess, model: str) -> list[int]:
    answer = node.complete(model, _long_text(), max_tokens=1, temperature=0)
    ids = list(answer["choices"][0]["prompt_token_ids"])
    assert len(ids) >= LONG_PROMPT_TOKENS
    return ids[:LONG_PROMPT_TOKENS]


def _ask(node: NodeProcess, model: str, request: Request, long_prompt: list[int]) -> list[int]:
    prompt = long_prompt if request.is_long else SENTENCE
    return tokens_of(node.complete(model, prompt, max_tokens=NEW_TOKENS, **dict(request.parameters)))


def test_the_references_say_something(fixed: Fixed) -> None:
    for reference in fixed.references.values():
        assert all(len(tokens) > NEW_TOKENS // 2 for tokens in reference.values())
        assert len({tuple(tokens) for tokens in reference.values()}) == len(REQUESTS)


def _cases() -> list[Any]:
    return [pytest.param(*case, marks=() if case in TELLING else pytest.mark.slow) for case in CUTS]


@pytest.mark.parametrize(("model", "cuts"), _cases(), ids=lambda value: str(value).replace(" ", ""))
def test_a_pipeline_answers_token_for_token_as_one_machine(fixed: Fixed, model: str, cuts: tuple[int, ...]) -> None:
    nodes: list[NodeProcess] = []
    try:
        for name in ("b", "c"):
            nodes.append(fixed.peers.join(name, fixed.hub.invite, "--max-memory", "4GiB"))
        driver = fixed.peers.join(
            f"driver-{model}", fixed.hub.invite, "--model", model, "--cuts", ",".join(map(str, cuts)),
            "--max-memory", "4GiB",
        )  # fmt: skip
        nodes.append(driver)
        _compare(fixed, driver, model, cuts)
    except BaseException:
        for node in nodes:
            node.clean_up()
        raise
    stop_at_once(nodes)


def _compare(fixed: Fixed, driver: NodeProcess, model: str, cuts: tuple[int, ...]) -> None:
    stages = driver.wait_for("pipeline_ready")["stages"]
    ends = (*cuts, LAYERS[model])
    assert [stage["layers"] for stage in stages] == [[a, b] for a, b in zip((0, *cuts), ends, strict=True)]
    assert len({stage["peer_id"] for stage in stages}) == len(stages)
    routable = wait_until(lambda: model in [served["name"] for served in fixed.hub.status()["models"]], 15)
    assert routable, "the hub has not heard of the model"

    def ask(request: Request) -> tuple[str, list[int]]:
        node = driver if request.is_long else fixed.hub
        return request.name, _ask(node, model, request, fixed.long_prompts[model])

    for request in ALONE:
        assert ask(request)[1] == fixed.references[model][request.name], f"{request.name}, alone"
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        assert dict(pool.map(ask, REQUESTS)) == fixed.references[model], "beside three others"
