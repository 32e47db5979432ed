"""``p2pmesh certify families``: runs tiny models whole and cut, and says of each architecture whether it may be cut.

Owns the verdict drawn from the evidence, and the record that is reviewed and kept as ``p2pmesh/model/families.json``.
Runs are ``adapters.llama.certify``'s.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from p2pmesh.adapters.llama.certify import (
    LLAMA_CPP_COMMIT,
    PINNED_VERSION,
    VARIANTS,
    Evidence,
    run_variant,
    variant_cases,
)
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.model.family_rules import rules_of
from p2pmesh.model.family_verdicts import record_build, verdicts

EVERY_CUT = "splittable"
SOME_CUTS = "splittable at these cuts"
SIDE_VALUE = "needs a side value"
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CertifyFamiliesOptions:
    """``architectures``: empty for all. ``record``: the file to write, or ``None``. ``is_listing``: run nothing."""

    architectures: tuple[str, ...]
    record: Path | None
    is_listing: bool
    is_json: bool


def certify_families(options: CertifyFamiliesOptions, out: TextIO) -> bool:
    """Runs, prints, and writes the record; whether no architecture came out worse than the record says."""
    if options.is_listing:
        _print_list(options.is_json, out)
        return True
    wanted = set(options.architectures)
    unknown = sorted(wanted - {variant.architecture for variant in VARIANTS})
    if unknown:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"there is no tiny model of {', '.join(unknown)}")
    families: dict[str, list[Evidence]] = {}
    with tempfile.TemporaryDirectory(prefix="p2pmesh-certify-") as folder:
        for variant in VARIANTS:
            if not wanted or variant.architecture in wanted:
                evidence = run_variant(variant, variant_cases(variant), Path(folder))
                families.setdefault(variant.architecture, []).append(evidence)
                if not options.is_json:
                    out.write(describe_evidence(evidence) + "\n")
                    out.flush()
    record = make_record(families)
    if options.is_json:
        out.write(json.dumps(record, indent=1) + "\n")
    else:
        out.write(_summary(record) + "\n")
    if options.record is not None:
        options.record.write_text(encode_record(record), encoding="utf-8")
    return not _regressions(record)


def make_record(families: dict[str, list[Evidence]]) -> dict[str, Any]:
    """The verdict on every architecture, in order of name, with the build that was run."""
    return {
        "llama_cpp_python": PINNED_VERSION,
        "llama_cpp_commit": LLAMA_CPP_COMMIT,
        "families": {name: judge(name, families[name]) for name in sorted(families)},
    }


def encode_record(record: dict[str, Any]) -> str:
    """One line a family, so that a review sees what changed."""
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in record["families"].items()]
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(record[key])}" for key in record if key != "families")
    return "{\n" + head + ',\n "families": {\n' + ",\n".join(lines) + "\n }\n}\n"


def judge(architecture: str, evidence: Sequence[Evidence]) -> dict[str, Any]:
    """The verdict: every cut that the rules permit gave the bits of the whole, in every variant, or it is refused."""
    rules = rules_of(architecture)
    cuts = sorted(set.intersection(*(set(_exact_cuts(runs)) for runs in evidence)))
    reason = rules.refusal or next((text for runs in evidence if (text := _objection(runs))), "")
    layers = max(runs.layer_count for runs in evidence)
    is_splittable = not reason and bool(cuts)
    if is_splittable:
        verdict = EVERY_CUT if len(cuts) == layers - 1 else SOME_CUTS
    else:
        verdict = SIDE_VALUE if rules.needs_side_value else REFUSED
        cuts = []
    is_served = is_splittable and not rules.unserved
    if is_splittable and not is_served:
        reason = rules.unserved
    return {
        "verdict": verdict, "splittable": is_splittable, "served": is_served, "state": rules.state.value,
        "sticky": rules.is_sticky, "variants": [runs.variant.name for runs in evidence], "layers": layers,
        "cuts": cuts, "reason": reason,
    }  # fmt: skip


def _exact_cuts(runs: Evidence) -> Iterable[int]:
    for outcome in runs.outcomes:
        case = runs.cases[outcome.case]
        if len(case) == 1 and outcome.is_exact and outcome.has_equal_tokens and not outcome.refusal:
            yield case[0]


def _objection(runs: Evidence) -> str:
    """Why a variant may not be cut; empty if it may, where the rules permit it."""
    if runs.failure:
        return f"llama.cpp does not run a tiny model of it: {runs.failure}"
    permitted = [outcome for outcome in runs.outcomes if not outcome.refusal]
    if not permitted:
        return next((outcome.refusal for outcome in runs.outcomes), "nothing was run")
    for outcome in permitted:
        where = f"cut at {', '.join(map(str, runs.cases[outcome.case]))}"
        if outcome.failure:
            return f"{where} it does not run: {outcome.failure}"
        if not outcome.is_exact:
            return f"{where} its logits differ by {outcome.difference:.1e} of the largest"
    return ""


def describe_evidence(runs: Evidence) -> str:
    """One line of a variant: what each cut gave."""
    if runs.failure:
        return f"{runs.variant.name}: {runs.failure}"
    words = []
    for outcome in runs.outcomes:
        result = "exact" if outcome.is_exact else f"{outcome.difference:.1e}" if outcome.difference else "failed"
        suffix = "*" if outcome.refusal else ""
        words.append(f"{'+'.join(map(str, runs.cases[outcome.case]))} {result}{suffix}")
    return f"{runs.variant.name}: {', '.join(words)}"


def _summary(record: dict[str, Any]) -> str:
    families = record["families"]
    splittable = [fields for fields in families.values() if fields["splittable"]]
    variants = sum(len(fields["variants"]) for fields in splittable)
    lines = [
        f"{len(splittable)} of {len(families)} architectures may be cut ({variants} variants); *: no rule permits it"
    ]
    lines += [
        f"{name}: {fields['verdict']}: {fields['reason']}"
        for name, fields in families.items()
        if not fields["splittable"]
    ]
    return "\n".join(lines)


def _regressions(record: dict[str, Any]) -> list[str]:
    known = verdicts()
    return [
        name
        for name, fields in record["families"].items()
        if name in known and known[name].is_splittable and not fields["splittable"]
    ]


def _print_list(is_json: bool, out: TextIO) -> None:
    """The record within this package."""
    version, commit = record_build()
    found = [
        {"architecture": item.architecture, "splittable": item.is_splittable, "served": item.is_served,
         "reason": item.reason}
        for item in verdicts().values()
    ]  # fmt: skip
    if is_json:
        record = {"llama_cpp_python": version, "llama_cpp_commit": commit, "families": found}
        out.write(json.dumps(record, indent=1) + "\n")
        return
    for item in found:
        word = "split" if item["served"] else "refused"
        out.write(f"{item['architecture']}: {word}{': ' if item['reason'] else ''}{item['reason']}\n")
