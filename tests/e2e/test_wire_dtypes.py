"""A split model answers with each wire dtype once this very model is certified, and is not launched before."""

import hashlib
from pathlib import Path

import pytest

from p2pmesh.adapters.wire_certificates import store_certificate
from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES
from p2pmesh.core.wire_certificate import CutRecord, WireCertificate, WireFigures
from p2pmesh.wire.dtype import DTYPE_LABELS, LOSSY_DTYPES
from tests.e2e.conftest import TINY, TINY_LAYERS
from tests.e2e.peers import NodeProcess, Peers, tokens_of

NEW_TOKENS = 12
QUICK = ("f16", "q8-outlier")
OTHERS = tuple(label for label in DTYPE_LABELS if label not in (*QUICK, "f32"))
"""f32 is what every other test of a split model runs with."""


@pytest.fixture(scope="module")
def hub(module_peers: Peers) -> NodeProcess:
    return module_peers.found("hub", "--max-memory", "1GiB")


def certify(home: Path, model: Path) -> None:
    """What ``p2pmesh certify wire`` would write if every dtype did at every cut."""
    good = WireFigures(1.0, 1e-4, 1e-3, 0.0)
    figures = dict.fromkeys(LOSSY_DTYPES, good)
    cuts = tuple(CutRecord(cut, 512, 20.0, 9.0, good, figures) for cut in range(1, TINY_LAYERS))
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    store_certificate(home, WireCertificate(digest, TINY_LAYERS, "any", cuts))


@pytest.mark.parametrize("label", [*QUICK, *(pytest.param(label, marks=pytest.mark.slow) for label in OTHERS)])
def test_a_split_model_answers_with_each_dtype(
    label: str, module_peers: Peers, hub: NodeProcess, tiny_model: Path
) -> None:
    home = module_peers.folder / f"driver-{label}"
    certify(home, tiny_model)
    arguments = ("--model", str(tiny_model), "--split", "2", "--wire-dtype", label, "--max-memory", "1GiB")
    driver = module_peers.join(f"driver-{label}", hub.invite, *arguments)
    ready = driver.wait_for("pipeline_ready")
    assert len(ready["stages"]) == 2
    answer = driver.complete(
        TINY, "Some words that are long enough to be a prompt", max_tokens=NEW_TOKENS, temperature=0
    )
    assert len(tokens_of(answer)) == NEW_TOKENS
    driver.stop()


def test_a_dtype_that_nobody_certified_is_refused_before_launch(
    module_peers: Peers, hub: NodeProcess, tiny_model: Path
) -> None:
    arguments = ("--model", str(tiny_model), "--split", "2", "--wire-dtype", "q8-row", "--max-memory", "1GiB")
    driver = module_peers.start("uncertified", "--join", hub.invite, *arguments)
    assert driver.wait_ended() == EXIT_CODES[ErrorCode.PLACEMENT_REFUSED]
    error = driver.find("error")
    assert error is not None
    assert error["code"] == "placement_refused"
    assert "q8-row is not certified for this model" in error["message"]
    assert f"`p2pmesh certify wire {tiny_model}`" in error["message"]
    assert driver.find("stage_loading") is None
