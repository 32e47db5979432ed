"""Judging wire dtypes by figures, and where a model may be cut with one."""

from dataclasses import replace

import pytest

from p2pmesh.core.wire_certificate import (
    CutRecord,
    ReviewedRecord,
    WireCertificate,
    WireFigures,
    WireVerdict,
    clear_wire,
    find_reviewed,
    judge_figures,
)
from p2pmesh.wire.dtype import LOSSY_DTYPES, WireDtype

FLOOR = WireFigures(0.96, 3e-3, 2e-2, 0.001)
WORSE = WireFigures(0.6, 0.4, 9.0, 0.5)
F16, BF16, Q8 = WireDtype.F16, WireDtype.BF16, WireDtype.Q8_ROW


def record(cut: int, **figures: WireFigures) -> CutRecord:
    return CutRecord(cut, 512, 20.0, 900.0, FLOOR, {WireDtype[name]: item for name, item in figures.items()})


def certificate(*records: CutRecord) -> WireCertificate:
    return WireCertificate("a" * 64, 30, "print", records)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, WireVerdict.VALIDATED),
        ({"mean_kl": 4.4e-3}, WireVerdict.VALIDATED),
        ({"mean_kl": 4.6e-3}, WireVerdict.REJECTED),
        ({"mean_kl": float("nan")}, WireVerdict.REJECTED),
        ({"mean_kl": float("inf")}, WireVerdict.REJECTED),
        ({"argmax_agreement": 0.935}, WireVerdict.VALIDATED),
        ({"argmax_agreement": 0.93}, WireVerdict.REJECTED),
        ({"perplexity_loss": 0.0109}, WireVerdict.VALIDATED),
        ({"perplexity_loss": 0.0111}, WireVerdict.REJECTED),
        ({"perplexity_loss": -0.2}, WireVerdict.VALIDATED),
        ({"widened_rows": 512}, WireVerdict.VALIDATED),
    ],
)
def test_figures_are_judged_against_the_floor(change: dict[str, float], verdict: WireVerdict) -> None:
    judgement = judge_figures(replace(FLOOR, **change), FLOOR, 512)
    assert judgement.verdict is verdict
    assert "\n" not in judgement.reason


def test_a_floor_at_which_all_agree_still_leaves_room_for_one_token() -> None:
    floor = replace(FLOOR, argmax_agreement=1.0)
    assert judge_figures(replace(floor, argmax_agreement=511 / 512), floor, 512).verdict is WireVerdict.VALIDATED
    assert judge_figures(replace(floor, argmax_agreement=500 / 512), floor, 512).verdict is WireVerdict.REJECTED


def test_few_tokens_give_no_verdict() -> None:
    assert judge_figures(WORSE, FLOOR, 63).verdict is WireVerdict.UNTESTED
    assert judge_figures(WORSE, FLOOR, 64).verdict is WireVerdict.REJECTED


def test_overflow_is_told() -> None:
    assert "7 of 512 rows overflow" in judge_figures(replace(FLOOR, widened_rows=7), FLOOR, 512).reason


def test_a_certificate_speaks_of_measured_cuts_only() -> None:
    held = certificate(record(7, F16=FLOOR, Q8_ROW=FLOOR), record(15, F16=FLOOR, Q8_ROW=WORSE))
    assert held.validated_cuts(F16) == (7, 15)
    assert held.validated_cuts(Q8) == (7,)
    assert held.validated_cuts(BF16) == ()
    assert [held.judge(dtype, 8).verdict for dtype in LOSSY_DTYPES] == [WireVerdict.UNTESTED] * 5
    assert [held.is_tested(dtype) for dtype in (F16, Q8, BF16)] == [True, True, False]
    assert not certificate().is_tested(F16)


def test_a_dtype_is_clear_at_one_cut_though_others_were_measured_without_it() -> None:
    held = certificate(record(7, F16=FLOOR), record(15, Q8_ROW=FLOOR))
    assert clear_wire(F16, held, None, "m").cuts == {7}
    assert clear_wire(Q8, held, None, "m").cuts == {15}


def test_a_trial_of_few_tokens_clears_nothing() -> None:
    short = replace(record(7, F16=FLOOR), tokens=63)
    assert clear_wire(F16, certificate(short), None, "m").cuts == frozenset()


def reviewed(architecture: str, layers: int, width: int, *, wire: WireDtype = F16) -> ReviewedRecord:
    return ReviewedRecord(architecture, architecture, "org/model:Q4", layers, width, wire, WireVerdict.VALIDATED)


def test_f32_is_always_clear() -> None:
    assert clear_wire(WireDtype.F32, None, None, "m").cuts is None


@pytest.mark.parametrize("dtype", LOSSY_DTYPES)
def test_without_a_word_no_lossy_dtype_is_clear_and_the_command_is_named(dtype: WireDtype) -> None:
    clearance = clear_wire(dtype, None, None, "org/model")
    assert clearance.cuts == frozenset()
    assert "`p2pmesh certify wire org/model`" in clearance.reason
    assert "\n" not in clearance.reason


@pytest.mark.parametrize("dtype", LOSSY_DTYPES)
def test_a_review_clears_f16_alone(dtype: WireDtype) -> None:
    assert (clear_wire(dtype, None, reviewed("llama", 16, 2048), "m").cuts is None) == (dtype is F16)
    assert clear_wire(dtype, None, reviewed("apertus", 32, 4096, wire=WireDtype.F32), "m").cuts == frozenset()


def test_a_certificate_clears_its_cuts_and_outweighs_a_review() -> None:
    held = certificate(record(7, F16=FLOOR, Q8_ROW=WORSE), record(15, F16=WORSE, Q8_ROW=WORSE))
    review = reviewed("llama", 30, 576)
    assert clear_wire(F16, held, review, "m").cuts == {7}
    assert "only at 7" in clear_wire(F16, held, review, "m").reason
    assert clear_wire(Q8, held, review, "m").cuts == frozenset()
    assert "nowhere" in clear_wire(Q8, held, review, "m").reason
    assert "not certified" in clear_wire(BF16, held, review, "m").reason
    assert clear_wire(F16, certificate(record(7, Q8_ROW=FLOOR)), review, "m").cuts is None


def test_reviews_are_found_by_exact_architecture_and_shape() -> None:
    records = (reviewed("deepseek2", 27, 2048), reviewed("gemma3", 26, 1152), reviewed("rwkv7", 12, 768))
    assert find_reviewed(records, "deepseek2", 27, 2048) is records[0]
    for architecture, layers, width in (
        ("deepseek", 27, 2048), ("gemma3n", 26, 1152), ("gemma3", 18, 640), ("gemma", 26, 1152), ("rwkv7", 28, 3584),
        ("rwkv", 12, 768), ("", 12, 768),
    ):  # fmt: skip
        assert find_reviewed(records, architecture, layers, width) is None


def test_reviews_that_disagree_say_nothing() -> None:
    one = reviewed("llama", 16, 2048)
    assert find_reviewed((one, one), "llama", 16, 2048) is one
    assert find_reviewed((one, replace(one, q8=WireVerdict.REJECTED)), "llama", 16, 2048) is None
