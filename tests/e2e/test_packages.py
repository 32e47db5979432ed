"""Nodes that serve a layer package: the same answers as from the model's file, cut into stages."""

from pathlib import Path

import pytest

from tests.e2e.conftest import TINY, TINY_LAYERS
from tests.e2e.peers import NodeProcess, Peers
from tests.fakes.packages import package_of


@pytest.fixture
def package(tiny_model: Path, tmp_path: Path) -> Path:
    return package_of(tiny_model.read_bytes(), tmp_path / "package", name=TINY)


def answer(node: NodeProcess) -> str:
    with node.client() as client:
        body = {"model": TINY, "prompt": "hello", "max_tokens": 24, "temperature": 0}
        reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def test_a_package_answers_as_its_model_does(peers: Peers, tiny_model: Path, package: Path) -> None:
    whole = peers.found("whole", "--model", str(tiny_model))
    whole.wait_for("ready")
    wanted = answer(whole)
    whole.stop()
    driver = peers.found("driver", "--model", str(package), "--cuts", str(TINY_LAYERS // 2))
    peers.join("joiner", driver.invite, "--max-memory", "1GiB")
    stages = driver.wait_for("pipeline_ready")["stages"]
    assert [stage["layers"] for stage in stages] == [[0, TINY_LAYERS // 2], [TINY_LAYERS // 2, TINY_LAYERS]]
    driver.wait_for("ready")
    assert answer(driver) == wanted


def test_a_peer_fetches_just_the_fragments_of_its_layers_and_keeps_them_for_others(peers: Peers, package: Path) -> None:
    driver = peers.found("driver", "--model", str(package), "--cuts", "4")
    joiner = peers.join("joiner", driver.invite, "--max-memory", "1GiB")
    driver.wait_for("pipeline_ready")
    wanted = answer(driver)
    first = joiner.wait_for("stage_fetched")
    assert (first["layers"], first["resumed_bytes"]) == ([4, TINY_LAYERS], 0)
    joiner.stop()
    driver.stop()
    driver = peers.found("driver", "--model", str(package), "--cuts", "3")
    joiner = peers.join("joiner", driver.invite, "--max-memory", "1GiB")
    driver.wait_for("pipeline_ready")
    assert answer(driver) == wanted
    second = joiner.wait_for("stage_fetched")
    (layer,) = (package / "layers").glob("layer-00003.gguf")
    assert (second["layers"], second["fetched_bytes"]) == ([3, TINY_LAYERS], layer.stat().st_size)
    assert second["resumed_bytes"] == first["fetched_bytes"]
