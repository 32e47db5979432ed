"""Verdicts drawn from runs, the record that is kept of them, and a sample of the runs themselves."""

import io
import json
from importlib import resources
from pathlib import Path

import pytest

from p2pmesh.adapters.llama.certify import LLAMA_CPP_COMMIT, Evidence, run_variant, variant_cases
from p2pmesh.adapters.llama.certify_child import Outcome
from p2pmesh.adapters.llama.tiny_variants import VARIANTS, Variant, layer_count
from p2pmesh.app.certify_families import (
    CertifyFamiliesOptions,
    certify_families,
    describe_evidence,
    encode_record,
    judge,
)
from p2pmesh.base.errors import ConfigError
from p2pmesh.model.family_verdicts import record_build, verdict_of, verdicts

QUICK = ["gemma2", "gpt2", "mamba2", "rwkv7"]
SAMPLE = ["bloom", "deepseek2", "glm4moe", "gpt-oss", "falcon-h1", "qwen35", "rwkv6", "talkie"]
PROMISED = [
    "llama", "mistral3", "qwen2", "qwen3", "qwen3moe", "qwen3next", "qwen35", "gemma", "gemma2", "gemma3", "phi3",
    "olmo2", "deepseek2", "glm4moe", "gpt-oss", "falcon-h1", "granite", "mamba2",
    "rwkv7",
]  # fmt: skip


def evidence(*outcomes: Outcome, failure: str = "", architecture: str = "llama") -> Evidence:
    """Of a model of four layers, cut at 1, 2 and 3."""
    return Evidence(Variant(architecture, False), 4, ((1,), (2,), (3,)), outcomes, failure)


def exact(case: int, refusal: str = "") -> Outcome:
    return Outcome(case, True, True, 0.0, refusal)


def test_every_cut_exact_is_splittable() -> None:
    verdict = judge("llama", [evidence(exact(0), exact(1), exact(2))])
    assert (verdict["verdict"], verdict["cuts"], verdict["reason"]) == ("splittable", [1, 2, 3], "")
    assert verdict["served"]
    assert not verdict["sticky"]


def test_what_the_rules_do_not_permit_is_no_objection() -> None:
    runs = evidence(Outcome(0, False, False, None, "no window", "it aborts"), exact(1), exact(2, "no window"))
    verdict = judge("llama", [runs])
    assert (verdict["verdict"], verdict["cuts"]) == ("splittable at these cuts", [2])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Outcome(1, False, True, 3e-4), "cut at 2 its logits differ by 3.0e-04"),
        (Outcome(1, False, False, None, "", "GGML_ASSERT(x)"), "cut at 2 it does not run: GGML_ASSERT(x)"),
    ],
)
def test_one_permitted_cut_that_fails_refuses_the_family(bad: Outcome, words: str) -> None:
    verdict = judge("llama", [evidence(exact(0), bad, exact(2))])
    assert (verdict["splittable"], verdict["served"], verdict["cuts"]) == (False, False, [])
    assert words in verdict["reason"]


def test_a_variant_that_fails_refuses_the_architecture() -> None:
    verdict = judge("llama", [evidence(exact(0), exact(1), exact(2)), evidence(failure="killed by SIGSEGV")])
    assert not verdict["splittable"]
    assert "SIGSEGV" in verdict["reason"]


def test_a_side_value_is_named() -> None:
    verdict = judge("gemma4", [evidence(exact(0, "a rule"), architecture="gemma4")])
    assert verdict["verdict"] == "needs a side value"
    assert "embeddings" in verdict["reason"]


def test_evidence_is_one_line() -> None:
    runs = evidence(exact(0), Outcome(1, False, False, 0.5, "why"), Outcome(2, False, False, None, "", "x"))
    assert describe_evidence(runs) == "llama: 1 exact, 2 5.0e-01*, 3 failed"


# --- the record


def record() -> dict:
    return json.loads(resources.files("p2pmesh.model").joinpath("families.json").read_text())


def test_the_record_is_what_the_command_writes() -> None:
    text = resources.files("p2pmesh.model").joinpath("families.json").read_text()
    assert encode_record(json.loads(text)) == text
    assert record_build()[1] == LLAMA_CPP_COMMIT


def test_every_variant_is_decided_with_eight_layers_or_more() -> None:
    families = record()["families"]
    assert sorted(name for fields in families.values() for name in fields["variants"]) == sorted(
        variant.name for variant in VARIANTS
    )
    assert all(fields["layers"] >= 8 for fields in families.values())
    assert all(fields["reason"] for fields in families.values() if not fields["splittable"])


@pytest.mark.parametrize("architecture", PROMISED)
def test_the_promised_families_split(architecture: str) -> None:
    verdict = verdict_of(architecture)
    assert verdict is not None
    assert verdict.is_splittable
    assert verdict.is_served


def test_the_list_needs_no_run() -> None:
    out = io.StringIO()
    assert certify_families(CertifyFamiliesOptions((), None, True, True), out)
    assert len(json.loads(out.getvalue())["families"]) == len(verdicts())


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tiny model of nonesuch"):
        certify_families(CertifyFamiliesOptions(("nonesuch",), None, False, False), io.StringIO())


# --- runs


def check(architecture: str, cases: list[tuple[int, ...]] | None, folder: Path) -> None:
    """A run gives the verdict on record; at a few ``cases``, its cuts among those on record."""
    for variant in VARIANTS:
        if variant.architecture == architecture:
            runs = run_variant(variant, variant_cases(variant) if cases is None else cases, folder)
            fields, kept = judge(architecture, [runs]), record()["families"][architecture]
            assert fields["verdict"] == kept["verdict"] or cases is not None
            assert fields["splittable"] == kept["splittable"], describe_evidence(runs)
            assert set(fields["cuts"]) <= set(kept["cuts"])


@pytest.mark.parametrize("architecture", QUICK)
def test_a_cut_in_the_middle_is_as_on_record(architecture: str, tmp_path: Path) -> None:
    check(architecture, [(4,)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SAMPLE)
def test_all_cuts_are_as_on_record(architecture: str, tmp_path: Path) -> None:
    check(architecture, None, tmp_path)


def test_cases_are_all_cuts_in_two_and_some_in_three() -> None:
    variant = Variant("llama", False)
    cases = variant_cases(variant)
    assert [case for case in cases if len(case) == 1] == [(cut,) for cut in range(1, layer_count(variant))]
    assert any(len(case) == 2 for case in cases)
