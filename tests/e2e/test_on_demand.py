"""Real nodes load models that requests ask for, several side by side, and unload them when nobody does."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from p2pmesh.adapters.model_packages import installed_models
from tests.e2e.conftest import SMOLLM, TINY, require_models
from tests.e2e.peers import START_S, NodeProcess, Peers, tokens_of, wait_until
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

OTHER = "other-tiny"
PROMPT = "hello"
IDLE_S = 25
"""Above what loading the second model takes on a busy machine: the first one must still be there then."""


def put_models(peers: Peers, name: str) -> None:
    """Two models into the home of a node that is not started yet."""
    models = peers.folder / name / "models"
    models.mkdir(parents=True)
    (peers.folder / name).chmod(0o700)
    for model, seed in ((TINY, 7), (OTHER, 8)):
        (models / f"{model}.gguf").write_bytes(tiny_llama(TinyShape(layers=6), seed=seed))


def ask(node: NodeProcess, model: str) -> tuple[list[int], float]:
    """The answer, and the seconds to it."""
    started = time.monotonic()
    answer = node.complete(model, PROMPT, max_tokens=12, temperature=0)
    return tokens_of(answer), time.monotonic() - started


def told_models(node: NodeProcess, event: str) -> list[str]:
    return [str(one["model"]) for one in node.events if one["event"] == event]


def test_models_come_for_requests_side_by_side_and_go_when_nobody_asks(peers: Peers) -> None:
    patient = [part for name in ("hedge", "grace") for part in ("--mesh-option", f"{name}-seconds=60")]
    ingress = peers.found("ingress", "--max-memory", "0", "--guardrails", "enforce", *patient)
    put_models(peers, "holder")
    holder = peers.join("holder", ingress.invite, "--max-memory", "2GiB", "--idle-unload", str(IDLE_S))
    assert wait_until(lambda: ready(ingress), START_S)
    assert holder.children() == ()  # nothing is loaded before it is asked for
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, ingress, model) for model in (TINY, OTHER)]
        (first, first_s), (other, _) = (answer.result() for answer in answers)
    with ingress.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [OTHER, TINY, "auto", "mesh"]
    chosen = [ingress.complete("auto", PROMPT, max_tokens=12, temperature=0) for _ in range(2)]
    assert [tokens_of(answer) for answer in chosen] == 2 * [{TINY: first, OTHER: other}[chosen[0]["model"]]]
    mixed = [mix(ingress) for _ in range(2)]
    assert mixed[0] == mixed[1]
    assert mixed[0][1:] == ("reduced", 3 * 8)  # weights of chance are sure of nothing
    assert compact(ingress) == (200, "compacted 30 messages")
    assert len(first) == len(other) == 12
    assert first != other
    assert holder.wait_for("load_on_demand")["reason"] == "no_server"
    assert sorted(told_models(holder, "load_on_demand")) == [OTHER, TINY]
    again, again_s = ask(holder, TINY)
    assert again == first
    print(f"\nfirst answer of a model that was not loaded: {first_s:.2f} s, of one that is: {again_s:.2f} s")
    assert wait_until(lambda: sorted(told_models(holder, "model_unloaded")) == sorted([TINY, OTHER]), 90)
    assert wait_until(lambda: holder.status()["stages"] == [], START_S)
    assert holder.status()["free_bytes"] == holder.status()["memory_bytes"]
    reloaded, reloaded_s = ask(ingress, TINY)
    assert reloaded == first
    print(f"first answer after it was unloaded: {reloaded_s:.2f} s")


def mix(node: NodeProcess) -> tuple[str, str, int]:
    """What both models answer together: the text, how it came to be, and the tokens of all drafts."""
    body = {
        "model": "mesh", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0.7,
        "seed": 5,
    }  # fmt: skip
    with node.client() as client:
        answer = client.post("/v1/chat/completions", json=body, timeout=60)
    asked = answer.headers["x-p2pmesh-mesh-models"]
    assert f"{OTHER} strong answered, {TINY} fast answered" in asked
    content = answer.json()["choices"][0]["message"]["content"]
    decision = answer.headers["x-p2pmesh-mesh-decision"]
    return content, decision, answer.json()["usage"]["completion_tokens"]


def compact(node: NodeProcess) -> tuple[int, str]:
    """What becomes of a conversation that fills the context, of 4096 tokens."""
    turns = [{"role": role, "content": "x" * 300} for _ in range(20) for role in ("user", "assistant")]
    body = {"model": TINY, "messages": [*turns, {"role": "user", "content": PROMPT}], "max_tokens": 2}
    with node.client() as client:
        answer = client.post("/v1/chat/completions", json=body, timeout=60)
    return answer.status_code, answer.headers.get("x-p2pmesh-guardrails", "")


def ready(node: NodeProcess) -> bool:
    """Whether a request would be answered; models need not be loaded for that."""
    with node.client() as client:
        return client.get("/readyz").status_code == 200


def test_another_name_of_the_same_file_is_served(peers: Peers, tiny_model: Path, tmp_path: Path) -> None:
    driver = peers.found("driver", "--model", str(tiny_model))
    alias = tmp_path / "alias.gguf"
    alias.write_bytes(tiny_model.read_bytes())
    second = peers.join("second", driver.invite, "--max-memory", "0", "--model", str(alias))
    third = peers.join("third", driver.invite, "--max-memory", "0")
    third.wait_for("ready")
    expected, _ = ask(driver, TINY)
    for node in (third, second, driver):
        assert wait_until(lambda node=node: knows(node, "alias"), START_S)  # type: ignore[misc]
        assert ask(node, "alias")[0] == expected


def knows(node: NodeProcess, model: str) -> bool:
    with node.client() as client:
        answer = client.post("/v1/completions", json={"model": model, "prompt": PROMPT, "max_tokens": 1})
    return answer.status_code == 200


@pytest.mark.slow
def test_a_stream_outlives_the_only_peer_that_had_its_model_loaded(peers: Peers) -> None:
    ingress = peers.found("ingress", "--max-memory", "0")
    holders = []
    for name in ("one", "two"):
        put_models(peers, name)
        holders.append(peers.join(name, ingress.invite, "--max-memory", "1GiB"))
    assert wait_until(lambda: len(ingress.status()["peers"]) == 2 and ready(ingress), START_S)
    undisturbed, _ = ask(ingress, TINY)
    (first,) = (holder for holder in holders if told_models(holder, "load_on_demand"))
    (second,) = (holder for holder in holders if holder is not first)
    tokens: list[int] = []
    with ingress.stream(TINY, PROMPT, max_tokens=1500, temperature=0) as chunks:
        for chunk in chunks:
            tokens += tokens_of(chunk)
            if len(tokens) > 50 and first.process.poll() is None:
                first.kill()
    assert len(tokens) == 1500
    assert tokens[: len(undisturbed)] == undisturbed
    assert told_models(second, "load_on_demand") == [TINY]
    assert ingress.wait_for("request_recovered")["is_exact"]


@pytest.mark.slow
def test_what_the_first_token_of_a_model_that_is_not_loaded_takes(peers: Peers) -> None:
    """Prints the figures (``-s``): from the request to its first token, cold, warm, and after an unload."""
    require_models(SMOLLM)
    ingress = peers.found("ingress", "--max-memory", "0")
    models = peers.folder / "holder" / "models"
    models.mkdir(parents=True)
    (peers.folder / "holder").chmod(0o700)
    (part,) = next(model.parts for model in installed_models() if model.name == SMOLLM)
    (models / "small.gguf").symlink_to(part)
    holder = peers.join("holder", ingress.invite, "--max-memory", "2GiB", "--idle-unload", "2")
    assert wait_until(lambda: ready(ingress), START_S)
    figures = {"not loaded": first_token_s(ingress)}
    figures["loaded"] = first_token_s(ingress)
    assert wait_until(lambda: len(told_models(holder, "model_unloaded")) == 1, START_S)
    figures["unloaded, its engine still there"] = first_token_s(ingress)
    assert wait_until(lambda: len(told_models(holder, "model_unloaded")) == 2, START_S)
    assert wait_until(lambda: holder.children() == (), START_S)
    figures["unloaded, its engine gone"] = first_token_s(ingress)
    print("\nseconds to the first token:", {name: round(seconds, 2) for name, seconds in figures.items()})
    assert len(told_models(holder, "load_on_demand")) == 3


def first_token_s(node: NodeProcess) -> float:
    started = time.monotonic()
    with node.stream("small", PROMPT, max_tokens=2, temperature=0) as chunks:
        next(chunk for chunk in chunks if tokens_of(chunk))
        return time.monotonic() - started
