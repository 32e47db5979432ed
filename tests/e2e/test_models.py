"""Models by every way to name them, in real nodes."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p2pmesh.adapters.range_download import fetched_bytes
from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES
from p2pmesh.model.gguf import read_index
from tests.e2e.conftest import TINY, TINY_LAYERS
from tests.e2e.peers import READY_S, Peers, children_of, is_running, run_command, tokens_of, wait_until
from tests.fakes.hub_server import COMMIT, serving_hub
from tests.fakes.memory_source import MemorySource
from tests.fakes.split_gguf import split_gguf, write_parts
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

PROMPT = [5, 9, 23, 40]


def test_a_model_in_parts_answers_as_the_file_that_was_split(peers: Peers, tiny_model: Path, tmp_path: Path) -> None:
    data = tiny_model.read_bytes()
    count = len(read_index(MemorySource(data)).tensors)
    first = write_parts(tmp_path / "parts", "split", split_gguf(data, (0, count // 2, count - count // 2)))[0]
    node = peers.found("whole", "--model", str(tiny_model))  # of the same digest, so a mesh of its own
    node.wait_for("ready")
    expected = tokens_of(node.complete(TINY, PROMPT, max_tokens=8, temperature=0))
    node.stop()
    driver = peers.found("driver", "--model", str(first), "--split", "2")
    peers.join("joiner", driver.invite)
    stages = driver.wait_for("pipeline_ready")["stages"]
    assert (len(stages), stages[-1]["layers"][1]) == (2, TINY_LAYERS)
    driver.wait_for("ready")
    assert tokens_of(driver.complete("split", PROMPT, max_tokens=8, temperature=0)) == expected


def test_a_model_of_the_hub_is_fetched_while_the_api_says_so(peers: Peers, tiny_model: Path) -> None:
    with serving_hub() as hub:
        hub.add("org/tiny", **{"Tiny-F32__gguf": tiny_model.read_bytes()})
        hub.gate = threading.Event()
        node = peers.found("fetcher", "--model", "org/tiny", "--hub-endpoint", hub.url)
        fetching = node.wait_for("model_fetching")
        assert (fetching["model"], fetching["total_bytes"]) == ("Tiny-F32", tiny_model.stat().st_size)
        with node.client() as client:
            answer = client.post("/v1/completions", json={"model": "Tiny-F32", "prompt": "x"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_not_ready"
        assert "are fetched" in answer.json()["error"]["message"]
        hub.gate.set()
        assert node.wait_for("model_fetched")["source"] == f"hf://org/tiny@{COMMIT}"
        node.wait_for("ready")
        assert tokens_of(node.complete("Tiny-F32", PROMPT, max_tokens=4, temperature=0))
        used = run_command("models", "remove", "Tiny-F32", home=node.home)
        assert used.returncode == EXIT_CODES[ErrorCode.HOME_IN_USE], used.stderr
        node.stop()
    again = peers.found("fetcher", "--model", "org/tiny", "--offline")
    again.wait_for("ready")


def test_a_pull_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    data = tiny_llama(TinyShape(layers=24))
    command = [sys.executable, "-m", "p2pmesh", "models", "pull", "org/big", "--home", str(tmp_path)]
    with serving_hub() as hub:
        hub.add("org/big", big__gguf=data)
        hub.gate = threading.Event()
        with subprocess.Popen(
            [*command, "--hub-endpoint", hub.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as pull:
            path = tmp_path / "cache" / "hub" / "org--big" / COMMIT / "big.gguf"
            assert wait_until(lambda: fetched_bytes(path, len(data)) > 0, READY_S)
            children = children_of(pull.pid)
            pull.kill()
        assert wait_until(lambda: not any(is_running(child) for child in children), READY_S)
        before, asked = fetched_bytes(path, len(data)), len(hub.ranges)
        hub.gate.set()
        assert run_command("models", "pull", "org/big", "--hub-endpoint", hub.url, home=tmp_path).returncode == 0
        assert hub.ranges[asked].startswith(f"bytes={before}-")
    assert path.read_bytes() == data


def test_a_hub_that_is_away_is_told_and_the_node_serves_the_rest(peers: Peers, tiny_model: Path) -> None:
    node = peers.found(
        "rest", "--model", str(tiny_model), "--model", "org/away", "--hub-endpoint", "http://127.0.0.1:9"
    )
    told = node.wait_for("error")
    assert told["code"] == "hub_unreachable"
    assert "asked again in" in told["message"]
    assert node.wait_for("ready")["models"] == [TINY]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--model", "no-such-model"), ErrorCode.MODEL_NOT_FOUND),
        (("--model", "./no/such.gguf"), ErrorCode.MODEL_NOT_FOUND),
        (("--model", "org/repo:Q4 K"), ErrorCode.CONFIG_INVALID),
        (("--model", "org/repo", "--offline"), ErrorCode.HUB_UNREACHABLE),
        (("--demo", "--hub-endpoint", "nowhere"), ErrorCode.CONFIG_INVALID),
    ],
)
def test_a_bad_model_is_told_before_anything_is_opened(
    arguments: tuple[str, ...], code: ErrorCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    ended = run_command("up", *arguments, "--log-format", "json", home=tmp_path / "home")
    assert ended.returncode == EXIT_CODES[code]
    assert '"event":"listening"' not in ended.stdout
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "home" / "run.json").exists()
