"""Real nodes for each test or module; every test here is marked ``e2e``."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from p2pmesh.adapters.model_packages import DEMO_MODEL, installed_models
from tests.e2e.peers import Peers
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

GEMMA = "gemma-3-270m"
SMOLLM = DEMO_MODEL
TINY = "tiny"
TINY_LAYERS = 6


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def require_models(*names: str) -> None:
    """Skips where pip did not install the models; the tests' own requirements include them."""
    missing = set(names) - {model.name for model in installed_models()}
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """Nodes of one test; those it leaves running must drain cleanly."""
    made = Peers(tmp_path)
    try:
        yield made
        made.stop_all()
    finally:
        made.clean_up()


@pytest.fixture(scope="module")
def module_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """Nodes that the tests of a module share."""
    made = Peers(tmp_path_factory.mktemp("peers"))
    try:
        yield made
        made.stop_all()
    finally:
        made.clean_up()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that no package holds and that no other home knows, in a folder of its own."""
    path = tmp_path_factory.mktemp("models") / f"{TINY}.gguf"
    path.write_bytes(tiny_llama(TinyShape(layers=TINY_LAYERS), seed=7))
    return path


@pytest.fixture(scope="module")
def split_client(module_peers: Peers) -> Iterator[openai.OpenAI]:
    """OpenAI's package at a peer that holds no stage of a real model, which is cut in two."""
    require_models(SMOLLM)
    driver = module_peers.found("driver", "--model", SMOLLM, "--split", "2")
    bystander = module_peers.join("bystander", driver.invite, "--max-memory", "0")
    module_peers.join("joiner", driver.invite, "--max-memory", "1GiB")
    driver.wait_for("pipeline_ready")
    bystander.wait_for("ready")
    with openai.OpenAI(base_url=bystander.api_url + "/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made
