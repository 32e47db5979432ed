"""A wire trial of a tiny model in a real child."""

import dataclasses

import pytest

from p2pmesh.adapters.llama.wire_trial import WireTrialRequest, run_wire_trial
from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.wire.dtype import LOSSY_DTYPES, WireDtype

TEXT = "The tide comes and goes, and the boats wait for it. " * 8


@pytest.fixture
def request_of(stage_folder):
    first, last = stage_folder / "llama-0-2.gguf", stage_folder / "llama-2-4.gguf"
    return WireTrialRequest(str(first), str(last), TEXT, 96, tuple(map(int, LOSSY_DTYPES)), 1)


def test_each_dtype_is_measured_and_a_coarser_one_diverges_more(request_of) -> None:
    record, fingerprint = run_wire_trial(request_of, 2)
    assert (record.cut, record.tokens) == (2, 96)
    assert fingerprint
    assert list(record.figures) == list(LOSSY_DTYPES)
    assert record.perplexity > 1
    assert record.largest_magnitude > 0
    for figures in (record.floor, *record.figures.values()):
        assert 0 <= figures.argmax_agreement <= 1
        assert 0 <= figures.mean_kl <= figures.largest_kl
        assert figures.widened_rows == 0
    kl = {dtype: figures.mean_kl for dtype, figures in record.figures.items()}
    assert kl[WireDtype.F16] < kl[WireDtype.Q8_ROW]
    assert record.floor.mean_kl < kl[WireDtype.Q8_ROW]


def test_the_same_trial_gives_the_same_figures(request_of) -> None:
    short = dataclasses.replace(request_of, token_count=20, dtypes=(int(WireDtype.Q8_BLOCK),))
    assert run_wire_trial(short, 2) == run_wire_trial(short, 2)


def test_a_child_that_dies_costs_a_line(request_of, tmp_path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(EngineError) as error:
        run_wire_trial(dataclasses.replace(request_of, first_path=str(broken)), 2)
    assert error.value.code is ErrorCode.ENGINE_CRASHED
    assert "the trial of layer 2 failed" in error.value.message
    assert "\n" not in error.value.message
