"""Starts a wire trial in a child process: llama.cpp may die of a model, the command that asked must not.

What is measured is ``wire_trial_child``'s; this owns the process, its deadline, and the reading of its answer.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from p2pmesh.adapters.child_environment import engine_environment
from p2pmesh.adapters.child_runs import run_module
from p2pmesh.adapters.llama.exits import describe_exit, last_line_of
from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.core.wire_certificate import CutRecord, WireFigures
from p2pmesh.wire.dtype import WireDtype

TRIAL_TIMEOUT_S = 3600.0
_SPIN_COUNT = 300
"""Short, because a trial is not alone on the machine: OpenMP's default made it fifty times slower beside other work."""


@dataclass(frozen=True, slots=True)
class WireTrialRequest:
    """A model cut in two stage files, and what to send between them. ``token_count`` bounds the text."""

    first_path: str
    last_path: str
    text: str
    token_count: int
    dtypes: tuple[int, ...]
    threads: int
    use_extra_buffers: bool = False


def run_wire_trial(request: WireTrialRequest, cut: int) -> tuple[CutRecord, str]:
    """The record of one cut and the fingerprint of the engine; blocks. ``EngineError`` says why there is none."""
    try:
        finished = run_module(
            "p2pmesh.adapters.llama.wire_trial_child",
            timeout_s=TRIAL_TIMEOUT_S,
            environment=engine_environment(_SPIN_COUNT),
            given=json.dumps(asdict(request)).encode(),
        )
    except OSError as error:
        text = f"no process can be started for the trial of layer {cut}: {error.strerror}"
        raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, text) from None
    except subprocess.TimeoutExpired:
        text = f"the trial of layer {cut} took longer than {TRIAL_TIMEOUT_S:.0f} s; measure fewer tokens"
        raise EngineError(ErrorCode.ENGINE_UNRESPONSIVE, text) from None
    if finished.returncode != 0:
        cause = describe_exit(finished.returncode, last_line_of(finished.stderr))
        raise EngineError(ErrorCode.ENGINE_CRASHED, f"the trial of layer {cut} failed: {cause}")
    answer = json.loads(finished.stdout.splitlines()[-1])
    return _record(answer, cut), str(answer["fingerprint"])


def _record(answer: Mapping[str, Any], cut: int) -> CutRecord:
    figures = {WireDtype(int(number)): WireFigures(**item) for number, item in answer["figures"].items()}
    floor = WireFigures(**answer["floor"])
    return CutRecord(cut, answer["tokens"], answer["perplexity"], answer["largest_magnitude"], floor, figures)
