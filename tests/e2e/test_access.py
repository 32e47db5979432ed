"""Who may ask a whole node: its keys while it runs, names and pages, both protocols; another peer has the model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from p2pmesh.app.api_keys import create_api_key
from tests.e2e.conftest import TINY
from tests.e2e.peers import NodeProcess, Peers, run_command, wait_until

SOON_S = 60.0
"""A node looks for changed keys once a second; the machine may be busy."""
BODY = {"model": TINY, "prompt": "hello", "max_tokens": 4, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Pair:
    """A peer that holds the model, and the one that is asked; each has keys of its own."""

    holder: NodeProcess
    asked: NodeProcess
    key: dict[str, Any]


@pytest.fixture(scope="module")
def pair(module_peers: Peers, tiny_model: Path) -> Pair:
    holder = module_peers.found("holder", "--model", str(tiny_model), "--split", "1")
    asked = module_peers.join("asked", holder.invite, "--max-memory", "0")
    asked.wait_for("ready")
    assert ask(asked, "any key").status_code == 200
    create_api_key(holder.home, "of the holder alone", 0, 0)
    made = run_command("key", "create", "--name", "mine", "--json", home=asked.home)
    assert made.returncode == 0, made.stderr
    pair = Pair(holder, asked, json.loads(made.stdout))
    assert wait_until(lambda: models(asked, "any key") == models(holder, "any key") == 401, SOON_S)
    return pair


def ask(node: NodeProcess, key: str, **headers: str) -> httpx.Response:
    with node.client() as client:
        return client.post("/v1/completions", json=BODY, headers={"authorization": f"Bearer {key}", **headers})


def models(node: NodeProcess, key: str) -> int:
    """The status of a route that costs nothing."""
    with node.client() as client:
        return client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code


def test_a_key_of_the_node_asked_is_enough_and_reaches_nobody_else(pair: Pair) -> None:
    """The holder would refuse it: it has a key of its own."""
    assert ask(pair.asked, pair.key["key"]).status_code == 200
    assert ask(pair.holder, pair.key["key"]).status_code == 401
    with pair.asked.client() as client:
        assert client.post("/v1/completions", json=BODY, headers={"x-api-key": pair.key["key"]}).status_code == 200
    for node in (pair.asked, pair.holder):
        written = [path.read_bytes() for path in node.home.rglob("*") if path.is_file() and path.suffix != ".gguf"]
        told = "\n".join([*node.lines, *node.errors]).encode()
        assert not [text for text in (*written, told) if pair.key["key"].encode() in text], node.name


def test_a_limited_key_is_told_when_to_come_again(pair: Pair) -> None:
    limited = create_api_key(pair.asked.home, "limited", 0, 2)["key"]
    assert wait_until(lambda: models(pair.asked, limited) == 200, SOON_S)
    assert ask(pair.asked, limited).status_code == 200
    refused = ask(pair.asked, limited)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert ask(pair.asked, pair.key["key"]).status_code == 200


def test_a_key_that_is_revoked_lets_its_stream_end_and_begins_no_other(pair: Pair) -> None:
    made = create_api_key(pair.asked.home, "for a while", 0, 0)
    assert wait_until(lambda: models(pair.asked, made["key"]) == 200, SOON_S)
    headers = {"authorization": f"Bearer {made['key']}"}
    body = {**BODY, "max_tokens": 1500, "stream": True}
    with pair.asked.client() as client, client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        assert run_command("key", "revoke", made["id"], home=pair.asked.home).returncode == 0
        assert wait_until(lambda: models(pair.asked, made["key"]) == 401, SOON_S)
        assert [line for line in lines if line][-1] == "data: [DONE]"


@pytest.mark.parametrize(
    "headers",
    [{"host": "rebound.example:9337"}, {"origin": "https://evil.example"}, {"host": "localhost", "origin": "null"}],
)
def test_other_names_and_pages_of_other_sites_are_refused(pair: Pair, headers: dict[str, str]) -> None:
    refused = ask(pair.asked, pair.key["key"], **headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "site_refused")


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_one_connection_serves_request_after_request(pair: Pair, version: str) -> None:
    """HTTP/2 by its preface, as a proxy before us speaks it."""
    headers = {"authorization": f"Bearer {pair.key['key']}"}
    is_second = version == "HTTP/2"
    with httpx.Client(
        base_url=pair.asked.api_url, http1=not is_second, http2=is_second, headers=headers, trust_env=False, timeout=60
    ) as client:
        answers, ports = [], set()
        for body in (BODY, BODY, {**BODY, "stream": True}):
            answers.append(client.post("/v1/completions", json=body))
            ports.add(answers[-1].extensions["network_stream"].get_extra_info("client_addr"))
    assert {(answer.status_code, answer.http_version) for answer in answers} == {(200, version)}
    assert answers[-1].text.rstrip().endswith("data: [DONE]")
    assert len(ports) == 1
