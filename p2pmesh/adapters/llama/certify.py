"""Tiny models run whole and cut, in child processes with deadlines: the evidence about one variant.

A failed assertion of llama.cpp aborts the child; the case it was at is noted as failed and the rest go on in another.
What is concluded from the evidence is the caller's affair.
"""

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p2pmesh.adapters.child_environment import engine_environment
from p2pmesh.adapters.child_runs import run_module
from p2pmesh.adapters.llama.binding import PINNED_VERSION
from p2pmesh.adapters.llama.certify_child import Outcome
from p2pmesh.adapters.llama.exits import last_line_of
from p2pmesh.adapters.llama.tiny_variants import VARIANTS, Variant, layer_count

CHILD_SECONDS = 90.0
"""Deadline of one child: all cases of a variant, a minute on a slow machine."""
_TOO_LONG = f"no end within {CHILD_SECONDS:.0f} s"

LLAMA_CPP_COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
"""The llama.cpp within the pinned llama-cpp-python."""

__all__ = ["LLAMA_CPP_COMMIT", "PINNED_VERSION", "VARIANTS", "Evidence", "Variant", "run_variant", "variant_cases"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the runs of a variant gave, case by case; ``failure`` is why the whole model did not run, or empty."""

    variant: Variant
    layer_count: int
    cases: tuple[tuple[int, ...], ...]
    outcomes: tuple[Outcome, ...]
    failure: str = ""


def variant_cases(variant: Variant) -> tuple[tuple[int, ...], ...]:
    """Every cut in two, and two cuts in three: at thirds, and at the first starts that every step rule permits."""
    layers = layer_count(variant)
    threes = [(layers // 3, 2 * layers // 3), (1, layers - 1)]
    return (*((cut,) for cut in range(1, layers)), *threes)


def run_variant(variant: Variant, cases: Sequence[tuple[int, ...]], folder: Path) -> Evidence:
    """Runs all cases; blocks for some seconds. Files are made in ``folder``."""
    cases = tuple(cases)
    found: dict[int, Outcome] = {}
    failure = ""
    for _ in range(len(cases) + 1):
        todo = [number for number in range(len(cases)) if number not in found]
        if not todo:
            break
        failure = _run_child(variant, cases, todo, found, folder)
        if failure or any(outcome.failure == _TOO_LONG for outcome in found.values()):
            break  # what hung once would hang at every cut
    (folder / f"{variant.name}.gguf").unlink(missing_ok=True)
    ordered = tuple(found[number] for number in sorted(found))
    return Evidence(variant, layer_count(variant), cases, ordered, failure)


def _run_child(
    variant: Variant, cases: Sequence[tuple[int, ...]], todo: Sequence[int], found: dict[int, Outcome], folder: Path
) -> str:
    """One child for the cases ``todo``; adds what it found. Why the whole model did not run, or empty."""
    fields = {
        "architecture": variant.architecture, "has_experts": variant.has_experts, "folder": str(folder),
        "cases": [cases[number] for number in todo],
    }  # fmt: skip
    module, environment = "p2pmesh.adapters.llama.certify_child", {**engine_environment(), "OMP_NUM_THREADS": "1"}
    try:
        ended = run_module(module, json.dumps(fields), timeout_s=CHILD_SECONDS, environment=environment)
    except subprocess.TimeoutExpired as error:
        return _read(error.stdout or b"", todo, found, _TOO_LONG)
    cause = _cause(ended.returncode, ended.stderr)
    return _read(ended.stdout, todo, found, cause)


def _read(output: bytes, todo: Sequence[int], found: dict[int, Outcome], cause: str) -> str:
    current: int | None = None
    refusal = ""
    began = False
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith("begin "):
            _, number, refusal = line.split(" ", 2)
            current, began = todo[int(number)], True
        elif line.startswith("{") and current is not None:
            found[current] = replace(Outcome(**json.loads(line)), case=current)
            current = None
    if current is not None:
        found[current] = Outcome(current, False, False, None, refusal, cause)
    return "" if began else cause


def _cause(return_code: int, stderr: bytes) -> str:
    """An assertion's own words where there are some: its file within the sources, and the condition."""
    for line in stderr.decode("utf-8", "replace").splitlines():
        if "GGML_ASSERT" in line or "GGML_ABORT" in line:
            return line.rpartition("/")[2][:200]
    if return_code < 0:
        return f"killed by {signal.Signals(-return_code).name}"
    return last_line_of(stderr).rpartition(": ")[2] or f"ended with status {return_code}"
